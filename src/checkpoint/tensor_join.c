#include "checkpoint/tensor_join.h"

#include "base/containers/array.h"

#include <stdlib.h>
#include <string.h>

enum { N = LIMIT_TENSOR_DIMS };

/* A box of the whole, and the memory that it is written to row by row without gaps. */
struct box {
    int64_t at[N], n[N];
    uint8_t *to;
    size_t size; /* bytes of an element */
};

/* Copies values to the last of N dimensions; those in front are fill. */
static void pad_shape(int64_t out[N], const int64_t *values, int n_dims, int64_t fill)
{
    for (int i = 0; i < N; i++)
        out[i] = i < N - n_dims ? fill : values[i - (N - n_dims)];
}

static int64_t offset_of(const int64_t at[N], const int64_t shape[N])
{
    int64_t offset = at[0];
    for (int i = 1; i < N; i++)
        offset = offset * shape[i] + at[i];
    return offset;
}

/* Copies a run of consecutive elements, which lies in one row of the view or is whole rows. */
static bool copy_run(const struct tensor_view *view, size_t size, int64_t first, int64_t n, uint8_t *to)
{
    int64_t columns = view->n_columns;
    if (view->bytes) {
        memcpy(to, (const uint8_t *)view->bytes + (size_t)first * size, (size_t)n * size);
        return true;
    }
    struct tensor_part part = { first / columns, 1, first % columns, n };
    if (part.column == 0 && n % columns == 0)
        part = (struct tensor_part){ first / columns, n / columns, 0, columns };
    return tensor_view_copy(view, &part, to);
}

/* Copies what piece and box have in common. from_shape: of piece->from. */
static bool copy_piece(const struct tensor_piece *piece, const int64_t from_shape[N], const struct box *box)
{
    int64_t from[N], to[N], n[N];
    for (int i = 0; i < N; i++) {
        int64_t begin = piece->at[i] > box->at[i] ? piece->at[i] : box->at[i];
        int64_t end = piece->at[i] + piece->n[i], box_end = box->at[i] + box->n[i];
        n[i] = (end < box_end ? end : box_end) - begin;
        if (n[i] <= 0)
            return true;
        from[i] = piece->from_at[i] + begin - piece->at[i];
        to[i] = begin - box->at[i];
    }
    /* Dimensions that are whole on both sides are one run together with the one in front. */
    int last = N - 1;
    int64_t run = n[last];
    while (last > 0 && n[last] == from_shape[last] && n[last] == box->n[last])
        run *= n[--last];
    int64_t n_runs = 1;
    for (int i = 0; i < last; i++)
        n_runs *= n[i];
    struct tensor_view view;
    bool ok = tensor_view_init(&view, piece->from);
    for (int64_t k = 0; k < n_runs && ok; k++) {
        int64_t from_at[N], to_at[N], left = k;
        memcpy(from_at, from, sizeof from_at);
        memcpy(to_at, to, sizeof to_at);
        for (int i = last - 1; i >= 0; left /= n[i--]) {
            from_at[i] += left % n[i];
            to_at[i] += left % n[i];
        }
        ok = copy_run(&view, box->size, offset_of(from_at, from_shape), run,
                      box->to + (size_t)offset_of(to_at, box->n) * box->size);
    }
    tensor_view_clear(&view);
    return ok;
}

static bool copy_box(const struct tensor_join *join, const struct box *box)
{
    bool ok = true;
    for (size_t i = 0; i < join->n_pieces && ok; i++) {
        const struct tensor *from = join->pieces[i].from;
        int64_t shape[N];
        pad_shape(shape, from->shape, from->n_dims, 1);
        ok = copy_piece(&join->pieces[i], shape, box);
    }
    return ok;
}

static bool copy_bytes(const struct tensor_join *join, size_t begin, size_t n, uint8_t *to)
{
    const int64_t at = (int64_t)begin, n_elems = (int64_t)n;
    struct box box = { .to = to, .size = 1 };
    pad_shape(box.at, &at, 1, 0);
    pad_shape(box.n, &n_elems, 1, 1);
    return copy_box(join, &box);
}

static bool make_joined(const struct tensor *t, void *bytes)
{
    const struct tensor_join *join = (const struct tensor_join *)t->source;
    struct box box = { .to = bytes, .size = (size_t)dtype_block_bytes(t->dtype) };
    if (join->is_bytes)
        return copy_bytes(join, 0, t->n_bytes, bytes);
    pad_shape(box.n, t->shape, t->n_dims, 1);
    return copy_box(join, &box);
}

