/* tutti plan --check: compares the predictions for this machine with the whole model's speed on
 * it. */
#include "cli/plan/plan.h"

#include "backend/kv_type.h"
#include "cli/bench/bench.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "model/weights/weight_type.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Clock rate and other load change within seconds, so rates and steps are measured alternately,
 * and compared within each round. */
enum { ROUNDS = 5, MAX_ROUNDS = 10, REPETITIONS = 3, MAX_USERS = 4096 };

struct check_point {
    int n_users; /* 0: a prompt */
    double predicted[ROUNDS], measured[ROUNDS], deviation[ROUNDS];
};

struct check {
    struct plan *plan;
    struct bench_plan steps;
    struct bench_result *results; /* [n_points] */
    struct check_point *points;   /* [n_points]: those of users, then the prompt */
    int n_points, n_rounds;
};

static enum tutti_status open_whole(const struct plan *p, struct model **out, struct tutti_error *err)
{
    const struct plan_values *values = p->values;
    struct tutti_model_options options = { .n_threads = values->threads > 0 ? (int)values->threads : 0,
                                           .weight_type = values->type,
                                           .kv_type = values->kv_type };
    struct stat info;
    if (model_shape(p->name) && stat(p->name, &info) != 0)
        return model_make(out, p->name, p->type, &options, err);
    return model_load(out, p->name, &options, err);
}

static enum tutti_status init(struct check *c, struct plan *p, struct tutti_error *err)
{
    const struct plan_values *values = p->values;
    *c = (struct check){ .plan = p, .n_points = values->users.n + 1 };
    for (int i = 0; i < values->users.n; i++)
        if (values->users.ints[i] > MAX_USERS)
            return error_set(err, TUTTI_E_ARGUMENT, "--users: found %" PRId64 ", at most %d are measured",
                             values->users.ints[i], MAX_USERS);
    int n_ctx = p->model.desc.n_ctx;
    c->steps = (struct bench_plan){ .users = values->users,
                                    .context = p->context,
                                    .n_prefill = n_ctx < PLAN_PROMPT_TOKENS ? n_ctx : PLAN_PROMPT_TOKENS,
                                    .n_repetitions = REPETITIONS };
    c->points = calloc((size_t)c->n_points, sizeof *c->points);
    c->results = calloc((size_t)c->n_points, sizeof *c->results);
    if (!c->points || !c->results)
        return error_set(err, TUTTI_E_MEMORY, "out of memory");
    for (int i = 0; i < values->users.n; i++)
        c->points[i].n_users = (int)values->users.ints[i];
    return TUTTI_OK;
}

static double predict(const struct check *c, const struct check_point *point)
{
    const struct plan *p = c->plan;
    struct plan_hosts here = { .n_hosts = 1, .n_cores = p->rates.n_cores, .link_gbps = 1 };
    struct plan_work work = point->n_users > 0 ? plan_decode(&p->model, point->n_users, p->context)
                                               : plan_prefill(&p->model, c->steps.n_prefill);
    return work.n_rows / plan_reckon(&p->rates, &p->model, &here, 1, &work).total_s;
}

static enum tutti_status run_round(struct check *c, int round, const struct plan_probe *probe,
                                   struct model *whole, struct progress *progress, struct tutti_error *err)
{
    int n = 0;
    enum tutti_status st = plan_probe_run(probe, c->plan, REPETITIONS, NULL, err);
    progress_update(progress, 2 * (uint64_t)round + 1, 2 * ROUNDS);
    if (st == TUTTI_OK)
        st = bench_steps(whole, &c->steps, probe->limits, c->results, &n, NULL, bench_no_progress, NULL, err);
    progress_update(progress, 2 * (uint64_t)round + 2, 2 * ROUNDS);
    for (int i = 0; i < n && st == TUTTI_OK; i++) {
        struct check_point *point = &c->points[i];
        point->predicted[round] = predict(c, point);
        point->measured[round] = c->results[i].tok_s;
        point->deviation[round] = point->predicted[round] / point->measured[round] - 1;
    }
    return st;
}

