/* The CPU backend: its table of operations, and operations without a file of their own. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/memory.h"
#include "cluster/cluster.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void free_scratch(struct cpu_backend *cpu)
{
    for (int t = 0; cpu->scratch && t < team_n_threads(cpu->team); t++)
        free(cpu->scratch[t].out);
    free(cpu->scratch);
    memory_free(cpu->activations, cpu->activation_bytes);
    cpu_attention_release(cpu);
    cpu_lora_release(cpu);
    cpu_experts_release(&cpu->experts);
    cpu->scratch = NULL;
    cpu->activations = NULL;
    cpu->max_rows = 0;
}

static void cpu_free(struct backend *be)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (!cpu)
        return;
    free_scratch(cpu);
    cpu_sampling_release(cpu);
    for (int i = 0; cpu->kinds && i < cpu->n_kinds; i++) {
        free(cpu->kinds[i].rope_freqs);
        free(cpu->kinds[i].alibi_slopes);
        free(cpu->kinds[i].cut_pending);
    }
    free(cpu->kinds);
    free(cpu->layer_kinds);
    memory_free(cpu->cut_sums, cpu->cut_sums_bytes);
    free(cpu->shares);
    team_free(cpu->own_team);
    free(cpu);
}

/* Allocates everything that steps need: operations allocate nothing. */
static enum tutti_status cpu_reserve(struct backend *be, int max_rows, struct tutti_error *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    int n_threads = team_n_threads(cpu->team);
    if (max_rows < 1)
        return error_set(err, TUTTI_E_ARGUMENT, "steps of %d rows, expected at least 1", max_rows);
    free_scratch(cpu);
    size_t n = (size_t)max_rows;
    size_t out = LINEAR_PIECE * (size_t)panel_floats(TILE_ROWS),
           updates = cpu->has_loras ? TILE_ROWS * 2 * LINEAR_COLUMNS : 0;
    size_t ordered = cpu->has_orders ? TILE_ROWS * ORDERED_COLUMNS : 0;
    size_t heads = cpu_heads_scratch_bytes(cpu);
    bool fits = !__builtin_mul_overflow(n + n / LEAST_TILE_ROWS + 1, cpu->row_bytes, &cpu->activation_bytes);
    cpu->activations = fits ? cpu_memory_shared(cpu, cpu->activation_bytes) : NULL;
    cpu->scratch = calloc((size_t)n_threads, sizeof *cpu->scratch);
    bool has_all = cpu->activations && cpu->scratch && cpu_attention_reserve(cpu, max_rows) &&
                   cpu_lora_reserve(cpu, max_rows) && cpu_experts_reserve(cpu, max_rows);
    for (int t = 0; has_all && t < n_threads; t++) {
        struct cpu_scratch *scratch = &cpu->scratch[t];
        scratch->out = cpu_memory_of_thread(
            cpu, t, out + updates + ordered + (heads + cpu->row_bytes) / sizeof(float));
        has_all = scratch->out != NULL;
        if (has_all && heads > 0)
            scratch->heads = (uint8_t *)(scratch->out + out + updates + ordered);
        if (has_all)
            scratch->row = (uint8_t *)(scratch->out + out + updates + ordered) + heads;
        if (has_all && ordered > 0)
            scratch->ordered = scratch->out + out + updates;
        if (has_all && updates > 0)
            scratch->updates = scratch->out + out;
    }
    if (!has_all) {
        free_scratch(cpu);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for steps of %d rows", max_rows);
    }
    cpu->max_rows = max_rows;
    return TUTTI_OK;
}

static void cpu_step_begin(struct backend *be, const struct step *step)
{
    struct cpu_backend *cpu = cpu_of(be);
    cpu->step = step;
    cpu_attention_begin(cpu);
}

/* Each operation is computed when it is called: another thread for that would take a core from them. */
static void cpu_step_submit(struct backend *be)
{
    (void)be;
}

static void cpu_step_wait(struct backend *be)
{
    cpu_of(be)->step = NULL;
}

static bool cpu_reduce(struct backend *be, struct floats x, size_t n)
{
    return cluster_reduce(cpu_of(be)->cluster, cpu_of(be)->team, cpu_floats(x, n), n);
}

static bool cpu_reduce_rows(struct backend *be, struct floats x, int n_rows, int n)
{
    return cluster_reduce_rows(cpu_of(be)->cluster, cpu_of(be)->team, cpu_rows(x, n_rows, n), n_rows, n);
}

static bool cpu_all_gather_rows(struct backend *be, struct floats x, int n_rows, int n)
{
    return cluster_all_gather_rows(cpu_of(be)->cluster, cpu_of(be)->team, cpu_rows(x, n_rows, n), n_rows, n);
}

