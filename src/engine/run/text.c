/* The text thread: detokenizes while the next step computes, and calls back. Prompts are prepared
 * elsewhere (prompts.c), so that no stream waits for them. */
#include "base/system/clock.h"
#include "base/system/os.h"
#include "engine/run/engine_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

static bool text_make_room(struct token_scratch *scratch, size_t n_tokens, size_t n_tops)
{
    if (n_tokens > scratch->n_tokens) {
        struct tutti_token *tokens = realloc(scratch->tokens, n_tokens * sizeof *tokens);
        if (!tokens)
            return false;
        scratch->tokens = tokens;
        scratch->n_tokens = n_tokens;
    }
    if (n_tops > scratch->n_tops) {
        struct tutti_top_token *tops = realloc(scratch->tops, n_tops * sizeof *tops);
        if (!tops)
            return false;
        scratch->tops = tops;
        scratch->n_tops = n_tops;
    }
    return true;
}

/* The tokens of an event: n_scores of the prompt, then the visible tokens of a reply. */
struct event_tokens {
    const struct sample *scores;
    size_t n_scores;
    const struct reply *reply;
};

static const struct sample *token_at(const struct event_tokens *list, size_t i)
{
    return i < list->n_scores ? &list->scores[i] : &list->reply->tokens[i - list->n_scores].sample;
}

static size_t end_at(const struct event_tokens *list, size_t i)
{
    return i < list->n_scores ? 0 : list->reply->tokens[i - list->n_scores].end;
}

/* Describes these tokens and their bytes in the scratch memory. False: out of memory. */
static bool describe_tokens(struct tutti_engine *e, const struct event_tokens *list)
{
    struct token_scratch *scratch = &e->scratch;
    const struct tokenizer *tok = e->model->tokenizer;
    size_t n_tops = 0, top = 0, n_tokens = list->n_scores + list->reply->n_visible;
    for (size_t i = 0; i < n_tokens; i++)
        n_tops += (size_t)token_at(list, i)->n_top;
    if (!text_make_room(scratch, n_tokens, n_tops))
        return false;
    buf_truncate(&scratch->bytes, 0);
    /* First all bytes, because appending may move them; then the pointers, in the same order. */
    for (size_t i = 0; i < n_tokens; i++) {
        const struct sample *sample = token_at(list, i);
        for (int k = -1; k < sample->n_top; k++) {
            size_t begin = scratch->bytes.n_bytes;
            if (tok &&
                !tokenizer_token_bytes(tok, k < 0 ? sample->token : sample->top[k].id, &scratch->bytes))
                return false;
            size_t n_bytes = scratch->bytes.n_bytes - begin;
            if (k < 0)
                scratch->tokens[i] = (struct tutti_token){ .id = sample->token,
                                                           .logprob = sample->logprob,
                                                           .n_bytes = n_bytes,
                                                           .top = scratch->tops + top,
                                                           .n_top = sample->n_top,
                                                           .text_end = end_at(list, i) };
            else
                scratch->tops[top++] = (struct tutti_top_token){ .id = sample->top[k].id,
                                                                 .logprob = sample->top[k].logprob,
                                                                 .n_bytes = n_bytes };
        }
    }
    const char *at = scratch->bytes.bytes ? scratch->bytes.bytes : "";
    for (size_t i = 0; i < n_tokens; i++) {
        struct tutti_token *token = &scratch->tokens[i];
        token->bytes = at;
        at += token->n_bytes;
        for (int k = 0; k < token->n_top; k++) {
            struct tutti_top_token *next = &scratch->tops[token->top - scratch->tops + k];
            next->bytes = at;
            at += next->n_bytes;
        }
    }
    return true;
}

/* Counts a choice's last event; with the last choice, the request's id is forgotten. */
static void count_end(struct tutti_engine *e, struct request *r, struct tutti_event *event)
{
    r->has_failed |= event->finish == TUTTI_FINISH_ERROR;
    r->was_cancelled |= event->finish == TUTTI_FINISH_CANCELLED;
    event->is_last = --r->n_unreported == 0;
    pthread_mutex_lock(&e->lock);
    e->n_live_choices--;
    r->share->n_choices--;
    if (event->is_last) {
        int32_t slot = (int32_t)(r->id % (uint64_t)e->n_slots);
        e->slots[slot] = NULL;
        e->free_slots[e->n_free_slots++] = slot;
    }
    pthread_mutex_unlock(&e->lock);
    if (event->is_last)
        atomic_fetch_add(r->has_failed      ? &e->stats.n_failed
                         : r->was_cancelled ? &e->stats.n_cancelled
                                            : &e->stats.n_finished,
                         1);
}

