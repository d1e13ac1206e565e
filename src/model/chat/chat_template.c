/* Chat formats that are templates: messages as variables, the text as ids. */
#include "model/chat/chat.h"

#include "base/bytes.h"
#include "base/json/json_print.h"
#include "base/json/json_wide.h"
#include "base/utf8.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/reasoning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words that may become part of a special token, as in "<|" + role + "|>". */
static const char *const ROLES[] = { "system",    "user",     "assistant", "tool",      "observation",
                                     "developer", "function", "ipython",   "documents", NULL };

static const char CONTINUES[] = "continue_final_message";

/* Keys under which templates read the reasoning of a message. The first one is always set. */
static const char *const REASONING_KEYS[] = { "reasoning_content", "thinking", "reasoning" };
enum { N_REASONING_KEYS = 3, KEY_THINKING = 1 };

/* A template, and the forms in which it takes messages. */
struct adapted {
    struct template *code;            /* NULL: none */
    bool reads_key[N_REASONING_KEYS]; /* of a message */
    /* Arguments of tool calls stay JSON text: the template does not print them as JSON itself. */
    bool takes_text;
    bool takes_parts; /* content is a list of parts: the template does not show it as a string */
    /* [has tool calls][content_kind]: the form in which the template gets an assistant's content that
     * is null or absent. */
    enum tutti_content empty[2][TUTTI_CONTENT_ABSENT + 1];
};

struct chat_template {
    struct chat_format format;
    const struct chat_format *builtin; /* NULL: none */
    struct adapted plain, tools; /* tools: of requests that list tools; without code plain serves them too */
    json_t *trusted;             /* bos_token, ... */
    bool takes_tools;
    const struct call_form *tool_form;
    const struct reasoning_form *reasoning;
    bool opens_reasoning; /* the prompt opens the reasoning of an answer that has one */
};

static const struct adapted *template_of(const struct chat_template *tpl, const json_t *tools)
{
    return tools && tpl->tools.code ? &tpl->tools : &tpl->plain;
}

void chat_template_free(struct chat_template *tpl)
{
    if (!tpl)
        return;
    template_free(tpl->plain.code);
    template_free(tpl->tools.code);
    json_decref(tpl->trusted);
    free(tpl);
}

const struct chat_format *chat_template_format(const struct chat_template *tpl)
{
    return &tpl->format;
}

void chat_template_forms(const struct chat_template *tpl, const struct call_form **tool_form,
                         const struct reasoning_form **reasoning)
{
    *tool_form = tpl->tool_form;
    *reasoning = tpl->reasoning;
}

const struct chat_format *chat_template_builtin(const struct chat_template *tpl)
{
    return tpl->builtin;
}

bool chat_template_opens_reasoning(const struct chat_template *tpl)
{
    return tpl->opens_reasoning;
}

/* ---- variables ---- */

/* Text that is no UTF-8 gets U+FFFD, as a JSON value must. */
static json_t *json_of_text(const char *text, size_t n_bytes)
{
    json_t *out = json_stringn(n_bytes ? text : "", n_bytes);
    if (out)
        return out;
    struct buf clean = { 0 };
    bool ok = true;
    for (size_t i = 0; i < n_bytes && ok;) {
        size_t n = (size_t)utf8_char(text + i, n_bytes - i);
        ok = n > 0 ? buf_add(&clean, text + i, n) : buf_add_string(&clean, "\xEF\xBF\xBD");
        i += n > 0 ? n : 1;
    }
    if (ok)
        out = json_stringn(clean.bytes, clean.n_bytes);
    buf_clear(&clean);
    return out;
}

static bool set_text(json_t *object, const char *key, const char *text)
{
    return !text || json_object_set_new(object, key, json_of_text(text, strlen(text))) == 0;
}

/* OpenAI's arguments are JSON as text; most templates print an object as JSON themselves. Integers beyond 64 bits
 * become the nearest double: templates that list the arguments refuse a text. */
