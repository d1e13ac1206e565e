/* Measures the whole engine with several users: throughput including scheduling, sampling and
 * text, and steps that wait for the text thread. */
#include "base/rng.h"
#include "base/system/clock.h"
#include "cli/bench/bench.h"
#include "cli/terminal/progress.h"
#include "engine/run/engine.h"
#include "model/adapters/adapter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_TOKENS = 32,
    LONG_ANSWER_TOKENS = 192, /* with speculation, whose acceptance rate needs time to settle */
    N_RANDOM = 16,
    MIN_ROUNDS = 3,
    MAX_ROUNDS = 100,
    ROUNDS_NS = 2000000000, /* duration of the rounds of two variants, unless a number is given */
};

struct user {
    struct engine_run *run;
    uint64_t first_ns, last_ns; /* times of its first and last token */
    size_t n_tokens;
};

struct engine_run {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n_running;
    bool has_failed;
    struct tutti_error error; /* of the first failure */
};

static void bench_on_event(void *user_data, const struct tutti_event *event)
{
    struct user *user = user_data;
    struct engine_run *run = user->run;
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&run->mutex);
    if (user->first_ns == 0 && event->n_generated_tokens > 0)
        user->first_ns = now;
    if (event->finish == TUTTI_FINISH_ERROR && !run->has_failed) {
        run->has_failed = true;
        run->error = event->error;
    }
    user->last_ns = now;
    user->n_tokens = event->n_generated_tokens;
    if (event->is_last) {
        run->n_running--;
        pthread_cond_signal(&run->changed);
    }
    pthread_mutex_unlock(&run->mutex);
}

/* Stop strings that no answer contains, but with which every piece of text is compared. */
static const struct tutti_string STOPS[LIMIT_STOPS] = {
    { "\x01one", 4 },      { "\x01two", 4 }, { "\x01three", 6 },   { "\x01four", 5 },
    { "\x01 five", 6 },    { "\x01six", 4 }, { "\x01seven", 6 },   { "\x01 eight", 7 },
    { "\x01nine", 5 },     { "\x01ten", 4 }, { "\x01 eleven", 8 }, { "\x01 twelve", 8 },
    { "\x01thirteen", 9 }, { "\x01 14", 4 }, { "\x01 15", 4 },     { "\x01 16", 4 },
};

/* Sets the kind of answers for runs with speculation. */
static void choose_text(struct tutti_request *request, const struct bench_engine_result *result,
                        struct tutti_logit_bias bias[N_RANDOM], int32_t *ids)
{
    int n = result->text == BENCH_COPIED ? 1 : N_RANDOM;
    if (result->text == BENCH_OWN)
        request->sampling.temperature = 0;
    if (result->text != BENCH_COPIED && result->text != BENCH_RANDOM)
        return;
    for (int i = 0; i < n; i++)
        bias[i] = (struct tutti_logit_bias){ ids[i], 100 };
    for (size_t i = N_RANDOM; i < request->n_ids; i++)
        ids[i] = ids[mix64(request->sampling.seed << 32 | i) % (size_t)n];
    request->sampling.temperature = result->text == BENCH_COPIED ? 0 : 100;
    request->sampling.top_k = n; /* nearly uniform */
    request->sampling.logit_bias = bias;
    request->sampling.n_logit_bias = (size_t)n;
}

static enum tutti_status submit_all(tutti_engine *engine, const struct model *model,
                                    const struct bench_plan *plan, struct engine_run *run, struct user *users,
                                    struct bench_engine_result *result, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    int n_prompt = result->context > 0 ? result->context : 1;
    int32_t *ids = calloc((size_t)n_prompt + N_RANDOM, sizeof *ids);
    struct tutti_logit_bias bias[N_RANDOM];
    if (!ids)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for a prompt of %d tokens", n_prompt);
    for (int i = 0; i < result->n_users && st == TUTTI_OK; i++) {
        struct tutti_request request = {
            .ids = ids,
            .n_ids = (size_t)n_prompt,
            .max_tokens = result->n_tokens,
            .ignore_eos = true,
            .max_draft_tokens = result->drafts != BENCH_NO_DRAFTS ? 0 : -1,
        };
        uint64_t id;
        request.adapter = tutti_model_adapter_name(model_handle((struct model *)(uintptr_t)model),
                                                   i % (model_n_adapters(model) + 1) - 1);
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.has_seed = true;
        request.sampling.seed = (uint64_t)i;
        if (result->text == BENCH_TEXT_WORK) {
            request.stop = STOPS;
            request.n_stop = LIMIT_STOPS;
            request.logprobs = true;
            request.top_logprobs = LIMIT_TOP_LOGPROBS;
        }
        if (result->text == BENCH_SCHEMA) {
            request.grammar_kind = TUTTI_GRAMMAR_JSON_SCHEMA;
            request.grammar = plan->schema;
            request.n_grammar_bytes = plan->n_schema_bytes;
        }
        bench_fill_ids(ids, n_prompt + N_RANDOM, model->desc.n_usable_vocab, (uint64_t)i + 1);
        choose_text(&request, result, bias, ids);
        pthread_mutex_lock(&run->mutex);
        run->n_running++;
        pthread_mutex_unlock(&run->mutex);
        st = tutti_engine_submit(engine, &request, bench_on_event, &users[i], &id, err);
        if (st != TUTTI_OK) {
            pthread_mutex_lock(&run->mutex);
            run->n_running--;
            pthread_mutex_unlock(&run->mutex);
        }
    }
    free(ids);
    return st;
}

