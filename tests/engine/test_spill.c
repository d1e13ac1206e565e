/* Pages that went through the spill file: the same answers to the last bit, after restarts too, whatever happens to the file. */
#include "support/collect.h"
#include "support/fault.h"
#include "support/mock_model.h"
#include "support/opened.h"
#include "support/talks.h"

#include "base/log.h"
#include "base/rng.h"
#include "base/system/clock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A pool of 20 pages, of which a talk needs up to 16. */
static struct tutti_engine_options options_of(const struct folder *f, int n_spilled)
{
    return (struct tutti_engine_options){ .kv_bytes = 20 * MOCK_PAGE_TOKENS * sizeof(int32_t),
                                          .max_seqs = 8,
                                          .kv_spill_dir = f->path,
                                          .kv_spill_bytes = 8192 + (uint64_t)n_spilled * 4096 +
                                                            (uint64_t)(n_spilled - 1) / 32 * 4096 };
}

static void a_talk_that_left_the_pool_comes_back(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    for (int i = 0; i < N_TALKS; i++)
        talk_begin(&talks[i], i);
    size_t n_cached[5] = { 0 };
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < N_TALKS; i++) {
            n_cached[round] += talk_turn(engine, &talks[i], (uint64_t)(round * 100 + i));
            tutti_engine_stats(engine, &stats);
            assert_int_equal(stats.n_spill_lost_pages, 0); /* between turns there is time to copy */
            talks_settle(engine);
        }
    /* of the second turn on all but the last page of the turn before, which was not full */
    for (int round = 1; round < 5; round++) {
        int before = FIRST_TURN + (round - 1) * (N_ANSWER + NEXT_ROW) + N_ANSWER;
        assert_in_range(n_cached[round], N_TALKS * (before / 16 * 16 - 16), N_TALKS * (before / 16 * 16));
    }
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.kv_spill_slots, 400);
    assert_true(stats.n_restored_pages > 3 * N_TALKS);
    assert_int_equal(stats.n_restored_pages, stats.n_spill_found_pages);
    assert_true(stats.n_spill_looked_up_pages > stats.n_spill_found_pages);
    assert_int_equal(stats.n_restored_bytes, stats.n_restored_pages * 64);
    assert_int_equal(stats.n_spill_write_errors + stats.n_spill_read_errors, 0);
    assert_true(stats.n_evictions > 0);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void talks_go_on_after_a_restart(void **state)
{
    struct tutti_engine_options options = options_of(*state, 400);
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    size_t n_cached = 0;
    for (int i = 0; i < N_TALKS; i++)
        talk_begin(&talks[i], i);
    for (int run = 0; run < 3; run++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        n_cached = 0;
        for (int i = 0; i < N_TALKS; i++) {
            n_cached += talk_turn(engine, &talks[i], (uint64_t)(run * 100 + i));
            talks_settle(engine);
        }
        tutti_engine_stats(engine, &stats);
        assert_int_equal(stats.n_restored_pages > 0, run > 0);
        tutti_engine_close(engine); /* what is cached is written now */
        mock_model_free(mock);
    }
    int before = FIRST_TURN + N_ANSWER + NEXT_ROW + N_ANSWER;
    assert_in_range(n_cached, N_TALKS * (before / 16 * 16 - 16), N_TALKS * (before / 16 * 16));
}