static json_t *calls_for_template(const json_t *calls, bool as_text)
{
    json_t *out = json_array();
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call)
    {
        json_t *entry = json_deep_copy(call), *function = json_object_get(entry, "function");
        json_t *target = json_is_object(function) ? function : entry;
        const json_t *arguments = json_object_get(target, "arguments");
        json_t *other = NULL;
        if (!as_text && json_is_string(arguments)) {
            json_error_t why;
            other = json_load_wide(json_string_value(arguments), json_string_length(arguments),
                                   JSON_ALLOW_NUL, &why);
        } else if (as_text && arguments && !json_is_string(arguments)) {
            char *text = json_print(arguments, JSON_ENCODE_ANY);
            other = text ? json_string(text) : NULL;
            free(text);
        }
        if (other)
            json_object_set_new(target, "arguments", other);
        if (!entry || json_array_append_new(out, entry) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static enum tutti_status add_calls(json_t *object, const struct tutti_message *m, size_t index, bool as_text,
                                   struct tutti_error *err)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", index);
    json_error_t why;
    json_t *list = json_load_wide(m->tool_calls, strlen(m->tool_calls), JSON_ALLOW_NUL, &why);
    enum tutti_status st = TUTTI_OK;
    if (!json_is_array(list))
        st = error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: expected a list in JSON", param);
    else if (json_object_set_new(object, "tool_calls", calls_for_template(list, as_text)) != 0)
        st = chat_out_of_memory(err);
    json_decref(list);
    return st;
}

/* The value of a message's content; NULL: out of memory. */
static json_t *content_value(const struct tutti_message *m, enum tutti_content content, bool as_parts)
{
    if (content == TUTTI_CONTENT_NULL)
        return json_null();
    json_t *text = json_of_text(m->content, m->n_bytes);
    return as_parts && text ? json_pack("[{s:s, s:o}]", "type", "text", "text", text) : text;
}

static bool set_content(json_t *object, const struct tutti_message *m, const struct adapted *form)
{
    enum tutti_content content = form->empty[m->tool_calls != NULL][m->content_kind];
    return content == TUTTI_CONTENT_ABSENT ||
           json_object_set_new(object, "content", content_value(m, content, form->takes_parts)) == 0;
}

static enum tutti_status add_message(json_t *list, const struct tutti_message *m, size_t index,
                                     const struct adapted *form, struct tutti_error *err)
{
    json_t *object = json_object();
    enum tutti_status st = TUTTI_OK;
    bool ok = object && set_text(object, "role", m->role) && set_content(object, m, form) &&
              set_text(object, "name", m->name) && set_text(object, "tool_call_id", m->tool_call_id);
    for (size_t k = 0; k < N_REASONING_KEYS; k++) {
        /* gpt-oss: the text next to a call is its reasoning too, and it takes only one of the two. */
        bool is_second = k == KEY_THINKING && m->tool_calls && m->n_bytes > 0;
        if (form->reads_key[k] && !is_second)
            ok = ok && set_text(object, REASONING_KEYS[k], m->reasoning);
    }
    if (ok && m->tool_calls)
        st = add_calls(object, m, index, form->takes_text, err);
    if (st == TUTTI_OK && (!ok || json_array_append(list, object) != 0))
        st = chat_out_of_memory(err);
    json_decref(object);
    return st;
}

/* A variable that is true or false; fallback where it is neither. */
static bool argument_flag(const json_t *arguments, const char *name, bool fallback)
{
    const json_t *value = json_object_get(arguments, name);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

/* Sets those of a template's variables for reasoning that the request gives under another name.
 * reasoning_effort "none" and "minimal" turn it off, or make it "low" where it cannot be turned off. */
static bool set_effort(json_t *variables, const struct template *tpl)
{
    static const char *const SWITCHES[] = { "enable_thinking", "thinking" };
    enum { N_SWITCHES = 2 };
    const char *effort = json_string_value(json_object_get(variables, "reasoning_effort"));
    bool is_least = effort && (!strcmp(effort, "none") || !strcmp(effort, "minimal"));
    const json_t *wanted = NULL;
    bool ok = true, has_switch = false;
    for (size_t i = 0; i < N_SWITCHES && !wanted; i++)
        if (json_is_boolean(json_object_get(variables, SWITCHES[i])))
            wanted = json_object_get(variables, SWITCHES[i]);
    for (size_t i = 0; i < N_SWITCHES; i++) {
        bool is_read = template_mentions(tpl, SWITCHES[i]);
        has_switch |= is_read;
        if (is_read && !json_object_get(variables, SWITCHES[i]) && (wanted || effort))
            ok = ok && json_object_set_new(variables, SWITCHES[i],
                                           json_boolean(wanted ? json_is_true(wanted) : !is_least)) == 0;
    }
    if (is_least && !has_switch)
        ok = ok && json_object_set_new(variables, "reasoning_effort", json_string("low")) == 0;
    bool has_other_name = template_mentions(tpl, "thinking_effort") &&
                          !template_mentions(tpl, "reasoning_effort");
    if (effort && !(is_least && has_switch) && has_other_name &&
        !json_object_get(variables, "thinking_effort"))
        ok = ok &&
             json_object_set_new(variables, "thinking_effort", json_string(is_least ? "low" : effort)) == 0;
    return ok;
}

static enum tutti_status make_variables(json_t **out, const struct chat_call *call, struct tutti_error *err)
{
    const struct adapted *used = template_of(call->tpl, call->tools);
    json_t *variables = json_object(), *messages = json_array();
    enum tutti_status st = TUTTI_OK;
    const char *key;
    json_t *value;
    for (size_t i = 0; i < call->n_messages && st == TUTTI_OK && messages; i++)
        st = add_message(messages, &call->messages[i], i, used, err);
    bool ok = variables && messages;
    bool adds_prompt = argument_flag(call->arguments, "add_generation_prompt", !call->continues);
    if (ok)
        json_object_foreach((json_t *)(uintptr_t)call->arguments, key, value)
            ok = ok && (!strcmp(key, CONTINUES) || json_object_set(variables, key, value) == 0);
    ok = ok && json_object_set(variables, "messages", messages) == 0 &&
         json_object_set_new(variables, "add_generation_prompt", json_boolean(adds_prompt)) == 0 &&
         json_object_set(variables, "tools", call->tools ? (json_t *)(uintptr_t)call->tools : json_null()) ==
             0;
    ok = ok && set_effort(variables, used->code);
    if (ok && !json_object_get(variables, "documents"))
        ok = json_object_set_new(variables, "documents", json_null()) == 0;
    if (st == TUTTI_OK && !ok)
        st = chat_out_of_memory(err);
    json_decref(messages);
    if (st == TUTTI_OK)
        *out = variables;
    else
        json_decref(variables);
    return st;
}

/* ---- continuing the last message ---- */

/* The offset of the last occurrence of needle in text, in time linear in both (Knuth, Morris and
 * Pratt). SIZE_MAX: not found, or out of memory. */
static size_t find_last(const char *text, size_t n_text, const char *needle, size_t n)
{
    uint32_t *border = calloc(n + 1, sizeof *border);
    size_t last = SIZE_MAX;
    for (size_t i = 1, k = 0; border && i < n; i++) {
        while (k > 0 && needle[i] != needle[k])
            k = border[k];
        k += needle[i] == needle[k];
        border[i + 1] = (uint32_t)k;
    }
    for (size_t i = 0, k = 0; border && i < n_text; i++) {
        while (k > 0 && (k == n || text[i] != needle[k]))
            k = border[k];
        k += text[i] == needle[k];
        if (k == n)
            last = i + 1 - n;
    }
    free(border);
    return last;
}

/* Cuts the prompt after the content of the last message, as transformers does. Blanks at the end of
 * the content stay if the template keeps them. */
static enum tutti_status cut_after_message(struct template_output *out, const struct chat_call *call,
                                           struct tutti_error *err)
{
    const struct tutti_message *m = &call->messages[call->n_messages - 1];
    const char *text = m->content;
    size_t n = m->n_bytes, n_stripped, at = SIZE_MAX;
    while (n > 0 && char_is_blank(*text))
        text++, n--;
    for (n_stripped = n; n_stripped > 0 && char_is_blank(text[n_stripped - 1]);)
        n_stripped--;
    if (n_stripped > 0 && n_stripped < UINT32_MAX)
        at = find_last(out->text, out->n_bytes, text, n_stripped);
    if (at == SIZE_MAX)
        return error_set_param(err, TUTTI_E_ARGUMENT, "continue_final_message",
                               n_stripped == 0
                                   ? "continue_final_message: the last message has no content"
                                   : "continue_final_message: the chat template does not show the "
                                     "last message's content as it is");
    bool keeps_blanks = n <= out->n_bytes - at && memcmp(out->text + at, text, n) == 0;
    out->n_bytes = at + (keeps_blanks ? n : n_stripped);
    for (size_t i = 0; i < out->n_segments; i++) {
        if (out->segments[i].end >= out->n_bytes) {
            out->segments[i].end = out->n_bytes;
            out->n_segments = i + 1;
        }
    }
    return TUTTI_OK;
}

/* ---- rendering ---- */

static enum tutti_status render_text(struct template_output *out, const struct chat_call *call,
                                     struct tutti_error *err)
{
    const struct chat_template *tpl = call->tpl;
    json_t *variables = NULL;
    enum tutti_status st = make_variables(&variables, call, err);
    if (st != TUTTI_OK)
        return st;
    struct template_input input = { .trusted = tpl->trusted, .user = variables, .roles = ROLES };
    const struct template *used = template_of(tpl, call->tools)->code;
    if (json_array_size(json_object_get(call->arguments, "documents")) > 0 &&
        !template_mentions(used, "documents"))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "documents",
                             "the model's chat template knows no documents");
    if (st == TUTTI_OK)
        st = template_render(used, &input, out, err);
    if ((st == TUTTI_E_ARGUMENT || st == TUTTI_E_LIMIT) && err && !err->param[0])
        snprintf(err->param, sizeof err->param, "messages");
    json_decref(variables);
    return st;
}

/* A list of tools, a call in the history, or what a tool answered. */
static bool uses_tools(const struct chat_call *call)
{
    bool uses_them = call->tools;
    for (size_t i = 0; i < call->n_messages && !uses_them; i++)
        uses_them = call->messages[i].tool_calls || strcmp(call->messages[i].role, "tool") == 0;
    return uses_them;
}

enum tutti_status chat_render_template(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    const struct chat_template *tpl = call->tpl;
    struct template_output text = { 0 };
    if (!tpl->takes_tools && tpl->builtin && tpl->builtin->takes_tools && uses_tools(call))
        return chat_render_code(tpl->builtin, call, out, err);
    if (call->tools && !tpl->takes_tools)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tools", "the model's chat template knows no tools");
    if (call->continues && argument_flag(call->arguments, "add_generation_prompt", false))
        return error_set_param(err, TUTTI_E_ARGUMENT, CONTINUES,
                               "continue_final_message cannot go together with add_generation_prompt");
    enum tutti_status st = render_text(&text, call, err);
    if (st == TUTTI_OK && call->continues)
        st = cut_after_message(&text, call, err);
    if (st == TUTTI_OK && !chat_encode(call->tok, &text, out))
        st = tokenizer_encode_error(out, err);
    template_output_clear(&text);
    return st;
}

/* ---- building: trial renderings find which inputs a template accepts ---- */

static const char CALLS[] = "[{\"id\": \"call00000\", \"type\": \"function\", \"function\": {\"name\": "
                            "\"f\", \"arguments\": {\"a\": 1}}}]";

/* A trial rendering, and the template that renders it: the one for `call`, with or without tools. */
struct trial {
    struct chat_call call;
    struct adapted *form;
};

/* Whether a user's text is shown only if it is one of the parts of a list. */
static bool shows_only_parts(struct trial *t)
{
    static const char WORD[] = "tutti_trial_text";
    static const struct tutti_message TRIAL[] = {
        { .role = "user", .content = WORD, .n_bytes = sizeof WORD - 1 }
    };
    bool shows[2];
    t->call.messages = TRIAL;
    t->call.n_messages = 1;
    for (int as_parts = 0; as_parts < 2; as_parts++) {
        struct template_output out = { 0 };
        t->form->takes_parts = as_parts;
        shows[as_parts] = render_text(&out, &t->call, NULL) == TUTTI_OK &&
                          memmem(out.text, out.n_bytes, WORD, sizeof WORD - 1);
        template_output_clear(&out);
    }
    return shows[1] && !shows[0];
}

/* Whether rendering a tool call fails if its arguments are an object. Some templates concatenate the
 * arguments with a string, others print them as JSON; some use them only if the content is none. */
static bool fails_with_objects(struct trial *t, enum tutti_content content)
{
    static const struct tutti_message TRIAL[] = {
        { .role = "user", .content = "a", .n_bytes = 1 },
        { .role = "assistant", .content = "", .tool_calls = CALLS, .content_kind = TUTTI_CONTENT_NULL },
    };
    struct template_output out = { 0 };
    bool fails[2];
    t->call.messages = TRIAL;
    t->call.n_messages = 2;
    t->form->empty[1][TUTTI_CONTENT_NULL] = content;
    for (int as_text = 0; as_text < 2; as_text++) {
        t->form->takes_text = as_text;
        fails[as_text] = render_text(&out, &t->call, NULL) != TUTTI_OK;
        template_output_clear(&out);
    }
    return fails[0] && !fails[1];
}

/* A list of one tool; NULL: out of memory. */
static json_t *trial_tools(const char *name)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function",
                     "function", "name", name, "description", "a", "parameters", "type", "object",
                     "properties", "x", "type", "string", "description", "a", "required", "x");
}

