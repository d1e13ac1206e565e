/* Opening and reading checkpoints of every format, with each allocation failing in turn: an error that says so, nothing leaks
 * (a sanitizer watches), and the next try works. */
#include "checkpoint/checkpoint.h"
#include "support/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What malloc() and free() are without fault.h: by these jansson, which ends the program where it lacks memory for some
 * strings, is left out. */
void *__real_malloc(size_t n);
void __real_free(void *memory);

/* Opens a checkpoint and reads all of its tensors. */
static enum tutti_status read_all(const char *path, uint64_t *sum, struct tutti_error *err)
{
    struct checkpoint *ck = NULL;
    enum tutti_status st = checkpoint_open(&ck, path, err);
    *sum = 0;
    for (size_t i = 0; st == TUTTI_OK && i < checkpoint_n_tensors(ck); i++) {
        const struct tensor *t = checkpoint_tensor(ck, i);
        void *owned;
        const uint8_t *bytes = tensor_bytes(t, &owned);
        if (!bytes)
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", t->file);
        for (size_t k = 0; bytes && k < t->n_bytes; k++)
            *sum = *sum * 31 + bytes[k];
        free(owned);
    }
    checkpoint_close(ck);
    return st;
}

static void every_lack_of_memory_is_told(void **state)
{
    (void)state;
    static const char *const PATHS[] = { "llama-tiny",
                                         "gguf-split/tiny-quants-00001-of-00005.gguf",
                                         "gguf-split/llama-tiny-q4_0-00002-of-00003.gguf",
                                         "pytorch/sharded",
                                         "pytorch/old",
                                         "mindspore/pangu",
                                         "mindspore/ranks",
                                         "chatglm-ints/chatglm-6b-tiny-int4" };
    json_set_alloc_funcs(__real_malloc, __real_free);
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        char path[512];
        uint64_t want, sum;
        struct tutti_error err;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", PATHS[i]);
        fault_arm(0);
        assert_int_equal(read_all(path, &want, &err), TUTTI_OK);
        long n_calls = fault_n_calls(), stride = 1 + n_calls / 400;
        for (long n = 1; n <= n_calls; n += stride) {
            err = (struct tutti_error){ 0 };
            fault_arm(n);
            enum tutti_status st = read_all(path, &sum, &err);
            const char *function = fault_function();
            bool has_hit = fault_has_hit();
            fault_arm(0);
            assert_true(has_hit);
            if (st == TUTTI_OK ? sum != want : st != TUTTI_E_MEMORY)
                fail_msg("%s: call %ld of %ld (%s) failed: status %d, \"%s\"", path, n, n_calls, function, st,
                         err.text);
        }
        assert_int_equal(read_all(path, &sum, &err), TUTTI_OK);
        assert_true(sum == want);
        print_message("# %s: %ld calls\n", PATHS[i], n_calls);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lack_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
