/* Chat formats: render messages to the token ids of a prompt.
 *
 * There are three kinds. The checkpoint's Jinja template has priority. Without one, there is code
 * for families whose authors' renderer works on ids (the GLM family, LLaMA-2), and tutti's own
 * templates for other well-known formats. In all of them only the format itself produces special
 * tokens: a message is tokenized as plain text, whatever it contains.
 *
 * Nothing in these files recurses. Templates do, within the bounds that template/template.h
 * lists. jansson copies and prints the JSON of messages, tools and calls, up to the depth that
 * the server accepts (LIMIT_JSON_DEPTH), and the JSON of answers, up to jansson's own depth (2048
 * levels). */
#ifndef TUTTI_MODEL_CHAT_CHAT_H
#define TUTTI_MODEL_CHAT_CHAT_H

#include "model/description/family.h"
#include "template/template.h"

struct chat_template;
struct call_form; /* call_forms.h */

/* The input of a chat format. All pointers are borrowed. */
struct chat_call {
    const struct tokenizer *tok;
    const struct model_desc *desc;
    const struct chat_template *tpl; /* of formats that are templates */
    const struct tutti_message *messages;
    size_t n_messages;
    const json_t *tools;     /* list, as in OpenAI's API; NULL: none */
    const json_t *arguments; /* object of further variables for a template; NULL: none */
    bool continues;          /* the last message is the beginning of the answer */
};

extern const struct chat_format CHAT_CHATGLM, CHAT_CHATGLM2, CHAT_CHATGLM3, CHAT_GLM4, CHAT_LLAMA2,
    CHAT_BAICHUAN;

/* Adds the text of a format that is_own_template. False: out of memory. */
MUST_CHECK bool chat_add_own_template(const struct chat_format *format, struct buf *out);

/* The built-in formats, by number and by name; NULL: none. */
const struct chat_format *chat_format_at(size_t i);
const struct chat_format *chat_format_find(const char *name);

enum { CHAT_PATH_BYTES = 4352, CHAT_MAX_TEMPLATES = 64 };

/* Keys that `tutti convert` writes into a GGUF file, so that it gives the same prompts as the
 * original folder: the name of the built-in format, and a JSON object with the special tokens
 * that templates get as variables. */
#define CHAT_GGUF_FORMAT "tutti.chat_format"
#define CHAT_GGUF_TOKENS "tutti.chat_tokens"

/* Where a checkpoint's chat format is looked for. */
struct chat_source {
    /* The user's choice: a name, "template" or "template:NAME" (the checkpoint's own), or a file;
     * NULL: none. */
    const char *option;
    const struct family *family;   /* NULL: none */
    const struct model_desc *desc; /* NULL: none, without a family only */
    const char *folder;            /* of the checkpoint; NULL: a GGUF file */
    const json_t *config, *tokenizer_config;
    const json_t *generation; /* generation_config.json; NULL: none */
};

/* The templates found in a checkpoint's files. */
struct chat_texts {
    json_t *by_name;            /* templates, {"default": text, "tool_use": text}; NULL: none */
    json_t *tokens;             /* variables of the templates, {"bos_token": text} */
    char file[CHAT_PATH_BYTES]; /* path of the templates, for messages */
};

/* The caller calls chat_texts_clear(). TUTTI_E_FORMAT, TUTTI_E_LIMIT, TUTTI_E_IO: the error names
 * the file. */
MUST_CHECK enum tutti_status chat_read_texts(struct chat_texts *out, const struct chat_source *source,
                                             const struct tokenizer *tok, struct tutti_error *err);
/* The same without the tokens. */
MUST_CHECK enum tutti_status chat_read_templates(struct chat_texts *out, const struct chat_source *source,
                                                 struct tutti_error *err);
void chat_texts_clear(struct chat_texts *texts);

/* The format that a checkpoint has without the user's choice: its template, else a built-in one. */
struct chat_found {
    struct chat_texts texts;
    /* Named by the file, by the family, or by special tokens that only one format has; NULL:
     * none. If there is a template, this format only converts replies to text, and renders tools
     * if the template cannot. */
    const struct chat_format *builtin;
    bool has_template; /* the template renders the prompts */
};

/* The caller calls chat_found_clear(). */
MUST_CHECK enum tutti_status chat_find(struct chat_found *out, const struct chat_source *source,
                                       const struct tokenizer *tok, struct tutti_error *err);
void chat_found_clear(struct chat_found *found);

