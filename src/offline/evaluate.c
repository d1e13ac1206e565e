#include "offline/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_ROWS = 256 }; /* more rows are not faster per row, and each may need a row of logits */

int windows_n_scored(const struct windows *w)
{
    return w->n_context - 1 - w->first;
}

int windows_n_together(const struct windows *w)
{
    int n = STEP_ROWS / w->n_context < w->n ? STEP_ROWS / w->n_context : w->n;
    return n > 1 ? n : 1;
}

int32_t windows_target(const struct windows *w, int window, int row)
{
    return w->ids[(int64_t)window * w->step + w->first + row + 1];
}

/* A run: several short windows in one step, or long windows one after the other in chunks. */
struct evaluation {
    struct model *model;
    const struct windows *windows;
    struct kv_memory *kv;
    int n_slots, n_pages, max_rows; /* n_pages: of a slot */
    int32_t *ids;                   /* [n_slots][n_context], heads put in */
    int32_t *numbers, *positions, *seqs, *outputs, *ropes, *blocks;
    int32_t *pages;
    const int32_t **tables;
    struct prefix *prefixes; /* [n_slots] */
    int32_t *prefix_lens;
    float *logits; /* [max_rows][n_vocab] */
};

static enum tutti_status check_windows(const struct model *model, const struct windows *w,
                                       struct tutti_error *err)
{
    const struct model_desc *d = &model->desc;
    if (w->n < 1 || w->n_context < 2 || w->n_context > LIMIT_CONTEXT || w->step < 1 || w->first < 0 ||
        windows_n_scored(w) < 1 || w->n_head > w->first + 1)
        return error_set(err, TUTTI_E_ARGUMENT, "windows of %d ids with %d of %d before the first score",
                         w->n_context, w->first, w->n_head);
    if (model_desc_ends_at_context(d) && w->n_context > d->n_ctx)
        return error_set_param(err, TUTTI_E_ARGUMENT, "context",
                               "windows of %d ids, but the model has a context of %d tokens", w->n_context,
                               d->n_ctx);
    int64_t n = (int64_t)(w->n - 1) * w->step + w->n_context;
    for (int64_t i = 0; i < n + w->n_head; i++) {
        int32_t id = i < n ? w->ids[i] : w->head[i - n];
        if (id < 0 || id >= d->n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, "ids", "token id %d at %lld, expected 0 to %d", id,
                                   (long long)i, d->n_vocab - 1);
    }
    if (model->in_use)
        return error_set(err, TUTTI_E_ARGUMENT, "an engine is open on this model");
    return TUTTI_OK;
}

static void runner_clear(struct evaluation *r)
{
    model_kv_free(r->model, r->kv);
    free(r->ids);
    free(r->numbers);
    free(r->pages);
    free((void *)r->tables);
    free(r->prefixes);
    free(r->prefix_lens);
    free(r->logits);
}

static enum tutti_status runner_init(struct evaluation *r, struct tutti_error *err)
{
    const struct windows *w = r->windows;
    const struct model_desc *d = &r->model->desc;
    enum tutti_status st = model_check_generates(r->model, err);
    if (st != TUTTI_OK)
        return st;
    r->n_slots = windows_n_together(w);
    /* A prefix is one step, and it can be a whole window. */
    r->max_rows = d->has_prefix && w->n_context > STEP_ROWS ? w->n_context : STEP_ROWS;
    r->n_pages = model_pages_of(r->model, w->n_context);
    size_t n_slots = (size_t)r->n_slots, rows = (size_t)r->max_rows, n_logits;
    r->ids = calloc(n_slots * (size_t)w->n_context, sizeof *r->ids);
    r->numbers = calloc(5 * rows, sizeof *r->numbers);
    r->pages = calloc(n_slots * (size_t)r->n_pages, sizeof *r->pages);
    r->tables = calloc(n_slots, sizeof *r->tables);
    r->prefixes = calloc(n_slots, sizeof *r->prefixes);
    r->prefix_lens = calloc(n_slots, sizeof *r->prefix_lens);
    if (!__builtin_mul_overflow(rows, (size_t)d->n_vocab, &n_logits))
        r->logits = malloc(n_logits * sizeof *r->logits);
    if (!r->ids || !r->numbers || !r->pages || !r->tables || !r->prefixes || !r->prefix_lens || !r->logits)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for windows of %d ids", w->n_context);
    r->positions = r->numbers;
    r->seqs = r->numbers + rows;
    r->outputs = r->numbers + 2 * rows;
    r->ropes = r->numbers + 3 * rows;
    r->blocks = r->numbers + 4 * rows;
    for (int i = 0; i < r->n_slots * r->n_pages; i++)
        r->pages[i] = i;
    for (int i = 0; i < r->n_slots; i++)
        r->tables[i] = r->pages + (int64_t)i * r->n_pages;
    st = model_reserve(r->model, r->max_rows, r->max_rows, err);
    return st == TUTTI_OK
               ? model_kv_new(r->model, &r->kv, r->n_slots * r->n_pages, r->n_slots * r->n_pages, err)
               : st;
}