/* The file holds pages of two tenants that said the same; after a restart each finds its own, and a third one none. */
static void a_tenant_finds_its_own_pages_in_the_file(void **state)
{
    static const uint64_t order[] = { 1, 2, 1, 2, 3, 0 };
    struct tutti_engine_options options = options_of(*state, 400);
    struct tutti_stats stats;
    for (size_t run = 0; run < sizeof order / sizeof *order; run++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        struct talk talk;
        talk_begin(&talk, 0);
        struct tutti_request r = { .ids = talk.ids,
                                   .n_ids = (size_t)talk.n_ids,
                                   .max_tokens = 1,
                                   .tenant = order[run],
                                   .sampling = { .top_p = 1, .repetition_penalty = 1 } };
        struct collect c;
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        size_t n_expected = run == 2 || run == 3 ? FIRST_TURN / 16 * 16 : 0;
        assert_int_equal(c.n_cached_tokens, n_expected);
        tutti_engine_stats(engine, &stats);
        assert_int_equal(stats.n_spill_found_pages, n_expected / 16);
        collect_clear(&c);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void a_small_file_keeps_the_latest_beginnings(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 12);
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    for (int i = 0; i < N_TALKS; i++)
        talk_begin(&talks[i], 2 * i + 1); /* all begin with the same page */
    for (int round = 0; round < 5; round++) {
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        for (int i = 0; i < N_TALKS; i++) {
            talk_turn(engine, &talks[i], (uint64_t)(round * 100 + i));
            talks_settle(engine);
        }
        tutti_engine_stats(engine, &stats);
        assert_int_equal(stats.kv_spill_slots, 12);
        assert_true(stats.kv_spill_pages <= 12);
        tutti_engine_close(engine);
    }
    assert_true(stats.n_spill_evictions > 0);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_spill_pages, 12);
    talks[N_TALKS - 1].n_ids -= NEXT_ROW; /* the last one's pages were written last */
    assert_in_range(talk_turn(engine, &talks[N_TALKS - 1], 7), 4 * 16, 12 * 16);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void many_at_once_get_their_own_answers(void **state)
{
    for (int n_spilled = 9; n_spilled <= 400; n_spilled += 97) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, n_spilled);
        struct engine_hooks hooks = { .forces_drafts = true };
        options.max_lookup_tokens = n_spilled % 2 ? 4 : 0;
        options.max_batch_tokens = n_spilled % 3 ? 256 : 24;
        tutti_engine *engine = mock_engine(mock, &options, &hooks);
        struct talk talks[N_TALKS];
        struct collect c[N_TALKS];
        struct tutti_stats stats;
        for (int i = 0; i < N_TALKS; i++)
            talk_begin(&talks[i], i);
        for (uint64_t round = 0; round < 6; round++) {
            for (int i = 0; i < N_TALKS; i++)
                talk_ask(&c[i], engine, &talks[i], round * 100 + (uint64_t)i);
            for (int i = 0; i < N_TALKS; i++)
                talk_finish(&c[i], &talks[i], round * 100 + (uint64_t)i);
        }
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.n_failed, 0);
        assert_int_equal(stats.n_spill_write_errors + stats.n_spill_read_errors, 0);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void requests_may_end_while_their_pages_come(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    talks_cancel(engine);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void others_go_on_while_a_prompt_waits_for_the_disk(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    struct engine_hooks hooks = { .spill_delay_us = 30000 };
    tutti_engine *engine = mock_engine(mock, &options, &hooks);
    struct talk first, other;
    struct collect c[2];
    struct tutti_stats before, after;
    talks_push_out(engine, &first);
    tutti_engine_stats(engine, &before);
    talk_ask(&c[0], engine, &first, 7);
    talk_begin(&other, 9); /* its prompt is not in the file */
    for (int i = 0; i < FIRST_TURN; i++)
        other.ids[i] = (int32_t)(mix64((uint64_t)i + 12345) % MOCK_USABLE);
    talk_ask(&c[1], engine, &other, 8);
    collect_wait(&c[1]);
    tutti_engine_stats(engine, &after);
    pthread_mutex_lock(&c[0].lock);
    int n_last = c[0].n_last;
    pthread_mutex_unlock(&c[0].lock);
    assert_int_equal(n_last, 0); /* twelve pages take more than a third of a second */
    assert_true(after.n_steps >= before.n_steps + N_ANSWER);
    collect_clear(&c[1]);
    assert_int_equal(talk_finish(&c[0], &first, 7), 12 * 16);
    tutti_engine_stats(engine, &after);
    assert_int_equal(after.n_restored_pages - before.n_restored_pages, 12);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void a_disk_that_does_not_answer_is_not_waited_for(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    struct engine_hooks hooks = { .spill_delay_us = 1500000, .spill_patience_us = 1000 };
    tutti_engine *engine = mock_engine(mock, &options, &hooks);
    struct talk first;
    struct tutti_stats stats;
    talks_push_out(engine, &first);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.n_restored_pages, 0);
    assert_true(talk_turn(engine, &first, 7) < 12 * 16); /* and the answer is right */
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* While the engine waits for the disk, a request in the queue still ends at its time limit. */
static void a_time_limit_holds_while_pages_are_awaited(void **state)
{
    enum { LIMIT_MS = 100, SLOW_US = 600 * 1000, MANY_TRIES = 4 };
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    struct engine_hooks hooks = { .spill_delay_us = SLOW_US };
    options.max_seqs = 1;
    tutti_engine *engine = mock_engine(mock, &options, &hooks);
    struct talk first;
    uint64_t us = UINT64_MAX;
    for (int i = 0; i < MANY_TRIES && us >= SLOW_US / 2; i++) { /* the machine may be busy otherwise */
        struct collect c[2];
        struct tutti_request r = { .ids = first.ids, .n_ids = 5, .max_tokens = 1, .max_queue_ms = LIMIT_MS };
        struct tutti_progress progress = { 0 };
        tutti_sampling_init(&r.sampling, NULL);
        talks_push_out(engine, &first);
        talk_ask(&c[0], engine, &first, 7);
        while (tutti_engine_progress(engine, c[0].id, &progress) && progress.phase == TUTTI_PHASE_WAITING)
            usleep(1000);
        assert_int_equal(progress.phase, TUTTI_PHASE_PREFILL);
        uint64_t begin_us = clock_now_us();
        collect_init(&c[1]);
        collect_submit(&c[1], engine, &r);
        collect_wait(&c[1]);
        us = clock_now_us() - begin_us;
        assert_int_equal(c[1].choices[0].error.status, TUTTI_E_TIMEOUT);
        tutti_engine_cancel(engine, c[0].id);
        collect_wait(&c[0]);
        collect_clear(&c[0]);
        collect_clear(&c[1]);
    }
    assert_in_range(us, LIMIT_MS * 1000 - 1000, SLOW_US / 2);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* ---- what may happen to the file ---- */

static void another_model_finds_nothing(void **state)
{
    struct folder *f = *state;
    struct tutti_engine_options options = options_of(f, 100);
    struct talk talk;
    struct tutti_stats stats;
    for (int change = 0; change < 4; change++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        talk_begin(&talk, 1);
        talk_turn(engine, &talk, 1);
        tutti_engine_close(engine);
        if (change == 1)
            mock->model.desc.kinds[0].attn.rope_theta = 7;
        else if (change == 2)
            mock->model.kv_type = DTYPE_I8;
        else if (change == 3) /* computes something else from the same description and weights */
            mock->salt = 5;
        engine = mock_engine(mock, &options, NULL);
        tutti_engine_stats(engine, &stats);
        assert_int_equal(stats.kv_spill_pages > 0, change == 0);
        tutti_engine_close(engine);
        mock_model_free(mock);
        unlink(f->file);
    }
}

static void overwrite_some(const struct folder *f, uint64_t seed)
{
    struct stat info;
    assert_int_equal(stat(f->file, &info), 0);
    uint64_t r = mix64(seed);
    int64_t at = (int64_t)(mix64(r) % (uint64_t)info.st_size);
    if (r % 4 == 1)
        at = at % 8192;
    if (r % 4 == 2)
        at = 8192 + at % 64 + at / 4096 % 16 * 4096; /* of pages, which are 64 bytes long */
    uint8_t junk[300];
    size_t n = r % 3 == 0 ? 1 : r % 3 == 1 ? 16 : sizeof junk;
    for (size_t i = 0; i < n; i++)
        junk[i] = r % 5 == 0 ? 0 : (uint8_t)mix64(r + i);
    if (r % 11 == 0) {
        assert_int_equal(truncate(f->file, at), 0);
        return;
    }
    int fd = open(f->file, O_WRONLY);
    assert_int_equal(pwrite(fd, junk, n, at), n);
    close(fd);
}

static void a_damaged_file_never_gives_a_wrong_answer(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 60);
    struct talk talks[6];
    struct tutti_stats stats;
    uint64_t n_restored = 0, n_errors = 0, n_lost = 0;
    for (int i = 0; i < 6; i++)
        talk_begin(&talks[i], i);
    for (uint64_t seed = 0; seed < 200; seed++) {
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        if (seed % 3 == 0)
            overwrite_some(*state, seed + 1000); /* while it is open */
        for (int i = 0; i < 6; i++) {
            if (talks[i].n_ids > 200)
                talk_begin(&talks[i], i + (int)seed);
            talk_turn(engine, &talks[i], seed * 10 + (uint64_t)i);
        }
        tutti_engine_stats(engine, &stats);
        n_restored += stats.n_restored_pages;
        n_errors += stats.n_spill_read_errors;
        n_lost += stats.n_spill_found_pages - stats.n_restored_pages;
        tutti_engine_close(engine);
        overwrite_some(*state, seed);
    }
    assert_true(n_restored > 100 && n_errors > 0 && n_lost > 0);
    mock_model_free(mock);
}

static void a_full_disk_costs_pages_alone(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400);
    struct rlimit limit, small;
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){ .rlim_cur = 8192 + 5 * 4096 + 30, .rlim_max = limit.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0); /* its signal would end this program */
    for (int i = 0; i < N_TALKS; i++)
        talk_begin(&talks[i], i);
    for (uint64_t round = 0; round < 3; round++)
        for (int i = 0; i < N_TALKS; i++) {
            talk_turn(engine, &talks[i], round * 100 + (uint64_t)i);
            talks_settle(engine);
        }
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_true(stats.n_spill_write_errors > 0);
    assert_true(stats.n_spill_lost_pages > 0);
    assert_in_range(stats.kv_spill_pages, 1, 5);
    assert_int_equal(stats.n_failed, 0);
    mock_model_free(mock);
}

