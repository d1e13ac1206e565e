/* PyTorch's and MindSpore's files: what the real libraries wrote is read bit for bit, and what nobody should have written
 * is told so. */
#include "bytes.h"
#include "parts.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/gguf/row_ints.h"
#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/pytorch/pytorch.h"
#include "checkpoint/tensor_set.h"
#include "kernels/quantize/quantize.h"

#include "../support/folder.h"
#include "base/half.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define PYTORCH   TEST_FIXTURES "/pytorch/"
#define MINDSPORE TEST_FIXTURES "/mindspore/"

/* ---- what the libraries wrote ---- */

static void assert_same(const struct tensor *got, const struct tensor *want)
{
    void *owned_got, *owned_want;
    const void *got_bytes = tensor_bytes(got, &owned_got), *want_bytes = tensor_bytes(want, &owned_want);
    if (got->dtype != want->dtype || got->n_dims != want->n_dims || got->n_bytes != want->n_bytes)
        fail_msg("%s: tensor %s: type, dimensions or size differ", got->file, got->name);
    for (int i = 0; i < got->n_dims; i++)
        assert_int_equal(got->shape[i], want->shape[i]);
    assert_true(got_bytes && want_bytes);
    if (memcmp(got_bytes, want_bytes, got->n_bytes) != 0)
        fail_msg("%s: tensor %s: bytes differ", got->file, got->name);
    free(owned_got);
    free(owned_want);
}

