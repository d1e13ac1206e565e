/* An answer never depends on who else is talking: the logits of every token, bit for bit, and the texts are the same
 * alone and among 64, whatever the size of the pieces that prompts are read in, from the prefix cache, after a
 * preemption, on one thread and on two, with choices together and apart; for f16, q8_0 and q4_0 weights, f16, bf16 and int8 keys. */
#include "support/collect.h"
#include "support/opened.h"
#include "support/questions.h"

#include "base/rng.h"
#include "engine/run/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_TOKENS = 32, MAX_CHOICES = 3, N_FEW = 12, MAX_ROWS = 1 << 15 };

/* A row of logits, by the hash of its bits. */
struct row {
    uint64_t request_id, hash;
    int choice, index;
};

struct rows {
    atomic_int n;
    struct row rows[MAX_ROWS];
};

struct answer {
    char *text[MAX_CHOICES];
    uint64_t hashes[MAX_CHOICES][MAX_TOKENS];
    int n_hashes[MAX_CHOICES];
};

static void note_row(void *user, uint64_t id, int choice, int index, float *logits, int n_vocab)
{
    struct rows *rows = user;
    uint64_t hash = 0;
    for (int i = 0; i < n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = mix64(hash ^ bits);
    }
    int place = atomic_fetch_add(&rows->n, 1);
    if (place < MAX_ROWS)
        rows->rows[place] = (struct row){ id, hash, choice, index };
}

static void keep_answer(struct answer *answer, const struct collect *c, const struct rows *rows)
{
    memset(answer, 0, sizeof *answer);
    for (int choice = 0; choice < c->n_choices; choice++) {
        const struct buf *text = &c->choices[choice].text;
        answer->text[choice] = strdup(text->n_bytes > 0 ? text->bytes : "");
        assert_in_range(c->choices[choice].finish, TUTTI_FINISH_STOP, TUTTI_FINISH_LENGTH);
    }
    for (int i = 0; i < rows->n; i++) {
        const struct row *row = &rows->rows[i];
        if (row->request_id != c->id)
            continue;
        assert_in_range(row->index, 0, MAX_TOKENS - 1);
        assert_int_equal(row->index, answer->n_hashes[row->choice]++); /* each token is drawn once */
        answer->hashes[row->choice][row->index] = row->hash;
    }
}

static void free_answers(struct answer *answers, int n)
{
    for (int i = 0; i < n; i++)
        for (int choice = 0; choice < MAX_CHOICES; choice++)
            free(answers[i].text[choice]);
    free(answers);
}

struct how {
    struct tutti_engine_options engine;
    int n_questions, n_choices;
    bool one_after_the_other;
    int n_rounds; /* asks the same again so many times; the last answers count */
};

/* Asks, and returns the answers [n_questions]; *stats afterwards. */
static struct answer *ask(tutti_model *model, const struct how *how, struct tutti_stats *stats)
{
    struct rows *rows = calloc(1, sizeof *rows);
    struct answer *answers = calloc((size_t)how->n_questions, sizeof *answers);
    struct question *questions = calloc((size_t)how->n_questions, sizeof *questions);
    struct collect *all = calloc((size_t)how->n_questions, sizeof *all);
    struct engine_hooks hooks = { .logits = note_row, .user = rows };
    tutti_engine *engine = opened_engine(model, &how->engine, &hooks);
    for (int round = 0; round < how->n_rounds; round++) {
        rows->n = 0;
        for (int i = 0; i < how->n_questions; i++) {
            question_make(&questions[i], i, MAX_TOKENS);
            questions[i].request.n_choices = how->n_choices;
            collect_init(&all[i]);
            collect_submit(&all[i], engine, &questions[i].request);
            if (how->one_after_the_other)
                collect_wait(&all[i]);
        }
        for (int i = 0; i < how->n_questions; i++)
            collect_wait(&all[i]);
        wait_until_idle(engine, stats);
        assert_true(rows->n <= MAX_ROWS);
        for (int i = 0; i < how->n_questions; i++) {
            if (round == how->n_rounds - 1)
                keep_answer(&answers[i], &all[i], rows);
            collect_clear(&all[i]);
        }
    }
    tutti_engine_close(engine);
    free(rows);
    free(questions);
    free(all);
    return answers;
}

