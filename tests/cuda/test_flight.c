/* Two steps in flight, on the stand-in for the driver: sampling that is submitted, rows that get its tokens, and when a step is
 * done. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_state.h"
#include "cuda/narrow_card.h"
#include "cuda/standin_find.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 8, N_VOCAB = 5000, N_ROWS = 5 };

/* ---- steps ---- */

static struct backend *be;
static struct floats x, y[3], logits;
static float values[N_ROWS * WIDTH];

static int open_card(void **state)
{
    const struct backend_options options = narrow_options(NULL);
    struct tutti_error err = { 0 };
    (void)state;
    if (backend_open(&be, "cuda", &options, &err) != TUTTI_OK || be->ops->reserve(be, 16, &err) != TUTTI_OK ||
        be->ops->reserve_sampling(be, N_VOCAB, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_ROWS * WIDTH; i++)
        values[i] = (float)i;
    x = be->ops->alloc_constant(be, values, N_ROWS * WIDTH);
    for (int i = 0; i < 3; i++)
        y[i] = be->ops->alloc(be, 16 * WIDTH);
    logits = be->ops->alloc(be, (size_t)N_ROWS * N_VOCAB);
    return 0;
}

static int close_card(void **state)
{
    (void)state;
    be->ops->dealloc(be, x);
    for (int i = 0; i < 3; i++)
        be->ops->dealloc(be, y[i]);
    be->ops->dealloc(be, logits);
    be->ops->free(be);
    return 0;
}

/* What a step points to until it is computed. */
struct rows {
    struct step step;
    int32_t ids[N_ROWS], positions[N_ROWS], seqs[N_ROWS], outputs[N_ROWS], pages[N_ROWS][1];
    const int32_t *tables[N_ROWS];
};

/* Submits a step of n rows, whose result in to are the rows of x that follow first. */
static void submit(struct rows *r, int n, int first, struct floats to, const int32_t *sources)
{
    for (int i = 0; i < n; i++) {
        r->ids[i] = 100 * (first + 1) + i;
        r->positions[i] = 0;
        r->seqs[i] = i;
        r->outputs[i] = (first + i) % N_ROWS;
        r->pages[i][0] = i;
        r->tables[i] = r->pages[i];
    }
    r->step = (struct step){ .n_rows = n,
                             .n_seqs = n,
                             .n_outputs = n,
                             .token_ids = r->ids,
                             .token_sources = sources,
                             .positions = r->positions,
                             .seqs = r->seqs,
                             .page_tables = r->tables,
                             .output_rows = r->outputs };
    be->ops->step_begin(be, &r->step);
    be->ops->gather(be, to, x, NO_FLOATS, WIDTH);
    be->ops->step_submit(be);
}

static void assert_rows(const struct rows *r, struct floats got)
{
    float host[N_ROWS * WIDTH];
    be->ops->download(be, host, got, (size_t)r->step.n_outputs * WIDTH);
    for (int i = 0; i < r->step.n_outputs * WIDTH; i++)
        assert_true(host[i] == values[r->outputs[i / WIDTH] * WIDTH + i % WIDTH]);
}

static void a_step_is_done_when_it_is_computed(void **state)
{
    (void)state;
    setenv("TUTTI_STANDIN_QUERIES", "3", 1);
    for (int i = 0; i < 3; i++) {
        struct rows r;
        submit(&r, 3, i, y[0], NULL);
        for (int k = 0; k < 3; k++)
            assert_false(be->ops->step_is_done(be));
        assert_true(be->ops->step_is_done(be));
        assert_true(be->ops->step_is_done(be));
        be->ops->step_wait(be);
        submit(&r, 3, i, y[0], NULL);
        be->ops->step_wait(be);
        assert_true(be->ops->step_is_done(be));
        assert_rows(&r, y[0]);
    }
    unsetenv("TUTTI_STANDIN_QUERIES");
}

/* ---- sampling ---- */

static const struct tutti_sampling
    GREEDY = { .repetition_penalty = 1, .top_p = 1, .typical_p = 1 },
    SEEDED = { .repetition_penalty = 1, .top_p = 0.9f, .typical_p = 1, .temperature = 1 },
    PENALTIES = { .repetition_penalty = 1.5f,
                  .top_p = 1,
                  .typical_p = 0.5f,
                  .temperature = 0.7f,
                  .presence_penalty = 0.5f },
    REWARD = { .repetition_penalty = 0.5f, .top_p = 1, .typical_p = 1, .temperature = 1 };

/* Row of the last input has a logit that is not finite; only the host can draw from that of REWARD, which makes one infinite. */
enum { HUGE_INPUT = 3, HUGE_ID = 6, BAD_INPUT = 4 };

static void upload_logits(unsigned salt)
{
    static float host[N_ROWS * N_VOCAB];
    for (int i = 0; i < N_ROWS * N_VOCAB; i++)
        host[i] = (float)(((unsigned)i + salt) * 2654435761u >> 16) / 8192;
    host[HUGE_INPUT * N_VOCAB + HUGE_ID] = 3e38f;
    host[BAD_INPUT * N_VOCAB + 77] = INFINITY;
    be->ops->upload(be, logits, host, sizeof host / sizeof *host);
}

static void make_inputs(struct sample_input *inputs, struct sample *out)
{
    static const int32_t IDS[] = { 5, 6, 7, 6, 4000 };
    static const struct tutti_sampling *const SAMPLINGS[N_ROWS] = { &GREEDY, &SEEDED, &PENALTIES, &REWARD,
                                                                    &GREEDY };
    memset(out, 0xff, N_ROWS * sizeof *out);
    for (int i = 0; i < N_ROWS; i++)
        inputs[i] = (struct sample_input){ .kind = SAMPLE_DRAW,
                                           .row = i,
                                           .n_usable = N_VOCAB,
                                           .sampling = SAMPLINGS[i],
                                           .ids = IDS,
                                           .n_prompt = 2,
                                           .n_ids = 5,
                                           .seed = 17,
                                           .logprobs = i != 1,
                                           .n_top = i == 0 ? 5 : 0,
                                           .out = &out[i] };
}

static void assert_same(const struct sample_input *got, const struct sample_input *want)
{
    assert_int_equal(got->n_out, 1);
    assert_int_equal(got->is_finite, want->is_finite);
    assert_int_equal(got->out->token, want->out->token);
    assert_int_equal(got->out->n_top, want->out->n_top);
    assert_memory_equal(&got->out->logprob, &want->out->logprob, sizeof(float));
    for (int i = 0; i < want->out->n_top; i++) {
        assert_int_equal(got->out->top[i].id, want->out->top[i].id);
        assert_memory_equal(&got->out->top[i].logprob, &want->out->top[i].logprob, sizeof(float));
    }
}

static void assert_sampled(const struct sample_input *inputs)
{
    struct sample_input wanted[N_ROWS];
    struct sample out[N_ROWS];
    make_inputs(wanted, out);
    be->ops->sample(be, logits, N_VOCAB, wanted, N_ROWS);
    assert_int_equal(wanted[0].out->n_top, 5);
    assert_int_equal(wanted[0].out->top[0].id, wanted[0].out->token);
    assert_true(wanted[0].out->top[0].logprob == wanted[0].out->logprob);
    assert_false(wanted[BAD_INPUT].is_finite);
    for (int i = 0; i < N_ROWS; i++)
        if (i != HUGE_INPUT)
            assert_same(&inputs[i], &wanted[i]);
    assert_int_equal(inputs[HUGE_INPUT].n_out, 0);
    assert_int_equal(inputs[HUGE_INPUT].out->n_top, 0);
}

static void submitted_sampling_has_the_same_results(void **state)
{
    struct sample_input inputs[N_ROWS];
    struct sample out[N_ROWS];
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        upload_logits(k * 1000);
        make_inputs(inputs, out);
        assert_true(be->ops->sample_submit(be, logits, N_VOCAB, inputs, N_ROWS));
        be->ops->sample_wait(be);
        assert_sampled(inputs);
    }
}