static const struct tensor *find(const struct tensor_set *file, const char *name)
{
    for (size_t i = 0; i < file->n; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}

static struct tensor_set *open_file(const char *path)
{
    struct tensor_set *file = NULL;
    struct tutti_error err;
    if (tensor_set_open(&file, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return file;
}

static void expect_same_files(const char *path, const char *want_path)
{
    struct tensor_set *got = open_file(path), *want = open_file(want_path);
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const struct tensor *t = &want->tensors[i], *found = find(got, t->name);
        if (!found)
            fail_msg("%s: tensor %s is missing", path, t->name);
        assert_same(found, t);
        tensor_forget(found);
        assert_same(found, t); /* it may still be read */
        assert_parts_are_cut_out(found);
    }
    tensor_set_close(got);
    tensor_set_close(want);
}

static void views_of_pytorch_are_read_as_pytorch_reads_them(void **state)
{
    (void)state;
    expect_same_files(PYTORCH "odd/views.pt", PYTORCH "odd/views.safetensors");
    expect_same_files(PYTORCH "odd/views-old.pt", PYTORCH "odd/views.safetensors");
    expect_same_files(PYTORCH "odd/views-3.pt", PYTORCH "odd/views.safetensors"); /* the pickle's protocol */
    expect_same_files(PYTORCH "odd/views-4.pt", PYTORCH "odd/views.safetensors");
    expect_same_files(PYTORCH "odd/views-5.pt", PYTORCH "odd/views.safetensors");
    expect_same_files(PYTORCH "odd/module.pt", PYTORCH "odd/module.safetensors"); /* with attributes */
    struct tensor_set *file = open_file(PYTORCH "odd/views.pt");
    assert_null(find(file, "rows")->source); /* no copy of what is contiguous */
    assert_non_null(find(file, "turned")->source);
    tensor_set_close(file);
}

static void tensors_of_mindspore_are_read_as_they_were_written(void **state)
{
    (void)state;
    expect_same_files(MINDSPORE "odd/types.ckpt", MINDSPORE "odd/types.safetensors");
    expect_same_files(MINDSPORE "odd/sliced.ckpt", MINDSPORE "odd/sliced.safetensors");
    struct tensor_set *file = open_file(MINDSPORE "odd/sliced.ckpt");
    assert_null(find(file, "small")->source);
    assert_int_equal(find(file, "big")->source->n_from, 3);
    tensor_set_close(file);
}

static void folders_hold_the_same_tensors_in_every_format(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *want;
        const char *renamed[2]; /* from, to */
    } CASES[] = {
        { PYTORCH "sharded", TEST_FIXTURES "/glm-4-9b-tiny", { 0 } },
        { PYTORCH "old", TEST_FIXTURES "/gpt2-tiny", { 0 } },
        { PYTORCH "old/pytorch_model.bin", TEST_FIXTURES "/gpt2-tiny", { 0 } },
        { MINDSPORE "pangu", TEST_FIXTURES "/pangu-tiny", { 0 } },
        { MINDSPORE "pangu/pangu.ckpt", TEST_FIXTURES "/pangu-tiny", { 0 } },
        { MINDSPORE "ranks",
          TEST_FIXTURES "/glm-4-9b-tiny",
          { "transformer.embedding.word_embeddings.weight", "transformer.embedding.embedding_weight" } },
        { MINDSPORE "glm",
          TEST_FIXTURES "/glm-4-9b-tiny",
          { "transformer.embedding.word_embeddings.weight", "transformer.embedding.embedding_weight" } },
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        struct checkpoint *got = NULL, *want = NULL;
        struct tutti_error err;
        if (checkpoint_open(&got, CASES[c].folder, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        assert_int_equal(checkpoint_open(&want, CASES[c].want, NULL), TUTTI_OK);
        assert_int_equal(checkpoint_n_tensors(got), checkpoint_n_tensors(want));
        for (size_t i = 0; i < checkpoint_n_tensors(want); i++) {
            const struct tensor *t = checkpoint_tensor(want, i);
            bool is_renamed = CASES[c].renamed[0] && strcmp(t->name, CASES[c].renamed[0]) == 0;
            const struct tensor *found = checkpoint_find(got, is_renamed ? CASES[c].renamed[1] : t->name);
            assert_non_null(found);
            assert_same(found, t);
        }
        checkpoint_close(got);
        checkpoint_close(want);
    }
}

static void files_that_hold_more_than_tensors_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *path, *words;
        enum tutti_status status;
    } CASES[] = {
        { PYTORCH "odd/evil.pt", "it calls posix.system", TUTTI_E_UNSUPPORTED },
        { PYTORCH "odd/complex.pt", "it calls torch.ComplexFloatStorage", TUTTI_E_UNSUPPORTED },
        { PYTORCH "odd/expanded.pt", "tensor a: shape [1000, 1000] with strides [0, 0] shows elements more",
          TUTTI_E_UNSUPPORTED },
        { PYTORCH "odd/negated.pt", "tensor a: PyTorch's flag \"neg\" is set", TUTTI_E_UNSUPPORTED },
        { PYTORCH "odd/list.pt", "no dict of named tensors", TUTTI_E_FORMAT },
        { PYTORCH "odd/evil-4.pt", "it calls posix.system", TUTTI_E_UNSUPPORTED },
        { MINDSPORE "odd/encrypted.ckpt", "encrypted", TUTTI_E_UNSUPPORTED },
        { TEST_FIXTURES "/README.md", "neither GGUF nor safetensors", TUTTI_E_FORMAT },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tensor_set *file = NULL;
        struct tutti_error err = { 0 };
        enum tutti_status st = tensor_set_open(&file, CASES[i].path, &err);
        if (st != CASES[i].status || !strstr(err.text, CASES[i].words) || !strstr(err.text, CASES[i].path))
            fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, CASES[i].status, CASES[i].words);
    }
    assert_int_not_equal(access("/tmp/tutti-was-here", F_OK), 0); /* nothing was executed */
    static const float RESOLVED[] = { -1, -2, -3, -4 };
    struct tensor_set *file = NULL;
    assert_int_equal(tensor_set_open(&file, PYTORCH "odd/resolved.pt", NULL), TUTTI_OK);
    assert_memory_equal(file->tensors[0].data, RESOLVED, sizeof RESOLVED);
    tensor_set_close(file);
}

/* ---- GGUF in parts ---- */