/* Each one alone, read in one piece, without a cache: what all others are held against. */
static const struct how alone = {
    .engine = { .kv_bytes = 32 << 20, .max_batch_tokens = 512, .no_prefix_cache = true },
    .n_questions = N_QUESTIONS,
    .n_choices = 1,
    .one_after_the_other = true,
    .n_rounds = 1,
};

static void check_same(const struct answer *got, const struct answer *want, int n, int n_choices,
                       const char *what)
{
    for (int i = 0; i < n; i++) {
        for (int choice = 0; choice < n_choices; choice++) {
            assert_true(want[i].n_hashes[choice] > 0);
            if (got[i].n_hashes[choice] != want[i].n_hashes[choice] ||
                memcmp(got[i].hashes[choice], want[i].hashes[choice], sizeof want[i].hashes[choice]) != 0)
                fail_msg("%s: question %d, choice %d: other logits", what, i, choice);
            if (strcmp(got[i].text[choice], want[i].text[choice]) != 0)
                fail_msg("%s: question %d, choice %d: \"%s\" instead of \"%s\"", what, i, choice,
                         got[i].text[choice], want[i].text[choice]);
        }
    }
}

static void check_how(tutti_model *model, struct how how, const struct answer *want, const char *what,
                      struct tutti_stats *stats)
{
    struct answer *got = ask(model, &how, stats);
    check_same(got, want, how.n_questions, how.n_choices, what);
    free_answers(got, how.n_questions);
}

static uint64_t pages(const tutti_model *model, int n)
{
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    return info.kv_bytes_per_token * 16 * (uint64_t)n;
}

/* Every clause, for one type of weights, and of keys and values. */
static void check_clauses(const char *weight_type, const char *kv_type, bool is_whole)
{
    struct tutti_stats stats;
    tutti_model *model = opened_model(TEST_DEMO_MODEL, weight_type, kv_type, 1);
    struct how how = alone;
    how.n_questions = is_whole ? N_QUESTIONS : N_FEW;
    struct answer *want = ask(model, &how, &stats);

    how = (struct how){ .n_questions = how.n_questions, .n_choices = 1, .n_rounds = 1 };
    how.engine.kv_bytes = pages(model, 2000);
    check_how(model, how, want, "among others", &stats);

    how.n_questions = N_FEW;
    static const int sizes[] = { 1, 7, 64, 512 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        how.engine.max_batch_tokens = sizes[i];
        check_how(model, how, want, "in pieces", &stats);
    }
    how.engine.max_batch_tokens = 0;

    how.n_rounds = 2;
    check_how(model, how, want, "from the prefix cache", &stats);
    assert_true(stats.n_cached_tokens > 0);
    how.n_rounds = 1;

    how.engine.kv_bytes = pages(model, 7);
    how.engine.max_slowdown = 1000; /* read at once, so that the pool overflows on any machine */
    how.engine.no_prefix_cache = true;
    check_how(model, how, want, "preempted", &stats);
    assert_true(stats.n_preemptions > 0);
    how.engine.no_prefix_cache = false;
    check_how(model, how, want, "preempted, with a cache", &stats);
    assert_true(stats.n_preemptions > 0);

    tutti_model_close(model);
    model = opened_model(TEST_DEMO_MODEL, weight_type, kv_type, 2);
    how.engine.kv_bytes = pages(model, 2000);
    check_how(model, how, want, "with two threads", &stats);
    tutti_model_close(model);
    free_answers(want, is_whole ? N_QUESTIONS : N_FEW);
}

static void answers_are_the_same_in_any_company_with_f16_weights(void **state)
{
    (void)state;
    check_clauses(NULL, NULL, true);
}

