/* Chat formats: messages to the ids of a prompt.
 *
 * Three kinds. The checkpoint's template, in Jinja, which comes first; where it has none, code for families whose authors' own
 * renderer works on ids (the GLM family, LLaMA-2), and templates of tutti's own for other well-known formats.
 * In all of them only the format makes special tokens: a message's text is tokenized as text, whatever it contains.
 *
 * Nothing in these files recurses. Templates do, within the bounds that template/template.h lists; JSON of messages, tools and calls
 * is copied and printed by jansson, as deep as the server reads it (LIMIT_JSON_DEPTH), and that of answers as deep as jansson does
 * (2048 levels). */
#ifndef TUTTI_MODEL_CHAT_CHAT_H
#define TUTTI_MODEL_CHAT_CHAT_H

#include "model/description/family.h"
#include "template/template.h"

struct chat_template;

/* What a prompt is made from. All of it is borrowed. */
struct chat_call {
    const struct tokenizer *tok;
    const struct model_desc *desc;
    const struct chat_template *tpl; /* of formats that are templates */
    const struct tutti_message *messages;
    size_t n_messages;
    const json_t *tools;     /* list, as in OpenAI's API; NULL: none */
    const json_t *arguments; /* object of further variables for a template; NULL: none */
};

extern const struct chat_format CHAT_CHATGLM, CHAT_CHATGLM2, CHAT_CHATGLM3, CHAT_GLM4, CHAT_LLAMA2;

/* Formats in tutti's own templates: chatml, qwen2, ... The text, or NULL. */
const char *chat_source(const char *name,
                        size_t i); /* parts are joined; NULL behind the last, or no such name */

/* The built-in formats, by number and by name; NULL: none. */
const struct chat_format *chat_format_at(size_t i);
const struct chat_format *chat_format_find(const char *name);

enum { CHAT_PATH_BYTES = 4352, CHAT_MAX_TEMPLATES = 64 };

/* Keys that `tutti convert` writes into a GGUF file, so that the file gives the same prompts as the folder: the built-in format
 * that the folder's prompts are made by; and an object in JSON of the special tokens that templates get as variables. */
#define CHAT_GGUF_FORMAT "tutti.chat_format"
#define CHAT_GGUF_TOKENS "tutti.chat_tokens"

/* What a checkpoint says about its format. */
struct chat_source {
    /* The user's choice: a name, "template" or "template:NAME" (the checkpoint's own), or a file; NULL: none. */
    const char *option;
    const struct family *family; /* NULL: none */
    const struct model_desc *desc;
    const char *folder; /* of the checkpoint; NULL: a GGUF file */
    const json_t *config, *tokenizer_config;
};

/* What its files hold. */
struct chat_texts {
    json_t *by_name;            /* templates, {"default": text, "tool_use": text}; NULL: none */
    json_t *tokens;             /* variables of the templates, {"bos_token": text} */
    char file[CHAT_PATH_BYTES]; /* that holds the templates, for messages */
};

/* Call chat_texts_clear(). TUTTI_E_FORMAT, TUTTI_E_LIMIT, TUTTI_E_IO: the file is named. */
MUST_CHECK enum tutti_status chat_read_texts(struct chat_texts *out, const struct chat_source *source,
                                             const struct tokenizer *tok, struct tutti_error *err);
void chat_texts_clear(struct chat_texts *texts);

/* The format that a checkpoint has by itself: its template, else a built-in one. */
struct chat_found {
    struct chat_texts texts;
    /* Named by the file, the family, or special tokens that only one format has; NULL: none. If there is a template, this
     * format only turns replies into text, and renders tools if the template cannot. */
    const struct chat_format *builtin;
    bool has_template; /* it makes the prompts */
};

/* Call chat_found_clear(). */
MUST_CHECK enum tutti_status chat_find(struct chat_found *out, const struct chat_source *source,
                                       const struct tokenizer *tok, struct tutti_error *err);
void chat_found_clear(struct chat_found *found);

/* Chooses, and prepares what the choice needs. *format stays NULL where there is none; *tpl is for
 * chat_template_free(). TUTTI_E_ARGUMENT: an unknown name; a file that cannot be read or compiled keeps its status.
 * A template of the checkpoint that does not compile is no error: a warning, and no format. */
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

MUST_CHECK enum tutti_status chat_template_new(struct chat_template **out,
                                               const struct chat_template_source *source,
                                               const struct tokenizer *tok, struct tutti_error *err);
void chat_template_free(struct chat_template *tpl);                              /* NULL is allowed */
const struct chat_format *chat_template_format(const struct chat_template *tpl); /* lives as long as it */
const struct chat_format *
chat_template_builtin(const struct chat_template *tpl); /* its source's; NULL: none */

/* Renders the prompt of a request's messages. TUTTI_E_ARGUMENT with err->param: what the format cannot say. */
MUST_CHECK enum tutti_status chat_render(const struct model *model, const struct tutti_request *request,
                                         struct ids *out, struct tutti_error *err);

/* ---- calls of tools in an answer ---- */

/* The calls in a whole answer, [{"name", "arguments": JSON as text}], and how many bytes of it come before them as content.
 * NULL: there are none (all is content), or there is no memory. For json_decref(). */
json_t *chat_find_calls(const char *text, size_t n_bytes, const json_t *tools, size_t *n_content);
/* How many bytes of an answer that still grows are content, whatever follows. n_known: what an earlier call gave, at most; they are
 * not searched again. */
size_t chat_sure_content(const char *text, size_t n_bytes, size_t n_known, const json_t *tools);

/* ---- for formats ---- */

enum tutti_status chat_render_template(const struct chat_call *call, struct ids *out,
                                       struct tutti_error *err);
/* A format that is code. TUTTI_E_ARGUMENT: arguments say how a template is rendered, which code cannot do. */
enum tutti_status chat_render_code(const struct chat_format *format, const struct chat_call *call,
                                   struct ids *out, struct tutti_error *err);

/* Special tokens where the format's own text spells them, everything between as text, joined over all origins. */
MUST_CHECK bool chat_encode(const struct tokenizer *tok, const struct template_output *text, struct ids *out);

/* All of a text that is trusted, as if a format had spelled it. */
MUST_CHECK enum tutti_status chat_encode_trusted(const struct tokenizer *tok, const char *text,
                                                 size_t n_bytes, struct ids *out, struct tutti_error *err);

/* Renders a small template of ours over one variable "x"; for JSON and Python literals. */
MUST_CHECK enum tutti_status chat_print(struct buf *out, const char *source, const json_t *x,
                                        struct tutti_error *err);
/* The tool calls of an assistant's message as a list of {"name", "arguments"}, arguments as an object where they are
 * one; NULL: out of memory or none. The caller's, for json_decref(). */
MUST_CHECK enum tutti_status chat_read_calls(json_t **out, const struct tutti_message *message, size_t index,
                                             struct tutti_error *err);
/* The function of a tool: {"type": "function", "function": {...}} or the function itself. */
const json_t *chat_tool_function(const json_t *tool);
/* Whether one of the tools, a list of those, has this name. */
bool chat_has_tool(const json_t *tools, const char *name, size_t n_bytes);
/* TUTTI_E_ARGUMENT where there are tools. */
enum tutti_status chat_refuse_tools(const struct chat_call *call, const char *format,
                                    struct tutti_error *err);

#endif
