/* What fits in a memory: the advice is what a search by hand finds, and a model that does not fit is refused before it is read. */
#include "../support/folder.h"
#include "base/log.h"
#include "model/load/fit.h"
#include "model/load/load.h"
#include "support/made_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 16, N_CTX = 4096 };

/* One layer, one KV head of 64 in f16: 256 bytes for each token. */
static const struct model_desc DESC = { .n_layers = 1,
                                        .n_kinds = 1,
                                        .kinds[0].attn = { .n_heads = 1, .n_kv_heads = 1, .head_dim = 64 },
                                        .n_ctx = N_CTX };

static struct fit_sizes sizes_of(uint64_t current)
{
    struct fit_sizes s = { .current = current };
    for (int i = 0; weight_type_at(i); i++)
        s.as[i] = (uint64_t)(20 - i) << 20; /* f32: 20 MiB, and each type after it 1 MiB less */
    return s;
}

static struct fit_request request_of(uint64_t memory)
{
    return (struct fit_request){
        .desc = &DESC, .kv_type = DTYPE_F16, .page_tokens = PAGE, .n_ctx = N_CTX, .memory_bytes = memory
    };
}

static void the_largest_type_that_fits_is_found(void **state)
{
    (void)state;
    struct fit_sizes sizes = sizes_of(UINT64_C(20) << 20);
    struct fit_room rooms[FIT_MAX_ROOMS];
    /* 10 MiB and three contexts of 1 MiB: of 9 MiB four users. */
    struct fit_request r = request_of(UINT64_C(13) << 20);
    assert_int_equal(fit_find(rooms, &sizes, &r), 1);
    assert_int_equal(rooms[0].weight_bytes, 12 << 20);
    assert_int_equal(rooms[0].n_ctx, N_CTX);
    assert_int_equal(rooms[0].n_users, 1);
    /* Half a context more than the weights of a type: that type with 2048 tokens, or the next one with all. */
    r = request_of((UINT64_C(12) << 20) + (1 << 19));
    assert_int_equal(fit_find(rooms, &sizes, &r), 2);
    assert_int_equal(rooms[0].weight_bytes, 12 << 20);
    assert_int_equal(rooms[0].n_ctx, 2048);
    assert_int_equal(rooms[0].n_users, 1);
    assert_int_equal(rooms[1].weight_bytes, 11 << 20);
    assert_int_equal(rooms[1].n_ctx, N_CTX);
    assert_int_equal(rooms[1].n_users, 1);
    char text[FIT_TEXT_BYTES], want[FIT_TEXT_BYTES];
    snprintf(want, sizeof want,
             "--type %s needs 12M, and leaves memory for 1 user of 2048 tokens (--context 2048); --type %s "
             "needs 11M, and leaves "
             "memory for 1 user of 4096 tokens (--context 4096)",
             rooms[0].type->name, rooms[1].type->name);
    assert_string_equal(fit_text(text, rooms, 2, &sizes), want);
    /* Smaller types have room for more users, but less precision. */
    r = request_of(UINT64_C(1) << 30);
    assert_int_equal(fit_find(rooms, &sizes, &r), 1);
    assert_null(rooms[0].type);
    assert_int_equal(rooms[0].n_users, 1004);
}

static void where_no_type_fits_the_least_need_is_told(void **state)
{
    (void)state;
    struct fit_sizes sizes = sizes_of(UINT64_C(20) << 20);
    struct fit_room rooms[FIT_MAX_ROOMS];
    struct fit_request r = request_of(1 << 20);
    char text[FIT_TEXT_BYTES];
    int n_types = 0;
    while (weight_type_at(n_types))
        n_types++;
    assert_int_equal(fit_find(rooms, &sizes, &r), 0);
    char want[FIT_TEXT_BYTES];
    snprintf(want, sizeof want, "even --type %s needs %dM, without keys and values",
             weight_type_at(n_types - 1)->name, 21 - n_types);
    assert_string_equal(fit_text(text, rooms, 0, &sizes), want);
}

/* ---- a model ---- */

static void count_progress(void *user, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    ++*(int *)user;
}

/* The size of the weights as type; 0: they do not fit. n_read: tensors that were read. */
static uint64_t size_as(const char *type, uint64_t memory, int *n_read, struct tutti_error *err)
{
    struct tutti_model_options options = { .n_threads = 1,
                                           .weight_type = type,
                                           .memory_bytes = memory,
                                           .progress = count_progress,
                                           .user = n_read };
    struct model *model = NULL;
    *n_read = 0;
    enum tutti_status st = model_load(&model, folder, &options, err);
    if (st != TUTTI_OK) {
        assert_int_equal(st, TUTTI_E_MEMORY);
        assert_int_equal(*n_read, 0);
        return 0;
    }
    assert_true(*n_read > 0);
    uint64_t n_bytes = model->weight_bytes;
    model_free(model);
    return n_bytes;
}

static void a_model_that_does_not_fit_is_refused_before_it_is_read(void **state)
{
    (void)state;
    struct tutti_error err = { 0 };
    int n_read;
    log_set_level(LOG_ERROR);
    made_experts(folder, MADE_BF16, 64);
    uint64_t whole = size_as(NULL, 0, &n_read, &err);
    /* From half of what it needs, down to what no type fits in. */
    for (uint64_t memory = whole / 2; memory > whole / 16; memory -= whole / 16) {
        assert_int_equal(size_as(NULL, memory, &n_read, &err), 0);
        char need[FIT_SIZE_BYTES], have[FIT_SIZE_BYTES], words[128];
        snprintf(words, sizeof words,
                 "the weights need %s as bf16, but %s of memory are given: ", fit_size_text(need, whole),
                 fit_size_text(have, memory));
        if (!strstr(err.text, words) || !strstr(err.text, folder))
            fail_msg("\"%s\", expected \"%s\"", err.text, words);
        struct tutti_error advice = err;
        const char *named = strstr(advice.text, ": --type ");
        char type[16] = "";
        if (named)
            assert_int_equal(sscanf(named, ": --type %15s", type), 1);
        else
            assert_non_null(strstr(advice.text, "even --type "));
        uint64_t most = 0, n_named = named ? size_as(type, memory, &n_read, &err) : 0;
        for (int i = 0; weight_type_at(i); i++) {
            uint64_t n = size_as(weight_type_at(i)->name, memory, &n_read, &err);
            most = n > most && n + (256 << 6) < memory ? n : most; /* and keys and values of the context */
        }
        if (n_named != most)
            fail_msg("\"%s\": %llu bytes, but a type of %llu fits", advice.text, (unsigned long long)n_named,
                     (unsigned long long)most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_type_that_fits_is_found),
        cmocka_unit_test(where_no_type_fits_the_least_need_is_told),
        cmocka_unit_test(a_model_that_does_not_fit_is_refused_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
