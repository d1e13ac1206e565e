/* The mixed backend: opening and closing its two sides, steps, and the table of its operations. */
#include "backend/mixed/mixed.h"

#include "backend/cpu/cpu_open.h"
#include "backend/cuda/cuda_open.h"
#include "base/hash.h"
#include "base/system/memory_left.h"

#include <stdlib.h>
#include <string.h>

/* ---- closing, memory ---- */

static void mixed_free(struct backend *be)
{
    struct mixed_backend *m = mixed_of(be);
    for (int i = 0; i < N_SIDES; i++)
        if (m->sides[i])
            m->sides[i]->ops->free(m->sides[i]);
    free(m->kinds);
    free(m->layer_kinds);
    free(m->handles);
    free(m);
}

static uint64_t mixed_memory_left(const struct backend *be)
{
    const struct backend *card = mixed_const(be)->sides[SIDE_CARD];
    return card->ops->memory_left(card);
}

static void mixed_describe(const struct backend *be, struct tutti_device *out)
{
    const struct backend *card = mixed_const(be)->sides[SIDE_CARD];
    card->ops->describe(card, out);
}

/* What pages may take in all, so that each side has room for its part of them. Parts are compared by pages of float16: the
 * types of one model's pages differ by nearly the same factor in all layers. */
static uint64_t mixed_pages_left(const struct backend *be)
{
    const struct mixed_backend *m = mixed_const(be);
    const struct backend *card = m->sides[SIDE_CARD];
    uint64_t left[N_SIDES] = { card->ops->memory_left(card), memory_left("") }, least = UINT64_MAX;
    double whole = (double)mixed_kv_page_bytes(be, DTYPE_F16);
    for (int i = 0; i < N_SIDES; i++) {
        size_t own = mixed_side_page_bytes(m, (enum side)i, DTYPE_F16);
        double room = own > 0 ? (double)left[i] * (whole / (double)own) : 0;
        if (own > 0 && room < (double)least)
            least = (uint64_t)room;
    }
    return least;
}

static enum tutti_status mixed_reserve(struct backend *be, int max_rows, struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < N_SIDES && st == TUTTI_OK; i++)
        st = m->sides[i]->ops->reserve(m->sides[i], max_rows, err);
    return st;
}

static enum tutti_status mixed_reserve_tables(struct backend *be, int n_slots, int max_pages,
                                              struct tutti_error *err)
{
    struct backend *card = mixed_of(be)->sides[SIDE_CARD];
    return card->ops->reserve_tables(card, n_slots, max_pages, err);
}

static uint64_t mixed_arithmetic_checksum(struct backend *be)
{
    struct mixed_backend *m = mixed_of(be);
    uint64_t sums[] = { m->sides[SIDE_CARD]->ops->arithmetic_checksum(m->sides[SIDE_CARD]),
                        m->sides[SIDE_CPU]->ops->arithmetic_checksum(m->sides[SIDE_CPU]),
                        (uint64_t)m->placement.first_on_card, (uint64_t)m->placement.n_cpu_experts };
    return hash64(0, sums, sizeof sums);
}

static uint64_t mixed_expert_bytes(const struct backend *be)
{
    const struct mixed_backend *m = mixed_const(be);
    return m->sides[SIDE_CARD]->ops->expert_bytes(m->sides[SIDE_CARD]) +
           m->sides[SIDE_CPU]->ops->expert_bytes(m->sides[SIDE_CPU]);
}

/* ---- steps ---- */

static void mixed_step_begin(struct backend *be, const struct step *step)
{
    struct mixed_backend *m = mixed_of(be);
    m->step = step;
    m->side = SIDE_CPU; /* so that a step's sides never depend on the step before */
    for (int i = 0; i < N_SIDES; i++)
        m->sides[i]->ops->step_begin(m->sides[i], step);
}

static void mixed_step_submit(struct backend *be)
{
    struct mixed_backend *m = mixed_of(be);
    for (int i = 0; i < N_SIDES; i++)
        m->sides[i]->ops->step_submit(m->sides[i]);
}

static void mixed_step_wait(struct backend *be)
{
    struct mixed_backend *m = mixed_of(be);
    for (int i = 0; i < N_SIDES; i++)
        m->sides[i]->ops->step_wait(m->sides[i]);
    m->step = NULL;
}

