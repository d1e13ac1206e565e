/* Pages that went through host memory, with and without a spill file: the same answers to the last bit. The mock model's pages are
 * not the host's memory, and its copies are complete as late as a card's may be. */
#include "support/collect.h"
#include "support/fault.h"
#include "support/mock_model.h"
#include "support/opened.h"
#include "support/talks.h"

#include "base/log.h"
#include "base/rng.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE_BYTES = MOCK_PAGE_TOKENS * sizeof(int32_t), NEVER = 1 << 30 };

/* A pool of 20 pages, of which a talk needs up to 16; pages of host memory, and of the file; 0: none. */
static struct tutti_engine_options options_of(const struct folder *f, int n_host, int n_file)
{
    struct tutti_engine_options options = { .kv_bytes = 20 * PAGE_BYTES,
                                            .max_seqs = 8,
                                            .kv_spill_host_bytes = (uint64_t)n_host * PAGE_BYTES };
    if (n_file > 0) {
        options.kv_spill_dir = f->path;
        options.kv_spill_bytes = 8192 + (uint64_t)n_file * 4096 + (uint64_t)(n_file - 1) / 32 * 4096;
    }
    return options;
}

static void begin_all(struct talk *talks)
{
    for (int i = 0; i < N_TALKS; i++)
        talk_begin(&talks[i], i);
}

/* A turn of each talk. Returns the tokens that came from caches. */
static size_t take_turns(tutti_engine *engine, struct talk *talks, int round)
{
    size_t n_cached = 0;
    for (int i = 0; i < N_TALKS; i++) {
        n_cached += talk_turn(engine, &talks[i], (uint64_t)(round * 100 + i));
        talks_settle(engine);
    }
    return n_cached;
}

/* All but the last page of the turn before, which was not full. */
static void assert_all_cached(size_t n_cached, int round)
{
    int before = FIRST_TURN + (round - 1) * (N_ANSWER + NEXT_ROW) + N_ANSWER;
    assert_in_range(n_cached, N_TALKS * (before / 16 * 16 - 16), N_TALKS * (before / 16 * 16));
}

static void host_memory_alone_brings_talks_back(void **state)
{
    static const int LATE[] = { 0, 1, 3, NEVER };
    for (size_t l = 0; l < sizeof LATE / sizeof *LATE; l++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, 400, 0);
        struct talk talks[N_TALKS];
        struct tutti_stats stats;
        mock->n_late_copies = LATE[l];
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        begin_all(talks);
        for (int round = 0; round < 5; round++) {
            size_t n_cached = take_turns(engine, talks, round);
            if (round > 0)
                assert_all_cached(n_cached, round);
        }
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.kv_spill_host_slots, 400);
        assert_in_range(stats.kv_spill_host_pages, 100, 400);
        assert_int_equal(stats.kv_spill_host_bytes, stats.kv_spill_host_pages * PAGE_BYTES);
        assert_true(stats.n_restored_pages > 3 * N_TALKS);
        assert_int_equal(stats.n_restored_pages, stats.n_spill_found_pages);
        assert_int_equal(stats.n_restored_pages, stats.n_host_restored_pages);
        assert_int_equal(stats.n_spill_lost_pages + stats.n_spill_host_evictions, 0);
        assert_int_equal(stats.kv_spill_slots + stats.kv_spill_pages + stats.n_spilled_pages, 0);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void a_full_host_tier_keeps_the_latest(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 14, 0);
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    mock->n_late_copies = 2;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    begin_all(talks);
    for (int round = 0; round < 5; round++)
        take_turns(engine, talks, round);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_spill_host_pages, 14);
    assert_true(stats.n_spill_host_evictions > N_TALKS);
    assert_int_equal(stats.n_spill_evictions, 0);
    assert_int_equal(stats.n_failed, 0);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* Nothing is written while host memory has room; then what leaves it is. */
