/* KV memory of the CPU backend: allocates pages, copies them, and stores a row's keys and values. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/kv_type.h"
#include "base/half.h"

#include <stdlib.h>
#include <string.h>

static size_t one_head_bytes(const struct attention_shape *shape, enum dtype dtype)
{
    return CPU_PAGE_TOKENS * kv_type_bytes(dtype, shape->head_dim);
}

static size_t layer_page_bytes(const struct attention_shape *shape, enum dtype dtype)
{
    return CPU_PAGE_TOKENS * kv_type_position_bytes(dtype, shape);
}

static bool has_window(const struct cpu_backend *cpu, int layer)
{
    return cpu_kind_of(cpu, layer)->shape.window > 0;
}

size_t cpu_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    const struct cpu_backend *cpu = (const struct cpu_backend *)be;
    size_t n_bytes = 0;
    for (int layer = 0; layer < cpu->n_layers; layer++)
        n_bytes += layer_page_bytes(&cpu_kind_of(cpu, layer)->shape, dtype);
    return n_bytes + (size_t)cpu->page_floats * sizeof(float);
}

size_t cpu_kv_window_bytes(const struct backend *be, enum dtype dtype)
{
    const struct cpu_backend *cpu = (const struct cpu_backend *)be;
    size_t n_bytes = 0;
    for (int layer = 0; layer < cpu->n_layers; layer++)
        n_bytes += has_window(cpu, layer) ? layer_page_bytes(&cpu_kind_of(cpu, layer)->shape, dtype) : 0;
    return n_bytes;
}

/* Makes the parts of a layer, which begins at base, and places them. If there are fewer heads than nodes, pages
 * lie on all nodes in turn. Returns the layer's end. */
static uint8_t *divide_layer(const struct cpu_backend *cpu, struct kv_layer *layer, uint8_t *base,
                             int n_pages, int n_heads)
{
    layer->n_parts = n_heads < cpu->n_nodes ? 1 : cpu->n_nodes;
    if (layer->n_parts < cpu->n_nodes)
        cpu_spread(cpu, base, (size_t)n_pages * layer->page_bytes);
    for (int i = 0; i < layer->n_parts; i++) {
        bool is_whole = layer->n_parts == 1;
        int first = is_whole ? 0 : (int)team_node_begin(cpu->own_team, n_heads, i);
        int end = is_whole ? n_heads : (int)team_node_begin(cpu->own_team, n_heads, i + 1);
        struct kv_part *part = &layer->parts[i];
        *part = (struct kv_part){ .base = base,
                                  .first_head = first,
                                  .n_heads = end - first,
                                  .page_bytes = layer->page_bytes / (size_t)n_heads * (size_t)(end - first) };
        size_t n_bytes = (size_t)n_pages * part->page_bytes;
        if (!is_whole)
            cpu_place(cpu, i, base, n_bytes);
        base += n_bytes;
    }
    return base;
}

enum tutti_status cpu_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                             enum dtype dtype, struct tutti_error *err)
{
    const struct cpu_backend *cpu = cpu_of(be);
    if (!(CPU_CAPS.kv_types >> dtype & 1))
        return error_set(err, TUTTI_E_UNSUPPORTED, "KV cache: type %s, expected f16, bf16, f32 or int8",
                         dtype_name(dtype));
    size_t window_bytes = cpu_kv_window_bytes(be, dtype), n_bytes, n_window_bytes;
    if (n_pages < 1 || n_window_pages < 1 ||
        __builtin_mul_overflow((size_t)n_pages, cpu_kv_page_bytes(be, dtype) - window_bytes, &n_bytes) ||
        __builtin_mul_overflow((size_t)n_window_pages, window_bytes, &n_window_bytes) ||
        __builtin_add_overflow(n_bytes, n_window_bytes, &n_bytes))
        return error_set(err, TUTTI_E_LIMIT, "KV cache: %d pages of %zu bytes exceed the address space",
                         n_pages, cpu_kv_page_bytes(be, dtype));
    int n_layers = cpu->n_layers + (cpu->page_floats > 0);
    struct kv_memory *kv = calloc(1, sizeof *kv + (size_t)n_layers * sizeof *kv->layers);
    if (!kv)
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory");
    kv->dtype = dtype;
    kv->n_layers = n_layers;
    kv->n_bytes = n_bytes;
    kv->base = memory_new(n_bytes);
    if (!kv->base || !cpu_attention_reserve_cuts(cpu_of(be), n_pages)) {
        memory_free(kv->base, n_bytes);
        free(kv);
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory for %zu bytes", n_bytes);
    }
    uint8_t *base = kv->base;
    for (int i = 0; i < cpu->n_layers; i++) {
        const struct attention_shape *shape = &cpu_kind_of(cpu, i)->shape;
        kv->layers[i] = (struct kv_layer){ .head_bytes = one_head_bytes(shape, dtype),
                                           .values_offset = shape->n_latent > 0
                                                                ? 0
                                                                : one_head_bytes(shape, dtype),
                                           .page_bytes = layer_page_bytes(shape, dtype),
                                           .has_window = has_window(cpu, i) };
        base = divide_layer(cpu, &kv->layers[i], base, has_window(cpu, i) ? n_window_pages : n_pages,
                            shape->n_latent > 0 ? 1 : shape->n_kv_heads);
    }
    if (cpu->page_floats > 0) {
        kv->layers[cpu->n_layers].page_bytes = (size_t)cpu->page_floats * sizeof(float);
        divide_layer(cpu, &kv->layers[cpu->n_layers], base, n_pages, 1);
    }
    kv->backing = memory_back(kv->base, n_bytes, team_n_threads(cpu->team));
    *out = kv;
    return TUTTI_OK;
}

