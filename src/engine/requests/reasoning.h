/* Follows the reasoning of a sequence token by token, for a grammar that waits for its end and for its
 * budget. The result depends on the sequence's own tokens only. Engine thread only. */
#ifndef TUTTI_ENGINE_REASONING_H
#define TUTTI_ENGINE_REASONING_H

#include "engine/requests/sequence.h"

/* Whether the request's grammar applies to the next token. */
static inline bool reasoning_has_grammar(const struct sequence *seq)
{
    return seq->reasoning == REASONING_NEVER || seq->reasoning == REASONING_IN_GRAMMAR;
}

/* The next token, where it is not drawn because the budget is used up; else -1. allowed: the token mask,
 * with REASONING_IN_GRAMMAR: the token that ends a message is allowed only within reasoning. */
static inline int32_t reasoning_forced_token(const struct sequence *seq, const struct chat_marks *marks,
                                             const uint32_t *allowed)
{
    int limit = seq->request->spec.max_reasoning_tokens, n = seq->n_ids - seq->reasoning_begin;
    if (limit == 0 || n < limit)
        return -1;
    if (seq->reasoning == REASONING_OPEN)
        return marks->forced.ids[seq->n_forced];
    if (seq->reasoning != REASONING_IN_GRAMMAR || !allowed)
        return -1;
    int32_t token = marks->turn.ids[seq->n_forced];
    return allowed[token / 32] >> token % 32 & 1 ? token : -1;
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
    if (seq->reasoning == REASONING_IN_GRAMMAR && limit > 0 &&
        seq->n_ids - 1 - seq->reasoning_begin >= limit) {
        seq->n_forced = ids[n_ids - 1] == marks->turn.ids[seq->n_forced] ? seq->n_forced + 1 : 0;
        if (seq->n_forced == (int)marks->turn.n)
            seq->reasoning = REASONING_NEVER;
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
