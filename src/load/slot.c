/* A slot runs one request at a time: sends it, passes the response to the stream parser, and
 * records the outcome. */
#include "base/containers/array.h"
#include "load/client.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEPT_ERROR_BYTES = 4096,
    MAX_ERROR_BYTES = 1 << 16, /* of an error body; the rest is not read */
    RECEIVE_BYTES = 16384,
};

static const double PAUSE_S = 0.1, MAX_PAUSE_S = 60; /* of a user whose request failed */

static struct load_record *record_of(const struct load_slot *slot)
{
    return &slot->client->run->records[slot->record];
}

/* ---- receiving ---- */

static bool add_tick(struct load_client *c, int64_t now_us, uint32_t n)
{
    size_t tick = (size_t)(now_us / LOAD_TICK_US);
    struct load_run *run = c->run;
    if (tick >= c->ticks_capacity) {
        size_t capacity = 2 * tick + 64;
        if (!array_resize(&run->ticks, capacity, sizeof *run->ticks))
            return false;
        memset(run->ticks + c->ticks_capacity, 0, (capacity - c->ticks_capacity) * sizeof *run->ticks);
        c->ticks_capacity = capacity;
    }
    if (tick >= run->n_ticks)
        run->n_ticks = tick + 1;
    run->ticks[tick] += n;
    return true;
}

/* Records n pieces that arrived together: only the first has a gap before it. */
static bool add_pieces(struct load_slot *slot, uint32_t n, int64_t now_us)
{
    struct load_client *c = slot->client;
    struct load_record *record = record_of(slot);
    bool ok = add_tick(c, now_us, n);
    for (uint32_t i = 0; ok && i < n; i++) {
        uint64_t gap_us = (uint64_t)(now_us - record->last_us);
        if (record->first_us < 0) {
            record->first_us = now_us;
        } else {
            ok = samples_add(&c->run->gaps, gap_us);
            if (gap_us > record->longest_gap_us)
                record->longest_gap_us = gap_us > UINT32_MAX ? UINT32_MAX : (uint32_t)gap_us;
        }
        record->last_us = now_us;
    }
    record->n_pieces += n;
    c->n_pieces += n;
    return ok;
}

static size_t on_body(char *bytes, size_t size, size_t n_items, void *user)
{
    struct load_slot *slot = user;
    size_t n_bytes = size * n_items;
    if (slot->status == 0)
        curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &slot->status);
    if (slot->status != 200) {
        size_t kept = slot->error_body.n_bytes;
        if (kept < KEPT_ERROR_BYTES && !buf_add(&slot->error_body, bytes, n_bytes))
            return 0;
        slot->n_error_bytes += n_bytes;
        return slot->n_error_bytes > MAX_ERROR_BYTES ? 0 : n_bytes;
    }
    int64_t now_us = client_now_us(slot->client);
    enum answer_state before = slot->answer.state;
    uint32_t n_pieces = slot->answer.n_pieces;
    answer_feed(&slot->answer, bytes, n_bytes);
    if (slot->answer.n_pieces > n_pieces && !add_pieces(slot, slot->answer.n_pieces - n_pieces, now_us)) {
        client_fail(slot->client, TUTTI_E_MEMORY, "out of memory for the samples");
        return 0;
    }
    if (before == ANSWER_RUNNING && slot->answer.state == ANSWER_COMPLETE)
        record_of(slot)->ended_us = now_us;
    return slot->answer.state == ANSWER_BAD || slot->answer.state == ANSWER_ERROR ? 0 : n_bytes;
}

/* Called whenever the request is about to be sent on a connection. */
static int on_send(void *user, char *their_address, char *our_address, int their_port, int our_port)
{
    (void)their_address, (void)our_address, (void)their_port, (void)our_port;
    ((struct load_slot *)user)->n_sends++;
    return CURL_PREREQFUNC_OK;
}

/* ---- starting ---- */