static void wrong_options_are_refused(void **state)
{
    struct folder *f = *state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_error err;
    static const struct {
        const char *dir, *param, *words;
        uint64_t n_bytes;
        bool no_prefix_cache, has_prefix;
        enum tutti_status status;
    } CASES[] = {
        { NULL, "kv_spill_bytes", "without a folder", 1 << 20, false, false, TUTTI_E_ARGUMENT },
        { "", "kv_spill_dir", "is empty", 0, false, false, TUTTI_E_ARGUMENT },
        { "own", "kv_spill_dir", "prefix cache is switched off", 0, true, false, TUTTI_E_ARGUMENT },
        { "own", "kv_spill_dir", "bidirectional attention", 0, false, true, TUTTI_E_UNSUPPORTED },
        { "own", "kv_spill_bytes", "needs 12288", 12287, false, false, TUTTI_E_LIMIT },
        { "/proc/nothing/here", "", "creating the folder", 0, false, false, TUTTI_E_IO },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *dir = CASES[i].dir;
        struct tutti_engine_options options = { .kv_bytes = 2000,
                                                .no_prefix_cache = CASES[i].no_prefix_cache,
                                                .kv_spill_dir = dir && strcmp(dir, "own") == 0 ? f->path
                                                                                               : dir,
                                                .kv_spill_bytes = CASES[i].n_bytes };
        mock->model.desc.has_prefix = CASES[i].has_prefix;
        assert_int_equal(mock_engine_try(mock, &options, &err), CASES[i].status);
        assert_string_equal(err.param, CASES[i].param);
        if (!strstr(err.text, CASES[i].words))
            fail_msg("\"%s\" does not say \"%s\"", err.text, CASES[i].words);
    }
    mock->model.desc.has_prefix = false;
    struct tutti_engine_options options = options_of(f, 100);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    struct mock_model *other = mock_model_new(N_CTX, false);
    assert_int_equal(mock_engine_try(other, &options, &err), TUTTI_E_BUSY);
    tutti_engine_close(engine);
    assert_int_equal(mock_engine_try(other, &options, &err), TUTTI_OK);
    mock_model_free(other);
    mock_model_free(mock);
}