static void what_leaves_host_memory_goes_to_the_file(void **state)
{
    for (int n_host = 16; n_host <= 400; n_host += 384) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, n_host, 400);
        struct talk talks[N_TALKS];
        struct tutti_stats stats;
        mock->n_late_copies = 1;
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        begin_all(talks);
        for (int round = 0; round < 5; round++) {
            size_t n_cached = take_turns(engine, talks, round);
            if (round > 0)
                assert_all_cached(n_cached, round);
        }
        wait_until_idle(engine, &stats);
        bool has_room = n_host == 400;
        assert_int_equal(stats.n_spilled_pages == 0, has_room);
        assert_int_equal(stats.n_spill_host_evictions == 0, has_room);
        assert_int_equal(stats.n_restored_pages, stats.n_spill_found_pages);
        assert_int_equal(stats.n_host_restored_pages == stats.n_restored_pages, has_room);
        assert_int_equal(stats.n_spill_lost_pages + stats.n_spill_write_errors + stats.n_spill_read_errors,
                         0);
        assert_true(has_room || stats.kv_spill_pages + 16 >= 100);
        tutti_engine_close(engine);
        mock_model_free(mock);
        unlink(((struct folder *)*state)->file);
    }
}

/* Host memory of every start may have another size, or none. */
static void talks_go_on_after_a_restart(void **state)
{
    static const int SIZES[] = { 400, 16, 0, 60, 9 };
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    begin_all(talks);
    for (int run = 0; run < 5; run++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, SIZES[run], 400);
        mock->n_late_copies = run;
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        size_t n_cached = take_turns(engine, talks, run);
        tutti_engine_stats(engine, &stats);
        if (run > 0)
            assert_all_cached(n_cached, run);
        assert_int_equal(stats.n_restored_pages > 0, run > 0);
        assert_int_equal(stats.n_spill_read_errors, 0);
        tutti_engine_close(engine); /* what is cached, and what is in host memory, is written now */
        mock_model_free(mock);
    }
}

/* At the end the file gets the newest pages of a larger host memory, beginnings included. */
static void a_small_file_gets_the_latest_at_the_end(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400, 30);
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    begin_all(talks);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    for (int round = 0; round < 3; round++)
        take_turns(engine, talks, round);
    tutti_engine_close(engine);
    options = options_of(*state, 400, 30);
    engine = mock_engine(mock, &options, NULL);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_spill_pages, 30);
    talks[N_TALKS - 1].n_ids -= NEXT_ROW;
    assert_in_range(talk_turn(engine, &talks[N_TALKS - 1], 7), 6 * 16, 8 * 16);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void many_at_once_get_their_own_answers(void **state)
{
    static const int SIZES[][2] = { { 8, 0 },  { 30, 0 }, { 400, 0 }, { 8, 9 },
                                    { 9, 60 }, { 40, 9 }, { 60, 400 } };
    for (int k = 0; k < 14; k++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, SIZES[k % 7][0], SIZES[k % 7][1]);
        struct engine_hooks hooks = { .forces_drafts = true };
        options.max_lookup_tokens = k % 2 ? 4 : 0;
        options.max_batch_tokens = k % 3 ? 256 : 24;
        mock->n_late_copies = k % 4 == 3 ? NEVER : k % 4;
        tutti_engine *engine = mock_engine(mock, &options, &hooks);
        struct talk talks[N_TALKS];
        struct collect c[N_TALKS];
        struct tutti_stats stats;
        begin_all(talks);
        for (uint64_t round = 0; round < 6; round++) {
            for (int i = 0; i < N_TALKS; i++)
                talk_ask(&c[i], engine, &talks[i], round * 100 + (uint64_t)i);
            for (int i = 0; i < N_TALKS; i++)
                talk_finish(&c[i], &talks[i], round * 100 + (uint64_t)i);
        }
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.n_failed, 0);
        assert_int_equal(stats.n_spill_write_errors + stats.n_spill_read_errors, 0);
        assert_in_range(stats.kv_spill_host_pages, 1, SIZES[k % 7][0]);
        tutti_engine_close(engine);
        mock_model_free(mock);
        unlink(((struct folder *)*state)->file);
    }
}