struct load_slot *slot_new(struct load_client *c)
{
    struct load_slot *slot = calloc(1, sizeof *slot);
    if (!slot)
        return NULL;
    slot->client = c;
    slot->easy = curl_easy_init();
    if (!slot->easy) {
        free(slot);
        return NULL;
    }
    const struct load_options *options = c->options;
    client_set_common(slot->easy, options);
    curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
    curl_easy_setopt(slot->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(slot->easy, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES);
    curl_easy_setopt(slot->easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)RECEIVE_BYTES);
    curl_easy_setopt(slot->easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    curl_easy_setopt(slot->easy, CURLOPT_FORBID_REUSE, (long)options->no_reuse);
    curl_easy_setopt(slot->easy, CURLOPT_ERRORBUFFER, slot->curl_text);
    curl_easy_setopt(slot->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(slot->easy, CURLOPT_WRITEDATA, slot);
    curl_easy_setopt(slot->easy, CURLOPT_PREREQFUNCTION, on_send);
    curl_easy_setopt(slot->easy, CURLOPT_PREREQDATA, slot);
    return slot;
}

void slot_free(struct load_slot *slot)
{
    if (!slot)
        return;
    if (slot->is_open)
        curl_multi_remove_handle(slot->client->multi, slot->easy);
    curl_easy_cleanup(slot->easy);
    if (slot->wake)
        event_free(slot->wake);
    answer_clear(&slot->answer);
    buf_clear(&slot->body);
    buf_clear(&slot->error_body);
    free(slot);
}

bool slot_start(struct load_slot *slot, size_t record_index)
{
    struct load_client *c = slot->client;
    const struct load_options *options = c->options;
    slot->record = record_index;
    struct load_record *record = record_of(slot);
    enum tutti_status st = work_body(options->work, &options->style, record->prompt, &slot->body, c->err);
    if (st != TUTTI_OK) {
        client_fail(c, st, NULL);
        return false;
    }
    answer_reset(&slot->answer, options->style.api);
    buf_truncate(&slot->error_body, 0);
    slot->status = 0;
    slot->n_sends = 0;
    slot->n_error_bytes = 0;
    slot->curl_text[0] = '\0';
    curl_easy_setopt(slot->easy, CURLOPT_TIMEOUT_MS, (long)(options->timeout_s * 1e3));
    curl_easy_setopt(slot->easy, CURLOPT_FRESH_CONNECT, (long)options->no_reuse);
    bool is_chat = work_is_chat(options->work, &options->style, record->prompt);
    size_t key = options->n_keys ? record_index % options->n_keys : 0;
    curl_easy_setopt(slot->easy, CURLOPT_HTTPHEADER, c->headers[key]);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, slot->body.bytes);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)slot->body.n_bytes);
    if (curl_easy_setopt(slot->easy, CURLOPT_URL, is_chat ? c->endpoints.chat : c->endpoints.plain) !=
            CURLE_OK ||
        curl_multi_add_handle(c->multi, slot->easy) != CURLM_OK) {
        client_fail(c, TUTTI_E_MEMORY, "out of memory for a request");
        return false;
    }
    slot->is_open = true;
    c->n_open++;
    record->started_us = client_now_us(c);
    return true;
}

/* libcurl also retries, but only after read errors, and five times per handle. */
bool slot_can_resend(const struct load_slot *slot, CURLcode code)
{
    long n_connected = 0, status = 0, n_header_bytes = 0;
    if (code != CURLE_SEND_ERROR && code != CURLE_RECV_ERROR && code != CURLE_GOT_NOTHING)
        return false;
    curl_easy_getinfo(slot->easy, CURLINFO_NUM_CONNECTS,
                      &n_connected); /* 0: a kept-alive connection was used */
    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(slot->easy, CURLINFO_HEADER_SIZE, &n_header_bytes);
    return n_connected == 0 && status == 0 && n_header_bytes == 0;
}

void slot_resend(struct load_slot *slot)
{
    struct load_client *c = slot->client;
    double left_ms = c->options->timeout_s * 1e3 -
                     (double)(client_now_us(c) - record_of(slot)->started_us) / 1e3;
    curl_multi_remove_handle(c->multi, slot->easy);
    curl_easy_setopt(slot->easy, CURLOPT_TIMEOUT_MS, left_ms < 1 ? 1L : (long)left_ms);
    curl_easy_setopt(slot->easy, CURLOPT_FRESH_CONNECT, 1L);
    slot->curl_text[0] = '\0';
    if (curl_multi_add_handle(c->multi, slot->easy) != CURLM_OK)
        client_fail(c, TUTTI_E_MEMORY, "out of memory for a request");
}

/* ---- ending ---- */

static enum load_outcome outcome_of_status(long status)
{
    return status == 429                    ? LOAD_TOO_MANY
           : status == 503                  ? LOAD_UNAVAILABLE
           : status >= 400 && status <= 499 ? LOAD_REJECTED
           : status >= 500 && status <= 599 ? LOAD_SERVER_ERROR
                                            : LOAD_BAD_ANSWER;
}

static enum load_outcome outcome_of(struct load_slot *slot, CURLcode code)
{
    struct answer *a = &slot->answer;
    if (a->state == ANSWER_COMPLETE)
        return LOAD_COMPLETE;
    if (a->state != ANSWER_RUNNING)
        return a->state == ANSWER_BAD ? LOAD_BAD_ANSWER : LOAD_SERVER_ERROR;
    if (code == CURLE_OPERATION_TIMEDOUT)
        return LOAD_TIMEOUT;
    if (slot->status != 0 && slot->status != 200)
        return outcome_of_status(slot->status);
    switch (code) {
    case CURLE_OK:
        return answer_end(a) ? LOAD_COMPLETE : a->state == ANSWER_RUNNING ? LOAD_CUT : LOAD_BAD_ANSWER;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return LOAD_NO_CONNECTION;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        return LOAD_CUT;
    default:
        return LOAD_BAD_ANSWER; /* not HTTP */
    }
}