/* Adds the prompt's results to the request's first event that is no error. */
static void add_prompt_results(struct tutti_engine *e, struct request *r, size_t n_scores,
                               struct tutti_event *event)
{
    event->tokens = e->scratch.tokens;
    if (n_scores > 0) {
        event->prompt_tokens = e->scratch.tokens;
        event->tokens += n_scores;
    }
    if (event->finish == TUTTI_FINISH_LENGTH && r->spec.embedding != TUTTI_EMBEDDING_NONE) {
        event->embedding = r->results->embedding;
        event->n_embedding = (size_t)r->results->n_embedding;
    }
}

/* Calls back with new certain text; does nothing if there is nothing to report. */
static void report(struct tutti_engine *e, const struct record *record, enum tutti_finish finish,
                   const struct tutti_error *error)
{
    struct request *r = record->request;
    struct choice *choice = &r->choices[record->choice];
    struct reply *reply = &choice->reply;
    if (finish == TUTTI_FINISH_NONE && reply->text.n_bytes == 0 && reply->n_visible == 0 &&
        !r->spec.reports_held)
        return;
    struct event_tokens list = { .reply = reply };
    if (r->spec.prompt_logprobs && !r->has_sent_results && finish <= TUTTI_FINISH_LENGTH) {
        list.scores = r->results->scores + r->virtual.n;
        list.n_scores = (size_t)(r->results->n_scores - r->virtual.n);
        r->has_sent_results = true;
    }
    struct tutti_event event = { .request_id = r->id,
                                 .choice = record->choice,
                                 .text = reply->text.bytes ? reply->text.bytes : "",
                                 .n_text_bytes = reply->text.n_bytes,
                                 .n_tokens = reply->n_visible,
                                 .begins_in_reasoning = r->begins_in_reasoning,
                                 .n_held = (size_t)reply->detok.n_held,
                                 .finish = finish,
                                 .has_stop_token = record->has_stop_token,
                                 .has_stop_string = reply->has_stop_string,
                                 .stop_string = reply->stop_string,
                                 .stop_token = record->sample.token,
                                 .stop_logprob = record->sample.logprob,
                                 .n_prompt_tokens = (size_t)request_n_own(r),
                                 .n_cached_tokens = record->n_cached,
                                 .n_generated_tokens = reply->n_generated,
                                 .n_accepted_drafts = record->n_accepted,
                                 .n_searched_tokens = record->n_searched,
                                 .n_rejected_drafts = record->n_rejected,
                                 .beam_score = record->answer ? record->answer->score : 0,
                                 .queue_us = record->queue_us,
                                 .ttft_us = record->ttft_us,
                                 .total_us = clock_now_us() - r->submit_us };
    memcpy(event.held, reply->detok.held, sizeof event.held);
    if (!describe_tokens(e, &list)) {
        event.finish = TUTTI_FINISH_ERROR;
        error_set(&event.error, TUTTI_E_MEMORY, "describing tokens: out of memory");
        event.n_tokens = event.n_text_bytes = 0;
        event.text = "";
        atomic_store(&choice->is_ended, true);
        atomic_store(&e->has_ends, true);
    } else if (error) {
        event.error = *error;
    } else {
        add_prompt_results(e, r, list.n_scores, &event);
    }
    atomic_fetch_add(&e->stats.n_generated_tokens, event.n_tokens);
    if (event.finish != TUTTI_FINISH_NONE) {
        choice->is_reported = true;
        count_end(e, r, &event);
    }
    r->callback(r->user, &event);
    if (choice->is_reported)
        reply_clear(reply);
    else
        reply_sent(reply);
}

static void request_done(struct tutti_engine *e, struct request *r)
{
    struct share *share = r->share;
    request_free(r);
    pthread_mutex_lock(&e->lock);
    share_drop(&e->shares, share);
    e->n_alive--;
    pthread_mutex_unlock(&e->lock);
}

/* ---- tokens to text ---- */

