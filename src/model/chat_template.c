/* Chat formats that are templates: messages as variables, the text as ids. */
#include "model/chat.h"

#include "base/json_print.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words that may become part of a special token, as in "<|" + role + "|>". */
static const char *const ROLES[] = { "system",    "user",     "assistant", "tool",      "observation",
                                     "developer", "function", "ipython",   "documents", NULL };

struct chat_template {
    struct template *plain, *tools; /* tools NULL: plain serves both */
    struct chat_specials *specials;
    json_t *trusted; /* bos_token, ... */
    /* Arguments of tool calls stay JSON text: the template does not print them as JSON itself. */
    bool takes_text;
};

void chat_template_free(struct chat_template *tpl)
{
    if (!tpl)
        return;
    template_free(tpl->plain);
    template_free(tpl->tools);
    chat_specials_free(tpl->specials);
    json_decref(tpl->trusted);
    free(tpl);
}

static bool takes_tools(const struct chat_template *tpl)
{
    return tpl->tools || template_mentions(tpl->plain, "tools");
}

/* ---- variables ---- */

static bool set_token(json_t *out, const char *key, const json_t *config, const struct tokenizer *tok,
                      int32_t id)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (json_is_string(value))
        return json_object_set(out, key, (json_t *)(uintptr_t)value) == 0;
    if (id < 0)
        return true;
    struct piece piece = tokenizer_piece(tok, id);
    return json_object_set_new(out, key, json_stringn(piece.bytes, piece.n_bytes)) == 0;
}

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

/* OpenAI's arguments are JSON as text; most templates print an object as JSON themselves. */
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
            other = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                               NULL);
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
    json_t *list = json_loads(m->tool_calls, JSON_ALLOW_NUL, NULL);
    enum tutti_status st = TUTTI_OK;
    if (!json_is_array(list))
        st = error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: expected a list in JSON", param);
    else if (json_object_set_new(object, "tool_calls", calls_for_template(list, as_text)) != 0)
        st = chat_out_of_memory(err);
    json_decref(list);
    return st;
}

static enum tutti_status add_message(json_t *list, const struct tutti_message *m, size_t index, bool as_text,
                                     struct tutti_error *err)
{
    json_t *object = json_object();
    enum tutti_status st = TUTTI_OK;
    bool ok = object && set_text(object, "role", m->role) &&
              json_object_set_new(object, "content", json_of_text(m->content, m->n_bytes)) == 0 &&
              set_text(object, "name", m->name) && set_text(object, "tool_call_id", m->tool_call_id) &&
              set_text(object, "reasoning_content", m->reasoning);
    if (ok && m->tool_calls)
        st = add_calls(object, m, index, as_text, err);
    if (st == TUTTI_OK && (!ok || json_array_append(list, object) != 0))
        st = chat_out_of_memory(err);
    json_decref(object);
    return st;
}

static enum tutti_status make_variables(json_t **out, const struct chat_call *call, struct tutti_error *err)
{
    json_t *variables = json_object(), *messages = json_array();
    enum tutti_status st = TUTTI_OK;
    const char *key;
    json_t *value;
    for (size_t i = 0; i < call->n_messages && st == TUTTI_OK && messages; i++)
        st = add_message(messages, &call->messages[i], i, call->tpl->takes_text, err);
    bool ok = variables && messages;
    if (ok)
        json_object_foreach((json_t *)(uintptr_t)call->arguments, key, value)
            ok = ok && json_object_set(variables, key, value) == 0;
    ok = ok && json_object_set(variables, "messages", messages) == 0 &&
         json_object_set_new(variables, "add_generation_prompt", json_true()) == 0 &&
         json_object_set(variables, "tools", call->tools ? (json_t *)(uintptr_t)call->tools : json_null()) ==
             0;
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
    st = template_render(call->tools && tpl->tools ? tpl->tools : tpl->plain, &input, out, err);
    if ((st == TUTTI_E_ARGUMENT || st == TUTTI_E_LIMIT) && err)
        snprintf(err->param, sizeof err->param, "messages");
    json_decref(variables);
    return st;
}

enum tutti_status chat_render_template(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    struct template_output text = { 0 };
    if (call->tools && !takes_tools(call->tpl))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tools", "the model's chat template knows no tools");
    enum tutti_status st = render_text(&text, call, err);
    if (st == TUTTI_OK && !chat_encode(call->tpl->specials, call->tok, &text, out))
        st = chat_out_of_memory(err);
    template_output_clear(&text);
    return st;
}

/* ---- making ---- */

/* Some templates add the arguments of a tool call to a string, others print them as JSON: a trial says which. */
static bool fails_with_objects(struct chat_template *tpl, const struct tokenizer *tok)
{
    static const struct tutti_message TRIAL[] = {
        { .role = "user", .content = "a", .n_bytes = 1 },
        { .role = "assistant",
          .content = "",
          .tool_calls = "[{\"id\": \"call00000\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
                        "\"arguments\": {\"a\": 1}}}]" },
    };
    struct chat_call call = { .tok = tok, .tpl = tpl, .messages = TRIAL, .n_messages = 2 };
    struct template_output out = { 0 };
    bool fails[2];
    for (int as_text = 0; as_text < 2; as_text++) {
        tpl->takes_text = as_text;
        fails[as_text] = render_text(&out, &call, NULL) != TUTTI_OK;
        template_output_clear(&out);
    }
    return fails[0] && !fails[1];
}

enum tutti_status chat_template_new(struct chat_template **out, const char *text, const char *tool_text,
                                    const char *name, const struct tokenizer *tok,
                                    const json_t *tokenizer_config, struct tutti_error *err)
{
    struct chat_template *tpl = calloc(1, sizeof *tpl);
    if (!tpl)
        return chat_out_of_memory(err);
    enum tutti_status st = template_compile(&tpl->plain, text, strlen(text), name, err);
    if (st == TUTTI_OK && tool_text)
        st = template_compile(&tpl->tools, tool_text, strlen(tool_text), name, err);
    if (st == TUTTI_OK)
        st = chat_specials_new(&tpl->specials, tok, err);
    if (st != TUTTI_OK)
        goto done;
    tpl->trusted = json_object();
    if (!tpl->trusted || !set_token(tpl->trusted, "bos_token", tokenizer_config, tok, tokenizer_bos(tok)) ||
        !set_token(tpl->trusted, "eos_token", tokenizer_config, tok, tokenizer_eos(tok)) ||
        !set_token(tpl->trusted, "unk_token", tokenizer_config, tok, tokenizer_unk(tok)) ||
        !set_token(tpl->trusted, "pad_token", tokenizer_config, tok, -1)) {
        st = chat_out_of_memory(err);
        goto done;
    }
    tpl->takes_text = fails_with_objects(tpl, tok);
    *out = tpl;
    tpl = NULL;
done:
    chat_template_free(tpl);
    return st;
}