/* Whether the prompt shows a tool that the request lists. */
static bool shows_tools(const struct chat_template *tpl, const struct tokenizer *tok)
{
    static const char NAME[] = "tutti_trial_tool";
    static const struct tutti_message TRIAL[] = {
        { .role = "system", .content = "a", .n_bytes = 1 },
        { .role = "user", .content = "a", .n_bytes = 1 },
    };
    json_t *tools = trial_tools(NAME);
    bool shows = false, fails = true;
    for (size_t skip = 0; skip < 2 && !shows && tools; skip++) { /* some know no system role */
        struct chat_call call = {
            .tok = tok, .tpl = tpl, .messages = TRIAL + skip, .n_messages = 2 - skip, .tools = tools
        };
        struct template_output out = { 0 };
        if (render_text(&out, &call, NULL) == TUTTI_OK) {
            fails = false;
            shows = memmem(out.text, out.n_bytes, NAME, sizeof NAME - 1);
        }
        template_output_clear(&out);
    }
    json_decref(tools);
    return shows || (fails && template_mentions(tpl->plain.code, "tools"));
}

/* Whether a prompt ends with the mark that opens the reasoning, if reasoning is on. */
static bool opens_reasoning(const struct chat_template *tpl, const struct tokenizer *tok)
{
    static const struct tutti_message TRIAL[] = { { .role = "user", .content = "a", .n_bytes = 1 } };
    const char *open = tpl->reasoning ? tpl->reasoning->open : NULL;
    json_t *arguments = open ? json_pack("{s:b}", "enable_thinking", 1) : NULL;
    struct chat_call call = {
        .tok = tok, .tpl = tpl, .messages = TRIAL, .n_messages = 1, .arguments = arguments
    };
    struct template_output out = { 0 };
    bool opens = false;
    if (arguments && render_text(&out, &call, NULL) == TUTTI_OK) {
        size_t n = out.n_bytes, n_open = strlen(open);
        while (n > 0 && char_is_blank(out.text[n - 1]))
            n--;
        opens = n >= n_open && memcmp(out.text + n - n_open, open, n_open) == 0;
    }
    template_output_clear(&out);
    json_decref(arguments);
    return opens;
}