static void opening_without_memory_is_an_error_and_leaves_the_file(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 100);
    struct tutti_stats stats;
    struct talk talk;
    talk_begin(&talk, 1);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    talk_turn(engine, &talk, 1);
    tutti_engine_close(engine);
    bool has_hit = true;
    long n = 1;
    for (; has_hit && n < 1000; n++) {
        struct tutti_error err = { 0 };
        fault_arm(n);
        enum tutti_status st = mock_engine_try(mock, &options, &err);
        has_hit = fault_has_hit();
        fault_arm(0);
        assert_int_equal(st, has_hit ? TUTTI_E_MEMORY : TUTTI_OK);
        assert_int_equal(err.text[0] != '\0', has_hit);
    }
    assert_in_range(n, 40, 999);
    engine = mock_engine(mock, &options, NULL);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_spill_pages, 3);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* ---- with real models ---- */

enum { N_PROMPTS = 8, MAX_PROMPT = 90, N_TOKENS = 12, N_TOP = 3 };

static tutti_model *open_model(const char *name, const char *kv_type, const char *adapters[2])
{
    char path[512];
    struct tutti_error err = { 0 };
    tutti_model *model = opened_model(name, NULL, kv_type, 1);
    for (int i = 0; i < 2 && adapters[i]; i++) {
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", adapters[i]);
        if (tutti_model_add_adapter(model, adapters[i], path, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
    }
    return model;
}

/* Asks one after the other, over and over; the same prompts with each adapter and without one. */
static void ask_all(struct collect answers[3][N_PROMPTS], tutti_model *model, const char *adapters[2],
                    const struct tutti_engine_options *options, struct tutti_stats *stats)
{
    tutti_engine *engine = opened_engine(model, options, NULL);
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < N_PROMPTS; i++) {
            int32_t ids[MAX_PROMPT];
            if (a > 0 && !adapters[a - 1])
                continue;
            for (int k = 0; k < MAX_PROMPT; k++)
                ids[k] = (int32_t)(mix64((uint64_t)(k < 40 ? i % 2 : i) << 32 ^ (uint64_t)k) % 90);
            struct tutti_request r = { .ids = ids,
                                       .n_ids = (size_t)(40 + 6 * i),
                                       .max_tokens = N_TOKENS,
                                       .adapter = a > 0 ? adapters[a - 1] : NULL,
                                       .logprobs = true,
                                       .top_logprobs = N_TOP,
                                       .ignore_eos = true };
            tutti_sampling_init(&r.sampling, NULL);
            r.sampling.temperature = 0;
            collect_init(&answers[a][i]);
            collect_submit(&answers[a][i], engine, &r);
            collect_wait(&answers[a][i]);
            talks_settle(engine);
        }
    tutti_engine_stats(engine, stats);
    tutti_engine_close(engine);
}

static void tokens_and_logits_have_the_same_bits(void **state)
{
    struct folder *f = *state;
    static const struct {
        const char *name, *kv_type,
            *adapters[3]; /* at the last start the second one takes the first one's place */
    } CASES[] = { { "llama-tiny", "f16", { "llama-qv", "llama-all", NULL } },
                  { "chatglm3-tiny", "int8", { NULL } },
                  { "qwen3-tiny", "f32", { NULL } },
                  { "bloom-tiny", "f16", { NULL } },
                  { "pangu-tiny", "f16", { NULL } },
                  { "deepseek-v2-lite-tiny", "int8", { NULL } },
                  { "glm4-moe-lite-tiny", "f16", { NULL } } };
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        struct collect want[3][N_PROMPTS] = { 0 }, got[3][N_PROMPTS] = { 0 };
        const char *adapters[2] = { CASES[k].adapters[0], CASES[k].adapters[1] };
        struct tutti_stats stats;
        tutti_model *model = open_model(CASES[k].name, CASES[k].kv_type, adapters);
        struct tutti_model_info info;
        tutti_model_info(model, &info);
        struct tutti_engine_options options = { .kv_bytes = 9 * 16 * info.kv_bytes_per_token,
                                                .max_context = 9 * 16,
                                                .max_batch_tokens = 48,
                                                .no_prefix_cache = true };
        ask_all(want, model, adapters, &options, &stats);
        options.no_prefix_cache = false;
        options.kv_spill_dir = f->path;
        options.kv_spill_bytes = 64 << 20;
        for (int run = 0; run < 3; run++) {
            if (run == 2 && adapters[0]) { /* adapters are known by their weights */
                tutti_model_close(model);
                adapters[0] = CASES[k].adapters[1];
                adapters[1] = CASES[k].adapters[0];
                model = open_model(CASES[k].name, CASES[k].kv_type, adapters);
            }
            ask_all(got, model, adapters, &options, &stats);
            for (int a = 0; a < 3; a++)
                for (int i = 0; i < N_PROMPTS; i++) {
                    int b = run == 2 && a > 0 ? 3 - a : a;
                    const struct collected *x = &got[a][i].choices[0], *y = &want[b][i].choices[0];
                    if (a > 0 && !adapters[a - 1])
                        continue;
                    assert_int_equal(x->ids.n, N_TOKENS);
                    assert_memory_equal(x->ids.ids, y->ids.ids, N_TOKENS * sizeof *x->ids.ids);
                    assert_int_equal(x->logprob_bits.n, y->logprob_bits.n);
                    assert_memory_equal(x->logprob_bits.ids, y->logprob_bits.ids,
                                        x->logprob_bits.n * sizeof *x->logprob_bits.ids);
                    if (run > 0) /* all but the page of the last token came from the file */
                        assert_int_equal(got[a][i].n_cached_tokens, (40 + 6 * i - 1) / 16 * 16);
                    collect_clear(&got[a][i]);
                }
            assert_int_equal(stats.n_restored_pages > 10, run > 0);
            assert_int_equal(stats.n_spill_read_errors, 0);
        }
        for (int a = 0; a < 3; a++)
            for (int i = 0; i < N_PROMPTS; i++)
                if (a == 0 || CASES[k].adapters[a - 1])
                    collect_clear(&want[a][i]);
        tutti_model_close(model);
        unlink(f->file);
    }
}