/* Answers are longer than the pool has room for. */
static void preempted_sequences_find_their_pages(void **state)
{
    enum { N = 6, N_PROMPT = 40, N_LONG = 90 };
    for (int k = 0; k < 4; k++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, k % 2 ? 400 : 12, k / 2 ? 400 : 0);
        struct collect c[2 * N];
        struct talk talks[N];
        struct tutti_stats stats;
        int32_t want[N_CTX];
        mock->n_late_copies = k;
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        struct tutti_request r = { .n_ids = N_PROMPT, .max_tokens = N_LONG };
        r.sampling = (struct tutti_sampling){
            .temperature = 1, .top_p = 1, .repetition_penalty = 1, .has_seed = true, .seed = 5
        };
        for (int i = 0; i < 2 * N; i++) { /* one after the other, then all at once */
            talk_begin(&talks[i % N], 2 * (i % N) + 1);
            r.ids = talks[i % N].ids;
            r.max_tokens = i < N ? 1 : N_LONG;
            collect_init(&c[i]);
            /* When they are all at once, no step ends before the last one is there. */
            atomic_store(&mock->is_held, i >= N);
            collect_submit(&c[i], engine, &r);
            if (i < N) {
                collect_wait(&c[i]);
                talks_settle(engine);
            }
        }
        mock_release(mock, engine);
        for (int i = 0; i < 2 * N; i++) {
            r.ids = talks[i % N].ids;
            r.max_tokens = i < N ? 1 : N_LONG;
            collect_wait(&c[i]);
            int n = mock_answer(&r, 0, N_CTX, false, want, N_CTX);
            assert_int_equal(c[i].choices[0].ids.n, n);
            assert_memory_equal(c[i].choices[0].ids.ids, want, (size_t)n * sizeof *want);
            collect_clear(&c[i]);
        }
        wait_until_idle(engine, &stats);
        assert_true(stats.n_preemptions > 0);
        tutti_engine_close(engine);
        mock_model_free(mock);
        unlink(((struct folder *)*state)->file);
    }
}

static void requests_may_end_while_their_pages_come(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 100, 400);
    mock->n_late_copies = 20;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    talks_cancel(engine);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* These copies are complete only when the engine has nothing else to do. */
static void others_go_on_while_pages_are_copied(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400, 0);
    struct talk first, other;
    struct collect c[2];
    struct tutti_stats before, after;
    mock->n_late_copies = NEVER;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    talks_push_out(engine, &first);
    tutti_engine_stats(engine, &before);
    atomic_store(&mock->is_held, true);
    talk_begin(&other, 9); /* its prompt is nowhere */
    for (int i = 0; i < FIRST_TURN; i++)
        other.ids[i] = (int32_t)(mix64((uint64_t)i + 12345) % MOCK_USABLE);
    talk_ask(&c[1], engine, &other, 8);
    talk_ask(&c[0], engine, &first, 7);
    mock_release(mock, engine);
    collect_wait(&c[1]);
    collect_clear(&c[1]);
    assert_int_equal(talk_finish(&c[0], &first, 7), 12 * 16);
    tutti_engine_stats(engine, &after);
    assert_true(after.n_steps >= before.n_steps + 2 * N_ANSWER); /* one after the other */
    assert_int_equal(after.n_host_restored_pages - before.n_host_restored_pages, 12);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void a_tenant_finds_its_own_pages_only(void **state)
{
    static const uint64_t ORDER[] = { 1, 2, 1, 2, 3, 0 };
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 400, 0);
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    struct talk talk, other;
    struct tutti_stats before, after;
    talk_begin(&talk, 0);
    for (size_t i = 0; i < sizeof ORDER / sizeof *ORDER; i++) {
        struct tutti_request r = { .ids = talk.ids,
                                   .n_ids = (size_t)talk.n_ids,
                                   .max_tokens = 1,
                                   .tenant = ORDER[i],
                                   .sampling = { .top_p = 1, .repetition_penalty = 1 } };
        struct collect c;
        tutti_engine_stats(engine, &before);
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        size_t n_expected = i == 2 || i == 3 ? FIRST_TURN / 16 * 16 : 0;
        assert_int_equal(c.n_cached_tokens, n_expected);
        tutti_engine_stats(engine, &after);
        assert_int_equal(after.n_host_restored_pages - before.n_host_restored_pages, n_expected / 16);
        collect_clear(&c);
        talks_settle(engine);
        for (int k = 0; k < 6; k++) { /* so that the pool has none of the pages */
            talk_begin(&other, 1 + 2 * k + 20 * (int)i);
            talk_turn(engine, &other, (uint64_t)k);
            talks_settle(engine);
        }
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* ---- failures ---- */

static void a_full_disk_leaves_host_memory(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = options_of(*state, 24, 400);
    struct rlimit limit, small;
    struct talk talks[N_TALKS];
    struct tutti_stats stats;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){ .rlim_cur = 8192 + 5 * 4096 + 30, .rlim_max = limit.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0); /* its signal would end this program */
    begin_all(talks);
    for (int round = 0; round < 4; round++)
        take_turns(engine, talks, round);
    talk_turn(engine, &talks[0], 999);
    talks_settle(engine);
    talk_turn(engine, &talks[1], 999);
    talks_settle(engine);
    tutti_engine_stats(engine, &stats);
    uint64_t n_before = stats.n_host_restored_pages;
    talks[0].n_ids -= NEXT_ROW; /* pushed out of the pool, but not out of host memory */
    assert_true(talk_turn(engine, &talks[0], 1000) > 0);
    tutti_engine_stats(engine, &stats);
    assert_true(stats.n_host_restored_pages > n_before);
    assert_true(stats.n_spill_write_errors > 0);
    assert_in_range(stats.kv_spill_pages, 1, 5);
    assert_int_equal(stats.kv_spill_host_pages, 24);
    assert_int_equal(stats.n_failed, 0);
    tutti_engine_close(engine);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mock_model_free(mock);
}

