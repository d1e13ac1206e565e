/* KV memory of the CPU backend: allocates pages, copies them, and stores a row's keys and values. */
#include "backend/cpu.h"
#include "backend/kv_type.h"
#include "backend/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t head_bytes(const struct attention_shape *shape, enum dtype dtype)
{
    return KV_PAGE_TOKENS * kv_type_bytes(dtype, shape->head_dim);
}

size_t cpu_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    const struct attention_shape *shape = &((const struct cpu_backend *)be)->shape;
    return (size_t)shape->n_layers * (size_t)shape->n_kv_heads * 2 * head_bytes(shape, dtype);
}

enum tutti_status cpu_kv_new(struct backend *be, struct kv_memory **out, int n_pages, enum dtype dtype,
                             struct tutti_error *err)
{
    const struct attention_shape *shape = &cpu_of(be)->shape;
    if (kv_type_bytes(dtype, shape->head_dim) == 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "KV cache: type %s, expected f16, f32 or int8",
                         dtype_name(dtype));
    size_t n_bytes;
    if (n_pages < 1 || __builtin_mul_overflow((size_t)n_pages, cpu_kv_page_bytes(be, dtype), &n_bytes))
        return error_set(err, TUTTI_E_LIMIT, "KV cache: %d pages of %zu bytes exceed the address space",
                         n_pages, cpu_kv_page_bytes(be, dtype));
    struct kv_memory *kv = calloc(1, sizeof *kv);
    if (!kv)
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory");
    kv->dtype = dtype;
    kv->n_pages = n_pages;
    kv->head_bytes = head_bytes(shape, dtype);
    kv->page_bytes = (size_t)shape->n_kv_heads * 2 * kv->head_bytes;
    kv->layer_bytes = (size_t)n_pages * kv->page_bytes;
    kv->n_bytes = n_bytes;
    kv->base = memory_new(n_bytes);
    if (!kv->base || !cpu_attention_reserve_cuts(cpu_of(be), n_pages)) {
        memory_free(kv->base, n_bytes);
        free(kv);
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory for %zu bytes", n_bytes);
    }
    kv->backing = memory_back(kv->base, n_bytes);
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
    free(kv);
}

void cpu_kv_copy_page(struct backend *be, struct kv_memory *kv, int32_t dst, int32_t src)
{
    for (int layer = 0; layer < cpu_of(be)->shape.n_layers; layer++) {
        uint8_t *base = kv->base + (size_t)layer * kv->layer_bytes;
        memcpy(base + (size_t)dst * kv->page_bytes, base + (size_t)src * kv->page_bytes, kv->page_bytes);
    }
}

void cpu_kv_read_page(struct backend *be, const struct kv_memory *kv, int32_t page_id, void *host)
{
    const uint8_t *page = kv->base + (size_t)page_id * kv->page_bytes;
    for (int layer = 0; layer < cpu_of(be)->shape.n_layers; layer++, page += kv->layer_bytes)
        memcpy((uint8_t *)host + (size_t)layer * kv->page_bytes, page, kv->page_bytes);
}

void cpu_kv_write_page(struct backend *be, struct kv_memory *kv, int32_t page_id, const void *host)
{
    uint8_t *page = kv->base + (size_t)page_id * kv->page_bytes;
    for (int layer = 0; layer < cpu_of(be)->shape.n_layers; layer++, page += kv->layer_bytes)
        memcpy(page, (const uint8_t *)host + (size_t)layer * kv->page_bytes, kv->page_bytes);
}

/* ---- a row ------------------------------------------------------------------------------------------------------ */

/* Keys are stored in column `at` of [head_dim][16], values in row `at` of [16][head_dim]. */
static void place_16bit(uint8_t *keys, uint8_t *values, int at, const uint16_t *k, const uint16_t *v,
                        int head_dim)
{
    uint16_t *column = (uint16_t *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * KV_PAGE_TOKENS] = k[d];
    memcpy((uint16_t *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

static void place_32bit(uint8_t *keys, uint8_t *values, int at, const float *k, const float *v, int head_dim)
{
    float *column = (float *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * KV_PAGE_TOKENS] = k[d];
    memcpy((float *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

/* Keys: pairs of dimensions, [head_dim / 2][16][2]. Values: pairs of positions, [8][head_dim][2].
 * Scales follow. */
static void place_int8(const struct kernels *kernels, uint8_t *keys, uint8_t *values, int at, const float *k,
                       const float *v, int8_t *scratch, int head_dim)
{
    float *key_scales = (float *)(keys + KV_PAGE_TOKENS * head_dim);
    float *value_scales = (float *)(values + KV_PAGE_TOKENS * head_dim);
    key_scales[at] = kernels->to_int8(scratch, k, head_dim);
    for (int d = 0; d < head_dim; d += 2)
        memcpy(keys + (d / 2 * KV_PAGE_TOKENS + at) * 2, scratch + d, 2);
    value_scales[at] = kernels->to_int8(scratch, v, head_dim);
    uint8_t *column = values + at / 2 * head_dim * 2 + at % 2;
    for (int d = 0; d < head_dim; d++)
        column[2 * d] = (uint8_t)scratch[d];
}

/* k, v: [n_kv_heads][head_dim]. scratch: room for both in half precision. */
void cpu_kv_store(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row, const float *k,
                  const float *v, uint8_t *scratch)
{
    const struct step *step = cpu->step;
    int pos = step->positions[row], at = pos % KV_PAGE_TOKENS, n = cpu->shape.head_dim;
    int n_kv = cpu->shape.n_kv_heads * n;
    size_t page_id = (size_t)step->page_tables[step->seqs[row]][pos / KV_PAGE_TOKENS];
    uint8_t *keys = kv->base + (size_t)layer * kv->layer_bytes + page_id * kv->page_bytes;
    uint16_t *halves = (uint16_t *)scratch;
    if (kv->dtype == DTYPE_F16) {
        cpu->kernels.to_half(halves, k, n_kv);
        cpu->kernels.to_half(halves + n_kv, v, n_kv);
    }
    for (int h = 0; h < n_kv; h += n, keys += 2 * kv->head_bytes) {
        uint8_t *values = keys + kv->head_bytes;
        if (kv->dtype == DTYPE_F16)
            place_16bit(keys, values, at, halves + h, halves + n_kv + h, n);
        else if (kv->dtype == DTYPE_F32)
            place_32bit(keys, values, at, k + h, v + h, n);
        else
            place_int8(&cpu->kernels, keys, values, at, k + h, v + h, (int8_t *)scratch, n);
    }
}