static void wait_for_all(struct engine_run *run)
{
    pthread_mutex_lock(&run->mutex);
    while (run->n_running > 0)
        pthread_cond_wait(&run->changed, &run->mutex);
    pthread_mutex_unlock(&run->mutex);
}

static enum tutti_status evaluate(const struct user *users, uint64_t begin_ns,
                                  struct bench_engine_result *result, struct tutti_error *err)
{
    int n = result->n_users;
    double *ttft = calloc((size_t)n, sizeof *ttft);
    if (!ttft)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for %d users", n);
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    size_t n_tokens = 0; /* after each user's first */
    for (int i = 0; i < n; i++) {
        const struct user *user = &users[i];
        ttft[i] = (double)(user->first_ns - begin_ns) / 1e6;
        first_ns = user->first_ns < first_ns ? user->first_ns : first_ns;
        last_ns = user->last_ns > last_ns ? user->last_ns : last_ns;
        n_tokens += user->n_tokens - 1;
    }
    result->tok_s = last_ns > first_ns ? (double)n_tokens / ((double)(last_ns - first_ns) / 1e9) : 0;
    result->ttft_ms = measure_median(ttft, n);
    free(ttft);
    return TUTTI_OK;
}

static enum tutti_status run_users(tutti_engine *engine, const struct model *model,
                                   const struct bench_plan *plan, struct bench_engine_result *result,
                                   struct tutti_error *err)
{
    struct engine_run run = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct tutti_stats before, after;
    struct user *users = calloc((size_t)result->n_users, sizeof *users);
    if (!users)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for %d users", result->n_users);
    for (int i = 0; i < result->n_users; i++)
        users[i].run = &run;
    tutti_engine_stats(engine, &before);
    uint64_t begin_ns = clock_now_ns();
    enum tutti_status st = submit_all(engine, model, plan, &run, users, result, err);
    wait_for_all(&run); /* also after a failure: the callbacks use users */
    if (st == TUTTI_OK && run.has_failed) {
        if (err)
            *err = run.error;
        st = run.error.status;
    }
    if (st == TUTTI_OK)
        st = evaluate(users, begin_ns, result, err);
    tutti_engine_stats(engine, &after);
    result->n_steps = after.n_steps - before.n_steps;
    result->n_text_waits = after.n_text_waits - before.n_text_waits;
    result->n_accepted = after.n_accepted_drafts - before.n_accepted_drafts;
    result->n_rejected = after.n_rejected_drafts - before.n_rejected_drafts;
    result->n_passes = after.n_draft_passes - before.n_draft_passes;
    result->n_late_masks = after.n_late_masks - before.n_late_masks;
    uint64_t n_timed = after.step.n - before.step.n;
    result->step_ms = n_timed > 0 ? 1e3 * (after.step.sum - before.step.sum) / (double)n_timed : 0;
    free(users);
    return st;
}

static bool speculates(const struct bench_plan *plan)
{
    return plan->max_lookup_drafts > 0 || plan->draft;
}