/* The server's error: the message of an error object, else the beginning of the body. */
static void describe_refusal(const struct load_slot *slot, struct tutti_error *text)
{
    const struct buf *body = &slot->error_body;
    json_t *value = body->n_bytes ? json_loadb(body->bytes, body->n_bytes, 0, NULL) : NULL;
    const char *message = answer_error_message(value);
    if (message)
        error_set(text, TUTTI_E_IO, "HTTP %ld: %s", slot->status, message);
    else
        error_set(text, TUTTI_E_IO, "HTTP %ld%s%.200s", slot->status, body->n_bytes ? ": " : "",
                  body->n_bytes ? body->bytes : "");
    json_decref(value);
}

static void keep_sample(struct load_slot *slot, enum load_outcome outcome, CURLcode code)
{
    char *kept = slot->client->run->first_words[outcome];
    struct tutti_error text = { 0 };
    if (outcome == LOAD_COMPLETE || kept[0] != '\0')
        return;
    if (slot->answer.text[0] != '\0')
        error_set(&text, TUTTI_E_IO, "%s", slot->answer.text);
    else if (slot->status != 0 && slot->status != 200)
        describe_refusal(slot, &text);
    else if (code != CURLE_OK)
        error_set(&text, TUTTI_E_IO, "%s", slot->curl_text[0] ? slot->curl_text : curl_easy_strerror(code));
    else
        error_set(&text, TUTTI_E_IO, "the stream ended before the answer did");
    size_t n = sizeof slot->client->run->first_words[outcome];
    struct tutti_error cut;
    error_set(&cut, TUTTI_E_IO, "%.*s", (int)n - 1, text.text); /* at a border of UTF-8 */
    memcpy(kept, cut.text, strnlen(cut.text, n - 1));
}

/* Retry-After in seconds; -1: none, or a date. */
static double retry_after_s(const struct load_slot *slot)
{
    struct curl_header *header;
    if ((slot->status != 429 && slot->status != 503) ||
        curl_easy_header(slot->easy, "Retry-After", 0, CURLH_HEADER, -1, &header) != CURLHE_OK)
        return -1;
    size_t n = strspn(header->value, "0123456789");
    return n > 0 && n < 9 && header->value[n] == '\0' ? atof(header->value) : -1;
}

double slot_pause_s(const struct load_slot *slot)
{
    double wait_s = retry_after_s(slot);
    return wait_s < PAUSE_S ? PAUSE_S : wait_s > MAX_PAUSE_S ? MAX_PAUSE_S : wait_s;
}

static void copy_counts(struct load_record *record, const struct answer *a)
{
    record->has_usage = a->has_usage;
    record->output_tokens = a->has_usage ? a->output_tokens : a->n_tokens;
    record->has_prompt_tokens = a->has_prompt_tokens;
    record->prompt_tokens = a->prompt_tokens;
    record->cached_tokens = a->cached_tokens;
}

static void close_slot(struct load_slot *slot)
{
    curl_multi_remove_handle(slot->client->multi, slot->easy);
    slot->is_open = false;
    slot->client->n_open--;
}

void slot_finish(struct load_slot *slot, CURLcode code)
{
    struct load_client *c = slot->client;
    struct load_record *record = record_of(slot);
    int64_t now_us = client_now_us(c);
    uint32_t n_pieces = slot->answer.n_pieces;
    if (slot->status == 0)
        curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &slot->status);
    enum load_outcome outcome = outcome_of(slot, code);
    if (slot->answer.n_pieces > n_pieces && !add_pieces(slot, slot->answer.n_pieces - n_pieces, now_us))
        client_fail(c, TUTTI_E_MEMORY, "out of memory for the samples");
    if (record->ended_us < 0)
        record->ended_us = now_us;
    record->outcome = (uint8_t)outcome;
    record->status = (uint16_t)slot->status;
    copy_counts(record, &slot->answer);
    keep_sample(slot, outcome, code);
    double wait_s = retry_after_s(slot);
    if (wait_s >= 0) {
        c->run->n_retry_after++;
        c->run->retry_after_s += (uint64_t)wait_s;
    }
    if (slot->n_sends > 1)
        c->run->n_resent += (uint64_t)slot->n_sends - 1;
    if (outcome == LOAD_COMPLETE)
        c->n_complete++;
    else
        c->n_failed++;
    close_slot(slot);
}

void slot_abort(struct load_slot *slot)
{
    struct load_record *record = record_of(slot);
    record->outcome = LOAD_UNFINISHED;
    record->ended_us = client_now_us(slot->client);
    copy_counts(record, &slot->answer);
    slot->client->n_failed++;
    close_slot(slot);
}
