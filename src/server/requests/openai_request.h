/* Parses and checks OpenAI's chat and completion requests. */
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
    API_RERANK = 256,
    /* For field names; these are parsed as chats: */
    API_RESPONSES = 32,
    API_MESSAGES = 64,
    API_MESSAGES_COUNT = 128,
    API_INFILL = 512, /* parsed as a completion */
    API_TOKENIZE = 4096,
    API_DETOKENIZE = 8192,
    /* For the names within a message, within the function of a tool, and within an item of a response: */
    API_IN_MESSAGE = 1024,
    API_IN_FUNCTION = 2048,
    API_IN_ITEM = 16384,
};

enum {
    API_MAX_PROMPTS = 2048,
    API_MAX_ANSWERS = 8192, /* choices of all prompts of a request */
    API_MAX_MESSAGES = 16384,
    API_DEFAULT_COMPLETION_TOKENS = 16,
    API_MAX_SALT_BYTES = 1024,
};

/* An entry of "prompt"; borrowed from the request. */
struct api_prompt {
    const char *text; /* NULL: ids */
    size_t n_text_bytes;
    size_t first_id, n_ids; /* in api_request.ids */
    const char *pair;       /* the second text of a pair; NULL: none */
    size_t n_pair_bytes;
};

/* Settings of API_INPUTS (server/other_apis/inputs_request.h) that other APIs do not have. */
struct inputs_wants {
    bool details, input_details, full_text;
    bool has_full_text; /* return_full_text was given */
    bool is_list;       /* a whole reply is a list with one element */
    bool is_sampled;
    bool has_other_protocol; /* return_protocol is given, and is not "sse" */
    int truncate;            /* keep this many tokens of the prompt; 0: all */
};

/* What the reply of API_MESSAGES must know. */
struct messages_wants {
    bool has_cache_control; /* of any block: the client counts what it adds to the prefix cache */
    bool omits_thinking;    /* blocks of thinking have no text */
};

/* Settings of /infill that other APIs do not have; 0: none. */
struct infill_wants {
    int n_indent;       /* a line that is indented less ends the answer */
    int max_predict_ms; /* time after which a line feed ends it */
    bool returns_tokens, timings_per_token;
    size_t n_left_out; /* files that did not fit */
};

/* The value of tool_choice. */
enum api_forced { API_FORCED_NONE, API_FORCED_ANY, API_FORCED_NAMED };

/* What the client gets of the reasoning before an answer. */
enum api_reasoning { API_REASONING_APART, API_REASONING_IN_CONTENT, API_REASONING_DROPPED };

struct api_request {
    enum api_kind kind;
    json_t *root;   /* strings below are borrowed from here */
    size_t n_bytes; /* memory of the request, including the engine's copy; set by api_request_trim() */
    size_t n_repeated_bytes; /* of JSON, which the reply has from the request */
    const char *model;
    const char *adapter; /* the one that model names; NULL: none. Set by job_open() */
    struct tutti_message *messages;
    size_t n_messages;
    struct buf *joined; /* contents given in several parts, joined */
    size_t n_joined;
    char **dumped; /* tool calls, tools and template arguments, as JSON texts */
    size_t n_dumped;
    const char *tools, *template_arguments;
    tutti_tool_parser
        *tool_parser; /* of tools, which each answer's parser shares; NULL: answers have no calls */
    enum tutti_grammar_kind grammar_kind;
    const char *grammar_field; /* the field that sets the grammar; NULL: none */
    const char *grammar;
    size_t n_grammar_bytes;
    char *schema;               /* owned: grammar, if it is not a text of the request itself */
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
    struct tutti_string cache_salt; /* text NULL: none */
    int speculate;                  /* 0 or not given: the engine's setting */
    int n_best;                     /* how many of a prompt's n choices to return; 0: all */
    bool scores; /* compute log-probabilities of the choices, even if the client does not want them */
    bool keeps_stop, reports_held;
    enum api_reasoning reasoning;
    int max_reasoning_tokens; /* as in struct tutti_request */
    const char *budget_field; /* the field that sets it; NULL: none */
    enum api_forced forced;
    bool one_tool_call; /* parallel_tool_calls is false: only the first call counts */
    bool continues;     /* the last message is marked as the begin of the answer */
    int n_beams;
    float length_penalty;
    enum tutti_early_stopping early_stopping;
    enum tutti_embedding embedding;
    int dimensions; /* of an embedding; 0: all */
    bool is_base64, normalizes;
    int top_n; /* of API_RERANK: results to return; 0: all */
    bool returns_documents;
    bool prompt_logprobs, no_answer;
    bool reports_prompt; /* the reply contains the prompt's text or tokens */
    struct inputs_wants inputs;
    struct messages_wants messages_api;
    struct infill_wants infill;
    bool stream, include_usage, logprobs, echo, ignore_eos, parse_special;
};

