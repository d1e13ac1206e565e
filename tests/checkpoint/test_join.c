/* Tests of src/checkpoint/tensor_join: tensors cut at random are compared with the array that they were cut from. */
#include "checkpoint/tensor_join.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROUNDS = 400, MAX_SIDE = 6, MAX_PIECES = 256 };

static uint64_t state_of_random = 1;

static int64_t random_below(int64_t n)
{
    state_of_random = state_of_random * 6364136223846793005U + 1442695040888963407U;
    return (int64_t)((state_of_random >> 33) % (uint64_t)n);
}

/* A whole tensor, and tensors that hold its pieces. */
struct cut {
    struct tensor whole, joined;
    uint16_t *elems;
    struct tensor pieces[MAX_PIECES];
    size_t n_pieces;
    struct tensor_join *joins;
};

static struct tensor make_tensor(enum dtype dtype, int n_dims, const int64_t *shape)
{
    struct tensor t = { .name = "t", .file = "f", .dtype = dtype, .n_dims = n_dims };
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    assert_true(tensor_measure(&t));
    return t;
}

static void begin_cut(struct cut *c, bool is_bytes)
{
    int64_t shape[LIMIT_TENSOR_DIMS];
    int n_dims = (int)random_below(LIMIT_TENSOR_DIMS + 1);
    for (int i = 0; i < n_dims; i++)
        shape[i] = 1 + random_below(MAX_SIDE);
    *c = (struct cut){ .whole = make_tensor(DTYPE_F16, n_dims, shape) };
    c->elems = malloc(c->whole.n_bytes);
    assert_non_null(c->elems);
    for (size_t i = 0; i < c->whole.n_bytes / 2; i++)
        c->elems[i] = (uint16_t)(i * 40503);
    c->whole.data = c->elems;
    c->joined = c->whole;
    assert_non_null(tensor_join_new(&c->joins, &c->joined, is_bytes));
}

static void end_cut(struct cut *c)
{
    for (size_t i = 0; i < c->n_pieces; i++)
        free((void *)(uintptr_t)c->pieces[i].data);
    tensor_joins_free(c->joins);
    free(c->elems);
}

/* The elements [at, at + n) of the whole, by the definition of a row-major array. */
static void *copy_box(const struct cut *c, const int64_t *at, const int64_t *n, size_t n_bytes)
{
    uint16_t *out = malloc(n_bytes ? n_bytes : 1);
    assert_non_null(out);
    for (size_t k = 0; k < n_bytes / 2; k++) {
        int64_t left = (int64_t)k, offset = 0, stride = 1;
        for (int i = c->whole.n_dims - 1; i >= 0; i--) {
            offset += (at[i] + left % n[i]) * stride;
            stride *= c->whole.shape[i];
            left /= n[i];
        }
        out[k] = c->elems[offset];
    }
    return out;
}

/* A piece is in the middle of a tensor that is larger by margin on both sides of its first dimension, or fills one. */
static void add_box(struct cut *c, const int64_t *at, const int64_t *n)
{
    int n_dims = c->whole.n_dims;
    int64_t from_at[LIMIT_TENSOR_DIMS] = { 0 }, shape[LIMIT_TENSOR_DIMS];
    memcpy(shape, n, (size_t)n_dims * sizeof *n);
    assert_true(c->n_pieces < MAX_PIECES);
    struct tensor *piece = &c->pieces[c->n_pieces++];
    if (n_dims > 0) {
        from_at[0] = random_below(3);
        shape[0] += from_at[0] + random_below(2);
    }
    *piece = make_tensor(DTYPE_F16, n_dims, shape);
    uint8_t *data = malloc(piece->n_bytes);
    assert_non_null(data);
    memset(data, 0xA5, piece->n_bytes);
    size_t row_bytes = 2, n_rows = 1;
    for (int i = 1; i < n_dims; i++)
        row_bytes *= (size_t)n[i];
    n_rows = n_dims > 0 ? (size_t)n[0] : 1;
    void *own = copy_box(c, at, n, row_bytes * n_rows);
    memcpy(data + (size_t)from_at[0] * row_bytes, own, row_bytes * n_rows);
    free(own);
    piece->data = data;
    assert_true(tensor_join_add(c->joins, n_dims, piece, from_at, at, n));
}

/* Cuts each dimension at random places. */
static void cut_boxes(struct cut *c)
{
    int64_t borders[LIMIT_TENSOR_DIMS][MAX_SIDE + 1], n_parts[LIMIT_TENSOR_DIMS], n = 1;
    begin_cut(c, false);
    for (int i = 0; i < c->whole.n_dims; i++) {
        n_parts[i] = 0;
        borders[i][0] = 0;
        for (int64_t k = 1; k <= c->whole.shape[i]; k++) {
            if (k == c->whole.shape[i] || random_below(3) == 0)
                borders[i][++n_parts[i]] = k;
        }
        if (n * n_parts[i] > MAX_PIECES) { /* not cut */
            n_parts[i] = 1;
            borders[i][1] = c->whole.shape[i];
        }
        n *= n_parts[i];
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t at[LIMIT_TENSOR_DIMS], size[LIMIT_TENSOR_DIMS], left = k;
        for (int i = 0; i < c->whole.n_dims; left /= n_parts[i++]) {
            int64_t part = left % n_parts[i];
            at[i] = borders[i][part];
            size[i] = borders[i][part + 1] - at[i];
        }
        add_box(c, at, size);
    }
}