void cpu_kv_free(struct backend *be, struct kv_memory *kv)
{
    (void)be;
    if (!kv)
        return;
    memory_back_stop(kv->backing);
    memory_free(kv->base, kv->n_bytes);
    free(kv->host);
    free(kv);
}

/* A part of a page of a layer. */
static uint8_t *page_of(const struct kv_part *part, int32_t page_id)
{
    return part->base + (size_t)page_id * part->page_bytes;
}

void cpu_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy)
{
    (void)be;
    for (const struct kv_layer *layer = kv->layers; layer < kv->layers + kv->n_layers; layer++) {
        int32_t dst = layer->has_window ? copy->window_dst : copy->dst;
        int32_t src = layer->has_window ? copy->window_src : copy->src;
        for (const struct kv_part *part = layer->parts; part < layer->parts + layer->n_parts; part++)
            memcpy(page_of(part, dst), page_of(part, src), part->page_bytes);
    }
}

/* ---- copies to and from other memory: complete at once ---- */

enum tutti_status cpu_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes, int n_copies,
                                      void **out, struct tutti_error *err)
{
    (void)be, (void)n_copies;
    if (posix_memalign(&kv->host, 64, n_bytes) != 0) {
        kv->host = NULL;
        return error_set(err, TUTTI_E_MEMORY, "spilled KV pages: out of memory for %zu bytes", n_bytes);
    }
    *out = kv->host;
    return TUTTI_OK;
}

void cpu_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host)
{
    (void)be, (void)copy;
    uint8_t *to = host;
    for (const struct kv_layer *layer = kv->layers; layer < kv->layers + kv->n_layers; layer++) {
        for (const struct kv_part *part = layer->parts; part < layer->parts + layer->n_parts; part++) {
            memcpy(to, page_of(part, page_id), part->page_bytes);
            to += part->page_bytes;
        }
    }
}

void cpu_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host)
{
    (void)be, (void)kv, (void)copy, (void)host;
}

bool cpu_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits)
{
    (void)be, (void)kv, (void)copy, (void)waits;
    return true;
}

void cpu_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, const void *host)
{
    (void)be, (void)copy;
    const uint8_t *from = host;
    if (page_id < 0)
        return;
    for (const struct kv_layer *layer = kv->layers; layer < kv->layers + kv->n_layers; layer++) {
        for (const struct kv_part *part = layer->parts; part < layer->parts + layer->n_parts; part++) {
            memcpy(page_of(part, page_id), from, part->page_bytes);
            from += part->page_bytes;
        }
    }
}

/* ---- the rows of floats of pages ---- */

void cpu_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                       const int32_t *page_ids, int n)
{
    const struct cpu_backend *cpu = cpu_of(be);
    const struct kv_layer *layer = &kv->layers[cpu->n_layers];
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)rows[i] * (size_t)cpu->page_floats;
        memcpy(page_of(layer->parts, page_ids[i]), cpu_rows(floats_at(x, at), 1, cpu->page_floats),
               layer->page_bytes);
    }
}

void cpu_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                       const struct kv_memory *kv, int n)
{
    const struct cpu_backend *cpu = cpu_of(be);
    const struct step *step = cpu->step;
    size_t row_bytes = (size_t)n * sizeof(float);
    float *to = cpu_rows(y, step->n_rows, n);
    for (int r = 0; r < step->n_rows; r++, to += n) {
        int before = step->positions[r] - 1;
        if (rows[r] >= 0)
            memcpy(to, cpu_rows(floats_at(x, (size_t)rows[r] * (size_t)n), 1, n), row_bytes);
        else if (before >= 0)
            memcpy(to,
                   page_of(kv->layers[cpu->n_layers].parts,
                           step->page_tables[step->seqs[r]][before / CPU_PAGE_TOKENS]),
                   row_bytes);
        else
            memset(to, 0, row_bytes);
    }
}

/* ---- a row ---- */

/* Rounds to float16 or bfloat16. */
static void to_16bit(const struct cpu_backend *cpu, enum dtype dtype, uint16_t *to, const float *x, int n)
{
    if (dtype == DTYPE_F16)
        cpu->kernels.to_half(to, x, n);
    else
        for (int i = 0; i < n; i++)
            to[i] = float_to_bf16(x[i]);
}