/* Runs of bytes can begin anywhere: rows are copied one by one unless they are whole. */
static bool make_part_of_bytes(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct tensor_join *join = (const struct tensor_join *)t->source;
    int64_t n_columns = 1;
    for (int i = 1; i < t->n_dims; i++)
        n_columns *= t->shape[i];
    size_t row_bytes = tensor_columns_bytes(t, n_columns), n = tensor_columns_bytes(t, part->n_columns);
    size_t begin = (size_t)part->row * row_bytes + tensor_columns_bytes(t, part->column);
    if (n == row_bytes)
        return copy_bytes(join, begin, n * (size_t)part->n_rows, bytes);
    bool ok = true;
    for (int64_t r = 0; r < part->n_rows && ok; r++)
        ok = copy_bytes(join, begin + (size_t)r * row_bytes, n, (uint8_t *)bytes + (size_t)r * n);
    return ok;
}

/* The largest box of at most n elements that follow one another in row, from column on. first: the
 * dimension of rows. Returns how many elements it has. */
static int64_t box_of_columns(struct box *box, const int64_t shape[N], int first, int64_t row, int64_t column,
                              int64_t n)
{
    int64_t n_elems = 1;
    int i = N - 1;
    for (int k = N - 1; k > first; column /= shape[k--]) {
        box->at[k] = column % shape[k];
        box->n[k] = 1;
    }
    box->at[first] = row;
    box->n[first] = 1;
    for (; i > first + 1 && box->at[i] == 0 && n >= n_elems * shape[i]; i--)
        n_elems *= box->n[i] = shape[i];
    box->n[i] = shape[i] - box->at[i];
    if (box->n[i] > n / n_elems)
        box->n[i] = n / n_elems;
    return n_elems * box->n[i];
}

static bool make_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct tensor_join *join = (const struct tensor_join *)t->source;
    struct box box = { .to = bytes, .size = (size_t)dtype_block_bytes(t->dtype) };
    int64_t shape[N], n_columns = 1;
    int first = N - (t->n_dims > 0 ? t->n_dims : 1);
    pad_shape(shape, t->shape, t->n_dims, 1);
    pad_shape(box.n, NULL, 0, 1);
    for (int i = first + 1; i < N; i++)
        n_columns *= box.n[i] = shape[i];
    if (part->n_columns == n_columns || t->n_dims <= 2) {
        box.at[first] = part->row;
        box.n[first] = part->n_rows;
        if (t->n_dims > 1 && part->n_columns != n_columns) {
            box.at[N - 1] = part->column;
            box.n[N - 1] = part->n_columns;
        }
        return copy_box(join, &box);
    }
    bool ok = true;
    for (int64_t r = 0; r < part->n_rows; r++)
        for (int64_t c = 0, n; c < part->n_columns && ok; c += n) {
            n = box_of_columns(&box, shape, first, part->row + r, part->column + c, part->n_columns - c);
            ok = copy_box(join, &box);
            box.to += (size_t)n * box.size;
        }
    return ok;
}

struct tensor_join *tensor_join_new(struct tensor_join **list, struct tensor *tensor, bool is_bytes)
{
    struct tensor_join *join = calloc(1, sizeof *join);
    if (!join)
        return NULL;
    join->before = *list;
    *list = join;
    join->is_bytes = is_bytes;
    join->source.make = make_joined;
    join->source.make_part = is_bytes ? make_part_of_bytes : make_part;
    tensor->data = NULL;
    tensor->map = NULL;
    tensor->source = &join->source;
    return join;
}

static bool join_grow(struct tensor_join *join)
{
    size_t capacity = join->capacity ? 2 * join->capacity : 4;
    bool ok = array_resize(&join->pieces, capacity, sizeof *join->pieces) &&
              array_resize(&join->from, capacity, sizeof *join->from);
    if (ok)
        join->capacity = capacity;
    return ok;
}

bool tensor_join_add(struct tensor_join *join, int n_dims, const struct tensor *from, const int64_t *from_at,
                     const int64_t *at, const int64_t *n)
{
    if (join->n_pieces == join->capacity && !join_grow(join))
        return false;
    struct tensor_piece *piece = &join->pieces[join->n_pieces];
    piece->from = from;
    pad_shape(piece->from_at, from_at, n_dims, 0);
    pad_shape(piece->at, at, n_dims, 0);
    pad_shape(piece->n, n, n_dims, 1);
    join->from[join->n_pieces++] = from;
    join->source.from = join->from;
    join->source.n_from = join->n_pieces;
    return true;
}

void tensor_joins_free(struct tensor_join *list)
{
    while (list) {
        struct tensor_join *before = list->before;
        free(list->pieces);
        free((void *)list->from);
        free(list);
        list = before;
    }
}
