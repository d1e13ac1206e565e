/* Rotary embedding, norms of queries and keys, and storing rows in pages; pages as a whole.
 *
 * A page has for each KV head the keys [16][head_dim], int8 with scales [16], and the values transposed, [head_dim][16],
 * likewise. With latent attention it has rows [16][head_dim], int8 with scales [16] of the latents and [16] of the rest.
 * float16, bfloat16 and int8 are rounded as on the CPU (to_half_fn and to_int8_fn of kernels.h, float_to_bf16()); norms and
 * rotations have its bits. */
#include "base/half.h"
#include "kernels/cuda/attention/kv_args.h"
#include "kernels/cuda/device.h"

enum { KV_WARPS = 8, KV_THREADS = KV_WARPS * WARP };

DEVICE int min_i32(int a, int b)
{
    return a < b ? a : b;
}

/* A head of a warp. */
struct head_row {
    float x[CUDA_MAX_HEAD_DIM], rotated[CUDA_MAX_HEAD_DIM];
};

/* Warp: the scale of an RMSNorm: element i goes into sum i % 16, and the sums are folded by halves. */
DEVICE float norm_scale(const float *x, int n, float eps)
{
    float sum = 0;
    if (lane_id() < 16)
        for (int i = lane_id(); i < n; i += 16)
            sum = fma_f32(x[i], x[i], sum);
    sum = shuffle_f32(warp_sum_f32(sum, 16), 0);
    return divide_exact(1.0f, sqrt_exact(divide_exact(sum, (float)n) + eps));
}

/* Element d of n_pairs pairs (j, j + n_pairs) that begin at x. */
DEVICE float rotate_half(const float *x, const float *cos_sin, int d, int n_pairs)
{
    int j = d % n_pairs;
    float u = x[j], v = x[j + n_pairs], cos = cos_sin[j], sin = cos_sin[n_pairs + j];
    return d < n_pairs ? fma_f32(u, cos, -(v * sin)) : fma_f32(v, cos, u * sin);
}

DEVICE float rotate(const float *x, const float *cos_sin, int d, int rotary_dim, int rope)
{
    if (rope == CUDA_ROPE_NONE || d >= rotary_dim)
        return x[d];
    if (rope == CUDA_ROPE_HALF)
        return rotate_half(x, cos_sin, d, rotary_dim / 2);
    if (rope == CUDA_ROPE_2D) {
        int from = d < rotary_dim / 2 ? 0 : rotary_dim / 2;
        return rotate_half(x + from, cos_sin + from, d - from, rotary_dim / 4);
    }
    float u = x[d & ~1], v = x[d | 1], cos = cos_sin[d / 2], sin = cos_sin[rotary_dim / 2 + d / 2];
    return d % 2 == 0 ? fma_f32(u, cos, -(v * sin)) : fma_f32(v, cos, u * sin);
}

/* ---- a row's place ---- */

DEVICE bool row_is_there(const struct kv_place *p, int row)
{
    return row < p->counts->n_rows;
}

/* The row's page; *at: its place in it. */
DEVICE uint8_t *page_of_row(const struct kv_place *p, int row, int *at)
{
    int pos = p->positions[row];
    const int32_t *table = p->tables + (int64_t)p->slots[p->seqs[row]] * p->max_pages;
    *at = pos % CUDA_KV_PAGE;
    return p->pages + (uint64_t)table[pos / CUDA_KV_PAGE] * p->page_bytes;
}

