/* The GLM family's chat formats. The authors' code builds them from ids, with separately
 * tokenized parts, which a template cannot express. */
#include "model/chat/chat.h"

#include <stdio.h>
#include <string.h>

/* A GGUF vocabulary, in which spellings must be unique, spells "sop" with brackets if a plain
 * piece has the same spelling. */
static enum tutti_status add_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    enum tutti_status st = chat_add_special(tok, "[gMASK]", out, err);
    if (st != TUTTI_OK)
        return st;
    bool is_bracketed = tokenizer_find_control(tok, "sop") < 0;
    return chat_add_special(tok, is_bracketed ? "<sop>" : "sop", out, err);
}

static enum tutti_status encode(const struct tokenizer *tok, const struct buf *text, struct ids *out,
                                struct tutti_error *err)
{
    return tokenizer_encode(tok, text->bytes ? text->bytes : "", text->n_bytes, out)
               ? TUTTI_OK
               : tokenizer_encode_error(out, err);
}

/* ---- rounds of question and answer ---- */

/* The messages before the beginning of the answer. */
static size_t n_complete(const struct chat_call *call)
{
    return call->n_messages - call->continues;
}

struct glm_rounds {
    const char *before, *between, *after; /* the question, question and answer, the answer */
    int first;                            /* round's number */
};

static bool add_round(struct buf *text, const struct glm_rounds *rounds, int number)
{
    return buf_printf(text, "[Round %d]", number) && buf_add_string(text, rounds->before);
}

/* There is no system role: such a message is prepended to the next question. */
static enum tutti_status add_rounds(struct buf *text, const struct glm_rounds *rounds,
                                    const struct chat_call *call, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct buf system = { 0 };
    int round = rounds->first;
    bool ok = true, answered = true;
    for (size_t i = 0; i < n_complete(call) && ok && st == TUTTI_OK; i++) {
        const struct tutti_message *m = &call->messages[i];
        if (strcmp(m->role, "system") == 0) {
            ok = buf_add(&system, m->content, m->n_bytes) && buf_add(&system, "\n", 1);
        } else if (strcmp(m->role, "user") == 0) {
            ok = (answered || buf_add_string(text, rounds->after)) && add_round(text, rounds, round) &&
                 buf_add(text, system.bytes, system.n_bytes) && buf_add(text, m->content, m->n_bytes) &&
                 buf_add_string(text, rounds->between);
            buf_truncate(&system, 0);
            answered = false;
        } else if (strcmp(m->role, "assistant") == 0) {
            ok = buf_add(text, m->content, m->n_bytes) && buf_add_string(text, rounds->after);
            answered = true;
            round++;
        } else {
            st = chat_bad_role(m, i, "system, user or assistant", err);
        }
    }
    buf_clear(&system);
    return ok ? st : chat_out_of_memory(err);
}

/* ChatGLM-6B: rounds from 0; a question without history is the whole text. The mask and the start
 * token follow it. */
static enum tutti_status render_chatglm(const struct chat_call *call, struct ids *out,
                                        struct tutti_error *err)
{
    static const struct glm_rounds ROUNDS = {
        .before = "\n问：", .between = "\n答：", .after = "\n", .first = 0
    };
    struct buf text = { 0 };
    enum tutti_status st = chat_refuse_tools(call, "chatglm", err);
    size_t n_systems = 0, n_messages = n_complete(call);
    while (n_systems < n_messages && strcmp(call->messages[n_systems].role, "system") == 0)
        n_systems++;
    bool is_first = n_messages == n_systems + 1 && strcmp(call->messages[n_systems].role, "user") == 0;
    for (size_t i = 0; st == TUTTI_OK && is_first && i < n_messages; i++) {
        const struct tutti_message *m = &call->messages[i];
        if (!buf_add(&text, m->content, m->n_bytes) || (i < n_systems && !buf_add(&text, "\n", 1)))
            st = chat_out_of_memory(err);
    }
    if (st == TUTTI_OK && !is_first)
        st = add_rounds(&text, &ROUNDS, call, err);
    if (st == TUTTI_OK)
        st = encode(call->tok, &text, out, err);
    if (st == TUTTI_OK &&
        (!ids_add(out, call->desc->mask_ids[0]) || !ids_add(out, call->desc->prefix_end_id)))
        st = chat_out_of_memory(err);
    if (st == TUTTI_OK)
        st = chat_add_beginning(call, out, err);
    buf_clear(&text);
    return st;
}

