/* Compiling in turns: by owner, with a budget; what is kept; masks in slices. Turns and steps are counted, nothing is timed. */
#include "support/opened.h"

#include "engine/constraints/constraint.h"
#include "engine/run/engine.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_DONE = 512, LONG_STEPS = COMPILE_QUICK_STEPS + 100 * 1000, SHARED_BYTES = 16 << 20 };

static tutti_model *model;
static struct token_trie *trie;

/* What came back, in its order. A request whose id is GATE holds the thread that gives it back until the gate opens. */
enum { GATE = 1 << 20 };

struct returned {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct request *done[MAX_DONE];
    uint64_t quick_turns[MAX_DONE]; /* until then */
    size_t n;
    bool is_held, is_open;
    struct compiler *compiler;
};

static void give_back(void *user, struct request *r)
{
    struct returned *back = user;
    struct compile_counts counts;
    compiler_counts(back->compiler, &counts);
    pthread_mutex_lock(&back->lock);
    back->quick_turns[back->n] = counts.n_quick_attempts;
    back->done[back->n++] = r;
    if (r->id == GATE) {
        back->is_held = true;
        pthread_cond_broadcast(&back->changed);
        while (!back->is_open)
            pthread_cond_wait(&back->changed, &back->lock);
    }
    pthread_cond_broadcast(&back->changed);
    pthread_mutex_unlock(&back->lock);
}

static void wait_for(struct returned *back, size_t n)
{
    pthread_mutex_lock(&back->lock);
    while (back->n < n)
        pthread_cond_wait(&back->changed, &back->lock);
    pthread_mutex_unlock(&back->lock);
}

static void open_gate(struct returned *back)
{
    pthread_mutex_lock(&back->lock);
    back->is_open = true;
    pthread_cond_broadcast(&back->changed);
    pthread_mutex_unlock(&back->lock);
}

static struct request *request_of(uint64_t owner, uint64_t id, enum tutti_grammar_kind kind, const char *text)
{
    struct request *r = calloc(1, sizeof *r + sizeof(struct choice));
    r->id = id;
    r->spec.owner = owner;
    r->spec.grammar_kind = kind;
    r->spec.grammar = text;
    r->spec.n_grammar_bytes = text ? strlen(text) : 0;
    return r;
}

static void drop(struct request *r)
{
    grammar_drop(r->grammar);
    free(r);
}

static void begin(struct returned *back)
{
    static const struct returned NONE = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                          .changed = PTHREAD_COND_INITIALIZER };
    struct compiler_options options = { trie, LONG_STEPS, SHARED_BYTES, give_back, back };
    *back = NONE;
    assert_int_equal(compiler_new(&back->compiler, &options, NULL), TUTTI_OK);
}

static void end(struct returned *back)
{
    for (size_t i = 0; i < back->n; i++)
        drop(back->done[i]);
    compiler_free(back->compiler);
}

/* 1,500 properties that are merged with 1,500 values of additionalProperties: more work than any budget. */
static char *endless_schema(int number)
{
    enum { N = 1500 };
    size_t room = 100 * N + 200;
    char *text = malloc(room);
    int n = snprintf(text, room, "{\"title\":\"%d\",\"allOf\":[true", number);
    for (int i = 0; i < N; i++)
        n += snprintf(
            text + n, room - (size_t)n,
            ",{\"properties\":{\"p%d\":{\"minimum\":%d}},\"additionalProperties\":{\"maximum\":%d}}", i, i,
            i);
    snprintf(text + n, room - (size_t)n, "]}");
    return text;
}

static int open_demo(void **state)
{
    (void)state;
    model = opened_model(TEST_DEMO_MODEL, NULL, NULL, 1);
    const struct model *m = model_of(model);
    return token_trie_new(&trie, m->tokenizer, m->desc.n_usable_vocab, NULL) != TUTTI_OK;
}

static int close_demo(void **state)
{
    (void)state;
    token_trie_free(trie);
    tutti_model_close(model);
    return 0;
}

/* ---- attempts ---- */

