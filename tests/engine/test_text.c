/* Text and steps overlap: callbacks that take as long as most of a step do not slow a step, and no step waits. The
 * figures are printed; only the count of waits is asserted, since a busy machine may stretch any time. */
#include "support/collect.h"
#include "support/mock_model.h"
#include "support/questions.h"

#include "base/limits.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_STREAMS = 32, N_TOKENS = 60, STEP_US = 4000, SEARCHED_TOKENS = 1500 };

/* Mean time of a step in milliseconds. */
static double run_streams(int callback_us, struct tutti_stats *stats)
{
    struct mock_model *mock = mock_model_new(256, false);
    mock->step_us = STEP_US;
    struct tutti_engine_options options = { .kv_bytes = 1 << 20 };
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    static struct collect all[N_STREAMS];
    int32_t ids[] = { 5, 6, 7 };
    struct tutti_request r = { .ids = ids, .n_ids = 3, .max_tokens = N_TOKENS };
    r.sampling = (struct tutti_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    for (int i = 0; i < N_STREAMS; i++) {
        collect_init(&all[i]);
        all[i].sleep_us = callback_us;
        collect_submit(&all[i], engine, &r);
    }
    for (int i = 0; i < N_STREAMS; i++) {
        collect_wait(&all[i]);
        assert_int_equal(all[i].choices[0].ids.n, N_TOKENS);
        collect_clear(&all[i]);
    }
    wait_until_idle(engine, stats);
    double mean_ms = stats->step.sum / (double)stats->step.n * 1e3;
    tutti_engine_close(engine);
    mock_model_free(mock);
    return mean_ms;
}

static void a_step_never_waits_for_text(void **state)
{
    (void)state;
    struct tutti_stats stats;
    double quick_ms = run_streams(0, &stats);
    assert_int_equal(stats.n_text_waits, 0);
    print_message("# step of %d streams: %.2f ms with quick callbacks\n", N_STREAMS, quick_ms);
    static const int times_us[] = { 30, 100, 200 }; /* of one callback; times 32: up to more than a step */
    for (size_t i = 0; i < sizeof times_us / sizeof *times_us; i++) {
        double slow_ms = run_streams(times_us[i], &stats);
        assert_int_equal(stats.n_text_waits, 0);
        print_message(
            "# step of %d streams: %.2f ms with callbacks of %d us (%.1f ms of text for each step)\n",
            N_STREAMS, slow_ms, times_us[i], N_STREAMS * times_us[i] / 1e3);
    }
}

/* The demo model, with texts that are searched for many long stop strings. */
static double ask_questions(tutti_model *model, bool is_slow, struct collect *all, struct tutti_stats *stats)
{
    static char text[LIMIT_STOPS][1000];
    struct tutti_string stops[LIMIT_STOPS];
    for (size_t i = 0; i < LIMIT_STOPS; i++) {
        memset(text[i], 'e', sizeof text[i]);
        stops[i] = (struct tutti_string){ text[i], sizeof text[i] - i };
    }
    tutti_engine *engine = NULL;
    struct tutti_engine_options options = { .kv_bytes = 32 << 20 };
    assert_int_equal(tutti_engine_open(&engine, model, &options, NULL), TUTTI_OK);
    for (int i = 0; i < N_STREAMS; i++) {
        struct question q;
        question_make(&q, i, N_TOKENS);
        q.request.ignore_eos = true;
        if (is_slow) {
            q.request.stop = stops;
            q.request.n_stop = LIMIT_STOPS;
        }
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &q.request);
    }
    for (int i = 0; i < N_STREAMS; i++)
        collect_wait(&all[i]);
    wait_until_idle(engine, stats);
    tutti_engine_close(engine);
    return stats->step.sum / (double)stats->step.n * 1e3;
}