/* Disturbed steps may give no valid rates: then another round follows. */
static enum tutti_status run_rounds(struct check *c, const struct plan_probe *probe, struct model *whole,
                                    struct progress *progress, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int n = 0; c->n_rounds < ROUNDS && n < MAX_ROUNDS; n++) {
        st = run_round(c, c->n_rounds, probe, whole, progress, err);
        if (st != TUTTI_OK && st != TUTTI_E_ARGUMENT)
            return st;
        c->n_rounds += st == TUTTI_OK;
    }
    return c->n_rounds > 0 ? TUTTI_OK : st;
}

/* ---- printing -------------------------------------------------------------------------------------------------- */

static void print_table(struct check *c)
{
    const struct plan *p = c->plan;
    output_printf("%s: %s weights, %s keys and values; %d tokens of context per user; %d rounds, medians\n\n",
                  p->name, dtype_name(p->type), kv_type_name(p->model.kv_type), p->context, c->n_rounds);
    output_printf("%-8s %6s %7s %10s %10s %10s\n", "phase", "users", "tokens", "predicted", "measured",
                  "off by");
    for (int i = 0; i < c->n_points; i++) {
        struct check_point *point = &c->points[i];
        bool is_prompt = point->n_users == 0;
        output_printf("%-8s %6d %7d %10.2f %10.2f %+8.1f %%\n", is_prompt ? "prefill" : "decode",
                      is_prompt ? 1 : point->n_users, is_prompt ? c->steps.n_prefill : point->n_users,
                      measure_median(point->predicted, c->n_rounds),
                      measure_median(point->measured, c->n_rounds),
                      100 * measure_median(point->deviation, c->n_rounds));
    }
}

/* [{predicted_tok_s, measured_tok_s}], a round each; NULL: out of memory. */
static json_t *rounds_of(const struct check_point *point, int n_rounds)
{
    json_t *rounds = json_array();
    for (int i = 0; i < n_rounds; i++) {
        if (json_array_append_new(rounds, json_pack("{s:f, s:f}", "predicted_tok_s", point->predicted[i],
                                                    "measured_tok_s", point->measured[i])) != 0) {
            json_decref(rounds);
            return NULL;
        }
    }
    return rounds;
}

static void print_json(struct check *c)
{
    json_t *list = json_array();
    bool ok = list;
    for (int i = 0; i < c->n_points && ok; i++) {
        struct check_point *point = &c->points[i];
        bool is_prompt = point->n_users == 0;
        json_t *rounds = rounds_of(point, c->n_rounds); /* before the median, which sorts the values */
        ok = json_array_append_new(
                 list, json_pack("{s:s, s:i, s:i, s:o, s:f, s:f, s:f}", "phase",
                                 is_prompt ? "prefill" : "decode", "users", is_prompt ? 1 : point->n_users,
                                 "tokens", is_prompt ? c->steps.n_prefill : point->n_users, "rounds", rounds,
                                 "predicted_tok_s", measure_median(point->predicted, c->n_rounds),
                                 "measured_tok_s", measure_median(point->measured, c->n_rounds), "deviation",
                                 measure_median(point->deviation, c->n_rounds))) == 0;
    }
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "model", c->plan->name, "type",
                             dtype_name(c->plan->type), "kv_type", kv_type_name(c->plan->model.kv_type),
                             "context", c->plan->context, "rounds", c->n_rounds, "check", list);
    output_json(ok ? root : NULL, true); /* NULL: fails, which output_flush() reports */
    json_decref(root);
}

enum tutti_status plan_check(struct plan *p, struct tutti_error *err)
{
    struct check c;
    struct plan_probe probe = { 0 };
    struct model *whole = NULL;
    struct progress progress;
    enum tutti_status st = init(&c, p, err);
    if (st == TUTTI_OK)
        st = open_whole(p, &whole, err);
    if (st == TUTTI_OK)
        st = plan_probe_open(&probe, p, err);
    progress_begin(&progress, "measuring", PROGRESS_STEPS);
    if (st == TUTTI_OK)
        st = run_rounds(&c, &probe, whole, &progress, err);
    progress_end(&progress);
    if (st == TUTTI_OK)
        p->values->json ? print_json(&c) : print_table(&c);
    plan_probe_close(&probe);
    model_free(whole);
    free(c.points);
    free(c.results);
    return st;
}