static void ten_long_grammars_delay_a_small_one_by_one_turn(void **state)
{
    enum { N = 10 };
    struct returned back;
    char *texts[N];
    (void)state;
    begin(&back);
    compiler_add(back.compiler, request_of(3, GATE, TUTTI_GRAMMAR_GBNF, "root ::= \"x\""));
    wait_for(&back, 1); /* the quick thread is held: what follows is in the queue before the next turn */
    for (int i = 0; i < N; i++)
        compiler_add(back.compiler,
                     request_of(1, (uint64_t)i, TUTTI_GRAMMAR_JSON_SCHEMA, texts[i] = endless_schema(i)));
    compiler_add(back.compiler, request_of(2, 77, TUTTI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\"}"));
    open_gate(&back);
    wait_for(&back, N + 2);
    size_t small = 0;
    while (back.done[small]->id != 77)
        small++;
    assert_non_null(back.done[small]->grammar);
    assert_in_range(back.quick_turns[small], 2, 3); /* the gate's, one of the ten, its own */
    for (size_t i = 1; i < back.n; i++)
        if (i != small)
            assert_int_equal(back.done[i]->grammar_error.status, TUTTI_E_LIMIT);
    struct compile_counts counts;
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_quick_attempts, N + 2);
    assert_int_equal(counts.n_long_attempts, N);
    assert_in_range(counts.n_steps, 1,
                    N * (uint64_t)(LONG_STEPS + COMPILE_QUICK_STEPS + 2 * BUDGET_INTERVAL));
    end(&back);
    for (int i = 0; i < N; i++)
        free(texts[i]);
}

static void long_grammars_take_turns_by_owner_too(void **state)
{
    enum { N = 3 };
    struct returned back;
    char *texts[N + 2];
    (void)state;
    begin(&back);
    compiler_add(back.compiler,
                 request_of(3, GATE, TUTTI_GRAMMAR_JSON_SCHEMA, texts[0] = endless_schema(100)));
    wait_for(&back, 1); /* the long thread is held */
    for (int i = 0; i < N; i++)
        compiler_add(back.compiler,
                     request_of(1, (uint64_t)i, TUTTI_GRAMMAR_JSON_SCHEMA, texts[1 + i] = endless_schema(i)));
    compiler_add(back.compiler,
                 request_of(2, 77, TUTTI_GRAMMAR_JSON_SCHEMA, texts[1 + N] = endless_schema(77)));
    /* These come last in the quick queue: all others have had their quick turns when they come back. */
    for (int i = 0; i < N; i++)
        compiler_add(back.compiler,
                     request_of(4, 200 + (uint64_t)i, TUTTI_GRAMMAR_GBNF, "root ::= \"last\""));
    wait_for(&back, 1 + N);
    open_gate(&back);
    wait_for(&back, 1 + N + N + 1);
    size_t first = 1 + N;
    /* The owner that has had nothing of the long queue comes second at the latest. */
    assert_true(back.done[first]->id == 77 || back.done[first + 1]->id == 77);
    end(&back);
    for (int i = 0; i < N + 2; i++)
        free(texts[i]);
}

static void what_is_cancelled_costs_no_turn(void **state)
{
    enum { N = 20 };
    struct returned back;
    struct compile_counts counts;
    char *text = endless_schema(0);
    (void)state;
    begin(&back);
    compiler_add(back.compiler, request_of(3, GATE, TUTTI_GRAMMAR_GBNF, "root ::= \"x\""));
    wait_for(&back, 1);
    for (int i = 0; i < N; i++) {
        struct request *r = request_of(1, (uint64_t)i, TUTTI_GRAMMAR_JSON_SCHEMA, text);
        atomic_store(&r->is_cancelled, i % 2 == 0);
        r->deadline_us = i % 2; /* is over */
        compiler_add(back.compiler, r);
    }
    open_gate(&back);
    wait_for(&back, N + 1);
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_quick_attempts, 1);
    assert_int_equal(counts.n_long_attempts, 0);
    for (size_t i = 1; i < back.n; i++)
        assert_true(!back.done[i]->grammar && back.done[i]->grammar_error.status == TUTTI_OK);
    end(&back);
    free(text);
}

/* ---- what is kept ---- */

