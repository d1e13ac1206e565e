/* Answers that must fit a grammar: alone and among others, with choices, after a preemption, to their end. */
#include "support/collect.h"
#include "support/opened.h"
#include "support/questions.h"

#include "engine/run/engine_state.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
                             "\"maxLength\":12},\"tags\":{\"type\":\"array\","
                             "\"items\":{\"enum\":[\"red\",\"blue\"]},\"maxItems\":3},\"n\":{\"type\":"
                             "\"integer\",\"minimum\":-5,\"maximum\":250}},"
                             "\"required\":[\"name\",\"n\"],\"additionalProperties\":false}";
static const char GBNF[] = "root ::= (\"yes\" | \"no\") \", \" [a-c]{3,5} [.!]";

static tutti_model *model;

static int open_demo(void **state)
{
    (void)state;
    model = opened_model(TEST_DEMO_MODEL, NULL, NULL, 2);
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    tutti_model_close(model);
    return 0;
}

static struct tutti_request request_for(enum tutti_grammar_kind kind, const char *grammar, uint64_t seed)
{
    struct tutti_request r = { .text = "Once upon a time", .n_text_bytes = 16, .max_tokens = 200 };
    tutti_sampling_init(&r.sampling, NULL);
    r.sampling.temperature = 2.0f;
    r.sampling.has_seed = true;
    r.sampling.seed = seed;
    r.grammar_kind = kind;
    r.grammar = grammar;
    r.n_grammar_bytes = grammar ? strlen(grammar) : 0;
    return r;
}

static struct collect *ask(tutti_engine *engine, const struct tutti_request *r)
{
    struct collect *c = malloc(sizeof *c);
    collect_init(c);
    collect_submit(c, engine, r);
    return c;
}

static void forget(struct collect *c)
{
    collect_clear(c);
    free(c);
}

/* Its text must be an object that the schema holds for. */
static void check_object(const struct collected *answer)
{
    json_error_t at;
    assert_int_equal(answer->finish, TUTTI_FINISH_STOP);
    json_t *root = json_loadb(answer->text.bytes, answer->text.n_bytes, JSON_REJECT_DUPLICATES, &at);
    if (!root)
        fail_msg("%s: %s", at.text, answer->text.bytes);
    assert_true(json_is_string(json_object_get(root, "name")));
    assert_in_range(json_integer_value(json_object_get(root, "n")) + 5, 0, 255);
    json_decref(root);
}

static void fits_the_schema_with_many_choices(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_request r = request_for(TUTTI_GRAMMAR_JSON_SCHEMA, SCHEMA, 7);
    r.n_choices = COLLECT_CHOICES;
    struct collect *c = ask(engine, &r);
    collect_wait(c);
    for (int i = 0; i < COLLECT_CHOICES; i++)
        check_object(&c->choices[i]);
    assert_string_not_equal(c->choices[0].text.bytes, c->choices[1].text.bytes);
    forget(c);
    tutti_engine_close(engine);
}

/* A second time would charge the owner for its prompt twice. */
static void waits_for_a_prompt_thread_once(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, GBNF, 7);
    struct collect *c = ask(engine, &r);
    struct workers_counts counts;
    collect_wait(c);
    do
        workers_counts(engine->prompts, &counts);
    while (counts.n_waiting + counts.n_running > 0);
    assert_int_equal(counts.n_done, 1);
    forget(c);
    tutti_engine_close(engine);
}

static void is_the_same_alone_and_among_many(void **state)
{
    enum { N = 24 };
    (void)state;
    char *alone[N];
    struct collect *c[2 * N];
    struct tutti_engine_options few = { .max_seqs = 8, .kv_bytes = 3 << 20, .max_context = 512 };
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    for (int i = 0; i < N; i++) {
        struct tutti_request r = i % 2 ? request_for(TUTTI_GRAMMAR_JSON_SCHEMA, SCHEMA, (uint64_t)i)
                                       : request_for(TUTTI_GRAMMAR_GBNF, GBNF, (uint64_t)i);
        struct collect *one = ask(engine, &r);
        collect_wait(one);
        assert_int_equal(one->choices[0].finish, TUTTI_FINISH_STOP);
        alone[i] = strdup(one->choices[0].text.bytes);
        forget(one);
    }
    tutti_engine_close(engine);
    for (int round = 0; round < 2; round++) { /* at ease, and with eight slots and little memory */
        engine = opened_engine(model, round ? &few : NULL, NULL);
        for (int i = 0; i < N; i++) {
            struct tutti_request r = i % 2 ? request_for(TUTTI_GRAMMAR_JSON_SCHEMA, SCHEMA, (uint64_t)i)
                                           : request_for(TUTTI_GRAMMAR_GBNF, GBNF, (uint64_t)i);
            struct tutti_request free_one = request_for(TUTTI_GRAMMAR_NONE, NULL, (uint64_t)i);
            free_one.max_tokens = 40;
            c[2 * i] = ask(engine, &r);
            c[2 * i + 1] = ask(engine, &free_one);
        }
        for (int i = 0; i < 2 * N; i++) {
            collect_wait(c[i]);
            if (i % 2 == 0)
                assert_string_equal(c[i]->choices[0].text.bytes, alone[i / 2]);
            forget(c[i]);
        }
        struct tutti_stats stats;
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.kv_pages_used, 0);
        tutti_engine_close(engine);
    }
    for (int i = 0; i < N; i++)
        free(alone[i]);
}

