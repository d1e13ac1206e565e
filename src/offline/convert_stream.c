#include "offline/convert_stream.h"

#include "kernels/quantize/quantize.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, ROWS_TOGETHER = 128 /* of a thread that assembles them */ };

enum row_state { ROW_FINE, ROW_NOT_FINITE, ROW_TOO_LARGE };

/* The conversion error of a row. */
struct row_error {
    double squares, squared_error;
    float max_error;
    enum row_state state;
};

/* A chunk of rows that all threads convert together. */
struct chunk {
    const struct planned_part *part;
    enum dtype type;
    int64_t first_row, n_rows, n_cols, n_total_rows; /* of the part */
    int64_t base, n_stored_rows;                     /* of the tensor: first row of the part; all rows */
    size_t in_bytes, out_bytes;                      /* of a row */
    const struct planned *plan;
    int64_t n_rows_before; /* of the plan's other parts */
    const uint8_t *in;     /* the stored rows from in_row on, or a transposed copy */
    int64_t in_row;
    const struct tensor_view *view; /* of a tensor that is assembled; NULL: another one */
    uint8_t *assembled;             /* what in points to then */
    bool is_by_chunk;               /* it is assembled chunk by chunk, each thread its own rows */
    atomic_bool fails;              /* a thread is out of memory */
    uint8_t *out;
    float *floats;            /* [n_threads][2][n_cols] */
    struct row_error *errors; /* [n_rows] */
    bool is_measured;
};

/* The model's row for a row of the part. */
static int64_t ordered_row(const struct chunk *k, int64_t row)
{
    int n_heads = k->part->change.n_permuted_heads;
    if (n_heads == 0)
        return row;
    int64_t head_dim = k->n_total_rows / n_heads, head = row / head_dim, j = row % head_dim;
    return head * head_dim + j / 2 + (j % 2) * (head_dim / 2);
}

/* The stored row for a row of the part. */
static int64_t source_row(const struct chunk *k, int64_t row)
{
    int64_t ordered = k->base + ordered_row(k, row);
    const struct head_order *order = &k->part->change.order;
    return order->head_dim > 0 ? weights_stored_row(order, k->n_stored_rows, ordered) : ordered;
}

/* Weights from here on become infinite: of Q8_0 the scale of their block, a 127th of them. The scales of other blocks are
 * limited. */
static float limit_of(enum dtype to)
{
    return to == DTYPE_F16    ? 65520
           : to == DTYPE_BF16 ? 0x1.ffp127f
           : to == DTYPE_Q8_0 ? 65520 * 127
                              : INFINITY;
}

/* Whether a row can be converted. */
static enum row_state state_of_row(const float *x, int64_t n, enum dtype to)
{
    float sum = 0, largest = 0; /* 0 times anything finite is 0 */
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * 0;
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    return !(sum == 0) ? ROW_NOT_FINITE : largest >= limit_of(to) ? ROW_TOO_LARGE : ROW_FINE;
}

static void measure_row(struct row_error *e, const float *before, const float *after, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = (double)before[i], error = x - (double)after[i];
        float size = (float)fabs(error);
        e->squares += x * x;
        e->squared_error += error * error;
        e->max_error = size > e->max_error ? size : e->max_error;
    }
}

/* The weights of the errors of a row of the part; NULL: all the same. */
static const float *importance_of(const struct chunk *k, int64_t row)
{
    const struct planned *p = k->plan;
    if (!p->importance)
        return NULL;
    int64_t n_all = 1, n_runs = p->n_importance / k->n_cols;
    for (int i = 0; i < p->n_dims - 1; i++)
        n_all *= p->shape[i];
    return p->importance + (k->n_rows_before + row) / (n_all / n_runs) * k->n_cols;
}

