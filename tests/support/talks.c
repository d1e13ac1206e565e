#include "support/talks.h"
#include "base/rng.h"
#include "support/mock_model.h"
#include "support/opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int talks_make_folder(void **state)
{
    struct folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    strcpy(f->path, "/tmp/tutti-spill-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->file, sizeof f->file, "%s/kv-pages", f->path);
    *state = f;
    return 0;
}

int talks_remove_folder(void **state)
{
    struct folder *f = *state;
    unlink(f->file);
    rmdir(f->path);
    free(f);
    return 0;
}

void talks_settle(const tutti_engine *engine)
{
    for (int i = 0; i < 100000 && !engine_is_settled(engine); i++)
        usleep(300);
    assert_true(engine_is_settled(engine));
}

void talk_begin(struct talk *t, int number)
{
    t->n_ids = FIRST_TURN;
    for (int i = 0; i < t->n_ids; i++)
        t->ids[i] = (int32_t)(mix64((uint64_t)(i < 20 ? number % 2 : number) ^ (uint64_t)i << 32) %
                              MOCK_USABLE);
}

static void talk_begin_long(struct talk *t, int number)
{
    talk_begin(t, number);
    t->n_ids = LONG_TURN;
    for (int i = FIRST_TURN; i < t->n_ids; i++)
        t->ids[i] = (int32_t)(mix64((uint64_t)(number << 16 | i)) % MOCK_USABLE);
}

static struct tutti_request request_of(const struct talk *t, uint64_t seed)
{
    struct tutti_request r = { .ids = t->ids, .n_ids = (size_t)t->n_ids, .max_tokens = N_ANSWER };
    r.sampling = (struct tutti_sampling){
        .temperature = seed % 2 ? 1 : 0, .top_p = 1, .repetition_penalty = 1, .has_seed = true, .seed = seed
    };
    return r;
}

void talk_ask(struct collect *c, tutti_engine *engine, struct talk *t, uint64_t seed)
{
    struct tutti_request r = request_of(t, seed);
    collect_init(c);
    collect_submit(c, engine, &r);
}

size_t talk_finish(struct collect *c, struct talk *t, uint64_t seed)
{
    int32_t want[N_CTX];
    struct tutti_request r = request_of(t, seed);
    collect_wait(c);
    int n = mock_answer(&r, 0, N_CTX, false, want, N_CTX);
    assert_int_equal(c->choices[0].ids.n, n);
    assert_memory_equal(c->choices[0].ids.ids, want, (size_t)n * sizeof *want);
    memcpy(t->ids + t->n_ids, want, (size_t)n * sizeof *want);
    t->n_ids += n;
    for (int i = 0; i < NEXT_ROW; i++)
        t->ids[t->n_ids++] = (int32_t)(mix64(seed << 16 ^ (uint64_t)i) % MOCK_USABLE);
    size_t n_cached = c->n_cached_tokens;
    collect_clear(c);
    return n_cached;
}

size_t talk_turn(tutti_engine *engine, struct talk *t, uint64_t seed)
{
    struct collect c;
    talk_ask(&c, engine, t, seed);
    return talk_finish(&c, t, seed);
}

void talks_push_out(tutti_engine *engine, struct talk *first)
{
    struct talk others[3];
    talk_begin_long(first, 1);
    talk_turn(engine, first, 1);
    talks_settle(engine);
    for (int i = 0; i < 3; i++) {
        talk_begin(&others[i], 2 + 2 * i);
        for (int round = 0; round < 4; round++) {
            talk_turn(engine, &others[i], (uint64_t)round);
            talks_settle(engine);
        }
    }
    first->n_ids = LONG_TURN;
}

void talks_cancel(tutti_engine *engine)
{
    struct talk talks[N_TALKS];
    struct collect c[N_TALKS];
    struct tutti_stats stats;
    for (int i = 0; i < N_TALKS; i++) {
        talk_begin_long(&talks[i], i);
        talk_turn(engine, &talks[i], (uint64_t)i);
        talks_settle(engine);
        talks[i].n_ids = LONG_TURN;
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N_TALKS; i++)
            talk_ask(&c[i], engine, &talks[i], (uint64_t)round);
        usleep((useconds_t)(mix64((uint64_t)round) % 300));
        for (int i = 0; i < N_TALKS; i++)
            tutti_engine_cancel(engine, c[i].id);
        for (int i = 0; i < N_TALKS; i++) {
            collect_wait(&c[i]);
            collect_clear(&c[i]);
        }
    }
    wait_until_idle(engine, &stats);
    for (int i = 0; i < N_TALKS; i++)
        talk_turn(engine, &talks[i], (uint64_t)i + 50);
}