static void parts_of_a_gguf_file_are_one(void **state)
{
    (void)state;
    for (int part = 1; part <= 3; part++) { /* whichever is named */
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf-split/llama-tiny-q4_0-%05d-of-00003.gguf", part);
        expect_same_files(path, TEST_FIXTURES "/gguf/llama-tiny-q4_0.gguf");
        struct tensor_set *file = open_file(path);
        const json_t *scalars = gguf_scalars(gguf_of(file));
        assert_string_equal(json_string_value(json_object_get(scalars, "general.architecture")), "llama");
        assert_non_null(gguf_find_array(gguf_of(file), "tokenizer.ggml.tokens"));
        tensor_set_close(file);
    }
    expect_same_files(TEST_FIXTURES "/gguf-split/tiny-quants-00001-of-00005.gguf",
                      TEST_FIXTURES "/gguf/tiny-quants.gguf"); /* no tensor in the first */
}

static void ranks_of_mindspore_are_put_together(void **state)
{
    (void)state;
    expect_same_files(MINDSPORE "ranks-json", MINDSPORE "ranks-json/whole.safetensors");
}

/* target NULL: the name is removed. */
static void place_link(const char *target, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    if (target)
        assert_int_equal(symlink(target, path), 0);
}

static void expect_ranks(enum tutti_status status, const char *words)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = tensor_set_open(&file, folder, &err);
    if (st != status || !strstr(err.text, words))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
    tensor_set_close(file);
}

static void place_text(const char *name, const char *text)
{
    char path[512];
    place_link(NULL, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
}

static void wrong_ranks_are_named(void **state)
{
    (void)state;
#define ITEM(axes, map, step, size)                                                                          \
    "{\"parallel_layout_item\": {\"float32\": {\"dev_matrix\": " axes ", \"tensor_map\": " map               \
    ", \"opt_weight_shard_step\": " step ", \"opt_weight_shard_size\": " size "}}}"
    static const struct {
        const char *strategy, *words;
        enum tutti_status status;
    } CASES[] = {
        { ITEM("[2]", "[0, -1]", "0", "0"), "", TUTTI_OK },
        { ITEM("[2]", "[[0], [-1]]", "0", "0"), "", TUTTI_OK },
        { ITEM("[1, 2]", "[[1, 0], []]", "0", "0"), "", TUTTI_OK },
        { ITEM("[2]", "[-1, -1]", "1", "-1"), "", TUTTI_OK },
        { ITEM("[4]", "[0, -1]", "0", "0"),
          "tensor float32: the strategy is for 4 devices a stage, but 2 ranks", TUTTI_E_FORMAT },
        { ITEM("[2]", "[0]", "0", "0"), "tensor float32: 2 dimensions, but the strategy has 1",
          TUTTI_E_FORMAT },
        { ITEM("[2]", "[1, -1]", "0", "0"), "parameter float32: its tensor map names an axis",
          TUTTI_E_FORMAT },
        { ITEM("[2]", "[0, 0]", "0", "0"), "parameter float32: its tensor map names an axis",
          TUTTI_E_FORMAT },
        { ITEM("[2]", "[-2, 0]", "0", "0"), "parameter float32: its tensor map names an axis",
          TUTTI_E_FORMAT },
        { ITEM("[0]", "[0, -1]", "0", "0"), "its device matrix is out of range", TUTTI_E_FORMAT },
        { ITEM("[1048576, 1048576]", "[0, -1]", "0", "0"), "its device matrix is out of range",
          TUTTI_E_FORMAT },
        { ITEM("[2]", "[0, -1]", "1", "2"), "its optimizer's shards do not fit", TUTTI_E_FORMAT },
        { ITEM("[2]", "[-1, -1]", "1", "3"), "its optimizer's shards do not fit", TUTTI_E_FORMAT },
        { ITEM("[1,1,1,1,1,1,1,1,2]", "[0, -1]", "0", "0"), "more axes or dimensions", TUTTI_E_UNSUPPORTED },
        { "{\"parallel_layout_item\": {\"7-w\": {\"dev_matrix\": [1], \"tensor_map\": [-1]}}}",
          "2 ranks cannot be 8 pipeline stages", TUTTI_E_FORMAT },
        { "{\"parallel_layout_item\": {\"99999-w\": {\"dev_matrix\": [1], \"tensor_map\": [-1]}}}",
          "pipeline stage is out of range", TUTTI_E_FORMAT },
        { "{", "ckpt_strategy.json", TUTTI_E_FORMAT },
    };
    place_link(MINDSPORE "ranks-json/rank_0", "rank_0");
    place_link(MINDSPORE "ranks-json/rank_1", "rank_1");
    expect_ranks(TUTTI_E_NOT_FOUND, "2 ranks, but no strategy file");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        place_text("ckpt_strategy.json", CASES[i].strategy);
        expect_ranks(CASES[i].status, CASES[i].words);
    }
    place_text("ckpt_strategy.json", CASES[0].strategy);
    place_link(MINDSPORE "ranks-json/rank_1", "rank_2");
    place_link(NULL, "rank_1");
    expect_ranks(TUTTI_E_NOT_FOUND, "rank_1 is missing, but rank_2 is there");
    place_link(NULL, "rank_2");
    place_link(MINDSPORE "glm", "rank_1");
    expect_ranks(TUTTI_E_FORMAT, "rank_1: tensor float32 is missing, but rank_0 has it");
    place_link(MINDSPORE "ranks-json/strategy", "rank_1");
    expect_ranks(TUTTI_E_NOT_FOUND, "rank_1: there is no .ckpt file");
    place_text("ckpt_strategy.ckpt", "\x1A\x05"
                                     "abc"); /* cut off */
    place_link(MINDSPORE "ranks-json/rank_1", "rank_1");
    expect_ranks(TUTTI_E_FORMAT, "ckpt_strategy.ckpt: not a strategy of MindSpore");
}

