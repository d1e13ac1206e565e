#include "support/collect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void collect_init(struct collect *c)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->done, NULL);
}

void collect_clear(struct collect *c)
{
    for (int i = 0; i < COLLECT_CHOICES; i++) {
        buf_clear(&c->choices[i].text);
        ids_clear(&c->choices[i].ids);
        ids_clear(&c->choices[i].logprob_bits);
    }
    ids_clear(&c->prompt_ids);
    ids_clear(&c->prompt_bits);
    ids_clear(&c->embedding_bits);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
}

static bool add_bits(struct ids *bits, float x)
{
    int32_t word;
    memcpy(&word, &x, sizeof word);
    return ids_add(bits, word);
}

static bool add_token(struct ids *ids, struct ids *bits, const struct tutti_token *token)
{
    bool ok = ids_add(ids, token->id) && add_bits(bits, token->logprob);
    for (int k = 0; k < token->n_top; k++)
        ok = ok && ids_add(bits, token->top[k].id) && add_bits(bits, token->top[k].logprob);
    return ok;
}

static const char *note(struct collect *c, const struct tutti_event *event)
{
    if (event->choice < 0 || event->choice >= COLLECT_CHOICES)
        return "a choice out of range";
    struct collected *choice = &c->choices[event->choice];
    if (c->n_last > 0)
        return "an event after the last one";
    if (choice->finish != TUTTI_FINISH_NONE)
        return "an event after the end of its choice";
    if (c->id != 0 && event->request_id != c->id)
        return "an event of another request";
    if (event->finish == TUTTI_FINISH_NONE && event->n_tokens == 0 && event->n_text_bytes == 0)
        return "an event that says nothing";
    if ((event->finish == TUTTI_FINISH_ERROR) != (event->error.text[0] != '\0'))
        return "an error without text, or a text without error";
    bool ok = buf_add(&choice->text, event->text, event->n_text_bytes);
    for (size_t i = 0; i < event->n_tokens; i++)
        ok = ok && add_token(&choice->ids, &choice->logprob_bits, &event->tokens[i]);
    if (event->prompt_tokens && c->n_events > 0)
        return "log-probabilities of the prompt after the first event";
    for (size_t i = 0; event->prompt_tokens && i < event->n_prompt_tokens; i++)
        ok = ok && add_token(&c->prompt_ids, &c->prompt_bits, &event->prompt_tokens[i]);
    for (size_t i = 0; i < event->n_embedding; i++)
        ok = ok && add_bits(&c->embedding_bits, event->embedding[i]);
    if (!ok)
        return "no memory";
    choice->finish = event->finish;
    choice->error = event->error;
    choice->beam_score = event->beam_score;
    choice->n_generated = event->n_generated_tokens;
    c->n_prompt_tokens = event->n_prompt_tokens;
    c->n_cached_tokens = event->n_cached_tokens;
    c->n_accepted_drafts = event->n_accepted_drafts;
    c->n_rejected_drafts = event->n_rejected_drafts;
    c->n_finished += event->finish != TUTTI_FINISH_NONE;
    if (choice->n_generated != choice->ids.n)
        return "n_generated_tokens differs from the tokens that came";
    return NULL;
}

void collect_event(void *user, const struct tutti_event *event)
{
    struct collect *c = user;
    if (c->sleep_us > 0)
        usleep((useconds_t)c->sleep_us);
    pthread_mutex_lock(&c->lock);
    const char *complaint = note(c, event);
    if (!c->complaint)
        c->complaint = complaint;
    bool shall_cancel = ++c->n_events == c->cancel_after;
    uint64_t id = event->request_id;
    pthread_mutex_unlock(&c->lock);
    if (shall_cancel)
        tutti_engine_cancel(c->engine, id);
    pthread_mutex_lock(&c->lock);
    c->n_last += event->is_last;
    if (event->is_last)
        pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

void collect_submit(struct collect *c, tutti_engine *engine, const struct tutti_request *request)
{
    struct tutti_error err = { 0 };
    c->engine = engine;
    c->n_choices = request->n_choices > 0 ? request->n_choices : 1;
    uint64_t id = 0;
    if (tutti_engine_submit(engine, request, collect_event, c, &id, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    pthread_mutex_lock(&c->lock);
    c->id = id;
    pthread_mutex_unlock(&c->lock);
}

void collect_wait(struct collect *c)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 300;
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (c->n_last == 0 && rc == 0)
        rc = pthread_cond_timedwait(&c->done, &c->lock, &until);
    const char *complaint = c->complaint;
    int n_last = c->n_last, n_finished = c->n_finished;
    pthread_mutex_unlock(&c->lock);
    if (complaint)
        fail_msg("%s", complaint);
    assert_int_equal(n_last, 1);
    assert_int_equal(n_finished, c->n_choices);
}

void wait_until_idle(tutti_engine *engine, struct tutti_stats *stats)
{
    for (int i = 0; i < 10000; i++) {
        tutti_engine_stats(engine, stats);
        if (stats->n_running == 0 && stats->n_waiting == 0 && stats->kv_pages_used == 0)
            return;
        usleep(1000);
    }
    fail_msg("%llu running, %llu waiting, %llu pages used, expected none",
             (unsigned long long)stats->n_running, (unsigned long long)stats->n_waiting,
             (unsigned long long)stats->kv_pages_used);
}
