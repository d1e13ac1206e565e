/* Conversations with the mock model, whose answers are known, and a folder for the spill file. For tests of spilled pages. */
#ifndef TUTTI_TESTS_TALKS_H
#define TUTTI_TESTS_TALKS_H

#include "engine/run/engine.h"
#include "support/collect.h"

enum { N_CTX = 256, N_TALKS = 12, FIRST_TURN = 50, LONG_TURN = 200, NEXT_ROW = 21, N_ANSWER = 10 };

struct folder {
    char path[64], file[96];
};

/* Setup and teardown of a test: *state is a struct folder. */
int talks_make_folder(void **state);
int talks_remove_folder(void **state);

/* Waits until every page that shall have a copy has one. */
void talks_settle(const tutti_engine *engine);

struct talk {
    int32_t ids[N_CTX];
    int n_ids;
};

void talk_begin(struct talk *t, int number);
void talk_ask(struct collect *c, tutti_engine *engine, struct talk *t, uint64_t seed);
/* Waits for the answer, checks it, and says something more. Returns the tokens of the prompt that were cached. */
size_t talk_finish(struct collect *c, struct talk *t, uint64_t seed);
size_t talk_turn(tutti_engine *engine, struct talk *t, uint64_t seed); /* both */

/* Cancels requests whose pages are being restored, again and again; then each talk gets its answer. */
void talks_cancel(tutti_engine *engine);

/* Fills a pool of 20 pages with other talks than the first one, whose 12 pages then have copies only. */
void talks_push_out(tutti_engine *engine, struct talk *first);

#endif