/* ChatGLM2: rounds from 1. */
static enum tutti_status render_chatglm2(const struct chat_call *call, struct ids *out,
                                         struct tutti_error *err)
{
    static const struct glm_rounds ROUNDS = {
        .before = "\n\n问：", .between = "\n\n答：", .after = "\n\n", .first = 1
    };
    struct buf text = { 0 };
    enum tutti_status st = chat_refuse_tools(call, "chatglm2", err);
    if (st == TUTTI_OK)
        st = add_rounds(&text, &ROUNDS, call, err);
    if (st == TUTTI_OK)
        st = add_prefix(call->tok, out, err);
    if (st == TUTTI_OK)
        st = encode(call->tok, &text, out, err);
    if (st == TUTTI_OK)
        st = chat_add_beginning(call, out, err);
    buf_clear(&text);
    return st;
}

/* ---- roles, metadata and content ---- */

static const struct {
    const char *role, *token;
} ROLES[] = { { "system", "<|system|>" },       { "user", "<|user|>" },
              { "assistant", "<|assistant|>" }, { "observation", "<|observation|>" },
              { "tool", "<|observation|>" },    { "function", "<|observation|>" } };

static const char *role_token(const char *role)
{
    for (size_t i = 0; i < sizeof ROLES / sizeof *ROLES; i++) {
        if (strcmp(role, ROLES[i].role) == 0)
            return ROLES[i].token;
    }
    return NULL;
}

/* Adds a role's token; a line of metadata (a tool's name if the assistant calls one, else empty);
 * the content. Metadata and content are tokenized separately. */
static enum tutti_status add_turn(const struct tokenizer *tok, const char *token, const char *metadata,
                                  const char *content, size_t n_bytes, struct ids *out,
                                  struct tutti_error *err)
{
    struct buf line = { 0 };
    enum tutti_status st = chat_add_special(tok, token, out, err);
    if (st == TUTTI_OK && (!buf_add_string(&line, metadata) || !buf_add(&line, "\n", 1)))
        st = chat_out_of_memory(err);
    if (st == TUTTI_OK)
        st = encode(tok, &line, out, err);
    if (st == TUTTI_OK && n_bytes > 0 && !tokenizer_encode(tok, content, n_bytes, out))
        st = tokenizer_encode_error(out, err);
    buf_clear(&line);
    return st;
}

/* Adds each call as a turn of its own; the format defines how its arguments are written. */
static enum tutti_status add_calls(const struct chat_call *call, size_t index, const char *source,
                                   struct ids *out, struct tutti_error *err)
{
    json_t *calls = NULL;
    const json_t *entry;
    size_t i;
    struct buf text = { 0 };
    enum tutti_status st = chat_read_calls(&calls, &call->messages[index], index, err);
    json_array_foreach(calls, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        buf_truncate(&text, 0);
        if (st == TUTTI_OK)
            st = chat_print(&text, source, json_object_get(entry, "arguments"), err);
        if (st == TUTTI_OK)
            st = add_turn(call->tok, "<|assistant|>", name, text.bytes, text.n_bytes, out, err);
    }
    buf_clear(&text);
    json_decref(calls);
    return st;
}

/* Adds a message other than a system message with tools. */
static enum tutti_status add_message(const struct chat_call *call, size_t index, const char *source,
                                     struct ids *out, struct tutti_error *err)
{
    const struct tutti_message *m = &call->messages[index];
    const char *token = role_token(m->role);
    if (!token)
        return chat_bad_role(m, index, "system, user, assistant or tool", err);
    bool is_answer = strcmp(m->role, "assistant") == 0;
    enum tutti_status st = TUTTI_OK;
    if (!m->tool_calls || m->n_bytes > 0)
        st = add_turn(call->tok, token, is_answer && m->name ? m->name : "", m->content, m->n_bytes, out,
                      err);
    if (st == TUTTI_OK && m->tool_calls)
        st = add_calls(call, index, source, out, err);
    return st;
}

/* The list of functions as in the authors' examples: without OpenAI's outer objects. */
static json_t *functions_of(const json_t *tools)
{
    json_t *list = json_array();
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool) json_array_append(list, (json_t *)(uintptr_t)chat_tool_function(tool));
    return list;
}

/* The mark of the answer, unless the last message has it. */
static enum tutti_status add_end(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    return call->continues ? TUTTI_OK : chat_add_special(call->tok, "<|assistant|>", out, err);
}