/* How often the word "None" occurs in a prompt whose assistant message has this content; -1:
 * rendering fails. */
static int count_nones(struct trial *t, bool has_calls, enum tutti_content content)
{
    static const char WORD[] = "None";
    struct tutti_message trial[] = {
        { .role = "user", .content = "a", .n_bytes = 1 },
        { .role = "assistant", .content = "", .content_kind = TUTTI_CONTENT_NULL },
        { .role = has_calls ? "tool" : "user", .content = "a", .n_bytes = 1, .tool_call_id = "call00000" },
    };
    struct template_output out = { 0 };
    int n = 0;
    t->call.messages = trial;
    t->call.n_messages = 3;
    if (has_calls)
        trial[1].tool_calls = CALLS;
    else
        trial[2].tool_call_id = NULL;
    t->form->empty[has_calls][TUTTI_CONTENT_NULL] = content;
    if (render_text(&out, &t->call, NULL) != TUTTI_OK)
        return -1;
    for (const char *at = out.text; (at = strstr(at, WORD)); at += sizeof WORD - 1)
        n++;
    template_output_clear(&out);
    return n;
}

/* Null and absent content are passed to the template unchanged, as in transformers. If the template
 * then fails or prints the word "None", it gets the other of the two instead; if that fails too, an
 * empty text. */