static void obeys_though_bias_and_penalties_press_otherwise(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_logit_bias bias[1000];
    for (int i = 0; i < 1000; i++)
        bias[i] = (struct tutti_logit_bias){ i + 3, i % 2 ? 100.0f : -100.0f };
    for (int greedy = 0; greedy < 2; greedy++) {
        struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, GBNF, 3);
        r.sampling.temperature = greedy ? 0 : 1;
        r.sampling.top_k = greedy ? 0 : 50;
        r.sampling.top_p = greedy ? 1 : 0.5f;
        r.sampling.logit_bias = bias;
        r.sampling.n_logit_bias = 1000;
        r.sampling.repetition_penalty = 1.5f;
        struct collect *c = ask(engine, &r);
        collect_wait(c);
        assert_int_equal(c->choices[0].finish, TUTTI_FINISH_STOP);
        const char *text = c->choices[0].text.bytes;
        size_t n = c->choices[0].text.n_bytes, begin = text[0] == 'y' ? 5 : 4;
        assert_memory_equal(text, text[0] == 'y' ? "yes, " : "no, ", begin);
        assert_in_range(n - begin, 4, 6);
        assert_int_equal(strspn(text + begin, "abc"), n - begin - 1);
        assert_non_null(strchr(".!", text[n - 1]));
        forget(c);
    }
    tutti_engine_close(engine);
}

static void ends_where_nothing_may_follow_without_a_stop_token(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, "root ::= \"abc\" \"d\"?", 1);
    r.ignore_eos = true;
    struct collect *c = ask(engine, &r);
    collect_wait(c);
    assert_int_equal(c->choices[0].finish, TUTTI_FINISH_STOP);
    assert_string_equal(c->choices[0].text.bytes, "abcd"); /* the end was not allowed after abc */
    forget(c);
    tutti_engine_close(engine);
}

/* Where the grammar allows only tokens that are stop tokens, and no end. */
static void does_not_leave_the_grammar_for_stop_tokens(void **state)
{
    enum { MOST = 256 };
    (void)state;
    static const float TEMPERATURES[] = { 0, 2 };
    int32_t stops[MOST];
    size_t n_stops = 0;
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    for (int32_t id = 0; id < info.n_usable_vocab && n_stops < MOST; id++) {
        char byte;
        if (tutti_token_bytes(model, id, &byte, 1) == 1 && byte == 'a')
            stops[n_stops++] = id;
    }
    assert_in_range(n_stops, 1, MOST - 1);
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    for (size_t i = 0; i < sizeof TEMPERATURES / sizeof *TEMPERATURES; i++) {
        struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, "root ::= \"a\"", 7);
        r.sampling.temperature = TEMPERATURES[i];
        r.stop_ids = stops;
        r.n_stop_ids = n_stops;
        struct collect *c = ask(engine, &r);
        collect_wait(c);
        assert_int_equal(c->choices[0].finish, TUTTI_FINISH_ERROR);
        assert_int_equal(c->choices[0].error.status, TUTTI_E_UNSUPPORTED);
        assert_int_equal(c->choices[0].n_generated, 0);
        assert_int_equal(c->choices[0].text.n_bytes, 0);
        forget(c);
        r.grammar = "root ::= \"a\"?"; /* may end at once */
        r.n_grammar_bytes = strlen(r.grammar);
        c = ask(engine, &r);
        collect_wait(c);
        assert_int_equal(c->choices[0].finish, TUTTI_FINISH_STOP);
        assert_int_equal(c->choices[0].text.n_bytes, 0);
        forget(c);
    }
    tutti_engine_close(engine);
}

static void stops_at_a_stop_string_and_at_the_length(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_string stop = { "bb", 2 };
    struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, "root ::= \"a\"{3} \"b\"{40}", 1);
    r.stop = &stop;
    r.n_stop = 1;
    struct collect *c = ask(engine, &r);
    collect_wait(c);
    assert_int_equal(c->choices[0].finish, TUTTI_FINISH_STOP);
    assert_string_equal(c->choices[0].text.bytes, "aaa");
    forget(c);
    r = request_for(TUTTI_GRAMMAR_GBNF, "root ::= [a-z]*", 1);
    r.max_tokens = 5;
    r.ignore_eos = true;
    c = ask(engine, &r);
    collect_wait(c);
    assert_int_equal(c->choices[0].finish, TUTTI_FINISH_LENGTH);
    assert_int_equal(c->choices[0].n_generated, 5);
    forget(c);
    tutti_engine_close(engine);
}