static void answers_are_the_same_in_any_company_with_q8_0_weights(void **state)
{
    (void)state;
    check_clauses("q8_0", NULL, false);
}

static void answers_are_the_same_in_any_company_with_q4_0_weights(void **state)
{
    (void)state;
    check_clauses("q4_0", NULL, false);
}

static void answers_are_the_same_in_any_company_with_int8_keys(void **state)
{
    (void)state;
    check_clauses("q8_0", "int8", false);
    check_clauses("q4_0", "bf16", false);
}

static void choices_are_the_same_together_and_apart(void **state)
{
    (void)state;
    struct tutti_stats stats;
    tutti_model *model = opened_model(TEST_DEMO_MODEL, NULL, NULL, 1);
    struct how apart = alone; /* one sequence at a time: nothing is shared */
    apart.engine.max_seqs = 1;
    apart.n_questions = N_FEW;
    apart.n_choices = MAX_CHOICES;
    struct answer *want = ask(model, &apart, &stats);
    int n_differ = 0;
    for (int i = 1; i < N_FEW; i += 2)
        n_differ += memcmp(want[i].hashes[0], want[i].hashes[1], sizeof want[i].hashes[0]) != 0;
    assert_true(n_differ > 0); /* seeded choices are choices */

    struct how together = apart;
    together.engine = (struct tutti_engine_options){ .kv_bytes = pages(model, 2000) };
    together.one_after_the_other = false;
    check_how(model, together, want, "choices together", &stats);
    together.engine.kv_bytes = pages(model, 8);
    together.engine.max_slowdown = 1000;
    check_how(model, together, want, "choices in a small pool", &stats);
    assert_true(stats.n_preemptions > 0);
    free_answers(want, N_FEW);
    tutti_model_close(model);
}

/* ---- copies of logits ---- */

static const struct backend_ops *real_ops;
static atomic_size_t n_copied; /* floats copied to the host */

static void counting_download(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    atomic_fetch_add(&n_copied, n_floats);
    real_ops->download(be, host, src, n_floats);
}

/* Tokens are drawn where the logits are: with log-probabilities, penalties, draft tokens and beams. */
static void a_step_copies_no_logits_to_the_host(void **state)
{
    (void)state;
    tutti_model *model = opened_model(TEST_DEMO_MODEL, NULL, NULL, 2);
    struct backend *be = model_of(model)->backend;
    struct backend_ops counting = *be->ops;
    real_ops = be->ops;
    counting.download = counting_download;
    be->ops = &counting;
    struct tutti_engine_options options = { .max_seqs = 16, .kv_bytes = 32 << 20, .max_lookup_tokens = 4 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    struct collect all[8];
    struct question questions[8];
    for (int i = 0; i < 8; i++) {
        question_make(&questions[i], i, MAX_TOKENS);
        questions[i].request.logprobs = i % 2 == 0;
        questions[i].request.top_logprobs = i % 2 == 0 ? 3 : 0;
        if (i == 7)
            questions[i].request.n_beams = 3;
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &questions[i].request);
    }
    for (int i = 0; i < 8; i++) {
        collect_wait(&all[i]);
        assert_in_range(all[i].choices[0].finish, TUTTI_FINISH_STOP, TUTTI_FINISH_LENGTH);
        collect_clear(&all[i]);
    }
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_true(stats.n_steps > 8);
    assert_int_equal(n_copied, 0);
    tutti_engine_close(engine);
    be->ops = real_ops;
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_in_any_company_with_f16_weights),
        cmocka_unit_test(answers_are_the_same_in_any_company_with_q8_0_weights),
        cmocka_unit_test(answers_are_the_same_in_any_company_with_q4_0_weights),
        cmocka_unit_test(answers_are_the_same_in_any_company_with_int8_keys),
        cmocka_unit_test(choices_are_the_same_together_and_apart),
        cmocka_unit_test(a_step_copies_no_logits_to_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