static void choose_empty(struct trial *t, bool has_calls)
{
    static const enum tutti_content OTHERS[] = { TUTTI_CONTENT_NULL, TUTTI_CONTENT_ABSENT };
    int n_text = count_nones(t, has_calls, TUTTI_CONTENT_TEXT);
    bool works[2];
    for (size_t i = 0; i < 2; i++) {
        int n = count_nones(t, has_calls, OTHERS[i]);
        works[i] = n >= 0 && (n_text < 0 || n <= n_text);
    }
    enum tutti_content *empty = t->form->empty[has_calls];
    empty[TUTTI_CONTENT_TEXT] = TUTTI_CONTENT_TEXT;
    empty[TUTTI_CONTENT_NULL] = works[0]   ? TUTTI_CONTENT_NULL
                                : works[1] ? TUTTI_CONTENT_ABSENT
                                           : TUTTI_CONTENT_TEXT;
    empty[TUTTI_CONTENT_ABSENT] = works[1]   ? TUTTI_CONTENT_ABSENT
                                  : works[0] ? TUTTI_CONTENT_NULL
                                             : TUTTI_CONTENT_TEXT;
}

/* The rules that convert replies to text depend on the model, not on the template. */
static struct chat_format make_format(const struct chat_format *builtin)
{
    struct chat_format format = { .name = "template", .render = chat_render_template };
    if (!builtin)
        return format;
    format.has_metadata_line = builtin->has_metadata_line;
    format.trims_reply = builtin->trims_reply;
    format.fills_in_time = builtin->fills_in_time;
    format.widens_marks = builtin->widens_marks;
    return format;
}