/* Sets retry_after_ms to the time after which a new request would start within its limit. */
static void explain_timeout(const struct tutti_engine *e, const struct request *r, struct tutti_error *err)
{
    const struct forecast *f = &e->scheduler->forecast;
    uint64_t wait_us = forecast_wait_us(f, r->share, r->spec.weight, r->spec.priority);
    uint64_t limit_us = (uint64_t)r->spec.max_queue_ms * 1000;
    uint64_t retry_ms = wait_us > limit_us ? (wait_us - limit_us) / 1000 + 1 : 1000;
    error_set(err, TUTTI_E_TIMEOUT,
              "the request did not start within its limit of %.1f s in the queue; try again later",
              (double)limit_us * 1e-6);
    err->retry_after_ms = retry_ms < UINT32_MAX ? (uint32_t)retry_ms : UINT32_MAX;
}

static void end_error(const struct tutti_engine *e, const struct record *record, struct tutti_error *err)
{
    if (record->status == TUTTI_E_NUMERIC && record->request->spec.embedding != TUTTI_EMBEDDING_NONE)
        error_set(err, record->status, "the model produced a NaN or infinite hidden state");
    else if (record->status == TUTTI_E_NUMERIC)
        error_set(err, record->status, "the model produced a NaN or infinite logit for token %d",
                  record->sample.token);
    else if (record->status == TUTTI_E_CLOSED && model_check(e->model, err) != TUTTI_OK)
        /* A rank was lost or the device failed: the client may try again elsewhere. */
        err->status = record->status;
    else if (record->status == TUTTI_E_TIMEOUT)
        explain_timeout(e, record->request, err);
    else
        constraint_explain(record->status, err);
}

/* has_memory: for the text of an answer that read_answer() has read. */
static void read_record(struct tutti_engine *e, const struct record *record, bool has_memory)
{
    struct choice *choice = &record->request->choices[record->choice];
    struct reply *reply = &choice->reply;
    enum tutti_finish finish = record->finish;
    struct tutti_error err = { 0 };
    bool is_stopped = false;
    if (record->has_token)
        has_memory = reply_push(reply, &record->sample, &is_stopped);
    if (has_memory && !is_stopped && (finish == TUTTI_FINISH_STOP || finish == TUTTI_FINISH_LENGTH))
        has_memory = reply_finish(reply, &is_stopped);
    if (!has_memory) {
        finish = TUTTI_FINISH_ERROR;
        error_set(&err, TUTTI_E_MEMORY, "the text of an answer: out of memory");
    } else if (is_stopped) {
        finish = TUTTI_FINISH_STOP;
    } else if (finish == TUTTI_FINISH_ERROR) {
        end_error(e, record, &err);
    }
    if (finish != TUTTI_FINISH_NONE && record->finish == TUTTI_FINISH_NONE) {
        atomic_store(&choice->is_ended, true);
        atomic_store(&e->has_ends, true);
        bell_ring(&e->engine_bell);
    }
    report(e, record, finish, finish == TUTTI_FINISH_ERROR ? &err : NULL);
}

static void handle_record(struct tutti_engine *e, const struct record *record, bool has_memory)
{
    struct request *r = record->request;
    if (!r->choices[record->choice].is_reported) /* else: computed after the choice had ended */
        read_record(e, record, has_memory);
    if (record->finish != TUTTI_FINISH_NONE && --r->n_unfinished == 0)
        request_done(e, r);
}

/* ---- answers of beam searches ---- */

/* All answers of a search arrive at once, and may have a million tokens, which would delay those of other
 * sequences: they are read in parts of so many tokens. */
enum { ANSWER_PART_TOKENS = 1024 };

struct long_answer {
    struct record record;
    int n_read;
    struct long_answer *next;
};

/* Reads the next n tokens. A beam search has no stop strings. */
static bool push_tokens(struct reply *reply, const struct beam_answer *answer, int first, int n)
{
    bool ok = true, is_stopped;
    for (int i = first; i < first + n && ok; i++) {
        const struct sample sample = { .token = answer->ids[i], .logprob = answer->logprobs[i] };
        ok = reply_push(reply, &sample, &is_stopped);
    }
    return ok;
}

static void take_record(struct tutti_engine *e, const struct record *record)
{
    struct long_answer *answer = record->answer ? malloc(sizeof *answer) : NULL;
    if (!answer) {
        handle_record(e, record, !record->answer);
        return;
    }
    *answer = (struct long_answer){ .record = *record };
    if (e->answers_tail)
        e->answers_tail->next = answer;
    else
        e->answers_head = answer;
    e->answers_tail = answer;
}