static void a_damaged_file_never_gives_a_wrong_answer(void **state)
{
    struct folder *f = *state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct talk talks[6];
    struct tutti_stats stats;
    uint64_t n_restored = 0, n_errors = 0, n_host = 0;
    for (int i = 0; i < 6; i++)
        talk_begin(&talks[i], i);
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct tutti_engine_options options = options_of(f, 10 + (int)(seed % 3) * 10, 60);
        mock->n_late_copies = (int)(seed % 3);
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        uint8_t junk[16];
        memset(junk, (int)seed, sizeof junk);
        int fd = open(f->file, O_WRONLY);
        for (int64_t k = 0; k < 8; k++) /* pages of the first slots, while the file is open */
            assert_int_equal(pwrite(fd, junk, sizeof junk,
                                    8192 + (int64_t)(mix64(seed * 8 + (uint64_t)k) % 32) * 4096 + k),
                             sizeof junk);
        close(fd);
        for (int k = 0; k < 12; k++) {
            struct talk *talk = &talks[k % 6];
            if (talk->n_ids > 200)
                talk_begin(talk, k + (int)seed);
            talk_turn(engine, talk, seed * 20 + (uint64_t)k);
            talks_settle(engine);
        }
        tutti_engine_stats(engine, &stats);
        n_restored += stats.n_restored_pages;
        n_host += stats.n_host_restored_pages;
        n_errors += stats.n_spill_read_errors;
        tutti_engine_close(engine);
    }
    assert_true(n_restored > n_host && n_host > 10 && n_errors > 10);
    mock_model_free(mock);
}

static struct backend_ops changed_ops;
static atomic_bool has_failed;

static enum tutti_status check_failed(const struct backend *be, struct tutti_error *err)
{
    (void)be;
    return has_failed ? error_set(err, TUTTI_E_IO, "the device fell off the bus") : TUTTI_OK;
}