static bool cpu_collect(struct backend *be, struct floats whole, struct floats part, int n_rows,
                        const int *begins)
{
    return cluster_gather_rows(cpu_of(be)->cluster, cpu_floats(whole, 0), cpu_floats(part, 0), n_rows,
                               begins);
}

static void cpu_bind_caller(struct backend *be)
{
    team_bind_caller(cpu_of(be)->team);
}

static void cpu_run(struct backend *be, team_fn *fn, void *arg)
{
    team_run(cpu_of(be)->team, fn, arg);
}

/* The scratch memory of each thread is allocated for the number of threads of the own team. */
static bool cpu_share_threads(struct backend *be, struct backend *other)
{
    struct cpu_backend *cpu = cpu_of(be);
    cpu->team = cpu->own_team;
    if (!other)
        return true;
    if (other->ops != be->ops || team_n_threads(cpu_of(other)->team) != team_n_threads(cpu->team) ||
        cpu_of(other)->n_nodes != cpu->n_nodes)
        return false;
    cpu->team = cpu_of(other)->team;
    return true;
}

#define TYPE(dtype) (UINT64_C(1) << (dtype))
const struct backend_caps CPU_CAPS = {
    .page_tokens = CPU_PAGE_TOKENS,
    .kv_types = TYPE(DTYPE_F16) | TYPE(DTYPE_BF16) | TYPE(DTYPE_F32) | TYPE(DTYPE_I8),
    .weight_types = TYPE(DTYPE_F64) - 1, /* all types before it are types of weights */
    .packed_bytes = cpu_packed_bytes,
    .can_capture = false, /* a call costs nothing here */
};

static const struct backend_ops CPU_OPS = {
    .name = "cpu",
    .free = cpu_free,
    .alloc = cpu_alloc,
    .dealloc = cpu_dealloc,
    .alloc_constant = cpu_alloc_constant,
    .alloc_shared = cpu_alloc_shared,
    .dealloc_shared = cpu_dealloc_shared,
    .upload = cpu_upload,
    .matrix_new = cpu_matrix_new,
    .matrix_free = cpu_matrix_free,
    .matrix_bytes = cpu_matrix_bytes,
    .checksum = cpu_checksum,
    .matrix_checksum = cpu_matrix_checksum,
    .lora_checksum = cpu_lora_checksum,
    .arithmetic_checksum = cpu_arithmetic_checksum,
    .lora_new = cpu_lora_new,
    .lora_free = cpu_lora_free,
    .lora_bytes = cpu_lora_bytes,
    .embedding_new = cpu_embedding_new,
    .embedding_free = cpu_embedding_free,
    .embedding_bytes = cpu_embedding_bytes,
    .embedding_checksum = cpu_embedding_checksum,
    .matrix_type = cpu_matrix_type,
    .matrix_read = cpu_matrix_read,
    .matrix_lengths = cpu_matrix_lengths,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_store_rows = cpu_kv_store_rows,
    .kv_window_bytes = cpu_kv_window_bytes,
    .kv_copy_page = cpu_kv_copy_page,
    .kv_reserve_host = cpu_kv_reserve_host,
    .kv_read_begin = cpu_kv_read_begin,
    .kv_write_begin = cpu_kv_write_begin,
    .kv_is_copied = cpu_kv_is_copied,
    .kv_write_end = cpu_kv_write_end,
    .reserve = cpu_reserve,
    .step_begin = cpu_step_begin,
    .embed = cpu_embed,
    .embed_adapted = cpu_embed_adapted,
    .norm_adapted = cpu_norm_adapted,
    .prefix_store = cpu_prefix_store,
    .rmsnorm = cpu_rmsnorm,
    .layernorm = cpu_layernorm,
    .scale_add = cpu_scale_add,
    .scale = cpu_scale,
    .softcap = cpu_softcap,
    .activate = cpu_activate,
    .positions = cpu_positions,
    .concat = cpu_concat,
    .linear = cpu_linear,
    .linear_glu = cpu_linear_glu,
    .linear_adapted = cpu_linear_adapted,
    .linear_glu_adapted = cpu_linear_glu_adapted,
    .experts = cpu_experts,
    .expert_bytes = cpu_expert_bytes,
    .linear_heads = cpu_linear_heads,
    .latent_store = cpu_latent_store,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .previous_rows = cpu_previous_rows,
    .gather = cpu_gather,
    .download = cpu_download,
    .fetch = cpu_download,
    .reduce = cpu_reduce,
    .reduce_rows = cpu_reduce_rows,
    .all_gather_rows = cpu_all_gather_rows,
    .collect = cpu_collect,
    .step_submit = cpu_step_submit,
    .step_wait = cpu_step_wait,
    .reserve_sampling = cpu_reserve_sampling,
    .sample = cpu_sample,
    .bind_caller = cpu_bind_caller,
    .run = cpu_run,
    .share_threads = cpu_share_threads,
};