static void convert_row(const struct chunk *k, int64_t row, uint8_t *out, const uint8_t *in, float *floats,
                        struct row_error *e)
{
    enum dtype from = k->part->tensor->dtype, to = k->type;
    bool is_less_one = k->part->change.is_less_one, has_unit_rows = k->part->change.has_unit_rows;
    bool is_copied = from == to && !k->part->merge.merge && !is_less_one && !has_unit_rows;
    *e = (struct row_error){ 0 };
    if (is_copied)
        memcpy(out, in, k->in_bytes);
    if (is_copied && !k->is_measured)
        return;
    dequantize(floats, in, from, k->n_cols);
    for (int64_t i = 0; is_less_one && i < k->n_cols; i++)
        floats[i] += 1;
    if (has_unit_rows)
        weights_make_unit_rows(floats, 1, k->n_cols);
    merge_change(&k->part->merge, ordered_row(k, row), floats, k->n_cols);
    if (!is_copied) {
        e->state = state_of_row(floats, k->n_cols, to);
        if (e->state != ROW_FINE)
            return;
        quantize_weighted(out, floats, to, k->n_cols, importance_of(k, row));
    }
    if (!k->is_measured)
        return;
    float *after = floats + k->n_cols;
    dequantize(after, out, to, k->n_cols);
    measure_row(e, floats, after, k->n_cols);
}

/* Assembles n stored rows, from row on. False: out of memory. */
static bool assemble_rows(const struct chunk *k, uint8_t *to, int64_t row, int64_t n)
{
    int64_t n_columns = k->view->n_columns, begin = row * k->n_cols, end = (row + n) * k->n_cols;
    while (begin < end) { /* a row of a tensor of several matrices is a whole matrix */
        int64_t column = begin % n_columns, left = end - begin;
        struct tensor_part part = { begin / n_columns, 1, column, n_columns - column };
        if (column == 0 && left >= n_columns)
            part.n_rows = left / n_columns;
        else if (left < part.n_columns)
            part.n_columns = left;
        if (!tensor_view_copy(k->view, &part, to))
            return false;
        to += (size_t)part.n_rows * tensor_columns_bytes(k->view->tensor, part.n_columns);
        begin += part.n_rows * part.n_columns;
    }
    return true;
}

static void convert_rows(void *arg, int thread, int n_threads)
{
    struct chunk *k = arg;
    int64_t begin, end;
    team_range(k->n_rows, 1, thread, n_threads, &begin, &end);
    if (k->is_by_chunk && !assemble_rows(k, k->assembled + (size_t)begin * k->in_bytes,
                                         k->base + k->first_row + begin, end - begin)) {
        atomic_store(&k->fails, true);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *in = k->in + (size_t)(source_row(k, k->first_row + i) - k->in_row) * k->in_bytes;
        convert_row(k, k->first_row + i, k->out + (size_t)i * k->out_bytes, in,
                    k->floats + (int64_t)thread * 2 * k->n_cols, &k->errors[i]);
    }
}

/* Determines the rows of the part. A vector is a column of one-element rows if only some are used
 * or their order changes, else one row. */
