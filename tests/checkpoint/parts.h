/* Checks that parts of a tensor have the bytes that the whole has there. */
#ifndef TUTTI_TESTS_CHECKPOINT_PARTS_H
#define TUTTI_TESTS_CHECKPOINT_PARTS_H

#include "checkpoint/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Compares parts of rows and columns (quarters, and all) with what tensor_bytes() gives. */
static inline void assert_parts_are_cut_out(const struct tensor *t)
{
    struct tensor_view view;
    void *owned;
    const uint8_t *all = tensor_bytes(t, &owned);
    assert_true(tensor_view_init(&view, t));
    size_t stride = tensor_columns_bytes(t, view.n_columns), block = (size_t)dtype_block_elems(t->dtype);
    int64_t n_blocks = view.n_columns / (int64_t)block;
    uint8_t *part = malloc(t->n_bytes + 1);
    assert_non_null(part);
    for (int k = 0; k < 16; k++) {
        struct tensor_part p = { .row = view.n_rows * (k % 4) / 4, .column = n_blocks * (k / 4) / 4 };
        p.n_rows = k % 4 ? view.n_rows * (k % 4 + 1) / 4 - p.row : view.n_rows;
        p.n_columns = (k / 4 ? n_blocks * (k / 4 + 1) / 4 - p.column : n_blocks) * (int64_t)block;
        p.column *= (int64_t)block;
        size_t n = tensor_columns_bytes(t, p.n_columns);
        assert_true(tensor_view_copy(&view, &p, part));
        for (int64_t r = 0; r < p.n_rows; r++)
            assert_memory_equal(part + (size_t)r * n,
                                all + (size_t)(p.row + r) * stride + tensor_columns_bytes(t, p.column), n);
    }
    free(part);
    tensor_view_clear(&view);
    free(owned);
}

#endif
