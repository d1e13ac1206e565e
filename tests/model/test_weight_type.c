/* Which type a matrix gets under each name. */
#include "model/weights/weight_type.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum dtype choose(const char *type, enum weight_role role, int layer, int n_layers, int n_sharing)
{
    const struct weight_place place = {
        .role = role, .layer = layer, .n_layers = n_layers, .n_sharing = n_sharing
    };
    const struct weight_type *found = weight_type_find(type);
    assert_non_null(found);
    return weight_type_choose(found, &place);
}

static void names_are_found_in_any_case_and_by_other_words(void **state)
{
    (void)state;
    for (int i = 0; WEIGHT_TYPE_NAMES[i]; i++)
        assert_string_equal(weight_type_find(WEIGHT_TYPE_NAMES[i])->name, WEIGHT_TYPE_NAMES[i]);
    for (int i = 0; WEIGHT_TYPE_ALIASES[i]; i += 2)
        assert_string_equal(weight_type_find(WEIGHT_TYPE_ALIASES[i])->name, WEIGHT_TYPE_ALIASES[i + 1]);
    assert_string_equal(weight_type_find("Q4_K")->name, "q4_k_m");
    assert_string_equal(weight_type_find("BFloat16")->name, "bf16");
    assert_null(weight_type_find("q4"));
    assert_null(weight_type_find(""));
    assert_null(weight_type_find("i8"));
    char list[256];
    weight_type_list(list, sizeof list);
    assert_non_null(strstr(list, "f32, f16, bf16"));
    assert_non_null(strstr(list, " or q2_k_s"));
    weight_type_list(list, 8); /* cut, not overrun */
    assert_string_equal(list, "f32, f1");
}

/* Of 32 layers with four query heads for each of values, unless said. The expected types are those that llama-quantize gives. */
static void sensitive_matrices_get_finer_types(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        enum weight_role role;
        int layer, n_sharing;
        enum dtype want;
    } CASES[] = {
        { "q4_k_m", WEIGHT_OUTPUT, 0, 4, DTYPE_Q6_K },    { "q8_0", WEIGHT_OUTPUT, 0, 4, DTYPE_Q8_0 },
        { "f16", WEIGHT_OUTPUT, 0, 4, DTYPE_F16 },        { "q4_0", WEIGHT_OUTPUT, 0, 4, DTYPE_Q6_K },
        { "q4_k_m", WEIGHT_EMBEDDING, 0, 4, DTYPE_Q4_K }, { "q4_k_m", WEIGHT_VALUES, 3, 4, DTYPE_Q6_K },
        { "q4_k_m", WEIGHT_VALUES, 4, 4, DTYPE_Q4_K },    { "q4_k_m", WEIGHT_VALUES, 6, 4, DTYPE_Q6_K },
        { "q4_k_m", WEIGHT_VALUES, 28, 4, DTYPE_Q6_K },   { "q4_k_m", WEIGHT_DOWN, 9, 4, DTYPE_Q6_K },
        { "q4_k_m", WEIGHT_DOWN, 10, 4, DTYPE_Q4_K },     { "q4_k_m", WEIGHT_OTHER, 0, 4, DTYPE_Q4_K },
        { "q4_k_s", WEIGHT_VALUES, 3, 4, DTYPE_Q5_K },    { "q4_k_s", WEIGHT_DOWN, 4, 4, DTYPE_Q4_K },
        { "q5_k_m", WEIGHT_DOWN, 31, 4, DTYPE_Q6_K },     { "q5_k_s", WEIGHT_DOWN, 31, 4, DTYPE_Q5_K },
        { "q3_k_m", WEIGHT_VALUES, 1, 4, DTYPE_Q5_K },    { "q3_k_m", WEIGHT_VALUES, 2, 4, DTYPE_Q4_K },
        { "q3_k_m", WEIGHT_ATTN_OUT, 9, 4, DTYPE_Q4_K },  { "q3_k_l", WEIGHT_DOWN, 9, 4, DTYPE_Q5_K },
        { "q3_k_s", WEIGHT_DOWN, 9, 4, DTYPE_Q3_K },      { "q2_k", WEIGHT_VALUES, 9, 4, DTYPE_Q4_K },
        { "q2_k", WEIGHT_VALUES, 9, 1, DTYPE_Q3_K },      { "q2_k", WEIGHT_ATTN_OUT, 9, 4, DTYPE_Q3_K },
        { "q2_k_s", WEIGHT_DOWN, 3, 4, DTYPE_Q4_K },      { "q2_k_s", WEIGHT_DOWN, 4, 4, DTYPE_Q2_K },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        enum dtype found = choose(CASES[i].type, CASES[i].role, CASES[i].layer, 32, CASES[i].n_sharing);
        if (found != CASES[i].want)
            fail_msg("%s, role %d, layer %d: %s, expected %s", CASES[i].type, CASES[i].role, CASES[i].layer,
                     dtype_name(found), dtype_name(CASES[i].want));
    }
}