static json_t *make_tokens(const struct tokenizer *tok)
{
    const struct {
        const char *key;
        int32_t id;
    } TOKENS[] = { { "bos_token", tokenizer_bos(tok) },
                   { "eos_token", tokenizer_eos(tok) },
                   { "unk_token", tokenizer_unk(tok) } };
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof TOKENS / sizeof *TOKENS && out; i++) {
        struct piece piece = { 0 };
        if (TOKENS[i].id >= 0)
            piece = tokenizer_piece(tok, TOKENS[i].id);
        if (piece.n_bytes > 0)
            json_object_set_new(out, TOKENS[i].key, json_stringn(piece.bytes, piece.n_bytes));
    }
    return out;
}

/* Whether a template reads this key of some value: .key, 'key' or "key". */
static bool reads_key(const char *text, size_t n_bytes, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = text, *end = text + n_bytes; (at = memmem(at, (size_t)(end - at), key, n));
         at += n) {
        char before = at > text ? at[-1] : ' ', after = at + n < end ? at[n] : ' ';
        bool is_word = (after >= 'a' && after <= 'z') || (after >= 'A' && after <= 'Z') || after == '_';
        if ((before == '.' && !is_word) || ((before == '\'' || before == '"') && after == before))
            return true;
    }
    return false;
}