static void long_stop_lists_do_not_slow_a_step(void **state)
{
    (void)state;
    static struct collect quick[N_STREAMS], slow[N_STREAMS];
    struct tutti_stats stats;
    tutti_model *model = NULL;
    struct tutti_model_options one_thread = {
        .n_threads = 1
    }; /* where there are two cores, one is for text */
    assert_int_equal(tutti_model_open(&model, TEST_DEMO_MODEL, &one_thread, NULL), TUTTI_OK);
    double quick_ms = ask_questions(model, false, quick, &stats);
    assert_int_equal(stats.n_text_waits, 0);
    double slow_ms = ask_questions(model, true, slow, &stats);
    assert_int_equal(stats.n_text_waits, 0);
    print_message(
        "# step of %d streams of the demo model: %.2f ms, %.2f ms with %d stop strings of 1000 bytes\n",
        N_STREAMS, quick_ms, slow_ms, LIMIT_STOPS);
    for (int i = 0; i < N_STREAMS; i++) {
        assert_int_equal(quick[i].choices[0].ids.n, N_TOKENS);
        assert_int_equal(quick[i].choices[0].text.n_bytes, slow[i].choices[0].text.n_bytes);
        assert_memory_equal(quick[i].choices[0].text.bytes, slow[i].choices[0].text.bytes,
                            quick[i].choices[0].text.n_bytes);
        collect_clear(&quick[i]);
        collect_clear(&slow[i]);
    }
    tutti_model_close(model);
}

/* Whether the engine's thread waits for something. A thread that only has no core is runnable and does not count. */
static bool engine_sleeps(void)
{
    bool sleeps = false;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[300], text[300] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        const char *name = fgets(text, sizeof text, file) ? strstr(text, "(tutti-engine) ") : NULL;
        sleeps |= name && name[strlen("(tutti-engine) ")] == 'S';
        fclose(file);
    }
    closedir(folder);
    return sleeps;
}

/* Holds the first event back until no step is made, because the engine waits. */
static void hold_first(void *user, const struct tutti_event *event)
{
    struct collect *c = user;
    if (c->n_events == 0) {
        struct tutti_stats stats;
        uint64_t n_before = 0;
        for (int n_still = 0; n_still < 20; usleep(10000)) {
            tutti_engine_stats(c->engine, &stats);
            n_still = stats.n_steps > 0 && stats.n_steps == n_before && engine_sleeps() ? n_still + 1 : 0;
            n_before = stats.n_steps;
        }
    }
    collect_event(user, event);
}