/* The rules that llama-quantize has for some models: of 32 layers with eight query heads for each of values. */
static void some_models_have_types_of_their_own(void **state)
{
    (void)state;
    static const struct weight_place FALCON = { .is_falcon = true }, EXPERTS = { .n_experts = 8 },
                                     LARGE = { .is_70b = true }, IMATRIX = { .has_imatrix = true };
    static const struct {
        const struct weight_place *model;
        const char *type;
        enum weight_role role;
        int layer;
        enum dtype want;
    } CASES[] = {
        { &FALCON, "q2_k", WEIGHT_OUTPUT, 0, DTYPE_Q8_0 },
        { &FALCON, "q4_k_m", WEIGHT_VALUES, 4, DTYPE_Q4_K },
        { &FALCON, "q2_k", WEIGHT_ATTN_OUT, 9, DTYPE_Q2_K },
        { &FALCON, "q3_k_m", WEIGHT_ATTN_OUT, 9, DTYPE_Q3_K },
        { &FALCON, "q3_k_l", WEIGHT_ATTN_OUT, 9, DTYPE_Q4_K },
        { &FALCON, "q2_k", WEIGHT_DOWN, 9, DTYPE_Q3_K },
        { &FALCON, "q3_k_m", WEIGHT_DOWN, 1, DTYPE_Q5_K },
        { &FALCON, "q3_k_m", WEIGHT_DOWN, 3, DTYPE_Q4_K },
        { &FALCON, "q3_k_m", WEIGHT_DOWN, 4, DTYPE_Q3_K },
        { &FALCON, "q3_k_l", WEIGHT_DOWN, 9, DTYPE_Q4_K },
        { &FALCON, "q4_k_m", WEIGHT_DOWN, 1, DTYPE_Q6_K },
        { &FALCON, "q4_k_m", WEIGHT_DOWN, 3, DTYPE_Q5_K },
        { &FALCON, "q4_k_m", WEIGHT_DOWN, 4, DTYPE_Q4_K },
        { &FALCON, "q4_k_s", WEIGHT_DOWN, 0, DTYPE_Q4_K },
        { &FALCON, "q5_k_m", WEIGHT_DOWN, 3, DTYPE_Q6_K },
        { &EXPERTS, "q2_k", WEIGHT_VALUES, 9, DTYPE_Q8_0 },
        { &EXPERTS, "q4_0", WEIGHT_KEYS, 9, DTYPE_Q8_0 },
        { &EXPERTS, "q2_k", WEIGHT_ATTN_OUT, 9, DTYPE_Q5_K },
        { &EXPERTS, "q3_k_l", WEIGHT_ATTN_OUT, 9, DTYPE_Q3_K },
        { &EXPERTS, "q5_k_m", WEIGHT_ATTN_OUT, 9, DTYPE_Q5_K },
        { &EXPERTS, "q6_k", WEIGHT_ATTN_OUT, 9, DTYPE_Q6_K },
        { &EXPERTS, "q4_k_m", WEIGHT_OTHER, 9, DTYPE_Q4_K },
        { &LARGE, "q2_k", WEIGHT_VALUES, 9, DTYPE_Q5_K },
        { &LARGE, "q2_k_s", WEIGHT_VALUES, 9, DTYPE_Q5_K },
        { &LARGE, "q3_k_s", WEIGHT_VALUES, 9, DTYPE_Q5_K },
        { &LARGE, "q4_k_m", WEIGHT_VALUES, 4, DTYPE_Q5_K },
        { &LARGE, "q4_k_m", WEIGHT_VALUES, 3, DTYPE_Q6_K },
        { &LARGE, "q4_0", WEIGHT_VALUES, 9, DTYPE_Q4_0 },
        { &LARGE, "q4_k_m", WEIGHT_DOWN, 4, DTYPE_Q4_K },
        { &LARGE, "f16", WEIGHT_VALUES, 4, DTYPE_F16 },
        { &IMATRIX, "q4_0", WEIGHT_DOWN, 3, DTYPE_Q4_1 },
        { &IMATRIX, "q4_0", WEIGHT_DOWN, 4, DTYPE_Q4_0 },
        { &IMATRIX, "q5_0", WEIGHT_DOWN, 3, DTYPE_Q5_1 },
        { &IMATRIX, "q4_1", WEIGHT_DOWN, 3, DTYPE_Q4_1 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct weight_place place = *CASES[i].model;
        place.role = CASES[i].role;
        place.layer = CASES[i].layer;
        place.n_layers = 32;
        place.n_sharing = 8;
        enum dtype found = weight_type_choose(weight_type_find(CASES[i].type), &place);
        if (found != CASES[i].want)
            fail_msg("case %zu, %s, role %d, layer %d: %s, expected %s", i, CASES[i].type, CASES[i].role,
                     CASES[i].layer, dtype_name(found), dtype_name(CASES[i].want));
    }
}

/* As llama.cpp's MXFP4_MOE: experts, and everything else in q8_0. */
static void mxfp4_is_for_experts(void **state)
{
    (void)state;
    const struct weight_type *type = weight_type_find("MXFP4");
    assert_non_null(type);
    assert_int_equal(type->file_type, 38);
    for (enum weight_role role = WEIGHT_OTHER; role < WEIGHT_ROUTER; role++) {
        struct weight_place place = { .role = role, .layer = 3, .n_layers = 24, .n_sharing = 8 };
        assert_int_equal(weight_type_choose(type, &place), DTYPE_Q8_0);
        place.is_of_experts = true;
        assert_int_equal(weight_type_choose(type, &place), DTYPE_MXFP4);
    }
    assert_int_equal(choose("mxfp4", WEIGHT_ROUTER, 0, 24, 8), DTYPE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found_in_any_case_and_by_other_words),
        cmocka_unit_test(sensitive_matrices_get_finer_types),
        cmocka_unit_test(some_models_have_types_of_their_own),
        cmocka_unit_test(mxfp4_is_for_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