static enum tutti_status measure_rows(struct chunk *k, struct tutti_error *err)
{
    const struct planned_part *p = k->part;
    const struct tensor *t = p->tensor;
    assert(t);
    bool is_column = p->change.n_permuted_heads > 0 || p->change.order.head_dim > 0 ||
                     p->n_rows != t->shape[0];
    k->n_total_rows = p->n_rows;
    k->base = p->first_row;
    if (t->n_dims > 1) {
        k->n_stored_rows = t->n_dims > 2 ? t->shape[0] * t->shape[1] : t->shape[p->change.is_transposed];
        k->n_cols = t->shape[p->change.is_transposed ? 0 : t->n_dims - 1];
    } else {
        k->n_total_rows = is_column ? p->n_rows : 1;
        k->n_stored_rows = is_column ? t->shape[0] : 1;
        k->n_cols = is_column ? 1 : t->shape[0];
    }
    if (!dtype_bytes(t->dtype, k->n_cols, &k->in_bytes) || !dtype_bytes(k->type, k->n_cols, &k->out_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: rows of %lld do not fit its type", t->file,
                         t->name, (long long)k->n_cols);
    return TUTTI_OK;
}

/* Adds the errors of a chunk, in the order of its rows. */
static enum tutti_status add_errors(const struct chunk *k, struct convert_result *result,
                                    struct tutti_error *err)
{
    const struct tensor *t = k->part->tensor;
    for (int64_t i = 0; i < k->n_rows; i++) {
        const struct row_error *e = &k->errors[i];
        if (e->state != ROW_FINE)
            return error_set(
                err, TUTTI_E_NUMERIC, "%s: tensor %s: row %lld holds %s", t->file, t->name,
                (long long)source_row(k, k->first_row + i),
                e->state == ROW_NOT_FINITE ? "infinite or NaN weights, expected finite ones"
                : k->type == DTYPE_F16
                    ? "weights beyond the range of f16, which ends at 65504; bf16 and f32 hold them"
                : k->type == DTYPE_Q8_0
                    ? "weights beyond the range of q8_0, which ends at 8319008; bf16 and f32 hold them"
                    : "weights beyond the range of bf16, which ends at 3.39e38; f32 holds them");
        result->squares += e->squares;
        result->squared_error += e->squared_error;
        result->max_error = e->max_error > result->max_error ? e->max_error : result->max_error;
    }
    return TUTTI_OK;
}

/* Whether the rows of the part are stored in the order in which they are written. */
static bool is_in_order(const struct chunk *k)
{
    return k->part->change.n_permuted_heads == 0 && k->part->change.order.head_dim == 0;
}

/* Drops the rows that were read from resident memory, if they are in the order of the chunks;
 * else the whole tensor is dropped at its end. */
static void forget_rows(const struct chunk *k)
{
    const struct tensor *t = k->part->tensor;
    if (t->map && k->in == t->data && is_in_order(k))
        mapping_forget(t->map, k->in + (size_t)(k->base + k->first_row) * k->in_bytes,
                       (size_t)k->n_rows * k->in_bytes);
}

/* The tensor's rows from first on, for all threads. */
struct whole {
    const struct chunk *chunk;
    const uint8_t *stored; /* to be transposed; NULL: assembled */
    int64_t first, n_rows;
    atomic_bool fails;
};

static void assemble_whole(void *arg, int thread, int n_threads)
{
    struct whole *w = arg;
    const struct chunk *k = w->chunk;
    int64_t begin, end;
    team_range(w->n_rows, ROWS_TOGETHER, thread, n_threads, &begin, &end);
    if (w->stored)
        weights_transpose_rows(k->assembled, k->part->tensor, w->stored, begin, end);
    else if (!assemble_rows(k, k->assembled + (size_t)begin * k->in_bytes, w->first + begin, end - begin))
        atomic_store(&w->fails, true);
}

/* Sets k->in. False: out of memory. */
static bool open_rows(struct convert_stream *s, struct chunk *k, const struct tensor_view *view,
                      int64_t rows_at_once)
{
    bool is_by_head = k->part->change.order.head_dim > 0, is_transposed = k->part->change.is_transposed;
    void *owned = NULL;
    if (!is_transposed && view->bytes) {
        k->in = view->bytes;
        return true;
    }
    struct whole all = { .chunk = k, .n_rows = k->n_total_rows };
    if (is_transposed)
        all.stored = tensor_bytes(k->part->tensor, &owned);
    else
        k->view = view;
    k->is_by_chunk = !is_transposed && is_in_order(k);
    if (is_transposed || is_by_head)
        all.n_rows = k->n_stored_rows;
    else if (k->is_by_chunk)
        all.n_rows = rows_at_once;
    all.first = is_transposed || is_by_head ? 0 : k->base;
    k->in_row = all.first;
    if (!is_transposed || all.stored)
        k->in = k->assembled = malloc((size_t)all.n_rows * k->in_bytes);
    if (k->assembled && !k->is_by_chunk)
        team_run(s->team, assemble_whole, &all);
    free(owned);
    return k->assembled && !all.fails;
}

static enum tutti_status write_rows(struct convert_stream *s, struct chunk *k, int64_t rows_at_once,
                                    struct convert_result *result, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (; st == TUTTI_OK && k->first_row < k->n_total_rows; k->first_row += k->n_rows) {
        int64_t left = k->n_total_rows - k->first_row;
        k->n_rows = left < rows_at_once ? left : rows_at_once;
        if (k->is_by_chunk)
            k->in_row = k->base + k->first_row;
        team_run(s->team, convert_rows, k);
        if (k->fails)
            return error_out_of_memory(checkpoint_path(s->ck), err);
        forget_rows(k);
        st = add_errors(k, result, err);
        if (st == TUTTI_OK)
            st = gguf_writer_data(s->writer, k->out, (size_t)k->n_rows * k->out_bytes, err);
        s->done += (uint64_t)k->n_rows * k->out_bytes;
        if (s->options->progress)
            s->options->progress(s->options->user, s->done, s->total);
    }
    return st;
}

static void report_tensor(const struct convert_stream *s, const struct planned *p,
                          struct convert_result *result)
{
    if (!s->options->report)
        return;
    result->name = p->name;
    result->from = p->parts[0].tensor->dtype;
    result->to = p->type;
    result->wanted = p->wanted;
    result->n_dims = p->n_dims;
    memcpy(result->shape, p->shape, sizeof p->shape);
    s->options->report(s->options->user, result);
}

/* view: of the part's tensor. n_rows_before: of the parts before it; its own are added. */
static enum tutti_status stream_part(struct convert_stream *s, const struct planned *plan,
                                     const struct planned_part *part, const struct tensor_view *view,
                                     int64_t *n_rows_before, struct convert_result *result,
                                     struct tutti_error *err)
{
    struct chunk k = { .part = part,
                       .type = plan->type,
                       .plan = plan,
                       .n_rows_before = *n_rows_before,
                       .is_measured = s->options->report };
    enum tutti_status st = measure_rows(&k, err);
    if (st != TUTTI_OK)
        return st;
    int64_t rows_at_once = CHUNK_BYTES / (int64_t)k.out_bytes;
    if (rows_at_once < 1)
        rows_at_once = 1;
    if (rows_at_once > k.n_total_rows)
        rows_at_once = k.n_total_rows;
    bool is_open = open_rows(s, &k, view, rows_at_once);
    k.out = malloc((size_t)rows_at_once * k.out_bytes);
    k.floats = malloc((size_t)team_n_threads(s->team) * 2 * (size_t)k.n_cols * sizeof *k.floats);
    k.errors = malloc((size_t)rows_at_once * sizeof *k.errors);
    if (!is_open || !k.out || !k.floats || !k.errors)
        st = error_out_of_memory(checkpoint_path(s->ck), err);
    if (st == TUTTI_OK)
        st = write_rows(s, &k, rows_at_once, result, err);
    *n_rows_before += k.n_total_rows;
    result->n_elems += (uint64_t)(k.n_total_rows * k.n_cols);
    result->n_bytes += (uint64_t)k.n_total_rows * k.out_bytes;
    free(k.assembled);
    free(k.out);
    free(k.floats);
    free(k.errors);
    tensor_forget(part->tensor);
    return st;
}

enum tutti_status convert_stream_tensor(struct convert_stream *s, const struct planned *plan,
                                        struct tutti_error *err)
{
    struct convert_result result = { 0 };
    struct tensor_view view = { 0 }; /* experts of one tensor share it */
    int64_t n_rows_before = 0;
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < plan->n_parts && st == TUTTI_OK; i++) {
        const struct planned_part *part = &plan->parts[i];
        if (part->tensor != view.tensor && !part->change.is_transposed) {
            tensor_view_clear(&view);
            if (!tensor_view_init(&view, part->tensor))
                st = error_out_of_memory(checkpoint_path(s->ck), err);
        }
        if (st == TUTTI_OK)
            st = stream_part(s, plan, part, &view, &n_rows_before, &result, err);
    }
    tensor_view_clear(&view);
    if (st == TUTTI_OK)
        report_tensor(s, plan, &result);
    return st;
}