static void a_prompt_read_in_both_directions_does_not_spill(void **state)
{
    struct folder *f = *state;
    const char *none[2] = { NULL };
    tutti_model *model = open_model("chatglm-6b-tiny", "f16", none);
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    struct tutti_engine_options options = { .kv_bytes = 1 << 20, .max_seqs = 2, .kv_spill_dir = f->path };
    assert_int_equal(tutti_engine_open(&engine, model, &options, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "bidirectional attention"));
    tutti_model_close(model);
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, talks_make_folder, talks_remove_folder)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(a_talk_that_left_the_pool_comes_back),
        WITH_FOLDER(talks_go_on_after_a_restart),
        WITH_FOLDER(a_tenant_finds_its_own_pages_in_the_file),
        WITH_FOLDER(a_small_file_keeps_the_latest_beginnings),
        WITH_FOLDER(many_at_once_get_their_own_answers),
        WITH_FOLDER(requests_may_end_while_their_pages_come),
        WITH_FOLDER(others_go_on_while_a_prompt_waits_for_the_disk),
        WITH_FOLDER(a_disk_that_does_not_answer_is_not_waited_for),
        WITH_FOLDER(a_time_limit_holds_while_pages_are_awaited),
        WITH_FOLDER(another_model_finds_nothing),
        WITH_FOLDER(a_damaged_file_never_gives_a_wrong_answer),
        WITH_FOLDER(a_full_disk_costs_pages_alone),
        WITH_FOLDER(wrong_options_are_refused),
        WITH_FOLDER(opening_without_memory_is_an_error_and_leaves_the_file),
        WITH_FOLDER(tokens_and_logits_have_the_same_bits),
        WITH_FOLDER(a_prompt_read_in_both_directions_does_not_spill),
    };
    log_set_level(LOG_ERROR); /* warnings of damage that is done here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
