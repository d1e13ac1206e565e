/* Opens the host tier and the spill file of an engine: checks their options, and computes the identity of pages. */
#include "base/hash.h"
#include "base/log.h"
#include "base/system/memory_left.h"
#include "engine/run/engine_state.h"
#include "model/adapters/adapter.h"
#include "model/load/fingerprint.h"
#include "model/load/fit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_PAGES = 3, MAX_SAMPLE = 256 /* positions */ };
static const uint64_t DEFAULT_BYTES = UINT64_C(8) << 30;

/* The host tier is of use only where pages are not in host memory already. */
static enum tutti_status check_host(const struct tutti_engine *e, struct tutti_error *err)
{
    const struct backend *be = e->model->backend;
    uint64_t n_bytes = e->options.kv_spill_host_bytes, n_left = memory_left("");
    char size[FIT_SIZE_BYTES], left[FIT_SIZE_BYTES];
    if (n_bytes > 0 && !be->ops->memory_left)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "kv_spill_host_bytes",
                               "kv_spill_host_bytes (--kv-spill-host): device %s: its KV pages are in host "
                               "memory already; raise kv_bytes "
                               "(--kv-memory) instead, or spill to a file (--kv-spill)",
                               be->ops->name);
    if (n_bytes <= n_left)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_LIMIT, "kv_spill_host_bytes",
                           "%s of host memory for spilled KV pages, but %s are available",
                           fit_size_text(size, n_bytes), fit_size_text(left, n_left));
}

enum tutti_status spill_check_options(struct tutti_engine *e, struct tutti_error *err)
{
    struct tutti_engine_options *o = &e->options;
    const char *param = o->kv_spill_dir ? "kv_spill_dir" : "kv_spill_host_bytes";
    if (!o->kv_spill_dir && o->kv_spill_bytes > 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "kv_spill_bytes",
                               "kv_spill_bytes is set without a folder (kv_spill_dir)");
    if (!o->kv_spill_dir && o->kv_spill_host_bytes == 0)
        return TUTTI_OK;
    if (o->kv_spill_dir && !*o->kv_spill_dir)
        return error_set_param(err, TUTTI_E_ARGUMENT, "kv_spill_dir",
                               "kv_spill_dir is empty, expected a folder");
    if (o->no_prefix_cache)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            "spilling KV pages needs the prefix cache, but the prefix cache is switched off");
    if (e->model->group)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, param,
                               "several ranks cannot spill KV pages: each has only a part of a page");
    if (e->model->desc.has_prefix)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, param,
            "model %s has bidirectional attention over the prompt, so its pages cannot be reused",
            e->model->name);
    if (o->kv_spill_bytes == 0)
        o->kv_spill_bytes = DEFAULT_BYTES;
    return check_host(e, err);
}

/* ---- identity of the pages ---- */

/* Checksum of keys, values and logits of a fixed text, computed here. page: host memory of kv_reserve_host(). False: out of
 * memory. */
static bool sum_of_sample(struct tutti_engine *e, size_t page_bytes, void *page, uint64_t *sum)
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
    float *row = malloc(n_vocab * sizeof *row);
    if (!row)
        return false;
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
    if (n_ids > 0 && !model_is_lost(e->model)) {
        model_read_logits(e->model, logits, 1, row);
        *sum = hash64(*sum, row, n_vocab * sizeof *row);
    }
    for (int i = 0; i < n_pages; i++) {
        be->ops->kv_read_begin(be, e->kv, 0, i, page);
        (void)be->ops->kv_is_copied(be, e->kv, 0, true);
        if (model_is_lost(e->model))
            break; /* nothing was copied; identify() reports the failure */
        *sum = hash64(*sum, page, page_bytes);
    }
    free(row);
    return true;
}

static enum tutti_status identify(struct tutti_engine *e, struct spill_identity *out, void *page,
                                  struct tutti_error *err)
{
    struct backend *be = e->model->backend;
    size_t page_bytes = (size_t)out->page_bytes;
    uint64_t arithmetic = be->ops->arithmetic_checksum(be);
    arithmetic = hash64(arithmetic, TUTTI_VERSION, sizeof TUTTI_VERSION);
    arithmetic = hash64(arithmetic, be->ops->name, strlen(be->ops->name));
    if (!sum_of_sample(e, page_bytes, page, &arithmetic))
        return error_set(err, TUTTI_E_MEMORY, "KV spill: out of memory for a page of %zu bytes", page_bytes);
    enum tutti_status st = model_check(e->model, err);
    if (st != TUTTI_OK)
        return st;
    *out = (struct spill_identity){ .weights = model_weights_fingerprint(e->model),
                                    .shape = model_shape_fingerprint(e->model),
                                    .arithmetic = arithmetic,
                                    .kv_type = (uint64_t)e->model->kv_type,
                                    .page_bytes = page_bytes,
                                    .page_tokens = (uint64_t)model_page_tokens(e->model) };
    return TUTTI_OK;
}

