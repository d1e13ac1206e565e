/* The shortest time that a step can take on this machine: each matrix, and each layer's attention, takes the
 * longer of the times to read it and to compute it. They follow one another, because each needs the
 * results of the one before. */
#include "backend/kv_type.h"
#include "cli/bench/bench.h"
#include "model/slots.h"

#include <math.h>
#include <string.h>

void bench_look(struct backend_limits *out, struct measure *host, const struct model *model)
{
    struct backend *be = model->backend;
    *out = (struct backend_limits){ 0 };
    if (be->ops->measure) {
        be->ops->measure(be, out);
        return;
    }
    out->read_gbps = measure_read_gbps(host);
    out->int8_gops = measure_int8_gops(host);
    out->f32_gflops = measure_f32_gflops(host);
}

struct backend_limits bench_median_limits(const struct backend_limits *looks, int n, double *scratch)
{
    struct backend_limits medians = { 0 };
    for (size_t at = 0; at < sizeof medians; at += sizeof(double)) { /* it has nothing but doubles */
        for (int i = 0; i < n; i++)
            memcpy(&scratch[i], (const char *)&looks[i] + at, sizeof(double));
        double median = measure_median(scratch, n);
        memcpy((char *)&medians + at, &median, sizeof median);
    }
    return medians;
}

double bench_position_ops(const struct attn_desc *a)
{
    int key = a->n_latent > 0 ? attn_latent_row(a) : a->head_dim,
        value = a->n_latent > 0 ? a->n_latent : a->head_dim;
    return 2.0 * a->n_heads * (key + value);
}

/* The positions that the rows of a step attend to in a layer, summed over the rows. A prompt's rows begin
 * at 0; stored: those whose keys and values are read from memory, each once. */
struct seen {
    double attended, stored;
};

static struct seen positions_seen(const struct attn_desc *a, const struct bench_result *result)
{
    double rows = result->n_tokens, context = result->context + 1.0;
    double window = a->window > 0 ? a->window : (double)INFINITY;
    if (result->phase == BENCH_DECODE) {
        double seen = rows * fmin(context, window);
        return (struct seen){ seen, seen };
    }
    double rising = fmin(rows, window); /* rows that attend to all before them */
    return (struct seen){ rising * (rising + 1) / 2 + (rows - rising) * fmin(rows, window), rows };
}

/* gops: 0: unknown. */
static double add_seconds(const struct backend_limits *limits, struct bench_work *work, double bytes,
                          double ops, double gops)
{
    double read_s = bytes / (limits->read_gbps * 1e9), compute_s = gops > 0 ? ops / (gops * 1e9) : 0;
    work->read_s += read_s >= compute_s ? read_s : 0;
    return fmax(read_s, compute_s);
}

static double peak_of(const struct backend_limits *limits, enum dtype type)
{
    if (limits->half_gflops > 0 && type != DTYPE_F32)
        return limits->half_gflops;
    return dtype_is_integers(type) && limits->int8_gops > 0 ? limits->int8_gops : limits->f32_gflops;
}

/* Adds n_rows of a matrix. Returns the seconds. */
static double add_matrix(const struct backend_limits *limits, struct bench_work *work, double n_rows,
                         double bytes, double n_weights, enum dtype type)
{
    double ops = 2 * n_rows * n_weights;
    work->matrix_bytes += bytes;
    work->linear_ops += ops;
    return add_seconds(limits, work, bytes, ops, peak_of(limits, type));
}

/* All experts' matrices of the model. */
static double bytes_of_experts(const struct model *model)
{
    double n_bytes = 0;
    for (struct slot_at at = SLOT_BEGIN; slot_next(&model->local, &at);) {
        const struct matrix *m = model_weight(model, at.slot, at.layer)->matrix;
        if (m && slot_info(at.slot)->is_of_experts)
            n_bytes += (double)model->backend->ops->matrix_bytes(m);
    }
    return n_bytes;
}

/* used: of the bytes of all experts. Layers are taken to use equally many of theirs. */
static double add_weights(const struct model *model, const struct bench_result *result,
                          struct bench_work *work, double used)
{
    const struct backend_ops *ops = model->backend->ops;
    double rows = result->n_tokens, n_outputs = result->phase == BENCH_PREFILL ? 1 : rows, seconds = 0;
    for (struct slot_at at = SLOT_BEGIN; slot_next(&model->local, &at);) {
        const struct slot_info *info = slot_info(at.slot);
        const struct matrix *m = model_weight(model, at.slot, at.layer)->matrix;
        if (!m || !info->is_of_layer)
            continue;
        struct slot_shape shape = slot_shape(&model->local, at.slot, at.layer);
        double n_bytes = (double)ops->matrix_bytes(m), n_weights = (double)shape.n_out * shape.n_in;
        if (info->is_of_experts) {
            n_bytes *= used;
            n_weights *= model_layer(&model->local, at.layer)->ffn.experts.routing.n_chosen;
        }
        /* After attention, in the order of the slots. */
        bool is_of_outputs = at.slot >= SLOT_V_UP && at.slot <= SLOT_FFN_POST_NORM &&
                             model_ends_rows(&model->local, at.layer);
        seconds += add_matrix(&result->limits, work, is_of_outputs ? n_outputs : rows, n_bytes, n_weights,
                              ops->matrix_type(m));
    }
    const struct matrix *output = model_output(model);
    return seconds + add_matrix(&result->limits, work, n_outputs, (double)ops->matrix_bytes(output),
                                (double)model->local.d_model * model->local.n_vocab,
                                ops->matrix_type(output));
}

static double add_attention(const struct model *model, const struct bench_result *result,
                            struct bench_work *work)
{
    const struct backend_limits *limits = &result->limits;
    bool is_half = limits->half_gflops > 0 && model->kv_type != DTYPE_F32;
    double seconds = 0, peak = is_half ? limits->half_gflops : limits->f32_gflops;
    for (int i = 0; i < model->local.n_layers; i++) {
        const struct attn_desc *a = &model_layer(&model->local, i)->attn;
        struct seen seen = positions_seen(a, result);
        double n_bytes = (double)model_layer_kv_bytes(a, model->kv_type) * seen.stored;
        double ops = bench_position_ops(a) * seen.attended;
        work->kv_bytes += n_bytes;
        work->attention_ops += ops;
        seconds += add_seconds(limits, work, n_bytes, ops, peak);
    }
    return seconds;
}

void bench_find_limit(const struct model *model, struct bench_result *result)
{
    double all = bytes_of_experts(model), used = all > 0 ? result->expert_bytes / all : 0;
    result->work = (struct bench_work){ 0 };
    double seconds = add_weights(model, result, &result->work, used);
    seconds += add_attention(model, result, &result->work);
    result->limit_tok_s = result->n_tokens / seconds;
    result->limit_read = result->work.read_s / seconds;
}
