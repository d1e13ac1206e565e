/* Checkpoints of every format with bytes changed, left out, put in and cut off: an error with words, or a model that runs. */
#include "base/log.h"
#include "support/made_model.h"
#include "util.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_MUTATIONS = 200, MAX_FILES = 32, MAX_PATH = 300, HEAD_BYTES = 4096, TAIL_BYTES = 2048 };

static const char *const CASES[] = { "qwen2-tiny",
                                     "llama-tiny",
                                     "gguf/llama-tiny-q4_0.gguf",
                                     "experts/mixtral-tiny.gguf",
                                     "gguf/deepseek-v2-lite-tiny.gguf",
                                     "gguf/deepseek-v3-tiny-fused.gguf",
                                     "experts/qwen3-moe-tiny-merged",
                                     "experts/gpt-oss-tiny-mxfp4.gguf",
                                     "gpt-oss-tiny-mxfp4",
                                     "gguf-split",
                                     "pytorch/sharded",
                                     "pytorch/old",
                                     "mindspore/glm",
                                     "mindspore/ranks",
                                     "mindspore/pangu",
                                     "chatglm-ints/glm-4-9b-tiny-int4",
                                     "chatglm-ints/chatglm-6b-tiny-int4",
                                     "chatglm-6b-text",
                                     "pangu-text",
                                     "quantized/qwen3-fp8",
                                     "quantized/llama-fp8-rows",
                                     "quantized/deepseek-v3-fp8",
                                     "quantized/llama-gptq",
                                     "quantized/llama-gptq-order",
                                     "quantized/llama-gptq-int8",
                                     "quantized/llama-awq",
                                     "quantized/llama-w4a16-asym",
                                     "quantized/llama-w8a8",
                                     "quantized/llama-bnb-nf4" };

/* ---- a copy of the checkpoint ---- */

static char files[MAX_FILES][MAX_PATH];
static int n_files;

static int add_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    const char *name = path + ftw->base;
    bool is_other = strncmp(name, "golden", 6) == 0 || strcmp(name, "text.json") == 0 ||
                    strncmp(name, "tiny-quants", 11) == 0 || strncmp(name, "tiny-tables", 11) == 0;
    if (kind == FTW_F && !is_other && n_files < MAX_FILES)
        snprintf(files[n_files++], MAX_PATH, "%s", path);
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void list_files(const char *folder)
{
    n_files = 0;
    assert_int_equal(nftw(folder, add_file, 8, FTW_PHYS), 0);
    qsort(files, (size_t)n_files, MAX_PATH, by_name);
}

/* Fills files[], without those that are no part of the checkpoint. Returns what is to be loaded: the folder, or its first GGUF file. */
static const char *copy_case(const char *folder, const char *name)
{
    char command[2 * MAX_PATH];
    snprintf(command, sizeof command, "cp -r %s/%s %s/model", TEST_FIXTURES, name, folder);
    if (strstr(name, ".gguf"))
        snprintf(command, sizeof command, "cp %s/%s %s/model.gguf", TEST_FIXTURES, name, folder);
    assert_int_equal(system(command), 0);
    list_files(folder);
    static char model[MAX_PATH];
    snprintf(model, sizeof model, "%s/model", folder);
    return strstr(files[0], ".gguf") ? files[0] : model;
}

static char *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n + 64);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    unlink(path); /* a file that is cut off and closed is written to the disk at once by some file systems */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* ---- mutations ---- */

static uint64_t random_state = 1;

static size_t draw(size_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return n == 0 ? 0 : (size_t)(random_state >> 33) % n;
}

/* Mostly where a file says what is in it: at its ends. */
static size_t draw_place(size_t n)
{
    size_t kind = draw(8);
    if (kind < 5)
        return draw(n < HEAD_BYTES ? n : HEAD_BYTES);
    if (kind < 7)
        return n - 1 - draw(n < TAIL_BYTES ? n : TAIL_BYTES);
    return draw(n);
}

