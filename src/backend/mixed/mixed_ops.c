/* Operations of the mixed backend on rows: each runs on one side, to which the rows that it reads cross. */
#include "backend/cpu/cpu_open.h"
#include "backend/mixed/mixed.h"
#include "base/limits.h"

/* ---- where rows are ---- */

struct backend *mixed_use(struct mixed_backend *m, enum side side)
{
    m->side = side;
    return m->sides[side];
}

/* Copies what was written to the side of the running operation, if it has older values. */
static void bring(struct mixed_backend *m, struct buffer *buffer)
{
    struct backend *card = m->sides[SIDE_CARD];
    if (buffer->newest == BOTH_SIDES || buffer->newest == m->side)
        return;
    float *host = cpu_host_floats(buffer->on[SIDE_CPU], buffer->n_valid);
    if (m->side == SIDE_CPU)
        card->ops->fetch(card, host, buffer->on[SIDE_CARD], buffer->n_valid);
    else
        card->ops->upload(card, buffer->on[SIDE_CARD], host, buffer->n_valid);
    buffer->newest = BOTH_SIDES;
}

static struct floats on_side(const struct mixed_backend *m, struct floats floats)
{
    assert(floats.buffer->on[m->side].buffer); /* else a constant is used on the other side */
    return floats_at(floats.buffer->on[m->side], floats.offset);
}

struct floats mixed_in(struct mixed_backend *m, struct floats floats)
{
    if (!floats.buffer)
        return NO_FLOATS;
    bring(m, floats.buffer);
    return on_side(m, floats);
}

/* What is written from the beginning is all that the buffer has then; rows after it are those of an earlier step. */
struct floats mixed_out(struct mixed_backend *m, struct floats floats, size_t n)
{
    struct buffer *buffer = floats.buffer;
    if (!buffer)
        return NO_FLOATS;
    assert(floats.offset <= buffer->n_floats && n <= buffer->n_floats - floats.offset);
    if (floats.offset > 0) {
        bring(m, buffer);
        n = floats.offset + n > buffer->n_valid ? floats.offset + n : buffer->n_valid;
    }
    buffer->n_valid = n;
    buffer->newest = m->side;
    return on_side(m, floats);
}

struct floats mixed_inout(struct mixed_backend *m, struct floats floats, size_t n)
{
    (void)mixed_in(m, floats);
    return mixed_out(m, floats, n);
}

/* The side of an operation without weights: where the newest values of x are, else those of y, else the side of the
 * operation before. */
static struct backend *use_newest(struct mixed_backend *m, struct floats x, struct floats y)
{
    enum side side = x.buffer ? x.buffer->newest : BOTH_SIDES;
    if (side == BOTH_SIDES && y.buffer)
        side = y.buffer->newest;
    return mixed_use(m, side == BOTH_SIDES ? m->side : side);
}

/* ---- copies to and from the host ---- */

void mixed_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats)
{
    struct mixed_backend *m = mixed_of(be);
    struct buffer *buffer = dst.buffer;
    size_t end = dst.offset + n_floats;
    for (int i = 0; i < N_SIDES; i++)
        if (buffer->newest == BOTH_SIDES || (int)buffer->newest == i)
            m->sides[i]->ops->upload(m->sides[i], floats_at(buffer->on[i], dst.offset), src, n_floats);
    buffer->n_valid = end > buffer->n_valid ? end : buffer->n_valid;
}

void mixed_download(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, src, NO_FLOATS);
    side->ops->download(side, host, on_side(m, src), n_floats);
}

void mixed_fetch(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, src, NO_FLOATS);
    side->ops->fetch(side, host, on_side(m, src), n_floats);
}

/* ---- embeddings and norms ---- */

void mixed_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, table->side);
    side->ops->embed(side, mixed_out(m, x, mixed_rows(m->step->n_rows, table->n_in)), table->inner, first_id);
}

void mixed_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                         const struct embedding_update *const *updates, const int32_t *adapters)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, table->side);
    side->ops->embed_adapted(side, mixed_out(m, x, mixed_rows(m->step->n_rows, table->n_in)), table->inner,
                             updates, adapters);
}

/* The operands of a norm, on its side. */
struct norm_floats {
    struct floats y, x, add, w, b;
};

static struct norm_floats norm_floats_of(struct mixed_backend *m, struct floats y, struct floats x,
                                         struct floats add, struct floats w, struct floats b, size_t n)
{
    struct norm_floats f = { .w = mixed_in(m, w), .b = mixed_in(m, b), .add = mixed_in(m, add) };
    f.x = add.buffer ? mixed_inout(m, x, n) : mixed_in(m, x);
    f.y = mixed_out(m, y, n);
    return f;
}

void mixed_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                   int n_rows, int n, float eps)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, w, x);
    struct norm_floats f = norm_floats_of(m, y, x, add, w, NO_FLOATS, mixed_rows(n_rows, n));
    side->ops->rmsnorm(side, f.y, f.x, f.add, f.w, n_rows, n, eps);
}

void mixed_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                     struct floats b, int n_rows, int n, float eps)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, w, x);
    struct norm_floats f = norm_floats_of(m, y, x, add, w, b, mixed_rows(n_rows, n));
    side->ops->layernorm(side, f.y, f.x, f.add, f.w, f.b, n_rows, n, eps);
}