/* The answer is an error of this kind, about this field, with these words. */
static void check_refusal(tutti_engine *engine, const struct tutti_request *request, enum tutti_status status,
                          const char *param, const char *words)
{
    struct collect *c = ask(engine, request);
    collect_wait(c);
    assert_int_equal(c->choices[0].finish, TUTTI_FINISH_ERROR);
    assert_int_equal(c->choices[0].error.status, status);
    assert_string_equal(c->choices[0].error.param, param);
    assert_non_null(strstr(c->choices[0].error.text, words));
    forget(c);
}

static void tells_what_is_wrong_with_a_grammar(void **state)
{
    static const struct {
        enum tutti_grammar_kind kind;
        const char *grammar, *param, *words;
    } CASES[] = {
        { TUTTI_GRAMMAR_GBNF, "root ::= \"a", "grammar", "line 1, column 10" },
        { TUTTI_GRAMMAR_GBNF, "root ::= a\na ::= a \"x\" | \"y\"", "grammar", "can begin with itself" },
        { TUTTI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"unevaluatedProperties\":false}",
          "response_format", "\"unevaluatedProperties\"" },
        { TUTTI_GRAMMAR_JSON_SCHEMA, "{\"type\":", "response_format", "not valid JSON" },
    };
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_request r = request_for(CASES[i].kind, CASES[i].grammar, 1);
        check_refusal(engine, &r, TUTTI_E_ARGUMENT, CASES[i].param, CASES[i].words);
    }
    struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, "root ::= \"a\"", 1);
    struct tutti_error err;
    r.n_beams = 2;
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, NULL, NULL, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.param, "grammar");
    r = request_for(TUTTI_GRAMMAR_GBNF, "", 1);
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, NULL, NULL, &err), TUTTI_E_ARGUMENT);
    tutti_engine_close(engine);
}

/* Three rules go on in 1,000 ways each: a mask, which looks at each by itself, can be made; what it allows cannot be followed. */
static void tells_that_there_are_too_many_ways(void **state)
{
    static char text[96 << 10];
    int n = snprintf(text, sizeof text, "root ::= a | b | c");
    for (int rule = 0; rule < 3; rule++)
        for (int i = 0; i < 1000; i++)
            n += snprintf(text + n, sizeof text - (size_t)n,
                          i ? " | \"\\x01\" [0-9] \"%d\"" : "\n%c ::= \"\\x01\" [0-9]", i ? i : 'a' + rule);
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct tutti_request r = request_for(TUTTI_GRAMMAR_GBNF, text, 1);
    r.ignore_eos = true;
    check_refusal(engine, &r, TUTTI_E_LIMIT, "grammar", "in too many ways");
    tutti_engine_close(engine);
}

/* Sequences end, are cancelled and begin in the same slots while masks are being made. */
static void survives_cancels_and_a_close(void **state)
{
    enum { N = 60 };
    (void)state;
    struct tutti_engine_options options = { .max_seqs = 4 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    struct collect *c[N];
    for (int i = 0; i < N; i++) {
        struct tutti_request r = i % 3 ? request_for(TUTTI_GRAMMAR_JSON_OBJECT, NULL, (uint64_t)i)
                                       : request_for(TUTTI_GRAMMAR_JSON_SCHEMA, SCHEMA, (uint64_t)i);
        c[i] = malloc(sizeof *c[i]);
        collect_init(c[i]);
        c[i]->cancel_after = i % 3 == 1 ? 1 + i % 7 : 0;
        collect_submit(c[i], engine, &r);
    }
    for (int i = 0; i < N / 2; i++)
        collect_wait(c[i]);
    tutti_engine_close(engine);
    for (int i = 0; i < N; i++) {
        collect_wait(c[i]);
        if (c[i]->choices[0].finish == TUTTI_FINISH_STOP && i % 3 == 0)
            check_object(&c[i]->choices[0]);
        forget(c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fits_the_schema_with_many_choices),
        cmocka_unit_test(waits_for_a_prompt_thread_once),
        cmocka_unit_test(is_the_same_alone_and_among_many),
        cmocka_unit_test(obeys_though_bias_and_penalties_press_otherwise),
        cmocka_unit_test(ends_where_nothing_may_follow_without_a_stop_token),
        cmocka_unit_test(does_not_leave_the_grammar_for_stop_tokens),
        cmocka_unit_test(stops_at_a_stop_string_and_at_the_length),
        cmocka_unit_test(tells_what_is_wrong_with_a_grammar),
        cmocka_unit_test(tells_that_there_are_too_many_ways),
        cmocka_unit_test(survives_cancels_and_a_close),
    };
    return cmocka_run_group_tests_name("constraint", tests, open_demo, close_demo);
}
