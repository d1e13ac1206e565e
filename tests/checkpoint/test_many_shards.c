/* An upload of the size of DeepSeek-V3: 160 files with 46,848 weights of experts in FP8, 93,696 tensors with their scales. Opening it
 * opens, maps and parses each file once, and compares names about as often as there are tensors. The linker replaces the functions
 * that are counted (--wrap). */
#include "checkpoint/checkpoint.h"
#include "support/made_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_FILES = 160, N_LAYERS = 61, N_EXPERTS = 256, N_WEIGHTS = 3 * N_LAYERS * N_EXPERTS };

static long n_opened, n_mapped, n_headers, n_compared;

int __real_open64(const char *path, int flags, ...);
void *__real_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
json_t *__real_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);
int __real_strcmp(const char *a, const char *b);

int __wrap_open64(const char *path, int flags, ...);
void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);
int __wrap_strcmp(const char *a, const char *b);

/* Files are only read here, so there is no mode. */
int __wrap_open64(const char *path, int flags, ...)
{
    n_opened++;
    return __real_open64(path, flags);
}

void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    n_mapped += fd >= 0;
    return __real_mmap64(at, n, protection, flags, fd, offset);
}

json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error)
{
    n_headers++;
    return __real_json_loadb(text, n, flags, error);
}

int __wrap_strcmp(const char *a, const char *b)
{
    n_compared++;
    return __real_strcmp(a, b);
}

static char folder[] = "/tmp/tutti-shards-XXXXXX";

static void file_name(char out[64], int i)
{
    snprintf(out, 64, "model-%05d-of-%05d.safetensors", i + 1, N_FILES);
}

static void weight_name(char out[128], int i)
{
    static const char *const MATRICES[] = { "gate_proj", "up_proj", "down_proj" };
    snprintf(out, 128, "model.layers.%d.mlp.experts.%d.%s.weight", i / 3 / N_EXPERTS, i / 3 % N_EXPERTS,
             MATRICES[i % 3]);
}

/* Consecutive weights are in the same file, as they are uploaded; a scale is in the file of its weight. */
static int write_files(void **state)
{
    (void)state;
    json_t *map = json_object();
    char name[128], scale[160], file[64], path[128];
    if (!mkdtemp(folder) || !map)
        return -1;
    for (int i = 0; i < N_FILES; i++) {
        struct made_file f = { 0 };
        file_name(file, i);
        for (int k = (int)((int64_t)N_WEIGHTS * i / N_FILES);
             k < (int)((int64_t)N_WEIGHTS * (i + 1) / N_FILES); k++) {
            weight_name(name, k);
            snprintf(scale, sizeof scale, "%s_scale_inv", name);
            made_add(&f, name, DTYPE_F8_E4M3, 2, MADE_SHAPE(128, 256));
            made_add(&f, scale, DTYPE_F32, 2, MADE_SHAPE(1, 2));
            assert_int_equal(json_object_set_new(map, name, json_string(file)), 0);
            assert_int_equal(json_object_set_new(map, scale, json_string(file)), 0);
        }
        made_write(&f, folder, file, true);
    }
    made_text(folder, "config.json",
              "{\"model_type\": \"deepseek_v3\", \"quantization_config\": {\"quant_method\": \"fp8\", "
              "\"weight_block_size\": "
              "[128, 128]}}");
    json_t *index = json_pack("{s:o}", "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    char name[64], path[128];
    for (int i = -2; i < N_FILES; i++) {
        file_name(name, i);
        snprintf(path, sizeof path, "%s/%s", folder,
                 i == -2   ? "config.json"
                 : i == -1 ? "model.safetensors.index.json"
                           : name);
        unlink(path);
    }
    return rmdir(folder);
}

static void each_file_is_opened_and_parsed_once(void **state)
{
    (void)state;
    struct checkpoint *ck = NULL;
    struct tutti_error err;
    clock_t begin = clock();
    n_opened = n_mapped = n_headers = n_compared = 0;
    if (checkpoint_open(&ck, folder, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    print_message("# %d files, %d tensors: %.2f s of CPU time, %ld opened, %ld mapped, %ld headers, %ld "
                  "names compared\n",
                  N_FILES, 2 * N_WEIGHTS, (double)(clock() - begin) / CLOCKS_PER_SEC, n_opened, n_mapped,
                  n_headers, n_compared);
    assert_int_equal(checkpoint_n_tensors(ck), N_WEIGHTS);
    assert_int_equal(n_headers, N_FILES + 2); /* and config.json, and the index */
    assert_in_range(n_opened, N_FILES + 2,
                    N_FILES + 8); /* config.json, the index, and names that may be there */
    assert_int_equal(n_mapped, N_FILES + 2);
    assert_in_range(n_compared, 1, 40L * 2 * N_WEIGHTS);
    /* Every weight is found by its name, without a search. */
    n_opened = n_mapped = n_compared = 0;
    for (int i = 0; i < N_WEIGHTS; i++) {
        char name[128];
        weight_name(name, i);
        const struct tensor *t = checkpoint_find(ck, name);
        assert_true(t && t->shape[0] == 128 && t->shape[1] == 256);
    }
    assert_int_equal(n_opened + n_mapped, 0);
    assert_in_range(n_compared, N_WEIGHTS, 2 * N_WEIGHTS);
    checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_file_is_opened_and_parsed_once, write_files, remove_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
