/* Times only attention: the operation of every layer, over pages that are not in any cache. */
#include "backend/kv_type.h"
#include "base/system/clock.h"
#include "cli/bench/bench.h"
#include "cli/terminal/progress.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROMPT_ROWS = 64,    /* rows of a prefill chunk */
    MIN_REPETITIONS = 3, /* where their number is not given */
    MAX_REPETITIONS = 50,
    SPENT_NS = 500000000, /* a point is repeated for this long; */
};
static const uint64_t WITH_LIMITS_NS =
    3000000000; /* or, including the measurement of limits, for this long */

struct attention_bench {
    struct model *model;
    struct kv_memory *kv;
    struct measure *limits;
    int context;
    struct floats qkv, y; /* the backend's: [PROMPT_ROWS][...] */
    struct floats latent; /* of latent attention: the row that is stored */
    float *host;          /* the source of qkv */
    int32_t positions[PROMPT_ROWS], seqs[PROMPT_ROWS];
    int32_t *pages; /* [pages of the context] */
    size_t n_qkv;
    int min_repetitions, max_repetitions;
    double *seconds, *scratch; /* [max_repetitions] */
    struct backend_limits *looks;
};

static void clear(struct attention_bench *b)
{
    struct backend *be = b->model->backend;
    if (b->kv)
        be->ops->kv_free(be, b->kv);
    be->ops->dealloc(be, b->qkv);
    be->ops->dealloc(be, b->y);
    be->ops->dealloc(be, b->latent);
    free(b->host);
    free(b->pages);
    free(b->seconds);
    free(b->scratch);
    free(b->looks);
}

