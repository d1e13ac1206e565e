/* The fields of OpenAI's chat and completion requests, read and checked. */
#ifndef TUTTI_SERVER_REQUESTS_OPENAI_REQUEST_H
#define TUTTI_SERVER_REQUESTS_OPENAI_REQUEST_H

#include "base/ids.h"
#include "base/limits.h"
#include "server/json.h"

enum api_kind {
    API_CHAT = 1,
    API_COMPLETION = 2,
    API_INPUTS = 4,
    API_STEP = 8,
    API_EMBEDDING = 16,
    API_RESPONSES = 32, /* for the names of fields; it is read as a chat */
};

enum { API_MAX_PROMPTS = 2048, API_MAX_MESSAGES = 16384, API_DEFAULT_COMPLETION_TOKENS = 16 };

/* What stands at "prompt" is one of these for each entry; borrowed from the request. */
struct api_prompt {
    const char *text; /* NULL: ids */
    size_t n_text_bytes;
    size_t first_id, n_ids; /* in api_request.ids */
};

/* What API_INPUTS asks for beside the fields that all have: server/other_apis/inputs_request.h. */
struct inputs_wants {
    bool details, input_details, full_text;
    bool has_full_text; /* return_full_text was given */
    bool is_sampled;
    bool has_other_protocol; /* return_protocol is there, and is not "sse" */
    int truncate;            /* 0: no */
};

/* What tool_choice demands. */
enum api_forced { API_FORCED_NONE, API_FORCED_ANY, API_FORCED_NAMED };

struct api_request {
    enum api_kind kind;
    json_t *root; /* strings below are borrowed from here */
    size_t
        n_bytes; /* memory that the request takes, with the engine's copy of it; set by api_request_trim() */
    const char *model;
    const char *adapter; /* that model names; NULL: none. Set by app_check_model() */
    struct tutti_message *messages;
    size_t n_messages;
    struct buf *joined; /* contents that came in several parts */
    size_t n_joined;
    char **dumped; /* tool calls, tools and template arguments, as JSON texts */
    size_t n_dumped;
    const char *tools, *template_arguments;
    enum tutti_grammar_kind grammar_kind;
    const char *grammar_field; /* of the request, that says what the answer must be; NULL: none */
    const char *grammar;
    size_t n_grammar_bytes;
    char *schema;               /* own: grammar, where it is none of the request's own texts */
    struct api_prompt *prompts; /* NULL: messages, which count as one */
    size_t n_prompts;
    struct ids ids, stop_ids;
    struct tutti_sampling sampling;
    struct tutti_logit_bias *logit_bias;
    struct tutti_string stop[LIMIT_STOPS];
    size_t n_stop;
    int max_tokens;    /* 0: as many as the context holds */
    bool is_unlimited; /* n_predict is -1 or -2: max_tokens 0 is meant */
    int n, best_of, top_logprobs;
    int priority;           /* with has_priority */
    float max_queue_time_s; /* 0: the server's */
    bool has_priority;
    int speculate; /* 0 and not given: as the engine does */
    int n_best;    /* of the n choices of a prompt, how many are answered with; 0: all */
    bool scores;   /* the choices' log-probabilities are wanted, if not by the client */
    bool keeps_stop, reports_held;
    enum api_forced forced;
    const char *forced_name; /* the function, of API_FORCED_NAMED */
    bool one_tool_call;      /* parallel_tool_calls is false: of several calls, the first */
    int n_beams;
    float length_penalty;
    enum tutti_early_stopping early_stopping;
    enum tutti_embedding embedding;
    int dimensions; /* of an embedding; 0: all */
    bool is_base64;
    bool prompt_logprobs, no_answer;
    bool tells_prompt; /* the reply has the prompt's text or tokens */
    struct inputs_wants inputs;
    bool stream, include_usage, logprobs, echo, ignore_eos, parse_special;
};

/* Reads root, which is taken over; api_check_fields() comes before. A wrong type, a value out of range or a field that asks for what
 * does not exist is TUTTI_E_ARGUMENT with err->param. Call api_request_clear() in either case. */
MUST_CHECK enum tutti_status api_request_read_value(struct api_request *out, enum api_kind kind,
                                                    const tutti_model *model, json_t *root,
                                                    struct tutti_error *err);
/* The same of a body as a client sent it: names of fields are checked first (openai_fields.h). */
MUST_CHECK enum tutti_status api_request_read_client(struct api_request *out, enum api_kind kind,
                                                     const tutti_model *model, json_t *root,
                                                     struct tutti_error *err);
void api_request_clear(struct api_request *req);

/* What the engine is asked for prompt number i. Borrowed from req. */
struct tutti_request api_request_make(const struct api_request *req, size_t i);

/* Tokens of prompt number i, guessed from its length. */
int64_t api_request_guess(const struct api_request *req, size_t i);

/* What it costs to read prompt number i, where nothing comes of it: intake_cost() of its bytes. */
int64_t api_request_read_cost(const struct api_request *req, size_t i);

/* After the request was read: frees the parts of root from which nothing is borrowed (lists of ids and other values without
 * strings), and sets n_bytes. */
void api_request_trim(struct api_request *req);

/* For other routes: prompts and messages alone. */
/* name: of the field. */
MUST_CHECK enum tutti_status api_read_prompts(struct api_request *req, const char *name, int n_vocab,
                                              struct tutti_error *err);
MUST_CHECK enum tutti_status api_read_messages(struct api_request *req, struct tutti_error *err);
/* A list of {"type": "function", "function": {"name": "..."}}: tools, or calls, which have arguments as well. */
MUST_CHECK enum tutti_status api_check_functions(const json_t *list, const char *name, bool is_call,
                                                 struct tutti_error *err);
/* Keeps a value as text; there is room for it behind the messages. */
MUST_CHECK enum tutti_status api_dump(struct api_request *req, const json_t *value, const char **text,
                                      struct tutti_error *err);
/* tools, tool_choice and chat_template_kwargs; after the messages and response_format. */
MUST_CHECK enum tutti_status api_read_tools(struct api_request *req, struct tutti_error *err);
/* The calls in a whole answer that must be some: [{"name", "arguments": JSON as text}]. NULL: it is none, or there is no memory. */
json_t *api_forced_calls(const struct api_request *req, const char *text, size_t n_bytes);
/* response_format, grammar and other servers' fields of that kind. */
MUST_CHECK enum tutti_status api_read_format(struct api_request *req, struct tutti_error *err);
/* An error about the form of the answer names the field that the request has. */
void api_name_format(const struct api_request *req, struct tutti_error *err);
MUST_CHECK enum tutti_status api_read_ids(struct ids *out, const json_t *list, const char *param, int n_vocab,
                                          struct tutti_error *err);

#endif
