/* The same model from files of every format gives the same logits. */
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void files_of_every_format_give_the_golden_logits(void **state)
{
    (void)state;
    static const struct {
        const char *path, *golden;
        int n_prompts;
    } CASES[] = {
        { "pytorch/sharded", "glm-4-9b-tiny/golden", 3 },
        { "pytorch/old", "gpt2-tiny/golden", 3 },
        { "mindspore/glm", "glm-4-9b-tiny/golden", 3 },
        { "mindspore/pangu/pangu.ckpt", "pangu-tiny/golden", 3 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", CASES[i].path);
        struct model *model = util_load(path, "f32", "f32", 2, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/%s.safetensors", CASES[i].golden);
        struct util_errors e = util_compare_file(model, path, "logits", CASES[i].n_prompts);
        print_message("# %s: relative %.2e at most\n", CASES[i].path, e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_every_format_give_the_golden_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