/* n_repetitions 0: not given. */
static enum tutti_status init(struct attention_bench *b, struct model *model, struct measure *limits,
                              enum dtype kv_type, int context, int n_repetitions, struct tutti_error *err)
{
    const struct attn_desc *a = &model->local.kinds[0].attn;
    struct backend *be = model->backend;
    int n_pages = model_pages_of(model, context);
    *b = (struct attention_bench){ .model = model,
                                   .limits = limits,
                                   .context = context,
                                   .min_repetitions = n_repetitions > 0 ? n_repetitions : MIN_REPETITIONS,
                                   .max_repetitions = n_repetitions > 0 ? n_repetitions : MAX_REPETITIONS };
    bool is_latent = a->n_latent > 0;
    int row = is_latent ? a->n_heads * attn_latent_row(a) : (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    int result = a->n_latent > a->head_dim ? a->n_latent : a->head_dim; /* also room for unrotated queries */
    b->n_qkv = PROMPT_ROWS * (size_t)row;
    b->qkv = be->ops->alloc(be, b->n_qkv);
    b->y = be->ops->alloc(be, PROMPT_ROWS * (size_t)a->n_heads * (size_t)result);
    b->latent = is_latent ? be->ops->alloc(be, PROMPT_ROWS * (size_t)attn_latent_row(a)) : NO_FLOATS;
    b->host = malloc(b->n_qkv * sizeof *b->host);
    b->pages = calloc((size_t)n_pages, sizeof *b->pages);
    b->seconds = calloc((size_t)b->max_repetitions, sizeof *b->seconds);
    b->scratch = calloc((size_t)b->max_repetitions, sizeof *b->scratch);
    b->looks = calloc((size_t)b->max_repetitions, sizeof *b->looks);
    if (!b->qkv.buffer || !b->y.buffer || (is_latent && !b->latent.buffer) || !b->host || !b->pages ||
        !b->seconds || !b->scratch || !b->looks)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for attention over %d tokens", context);
    for (int i = 0; i < n_pages; i++)
        b->pages[i] = i;
    uint64_t seed = 1;
    for (size_t i = 0; i < b->n_qkv; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
        b->host[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
    enum tutti_status st = model_reserve(model, PROMPT_ROWS, 1, err);
    return st == TUTTI_OK ? be->ops->kv_new(be, &b->kv, n_pages, n_pages, kv_type, err) : st;
}

/* Runs rows at positions first..: stores their keys and values, or computes their attention. */
static void run_layers(struct attention_bench *b, int first, int n_rows, bool is_store)
{
    struct backend *be = b->model->backend;
    const int32_t *table = b->pages;
    for (int i = 0; i < n_rows; i++)
        b->positions[i] = first + i;
    struct step step = {
        .n_rows = n_rows, .n_seqs = 1, .positions = b->positions, .seqs = b->seqs, .page_tables = &table
    };
    be->ops->step_begin(be, &step);
    for (int layer = 0; layer < b->model->local.n_layers; layer++) {
        const struct attn_desc *a = &model_layer(&b->model->local, layer)->attn;
        if (is_store && a->n_latent > 0)
            be->ops->latent_store(be, b->qkv, b->y, a->head_dim, b->latent,
                                  model_weight(b->model, SLOT_KV_A_NORM, layer)->values, b->kv, layer);
        else if (is_store)
            be->ops->rope_store(be, b->qkv, NO_FLOATS, NO_FLOATS, b->kv, layer);
        else
            be->ops->attention(be, b->y, b->qkv, model_weight(b->model, SLOT_SINKS, layer)->values, b->kv,
                               layer);
    }
    be->ops->step_submit(be);
    be->ops->step_wait(be);
}

static void fill_context(struct attention_bench *b)
{
    struct backend *be = b->model->backend;
    for (int first = 0; first < b->context; first += PROMPT_ROWS) {
        int n_rows = b->context - first < PROMPT_ROWS ? b->context - first : PROMPT_ROWS;
        be->ops->upload(be, b->qkv, b->host, b->n_qkv); /* storing rotates qkv in place */
        if (b->latent.buffer)
            be->ops->upload(be, b->latent, b->host,
                            PROMPT_ROWS * (size_t)attn_latent_row(&b->model->local.kinds[0].attn));
        run_layers(b, first, n_rows, true);
    }
}

static void time_attention(struct attention_bench *b, struct bench_attention_result *result)
{
    uint64_t spent = 0, begun = clock_now_ns();
    int n = 0;
    while (n < b->min_repetitions ||
           (n < b->max_repetitions && spent < SPENT_NS && clock_now_ns() - begun < WITH_LIMITS_NS)) {
        bench_look(&b->looks[n], b->limits, b->model);
        uint64_t begin = clock_now_ns();
        run_layers(b, b->context - result->n_rows, result->n_rows, false);
        uint64_t ns = clock_now_ns() - begin;
        b->seconds[n++] = (double)ns / 1e9;
        spent += ns;
    }
    result->time = bench_time_of(b->seconds, n);
    result->limits = bench_median_limits(b->looks, n, b->scratch);
}

/* The positions that all rows of a step attend to, summed: full contexts, and the triangle at
 * their end. */
static double seen_positions(int window, const struct bench_attention_result *r)
{
    double seen = 0;
    for (int i = 0; i < r->n_rows; i++) {
        int n = r->context - r->n_rows + i + 1;
        seen += window > 0 && n > window ? window : n;
    }
    return seen;
}

/* The bytes and operations of all layers: the last row attends to all positions that must be read,
 * within its window. */
static void count_work(const struct model_desc *d, struct bench_attention_result *r)
{
    r->read_bytes = r->ops = 0;
    for (int i = 0; i < d->n_layers; i++) {
        const struct attn_desc *a = &model_layer(d, i)->attn;
        bool is_cut = a->window > 0 && r->context > a->window + r->n_rows;
        int n_read = is_cut ? a->window + r->n_rows : r->context;
        r->read_bytes += (double)model_layer_kv_bytes(a, r->kv_type) * n_read;
        r->ops += bench_position_ops(a) * seen_positions(a->window, r);
    }
}

enum tutti_status bench_attention(struct model *model, const struct option_ints *contexts, int n_repetitions,
                                  struct measure *limits, struct bench_attention_result *results,
                                  int *n_results, struct tutti_error *err)
{
    static const enum dtype TYPES[] = { DTYPE_F16, DTYPE_I8 };
    static const int ROWS[] = { 1, PROMPT_ROWS };
    struct progress progress;
    enum tutti_status st = TUTTI_OK;
    int n = 0, total = contexts->n * BENCH_ATTENTION_POINTS;
    progress_begin(&progress, "measuring attention", PROGRESS_STEPS);
    for (int i = 0; i < contexts->n; i++)
        for (int t = 0; t < 2 && st == TUTTI_OK; t++) {
            struct attention_bench b;
            int context = (int)contexts->ints[i];
            st = init(&b, model, limits, TYPES[t], context, n_repetitions, err);
            if (st == TUTTI_OK)
                fill_context(&b);
            for (int k = 0; k < 2 && st == TUTTI_OK && ROWS[k] <= context; k++) {
                struct bench_attention_result *r = &results[n++];
                *r = (struct bench_attention_result){ .kv_type = TYPES[t],
                                                      .context = context,
                                                      .n_rows = ROWS[k] };
                time_attention(&b, r);
                count_work(&model->local, r);
                progress_update(&progress, (uint64_t)n, (uint64_t)total);
            }
            clear(&b);
        }
    progress_end(&progress);
    *n_results = n;
    return st;
}