/* Reads root and takes ownership of it; call api_check_fields() before. TUTTI_E_ARGUMENT with
 * err->param: a wrong type, a value out of range, or an unsupported field. Call api_request_clear()
 * in any case. */
MUST_CHECK enum tutti_status api_request_read_value(struct api_request *out, enum api_kind kind,
                                                    const tutti_model *model, json_t *root,
                                                    struct tutti_error *err);
/* The same for a body as a client sent it: calls api_check_fields() first. */
MUST_CHECK enum tutti_status api_request_read_client(struct api_request *out, enum api_kind kind,
                                                     const tutti_model *model, json_t *root,
                                                     struct tutti_error *err);
void api_request_clear(struct api_request *req);

/* The engine's request for prompt number i. Borrowed from req. */
struct tutti_request api_request_make(const struct api_request *req, size_t i);

/* Renders the messages by the model's chat format. */
MUST_CHECK enum tutti_status api_render_messages(const struct api_request *req, const tutti_model *model,
                                                 struct ids *out, struct tutti_error *err);

/* Tokens of prompt number i, estimated from its length. */
int64_t api_request_estimate(const struct api_request *req, size_t i);

/* Cost of parsing prompt number i if nothing comes of it, as of other bytes (intake.c). */
int64_t api_request_read_cost(const struct api_request *req, size_t i);

/* Frees the parts of root that nothing borrows (lists of ids and other values without
 * strings), and sets n_bytes. Call it after parsing. */
void api_request_trim(struct api_request *req);

/* For other routes: */
/* Reads the settings that are a number or a boolean, of the API req->kind. */
MUST_CHECK enum tutti_status api_read_fields(struct api_request *req, struct tutti_error *err);
/* Reads only the prompts. name: the field. */
MUST_CHECK enum tutti_status api_read_prompts(struct api_request *req, const char *name, int n_vocab,
                                              struct tutti_error *err);
/* Reads query and documents of API_RERANK as prompts: pairs, or the query and then each document. */
MUST_CHECK enum tutti_status api_read_documents(struct api_request *req, bool are_pairs,
                                                struct tutti_error *err);
MUST_CHECK enum tutti_status api_read_messages(struct api_request *req, struct tutti_error *err);
/* Checks a list of {"type": "function", "function": {"name": "..."}}: tools, or (is_call) calls,
 * which have arguments as well. */
MUST_CHECK enum tutti_status api_check_functions(const json_t *list, const char *name, bool is_call,
                                                 struct tutti_error *err);
/* Stores a value as text, freed with the request. There must be room in dumped, which is allocated
 * with the messages. */
MUST_CHECK enum tutti_status api_dump(struct api_request *req, const json_t *value, const char **text,
                                      struct tutti_error *err);
/* Reads tools, tool_choice and chat_template_kwargs; after the messages and response_format. */
MUST_CHECK enum tutti_status api_read_tools(struct api_request *req, struct tutti_error *err);
/* After api_read_tools(): sets req->tool_parser. */
MUST_CHECK enum tutti_status api_prepare_calls(struct api_request *req, const struct tutti_model_info *info,
                                               struct tutti_error *err);
/* Reads response_format, grammar and the corresponding fields of other servers. */
MUST_CHECK enum tutti_status api_read_format(struct api_request *req, struct tutti_error *err);
/* An error of the engine: renames err->param, and its name in the text, to the client's field. */
void api_name_field(const struct api_request *req, struct tutti_error *err);
MUST_CHECK enum tutti_status api_read_ids(struct ids *out, const json_t *list, const char *param, int n_vocab,
                                          struct tutti_error *err);

/* tutti_tokenize() or tutti_tokenize_trusted() */
typedef int64_t api_tokenize_fn(const tutti_model *model, const char *text, size_t n_bytes, bool add_special,
                                int32_t *ids, size_t max_ids);
/* Appends the ids of a whole text. */
MUST_CHECK enum tutti_status api_tokenize(struct ids *out, const tutti_model *model,
                                          api_tokenize_fn *tokenize, const char *text, size_t n_bytes,
                                          bool add_special, struct tutti_error *err);

#endif
