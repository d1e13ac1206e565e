/* Keys and values of the CUDA backend: pages on the card, and the operations that fill and copy them.
 *
 * A step's padding rows are not stored, so no page is spare. A layer's pages follow each other, [page][page_bytes], so that a
 * page of all layers is copied by one launch; an image of it has the layers in order, as the spill file keeps it. */
#include "backend/cuda/attention/cuda_kv.h"
#include "backend/cuda/attention/attention_plan.h"
#include "backend/kv_type.h"

#include <stdlib.h>
#include <string.h>

enum {
    STORE_THREADS = 256, /* of the kernels of kv.c: a warp for each head */
    STORE_HEADS = STORE_THREADS / 32,
    COPY_PARTS = 4,       /* blocks for a layer of a page */
    LAYER_ALIGNMENT = 256 /* bytes */
};

enum cuda_kv_type cuda_kv_type_of(enum dtype dtype)
{
    return dtype == DTYPE_F16    ? CUDA_KV_F16
           : dtype == DTYPE_BF16 ? CUDA_KV_BF16
           : dtype == DTYPE_I8   ? CUDA_KV_I8
                                 : CUDA_KV_F32;
}

/* ---- memory ---- */

static size_t layer_page_bytes(const struct attention_shape *shape, enum dtype dtype)
{
    return CUDA_PAGE_TOKENS * kv_type_position_bytes(dtype, shape);
}

static bool has_window(const struct cuda_backend *cuda, int layer)
{
    return cuda_kind_of(cuda, layer)->shape.window > 0;
}

size_t cuda_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    const struct cuda_backend *cuda = (const struct cuda_backend *)be;
    size_t n_bytes = 0;
    for (int layer = 0; layer < cuda->n_layers; layer++)
        n_bytes += layer_page_bytes(&cuda_kind_of(cuda, layer)->shape, dtype);
    return n_bytes + (size_t)cuda->page_floats * sizeof(float);
}

size_t cuda_kv_window_bytes(const struct backend *be, enum dtype dtype)
{
    const struct cuda_backend *cuda = (const struct cuda_backend *)be;
    size_t n_bytes = 0;
    for (int layer = 0; layer < cuda->n_layers; layer++)
        n_bytes += has_window(cuda, layer) ? layer_page_bytes(&cuda_kind_of(cuda, layer)->shape, dtype) : 0;
    return n_bytes;
}

/* Places the layers from address 0 on. Returns the bytes of all, or 0: they exceed the address space. */
static size_t place_layers(const struct cuda_backend *cuda, struct kv_memory *kv, int n_pages,
                           int n_window_pages)
{
    size_t at = 0, n_bytes;
    kv->image_bytes = 0;
    for (int i = 0; i < kv->n_layers; i++) {
        bool is_layer = i < cuda->n_layers, windowed = is_layer && has_window(cuda, i);
        struct kv_layer_pages *layer = &kv->layers[i];
        layer->page_bytes = is_layer ? layer_page_bytes(&cuda_kind_of(cuda, i)->shape, kv->dtype)
                                     : (size_t)cuda->page_floats * sizeof(float);
        layer->has_window = windowed;
        layer->offset = kv->image_bytes;
        layer->pages = (uint8_t *)(uintptr_t)at;
        kv->image_bytes += layer->page_bytes;
        if (__builtin_mul_overflow((size_t)(windowed ? n_window_pages : n_pages), layer->page_bytes,
                                   &n_bytes) ||
            __builtin_add_overflow(n_bytes, LAYER_ALIGNMENT - 1, &n_bytes) ||
            __builtin_add_overflow(at, n_bytes / LAYER_ALIGNMENT * LAYER_ALIGNMENT, &at))
            return 0;
    }
    return at;
}

static bool alloc_pages(struct cuda_backend *cuda, struct kv_memory *kv, size_t n_bytes)
{
    size_t table_bytes = (size_t)kv->n_layers * sizeof *kv->layers;
    kv->base = cuda_memory_new(cuda, n_bytes);
    void *table = cuda_memory_new(cuda, table_bytes);
    kv->table = table;
    if (!kv->base || !table)
        return false;
    for (int i = 0; i < kv->n_layers; i++)
        kv->layers[i].pages = kv->base + (uintptr_t)kv->layers[i].pages;
    cuda_copy_in(cuda, table, kv->layers, table_bytes);
    return true;
}

void cuda_kv_free(struct backend *be, struct kv_memory *kv)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (!kv)
        return;
    cuda_kv_copies_free(cuda, kv->copies);
    cuda_memory_free(cuda, kv->base);
    cuda_memory_free(cuda, (void *)(uintptr_t)kv->table);
    free(kv);
}

/* False: a kept failure. */
static bool load_kernels(struct cuda_backend *cuda, enum dtype dtype)
{
    bool ok = cuda_need(cuda, CUDA_KERNEL_rope_store, CUDA_NEED_FILE);
    for (int i = 0; i < cuda->n_kinds && ok; i++) {
        struct attention_kernels k = attention_kernels_of(&cuda->kinds[i].shape, cuda_kv_type_of(dtype),
                                                          cuda->shared_bytes, cuda->level);
        ok = cuda_need(cuda, k.split, CUDA_NEED_KERNEL) &&
             (k.wide == N_CUDA_KERNELS || cuda_need(cuda, k.wide, CUDA_NEED_KERNEL));
    }
    return ok;
}