static void changed_strategies_are_errors_or_correct_reads(void **state)
{
    (void)state;
    static const char *const FILES[][2] = { { MINDSPORE "ranks", "merged_ckpt_strategy.ckpt" },
                                            { MINDSPORE "ranks-json",
                                              "strategy/ckpt_strategy_rank_0.json" } };
    for (int f = 0; f < 2; f++) {
        char path[512];
        struct mapping map;
        uint32_t random = 1;
        for (int rank = 0; rank < 8; rank++) {
            char name[16];
            snprintf(path, sizeof path, "%s/rank_%d", FILES[f][0], rank);
            snprintf(name, sizeof name, "rank_%d", rank);
            place_link(rank < 2 || f == 0 ? path : NULL, name);
        }
        snprintf(path, sizeof path, "%s/%s", FILES[f][0], FILES[f][1]);
        assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
        snprintf(path, sizeof path, "%s/ckpt_strategy%s", folder, strrchr(FILES[f][1], '.'));
        uint8_t *copy = malloc(map.n_bytes);
        assert_non_null(copy);
        for (int i = 0; i < 300; i++) {
            size_t n = i % 5 ? map.n_bytes : (size_t)i * map.n_bytes / 300;
            memcpy(copy, map.bytes, map.n_bytes);
            for (int k = 0; k <= i % 4; k++) {
                random = random * 1664525 + 1013904223;
                copy[(random >> 8) % map.n_bytes] = (uint8_t)(random >> 24);
            }
            FILE *out = fopen(path, "wb");
            assert_non_null(out);
            assert_int_equal(fwrite(copy, 1, n, out), n);
            fclose(out);
            struct tensor_set *file = NULL;
            struct tutti_error err = { 0 };
            if (tensor_set_open(&file, folder, &err) != TUTTI_OK) {
                assert_true(err.text[0] != '\0' && !file);
                continue;
            }
            for (size_t t = 0; t < file->n; t++) {
                void *owned;
                assert_non_null(tensor_bytes(&file->tensors[t], &owned));
                free(owned);
            }
            tensor_set_close(file);
        }
        free(copy);
        unlink(path);
        mapping_close(&map);
    }
}

