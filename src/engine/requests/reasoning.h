/* Follows the reasoning of a sequence token by token, for a grammar that waits for its end and for its
 * budget. The result depends on the sequence's own tokens only. Engine thread only. */
#ifndef TUTTI_ENGINE_REASONING_H
#define TUTTI_ENGINE_REASONING_H

#include "engine/requests/sequence.h"

/* The next token, where it is not drawn because the budget is used up; else -1. */
static inline int32_t reasoning_forced_token(const struct sequence *seq, const struct chat_marks *marks)
{
    int limit = seq->request->spec.max_reasoning_tokens;
    if (seq->reasoning != REASONING_OPEN || limit == 0)
        return -1;
    int n = seq->n_ids - seq->reasoning_begin;
    return n >= limit ? marks->forced.ids[seq->n_forced] : -1;
}

/* Notes the sequence's latest token. */
static inline void reasoning_take(struct sequence *seq, const struct chat_marks *marks)
{
    const int32_t *ids = seq->ids;
    size_t n_ids = (size_t)seq->n_ids;
    int limit = seq->request->spec.max_reasoning_tokens;
    if (seq->reasoning == REASONING_AT_ONE) {
        bool is_open = chat_marks_end(&marks->open, ids, n_ids);
        seq->reasoning = is_open ? REASONING_OPEN : REASONING_NEVER;
        seq->reasoning_begin = is_open ? seq->n_ids : seq->reasoning_begin;
        return;
    }
    if (seq->reasoning != REASONING_OPEN)
        return;
    bool is_forced = limit != 0 && seq->n_ids - 1 - seq->reasoning_begin >= limit;
    seq->n_forced += is_forced;
    bool is_over = is_forced ? seq->n_forced == (int)marks->forced.n
                             : chat_marks_end(&marks->close, ids, n_ids);
    if (is_over) {
        seq->reasoning = REASONING_NEVER;
        seq->answer_begin = seq->n_ids;
    }
}

#endif