void chat_forms_of(const struct chat_template_source *source, const struct call_form **tool_form,
                   const struct reasoning_form **reasoning)
{
    const char *tools = json_string_value(source->tool_text), *text = source->text ? source->text : "";
    *tool_form = tools ? call_form_of_template(tools, json_string_length(source->tool_text)) : NULL;
    if (!*tool_form)
        *tool_form = call_form_of_template(text, source->n_bytes);
    *reasoning = reasoning_form_of_template(text, source->n_bytes);
}

/* Compiles one of the templates. text NULL: there is none. */
static enum tutti_status adapt_compile(struct adapted *form, const char *text, size_t n_bytes,
                                       const char *name, struct tutti_error *err)
{
    for (size_t k = 0; k < N_REASONING_KEYS; k++)
        form->reads_key[k] = k == 0 || (text && reads_key(text, n_bytes, REASONING_KEYS[k]));
    return template_compile(&form->code, text, n_bytes, name, err);
}

/* Finds the forms that a template takes. tools: given to it in the trials; NULL: none. */
static void adapt(struct chat_template *tpl, struct adapted *form, const struct tokenizer *tok,
                  const json_t *tools)
{
    struct trial t = { .call = { .tok = tok, .tpl = tpl, .tools = tools }, .form = form };
    form->takes_parts = shows_only_parts(&t);
    form->takes_text = fails_with_objects(&t, TUTTI_CONTENT_TEXT) ||
                       fails_with_objects(&t, TUTTI_CONTENT_NULL);
    choose_empty(&t, false);
    choose_empty(&t, true);
}

enum tutti_status chat_template_new(struct chat_template **out, const struct chat_template_source *source,
                                    const struct tokenizer *tok, struct tutti_error *err)
{
    struct chat_template *tpl = calloc(1, sizeof *tpl);
    json_t *tools = trial_tools("f");
    if (!tpl || !tools) {
        json_decref(tools);
        free(tpl);
        return chat_out_of_memory(err);
    }
    tpl->format = make_format(source->builtin);
    tpl->builtin = source->builtin;
    if (source->text)
        chat_forms_of(source, &tpl->tool_form, &tpl->reasoning);
    enum tutti_status st = adapt_compile(&tpl->plain, source->text, source->n_bytes, source->name, err);
    if (st == TUTTI_OK && source->tool_text)
        st = adapt_compile(&tpl->tools, json_string_value(source->tool_text),
                           json_string_length(source->tool_text), source->name, err);
    if (st != TUTTI_OK)
        goto done;
    tpl->trusted = source->tokens ? json_copy((json_t *)(uintptr_t)source->tokens) : make_tokens(tok);
    if (!tpl->trusted) {
        st = chat_out_of_memory(err);
        goto done;
    }
    adapt(tpl, &tpl->plain, tok, NULL);
    if (tpl->tools.code)
        adapt(tpl, &tpl->tools, tok, tools);
    tpl->takes_tools = tpl->tools.code || shows_tools(tpl, tok);
    tpl->opens_reasoning = opens_reasoning(tpl, tok);
    *out = tpl;
    tpl = NULL;
done:
    json_decref(tools);
    chat_template_free(tpl);
    return st;
}
