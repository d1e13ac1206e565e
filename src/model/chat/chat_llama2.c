/* LLaMA-2's chat format: each round has its own bos and eos. */
#include "model/chat/chat.h"

#include <string.h>

static void strip(const struct tutti_message *m, const char **text, size_t *n_bytes)
{
    static const char BLANKS[] = " \t\n\r\v\f";
    *text = m->content;
    *n_bytes = m->n_bytes;
    while (*n_bytes > 0 && strchr(BLANKS, **text) && **text)
        (*text)++, (*n_bytes)--;
    while (*n_bytes > 0 && strchr(BLANKS, (*text)[*n_bytes - 1]) && (*text)[*n_bytes - 1])
        (*n_bytes)--;
}

/* Each round is tokenized by itself between bos and eos: "[INST]
 * <<SYS>>\n{system}\n<</SYS>>\n\n{user} [/INST] {answer} ". */
static enum tutti_status render_llama2(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    const struct tokenizer *tok = call->tok;
    const struct tutti_message *messages = call->messages;
    size_t n_messages = call->n_messages - call->continues;
    struct buf text = { 0 };
    enum tutti_status st = chat_refuse_tools(call, "llama2", err);
    bool ok = true, wants_user = true;
    const char *content;
    size_t n_bytes;
    if (st != TUTTI_OK)
        return st;
    if (tokenizer_bos(tok) < 0 || tokenizer_eos(tok) < 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "the tokenizer has no ids for begin and end, which llama2 needs");
    size_t first = n_messages > 0 && strcmp(messages[0].role, "system") == 0;
    if (first)
        strip(&messages[0], &content, &n_bytes);
    if (n_messages == first || strcmp(messages[n_messages - 1].role, "user") != 0) {
        st = error_set_param(err, TUTTI_E_ARGUMENT, "messages", "the last message must come from the user");
        goto done;
    }
    for (size_t i = first; i < n_messages && ok; i++) {
        if (strcmp(messages[i].role, wants_user ? "user" : "assistant") != 0) {
            st = chat_bad_role(&messages[i], i,
                               wants_user ? "user (roles alternate)" : "assistant (roles alternate)", err);
            goto done;
        }
        if (wants_user) {
            buf_truncate(&text, 0);
            ok = buf_add_string(&text, "[INST] ");
            if (i == 1 && first)
                ok = ok && buf_add_string(&text, "<<SYS>>\n") && buf_add(&text, content, n_bytes) &&
                     buf_add_string(&text, "\n<</SYS>>\n\n");
            strip(&messages[i], &content, &n_bytes);
            ok = ok && buf_add(&text, content, n_bytes) && buf_add_string(&text, " [/INST]");
        } else {
            strip(&messages[i], &content, &n_bytes);
            ok = buf_add(&text, " ", 1) && buf_add(&text, content, n_bytes) && buf_add(&text, " ", 1);
        }
        wants_user = !wants_user;
        bool closes = wants_user; /* an answer has just been added */
        if (ok && (closes || i + 1 == n_messages))
            ok = ids_add(out, tokenizer_bos(tok)) && tokenizer_encode(tok, text.bytes, text.n_bytes, out) &&
                 (!closes || ids_add(out, tokenizer_eos(tok)));
    }
    if (ok && call->continues) {
        strip(&messages[n_messages], &content, &n_bytes);
        ok = tokenizer_encode(tok, content, n_bytes, out);
    }
    if (!ok)
        st = out->why ? tokenizer_encode_error(out, err) : chat_out_of_memory(err);
done:
    buf_clear(&text);
    return st;
}

const struct chat_format CHAT_LLAMA2 = { .name = "llama2", .render = render_llama2, .trims_reply = true };