/* The rows [begin, end) of each of n_slots windows, as one step. Returns how many have logits. */
static int run_step(struct evaluation *r, int n_slots, int begin, int end)
{
    const struct windows *w = r->windows;
    bool has_prefix = r->model->desc.has_prefix;
    int n = 0, n_outputs = 0;
    int32_t *ids = r->ids + (n_slots == 1 ? begin : 0); /* several windows are always whole */
    for (int s = 0; s < n_slots; s++) {
        for (int p = begin; p < end; p++, n++) {
            r->positions[n] = p;
            r->seqs[n] = s;
            model_prefix_positions(&r->prefixes[s], p, &r->ropes[n], &r->blocks[n]);
            if (p >= w->first && p < w->n_context - 1)
                r->outputs[n_outputs++] = n;
        }
    }
    struct step step = { .n_rows = n,
                         .n_seqs = n_slots,
                         .n_outputs = n_outputs,
                         .token_ids = ids,
                         .positions = r->positions,
                         .seqs = r->seqs,
                         .page_tables = r->tables,
                         .output_rows = r->outputs,
                         .prefix_lens = has_prefix ? r->prefix_lens : NULL,
                         .rope_positions = has_prefix ? r->ropes : NULL,
                         .block_positions = has_prefix ? r->blocks : NULL };
    model_read_logits(r->model, model_forward(r->model, r->kv, &step), n_outputs, r->logits);
    return n_outputs;
}

static void fill_slots(struct evaluation *r, int window, int n_slots)
{
    const struct windows *w = r->windows;
    for (int s = 0; s < n_slots; s++) {
        int32_t *ids = r->ids + (int64_t)s * w->n_context;
        memcpy(ids, w->ids + (int64_t)(window + s) * w->step, (size_t)w->n_context * sizeof *ids);
        if (w->n_head > 0)
            memcpy(ids, w->head, (size_t)w->n_head * sizeof *ids);
        r->prefixes[s] = model_find_prefix(&r->model->desc, ids, w->n_context);
        r->prefix_lens[s] = r->prefixes[s].n;
    }
}

static enum tutti_status run_windows(struct evaluation *r, int window, int n_slots, windows_fn *fn,
                                     void *user, struct tutti_error *err)
{
    const struct windows *w = r->windows;
    enum tutti_status st = TUTTI_OK;
    fill_slots(r, window, n_slots);
    for (int begin = 0, end; begin < w->n_context && st == TUTTI_OK; begin = end) {
        end = begin < r->prefixes[0].n ? r->max_rows : begin + STEP_ROWS;
        end = end < w->n_context ? end : w->n_context;
        int n_outputs = run_step(r, n_slots, begin, end), n_each = n_outputs / n_slots;
        int row = begin > w->first ? begin - w->first : 0;
        st = model_check(r->model, err);
        for (int s = 0; s < n_slots && n_each > 0 && st == TUTTI_OK; s++)
            st = fn(user, window + s, row, n_each,
                    r->logits + (size_t)s * (size_t)n_each * (size_t)r->model->desc.n_vocab, err);
    }
    return st;
}

enum tutti_status windows_run(struct model *model, const struct windows *windows, windows_fn *fn, void *user,
                              struct tutti_error *err)
{
    struct evaluation r = { .model = model, .windows = windows };
    enum tutti_status st = check_windows(model, windows, err);
    if (st != TUTTI_OK)
        return st;
    st = runner_init(&r, err);
    for (int i = 0; i < windows->n && st == TUTTI_OK; i += r.n_slots)
        st = run_windows(&r, i, windows->n - i < r.n_slots ? windows->n - i : r.n_slots, fn, user, err);
    runner_clear(&r);
    return st;
}