/* Nothing is done then, and the next sampling is right. */
static void what_needs_the_host_is_not_submitted(void **state)
{
    struct sample_input inputs[N_ROWS], bad[N_ROWS];
    struct sample out[N_ROWS + 1];
    struct sample_candidate best[2];
    (void)state;
    upload_logits(1);
    for (int k = 0; k < 2; k++) {
        make_inputs(bad, out);
        if (k == 0) {
            bad[1].kind = SAMPLE_BEST;
            bad[1].n_best = 2;
            bad[1].best = best;
        } else {
            bad[2].n_ids = 4;
            bad[2].n_drafts = 1;
        }
        long n_calls = standin_functions()->calls(NULL);
        assert_false(be->ops->sample_submit(be, logits, N_VOCAB, bad, 3));
        assert_int_equal(standin_functions()->calls(NULL), n_calls);
        make_inputs(inputs, out);
        assert_true(be->ops->sample_submit(be, logits, N_VOCAB, inputs, N_ROWS));
        be->ops->sample_wait(be);
        assert_sampled(inputs);
    }
}

/* ---- both ---- */

/* The rows of the step that is submitted next have the tokens before the host knows them; and each step has its own data, however
 * late the card reads them. */
static void the_next_step_gets_the_tokens(void **state)
{
    enum { N_FED = 3 }; /* and a row of padding */
    static const int32_t SOURCES[N_FED] = { 2, -1, 1 };
    struct cuda_backend *cuda = cuda_of(be);
    struct rows r[3];
    struct sample_input inputs[N_ROWS];
    struct sample out[N_ROWS];
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        int32_t got[16];
        upload_logits(k * 77 + 5);
        make_inputs(inputs, out);
        submit(&r[0], 4, 0, y[0], NULL);
        assert_true(be->ops->sample_submit(be, logits, N_VOCAB, inputs, 3));
        submit(&r[1], N_FED, 1, y[1], SOURCES);
        be->ops->sample_wait(be);
        assert_true(inputs[0].out->token > 0 && inputs[2].out->token != inputs[0].out->token);
        int n_padded = cuda->n_padded_rows;
        assert_in_range(n_padded, N_FED + 1, 16);
        cuda_copy_out(cuda, got, cuda->rows.token_ids, (size_t)n_padded * sizeof *got);
        for (int i = 0; i < n_padded; i++)
            assert_int_equal(got[i], i >= N_FED        ? 0
                                     : SOURCES[i] >= 0 ? inputs[SOURCES[i]].out->token
                                                       : r[1].ids[i]);
        submit(&r[2], 3, 3, y[2], NULL);
        be->ops->step_wait(be);
        for (int i = 0; i < 3; i++)
            assert_rows(&r[i], y[i]);
    }
    struct tutti_error err;
    assert_int_equal(be->ops->check(be, &err), TUTTI_OK);
}

/* A wait for sampling is none for the step after it. */
static void sampling_is_awaited_beside_the_next_step(void **state)
{
    struct rows r[2];
    struct sample_input inputs[N_ROWS];
    struct sample out[N_ROWS];
    (void)state;
    upload_logits(9);
    make_inputs(inputs, out);
    submit(&r[0], 4, 0, y[0], NULL);
    assert_true(be->ops->sample_submit(be, logits, N_VOCAB, inputs, N_ROWS));
    submit(&r[1], 4, 1, y[1], NULL);
    be->ops->sample_wait(be);
    assert_false(be->ops->step_is_done(be));
    be->ops->step_wait(be);
    assert_rows(&r[0], y[0]);
    assert_rows(&r[1], y[1]);
    assert_sampled(inputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_done_when_it_is_computed),
        cmocka_unit_test(submitted_sampling_has_the_same_results),
        cmocka_unit_test(what_needs_the_host_is_not_submitted),
        cmocka_unit_test(the_next_step_gets_the_tokens),
        cmocka_unit_test(sampling_is_awaited_beside_the_next_step),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