/* draft: NULL: none */
static enum tutti_status open_engine(struct model *model, struct model *draft, const struct bench_plan *plan,
                                     tutti_engine **out, struct tutti_error *err)
{
    int n_answer = speculates(plan) ? LONG_ANSWER_TOKENS : ANSWER_TOKENS;
    int n_users = 1, n_tokens = plan->context + n_answer + 2 * model_page_tokens(model);
    for (int i = 0; i < plan->users.n; i++)
        if (plan->users.ints[i] > n_users)
            n_users = (int)plan->users.ints[i];
    int pages_per_user = model_pages_of(model, n_tokens);
    size_t page_bytes = model->backend->ops->kv_page_bytes(model->backend, model->kv_type);
    if (draft)
        page_bytes += draft->backend->ops->kv_page_bytes(draft->backend, draft->kv_type);
    struct tutti_engine_options options = {
        .kv_bytes = (uint64_t)page_bytes * (uint64_t)n_users * (uint64_t)pages_per_user,
        .max_seqs = n_users,
        .no_prefix_cache = true, /* every run prefills its prompts */
        .max_lookup_tokens = plan->max_lookup_drafts,
        .draft = draft ? model_handle(draft) : NULL,
        .max_draft_tokens = plan->max_draft_tokens,
    };
    return tutti_engine_open(out, model_handle(model), &options, err);
}

/* ---- alternating variants --------------------------------------------------------------------  */

/* Two variants that alternate on one engine, so that other load on the machine affects both. */
static const struct pair {
    struct kind {
        enum bench_text text;
        enum bench_drafts drafts;
    } base, other;
    bool has_draft_model; /* on an engine with a draft model */
} PAIRS[BENCH_ENGINE_PAIRS] = {
    { { BENCH_PLAIN, BENCH_NO_DRAFTS }, { BENCH_TEXT_WORK, BENCH_NO_DRAFTS }, false },
    { { BENCH_PLAIN, BENCH_NO_DRAFTS }, { BENCH_SCHEMA, BENCH_NO_DRAFTS }, false },
    { { BENCH_RANDOM, BENCH_NO_DRAFTS }, { BENCH_RANDOM, BENCH_LOOKUP_DRAFTS }, false },
    { { BENCH_OWN, BENCH_NO_DRAFTS }, { BENCH_OWN, BENCH_LOOKUP_DRAFTS }, false },
    { { BENCH_COPIED, BENCH_NO_DRAFTS }, { BENCH_COPIED, BENCH_LOOKUP_DRAFTS }, false },
    { { BENCH_RANDOM, BENCH_NO_DRAFTS }, { BENCH_RANDOM, BENCH_MODEL_DRAFTS }, true },
    { { BENCH_OWN, BENCH_NO_DRAFTS }, { BENCH_OWN, BENCH_MODEL_DRAFTS }, true },
    { { BENCH_COPIED, BENCH_NO_DRAFTS }, { BENCH_COPIED, BENCH_MODEL_DRAFTS }, true },
};

static bool is_wanted(const struct pair *pair, const struct bench_plan *plan, bool has_draft_model)
{
    bool is_schema = pair->other.text == BENCH_SCHEMA, is_text = pair->other.text == BENCH_TEXT_WORK;
    if ((is_schema && !plan->schema) || (is_text && plan->schema))
        return false;
    return pair->has_draft_model == has_draft_model &&
           (pair->other.drafts != BENCH_LOOKUP_DRAFTS || plan->max_lookup_drafts > 0);
}

/* Adds a round to the sums; the times are kept separately. */
static void add_round(struct bench_engine_result *sum, const struct bench_engine_result *round)
{
    sum->step_ms += round->step_ms;
    sum->n_steps += round->n_steps;
    sum->n_text_waits += round->n_text_waits;
    sum->n_accepted += round->n_accepted;
    sum->n_rejected += round->n_rejected;
    sum->n_passes += round->n_passes;
    sum->n_late_masks += round->n_late_masks;
}

/* Summarizes the n rounds of one variant. */
static void sum_up(struct bench_engine_result *result, double *tok_s, double *ttft_ms, int n)
{
    result->n_rounds = n;
    result->step_ms /= n;
    result->tok_s = measure_median(tok_s, n);
    result->ttft_ms = measure_median(ttft_ms, n);
}

struct bench_rounds {
    double tok_s[2][MAX_ROUNDS], ttft_ms[2][MAX_ROUNDS], ratio[MAX_ROUNDS];
    int n;
    uint64_t spent_ns;
};

static bool needs_more(const struct bench_rounds *rounds, int n_wanted)
{
    if (n_wanted > 0)
        return rounds->n < n_wanted && rounds->n < MAX_ROUNDS;
    return rounds->n < MIN_ROUNDS || (rounds->n < MAX_ROUNDS && rounds->spent_ns < ROUNDS_NS);
}

/* One round of each of the n variants, beginning with the first or the last. */
static enum tutti_status run_round(tutti_engine *engine, const struct model *model,
                                   const struct bench_plan *plan, const struct bench_engine_result *kinds,
                                   int n, bool is_reversed, struct bench_engine_result *out,
                                   struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n && st == TUTTI_OK; i++) {
        int k = is_reversed ? n - 1 - i : i;
        out[k] = kinds[k];
        st = run_users(engine, model, plan, &out[k], err);
    }
    return st;
}

