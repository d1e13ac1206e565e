/* The chat format of Baichuan and Baichuan2: a token before each message, no template. */
#include "model/chat/chat.h"

#include <string.h>

/* {system}, then a token and the text of each message. Each text is tokenized by itself. */
static enum tutti_status render_baichuan(const struct chat_call *call, struct ids *out,
                                         struct tutti_error *err)
{
    const struct tokenizer *tok = call->tok;
    bool ok = true, is_answer = false;
    enum tutti_status st = chat_refuse_tools(call, "baichuan", err);
    if (st != TUTTI_OK)
        return st;
    if (tokenizer_n_pieces(tok) <= BAICHUAN_ASSISTANT_ID)
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "the tokenizer has %d tokens, but the chat format baichuan needs those of ids %d and "
            "%d; choose another one with --chat-format",
            (int)tokenizer_n_pieces(tok), BAICHUAN_USER_ID, BAICHUAN_ASSISTANT_ID);
    if (call->n_messages == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "messages", "messages: expected at least one");
    for (size_t i = 0; i < call->n_messages && ok; i++) {
        const struct tutti_message *m = &call->messages[i];
        bool is_system = strcmp(m->role, "system") == 0;
        is_answer = strcmp(m->role, "assistant") == 0;
        if (is_system ? i > 0 : !is_answer && strcmp(m->role, "user") != 0)
            return chat_bad_role(m, i, i > 0 ? "user or assistant" : "system, user or assistant", err);
        ok = (is_system || ids_add(out, is_answer ? BAICHUAN_ASSISTANT_ID : BAICHUAN_USER_ID)) &&
             tokenizer_encode(tok, m->content, m->n_bytes, out);
    }
    ok = ok && (is_answer || ids_add(out, BAICHUAN_ASSISTANT_ID));
    if (ok)
        return TUTTI_OK;
    return out->why ? tokenizer_encode_error(out, err) : chat_out_of_memory(err);
}

const struct chat_format CHAT_BAICHUAN = { .name = "baichuan", .render = render_baichuan };