static const char CHATGLM3_TOOLS[] =
    "Answer the following questions as best as you can. You have access to the following tools:";
/* A call in Python syntax. */
static const char CHATGLM3_CALL[] =
    "{% if x is mapping %}```python\ntool_call({% for k, v in x.items() %}{{ k }}={{ '%r' % (v,) }}"
    "{{ '' if loop.last else ', ' }}{% endfor %})\n```{% else %}{{ x }}{% endif %}";

static enum tutti_status add_chatglm3_tools(const struct chat_call *call, const struct tutti_message *system,
                                            struct ids *out, struct tutti_error *err)
{
    struct buf text = { 0 };
    json_t *functions = functions_of(call->tools);
    bool ok = functions &&
              (system ? buf_add(&text, system->content, system->n_bytes)
                      : buf_add_string(&text, CHATGLM3_TOOLS)) &&
              buf_add(&text, "\n", 1);
    enum tutti_status st = ok ? chat_print(&text, "{{ x | tojson(indent=4) }}", functions, err)
                              : chat_out_of_memory(err);
    if (st == TUTTI_OK)
        st = add_turn(call->tok, "<|system|>", "", text.bytes, text.n_bytes, out, err);
    json_decref(functions);
    buf_clear(&text);
    return st;
}

static enum tutti_status render_chatglm3(const struct chat_call *call, struct ids *out,
                                         struct tutti_error *err)
{
    enum tutti_status st = add_prefix(call->tok, out, err);
    size_t first = 0;
    if (st == TUTTI_OK && call->tools) {
        first = call->n_messages > 0 && strcmp(call->messages[0].role, "system") == 0;
        st = add_chatglm3_tools(call, first ? &call->messages[0] : NULL, out, err);
    }
    for (size_t i = first; i < call->n_messages && st == TUTTI_OK; i++)
        st = add_message(call, i, CHATGLM3_CALL, out, err);
    return st == TUTTI_OK ? add_end(call, out, err) : st;
}

static const char GLM4_TOOLS[] =
    "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱AI训练的语言模型 GLM-4 模型开发的，"
    "你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具"
    "{% for f in x %}{{ '\n\n## ' ~ f.name ~ '\n\n' ~ f | tojson(indent=4) ~ '\n' }}"
    "在调用上述函数时，请使用 Json 格式表示调用的参数。{% endfor %}";
static const char GLM4_CALL[] = "{% if x is string %}{{ x }}{% else %}{{ x | tojson }}{% endif %}";

/* GLM-4: tools come before a system message's own text. Turns without content are skipped. */
static enum tutti_status render_glm4(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    struct buf text = { 0 };
    enum tutti_status st = add_prefix(call->tok, out, err);
    if (st == TUTTI_OK && call->tools) {
        json_t *functions = functions_of(call->tools);
        st = functions ? chat_print(&text, GLM4_TOOLS, functions, err) : chat_out_of_memory(err);
        if (st == TUTTI_OK)
            st = add_turn(call->tok, "<|system|>", "", text.bytes, text.n_bytes, out, err);
        json_decref(functions);
    }
    for (size_t i = 0; i < call->n_messages && st == TUTTI_OK; i++) {
        const struct tutti_message *m = &call->messages[i];
        if (m->n_bytes > 0 || m->tool_calls || !role_token(m->role))
            st = add_message(call, i, GLM4_CALL, out, err);
    }
    buf_clear(&text);
    return st == TUTTI_OK ? add_end(call, out, err) : st;
}

const struct chat_format CHAT_CHATGLM = { .name = "chatglm",
                                          .render = render_chatglm,
                                          .trims_reply = true,
                                          .fills_in_time = true,
                                          .widens_marks = true };
const struct chat_format CHAT_CHATGLM2 = {
    .name = "chatglm2", .render = render_chatglm2, .trims_reply = true, .fills_in_time = true
};
const struct chat_format CHAT_CHATGLM3 = { .name = "chatglm3",
                                           .render = render_chatglm3,
                                           .takes_tools = true,
                                           .has_metadata_line = true,
                                           .trims_reply = true,
                                           .fills_in_time = true };
const struct chat_format CHAT_GLM4 = { .name = "glm4",
                                       .render = render_glm4,
                                       .takes_tools = true,
                                       .has_metadata_line = true,
                                       .trims_reply = true,
                                       .fills_in_time = true };