static void grammars_and_refusals_are_kept(void **state)
{
    struct returned back;
    struct compile_counts counts;
    char *endless = endless_schema(0);
    const struct {
        enum tutti_grammar_kind kind;
        const char *text;
    } TEXTS[] = { { TUTTI_GRAMMAR_GBNF, "root ::= \"a\"" },
                  { TUTTI_GRAMMAR_GBNF, "root ::= a" },
                  { TUTTI_GRAMMAR_JSON_SCHEMA, "{\"not\":{}}" },
                  { TUTTI_GRAMMAR_JSON_SCHEMA, endless } };
    (void)state;
    begin(&back);
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 4; i++) {
            compiler_add(back.compiler, request_of(round, i, TEXTS[i].kind, TEXTS[i].text));
            wait_for(&back, 4 * round + i + 1);
        }
        compiler_counts(back.compiler, &counts);
        assert_int_equal(counts.n_quick_attempts, 4);
        assert_int_equal(counts.n_long_attempts, 1);
        assert_int_equal(counts.n_cached, round);
        assert_int_equal(counts.n_cached_refusals, 3 * round);
    }
    for (size_t i = 4; i < back.n; i++) {
        assert_ptr_equal(back.done[i]->grammar, back.done[i - 4]->grammar);
        assert_int_equal(back.done[i]->grammar_error.status, back.done[i - 4]->grammar_error.status);
        assert_string_equal(back.done[i]->grammar_error.text, back.done[i - 4]->grammar_error.text);
    }
    end(&back);
    free(endless);
}

static void refusals_make_room_for_others(void **state)
{
    enum { N = 300 };
    struct returned back;
    struct compile_counts counts;
    char texts[N][32];
    (void)state;
    begin(&back);
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "root ::= a%d", i);
        compiler_add(back.compiler, request_of(1, (uint64_t)i, TUTTI_GRAMMAR_GBNF, texts[i]));
    }
    wait_for(&back, N);
    compiler_add(back.compiler, request_of(1, N, TUTTI_GRAMMAR_GBNF, texts[N - 1]));
    compiler_add(back.compiler, request_of(1, N + 1, TUTTI_GRAMMAR_GBNF, texts[0]));
    wait_for(&back, N + 2);
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_cached_refusals, 1);
    assert_int_equal(counts.n_quick_attempts, N + 1);
    end(&back);
}

/* Compiles the request's grammar; it is the only one under way. */
static struct request *compiled(struct returned *back, struct request *r)
{
    size_t n = back->n + 1;
    compiler_add(back->compiler, r);
    wait_for(back, n);
    return back->done[n - 1];
}

/* A grammar of 1.7 MiB, which compiles in more than CLIENT_MEMORY_LEAST. The text is the caller's. */
static struct request *ask_for_large(struct returned *back, uint64_t owner, char text[48], size_t number)
{
    snprintf(text, 48, "root ::= \"%zu\" .{0,5000}", number);
    return compiled(back, request_of(owner, number, TUTTI_GRAMMAR_GBNF, text));
}

static void give_up(struct request *r)
{
    grammar_drop(r->grammar);
    r->grammar = NULL;
}

/* Client 1 holds as many large grammars as it gets, then as many small ones as it gets. */
static void a_client_that_fills_the_memory_leaves_room_for_others(void **state)
{
    enum { MAX_LARGE = 20, MAX_SMALL = 400 };
    struct returned back;
    char large[MAX_LARGE + 4][48], small[MAX_SMALL][64];
    size_t n_large = 0, n_small = 0, n_bytes = 0;
    struct request *r;
    (void)state;
    begin(&back);
    do
        r = ask_for_large(&back, 1, large[n_large], n_large);
    while (r->grammar && ++n_large < MAX_LARGE);
    assert_in_range(n_large, 2, MAX_LARGE - 1);
    assert_int_equal(r->grammar_error.status, TUTTI_E_BUSY);
    do {
        snprintf(small[n_small], sizeof small[0], "root ::= \"%zu\" [a-z]{0,400}", n_small);
        r = compiled(&back, request_of(1, n_small, TUTTI_GRAMMAR_GBNF, small[n_small]));
    } while (r->grammar && ++n_small < MAX_SMALL);
    assert_in_range(n_small, 8, MAX_SMALL - 1);
    assert_int_equal(r->grammar_error.status, TUTTI_E_BUSY);
    for (size_t i = 0; i < back.n; i++)
        n_bytes += back.done[i]->grammar ? grammar_bytes(back.done[i]->grammar) : 0;
    assert_in_range(n_bytes, SHARED_BYTES / 2, SHARED_BYTES / 4 * 3);
    /* Further clients: one large grammar each, and it runs. */
    for (uint64_t owner = 2; owner < 4; owner++) {
        uint32_t *mask = calloc(grammar_mask_words(trie->n_vocab), sizeof *mask);
        struct matcher m;
        r = ask_for_large(&back, owner, large[MAX_LARGE + owner], MAX_LARGE + owner);
        assert_non_null(r->grammar);
        matcher_init(&m, r->grammar);
        assert_true(matcher_take_bytes(&m, "2", 1));
        assert_int_equal(matcher_mask_slice(&m, mask, LIMIT_MASK_STEPS + 1, NULL), TUTTI_OK);
        matcher_clear(&m);
        free(mask);
    }
    end(&back);
}

