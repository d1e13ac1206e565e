#include "engine/requests/reply.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

void reply_init(struct reply *reply, const struct reply_format *format)
{
    *reply = (struct reply){ .format = format,
                             .is_leading = !format->continues_answer &&
                                           (format->hides_blank_first_line || format->trims) };
    if (format->tok)
        detokenizer_init(&reply->detok, format->tok, format->continues_text || format->continues_answer);
}

void reply_clear(struct reply *reply)
{
    buf_clear(&reply->leading);
    buf_clear(&reply->pending);
    rewrite_clear(&reply->rewrite);
    buf_clear(&reply->rewritten);
    buf_clear(&reply->blanks);
    buf_clear(&reply->piece);
    buf_clear(&reply->text);
    free(reply->tokens);
    *reply = (struct reply){ 0 };
}

/* ---- the beginning: blank first line, leading blanks ---- */

static bool add_leading(struct reply *reply, const char *bytes, size_t n)
{
    size_t i = 0;
    for (; i < n && reply->is_leading; i++) {
        if (!char_is_blank(bytes[i])) {
            reply->is_leading = false;
            break;
        }
        if (reply->format->trims)
            continue;
        if (!buf_add(&reply->leading, &bytes[i], 1))
            return false;
        if (bytes[i] == '\n') { /* a blank first line */
            buf_truncate(&reply->leading, 0);
            reply->is_leading = false;
        }
    }
    if (reply->is_leading)
        return true;
    bool ok = buf_add(&reply->pending, reply->leading.bytes, reply->leading.n_bytes) &&
              buf_add(&reply->pending, bytes + i, n - i);
    buf_truncate(&reply->leading, 0);
    return ok;
}

/* ---- stop strings ---- */

/* Scans new bytes of pending. True: it has a stop string; the text shown ends at *place. */
static bool find_stop(struct reply *reply, size_t *place)
{
    while (reply->n_scanned < reply->pending.n_bytes) {
        char byte = reply->pending.bytes[reply->n_scanned++];
        size_t n_bytes = stops_feed(&reply->format->stops, &reply->stop_state, byte, &reply->stop_string);
        if (n_bytes > 0) {
            *place = reply->n_scanned - (reply->format->keeps_stop ? 0 : n_bytes);
            reply->has_stop_string = true;
            return true;
        }
    }
    return false;
}

/* ---- certain text ---- */

/* Trailing blanks wait in reply->blanks until text follows. */
static bool show_text(struct reply *reply, const char *bytes, size_t n)
{
    if (!reply->format->trims)
        return buf_add(&reply->text, bytes, n);
    size_t n_solid = n;
    while (n_solid > 0 && char_is_blank(bytes[n_solid - 1]))
        n_solid--;
    if (n_solid > 0) {
        if (!buf_add(&reply->text, reply->blanks.bytes, reply->blanks.n_bytes) ||
            !buf_add(&reply->text, bytes, n_solid))
            return false;
        buf_truncate(&reply->blanks, 0);
    }
    return buf_add(&reply->blanks, bytes + n_solid, n - n_solid);
}

/* Rewrites the text by the chat format's rules, then shows it. is_end: nothing follows. */
static bool rewrite_and_show(struct reply *reply, const char *bytes, size_t n, bool is_end)
{
    const struct reply_format *format = reply->format;
    if (!format->fills_in_time)
        return show_text(reply, bytes, n);
    buf_truncate(&reply->rewritten, 0);
    return rewrite_push(&reply->rewrite, bytes, n, format->widens_marks, is_end, &reply->rewritten) &&
           show_text(reply, reply->rewritten.bytes, reply->rewritten.n_bytes);
}

/* Shows the first n bytes of pending. */
static bool make_certain(struct reply *reply, size_t n, bool is_end)
{
    if (n == 0 && !is_end)
        return true;
    if (!rewrite_and_show(reply, reply->pending.bytes, n, is_end))
        return false;
    if (n == 0)
        return true;
    memmove(reply->pending.bytes, reply->pending.bytes + n, reply->pending.n_bytes - n);
    buf_truncate(&reply->pending, reply->pending.n_bytes - n);
    reply->n_scanned -= n;
    reply->n_certain += n;
    return true;
}

/* Ends at a stop string, or shows text that cannot be the beginning of one. */
static bool scan_and_show(struct reply *reply, bool is_end, bool *is_stopped)
{
    size_t place = 0;
    *is_stopped = find_stop(reply, &place);
    if (*is_stopped) {
        if (!make_certain(reply, place, true))
            return false;
        while (reply->n_visible < reply->n_tokens && reply->tokens[reply->n_visible].begin < reply->n_certain)
            reply->n_visible++;
    } else {
        bool holds = !is_end && !reply->format->keeps_stop;
        size_t n_held = holds ? stops_held(&reply->format->stops, &reply->stop_state) : 0;
        if (!make_certain(reply, reply->pending.n_bytes - n_held, is_end))
            return false;
        while (reply->n_visible < reply->n_tokens &&
               (is_end || reply->tokens[reply->n_visible].end <= reply->n_certain))
            reply->n_visible++;
    }
    return true;
}

static struct reply_token *reply_add_token(struct reply *reply)
{
    if (reply->n_tokens == reply->capacity) {
        size_t capacity = reply->capacity ? reply->capacity * 2 : 4;
        struct reply_token *tokens = realloc(reply->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return NULL;
        reply->tokens = tokens;
        reply->capacity = capacity;
    }
    return &reply->tokens[reply->n_tokens++];
}

/* The text of a token: most special tokens have none. */
static bool detokenize(struct reply *reply, int32_t token)
{
    const struct reply_format *format = reply->format;
    buf_truncate(&reply->piece, 0);
    if (!format->marks || !chat_marks_show(format->marks, token))
        return detokenizer_push(&reply->detok, token, &reply->piece);
    struct piece piece = tokenizer_piece(format->tok, token);
    return detokenizer_finish(&reply->detok, &reply->piece) &&
           buf_add(&reply->piece, piece.bytes, piece.n_bytes);
}

bool reply_push(struct reply *reply, const struct sample *sample, bool *is_stopped)
{
    struct reply_token *token = reply_add_token(reply);
    if (!token)
        return false;
    token->sample = *sample;
    token->begin = reply->n_certain + reply->pending.n_bytes;
    if (reply->format->tok) {
        if (!detokenize(reply, sample->token) ||
            !add_leading(reply, reply->piece.bytes, reply->piece.n_bytes))
            return false;
    }
    token->end = reply->n_certain + reply->pending.n_bytes;
    if (reply->format->tok && reply->detok.n_held > 0)
        token->end++; /* part of a character: visible together with the character */
    size_t n_before = reply->n_visible;
    if (!scan_and_show(reply, false, is_stopped))
        return false;
    reply->n_generated += reply->n_visible - n_before;
    return true;
}

bool reply_finish(struct reply *reply, bool *is_stopped)
{
    size_t n_before = reply->n_visible;
    if (reply->format->tok) {
        buf_truncate(&reply->piece, 0);
        if (!detokenizer_finish(&reply->detok, &reply->piece) ||
            !add_leading(reply, reply->piece.bytes, reply->piece.n_bytes))
            return false;
    }
    if (!scan_and_show(reply, true, is_stopped))
        return false;
    reply->n_generated += reply->n_visible - n_before;
    return true;
}

void reply_sent(struct reply *reply)
{
    buf_truncate(&reply->text, 0);
    reply->n_tokens -= reply->n_visible;
    memmove(reply->tokens, reply->tokens + reply->n_visible, reply->n_tokens * sizeof *reply->tokens);
    reply->n_visible = 0;
}
