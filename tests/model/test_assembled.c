/* Weights that are assembled from several tensors (MXFP4, FP8, GPTQ): a conversion, and a load, assemble each element of each expert a
 * fixed number of times. Otherwise the memory that they allocate would grow as the square of the number of experts. */
#include "../support/folder.h"
#include "base/log.h"
#include "model/load/load.h"
#include "offline/convert.h"
#include "support/fault.h"
#include "support/made_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FEW = 16, MANY = 128 };

static size_t bytes_of_conversion(enum made_kind kind, int n_experts)
{
    struct convert_options options = { .type = weight_type_find("q4_0"), .n_threads = 1 };
    struct tutti_error err;
    char to[64];
    made_experts(folder, kind, n_experts);
    snprintf(to, sizeof to, "%s/to.gguf", folder);
    fault_arm(0);
    if (convert_to_gguf(folder, to, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    size_t n = fault_n_bytes();
    unlink(to);
    return n;
}

static size_t bytes_of_load(enum made_kind kind, int n_experts)
{
    struct tutti_model_options options = { .n_threads = 1 };
    struct model *model = NULL;
    struct tutti_error err;
    made_experts(folder, kind, n_experts);
    fault_arm(0);
    if (model_load(&model, folder, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    size_t n = fault_n_bytes();
    model_free(model);
    return n;
}

static void check(const char *what, enum made_kind kind, size_t (*n_bytes)(enum made_kind, int))
{
    size_t few = n_bytes(kind, FEW), many = n_bytes(kind, MANY);
    print_message("# %s, %s: %zu bytes for %d experts, %zu for %d\n", what, MADE_NAMES[kind], few, FEW, many,
                  MANY);
    assert_true(many < few * (MANY / FEW));
}

static void the_cost_of_experts_is_linear(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    for (enum made_kind kind = 0; kind < MADE_KINDS; kind++) {
        check("conversion", kind, bytes_of_conversion);
        check("load", kind, bytes_of_load);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_cost_of_experts_is_linear, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