/* Client 1 has left five grammars in the cache, client 2 one, which was used before them; client 3 needs the memory. */
static void unused_grammars_of_the_client_with_most_are_evicted_first(void **state)
{
    enum { N = 5, MAX = 20 };
    struct returned back;
    struct compile_counts counts;
    char texts[1 + N][48], live[MAX][48];
    size_t n = 0;
    (void)state;
    begin(&back);
    give_up(ask_for_large(&back, 2, texts[0], 100));
    for (size_t i = 1; i <= N; i++)
        give_up(ask_for_large(&back, 1, texts[i], 100 + i));
    while (n < MAX && ask_for_large(&back, 3, live[n], n)->grammar)
        n++;
    assert_in_range(n, 2, MAX - 1);
    give_up(ask_for_large(&back, 2, texts[0], 100));
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_cached, 0); /* client 3 evicted them all before it was refused */
    for (size_t i = 0; i < back.n; i++)
        give_up(back.done[i]);
    /* Now 2 is back in the cache with one, and 3 has more there: a new one of client 1 evicts those of 3. */
    for (n = 0; n < 3; n++)
        assert_non_null(ask_for_large(&back, 1, live[MAX - 1 - n], 50 + n)->grammar);
    give_up(ask_for_large(&back, 2, texts[0], 100));
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_cached, 1);
    end(&back);
}

/* What another client left in the cache counts for the client that uses it. */
static void cached_grammars_count_for_the_client_that_uses_them(void **state)
{
    enum { N = 4, MAX = 20 };
    struct returned back;
    struct compile_counts counts;
    char texts[N][48], live[MAX][48];
    size_t n = 0;
    (void)state;
    begin(&back);
    for (size_t i = 0; i < N; i++)
        give_up(ask_for_large(&back, 1, texts[i], 100 + i));
    for (size_t i = 0; i < N; i++)
        assert_non_null(ask_for_large(&back, 2, texts[i], 100 + i)->grammar);
    compiler_counts(back.compiler, &counts);
    assert_int_equal(counts.n_cached, N);
    size_t n_before = back.n;
    while (n < MAX && ask_for_large(&back, 2, live[n], n)->grammar)
        n++;
    size_t n_bytes = 0;
    for (size_t i = n_before - N; i < back.n; i++)
        n_bytes += back.done[i]->grammar ? grammar_bytes(back.done[i]->grammar) : 0;
    assert_in_range(n_bytes, SHARED_BYTES / 2 - (2 << 20), SHARED_BYTES / 2 + (2 << 20));
    assert_non_null(ask_for_large(&back, 1, texts[0], 200)->grammar);
    end(&back);
}

/* Grammars of 1.7 MiB each, all of one client and in use, reach its bound; then only small ones are compiled, until some of them are dropped. */
static void memory_of_grammars_in_use_is_bounded(void **state)
{
    enum { MAX = 40 };
    struct returned back;
    char texts[MAX][48];
    size_t n = 0;
    (void)state;
    begin(&back);
    do {
        snprintf(texts[n], sizeof texts[n], "root ::= \"%zu\" .{0,5000}", n);
        compiler_add(back.compiler, request_of(1, n, TUTTI_GRAMMAR_GBNF, texts[n]));
        wait_for(&back, ++n);
    } while (n < MAX && back.done[n - 1]->grammar);
    assert_in_range(n, 4, MAX - 1);
    assert_int_equal(back.done[n - 1]->grammar_error.status, TUTTI_E_BUSY);
    size_t n_bytes = 0;
    for (size_t i = 0; i + 1 < n; i++)
        n_bytes += grammar_bytes(back.done[i]->grammar);
    assert_in_range(n_bytes, SHARED_BYTES / 2 - (2 << 20), SHARED_BYTES / 2 + (2 << 20));
    compiler_add(back.compiler, request_of(1, MAX, TUTTI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\"}"));
    wait_for(&back, n + 1);
    assert_non_null(back.done[n]->grammar);
    /* One that is in use keeps little of what leads to its masks. */
    struct matcher m;
    uint32_t *mask = calloc(grammar_mask_words(trie->n_vocab), sizeof *mask);
    matcher_init(&m, back.done[n]->grammar);
    assert_int_equal(matcher_mask_slice(&m, mask, LIMIT_MASK_STEPS + 1, NULL), TUTTI_OK);
    matcher_clear(&m);
    free(mask);
    assert_true(grammar_bytes(back.done[n]->grammar) < 2 * LEAST_KEPT_BYTES);
    for (size_t i = 0; i < n / 2; i++) {
        grammar_drop(back.done[i]->grammar);
        back.done[i]->grammar = NULL;
    }
    compiler_add(back.compiler, request_of(1, n, TUTTI_GRAMMAR_GBNF, texts[n - 1]));
    wait_for(&back, n + 2);
    assert_non_null(back.done[n + 1]->grammar); /* the refusal was not kept */
    end(&back);
}