/* results: [n], the variants to measure. The first round is not counted: the engine learns its
 * step times in it. */
static enum tutti_status run_in_turn(tutti_engine *engine, const struct model *model,
                                     const struct bench_plan *plan, struct bench_engine_result *results,
                                     int n, struct bench_rounds *rounds, struct tutti_error *err)
{
    struct bench_engine_result kinds[2] = { results[0], results[n - 1] }, round[2];
    enum tutti_status st = run_round(engine, model, plan, kinds, n, false, round, err);
    rounds->n = 0;
    rounds->spent_ns = 0;
    while (st == TUTTI_OK && needs_more(rounds, plan->n_repetitions)) {
        uint64_t begin_ns = clock_now_ns();
        st = run_round(engine, model, plan, kinds, n, rounds->n % 2 == 0, round, err);
        rounds->spent_ns += clock_now_ns() - begin_ns;
        for (int k = 0; k < n; k++) {
            rounds->tok_s[k][rounds->n] = round[k].tok_s;
            rounds->ttft_ms[k][rounds->n] = round[k].ttft_ms;
            add_round(&results[k], &round[k]);
        }
        rounds->ratio[rounds->n++] = n > 1 && round[0].tok_s > 0 ? round[1].tok_s / round[0].tok_s : 1;
    }
    for (int k = 0; k < n && rounds->n > 0; k++)
        sum_up(&results[k], rounds->tok_s[k], rounds->ttft_ms[k], rounds->n);
    if (n > 1 && rounds->n > 0) {
        struct bench_time ratio = bench_time_of(rounds->ratio, rounds->n);
        results[1].ratio = ratio.median_s;
        results[1].ratio_spread = ratio.spread;
    }
    return st;
}

static struct bench_engine_result result_of(const struct kind *kind, const struct bench_plan *plan,
                                            int n_users)
{
    bool is_short = kind->text == BENCH_PLAIN || kind->text == BENCH_TEXT_WORK || kind->text == BENCH_SCHEMA;
    return (struct bench_engine_result){
        .n_users = n_users,
        .context = plan->context,
        .n_tokens = is_short ? ANSWER_TOKENS : LONG_ANSWER_TOKENS,
        .text = kind->text,
        .drafts = kind->drafts,
    };
}

/* Every pair for each number of users. draft: NULL: the pairs without one. */
static enum tutti_status run_pairs(struct model *model, struct model *draft, const struct bench_plan *plan,
                                   struct bench_engine_result *results, int *n_results,
                                   struct bench_rounds *rounds, struct progress *progress,
                                   struct tutti_error *err)
{
    tutti_engine *engine = NULL;
    enum tutti_status st = open_engine(model, draft, plan, &engine, err);
    for (int i = 0; st == TUTTI_OK && i < plan->users.n; i++)
        for (int k = 0; st == TUTTI_OK && k < BENCH_ENGINE_PAIRS; k++) {
            const struct pair *pair = &PAIRS[k];
            if (!is_wanted(pair, plan, draft != NULL))
                continue;
            int n_users = (int)plan->users.ints[i];
            int n = pair->other.text == BENCH_TEXT_WORK && !model->tokenizer ? 1
                                                                             : 2; /* no tokenizer, no text */
            results[*n_results] = result_of(&pair->base, plan, n_users);
            if (n > 1)
                results[*n_results + 1] = result_of(&pair->other, plan, n_users);
            progress_update(progress, (uint64_t)*n_results / 2, (uint64_t)plan->users.n * BENCH_ENGINE_PAIRS);
            st = run_in_turn(engine, model, plan, &results[*n_results], n, rounds, err);
            *n_results += n;
        }
    tutti_engine_close(engine);
    return st;
}

enum tutti_status bench_engine(struct model *model, const struct bench_plan *plan,
                               struct bench_engine_result *results, int *n_results, struct tutti_error *err)
{
    struct progress progress;
    *n_results = 0;
    struct bench_rounds *rounds = calloc(1, sizeof *rounds);
    if (!rounds)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for %d rounds", MAX_ROUNDS);
    progress_begin(&progress, "measuring the engine", PROGRESS_STEPS);
    enum tutti_status st = run_pairs(model, NULL, plan, results, n_results, rounds, &progress, err);
    if (st == TUTTI_OK && plan->draft)
        st = run_pairs(model, plan->draft, plan, results, n_results, rounds, &progress, err);
    progress_end(&progress);
    free(rounds);
    return st;
}