static enum tutti_status mixed_check(const struct backend *be, struct tutti_error *err)
{
    const struct backend *card = mixed_const(be)->sides[SIDE_CARD];
    return card->ops->check(card, err);
}

/* ---- the CPU's threads ---- */

static void mixed_bind_caller(struct backend *be)
{
    struct backend *cpu = mixed_of(be)->sides[SIDE_CPU];
    cpu->ops->bind_caller(cpu);
}

static void mixed_run(struct backend *be, team_fn *fn, void *arg)
{
    struct backend *cpu = mixed_of(be)->sides[SIDE_CPU];
    cpu->ops->run(cpu, fn, arg);
}

static bool mixed_share_threads(struct backend *be, struct backend *other)
{
    struct backend *cpu = mixed_of(be)->sides[SIDE_CPU];
    bool is_mixed = other && other->ops == &MIXED_OPS;
    return cpu->ops->share_threads(cpu, is_mixed ? mixed_of(other)->sides[SIDE_CPU] : other);
}

/* Those of ranks are missing: backend_mixed_new() refuses ranks. */
const struct backend_ops MIXED_OPS = {
    .name = "cuda+cpu",
    .free = mixed_free,
    .memory_left = mixed_memory_left,
    .pages_left = mixed_pages_left,
    .describe = mixed_describe,
    .reserve = mixed_reserve,
    .reserve_tables = mixed_reserve_tables,
    .arithmetic_checksum = mixed_arithmetic_checksum,
    .expert_bytes = mixed_expert_bytes,
    .step_begin = mixed_step_begin,
    .step_submit = mixed_step_submit,
    .step_wait = mixed_step_wait,
    .check = mixed_check,
    .bind_caller = mixed_bind_caller,
    .run = mixed_run,
    .share_threads = mixed_share_threads,

    /* ---- mixed_weights.c ---- */
    .alloc = mixed_alloc,
    .dealloc = mixed_dealloc,
    .alloc_shared = mixed_alloc,
    .dealloc_shared = mixed_dealloc,
    .alloc_constant = mixed_alloc_constant,
    .begin_weights = mixed_begin_weights,
    .matrix_new = mixed_matrix_new,
    .matrix_free = mixed_matrix_free,
    .matrix_bytes = mixed_matrix_bytes,
    .matrix_type = mixed_matrix_type,
    .matrix_read = mixed_matrix_read,
    .matrix_lengths = mixed_matrix_lengths,
    .checksum = mixed_checksum,
    .matrix_checksum = mixed_matrix_checksum,
    .lora_new = mixed_lora_new,
    .lora_free = mixed_lora_free,
    .lora_bytes = mixed_lora_bytes,
    .lora_checksum = mixed_lora_checksum,
    .embedding_new = mixed_embedding_new,
    .embedding_free = mixed_embedding_free,
    .embedding_bytes = mixed_embedding_bytes,
    .embedding_checksum = mixed_embedding_checksum,

    /* ---- mixed_kv.c ---- */
    .kv_new = mixed_kv_new,
    .kv_free = mixed_kv_free,
    .kv_page_bytes = mixed_kv_page_bytes,
    .kv_window_bytes = mixed_kv_window_bytes,
    .kv_copy_page = mixed_kv_copy_page,
    .kv_reserve_host = mixed_kv_reserve_host,
    .kv_read_begin = mixed_kv_read_begin,
    .kv_write_begin = mixed_kv_write_begin,
    .kv_is_copied = mixed_kv_is_copied,
    .kv_write_end = mixed_kv_write_end,
    .kv_store_rows = mixed_kv_store_rows,
    .previous_rows = mixed_previous_rows,
    .rope_store = mixed_rope_store,
    .prefix_store = mixed_prefix_store,
    .latent_store = mixed_latent_store,
    .attention = mixed_attention,

    /* ---- mixed_ops.c ---- */
    .upload = mixed_upload,
    .download = mixed_download,
    .fetch = mixed_fetch,
    .embed = mixed_embed,
    .embed_adapted = mixed_embed_adapted,
    .rmsnorm = mixed_rmsnorm,
    .layernorm = mixed_layernorm,
    .norm_adapted = mixed_norm_adapted,
    .scale_add = mixed_scale_add,
    .scale = mixed_scale,
    .softcap = mixed_softcap,
    .activate = mixed_activate,
    .positions = mixed_positions,
    .concat = mixed_concat,
    .gather = mixed_gather,
    .linear = mixed_linear,
    .linear_glu = mixed_linear_glu,
    .linear_adapted = mixed_linear_adapted,
    .linear_glu_adapted = mixed_linear_glu_adapted,
    .linear_heads = mixed_linear_heads,
    .experts = mixed_experts,
    .reserve_sampling = mixed_reserve_sampling,
    .sample = mixed_sample,
};