/* ---- budgets ---- */

struct patience {
    int n_looks, n_allowed;
};

static bool loses_patience(void *user)
{
    struct patience *p = user;
    return ++p->n_looks > p->n_allowed;
}

/* Whatever the text, compiling stops within two intervals and what reading the text takes. */
static void stops_soon_when_nobody_waits(void **state)
{
    static const char *const TEXTS[] = { "root ::= [a-z]{0,20000}",
                                         "root ::= ((\"a\" | \"b\"){1,9}){0,20000}", NULL };
    char *endless = endless_schema(0);
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int allowed = 0; allowed < 5; allowed++) {
            const char *text = TEXTS[i] ? TEXTS[i] : endless;
            struct patience patience = { 0, allowed };
            struct budget budget;
            struct grammar *g = NULL;
            struct tutti_error err = { 0 };
            budget_init(&budget, &(struct budget_limits){ .n_steps = LIMIT_COMPILE_STEPS,
                                                          .n_bytes = LIMIT_COMPILE_BYTES,
                                                          .is_unwanted = loses_patience,
                                                          .user = &patience });
            enum tutti_status st = grammar_new(&g, TEXTS[i] ? GRAMMAR_GBNF : GRAMMAR_JSON_SCHEMA, text,
                                               strlen(text), trie, &budget, &err);
            assert_int_equal(st, TUTTI_E_CANCELLED);
            assert_in_range(budget_steps(&budget), 1, (size_t)(allowed + 2) * BUDGET_INTERVAL + strlen(text));
            assert_int_equal(budget.n_bytes, 0); /* all of it was given back */
        }
    }
    free(endless);
}

/* The error is found while schemas are merged, which goes on for a moment. */
static void a_wrong_schema_gives_back_what_it_took(void **state)
{
    static const char TEXT[] = "{\"allOf\": [{\"type\": [\"integer\", \"string\"], \"minimum\": 3}, "
                               "{\"type\": \"intgger\", \"maximum\": 40}]}";
    struct budget budget;
    struct grammar *g = NULL;
    struct tutti_error err = { 0 };
    (void)state;
    budget_init(&budget,
                &(struct budget_limits){ .n_steps = LIMIT_COMPILE_STEPS, .n_bytes = LIMIT_COMPILE_BYTES });
    assert_int_equal(grammar_new(&g, GRAMMAR_JSON_SCHEMA, TEXT, strlen(TEXT), trie, &budget, &err),
                     TUTTI_E_ARGUMENT);
    assert_int_equal(budget.n_bytes, 0);
}

static void tells_which_budget_is_spent(void **state)
{
    static const char TEXT[] = "root ::= [a-z]{0,20000}";
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct budget budget;
        struct grammar *g = NULL;
        struct tutti_error err = { 0 };
        budget_init(&budget, &(struct budget_limits){ .n_steps = i ? LIMIT_COMPILE_STEPS : 100000,
                                                      .n_bytes = i ? 1 << 20 : LIMIT_COMPILE_BYTES });
        assert_int_equal(grammar_new(&g, GRAMMAR_GBNF, TEXT, strlen(TEXT), trie, &budget, &err),
                         TUTTI_E_LIMIT);
        assert_non_null(strstr(err.text, i ? "more than 1 MiB of memory" : "more than 100000 steps"));
        assert_string_equal(err.param, "grammar");
    }
}

/* ---- masks ---- */

static int32_t token_of(const char *text)
{
    for (int32_t id = 0; id < trie->n_vocab; id++) {
        size_t n;
        const char *bytes = token_trie_bytes(trie, id, &n);
        if (n == strlen(text) && memcmp(bytes, text, n) == 0)
            return id;
    }
    fail_msg("no token %s", text);
    return -1;
}