/* What a failed device would give as pages must not outlive it. */
static void a_failed_device_leaves_the_file_alone(void **state)
{
    for (int n_host = 0; n_host <= 400; n_host += 400) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = options_of(*state, n_host, 400);
        struct talk talk;
        struct tutti_stats stats;
        changed_ops = *mock->backend.ops;
        changed_ops.check = check_failed;
        mock->backend.ops = &changed_ops;
        has_failed = false;
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        talk_begin(&talk, 1);
        talk_turn(engine, &talk, 1);
        talks_settle(engine);
        has_failed = true;
        tutti_engine_close(engine);
        has_failed = false;
        options = options_of(*state, n_host, 400);
        engine = mock_engine(mock, &options, NULL);
        tutti_engine_stats(engine, &stats);
        assert_int_equal(stats.kv_spill_pages, 0);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void wrong_options_are_refused(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_error err;
    static const struct {
        uint64_t n_bytes;
        const char *words;
        bool no_prefix_cache, has_prefix, is_host;
        enum tutti_status status;
    } CASES[] = {
        { 400 * PAGE_BYTES, "raise kv_bytes (--kv-memory) instead", false, false, true, TUTTI_E_UNSUPPORTED },
        { 400 * PAGE_BYTES, "prefix cache is switched off", true, false, false, TUTTI_E_ARGUMENT },
        { 400 * PAGE_BYTES, "bidirectional attention", false, true, false, TUTTI_E_UNSUPPORTED },
        { 8 * PAGE_BYTES - 1, "8 pages of 16 tokens need 512", false, false, false, TUTTI_E_LIMIT },
        { UINT64_C(1) << 60, "are available", false, false, false, TUTTI_E_LIMIT },
    };
    changed_ops = *mock->backend.ops;
    changed_ops.memory_left = NULL;
    const struct backend_ops *own = mock->backend.ops;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_engine_options options = options_of(*state, 0, 0);
        options.kv_spill_host_bytes = CASES[i].n_bytes;
        options.no_prefix_cache = CASES[i].no_prefix_cache;
        mock->model.desc.has_prefix = CASES[i].has_prefix;
        mock->backend.ops = CASES[i].is_host ? &changed_ops : own;
        assert_int_equal(mock_engine_try(mock, &options, &err), CASES[i].status);
        assert_string_equal(err.param, "kv_spill_host_bytes");
        if (!strstr(err.text, CASES[i].words))
            fail_msg("\"%s\" does not say \"%s\"", err.text, CASES[i].words);
    }
    mock_model_free(mock);
}

static void opening_without_memory_is_an_error(void **state)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    for (int n_file = 0; n_file <= 100; n_file += 100) {
        bool has_hit = true;
        long n = 1;
        for (; has_hit && n < 1000; n++) {
            struct tutti_engine_options options = options_of(*state, 100, n_file);
            struct tutti_error err = { 0 };
            fault_arm(n);
            enum tutti_status st = mock_engine_try(mock, &options, &err);
            has_hit = fault_has_hit();
            fault_arm(0);
            assert_int_equal(st, has_hit ? TUTTI_E_MEMORY : TUTTI_OK);
            assert_int_equal(err.text[0] != '\0', has_hit);
        }
        assert_in_range(n, 40, 999);
    }
    mock_model_free(mock);
}

/* ---- with real models: on a card, or refused ---- */

enum { N_PROMPTS = 6, MAX_PROMPT = 80, N_TOKENS = 5 };

static void ask_all(struct collect *answers, tutti_model *model, const struct tutti_engine_options *options,
                    struct tutti_stats *stats)
{
    tutti_engine *engine = opened_engine(model, options, NULL);
    for (int turn = 0; turn < 2 * N_PROMPTS; turn++) {
        int32_t ids[MAX_PROMPT];
        int i = turn % N_PROMPTS;
        for (int k = 0; k < MAX_PROMPT; k++)
            ids[k] = (int32_t)(mix64((uint64_t)(k < 40 ? i % 2 : i) << 32 ^ (uint64_t)k) % 90);
        struct tutti_request r = { .ids = ids,
                                   .n_ids = (size_t)(40 + 6 * i),
                                   .max_tokens = N_TOKENS,
                                   .logprobs = true,
                                   .ignore_eos = true };
        tutti_sampling_init(&r.sampling, NULL);
        r.sampling.temperature = 0;
        if (turn >= N_PROMPTS)
            collect_clear(&answers[i]);
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &r);
        collect_wait(&answers[i]);
        talks_settle(engine);
    }
    tutti_engine_stats(engine, stats);
    tutti_engine_close(engine);
}

static void assert_same(struct collect *got, const struct collect *want)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        const struct collected *x = &got[i].choices[0], *y = &want[i].choices[0];
        assert_int_equal(x->ids.n, N_TOKENS);
        assert_memory_equal(x->ids.ids, y->ids.ids, N_TOKENS * sizeof *x->ids.ids);
        assert_int_equal(x->logprob_bits.n, y->logprob_bits.n);
        assert_memory_equal(x->logprob_bits.ids, y->logprob_bits.ids,
                            x->logprob_bits.n * sizeof *x->logprob_bits.ids);
        collect_clear(&got[i]);
    }
}