/* from: of tests/fixtures/gguf-split; NULL: there is no such part. */
static void place_part(const char *from, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    if (!from)
        return;
    char target[512];
    snprintf(target, sizeof target, TEST_FIXTURES "/gguf-split/%s", from);
    assert_int_equal(symlink(target, path), 0);
}

static void wrong_parts_of_a_gguf_file_are_named(void **state)
{
    (void)state;
#define PART(no) "llama-tiny-q4_0-0000" no "-of-00003.gguf"
    static const struct {
        const char *second, *words; /* what stands in the place of the second part */
        enum tutti_status status;
    } CASES[] = {
        { PART("2"), "", TUTTI_OK },
        { NULL, "m-00002-of-00003.gguf: part 2 of 3 is missing", TUTTI_E_NOT_FOUND },
        { PART("1"), "m-00002-of-00003.gguf: part 1 of 3 of a model of 30 tensors, expected part 2 of 3",
          TUTTI_E_FORMAT },
        { "tiny-quants-00002-of-00005.gguf", "part 2 of 5 of a model of 8 tensors, expected part 2 of 3",
          TUTTI_E_FORMAT },
        { "../gguf/tiny-types.gguf", "part 1 of 0 of a model", TUTTI_E_FORMAT },
        { "../README.md", "does not begin with \"GGUF\"", TUTTI_E_FORMAT },
    };
    place_part(PART("1"), "m-00001-of-00003.gguf");
    place_part(PART("3"), "m-00003-of-00003.gguf");
    place_part(PART("2"), "renamed.gguf");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        place_part(CASES[i].second, "m-00002-of-00003.gguf");
        for (int given = 1; given <= 3; given += 2) {
            char path[512];
            struct tensor_set *file = NULL;
            struct tutti_error err = { 0 };
            snprintf(path, sizeof path, "%s/m-%05d-of-00003.gguf", folder, given);
            enum tutti_status st = tensor_set_open_as(&file, &GGUF_FORMAT, path, &err);
            if (st != CASES[i].status || !strstr(err.text, CASES[i].words))
                fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, CASES[i].status,
                         CASES[i].words);
            tensor_set_close(file);
        }
    }
    char path[512];
    struct tensor_set *file;
    struct tutti_error err;
    snprintf(path, sizeof path, "%s/renamed.gguf", folder);
    assert_int_equal(tensor_set_open_as(&file, &GGUF_FORMAT, path, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "its name must end with -00002-of-00003.gguf"));
}

/* ---- tensors of MindSpore ---- */

static void put_field(struct bytes *b, int number, const void *bytes, size_t n)
{
    assert_true(n < 128 * 128);
    put(b, (uint64_t)number << 3 | 2, 1);
    put(b, (n & 0x7F) | 0x80, 1);
    put(b, n >> 7, 1);
    put_text(b, bytes, n);
}

static void put_value(struct bytes *b, const char *tag, const char *type, int n_dims, const uint8_t *dims,
                      size_t n_content)
{
    static const uint8_t CONTENT[64] = { 1, 2, 3 };
    struct bytes tensor = { .n = 0 }, value = { .n = 0 };
    for (int i = 0; i < n_dims; i++) {
        put(&tensor, 1 << 3, 1);
        put(&tensor, dims[i], 1);
    }
    put_field(&tensor, 2, type, strlen(type));
    put_field(&tensor, 3, CONTENT, n_content);
    put_field(&value, 1, tag, strlen(tag));
    put_field(&value, 2, tensor.bytes, tensor.n);
    put_field(b, 1, value.bytes, value.n);
}

