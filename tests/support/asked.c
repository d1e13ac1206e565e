#include "support/asked.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

uint64_t asked_page_bytes(int n_pages)
{
    return (uint64_t)n_pages * MOCK_PAGE_TOKENS * sizeof(int32_t);
}

void asked_make(struct asked *a, uint64_t number, int n_choices)
{
    size_t n = 1 + mix64(number) % 60;
    for (size_t i = 0; i < n; i++)
        a->ids[i] = (int32_t)(2 + mix64((i < 20 ? number % 3 : number) ^ (uint64_t)i << 32) % 3);
    a->bias[0] = (struct tutti_logit_bias){ 2, 60 };
    a->bias[1] = (struct tutti_logit_bias){ 3, 60 };
    a->bias[2] = (struct tutti_logit_bias){ number % 5 == 0 ? MOCK_STOP : 4, 57 };
    a->request = (struct tutti_request){
        .ids = a->ids, .n_ids = n, .n_choices = n_choices, .max_tokens = 1 + (int)(mix64(number + 99) % 90)
    };
    a->request.sampling = (struct tutti_sampling){ .temperature = number % 4 == 0 ? 0 : 1,
                                                   .top_p = number % 4 == 2 ? 0.9f : 1,
                                                   .repetition_penalty = number % 4 == 1 ? 1.3f : 1,
                                                   .frequency_penalty = number % 7 == 1 ? 0.1f : 0,
                                                   .has_seed = true,
                                                   .seed = number,
                                                   .logit_bias = a->bias,
                                                   .n_logit_bias = 3 };
}

void asked_check(const struct collect *c, const struct tutti_request *r, int max_context, bool has_stop)
{
    int32_t want[ASKED_CTX];
    for (int choice = 0; choice < c->n_choices; choice++) {
        int n = mock_answer(r, choice, max_context, has_stop, want, ASKED_CTX);
        const struct collected *got = &c->choices[choice];
        assert_int_equal(got->ids.n, n);
        assert_memory_equal(got->ids.ids, want, (size_t)n * sizeof *want);
    }
}

struct tutti_stats asked_all(const struct tutti_engine_options *options, struct mock_model *draft, int n,
                             int n_choices)
{
    struct mock_model *mock = mock_model_new(ASKED_CTX, true);
    struct tutti_engine_options all_options = *options;
    all_options.draft = draft ? model_handle(&draft->model) : NULL;
    tutti_engine *engine = mock_engine(mock, &all_options, &(struct engine_hooks){ .forces_drafts = true });
    struct tutti_stats stats;
    tutti_engine_stats(engine, &stats);
    struct collect *all = calloc((size_t)n, sizeof *all);
    struct asked *asked = calloc((size_t)n, sizeof *asked);
    for (int i = 0; i < n; i++) {
        asked_make(&asked[i], (uint64_t)i, n_choices);
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &asked[i].request);
    }
    for (int i = 0; i < n; i++) {
        collect_wait(&all[i]);
        asked_check(&all[i], &asked[i].request, stats.max_context, true);
        collect_clear(&all[i]);
    }
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.kv_pages_cached + stats.kv_pages_free, stats.kv_pages_total);
    assert_int_equal(stats.draft_pages_used, 0);
    assert_int_equal(stats.n_finished, n);
    tutti_engine_close(engine);
    mock_model_free(mock);
    free(asked);
    free(all);
    return stats;
}