/* When the text thread is late by the whole ring, the engine waits, counts that, and loses nothing. */
static void a_full_ring_is_waited_for_and_counted(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(8192, false);
    struct tutti_engine_options options = { .kv_bytes = 1 << 20, .max_seqs = 1 };
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    struct collect c;
    int32_t id = 5;
    struct tutti_request r = { .ids = &id, .n_ids = 1, .max_tokens = 5000 };
    r.sampling = (struct tutti_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    collect_init(&c);
    c.engine = engine;
    c.n_choices = 1;
    assert_int_equal(tutti_engine_submit(engine, &r, hold_first, &c, NULL, NULL), TUTTI_OK);
    collect_wait(&c);
    assert_int_equal(c.choices[0].ids.n, 5000);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_true(stats.n_text_waits > 0);
    collect_clear(&c);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* Of the stream: events so far. Those of the answers, when the last of them arrived. */
struct order {
    struct collect stream, search;
    struct mock_model *mock;
    int n_before;
};

/* Holds the text thread from the tenth token on, until the answers of the search and more tokens of the stream wait for it. */
static void hold_tenth(void *user, const struct tutti_event *event)
{
    struct order *order = user;
    collect_event(&order->stream, event);
    if (order->stream.n_events != 10)
        return;
    struct tutti_stats stats;
    do {
        usleep(1000);
        tutti_engine_stats(order->stream.engine, &stats);
    } while (order->mock->n_steps < SEARCHED_TOKENS + 100 || stats.n_running > 1);
}

static void note_order(void *user, const struct tutti_event *event)
{
    struct order *order = user;
    order->n_before = order->stream.n_events;
    collect_event(&order->search, event);
}

/* The answers of a beam search come all at once: a stream's tokens that arrive with them do not wait for them. */
static void a_stream_does_not_wait_for_the_answers_of_a_search(void **state)
{
    (void)state;
    struct order order = { .mock = mock_model_new(8192, false) };
    struct tutti_engine_options options = { .kv_bytes = 4 << 20, .max_seqs = 5 };
    tutti_engine *engine = mock_engine(order.mock, &options, NULL);
    int32_t id = 5;
    struct tutti_request stream = { .ids = &id, .n_ids = 1, .max_tokens = 2 * SEARCHED_TOKENS };
    struct tutti_request search = {
        .ids = &id, .n_ids = 1, .max_tokens = SEARCHED_TOKENS, .n_beams = 4, .n_choices = 4
    };
    tutti_sampling_init(&stream.sampling, NULL);
    tutti_sampling_init(&search.sampling, NULL);
    search.length_penalty = 1;
    collect_init(&order.stream);
    collect_init(&order.search);
    order.stream.engine = order.search.engine = engine;
    order.stream.n_choices = 1;
    order.search.n_choices = 4;
    atomic_store(&order.mock->is_held, true);
    assert_int_equal(tutti_engine_submit(engine, &search, note_order, &order, NULL, NULL), TUTTI_OK);
    assert_int_equal(tutti_engine_submit(engine, &stream, hold_tenth, &order, NULL, NULL), TUTTI_OK);
    mock_release(order.mock, engine);
    collect_wait(&order.search);
    collect_wait(&order.stream);
    for (int i = 0; i < 4; i++)
        assert_int_equal(order.search.choices[i].ids.n, SEARCHED_TOKENS);
    assert_true(order.n_before > SEARCHED_TOKENS + 50);
    collect_clear(&order.stream);
    collect_clear(&order.search);
    tutti_engine_close(engine);
    mock_model_free(order.mock);
}

/* What an event says of tokens whose text is not certain, and of the token that ends an answer. */
struct watch {
    struct collect collect;
    int n_events, n_held;
    bool has_stop_token;
    int32_t stop_token;
    float stop_logprob;
};

static void watch_event(void *user, const struct tutti_event *event)
{
    struct watch *watch = user;
    watch->n_events++;
    watch->n_held += event->n_held > 0;
    if (event->finish != TUTTI_FINISH_NONE) {
        watch->has_stop_token = event->has_stop_token;
        watch->stop_token = event->stop_token;
        watch->stop_logprob = event->stop_logprob;
    }
    bool says_something = event->n_tokens > 0 || event->n_text_bytes > 0;
    if (says_something || event->finish != TUTTI_FINISH_NONE)
        collect_event(&watch->collect, event);
}

static void watch_answer(tutti_engine *engine, const char *question, bool reports_held, struct watch *watch)
{
    struct tutti_message message = { .role = "user", .content = question, .n_bytes = strlen(question) };
    struct tutti_request request = { .messages = &message, .n_messages = 1, .logprobs = true };
    request.sampling = (struct tutti_sampling){ .top_p = 1, .repetition_penalty = 1 };
    request.reports_held = reports_held;
    *watch = (struct watch){ 0 };
    collect_init(&watch->collect);
    watch->collect.n_choices = 1;
    uint64_t id;
    assert_int_equal(tutti_engine_submit(engine, &request, watch_event, watch, &id, NULL), TUTTI_OK);
    collect_wait(&watch->collect);
}

static void held_text_and_the_last_token_are_told(void **state)
{
    (void)state;
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    struct tutti_engine_options options = { .kv_bytes = 1 << 22 };
    assert_int_equal(tutti_model_open(&model, TEST_DEMO_MODEL, NULL, NULL), TUTTI_OK);
    assert_int_equal(tutti_engine_open(&engine, model, &options, NULL), TUTTI_OK);
    static struct watch plain, held;
    /* The answer has characters that are several byte tokens each. */
    const char *question = "Repeat after me: \xF0\x9F\x98\x80\xF0\x9F\x90\xBB";
    watch_answer(engine, question, false, &plain);
    watch_answer(engine, question, true, &held);
    const struct collected *a = &plain.collect.choices[0], *b = &held.collect.choices[0];
    assert_string_equal(a->text.bytes, b->text.bytes);
    assert_int_equal(a->finish, TUTTI_FINISH_STOP);
    assert_true(plain.has_stop_token && held.has_stop_token);
    assert_int_equal(plain.stop_token, held.stop_token);
    assert_true(plain.stop_logprob <= 0 && plain.stop_logprob > -20);
    assert_true(held.n_events > (int)b->n_generated); /* each of them, and the end */
    collect_clear(&plain.collect);
    collect_clear(&held.collect);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_never_waits_for_text),
        cmocka_unit_test(long_stop_lists_do_not_slow_a_step),
        cmocka_unit_test(a_full_ring_is_waited_for_and_counted),
        cmocka_unit_test(a_stream_does_not_wait_for_the_answers_of_a_search),
        cmocka_unit_test(held_text_and_the_last_token_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