static void expect_mindspore(const struct bytes *b, enum tutti_status status, const char *words)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    uint8_t *exact = malloc(b->n ? b->n : 1);
    assert_non_null(exact);
    memcpy(exact, b->bytes, b->n);
    enum tutti_status st = tensor_set_open_memory(&file, &MINDSPORE_FORMAT, exact, b->n, "x.ckpt", &err);
    if (st != status || !strstr(err.text, words) || (st != TUTTI_OK && !strstr(err.text, "x.ckpt")))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
    tensor_set_close(file);
    free(exact);
}

static void a_broken_mindspore_file_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const uint8_t DIMS[] = { 2, 3 }, OTHER[] = { 3, 2 }, NONE[] = { 0 }, SIX[] = { 1, 1, 1, 1, 1, 1 };
    struct bytes b = { .n = 0 };
    expect_mindspore(&b, TUTTI_E_FORMAT, "not a MindSpore checkpoint");
    b = (struct bytes){ .bytes = "\x08\x01", .n = 2 };
    expect_mindspore(&b, TUTTI_E_FORMAT, "not a MindSpore checkpoint");
    b = (struct bytes){ .bytes = "\x0A\x05"
                                 "abc",
                        .n = 5 };
    expect_mindspore(&b, TUTTI_E_FORMAT, "value 0 of the checkpoint is broken");
    b = (struct bytes){ .bytes = "\x0A\x00", .n = 2 };
    expect_mindspore(&b, TUTTI_E_FORMAT, "value 0: a tag of 0 bytes");
    b = (struct bytes){ .bytes = "\xD8\x5E\x3A\x7F", .n = 4 };
    expect_mindspore(&b, TUTTI_E_UNSUPPORTED, "encrypted");
#define VALUES(...)                                                                                          \
    b = (struct bytes){ .n = 0 };                                                                            \
    __VA_ARGS__
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_OK, "");
    put_text(&b, "crc_num\0\0\0\0\0\0\0\0\0\1", 17);
    expect_mindspore(&b, TUTTI_OK, "");
    VALUES(put_value(&b, "w", "Int8", 1, NONE, 1)); /* a scalar, as older versions wrote it */
    expect_mindspore(&b, TUTTI_OK, "");
    VALUES(put_value(&b, "epoch_num", "Int32", 0, NONE, 4));
    expect_mindspore(&b, TUTTI_E_FORMAT, "there is no weight in it");
    VALUES(put_value(&b, "a\nb", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_FORMAT, "printable");
    VALUES(put_value(&b, "w", "Float7", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_UNSUPPORTED, "tensor w: type \"Float7\" is not supported");
    VALUES(put_value(&b, "w", "Int8", 6, SIX, 1));
    expect_mindspore(&b, TUTTI_E_UNSUPPORTED, "tensor w: more than 5 dimensions");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 5));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: 5 bytes of content, but its shape [2, 3] holds 6 of i8");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 7));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: 7 bytes of content");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 4); put_value(&b, "w", "Int8", 2, DIMS, 2));
    expect_mindspore(&b, TUTTI_OK, "");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 4); put_value(&b, "w", "Int8", 2, DIMS, 3));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: 7 bytes of content");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 4); put_value(&b, "v", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: 4 bytes of content");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 4); put_value(&b, "w", "Int8", 2, OTHER, 2));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: its slices differ in shape or type");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 4); put_value(&b, "w", "UInt8", 2, DIMS, 2));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: its slices differ in shape or type");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 6); put_value(&b, "w", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_FORMAT, "duplicate tensor w");
    VALUES(put_value(&b, "w", "Int8", 2, DIMS, 6); put_value(&b, "v", "Int8", 2, DIMS, 6);
           put_value(&b, "w", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_FORMAT, "duplicate tensor w");
    VALUES(put_value(&b, "network.", "Int8", 2, DIMS, 6));
    expect_mindspore(&b, TUTTI_E_FORMAT, "no name is left of tag network.");
    VALUES(put_field(&b, 1, "\x0A\x01w\x1A\x00", 5));
    expect_mindspore(&b, TUTTI_E_UNSUPPORTED, "tensor w: a map tensor");
    /* dims that are packed, one of them cut off */
    VALUES(put_field(&b, 1, "\x0A\x01w\x12\x0E\x0A\x02\x02\x03\x12\x04Int8\x1A\x02zz", 19));
    expect_mindspore(&b, TUTTI_E_FORMAT, "tensor w: 2 bytes of content, but its shape [2, 3]");
    VALUES(put_field(&b, 1, "\x0A\x01w\x12\x0E\x0A\x02\x02\x83\x12\x04Int8\x1A\x02zz", 19));
    expect_mindspore(&b, TUTTI_E_FORMAT, "is broken");
}

