/* Gathers the events of a request, checks that they come as the API promises, and waits for the last one. */
#ifndef TEST_COLLECT_H
#define TEST_COLLECT_H

#include "base/buf.h"
#include "base/ids.h"
#include "tutti.h"

#include <pthread.h>

enum { COLLECT_CHOICES = 8 };

struct collected {
    struct buf text;
    struct ids ids;
    struct ids logprob_bits; /* float bits of each token's log-probability, then of its top tokens' */
    enum tutti_finish finish;
    struct tutti_error error;
    size_t n_generated;
    float beam_score;
};

/* Zeroed by collect_init(); one for each request. */
struct collect {
    struct collected choices[COLLECT_CHOICES];
    int n_choices;
    uint64_t id;
    size_t n_prompt_tokens, n_cached_tokens, n_accepted_drafts, n_rejected_drafts;
    int n_events, n_last, n_finished;
    struct ids prompt_ids, prompt_bits; /* with prompt_logprobs: as of an answer */
    struct ids embedding_bits;
    const char *complaint; /* what an event did wrong */
    int cancel_after;      /* > 0: cancels the request after so many events */
    tutti_engine *engine;
    int sleep_us; /* in each callback */
    pthread_mutex_t lock;
    pthread_cond_t done;
};

void collect_init(struct collect *c);
void collect_clear(struct collect *c);
void collect_event(void *collect, const struct tutti_event *event); /* a tutti_callback */

/* Submits with collect_event(); fails the test where it is refused. */
void collect_submit(struct collect *c, tutti_engine *engine, const struct tutti_request *request);
/* Waits for the last event (a minute at most), and fails the test where an event was wrong. */
void collect_wait(struct collect *c);

/* Waits until no page is in use. */
void wait_until_idle(tutti_engine *engine, struct tutti_stats *stats);

#endif