enum tutti_status cuda_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                              enum dtype dtype, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (kv_type_bytes(dtype, 8) == 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "KV cache: type %s, expected f16, bf16, f32 or int8",
                         dtype_name(dtype));
    if (!load_kernels(cuda, dtype))
        return cuda_check(cuda, err);
    int n_layers = cuda->n_layers + (cuda->page_floats > 0);
    struct kv_memory *kv = calloc(1, sizeof *kv + (size_t)n_layers * sizeof *kv->layers);
    if (!kv)
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory");
    kv->dtype = dtype;
    kv->n_layers = n_layers;
    size_t n_bytes = n_pages < 1 || n_window_pages < 1 ? 0 : place_layers(cuda, kv, n_pages, n_window_pages);
    if (n_bytes == 0) {
        free(kv);
        return error_set(err, TUTTI_E_LIMIT, "KV cache: %d pages of %zu bytes exceed the address space",
                         n_pages, cuda_kv_page_bytes(be, dtype));
    }
    if (!alloc_pages(cuda, kv, n_bytes) || !cuda_attention_reserve_cuts(cuda, n_pages)) {
        cuda_kv_free(be, kv);
        return error_set(err, TUTTI_E_MEMORY, "KV cache: the card is out of memory for %zu bytes", n_bytes);
    }
    *out = kv;
    return TUTTI_OK;
}

/* ---- whole pages ---- */

static void copy_page(struct cuda_backend *cuda, const struct kv_memory *kv, const struct copy_page_args *how)
{
    struct copy_page_args args = *how;
    args.layers = kv->table;
    args.n_parts = COPY_PARTS;
    struct cuda_grid grid = { .x = kv->n_layers, .y = COPY_PARTS, .z = 1, .n_threads = STORE_THREADS };
    cuda_launch(cuda, CUDA_KERNEL_copy_page, grid, &args, sizeof args);
}

void cuda_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy)
{
    copy_page(cuda_of(be), kv,
              &(struct copy_page_args){ .dst = copy->dst,
                                        .src = copy->src,
                                        .window_dst = copy->window_dst,
                                        .window_src = copy->window_src });
}

void cuda_kv_to_image(struct cuda_backend *cuda, const struct kv_memory *kv, int32_t page_id, uint8_t *image)
{
    copy_page(cuda, kv, &(struct copy_page_args){ .to_image = image, .src = page_id, .window_src = page_id });
}

void cuda_kv_from_image(struct cuda_backend *cuda, const struct kv_memory *kv, int32_t page_id,
                        const uint8_t *image)
{
    copy_page(cuda, kv,
              &(struct copy_page_args){ .from_image = image, .dst = page_id, .window_dst = page_id });
}

/* ---- the rows of floats of pages ---- */

void cuda_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                        const int32_t *page_ids, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct kv_layer_pages *layer = &kv->layers[cuda->n_layers];
    size_t n_floats = (size_t)cuda->page_floats;
    for (int i = 0; i < n; i++)
        cuda_copy_within(cuda, layer->pages + (size_t)page_ids[i] * layer->page_bytes,
                         cuda_floats(floats_at(x, (size_t)rows[i] * n_floats), n_floats), layer->page_bytes);
}

void cuda_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                        const struct kv_memory *kv, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    size_t n_rows = (size_t)cuda->step->n_rows, n_padded = (size_t)cuda->n_padded_rows;
    struct previous_rows_args args = {
        .y = cuda_floats(y, n_rows * (size_t)n),
        .x = cuda_floats(x, 0),
        .rows = cuda_step_data(cuda, rows, n_rows * sizeof *rows, n_padded * sizeof *rows),
        .page_rows = (const float *)(const void *)kv->layers[cuda->n_layers].pages,
        .positions = cuda->rows.positions,
        .seqs = cuda->rows.seqs,
        .slots = cuda->rows.slots,
        .tables = cuda->rows.page_tables,
        .counts = cuda->rows.counts,
        .max_pages = cuda->rows.max_pages,
        .n = n,
        .page_floats = cuda->page_floats,
    };
    struct cuda_grid grid = { .x = cuda->n_padded_rows, .y = 1, .z = 1, .n_threads = STORE_THREADS };
    cuda_launch(cuda, CUDA_KERNEL_previous_rows, grid, &args, sizeof args);
}

/* ---- storing rows ---- */

const int32_t *cuda_kv_tables(const struct cuda_backend *cuda, const struct cuda_kind *kind)
{
    return kind->shape.window > 0 ? cuda->rows.window_tables : cuda->rows.page_tables;
}