/* Runs of bytes that need not begin at an element. */
static void cut_bytes(struct cut *c)
{
    begin_cut(c, true);
    for (int64_t at = 0; at < (int64_t)c->whole.n_bytes;) {
        const int64_t none = 0;
        int64_t left = (int64_t)c->whole.n_bytes - at,
                n = c->n_pieces + 1 < MAX_PIECES ? 1 + random_below(40) : left;
        n = n < left ? n : left;
        struct tensor *piece = &c->pieces[c->n_pieces++];
        *piece = make_tensor(DTYPE_U8, 1, &n);
        void *data = malloc((size_t)n);
        assert_non_null(data);
        memcpy(data, (const uint8_t *)c->elems + at, (size_t)n);
        piece->data = data;
        assert_true(tensor_join_add(c->joins, 1, piece, &none, &at, &n));
        at += n;
    }
}

static void compare_whole(const struct cut *c)
{
    void *owned;
    const void *bytes = tensor_bytes(&c->joined, &owned);
    assert_non_null(bytes);
    assert_memory_equal(bytes, c->elems, c->whole.n_bytes);
    free(owned);
}

/* Every part begins at another place; bytes outside of it must stay as they are. */
static void compare_parts(const struct cut *c, const struct tensor *joined)
{
    struct tensor_view view, plain;
    assert_true(tensor_view_init(&view, joined) && tensor_view_init(&plain, &c->whole));
    for (int k = 0; k < 20; k++) {
        struct tensor_part part = { .row = random_below(view.n_rows),
                                    .column = random_below(view.n_columns) };
        part.n_rows = 1 + random_below(view.n_rows - part.row);
        part.n_columns = 1 + random_below(view.n_columns - part.column);
        size_t n = (size_t)(part.n_rows * part.n_columns) * 2;
        uint8_t *got = malloc(n + 1), *want = malloc(n);
        assert_true(got && want);
        got[n] = 0x5A;
        assert_true(tensor_view_copy(&view, &part, got) && tensor_view_copy(&plain, &part, want));
        assert_memory_equal(got, want, n);
        assert_int_equal(got[n], 0x5A);
        free(got);
        free(want);
    }
    tensor_view_clear(&view);
    tensor_view_clear(&plain);
}

static void boxes_are_joined(void **state)
{
    (void)state;
    for (int k = 0; k < N_ROUNDS; k++) {
        static struct cut c;
        cut_boxes(&c);
        assert_non_null(c.joins->source.make_part); /* nothing is assembled as a whole for a part */
        assert_int_equal(c.joins->source.n_from, c.n_pieces);
        compare_whole(&c);
        compare_parts(&c, &c.joined);
        end_cut(&c);
    }
}

static void runs_of_bytes_are_joined(void **state)
{
    (void)state;
    for (int k = 0; k < N_ROUNDS; k++) {
        static struct cut c;
        cut_bytes(&c);
        compare_whole(&c);
        compare_parts(&c, &c.joined);
        end_cut(&c);
    }
}

/* A rank's file may itself hold a tensor in slices: the joined tensor of bytes is the one piece of another one. */
static void a_piece_may_be_joined_itself(void **state)
{
    (void)state;
    for (int k = 0; k < N_ROUNDS; k++) {
        static struct cut c;
        static const int64_t NONE[LIMIT_TENSOR_DIMS] = { 0 };
        struct tensor_join *joins = NULL;
        cut_bytes(&c);
        struct tensor outer = c.whole;
        struct tensor_join *join = tensor_join_new(&joins, &outer, false);
        assert_non_null(join);
        if (outer.n_dims > 0 && outer.shape[0] > 1) { /* its first row, then the others */
            int64_t one[LIMIT_TENSOR_DIMS] = { 1 }, rest[LIMIT_TENSOR_DIMS];
            memcpy(rest, outer.shape, sizeof rest);
            memcpy(one + 1, outer.shape + 1, sizeof one - sizeof *one);
            int64_t second[LIMIT_TENSOR_DIMS] = { 1 };
            rest[0]--;
            assert_true(tensor_join_add(join, outer.n_dims, &c.joined, second, second, rest));
            assert_true(tensor_join_add(join, outer.n_dims, &c.joined, NONE, NONE, one));
        } else {
            assert_true(tensor_join_add(join, outer.n_dims, &c.joined, NONE, NONE, outer.shape));
        }
        compare_parts(&c, &outer);
        tensor_joins_free(joins);
        end_cut(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_are_joined),
        cmocka_unit_test(runs_of_bytes_are_joined),
        cmocka_unit_test(a_piece_may_be_joined_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