/* ---- opening ---- */

/* The numbers of the caller's shapes: their arrays belong to the sides. */
static bool copy_kinds(struct mixed_backend *m, const struct backend_options *options)
{
    m->kinds = calloc((size_t)options->n_kinds, sizeof *m->kinds);
    m->layer_kinds = calloc((size_t)options->n_layers, sizeof *m->layer_kinds);
    if (!m->kinds || !m->layer_kinds)
        return false;
    memcpy(m->kinds, options->attention, (size_t)options->n_kinds * sizeof *m->kinds);
    if (options->kinds)
        memcpy(m->layer_kinds, options->kinds, (size_t)options->n_layers * sizeof *m->layer_kinds);
    return true;
}

/* The options of a side, whose layers follow each other. One without layers gets the first one, of which it makes no
 * pages. */
static struct backend_options options_of(const struct mixed_backend *m, enum side side,
                                         const struct backend_options *options)
{
    struct backend_options own = *options;
    int first = side == SIDE_CARD && m->n_layers_of[side] > 0 ? m->placement.first_on_card : 0;
    own.n_layers = m->n_layers_of[side] > 0 ? m->n_layers_of[side] : 1;
    own.kinds = m->layer_kinds + first;
    own.page_floats = side == mixed_output_side(m) ? options->page_floats : 0;
    return own;
}

static enum tutti_status check_sides(struct mixed_backend *m, struct tutti_error *err)
{
    const struct backend_caps *card = m->sides[SIDE_CARD]->caps, *cpu = m->sides[SIDE_CPU]->caps;
    if (card->page_tokens != cpu->page_tokens)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device",
                               "device cuda: its pages have %d positions and those of the CPU %d, expected "
                               "the same: all layers must be on one device",
                               card->page_tokens, cpu->page_tokens);
    m->caps = *card;
    m->caps.kv_types &= cpu->kv_types;
    m->caps.weight_types &= cpu->weight_types;
    return TUTTI_OK;
}

enum tutti_status backend_mixed_new(struct backend **out, int ordinal, const struct backend_options *options,
                                    struct tutti_error *err)
{
    if (options->cluster)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "device",
            "device cuda: with several ranks, each needs memory of its card for all of its "
            "part");
    enum tutti_status st = backend_check_attention(options, err);
    if (st != TUTTI_OK)
        return st;
    struct mixed_backend *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    m->backend = (struct backend){ .ops = &MIXED_OPS, .caps = &m->caps };
    m->placement = *options->placement;
    m->weights_side = SIDE_CPU;
    m->side = SIDE_CPU;
    assert(m->placement.n_layers == options->n_layers && m->placement.first_on_card >= 0 &&
           m->placement.first_on_card <= m->placement.n_layers);
    m->n_layers_of[SIDE_CPU] = m->placement.first_on_card;
    m->n_layers_of[SIDE_CARD] = m->placement.n_layers - m->placement.first_on_card;
    if (!copy_kinds(m, options))
        st = error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    if (st == TUTTI_OK) {
        struct backend_options own = options_of(m, SIDE_CARD, options);
        st = backend_cuda_new(&m->sides[SIDE_CARD], ordinal, &own, err);
    }
    if (st == TUTTI_OK) {
        struct backend_options own = options_of(m, SIDE_CPU, options);
        st = backend_cpu_new(&m->sides[SIDE_CPU], &own, err);
    }
    if (st == TUTTI_OK)
        st = check_sides(m, err);
    if (st == TUTTI_OK)
        *out = &m->backend;
    else
        mixed_free(&m->backend);
    return st;
}