static struct kv_place place_of(const struct cuda_backend *cuda, const struct kv_memory *kv, int layer)
{
    const struct cuda_kind *kind = cuda_kind_of(cuda, layer);
    return (struct kv_place){ .pages = kv->layers[layer].pages,
                              .positions = cuda->rows.positions,
                              .seqs = cuda->rows.seqs,
                              .slots = cuda->rows.slots,
                              .tables = cuda_kv_tables(cuda, kind),
                              .counts = cuda->rows.counts,
                              .page_bytes = kv->layers[layer].page_bytes,
                              .max_pages = cuda->rows.max_pages,
                              .type = (int32_t)cuda_kv_type_of(kv->dtype),
                              .n_kv_heads = kind->shape.n_kv_heads,
                              .head_dim = kind->shape.head_dim };
}

/* A block for each row and STORE_HEADS heads. */
static struct cuda_grid grid_of(const struct cuda_backend *cuda, int n_heads)
{
    return (struct cuda_grid){ .x = cuda->n_padded_rows,
                               .y = (n_heads + STORE_HEADS - 1) / STORE_HEADS,
                               .z = 1,
                               .n_threads = STORE_THREADS };
}

void cuda_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                     struct kv_memory *kv, int layer)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_kind *kind = cuda_kind_of(cuda, layer);
    const struct attention_shape *shape = &kind->shape;
    int n_heads = attention_qkv_heads(shape);
    bool is_joint = shape->norms_all_heads && (q_norm.buffer || k_norm.buffer);
    size_t n_q = (size_t)(is_joint ? shape->n_heads : 1) * (size_t)shape->head_dim;
    size_t n_k = (size_t)(is_joint ? shape->n_kv_heads : 1) * (size_t)shape->head_dim;
    struct rope_store_args args = {
        .place = place_of(cuda, kv, layer),
        .qkv = cuda_floats(qkv, (size_t)cuda->step->n_rows * (size_t)(n_heads * shape->head_dim)),
        .q_norm = cuda_floats(q_norm, n_q),
        .k_norm = cuda_floats(k_norm, n_k),
        .cos_sin = kind->cos_sin,
        .n_heads = shape->n_heads,
        .rotary_dim = shape->rotary_dim,
        .rope = (int32_t)shape->rope,
        .has_joint_norms = is_joint,
        .keys_are_values = shape->keys_are_values,
        .norms_values = shape->norms_values,
        .eps = shape->qk_norm_eps,
    };
    cuda_launch(cuda, CUDA_KERNEL_rope_store, grid_of(cuda, is_joint ? 1 : n_heads), &args, sizeof args);
}

void cuda_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                       const struct kv_prefix *const *prefixes, const int32_t *adapters)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct attention_shape *shape = &cuda_kind_of(cuda, layer)->shape;
    size_t n_kv = (size_t)shape->n_kv_heads * (size_t)shape->head_dim, n_rows = (size_t)cuda->step->n_rows;
    struct prefix_row *rows = cuda_attention_prefixes(cuda);
    for (size_t r = 0; r < n_rows; r++) {
        const struct kv_prefix *prefix = adapters[r] >= 0 ? prefixes[adapters[r]] : NULL;
        size_t position = (size_t)cuda->step->positions[r];
        rows[r] = (struct prefix_row){ 0 };
        if (!prefix || position >= (size_t)prefix->n)
            continue;
        rows[r].layer = (size_t)prefix->n * 2 * n_kv;
        rows[r].rows = cuda_floats(floats_at(prefix->rows, position * 2 * n_kv),
                                   (size_t)layer * rows[r].layer + 2 * n_kv);
    }
    struct prefix_store_args args = {
        .place = place_of(cuda, kv, layer),
        .prefixes = cuda_step_data(cuda, rows, n_rows * sizeof *rows,
                                   (size_t)cuda->n_padded_rows * sizeof *rows),
        .layer = (uint64_t)layer,
    };
    cuda_launch(cuda, CUDA_KERNEL_prefix_store, grid_of(cuda, 2 * shape->n_kv_heads), &args, sizeof args);
}

void cuda_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim,
                       struct floats kv, struct floats norm, struct kv_memory *memory, int layer)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_kind *kind = cuda_kind_of(cuda, layer);
    const struct attention_shape *shape = &kind->shape;
    size_t n_rows = (size_t)cuda->step->n_rows, n_heads = (size_t)shape->n_heads;
    assert(shape->n_latent > 0 && q_dim >= shape->rotary_dim);
    struct latent_store_args args = {
        .place = place_of(cuda, memory, layer),
        .queries = cuda_floats(queries, n_rows * n_heads * (size_t)shape->head_dim),
        .q = cuda_floats(q, n_rows * n_heads * (size_t)q_dim),
        .kv = cuda_floats(kv, n_rows * (size_t)shape->head_dim),
        .norm = cuda_floats(norm, (size_t)shape->n_latent),
        .cos_sin = kind->cos_sin,
        .n_heads = shape->n_heads,
        .n_latent = shape->n_latent,
        .q_dim = q_dim,
        .rope = (int32_t)shape->rope,
        .eps = shape->qk_norm_eps,
    };
    cuda_launch(cuda, CUDA_KERNEL_latent_store, grid_of(cuda, shape->n_heads + 1), &args, sizeof args);
}