/* Keys are stored in column `at` of [head_dim][16], values in row `at` of [16][head_dim]. */
static void place_16bit(uint8_t *keys, uint8_t *values, int at, const uint16_t *k, const uint16_t *v,
                        int head_dim)
{
    uint16_t *column = (uint16_t *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * CPU_PAGE_TOKENS] = k[d];
    memcpy((uint16_t *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

static void place_32bit(uint8_t *keys, uint8_t *values, int at, const float *k, const float *v, int head_dim)
{
    float *column = (float *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * CPU_PAGE_TOKENS] = k[d];
    memcpy((float *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

/* Keys: pairs of dimensions, [head_dim / 2][16][2]. Values: pairs of positions, [8][head_dim][2].
 * Scales follow. */
static void place_int8(const struct kernels *kernels, uint8_t *keys, uint8_t *values, int at, const float *k,
                       const float *v, int8_t *scratch, int head_dim)
{
    float *key_scales = (float *)(keys + CPU_PAGE_TOKENS * head_dim);
    float *value_scales = (float *)(values + CPU_PAGE_TOKENS * head_dim);
    key_scales[at] = kernels->to_int8(scratch, k, head_dim);
    for (int d = 0; d < head_dim; d += 2)
        memcpy(keys + (d / 2 * CPU_PAGE_TOKENS + at) * 2, scratch + d, 2);
    value_scales[at] = kernels->to_int8(scratch, v, head_dim);
    uint8_t *column = values + at / 2 * head_dim * 2 + at % 2;
    for (int d = 0; d < head_dim; d++)
        column[2 * d] = (uint8_t)scratch[d];
}

/* k, v: [n_kv_heads][head_dim]. scratch: room for both in 16 bits. */
void cpu_kv_store(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row, const float *k,
                  const float *v, uint8_t *scratch)
{
    const struct step *step = cpu->step;
    const struct attention_shape *shape = &cpu_kind_of(cpu, layer)->shape;
    int pos = step->positions[row], at = pos % CPU_PAGE_TOKENS, n = shape->head_dim;
    int n_kv = shape->n_kv_heads * n;
    size_t head_bytes = kv->layers[layer].head_bytes;
    const int32_t *table = cpu_page_table(step, shape, step->seqs[row]);
    const struct kv_part *part = kv->layers[layer].parts;
    uint8_t *keys = page_of(part, table[pos / CPU_PAGE_TOKENS]);
    uint16_t *halves = (uint16_t *)scratch;
    bool is_16bit = kv->dtype == DTYPE_F16 || kv->dtype == DTYPE_BF16;
    if (is_16bit) {
        to_16bit(cpu, kv->dtype, halves, k, n_kv);
        to_16bit(cpu, kv->dtype, halves + n_kv, v, n_kv);
    }
    for (int h = 0, left = part->n_heads; h < n_kv; h += n, left--, keys += 2 * head_bytes) {
        while (left == 0) {
            left = (++part)->n_heads;
            keys = page_of(part, table[pos / CPU_PAGE_TOKENS]);
        }
        uint8_t *values = keys + head_bytes;
        if (is_16bit)
            place_16bit(keys, values, at, halves + h, halves + n_kv + h, n);
        else if (kv->dtype == DTYPE_F32)
            place_32bit(keys, values, at, k + h, v + h, n);
        else
            place_int8(&cpu->kernels, keys, values, at, k + h, v + h, (int8_t *)scratch, n);
    }
}

/* latent: [head_dim], the latent and the rotary part. */
void cpu_kv_store_latent(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row,
                         const float *latent)
{
    const struct step *step = cpu->step;
    const struct attention_shape *shape = &cpu_kind_of(cpu, layer)->shape;
    int pos = step->positions[row], at = pos % CPU_PAGE_TOKENS, n = shape->head_dim;
    const int32_t *table = cpu_page_table(step, shape, step->seqs[row]);
    uint8_t *page = page_of(kv->layers[layer].parts, table[pos / CPU_PAGE_TOKENS]);
    if (kv->dtype == DTYPE_F16 || kv->dtype == DTYPE_BF16) {
        to_16bit(cpu, kv->dtype, (uint16_t *)page + at * n, latent, n);
    } else if (kv->dtype == DTYPE_F32) {
        memcpy((float *)page + at * n, latent, (size_t)n * sizeof *latent);
    } else {
        int8_t *to = (int8_t *)page + at * n;
        float *scales = (float *)(page + CPU_PAGE_TOKENS * n) + at;
        scales[0] = cpu->kernels.to_int8(to, latent, shape->n_latent);
        scales[CPU_PAGE_TOKENS] = cpu->kernels.to_int8(to + shape->n_latent, latent + shape->n_latent,
                                                       n - shape->n_latent);
    }
}