static void forget(void *user, struct request *r)
{
    (void)user;
    (void)r;
}

/* Slots 0 to 2 are of one owner, whose masks take many slices; slot 3 is of another. */
static void a_long_mask_delays_other_owners_by_one_slice(void **state)
{
    enum { N = 4, LIGHT = 3 };
    struct bell bell;
    struct constraints *c;
    struct request *r[N];
    const struct model *m = model_of(model);
    (void)state;
    assert_int_equal(bell_init(&bell, NULL), TUTTI_OK);
    struct constraint_options options = { .tok = m->tokenizer,
                                          .n_vocab = m->desc.n_usable_vocab,
                                          .max_seqs = N,
                                          .engine_bell = &bell,
                                          .is_compiled = forget,
                                          .has_no_mask_thread = true };
    assert_int_equal(constraints_new(&c, &options, NULL), TUTTI_OK);
    int32_t x = token_of("x");
    for (int i = 0; i < N; i++) {
        const char *text = i == LIGHT ? "root ::= \"x\" [a-z]*" : "root ::= \"x\" ([a-z]? [a-z]?){400} \".\"";
        r[i] = request_of(i == LIGHT ? 2 : 1, (uint64_t)i, TUTTI_GRAMMAR_GBNF, text);
        assert_int_equal(grammar_new(&r[i]->grammar, GRAMMAR_GBNF, text, strlen(text), trie, NULL, NULL),
                         TUTTI_OK);
        constraint_advance(c, i, r[i], x, true);
    }
    constraint_flush(c);
    int n_turns = 0, light_after = 0, n_ready = 0;
    while (constraint_compute_slice(c)) {
        n_turns++;
        if (light_after == 0 && constraint_is_ready(c, LIGHT))
            light_after = n_turns;
    }
    for (int i = 0; i < N; i++)
        n_ready += constraint_is_ready(c, i) && constraint_get(c, i, r[i]->grammar, 1).status == TUTTI_OK;
    assert_int_equal(n_ready, N);
    assert_in_range(light_after, 1, 2);
    assert_true(n_turns > N + 3); /* the others took several slices each */
    /* A mask that is no longer awaited is given up after the current slice. */
    constraint_end(c, 0);
    constraint_flush(c);
    while (constraint_compute_slice(c))
        ;
    grammar_drop(r[0]->grammar);
    const char *again = "root ::= \"x\" ([a-z]? [a-y]?){400} \".\"";
    assert_int_equal(grammar_new(&r[0]->grammar, GRAMMAR_GBNF, again, strlen(again), trie, NULL, NULL),
                     TUTTI_OK);
    constraint_advance(c, 0, r[0], x, true);
    assert_true(constraint_compute_slice(c) && !constraint_is_ready(c, 0));
    constraint_end(c, 0);
    assert_true(constraint_compute_slice(c));
    constraint_flush(c);
    assert_true(constraint_compute_slice(c));
    assert_false(constraint_compute_slice(c));
    for (int i = 1; i < N; i++) {
        constraint_end(c, i);
        constraint_flush(c);
    }
    while (constraint_compute_slice(c))
        ;
    constraints_free(c);
    for (int i = 0; i < N; i++)
        drop(r[i]);
    bell_clear(&bell);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_long_grammars_delay_a_small_one_by_one_turn),
        cmocka_unit_test(long_grammars_take_turns_by_owner_too),
        cmocka_unit_test(what_is_cancelled_costs_no_turn),
        cmocka_unit_test(grammars_and_refusals_are_kept),
        cmocka_unit_test(refusals_make_room_for_others),
        cmocka_unit_test(a_client_that_fills_the_memory_leaves_room_for_others),
        cmocka_unit_test(unused_grammars_of_the_client_with_most_are_evicted_first),
        cmocka_unit_test(cached_grammars_count_for_the_client_that_uses_them),
        cmocka_unit_test(memory_of_grammars_in_use_is_bounded),
        cmocka_unit_test(stops_soon_when_nobody_waits),
        cmocka_unit_test(a_wrong_schema_gives_back_what_it_took),
        cmocka_unit_test(tells_which_budget_is_spent),
        cmocka_unit_test(a_long_mask_delays_other_owners_by_one_slice),
    };
    return cmocka_run_group_tests_name("compile", tests, open_demo, close_demo);
}