/* Warp: the scale of n int8, and what to multiply by. */
DEVICE float int8_scale(const float *x, int n, float *inverse)
{
    uint32_t top = 0; /* as integers, absolute values have the same order, and NaN is the largest */
    for (int i = lane_id(); i < n; i += WARP) {
        uint32_t bits = f32_bits(x[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    top = warp_max_u32(top, WARP);
    float max = bits_f32(top);
    bool is_finite = top < 0x7f800000u, is_zero = max < 0x1p-100f || !is_finite;
    *inverse = is_zero ? 0 : divide_exact(127.0f, max);
    return !is_finite ? __builtin_nanf("") : is_zero ? 0 : divide_exact(max, 127.0f);
}

/* To nearest even: adding 1.5 * 2^23 rounds to an integer. */
DEVICE int8_t to_int8(float x, float inverse)
{
    return inverse == 0 ? 0 : (int8_t)(int)(x * inverse + 12582912.0f - 12582912.0f);
}

/* Warp: stores element i of x at place i * stride, and the scale of int8 at *scale. */
DEVICE void store_elements(uint8_t *to, float *scale, int type, const float *x, int n, int stride)
{
    float inverse = 0;
    if (type == CUDA_KV_I8) {
        float own = int8_scale(x, n, &inverse);
        if (lane_id() == 0)
            *scale = own;
    }
    for (int i = lane_id(); i < n; i += WARP) {
        if (type == CUDA_KV_F16)
            ((uint16_t *)to)[i * stride] = float_half(x[i]);
        else if (type == CUDA_KV_BF16)
            ((uint16_t *)to)[i * stride] = float_to_bf16(x[i]);
        else if (type == CUDA_KV_F32)
            ((float *)to)[i * stride] = x[i];
        else
            ((int8_t *)to)[i * stride] = to_int8(x[i], inverse);
    }
}

DEVICE int element_bytes(int type)
{
    return type == CUDA_KV_F32 ? 4 : type == CUDA_KV_I8 ? 1 : 2;
}

/* Warp: stores a head's keys or values. */
DEVICE void store_head(const struct kv_place *p, int row, int kv_head, bool is_value, const float *x)
{
    int at, n = p->head_dim;
    uint32_t bytes = cuda_kv_head_bytes(p->type, n);
    uint8_t *part = page_of_row(p, row, &at) + (uint64_t)kv_head * 2 * bytes + (is_value ? bytes : 0);
    float *scale = (float *)(part + CUDA_KV_PAGE * n) + at;
    uint8_t *to = part + element_bytes(p->type) * (is_value ? at : at * n);
    store_elements(to, scale, p->type, x, n, is_value ? CUDA_KV_PAGE : 1);
}

/* Warp: stores a key x, multiplied by scale, as a value. */
DEVICE void store_as_value(const struct kv_place *p, struct head_row *own, int row, int kv_head,
                           const float *x, float scale)
{
    for (int d = lane_id(); d < p->head_dim; d += WARP)
        own->x[d] = x[d] * scale;
    warp_sync();
    store_head(p, row, kv_head, true, own->x);
    warp_sync();
}

/* ---- kernels ---- */

/* Blocks: x rows, y parts of KV_WARPS heads of q, k and v. */
KERNEL(rope_store, struct rope_store_args, KV_THREADS)
{
    SHARED(struct head_row, heads, KV_WARPS);
    SHARED(float, joint, 2);
    struct head_row *own = &heads[warp_id()];
    const struct kv_place *p = &a.place;
    int row = block_id(), n = p->head_dim, n_heads = a.n_heads + (a.keys_are_values ? 1 : 2) * p->n_kv_heads;
    if (!row_is_there(p, row))
        return;
    float *qkv = a.qkv + (int64_t)row * n_heads * n;
    const float *cos_sin = a.cos_sin + (int64_t)row * a.rotary_dim;
    if (a.has_joint_norms) {
        if (warp_id() < 2) {
            bool is_key = warp_id() == 1;
            float scale = norm_scale(qkv + (is_key ? a.n_heads * n : 0),
                                     (is_key ? p->n_kv_heads : a.n_heads) * n, a.eps);
            if (lane_id() == 0)
                joint[warp_id()] = scale;
        }
        block_sync();
    }
    int end = a.has_joint_norms ? n_heads : min_i32((block_id_y() + 1) * KV_WARPS, n_heads);
    for (int h = block_id_y() * KV_WARPS + warp_id(); h < end; h += KV_WARPS) {
        bool is_query = h < a.n_heads, is_value = h >= a.n_heads + p->n_kv_heads;
        int kv_head = is_query ? 0 : (h - a.n_heads) % p->n_kv_heads;
        float *x = qkv + h * n;
        const float *norm = is_value ? NULL : is_query ? a.q_norm : a.k_norm;
        bool is_both = a.keys_are_values && !is_query; /* a key that is a value, too */
        float scale = 1;
        if ((norm && !a.has_joint_norms) || (a.norms_values && (is_value || is_both)))
            scale = norm_scale(x, n, a.eps);
        if (is_both)
            store_as_value(p, own, row, kv_head, x, a.norms_values ? scale : 1);
        if (norm && a.has_joint_norms) {
            scale = joint[is_query ? 0 : 1];
            norm += (is_query ? h : kv_head) * n;
        }
        for (int d = lane_id(); d < n; d += WARP)
            own->x[d] = norm ? x[d] * scale * norm[d] : is_value ? x[d] * scale : x[d];
        warp_sync();
        for (int d = lane_id(); d < n; d += WARP) {
            own->rotated[d] = is_value ? own->x[d] : rotate(own->x, cos_sin, d, a.rotary_dim, a.rope);
            if (!is_value)
                x[d] = own->rotated[d];
        }
        warp_sync();
        if (!is_query)
            store_head(p, row, kv_head, is_value, own->rotated);
        warp_sync();
    }
}

/* Blocks: x rows, y parts of KV_WARPS heads of k and v. */
KERNEL(prefix_store, struct prefix_store_args, KV_THREADS)
{
    const struct kv_place *p = &a.place;
    int row = block_id(), h = block_id_y() * KV_WARPS + warp_id(), n = p->head_dim;
    if (!row_is_there(p, row) || h >= 2 * p->n_kv_heads || !a.prefixes[row].rows)
        return;
    const float *x = a.prefixes[row].rows + a.layer * a.prefixes[row].layer + h * n;
    store_head(p, row, h % p->n_kv_heads, h >= p->n_kv_heads, x);
}

/* Warp: normalizes, rotates and stores a latent row. */
DEVICE void store_latent(const struct latent_store_args *a, struct head_row *own, int row,
                         const float *cos_sin)
{
    const struct kv_place *p = &a->place;
    int at, n = p->head_dim, n_rotary = n - a->n_latent, bytes = element_bytes(p->type);
    const float *x = a->kv + (int64_t)row * n;
    float scale = norm_scale(x, a->n_latent, a->eps);
    for (int d = lane_id(); d < n; d += WARP)
        own->x[d] = d < a->n_latent ? x[d] * scale * a->norm[d] : x[d];
    warp_sync();
    for (int d = lane_id(); d < n_rotary; d += WARP)
        own->rotated[d] = rotate(own->x + a->n_latent, cos_sin, d, n_rotary, a->rope);
    warp_sync();
    uint8_t *page = page_of_row(p, row, &at), *to = page + bytes * at * n;
    float *scales = (float *)(page + CUDA_KV_PAGE * n) + at;
    store_elements(to, scales, p->type, own->x, a->n_latent, 1);
    store_elements(to + bytes * a->n_latent, scales + CUDA_KV_PAGE, p->type, own->rotated, n_rotary, 1);
}

/* Blocks: x rows, y parts of KV_WARPS heads; after the heads comes the latent row. */
KERNEL(latent_store, struct latent_store_args, KV_THREADS)
{
    SHARED(struct head_row, heads, KV_WARPS);
    int row = block_id(), h = block_id_y() * KV_WARPS + warp_id(), n = a.place.head_dim,
        n_rotary = n - a.n_latent;
    if (!row_is_there(&a.place, row) || h > a.n_heads)
        return;
    const float *cos_sin = a.cos_sin + (int64_t)row * n_rotary;
    if (h == a.n_heads) {
        store_latent(&a, &heads[warp_id()], row, cos_sin);
        return;
    }
    const float *from = a.q + ((int64_t)row * a.n_heads + h + 1) * a.q_dim - n_rotary;
    float *to = a.queries + ((int64_t)row * a.n_heads + h) * n + a.n_latent;
    for (int d = lane_id(); d < n_rotary; d += WARP)
        to[d] = rotate(from, cos_sin, d, n_rotary, a.rope);
}

/* Blocks: rows. */
KERNEL(previous_rows, struct previous_rows_args, KV_THREADS)
{
    int row = block_id();
    if (row >= a.counts->n_rows)
        return;
    int from = a.rows[row], before = a.positions[row] - 1;
    const float *x = NULL;
    if (from >= 0) {
        x = a.x + (int64_t)from * a.n;
    } else if (before >= 0) {
        const int32_t *table = a.tables + (int64_t)a.slots[a.seqs[row]] * a.max_pages;
        x = a.page_rows + (int64_t)table[before / CUDA_KV_PAGE] * a.page_floats;
    }
    for (int i = thread_id(); i < a.n; i += KV_THREADS)
        a.y[(int64_t)row * a.n + i] = x ? x[i] : 0;
}

/* Blocks: x layers, y parts of a page. */
KERNEL(copy_page, struct copy_page_args, KV_THREADS)
{
    struct kv_layer_pages layer = a.layers[block_id()];
    int64_t dst = layer.has_window && a.from_image == NULL ? a.window_dst : a.dst;
    int64_t src = layer.has_window && a.to_image == NULL ? a.window_src : a.src;
    const uint8_t *from = a.from_image ? a.from_image + layer.offset
                                       : layer.pages + (uint64_t)src * layer.page_bytes;
    uint8_t *to = a.to_image ? a.to_image + layer.offset : layer.pages + (uint64_t)dst * layer.page_bytes;
    uint64_t first = (uint64_t)(block_id_y() * KV_THREADS + thread_id()),
             stride = (uint64_t)a.n_parts * KV_THREADS;
    if (layer.page_bytes % 16 == 0) {
        for (uint64_t i = first; i < layer.page_bytes / 16; i += stride)
            ((u32x4 *)to)[i] = ((const u32x4 *)from)[i];
        return;
    }
    for (uint64_t i = first; i < layer.page_bytes / 4; i += stride)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}
