/* Opens the spill file of an engine: checks its options, and computes the identity of its pages. */
#include "base/hash.h"
#include "base/log.h"
#include "engine/run/engine_state.h"
#include "model/adapters/adapter.h"
#include "model/load/fingerprint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_PAGES = 3, MAX_SAMPLE = 256 /* positions */ };
static const uint64_t DEFAULT_BYTES = UINT64_C(8) << 30;

enum tutti_status spill_check_options(struct tutti_engine *e, struct tutti_error *err)
{
    struct tutti_engine_options *o = &e->options;
    if (!o->kv_spill_dir && o->kv_spill_bytes > 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "kv_spill_bytes",
                               "kv_spill_bytes is set without a folder (kv_spill_dir)");
    if (!o->kv_spill_dir)
        return TUTTI_OK;
    if (!*o->kv_spill_dir)
        return error_set_param(err, TUTTI_E_ARGUMENT, "kv_spill_dir",
                               "kv_spill_dir is empty, expected a folder");
    if (o->no_prefix_cache)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "kv_spill_dir",
            "the KV spill file needs the prefix cache, but the prefix cache is switched off");
    if (e->model->group)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "kv_spill_dir",
                               "several ranks cannot spill KV pages: each has only a part of a page");
    if (e->model->desc.has_prefix)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "kv_spill_dir",
            "model %s has bidirectional attention over the prompt, so its pages cannot be reused",
            e->model->name);
    if (o->kv_spill_bytes == 0)
        o->kv_spill_bytes = DEFAULT_BYTES;
    return TUTTI_OK;
}

/* ---- identity of the pages ---- */

/* Checksum of keys, values and logits of a fixed text, computed here. False: out of memory. */
static bool sum_of_sample(struct tutti_engine *e, size_t page_bytes, uint64_t *sum)
{
    struct backend *be = e->model->backend;
    int page_tokens = model_page_tokens(e->model), n_pages = SAMPLE_PAGES;
    while (n_pages > 0 &&
           (n_pages * page_tokens > e->options.max_context || n_pages * page_tokens > MAX_SAMPLE))
        n_pages--;
    int32_t ids[MAX_SAMPLE], positions[MAX_SAMPLE], seqs[MAX_SAMPLE] = { 0 };
    int32_t pages[SAMPLE_PAGES], adapter = -1, last_row;
    const int32_t *table = pages;
    int n_ids = n_pages * page_tokens;
    struct floats logits = NO_FLOATS;
    size_t n_vocab = (size_t)e->model->desc.n_vocab;
    void *page = malloc(page_bytes);
    float *row = malloc(n_vocab * sizeof *row);
    if (!page || !row) {
        free(page);
        free(row);
        return false;
    }
    for (int i = 0; i < n_ids; i++) {
        ids[i] = (int32_t)((int64_t)i * 7919 % e->model->desc.n_usable_vocab);
        positions[i] = i;
    }
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    for (int begin = 0, n_rows; begin < n_ids; begin += n_rows) {
        n_rows = n_ids - begin;
        n_rows = n_rows < e->options.max_batch_tokens ? n_rows : e->options.max_batch_tokens;
        last_row = n_rows - 1;
        struct step step = { .n_rows = n_rows,
                             .n_seqs = 1,
                             .n_outputs = begin + n_rows == n_ids,
                             .token_ids = ids + begin,
                             .positions = positions + begin,
                             .seqs = seqs,
                             .page_tables = &table,
                             .output_rows = &last_row,
                             .adapters = &adapter };
        logits = e->hooks.submit(e->model, e->kv, &step);
        e->hooks.wait(e->model);
    }
    if (n_ids > 0) {
        model_read_logits(e->model, logits, 1, row);
        *sum = hash64(*sum, row, n_vocab * sizeof *row);
    }
    for (int i = 0; i < n_pages; i++) {
        be->ops->kv_read_page(be, e->kv, i, page);
        *sum = hash64(*sum, page, page_bytes);
    }
    free(row);
    free(page);
    return true;
}

static enum tutti_status identify(struct tutti_engine *e, struct spill_identity *out, struct tutti_error *err)
{
    struct backend *be = e->model->backend;
    size_t page_bytes = be->ops->kv_page_bytes(be, e->model->kv_type);
    uint64_t arithmetic = be->ops->arithmetic_checksum(be);
    arithmetic = hash64(arithmetic, TUTTI_VERSION, sizeof TUTTI_VERSION);
    arithmetic = hash64(arithmetic, be->ops->name, strlen(be->ops->name));
    if (!sum_of_sample(e, page_bytes, &arithmetic))
        return error_set(err, TUTTI_E_MEMORY, "KV spill: out of memory for a page of %zu bytes", page_bytes);
    *out = (struct spill_identity){ .weights = model_weights_fingerprint(e->model),
                                    .shape = model_shape_fingerprint(e->model),
                                    .arithmetic = arithmetic,
                                    .kv_type = (uint64_t)e->model->kv_type,
                                    .page_bytes = page_bytes,
                                    .page_tokens = (uint64_t)model_page_tokens(e->model) };
    return TUTTI_OK;
}

/* ---- opening ---- */

static enum tutti_status make_spiller(struct tutti_engine *e, struct tutti_error *err)
{
    int n_roots = model_n_adapters(e->model) + 1;
    uint64_t *roots = calloc((size_t)n_roots, sizeof *roots);
    if (!roots)
        return error_set(err, TUTTI_E_MEMORY, "spilled pages: out of memory");
    roots[0] = SPILL_ROOT;
    for (int i = 1; i < n_roots; i++) /* odd, so it differs from the root without an adapter */
        roots[i] = SPILL_ROOT | model_adapter_fingerprint(e->model, i - 1) >> 1 | 1;
    struct spiller_options options = { .scheduler = e->scheduler,
                                       .backend = e->model->backend,
                                       .kv = e->kv,
                                       .spill = e->spill,
                                       .roots = roots,
                                       .n_roots = n_roots,
                                       .patience_us = e->hooks.spill_patience_us };
    enum tutti_status st = spiller_new(&e->spiller, &options, err);
    free(roots);
    return st;
}

enum tutti_status spill_start(struct tutti_engine *e, uint64_t hash_seed, struct tutti_error *err)
{
    struct spill_options options = { .dir = e->options.kv_spill_dir,
                                     .n_bytes = e->options.kv_spill_bytes,
                                     .hash_seed = hash_seed,
                                     .delay_us = e->hooks.spill_delay_us,
                                     .bell = &e->engine_bell };
    if (!options.dir)
        return TUTTI_OK;
    e->options.kv_spill_dir = NULL; /* borrowed from the caller */
    enum tutti_status st = identify(e, &options.identity, err);
    if (st == TUTTI_OK)
        st = spill_open(&e->spill, &options, err);
    if (st == TUTTI_OK)
        st = make_spiller(e, err);
    if (st != TUTTI_OK)
        return st;
    struct spill_counts counts = spill_counts(e->spill);
    log_info("KV spill: the file has %" PRIu64 " of %" PRIu64 " pages of %d tokens", counts.n_copies,
             counts.n_slots, model_page_tokens(e->model));
    return TUTTI_OK;
}