/* ---- opening ---- */

static enum tutti_status make_spiller(struct tutti_engine *e, int n_transfers, struct tutti_error *err)
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
                                       .n_transfers = n_transfers,
                                       .roots = roots,
                                       .n_roots = n_roots,
                                       .patience_us = e->hooks.spill_patience_us };
    enum tutti_status st = spiller_new(&e->spiller, &options, err);
    free(roots);
    return st;
}

/* Host memory for pages: the host tier, or frames on their way to and from the file. */
static enum tutti_status reserve_frames(struct tutti_engine *e, struct spill_options *options,
                                        int n_transfers, struct tutti_error *err)
{
    struct backend *be = e->model->backend;
    uint64_t host_bytes = e->options.kv_spill_host_bytes, page_bytes = options->identity.page_bytes;
    uint64_t n_frames = host_bytes > 0 ? host_bytes / page_bytes : (uint64_t)n_transfers;
    void *frames = NULL;
    size_t n_bytes;
    n_frames = n_frames < SPILL_MAX_SLOTS ? n_frames : SPILL_MAX_SLOTS;
    if (n_frames < SPILL_MIN_FRAMES)
        return error_set_param(
            err, TUTTI_E_LIMIT, "kv_spill_host_bytes",
            "host memory for spilled KV pages is %" PRIu64 " bytes, but %d pages of %d tokens need %" PRIu64,
            host_bytes, SPILL_MIN_FRAMES, model_page_tokens(e->model), SPILL_MIN_FRAMES * page_bytes);
    if (__builtin_mul_overflow((size_t)n_frames, (size_t)page_bytes, &n_bytes))
        return error_set(err, TUTTI_E_LIMIT, "spilled KV pages: %" PRIu64 " pages of %" PRIu64 " bytes",
                         n_frames, page_bytes);
    enum tutti_status st = be->ops->kv_reserve_host(be, e->kv, n_bytes, n_transfers, &frames, err);
    options->frames = frames;
    options->n_frames = (int)n_frames;
    options->keeps_pages = host_bytes > 0;
    return st;
}

static void log_start(const struct tutti_engine *e)
{
    struct spill_counts counts = spill_counts(e->spill);
    int page_tokens = model_page_tokens(e->model);
    if (counts.n_host_slots > 0)
        log_info("KV spill: host memory for %" PRIu64 " pages of %d tokens", counts.n_host_slots,
                 page_tokens);
    if (counts.n_slots > 0)
        log_info("KV spill: the file has %" PRIu64 " of %" PRIu64 " pages of %d tokens", counts.n_pages,
                 counts.n_slots, page_tokens);
}

enum tutti_status spill_start(struct tutti_engine *e, uint64_t hash_seed, struct tutti_error *err)
{
    struct backend *be = e->model->backend;
    struct spill_options options = { .dir = e->options.kv_spill_dir,
                                     .n_bytes = e->options.kv_spill_bytes,
                                     .hash_seed = hash_seed,
                                     .delay_us = e->hooks.spill_delay_us,
                                     .bell = &e->engine_bell };
    if (!options.dir && e->options.kv_spill_host_bytes == 0)
        return TUTTI_OK;
    e->options.kv_spill_dir = NULL; /* borrowed from the caller */
    options.identity.page_bytes = be->ops->kv_page_bytes(be, e->model->kv_type);
    options.identity.page_tokens = (uint64_t)model_page_tokens(e->model);
    int n_transfers = spill_moving_frames(options.identity.page_bytes);
    enum tutti_status st = reserve_frames(e, &options, n_transfers, err);
    if (st == TUTTI_OK && options.dir)
        st = identify(e, &options.identity, options.frames, err);
    if (st == TUTTI_OK)
        st = spill_open(&e->spill, &options, err);
    if (st == TUTTI_OK)
        st = make_spiller(e, n_transfers, err);
    if (st == TUTTI_OK)
        log_start(e);
    return st;
}
