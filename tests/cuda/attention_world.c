#include "cuda/attention_world.h"

#include "backend/cuda/attention/cuda_kv.h"
#include "backend/kv_type.h"
#include "base/half.h"
#include "cuda/emulator.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 88172645463325252u;

static float random_float(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

/* Aligned as the card's memory is. */
static void *room(size_t n_bytes)
{
    void *memory = aligned_alloc(256, (n_bytes + 255) / 256 * 256);
    assert(memory);
    memset(memory, 0xff, (n_bytes + 255) / 256 * 256);
    return memory;
}

static float *random_floats(size_t n, float scale)
{
    float *x = room(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float() * scale;
    return x;
}

int world_row_floats(const struct world *w)
{
    if (w->c.n_latent > 0)
        return w->c.n_heads * w->c.head_dim;
    return (w->c.n_heads + (w->c.keys_are_values ? 1 : 2) * w->c.n_kv_heads) * w->c.head_dim;
}

int world_value_dim(const struct world *w)
{
    return w->c.n_latent > 0 ? w->c.n_latent : w->c.head_dim;
}

static void fill_angles(struct world *w)
{
    int n = w->rotary_dim, n_pairs = w->c.rope == ROPE_2D ? n / 4 : n / 2;
    for (int r = 0; r < WORLD_ROWS; r++)
        for (int half = 0; half < (w->c.rope == ROPE_2D ? 2 : 1); half++)
            for (int j = 0; j < n_pairs; j++) {
                float angle = (float)(half == 0 ? r : r / 3) * w->freqs[j];
                float *to = w->cos_sin + (size_t)r * (size_t)n + half * n / 2;
                to[j] = (float)cos((double)angle);
                to[n_pairs + j] = (float)sin((double)angle);
            }
}

static void enlarge_keys(struct world *w)
{
    const struct world_case *c = &w->c;
    int row = world_row_floats(w), n_q = c->n_heads * c->head_dim, n_k = c->n_kv_heads * c->head_dim;
    for (int r = 0; r < WORLD_ROWS; r++) {
        for (int d = c->n_latent; d < c->head_dim; d++)
            w->latent_kv[r * c->head_dim + d] *= c->large_key;
        for (int i = 0; i < c->n_heads * w->q_dim; i++)
            w->latent_q[r * c->n_heads * w->q_dim + i] /= c->large_key;
        for (int i = 0; i < n_q + n_k && c->n_latent == 0; i++)
            w->qkv[r * row + i] *= i < n_q ? 1 / c->large_key : c->large_key;
    }
}

struct world *world_new(const struct world_case *c)
{
    struct world *w = calloc(1, sizeof *w);
    assert(w);
    w->c = *c;
    w->rotary_dim = c->n_latent > 0 ? c->head_dim - c->n_latent : c->rope == ROPE_NONE ? 0 : c->head_dim / 2;
    w->q_dim = w->rotary_dim + 16;
    size_t n = WORLD_ROWS, row = (size_t)world_row_floats(w);
    w->qkv = random_floats(n * row, 2);
    for (size_t i = 0; i < n * row && c->magnitude > 0; i++)
        if (i % row < (size_t)(c->n_heads * c->head_dim))
            w->qkv[i] *= c->magnitude;
    w->latent_q = random_floats(n * (size_t)(c->n_heads * w->q_dim), 2);
    w->latent_kv = random_floats(n * (size_t)c->head_dim, 2);
    if (c->large_key > 0)
        enlarge_keys(w);
    w->cos_sin = random_floats(n * (size_t)w->rotary_dim, 1);
    w->freqs = room(CUDA_MAX_HEAD_DIM * sizeof(float));
    for (int j = 0; j < CUDA_MAX_HEAD_DIM; j++)
        w->freqs[j] = powf(10000, -(float)j / 16);
    w->slopes = random_floats((size_t)c->n_heads, 1);
    w->sinks = random_floats((size_t)c->n_heads, 4);
    for (int h = 0; h < c->n_heads; h++)
        w->slopes[h] = powf(2, -(float)(h + 1) / 3);
    w->sinks[c->n_heads - 1] = c->n_heads > 1 ? 300 : 1;
    size_t n_norm = (size_t)(c->has_joint_norms ? c->n_heads * c->head_dim : c->head_dim);
    w->q_norm = random_floats(n_norm, 0.5f);
    w->k_norm = random_floats(n_norm, 0.5f);
    for (size_t i = 0; i < n_norm; i++) {
        w->q_norm[i] += 1;
        w->k_norm[i] += 1;
    }
    w->shape = (struct attention_shape){ .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->head_dim,
                                         .n_latent = c->n_latent,
                                         .rotary_dim = w->rotary_dim,
                                         .rope = c->rope,
                                         .rope_scale = 1,
                                         .scale = 1 / sqrtf((float)c->head_dim),
                                         .softcap = c->softcap,
                                         .window = c->window,
                                         .first = c->first,
                                         .alibi_slopes = c->has_slopes ? w->slopes : NULL,
                                         .qk_norm_eps = 1e-6f };
    fill_angles(w);
    w->page_bytes = CUDA_KV_PAGE * (c->n_latent > 0
                                        ? kv_type_latent_bytes(c->type, c->head_dim)
                                        : 2 * (size_t)c->n_kv_heads * kv_type_bytes(c->type, c->head_dim));
    w->pages = room(WORLD_PAGES * w->page_bytes);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < WORLD_PAGES / 2; i++)
            w->tables[s][i] = ((i + s * WORLD_PAGES / 2) * 37 + 5) % WORLD_PAGES;
    for (int s = 0; s < 2; s++)
        for (int i = WORLD_PAGES / 2; i < WORLD_PAGES; i++)
            w->tables[s][i] = -(1 << 20); /* never to be read */
    return w;
}

void world_free(struct world *w)
{
    float *const all[] = { w->qkv,    w->latent_q, w->latent_kv, w->cos_sin, w->freqs,
                           w->slopes, w->sinks,    w->q_norm,    w->k_norm };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(w->pages);
    free(w);
}

/* ---- a step ---- */

/* The rows of a step; padding rows come after them. */
struct world_step {
    struct step step;
    int n_padded;
    int32_t positions[WORLD_ROWS + 8], seqs[WORLD_ROWS + 8], slots[3], prefix_lens[3];
    struct step_counts counts;
    float *qkv, *latent_q, *latent_kv, *cos_sin;
};

static void copy_rows(float *to, const float *from, int row, int position, int n)
{
    memcpy(to + (size_t)row * (size_t)n, from + (size_t)position * (size_t)n, (size_t)n * sizeof *to);
}

static void add_row(const struct world *w, struct world_step *s, int seq, int position)
{
    int r = s->step.n_rows++;
    s->positions[r] = position;
    s->seqs[r] = seq;
    copy_rows(s->qkv, w->qkv, r, position, world_row_floats(w));
    copy_rows(s->latent_q, w->latent_q, r, position, w->c.n_heads * w->q_dim);
    copy_rows(s->latent_kv, w->latent_kv, r, position, w->c.head_dim);
    copy_rows(s->cos_sin, w->cos_sin, r, position, w->rotary_dim);
}

static struct world_step *step_new(const struct world *w)
{
    struct world_step *s = calloc(1, sizeof *s);
    size_t n = WORLD_ROWS + 8;
    assert(s);
    s->qkv = room(n * (size_t)world_row_floats(w) * sizeof(float));
    s->latent_q = room(n * (size_t)(w->c.n_heads * w->q_dim) * sizeof(float));
    s->latent_kv = room(n * (size_t)w->c.head_dim * sizeof(float));
    s->cos_sin = room(n * (size_t)w->rotary_dim * sizeof(float));
    return s;
}

static void step_finish(const struct world *w, struct world_step *s)
{
    s->n_padded = s->step.n_rows + WORLD_PADDING;
    for (int r = s->step.n_rows; r < s->n_padded; r++)
        s->seqs[r] = 2;
    s->slots[0] = 1; /* sequence 0 has row 1 of the tables below, and sequence 1 row 0 */
    s->slots[2] = 1 << 20;
    s->prefix_lens[1] = w->c.prefix_len;
    s->step.n_seqs = 2;
    s->step.positions = s->positions;
    s->step.seqs = s->seqs;
    s->step.slots = s->slots;
    s->step.prefix_lens = s->prefix_lens;
    s->counts = (struct step_counts){ .n_rows = s->step.n_rows, .n_seqs = 2 };
}

static void step_free(struct world_step *s)
{
    free(s->qkv);
    free(s->latent_q);
    free(s->latent_kv);
    free(s->cos_sin);
    free(s);
}

static struct kv_place place_of(const struct world *w, const struct world_step *s, const int32_t *tables)
{
    return (struct kv_place){ .pages = w->pages,
                              .positions = s->positions,
                              .seqs = s->seqs,
                              .slots = s->slots,
                              .tables = tables,
                              .counts = &s->counts,
                              .page_bytes = w->page_bytes,
                              .max_pages = WORLD_PAGES,
                              .type = cuda_kv_type_of(w->c.type),
                              .n_kv_heads = w->c.n_kv_heads,
                              .head_dim = w->c.head_dim };
}

static const char *const NAMES[] = {
#define CUDA_FILE(file)
#define CUDA_KERNEL(name) #name,
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
};

static void run(enum cuda_kernel number, int x, int y, size_t shared_bytes, const void *args)
{
    const struct emulated_kernel *kernel = emulated_find(NAMES[number]);
    assert(kernel);
    emulate(kernel,
            &(struct emulated_grid){
                .x = x, .y = y, .z = 1, .n_threads = kernel->n_threads, .shared_bytes = shared_bytes },
            args);
}

static void store_step(struct world *w, struct world_step *s)
{
    int32_t tables[2][WORLD_PAGES];
    memcpy(tables[0], w->tables[1], sizeof tables[0]);
    memcpy(tables[1], w->tables[0], sizeof tables[1]);
    const struct world_case *c = &w->c;
    if (c->n_latent > 0) {
        struct latent_store_args args = { .place = place_of(w, s, tables[0]),
                                          .queries = s->qkv,
                                          .q = s->latent_q,
                                          .kv = s->latent_kv,
                                          .norm = w->k_norm,
                                          .cos_sin = s->cos_sin,
                                          .n_heads = c->n_heads,
                                          .n_latent = c->n_latent,
                                          .q_dim = w->q_dim,
                                          .rope = (int)c->rope,
                                          .eps = 1e-6f };
        run(CUDA_KERNEL_latent_store, s->n_padded, (c->n_heads + 1 + 7) / 8, 0, &args);
        return;
    }
    bool has_norms = c->has_norms || c->has_joint_norms;
    struct rope_store_args args = { .place = place_of(w, s, tables[0]),
                                    .qkv = s->qkv,
                                    .q_norm = has_norms ? w->q_norm : NULL,
                                    .k_norm = has_norms ? w->k_norm : NULL,
                                    .cos_sin = s->cos_sin,
                                    .n_heads = c->n_heads,
                                    .rotary_dim = w->rotary_dim,
                                    .rope = (int)c->rope,
                                    .has_joint_norms = c->has_joint_norms,
                                    .keys_are_values = c->keys_are_values,
                                    .norms_values = c->norms_values,
                                    .eps = 1e-6f };
    run(CUDA_KERNEL_rope_store, s->n_padded,
        c->has_joint_norms ? 1 : (world_row_floats(w) / c->head_dim + 7) / 8, 0, &args);
}

void world_store(struct world *w, int seq, int begin, int end)
{
    struct world_step *s = step_new(w);
    for (int p = begin; p < end; p++)
        add_row(w, s, seq, p);
    step_finish(w, s);
    store_step(w, s);
    step_free(s);
}

static void attend_step(struct world *w, struct world_step *s, float *y, const struct world_run *r)
{
    const struct world_case *c = &w->c;
    struct head_groups groups = head_groups_of(&w->shape);
    struct attention_kernels kernels = attention_kernels_of(&w->shape, cuda_kv_type_of(c->type),
                                                            r->shared_bytes > 0 ? r->shared_bytes : 227 << 10,
                                                            r->level > 0 ? r->level : 90);
    struct attention_limits limits = { r->n_resident, kernels.wide == N_CUDA_KERNELS ? 0 : r->least_wide,
                                       r->n_slots };
    size_t n_units = (size_t)attention_plan_units(&w->shape, &limits, s->step.n_rows);
    struct attention_plan *split = room(sizeof *split + n_units * sizeof *split->units),
                          *wide = room(sizeof *wide + n_units * sizeof *wide->units);
    attention_plan_make(split, wide, &w->shape, &limits, &s->step);
    assert((size_t)split->n_units <= n_units && (size_t)wide->n_units <= n_units);
    int32_t tables[2][WORLD_PAGES];
    memcpy(tables[0], w->tables[1], sizeof tables[0]);
    memcpy(tables[1], w->tables[0], sizeof tables[1]);
    int slot_floats = world_value_dim(w) + 8;
    float *partials = room((size_t)r->n_slots * (size_t)slot_floats * sizeof *partials);
    uint32_t *pending = calloc((size_t)(s->n_padded * groups.n_groups), sizeof *pending);
    struct attention_args args = { .y = y,
                                   .q = s->qkv,
                                   .sinks = c->has_sinks ? w->sinks : NULL,
                                   .slopes = w->shape.alibi_slopes,
                                   .pages = w->pages,
                                   .plan = split,
                                   .positions = s->positions,
                                   .seqs = s->seqs,
                                   .prefix_lens = s->prefix_lens,
                                   .tables = tables[0],
                                   .partials = partials,
                                   .pending = pending,
                                   .page_bytes = w->page_bytes,
                                   .max_pages = WORLD_PAGES,
                                   .q_row = world_row_floats(w),
                                   .slot_floats = slot_floats,
                                   .n_heads = c->n_heads,
                                   .heads_of_kv = groups.heads_of_kv,
                                   .n_groups = groups.n_groups,
                                   .groups_of_kv = groups.groups_of_kv,
                                   .head_dim = c->head_dim,
                                   .value_dim = world_value_dim(w),
                                   .n_latent = c->n_latent,
                                   .window = c->window,
                                   .first = c->first,
                                   .tile_queries = groups.tile_queries,
                                   .n_stages = kernels.n_stages,
                                   .scale = w->shape.scale,
                                   .softcap = c->softcap };
    if (split->n_units > 0)
        run(kernels.split, 1 + (int)(n_units % 3), 1, kernels.split_shared, &args);
    args.plan = wide;
    if (wide->n_units > 0)
        run(kernels.wide, 2, 1, kernels.wide_shared, &args);
    for (int i = 0; i < s->n_padded * groups.n_groups; i++)
        assert(pending[i] == 0);
    free(split);
    free(wide);
    free(partials);
    free(pending);
}

void world_attend(struct world *w, float *y, int begin, int end, const struct world_run *r)
{
    int n_y = w->c.n_heads * world_value_dim(w), n_other = 0;
    float *out = room((size_t)(WORLD_ROWS + 8) * (size_t)n_y * sizeof *out);
    for (int at = begin, n; at < end; at += n) {
        n = end - at < r->chunk ? end - at : r->chunk;
        struct world_step *s = step_new(w);
        if (r->has_other)
            add_row(w, s, 0, n_other++);
        int extra = s->step.n_rows;
        for (int p = at; p < at + n; p++)
            add_row(w, s, 1, p);
        step_finish(w, s);
        store_step(w, s);
        attend_step(w, s, out, r);
        memcpy(y + (size_t)(at - begin) * (size_t)n_y, out + (size_t)extra * (size_t)n_y,
               (size_t)n * (size_t)n_y * sizeof *y);
        step_free(s);
    }
    free(out);
}

/* ---- the formula ---- */

static void rotate_pairs(double *x, const double *from, const struct world *w, int pos, int first,
                         int n_pairs, bool interleaved, const float *cos_sin)
{
    (void)pos;
    (void)w;
    for (int j = 0; j < n_pairs; j++) {
        int u = first + (interleaved ? 2 * j : j), v = interleaved ? u + 1 : u + n_pairs;
        double c = (double)cos_sin[j], s = (double)cos_sin[n_pairs + j];
        x[u] = from[u] * c - from[v] * s;
        x[v] = from[v] * c + from[u] * s;
    }
}

static void rotate(double *x, const struct world *w, int pos)
{
    int n = w->rotary_dim;
    double from[CUDA_MAX_HEAD_DIM];
    const float *cos_sin = w->cos_sin + (size_t)pos * (size_t)n;
    memcpy(from, x, sizeof(double) * (size_t)n);
    if (w->c.rope == ROPE_2D) {
        rotate_pairs(x, from, w, pos, 0, n / 4, false, cos_sin);
        rotate_pairs(x, from, w, pos, n / 2, n / 4, false, cos_sin + n / 2);
    } else if (w->c.rope != ROPE_NONE) {
        rotate_pairs(x, from, w, pos, 0, n / 2, w->c.rope == ROPE_INTERLEAVED, cos_sin);
    }
}

static void norm(double *x, const float *weights, int n)
{
    double square = 0;
    for (int d = 0; d < n; d++)
        square += x[d] * x[d];
    for (int d = 0; d < n; d++)
        x[d] *= (weights ? (double)weights[d] : 1) / sqrt(square / n + 1e-6);
}

/* What reading a row back gives. */
static void stored(double *x, int n, enum dtype type)
{
    double max = 0;
    for (int d = 0; d < n; d++)
        max = fmax(max, fabs(x[d]));
    for (int d = 0; d < n; d++)
        x[d] = type == DTYPE_F16    ? (double)half_to_float(float_to_half((float)x[d]))
               : type == DTYPE_BF16 ? (double)bf16_to_float(float_to_bf16((float)x[d]))
               : type == DTYPE_I8   ? (max > 0 ? rint(x[d] * 127 / max) * max / 127 : 0)
                                    : x[d];
}

/* All heads of q, then of k and v, of a position, as attention sees them. */
static void prepare(const struct world *w, double *to, int pos)
{
    const struct world_case *c = &w->c;
    int hd = c->head_dim, n_q = c->n_heads * hd, n_kv = c->n_kv_heads * hd;
    const float *row = w->qkv + (size_t)pos * (size_t)world_row_floats(w);
    if (c->n_latent > 0) {
        for (int h = 0; h < c->n_heads; h++) {
            for (int d = 0; d < c->n_latent; d++)
                to[h * hd + d] = (double)row[h * hd + d];
            const float *q = w->latent_q +
                             ((size_t)pos * (size_t)c->n_heads + (size_t)h + 1) * (size_t)w->q_dim -
                             w->rotary_dim;
            for (int d = 0; d < w->rotary_dim; d++)
                to[h * hd + c->n_latent + d] = (double)q[d];
            rotate(to + h * hd + c->n_latent, w, pos);
        }
        double *kv = to + n_q;
        for (int d = 0; d < hd; d++)
            kv[d] = (double)w->latent_kv[(size_t)pos * (size_t)hd + (size_t)d];
        norm(kv, w->k_norm, c->n_latent);
        rotate(kv + c->n_latent, w, pos);
        stored(kv, c->n_latent, c->type);
        stored(kv + c->n_latent, w->rotary_dim, c->type);
        return;
    }
    for (int i = 0; i < n_q + 2 * n_kv; i++)
        to[i] = (double)row[c->keys_are_values && i >= n_q + n_kv ? i - n_kv : i];
    for (int h = 0; h < c->n_kv_heads && c->norms_values; h++)
        norm(to + n_q + n_kv + h * hd, NULL, hd);
    if (c->has_joint_norms) {
        norm(to, w->q_norm, n_q);
        norm(to + n_q, w->k_norm, n_kv);
    }
    for (int h = 0; h < c->n_heads + c->n_kv_heads; h++) {
        if (c->has_norms)
            norm(to + h * hd, h < c->n_heads ? w->q_norm : w->k_norm, hd);
        rotate(to + h * hd, w, pos);
    }
    for (int h = c->n_heads; h < c->n_heads + 2 * c->n_kv_heads; h++)
        stored(to + h * hd, hd, c->type);
}

static void attend_one(const struct world *w, double *y, const double *rows, size_t row_doubles, int pos,
                       int head)
{
    const struct world_case *c = &w->c;
    int hd = c->head_dim, vd = world_value_dim(w), kv = head / (c->n_heads / c->n_kv_heads);
    int first = pos < c->first ? 0 : c->first,
        begin = c->window > 0 && pos >= c->window ? pos - c->window + 1 : 0;
    int end = pos < c->prefix_len ? c->prefix_len : pos + 1;
    begin = begin > first ? begin : first;
    const double *q = rows + (size_t)pos * row_doubles + head * hd;
    double score[WORLD_ROWS], max = -INFINITY, sum = 0;
    for (int t = begin; t < end; t++) {
        const double *k = rows + (size_t)t * row_doubles + (c->n_heads + kv) * hd;
        double s = 0;
        for (int d = 0; d < hd; d++)
            s += q[d] * k[d];
        s *= (double)w->shape.scale;
        if (c->softcap > 0)
            s = (double)c->softcap * tanh(s / (double)c->softcap);
        if (c->has_slopes)
            s += (double)w->slopes[head] * (t - pos);
        score[t] = s;
        max = fmax(max, s);
    }
    for (int t = begin; t < end; t++)
        sum += score[t] = exp(score[t] - max);
    if (c->has_sinks)
        sum += exp((double)w->sinks[head] - max);
    for (int d = 0; d < vd; d++)
        y[d] = 0;
    for (int t = begin; t < end; t++) {
        const double *v = rows + (size_t)t * row_doubles +
                          (c->n_latent > 0 ? c->n_heads : c->n_heads + c->n_kv_heads + kv) * hd;
        for (int d = 0; d < vd; d++)
            y[d] += score[t] / sum * v[d];
    }
}

void world_attend_double(const struct world *w, double *y, int begin, int end)
{
    const struct world_case *c = &w->c;
    size_t n = (size_t)((c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
    int last = end > c->prefix_len ? end : c->prefix_len, vd = world_value_dim(w);
    double *rows = malloc((size_t)last * n * sizeof *rows);
    assert(rows);
    for (int p = 0; p < last; p++)
        prepare(w, rows + (size_t)p * n, p);
    for (int p = begin; p < end; p++)
        for (int h = 0; h < c->n_heads; h++)
            attend_one(w, y + ((size_t)(p - begin) * (size_t)c->n_heads + (size_t)h) * (size_t)vd, rows, n, p,
                       h);
    free(rows);
}