/* ---- integers with a scale for each row ---- */

static void integers_of_rows_keep_their_values(void **state)
{
    (void)state;
    enum { N_OUT = 3, N_IN = 64, FEW = 20 };
    int8_t ints[N_OUT * N_IN];
    for (int i = 0; i < N_OUT * N_IN; i++)
        ints[i] = (int8_t)(i * 37); /* every nibble, -8 too */
    static const uint16_t SCALES[N_OUT] = { 0x3C01, 0x0001, 0xB555 };
    struct tensor weight = {
        .name = "w.weight", .dtype = DTYPE_I8, .n_dims = 2, .data = ints, .n_bytes = sizeof ints, .file = "x"
    };
    struct tensor scale = { .name = "w.weight_scale",
                            .dtype = DTYPE_F16,
                            .n_dims = 1,
                            .shape = { N_OUT },
                            .data = SCALES,
                            .n_bytes = sizeof SCALES,
                            .file = "x" };
    for (int n_bits = 4; n_bits <= 8; n_bits += 4) {
        for (int n_in = N_IN; n_in >= FEW; n_in -= N_IN - FEW) {
            struct row_ints r;
            int row_bytes = n_in * n_bits / 8;
            weight.shape[0] = N_OUT;
            weight.shape[1] = row_bytes;
            assert_int_equal(row_ints_init(&r, &weight, &scale, n_bits, NULL), TUTTI_OK);
            enum dtype want_type = n_in == FEW ? DTYPE_F32 : n_bits == 4 ? DTYPE_Q4_0 : DTYPE_Q8_0;
            assert_int_equal(r.tensor.dtype, want_type);
            assert_int_equal(r.tensor.shape[1], n_in);
            float values[N_OUT * N_IN];
            void *owned;
            const void *bytes = tensor_bytes(&r.tensor, &owned);
            assert_non_null(bytes);
            dequantize(values, bytes, r.tensor.dtype, N_OUT * n_in);
            free(owned);
            for (int i = 0; i < N_OUT * n_in; i++) {
                int row = i / n_in, c = i % n_in, byte = ints[row * row_bytes + c * n_bits / 8];
                int q = n_bits == 8 ? byte : c % 2 == 0 ? byte >> 4 : (int8_t)((uint8_t)byte << 4) >> 4;
                assert_true(values[i] == (float)q * half_to_float(SCALES[row]));
            }
        }
    }
    struct row_ints r;
    struct tutti_error err;
    scale.shape[0] = 4;
    assert_int_equal(row_ints_init(&r, &weight, &scale, 8, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "tensor w.weight_scale: f16 of shape [4], expected"));
    assert_non_null(strstr(err.text, "of shape [3]"));
    scale.shape[0] = 3;
    scale.dtype = DTYPE_I8;
    assert_int_equal(row_ints_init(&r, &weight, &scale, 8, &err), TUTTI_E_FORMAT);
    weight.n_dims = 1;
    assert_int_equal(row_ints_init(&r, &weight, &scale, 8, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "expected a matrix of i8"));
}

/* ---- any file, cut and changed ---- */

