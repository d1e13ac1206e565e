/* Keeps the hidden states from which the layer for multi-token prediction continues: the page of a position
 * has that of the last position that was computed in it. So a sequence that shares, copies, restores or
 * finds pages finds the hidden state before its next token with them. */
#include "engine/run/engine_state.h"

#include <assert.h>

/* Notes a row of the step, at a position of a sequence. Returns the number of rows noted. */
static int note_row(struct tutti_engine *e, int n, const struct sequence *seq, int row)
{
    const struct step *step = &e->scheduler->step;
    assert(n < e->options.max_batch_tokens);
    e->kept_rows[n] = row;
    e->kept_rows[e->options.max_batch_tokens + n] =
        seq->page_table[step->positions[row] / e->scheduler->page_tokens];
    return n + 1;
}

static void store_noted(struct tutti_engine *e, int n)
{
    if (n > 0)
        model_store_hidden(e->model, e->kv, e->kept_rows, e->kept_rows + e->options.max_batch_tokens, n);
}

/* The last rows of pages include draft tokens: should they be rejected, their pages are dropped, or end with an
 * earlier row. */
void hidden_rows_keep(struct tutti_engine *e)
{
    const struct scheduler *s = e->scheduler;
    int n = 0;
    for (int i = 0, row = 0; e->model->desc.uses_mtp && i < s->n_entries; row += s->entries[i++].n_rows) {
        const struct plan_entry *entry = &s->entries[i];
        int last = row + entry->n_rows - entry->n_drafts - 1 - entry->is_late;
        int end = entry->is_late ? last + 1 : row + entry->n_rows;
        for (int r = row; r < end; r++)
            if (r == last || s->step.positions[r] % s->page_tokens == s->page_tokens - 1)
                n = note_row(e, n, entry->seq, r);
    }
    store_noted(e, n);
}

void hidden_rows_settle(struct tutti_engine *e)
{
    const struct scheduler *s = e->scheduler;
    int n = 0;
    for (int i = 0, row = 0; e->model->desc.uses_mtp && i < s->n_entries; row += s->entries[i++].n_rows) {
        const struct plan_entry *entry = &s->entries[i];
        if (entry->n_drafts > 0 && sequence_is_running(entry->seq))
            n = note_row(e, n, entry->seq, row + entry->seq->n_computed - 1 - s->step.positions[row]);
    }
    store_noted(e, n);
}
