/* Chat formats: messages to the ids of a prompt.
 *
 * Three kinds. Code, where the authors' own renderer works on ids and no text can say the same (the GLM family, LLaMA-2);
 * templates of tutti's own for well-known formats; and the checkpoint's template, in Jinja.
 * In all of them special tokens come from the format alone: a message's text is tokenized as text, whatever it spells. */
#ifndef TUTTI_MODEL_CHAT_H
#define TUTTI_MODEL_CHAT_H

#include "model/family.h"
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

const struct chat_format *chat_format_find(const char *name); /* by its name; NULL: none */

/* What a checkpoint says about its format. */
struct chat_source {
    /* The user's choice: a name, "template" (the checkpoint's own), or a file; NULL: none. */
    const char *option;
    const char *family; /* the family's choice; "": none */
    const char *folder; /* of the checkpoint; NULL: a GGUF file */
    const json_t *config, *tokenizer_config;
};

/* Chooses, and prepares what the choice needs. *format stays NULL where there is none; *tpl is for
 * chat_template_free(). TUTTI_E_ARGUMENT: an unknown name; a file that cannot be read or compiled keeps its status.
 * A template of the checkpoint that does not compile is no error: a warning, and no format. */
MUST_CHECK enum tutti_status chat_choose(const struct chat_format **format, struct chat_template **tpl,
                                         const struct chat_source *source, const struct tokenizer *tok,
                                         struct tutti_error *err);

/* *tools: JSON {"default": text, "tool_use": text}. name is for messages. */
MUST_CHECK enum tutti_status chat_template_new(struct chat_template **out, const char *text,
                                               const char *tool_text, const char *name,
                                               const struct tokenizer *tok, const json_t *tokenizer_config,
                                               struct tutti_error *err);
void chat_template_free(struct chat_template *tpl); /* NULL is allowed */

/* Renders the prompt of a request's messages. TUTTI_E_ARGUMENT with err->param: what the format cannot say. */
MUST_CHECK enum tutti_status chat_render(const struct model *model, const struct tutti_request *request,
                                         struct ids *out, struct tutti_error *err);

/* tokenizer_config.json may hold a list of templates, one for each use: "default", "tool_use". NULL: none of that name. */
const char *chat_template_of_list(const json_t *list, const char *name);

/* ---- calls of tools in an answer ---- */

/* The calls in a whole answer, [{"name", "arguments": JSON as text}], and how many bytes of it come before them as content.
 * NULL: there are none (all is content), or there is no memory. For json_decref(). */
json_t *chat_find_calls(const char *text, size_t n_bytes, const json_t *tools, size_t *n_content);
/* How many bytes of an answer that still grows are content, whatever follows. */
size_t chat_sure_content(const char *text, size_t n_bytes, const json_t *tools);

/* ---- for formats ---- */

enum tutti_status chat_render_template(const struct chat_call *call, struct ids *out,
                                       struct tutti_error *err);

/* Special tokens where the format's own text spells them, everything between as text, joined over all origins. */
struct chat_specials;
MUST_CHECK enum tutti_status chat_specials_new(struct chat_specials **out, const struct tokenizer *tok,
                                               struct tutti_error *err);
void chat_specials_free(struct chat_specials *specials);
MUST_CHECK bool chat_encode(const struct chat_specials *specials, const struct tokenizer *tok,
                            const struct template_output *text, struct ids *out);

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