/* False: no memory. */
static bool copy_shape(struct cpu_kind *kind, const struct attention_shape *a, int n_threads)
{
    size_t n_freqs = a->rope == ROPE_NONE ? 0 : (size_t)a->rotary_dim / (a->rope == ROPE_2D ? 4 : 2);
    size_t n_slopes = a->alibi_slopes ? (size_t)a->n_heads : 0;
    kind->shape = *a;
    kind->rope_freqs = calloc(n_freqs + 1, sizeof *kind->rope_freqs);
    kind->alibi_slopes = n_slopes > 0 ? calloc(n_slopes, sizeof *kind->alibi_slopes) : NULL;
    kind->cut_pending = calloc(CUT_UNITS * (size_t)n_threads, sizeof *kind->cut_pending);
    if (!kind->rope_freqs || !kind->cut_pending || (n_slopes > 0 && !kind->alibi_slopes))
        return false;
    if (n_freqs > 0)
        memcpy(kind->rope_freqs, a->rope_freqs, n_freqs * sizeof *kind->rope_freqs);
    if (n_slopes > 0)
        memcpy(kind->alibi_slopes, a->alibi_slopes, n_slopes * sizeof *kind->alibi_slopes);
    kind->shape.rope_freqs = kind->rope_freqs;
    kind->shape.alibi_slopes = kind->alibi_slopes;
    return true;
}

static enum tutti_status copy_kinds(struct cpu_backend *cpu, const struct backend_options *options,
                                    struct tutti_error *err)
{
    bool ok = true;
    cpu->n_layers = options->n_layers;
    cpu->n_kinds = options->n_kinds;
    cpu->page_floats = options->page_floats;
    cpu->kinds = calloc((size_t)options->n_kinds, sizeof *cpu->kinds);
    cpu->layer_kinds = calloc((size_t)options->n_layers, sizeof *cpu->layer_kinds);
    if (!cpu->kinds || !cpu->layer_kinds)
        return error_set(err, TUTTI_E_MEMORY, "CPU backend: out of memory");
    if (options->kinds)
        memcpy(cpu->layer_kinds, options->kinds, (size_t)options->n_layers * sizeof *cpu->layer_kinds);
    for (int i = 0; i < options->n_kinds && ok; i++)
        ok = copy_shape(&cpu->kinds[i], &options->attention[i], team_n_threads(cpu->own_team));
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "CPU backend: out of memory");
}

const char *const NUMA_MODES[] = { "auto", "off", NULL };

static enum tutti_status find_numa(bool *by_node, const char *mode, struct tutti_error *err)
{
    *by_node = !mode || strcmp(mode, NUMA_MODES[0]) == 0;
    if (*by_node || strcmp(mode, NUMA_MODES[1]) == 0)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, "numa", "numa \"%s\": expected \"auto\" or \"off\"", mode);
}

enum tutti_status backend_cpu_new(struct backend **out, const struct backend_options *options,
                                  struct tutti_error *err)
{
    unsigned level;
    enum tutti_status st = cpu_find(&level, options->cpu, err);
    bool by_node = false;
    if (st == TUTTI_OK)
        st = backend_check_attention(options, err);
    if (st == TUTTI_OK)
        st = find_numa(&by_node, options->numa, err);
    if (st != TUTTI_OK)
        return st;
    size_t size = (sizeof(struct cpu_backend) + 63) / 64 * 64;
    struct cpu_backend *cpu = aligned_alloc(64, size);
    if (!cpu)
        return error_set(err, TUTTI_E_MEMORY, "CPU backend: out of memory");
    memset(cpu, 0, size);
    cpu->backend.ops = &CPU_OPS;
    cpu->backend.caps = &CPU_CAPS;
    cpu->cluster = options->cluster;
    kernels_init(&cpu->kernels, level);
    st = team_new(&cpu->own_team,
                  &(struct team_options){
                      .n_threads = options->n_threads, .pin = options->pin_threads, .by_node = by_node },
                  err);
    if (st == TUTTI_OK)
        st = copy_kinds(cpu, options, err);
    if (st != TUTTI_OK)
        goto done;
    cpu->team = cpu->own_team;
    cpu->n_nodes = team_nodes(cpu->team)->n;
    size_t shares_bytes = ((size_t)team_n_threads(cpu->team) * sizeof *cpu->shares + 63) / 64 * 64;
    cpu->shares = aligned_alloc(64, shares_bytes);
    if (!cpu->shares) {
        st = error_set(err, TUTTI_E_MEMORY, "CPU backend: out of memory");
        goto done;
    }
    memset(cpu->shares, 0, shares_bytes);
    *out = &cpu->backend;
    cpu = NULL;
done:
    if (cpu)
        cpu_free(&cpu->backend);
    return st;
}