/* Prompts twice in one engine, so that the second time most pages come from host memory; then after a restart. */
static void tokens_and_logits_have_the_same_bits(void **state)
{
    struct folder *f = *state;
    static const char *const MODELS[][2] = { { "llama-tiny", "f16" },
                                             { "chatglm3-tiny", "int8" },
                                             { "deepseek-v2-lite-tiny", "f16" } };
    const char *device = getenv("TUTTI_TEST_DEVICE");
    bool is_card = device && strcmp(device, "cpu") != 0;
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++) {
        struct collect want[N_PROMPTS] = { 0 }, got[N_PROMPTS] = { 0 };
        struct tutti_stats stats;
        tutti_model *model = opened_model(MODELS[m][0], NULL, MODELS[m][1], 1);
        struct tutti_model_info info;
        tutti_model_info(model, &info);
        struct tutti_engine_options options = { .kv_bytes = 9 * 16 * info.kv_bytes_per_token,
                                                .max_context = 9 * 16,
                                                .max_batch_tokens = 48,
                                                .no_prefix_cache = true };
        if (!is_card) {
            tutti_engine *engine = NULL;
            struct tutti_error err = { 0 };
            options.no_prefix_cache = false;
            options.kv_spill_host_bytes = 1 << 20;
            assert_int_equal(tutti_engine_open(&engine, model, &options, &err), TUTTI_E_UNSUPPORTED);
            assert_string_equal(err.param, "kv_spill_host_bytes");
            assert_non_null(strstr(err.text, "device cpu: its KV pages are in host memory already"));
            tutti_model_close(model);
            continue;
        }
        ask_all(want, model, &options, &stats);
        options.no_prefix_cache = false;
        options.kv_spill_bytes = 0;
        for (int run = 0; run < 3; run++) { /* host memory; with a file; after a restart */
            options.kv_spill_host_bytes = (run == 0 ? 64 : 8) * 16 * info.kv_bytes_per_token;
            options.kv_spill_dir = run > 0 ? f->path : NULL;
            options.kv_spill_bytes = run > 0 ? 64 << 20 : 0;
            ask_all(got, model, &options, &stats);
            assert_int_equal(stats.n_spill_read_errors + stats.n_spill_write_errors, 0);
            assert_true(stats.n_restored_pages > 0);
            assert_int_equal(stats.n_spill_lost_pages, 0);
            assert_true(run != 0 || stats.n_restored_pages == stats.n_host_restored_pages);
            assert_true(run != 2 || stats.n_restored_pages > stats.n_host_restored_pages);
            assert_same(got, want);
        }
        for (int i = 0; i < N_PROMPTS; i++)
            collect_clear(&want[i]);
        tutti_model_close(model);
        unlink(f->file);
    }
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, talks_make_folder, talks_remove_folder)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(host_memory_alone_brings_talks_back),
        WITH_FOLDER(a_full_host_tier_keeps_the_latest),
        WITH_FOLDER(what_leaves_host_memory_goes_to_the_file),
        WITH_FOLDER(talks_go_on_after_a_restart),
        WITH_FOLDER(a_small_file_gets_the_latest_at_the_end),
        WITH_FOLDER(many_at_once_get_their_own_answers),
        WITH_FOLDER(preempted_sequences_find_their_pages),
        WITH_FOLDER(requests_may_end_while_their_pages_come),
        WITH_FOLDER(others_go_on_while_pages_are_copied),
        WITH_FOLDER(a_tenant_finds_its_own_pages_only),
        WITH_FOLDER(a_full_disk_leaves_host_memory),
        WITH_FOLDER(a_damaged_file_never_gives_a_wrong_answer),
        WITH_FOLDER(a_failed_device_leaves_the_file_alone),
        WITH_FOLDER(wrong_options_are_refused),
        WITH_FOLDER(opening_without_memory_is_an_error),
        WITH_FOLDER(tokens_and_logits_have_the_same_bits),
    };
    log_set_level(LOG_ERROR); /* warnings of damage that is done here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