void mixed_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                        struct floats w, struct floats b, int n_rows, int n, float eps,
                        const struct norm_update *const *updates, const int32_t *adapters)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, w, x);
    struct norm_update own[LIMIT_ADAPTERS];
    const struct norm_update *pointers[LIMIT_ADAPTERS] = { NULL };
    for (int r = 0; r < n_rows; r++) {
        int i = adapters[r];
        assert(i < LIMIT_ADAPTERS);
        if (i < 0 || !updates[i] || pointers[i])
            continue;
        own[i] = (struct norm_update){ mixed_in(m, updates[i]->w), mixed_in(m, updates[i]->b) };
        pointers[i] = &own[i];
    }
    struct norm_floats f = norm_floats_of(m, y, x, add, w, b, mixed_rows(n_rows, n));
    side->ops->norm_adapted(side, f.y, f.x, f.add, f.w, f.b, n_rows, n, eps, pointers, adapters);
}

/* ---- elements and rows ---- */

void mixed_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                     int n_rows, int n)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, add, base);
    struct floats more = mixed_in(m, add), from = mixed_in(m, base),
                  to = mixed_out(m, x, mixed_rows(n_rows, n));
    side->ops->scale_add(side, to, from, scale, more, n_rows, n);
}

void mixed_scale(struct backend *be, struct floats x, float scale, int n_rows, int n)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, x, NO_FLOATS);
    side->ops->scale(side, mixed_inout(m, x, mixed_rows(n_rows, n)), scale, n_rows, n);
}

void mixed_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, x, NO_FLOATS);
    side->ops->softcap(side, mixed_inout(m, x, mixed_rows(n_rows, n)), cap, n_rows, n);
}

void mixed_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, x, NO_FLOATS);
    side->ops->activate(side, mixed_inout(m, x, mixed_rows(n_rows, n)), n_rows, n, act);
}

void mixed_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                     enum positions_use use)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, table, x);
    size_t n_floats = mixed_rows(end - begin, n);
    struct floats to = use == POSITIONS_REPLACE ? mixed_out(m, x, n_floats) : mixed_inout(m, x, n_floats);
    side->ops->positions(side, to, mixed_in(m, table), begin, end, n, use);
}

void mixed_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                  int n_rows)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, a, b);
    struct floats left = mixed_in(m, a), right = mixed_in(m, b),
                  to = mixed_out(m, y, mixed_rows(n_rows, n_a + n_b));
    side->ops->concat(side, to, left, n_a, right, n_b, n_rows);
}

void mixed_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_newest(m, x, add);
    struct floats from = mixed_in(m, x), more = mixed_in(m, add),
                  to = mixed_out(m, y, mixed_rows(m->step->n_outputs, n));
    side->ops->gather(side, to, from, more, n);
}

/* ---- linear layers ---- */

void mixed_linear(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                  int n_rows)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, matrix->side);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(n_rows, matrix->n_out));
    side->ops->linear(side, to, matrix->inner, from, n_rows);
}

void mixed_linear_glu(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                      int n_rows, enum activation act)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, matrix->side);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(n_rows, matrix->n_out / 2));
    side->ops->linear_glu(side, to, matrix->inner, from, n_rows, act);
}

void mixed_linear_adapted(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                          int n_rows, const struct lora *const *loras, const int32_t *adapters)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, matrix->side);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(n_rows, matrix->n_out));
    side->ops->linear_adapted(side, to, matrix->inner, from, n_rows, loras, adapters);
}

void mixed_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *matrix,
                              struct floats x, int n_rows, enum activation act,
                              const struct lora *const *loras, const int32_t *adapters)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, matrix->side);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(n_rows, matrix->n_out / 2));
    side->ops->linear_glu_adapted(side, to, matrix->inner, from, n_rows, act, loras, adapters);
}

void mixed_linear_heads(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                        int n_rows, const struct head_rows *heads)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, matrix->side);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(n_rows, heads->y_row));
    side->ops->linear_heads(side, to, matrix->inner, from, n_rows, heads);
}

void mixed_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                   struct floats scores, int n_rows)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, layer->gate_up->side);
    struct expert_layer own = *layer;
    size_t n = mixed_rows(n_rows, layer->down->n_out);
    assert(layer->down->side == layer->gate_up->side);
    own.gate_up = layer->gate_up->inner;
    own.down = layer->down->inner;
    own.bias = mixed_in(m, layer->bias);
    own.factors = mixed_in(m, layer->factors);
    struct floats from = mixed_in(m, x), to = layer->has_base ? mixed_inout(m, y, n) : mixed_out(m, y, n);
    struct floats own_scores = mixed_inout(m, scores,
                                           mixed_rows(n_rows, layer->gate_up->n_experts + layer->gates_base));
    side->ops->experts(side, to, &own, from, own_scores, n_rows);
}

/* ---- sampling ---- */

enum tutti_status mixed_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err)
{
    struct backend *side = mixed_of(be)->sides[mixed_output_side(mixed_of(be))];
    return side->ops->reserve_sampling(side, n_vocab, err);
}

void mixed_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = mixed_use(m, mixed_output_side(m));
    side->ops->sample(side, mixed_in(m, logits), n_vocab, inputs, n);
}