/* Chooses the format and compiles its template. *format stays NULL if there is none; *tpl is for
 * chat_template_free(). TUTTI_E_ARGUMENT: an unknown name. A file that cannot be read or compiled
 * keeps its status. A template of the checkpoint that does not compile is not an error: it is
 * logged, and there is no format. */
MUST_CHECK enum tutti_status chat_choose(const struct chat_format **format, struct chat_template **tpl,
                                         const struct chat_source *source, const struct tokenizer *tok,
                                         struct tutti_error *err);

/* The parts of a template, borrowed while it is compiled. */
struct chat_template_source {
    const char *name; /* for messages */
    const char *text;
    size_t n_bytes;
    const json_t *tool_text;           /* a string, for requests with tools; NULL: text serves both */
    const json_t *tokens;              /* as in struct chat_texts; NULL: the tokenizer's */
    const struct chat_format *builtin; /* as in struct chat_found */
};

/* How a model with this template writes calls and reasoning; NULL: it does not tell, or has none. */
void chat_forms_of(const struct chat_template_source *source, const struct call_form **tool_form,
                   const struct reasoning_form **reasoning);

MUST_CHECK enum tutti_status chat_template_new(struct chat_template **out,
                                               const struct chat_template_source *source,
                                               const struct tokenizer *tok, struct tutti_error *err);
void chat_template_free(struct chat_template *tpl);                              /* NULL is allowed */
const struct chat_format *chat_template_format(const struct chat_template *tpl); /* lives as long as tpl */
/* chat_forms_of() its source. */
void chat_template_forms(const struct chat_template *tpl, const struct call_form **tool_form,
                         const struct reasoning_form **reasoning);
/* Whether the prompt opens the reasoning of an answer that has one: the model does not begin it by itself. */
bool chat_template_opens_reasoning(const struct chat_template *tpl);
const struct chat_format *
chat_template_builtin(const struct chat_template *tpl); /* as in its source; NULL: none */

/* Renders the prompt of a request's messages. TUTTI_E_ARGUMENT with err->param: the format cannot
 * express this message. */
MUST_CHECK enum tutti_status chat_render(const struct model *model, const struct tutti_request *request,
                                         struct ids *out, struct tutti_error *err);

/* Whether the answer continues the request's last message: continue_final_message is set. */
bool chat_continues(const struct tutti_request *request);

/* ---- for formats ---- */

enum tutti_status chat_render_template(const struct chat_call *call, struct ids *out,
                                       struct tutti_error *err);
/* Renders a format that is code. TUTTI_E_ARGUMENT: call->arguments has one that only templates
 * support, or the last message is no beginning of an answer. */
enum tutti_status chat_render_code(const struct chat_format *format, const struct chat_call *call,
                                   struct ids *out, struct tutti_error *err);

/* Adds the beginning of the answer, if the call has one, tokenized by itself: as training data has
 * question and answer. */
enum tutti_status chat_add_beginning(const struct chat_call *call, struct ids *out, struct tutti_error *err);

/* Tokenizes a rendered prompt. Special tokens are recognized only in the format's own text;
 * everything between them is tokenized as text, joined across the borders of format and messages. */
MUST_CHECK bool chat_encode(const struct tokenizer *tok, const struct template_output *text, struct ids *out);

/* Tokenizes a trusted text: special tokens are recognized everywhere in it. */
MUST_CHECK enum tutti_status chat_encode_trusted(const struct tokenizer *tok, const char *text,
                                                 size_t n_bytes, struct ids *out, struct tutti_error *err);

/* Renders a small built-in template with one variable "x"; for JSON and Python literals. */
MUST_CHECK enum tutti_status chat_print(struct buf *out, const char *source, const json_t *x,
                                        struct tutti_error *err);
/* The tool calls of an assistant's message as a list of {"name", "arguments"}; arguments become
 * an object if they parse as one. *out is the caller's, for json_decref(). NULL: out of memory,
 * or no calls. */
MUST_CHECK enum tutti_status chat_read_calls(json_t **out, const struct tutti_message *message, size_t index,
                                             struct tutti_error *err);
/* The function of a tool: {"type": "function", "function": {...}} or the function itself. */
const json_t *chat_tool_function(const json_t *tool);
/* TUTTI_E_ARGUMENT if the call has tools. */
enum tutti_status chat_refuse_tools(const struct chat_call *call, const char *format,
                                    struct tutti_error *err);

#endif