/* bytes has room for 64 more. Returns the new length. */
static size_t mutate(char *bytes, size_t n)
{
    static const unsigned char EDGES[] = { 0, 1, 0x7f, 0x80, 0xff };
    for (size_t k = draw(3) + 1; k > 0 && n > 0; k--) {
        size_t at = draw_place(n), n_part = draw(n - at < 32 ? n - at : 32) + 1;
        switch (draw(7)) {
        case 0:
            bytes[at] = (char)(bytes[at] ^ 1 << draw(8));
            break;
        case 1:
            bytes[at] = (char)draw(256);
            break;
        case 2:
            for (size_t i = 0; i < n_part && i < 8; i++)
                bytes[at + i] = (char)EDGES[at % sizeof EDGES];
            break;
        case 3:
            memmove(bytes + at, bytes + at + n_part, n - at - n_part);
            n -= n_part;
            break;
        case 4:
            memmove(bytes + at + n_part % 16, bytes + at, n - at);
            n += n_part % 16;
            break;
        case 5:
            memmove(bytes + draw_place(n - n_part + 1), bytes + at, n_part);
            break;
        default:
            if (draw(8) == 0)
                n = at;
        }
    }
    return n;
}

/* ---- */

static bool loads_and_runs(const char *path)
{
    static const struct tutti_model_options OPTIONS = { .n_threads = 1 };
    struct tutti_error err = { 0 };
    struct model *model = NULL;
    if (model_load(&model, path, &OPTIONS, &err) != TUTTI_OK) {
        assert_null(model);
        assert_true(strlen(err.text) > 10);
        assert_int_not_equal(err.status, TUTTI_E_INTERNAL);
        return false;
    }
    int32_t ids[] = { 1, 2, 3 };
    if (model->desc.n_vocab > 3 && model->desc.n_ctx >= 3)
        free(util_logits(model, ids, 3, 3));
    model_free(model);
    return true;
}

/* Changes files[] in turn, and loads path each time; then removes the folder. */
static void check_mutations(const char *name, const char *folder, const char *path)
{
    int n_read = 0;
    if (!loads_and_runs(path))
        fail_msg("%s: it is not read before it is changed", name);
    for (int k = 0; k < N_MUTATIONS; k++) {
        const char *file = files[draw((size_t)n_files)];
        size_t n;
        char *bytes = read_file(file, &n), *changed = malloc(n + 64);
        assert_non_null(changed);
        memcpy(changed, bytes, n);
        write_file(file, changed, mutate(changed, n));
        n_read += loads_and_runs(path);
        write_file(file, bytes, n);
        free(changed);
        free(bytes);
    }
    print_message("# %s: %d of %d mutations read\n", name, n_read, N_MUTATIONS);
    assert_true(n_read > 0 && n_read < N_MUTATIONS);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void mutated_checkpoints_are_read_or_refused(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char folder[] = "/tmp/tutti-mutated-XXXXXX";
        assert_non_null(mkdtemp(folder));
        check_mutations(CASES[i], folder, copy_case(folder, CASES[i]));
    }
}

static void mutated_experts_of_every_format_are_read_or_refused(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    for (enum made_kind kind = 0; kind < MADE_KINDS; kind++) {
        char folder[] = "/tmp/tutti-mutated-XXXXXX";
        assert_non_null(mkdtemp(folder));
        made_experts(folder, kind, 3);
        list_files(folder);
        check_mutations(MADE_NAMES[kind], folder, folder);
    }
}

static void mutated_types_of_tables_are_read_or_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-mutated-XXXXXX", path[64];
    log_set_level(LOG_ERROR);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tables.gguf", folder);
    made_tables(path);
    list_files(folder);
    check_mutations("types of tables", folder, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_checkpoints_are_read_or_refused),
        cmocka_unit_test(mutated_experts_of_every_format_are_read_or_refused),
        cmocka_unit_test(mutated_types_of_tables_are_read_or_refused),
    };
    return cmocka_run_group_tests_name("model: mutations", tests, NULL, NULL);
}
