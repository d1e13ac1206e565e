/* Which type a matrix runs as, and tensors that are put together when they are asked for. */
#include "model/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum dtype common(enum dtype a, enum dtype b, enum dtype c)
{
    struct tensor t[3] = { { .dtype = a }, { .dtype = b }, { .dtype = c } };
    struct weight w = { .parts = { &t[0], &t[1], &t[2] }, .n_parts = 3 };
    return weights_common_type(&w);
}

static void the_finest_type_of_a_fused_matrix_wins(void **state)
{
    (void)state;
    static const struct {
        enum dtype a, b, c, want;
    } CASES[] = {
        { DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16 },
        { DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q4_K },
        { DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0 },
        { DTYPE_F16, DTYPE_F32, DTYPE_F16, DTYPE_F32 },
        { DTYPE_F16, DTYPE_F16, DTYPE_BF16, DTYPE_F32 },
        { DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_F16, DTYPE_F16 },
        { DTYPE_F16, DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_F16 },
        { DTYPE_Q4_0, DTYPE_BF16, DTYPE_Q4_0, DTYPE_BF16 },
        { DTYPE_Q4_0, DTYPE_Q6_K, DTYPE_F32, DTYPE_F32 },
        { DTYPE_BF16, DTYPE_F32, DTYPE_Q8_0, DTYPE_F32 },
        { DTYPE_F8_ROW, DTYPE_F8_ROW, DTYPE_F8_ROW, DTYPE_F8_ROW },
        { DTYPE_F8_ROW, DTYPE_F8_BLOCK, DTYPE_F8_ROW, DTYPE_BF16 },
        { DTYPE_F8_BLOCK, DTYPE_F8_BLOCK, DTYPE_F16, DTYPE_F16 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        enum dtype a = CASES[i].a, b = CASES[i].b, c = CASES[i].c;
        assert_int_equal(common(a, b, c), CASES[i].want);
        assert_int_equal(common(b, c, a), CASES[i].want); /* the order of the parts does not matter */
        assert_int_equal(common(c, a, b), CASES[i].want);
    }
}

static void a_type_whose_blocks_do_not_fit_falls_back_to_the_next(void **state)
{
    (void)state;
    assert_int_equal(weights_fit_type(DTYPE_Q4_K, 512), DTYPE_Q4_K);
    assert_int_equal(weights_fit_type(DTYPE_Q2_K, 96), DTYPE_Q4_0);
    assert_int_equal(weights_fit_type(DTYPE_Q3_K, 96), DTYPE_Q4_0);
    assert_int_equal(weights_fit_type(DTYPE_Q4_K, 96), DTYPE_Q5_0);
    assert_int_equal(weights_fit_type(DTYPE_Q5_K, 96), DTYPE_Q5_1);
    assert_int_equal(weights_fit_type(DTYPE_Q6_K, 96), DTYPE_Q8_0);
    assert_int_equal(weights_fit_type(DTYPE_Q6_K, 100), DTYPE_F16);
    assert_int_equal(weights_fit_type(DTYPE_Q4_0, 100), DTYPE_F16);
    assert_int_equal(weights_fit_type(DTYPE_Q4_0, 64), DTYPE_Q4_0);
    assert_int_equal(weights_fit_type(DTYPE_F32, 100), DTYPE_F32);
}

/* A source that reverses what it is made from. */
static bool reverse(const struct tensor *t, void *bytes)
{
    const float *from = t->source->from[0]->data;
    size_t n = t->n_bytes / sizeof *from;
    for (size_t i = 0; i < n; i++)
        ((float *)bytes)[i] = from[n - 1 - i];
    return true;
}

static bool fail_to_make(const struct tensor *t, void *bytes)
{
    (void)t, (void)bytes;
    return false;
}

static void a_tensor_with_a_source_is_read_as_any_other(void **state)
{
    (void)state;
    static const float VALUES[6] = { 6, 5, 4, 3, 2, 1 };
    struct tensor stored = { .data = VALUES, .n_bytes = sizeof VALUES };
    const struct tensor *from[] = { &stored };
    struct tensor_source source = { .make = reverse, .from = from, .n_from = 1 };
    struct tensor t = { .name = "t",
                        .dtype = DTYPE_F32,
                        .n_dims = 2,
                        .shape = { 2, 3 },
                        .n_bytes = sizeof VALUES,
                        .source = &source };
    float *floats = weights_to_floats(&t, 2), *turned = weights_transposed(&t);
    assert_true(floats && turned);
    for (int i = 0; i < 6; i++) {
        assert_true(floats[i] == (float)(i + 1));
        assert_true(turned[i] == (float)(i % 2 * 3 + i / 2 + 1));
    }
    free(floats);
    free(turned);
    tensor_forget(&t); /* memory that is no mapping stays */
    assert_true(VALUES[0] == 6);
    source.make = fail_to_make;
    assert_null(weights_to_floats(&t, 2));
    assert_null(weights_transposed(&t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_finest_type_of_a_fused_matrix_wins),
        cmocka_unit_test(a_type_whose_blocks_do_not_fit_falls_back_to_the_next),
        cmocka_unit_test(a_tensor_with_a_source_is_read_as_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