/* Reads a part of the first answer that is not read whole. False: there is none. */
static bool read_answer(struct tutti_engine *e)
{
    struct long_answer *first = e->answers_head;
    if (!first)
        return false;
    const struct record *record = &first->record;
    int n_left = record->answer->n - first->n_read;
    int n = n_left < ANSWER_PART_TOKENS ? n_left : ANSWER_PART_TOKENS;
    bool has_memory = push_tokens(&record->request->choices[record->choice].reply, record->answer,
                                  first->n_read, n);
    first->n_read += n;
    if (has_memory && n < n_left)
        return true;
    e->answers_head = first->next;
    if (!first->next)
        e->answers_tail = NULL;
    handle_record(e, record, has_memory);
    free(first);
    return true;
}

/* ---- prepared requests ---- */

/* Ends a request that was not passed to the engine thread. */
static void refuse(struct tutti_engine *e, struct request *r, enum tutti_finish finish,
                   const struct tutti_error *err)
{
    atomic_fetch_add(&e->stats.n_unprepared, 1);
    forecast_leave(&e->scheduler->forecast, r);
    for (int choice = 0; choice < r->spec.n_choices; choice++)
        report(e, &(struct record){ .request = r, .choice = choice }, finish, err);
    request_done(e, r);
}

static void admit(struct tutti_engine *e, struct request *r)
{
    struct tutti_error err = { 0 };
    if (atomic_load(&r->is_cancelled)) {
        refuse(e, r, TUTTI_FINISH_CANCELLED, NULL);
        return;
    }
    if (r->deadline_us > 0 && clock_now_us() >= r->deadline_us) {
        atomic_fetch_add(&e->stats.n_timed_out, 1);
        explain_timeout(e, r, &err);
        refuse(e, r, TUTTI_FINISH_ERROR, &err);
        return;
    }
    if (r->refusal.status != TUTTI_OK) {
        refuse(e, r, TUTTI_FINISH_ERROR, &r->refusal);
        return;
    }
    /* With a grammar the text is shown unchanged. */
    bool is_exact = r->grammar && r->spec.grammar_kind != TUTTI_GRAMMAR_TEXT_OR_CALLS;
    const struct chat_format *chat = r->spec.n_messages > 0 && !is_exact ? e->model->chat : NULL;
    r->format = (struct reply_format){ .tok = e->model->tokenizer,
                                       .marks = r->spec.shows_marks ? &e->model->marks : NULL,
                                       .stops = { r->spec.stop, r->spec.n_stop,
                                                  (const uint16_t *const *)r->stop_borders },
                                       .continues_text = r->spec.n_messages == 0 || is_exact,
                                       .continues_answer = r->continues_answer,
                                       .keeps_stop = r->spec.keeps_stop,
                                       .hides_blank_first_line = chat && chat->has_metadata_line,
                                       .trims = chat && chat->trims_reply,
                                       .fills_in_time = chat && chat->fills_in_time,
                                       .widens_marks = chat && chat->widens_marks };
    for (int i = 0; i < r->spec.n_choices; i++)
        reply_init(&r->choices[i].reply, &r->format);
    forecast_enter(&e->scheduler->forecast, r);
    bool is_pushed = queue_push(e->ready, &r); /* its capacity is the number of slots */
    assert(is_pushed);
    (void)is_pushed;
    queue_publish(e->ready);
    bell_ring(&e->engine_bell);
}

/* ---- the thread ---- */

static struct request *take_prepared(struct tutti_engine *e, bool *is_over)
{
    pthread_mutex_lock(&e->lock);
    struct request *r = e->prepared_head;
    if (r) {
        e->prepared_head = r->next;
        if (!e->prepared_head)
            e->prepared_tail = NULL;
    }
    *is_over = e->is_closing && e->n_alive == 0;
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* Streams have priority: after each prepared request, and each part of a long answer, all tokens that have
 * arrived are handled. */
void *text_main(void *arg)
{
    struct tutti_engine *e = arg;
    os_name_thread("tutti-text");
    for (;;) {
        unsigned ticket = bell_ticket(&e->text_bell);
        bool is_busy = false, is_over = false;
        for (const struct record *record; (record = queue_front(e->records)); is_busy = true) {
            take_record(e, record);
            queue_pop(e->records);
            if (atomic_load(&e->wants_room))
                bell_ring(&e->engine_bell);
        }
        is_busy |= read_answer(e);
        struct request *r = take_prepared(e, &is_over);
        if (r)
            admit(e, r);
        else if (is_over)
            return NULL;
        else if (!is_busy)
            bell_wait(&e->text_bell, ticket);
    }
}