/* A changed file gives an error, or tensors that can all be read. */
static void open_changed(const uint8_t *bytes, size_t n, bool is_pytorch)
{
    struct tutti_error err = { 0 };
    struct tensor_set *pytorch = NULL;
    struct tensor_set *mindspore = NULL;
    enum tutti_status st = is_pytorch
                               ? tensor_set_open_memory(&pytorch, &PYTORCH_FORMAT, bytes, n, "x", &err)
                               : tensor_set_open_memory(&mindspore, &MINDSPORE_FORMAT, bytes, n, "x", &err);
    if (st != TUTTI_OK) {
        assert_true(err.text[0] != '\0' && !pytorch && !mindspore);
        return;
    }
    size_t n_tensors = is_pytorch ? pytorch->n : mindspore->n;
    unsigned sum = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        const struct tensor *t = is_pytorch ? &pytorch->tensors[i] : &mindspore->tensors[i];
        void *owned;
        const uint8_t *data = tensor_bytes(t, &owned);
        assert_non_null(data);
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += data[k]; /* the sanitizer watches */
        free(owned);
    }
    assert_true(sum != 0 || n_tensors > 0);
    tensor_set_close(pytorch);
    tensor_set_close(mindspore);
}

/* Where the bytes lie that say what the file holds; most changes go there. */
static void cut_and_change(const char *path, bool is_pytorch)
{
    struct mapping map;
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    open_changed(map.bytes, map.n_bytes, is_pytorch);
    for (size_t n = 0; n < map.n_bytes; n += 1 + n / 64) {
        uint8_t *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, map.bytes, n);
        open_changed(exact, n, is_pytorch);
        free(exact);
    }
    uint8_t *copy = malloc(map.n_bytes);
    assert_non_null(copy);
    uint32_t random = 1;
    for (int i = 0; i < 3000; i++) {
        memcpy(copy, map.bytes, map.n_bytes);
        for (int k = 0; k <= i % 4; k++) {
            random = random * 1664525 + 1013904223;
            size_t range = i % 3 == 0 || map.n_bytes < 4096 ? map.n_bytes : 4096;
            size_t at = (random >> 8) % range;
            if (i % 3 == 1) /* from the end: an archive's directory */
                at = map.n_bytes - 1 - at;
            random = random * 1664525 + 1013904223;
            copy[at] = i % 2 ? (uint8_t)(random >> 24) : copy[at] ^ (uint8_t)(1 << (random >> 29));
        }
        open_changed(copy, map.n_bytes, is_pytorch);
    }
    free(copy);
    mapping_close(&map);
}

static void cut_and_changed_files_are_errors_or_correct_reads(void **state)
{
    (void)state;
    cut_and_change(PYTORCH "odd/views.pt", true);
    cut_and_change(PYTORCH "odd/views-old.pt", true);
    cut_and_change(PYTORCH "odd/views-4.pt", true);
    cut_and_change(PYTORCH "odd/evil.pt", true);
    cut_and_change(MINDSPORE "odd/types.ckpt", false);
    cut_and_change(MINDSPORE "odd/sliced.ckpt", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_of_pytorch_are_read_as_pytorch_reads_them),
        cmocka_unit_test(tensors_of_mindspore_are_read_as_they_were_written),
        cmocka_unit_test(folders_hold_the_same_tensors_in_every_format),
        cmocka_unit_test(files_that_hold_more_than_tensors_are_refused_by_name),
        cmocka_unit_test(parts_of_a_gguf_file_are_one),
        cmocka_unit_test(ranks_of_mindspore_are_put_together),
        cmocka_unit_test_setup_teardown(wrong_ranks_are_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(changed_strategies_are_errors_or_correct_reads, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(wrong_parts_of_a_gguf_file_are_named, make_folder, remove_folder),
        cmocka_unit_test(a_broken_mindspore_file_is_told_what_is_wrong),
        cmocka_unit_test(integers_of_rows_keep_their_values),
        cmocka_unit_test(cut_and_changed_files_are_errors_or_correct_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
