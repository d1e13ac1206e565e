#include "served.h"

#include "engine/run/engine.h"
#include "model/chat/chat.h"
#include "server/access/guard.h"
#include "server/app.h"
#include "server/http/clients.h"
#include "server/http/http_conn.h"
#include "server/intake.h"
#include "server/job.h"
#include "server/other_apis/step_api.h"

#include <assert.h>
#include <event2/event.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_ECHOES = 64, MAX_ECHO_TOKENS = 24, MAX_LOOPS = 20000 };

/* ---- the engine -------------------------------------------------------------------------------------------------- */

struct echo {
    bool is_used, is_cancelled;
    uint64_t id;
    tutti_callback callback;
    void *user;
    char *text;
    size_t n_bytes, at;
    int n_choices, n_tokens, max_tokens;
    bool logprobs, reports_held, no_answer, embedding, prompt_logprobs;
    struct tutti_error err; /* not TUTTI_OK: the answer */
};

static struct echo echoes[MAX_ECHOES];
static struct app app;
static uint64_t n_submitted;

static void keep_prompt(struct echo *echo, const struct tutti_request *request)
{
    const char *text = request->text;
    size_t n_bytes = request->n_text_bytes;
    struct ids ids = { 0 };
    if (request->n_messages > 0) {
        text = request->messages[request->n_messages - 1].content;
        n_bytes = request->messages[request->n_messages - 1].n_bytes;
        if (chat_render(model_of(app.model), request, &ids, &echo->err) != TUTTI_OK)
            assert(echo->err.text[0] != '\0');
    }
    ids_clear(&ids);
    echo->text = malloc(n_bytes + 1);
    assert(echo->text);
    if (n_bytes > 0)
        memcpy(echo->text, text, n_bytes);
    echo->n_bytes = n_bytes;
}

enum tutti_status tutti_engine_submit(tutti_engine *engine, const struct tutti_request *request,
                                      tutti_callback callback, void *user, uint64_t *request_id,
                                      struct tutti_error *err)
{
    (void)engine;
    for (int i = 0; i < MAX_ECHOES; i++) {
        if (echoes[i].is_used)
            continue;
        echoes[i] = (struct echo){ .is_used = true,
                                   .id = ++n_submitted,
                                   .callback = callback,
                                   .user = user,
                                   .n_choices = request->n_choices > 0 ? request->n_choices : 1,
                                   .max_tokens = request->max_tokens,
                                   .logprobs = request->logprobs,
                                   .reports_held = request->reports_held,
                                   .no_answer = request->no_answer || request->embedding,
                                   .embedding = request->embedding,
                                   .prompt_logprobs = request->prompt_logprobs };
        keep_prompt(&echoes[i], request);
        *request_id = echoes[i].id;
        return TUTTI_OK;
    }
    return error_set(err, TUTTI_E_BUSY, "the queue is full");
}

enum tutti_status tutti_engine_check_queue(tutti_engine *engine, uint64_t owner, double weight, int priority,
                                           struct tutti_error *err)
{
    (void)engine, (void)owner, (void)weight, (void)priority;
    for (int i = 0; i < MAX_ECHOES; i++)
        if (!echoes[i].is_used)
            return TUTTI_OK;
    return error_set(err, TUTTI_E_BUSY, "the queue is full");
}

void tutti_engine_charge(tutti_engine *engine, uint64_t owner, int64_t n_tokens)
{
    (void)engine, (void)owner, (void)n_tokens;
}

void tutti_engine_cancel(tutti_engine *engine, uint64_t request_id)
{
    (void)engine;
    for (int i = 0; i < MAX_ECHOES; i++)
        if (echoes[i].is_used && echoes[i].id == request_id)
            echoes[i].is_cancelled = true;
}

void tutti_engine_drain(tutti_engine *engine)
{
    (void)engine;
}

void tutti_engine_stats(tutti_engine *engine, struct tutti_stats *out)
{
    (void)engine;
    *out = (struct tutti_stats){ .n_requests = n_submitted, .max_context = 512 };
}

/* Up to three characters, whole ones: what is no UTF-8 cannot come from a tokenizer. */
static size_t next_piece(const struct echo *echo)
{
    size_t end = echo->at;
    for (int i = 0; i < 3 && end < echo->n_bytes; i++) {
        end++;
        while (end < echo->n_bytes && ((unsigned char)echo->text[end] & 0xC0) == 0x80)
            end++;
    }
    return end - echo->at;
}

/* One token of each choice, or its end. */
static void echo_step(struct echo *echo)
{
    static const float vector[4] = { 1, -0.5f, 0, 0.25f };
    static const struct tutti_token first = { .id = 5, .bytes = "p", .n_bytes = 1 }; /* of the prompt */
    struct tutti_event event = { .request_id = echo->id, .n_prompt_tokens = 1, .ttft_us = 1, .total_us = 2 };
    size_t n = next_piece(echo);
    bool is_over = n == 0 || echo->no_answer || echo->n_tokens == MAX_ECHO_TOKENS ||
                   (echo->max_tokens > 0 && echo->n_tokens >= echo->max_tokens);
    if (echo->is_cancelled)
        event.finish = TUTTI_FINISH_CANCELLED;
    else if (echo->err.status != TUTTI_OK)
        event.finish = TUTTI_FINISH_ERROR;
    else if (is_over)
        event.finish = n == 0 && !echo->no_answer ? TUTTI_FINISH_STOP : TUTTI_FINISH_LENGTH;
    event.error = echo->err;
    if (echo->prompt_logprobs && echo->n_tokens == 0 && event.finish != TUTTI_FINISH_ERROR &&
        event.finish != TUTTI_FINISH_CANCELLED)
        event.prompt_tokens = &first;
    struct tutti_top_token top[2] = { { 5, -0.5f, echo->text + echo->at, n }, { 6, -1.5f, "\xE4\xBD", 2 } };
    struct tutti_token token = { 5, -0.5f, echo->text + echo->at, n, top, 2, echo->at + n };
    if (event.finish == TUTTI_FINISH_NONE) {
        event.text = echo->text + echo->at;
        event.n_text_bytes = n;
        event.tokens = &token;
        event.n_tokens = 1;
        echo->at += n;
        echo->n_tokens++;
    } else {
        event.text = "";
        event.has_stop_token = event.finish == TUTTI_FINISH_STOP;
        event.stop_token = 2;
    }
    bool ends = event.finish != TUTTI_FINISH_NONE;
    if (echo->reports_held && !ends && echo->n_tokens % 2) {
        event.n_held = 2;
        memcpy(event.held, "\xE4\xBD", 2);
    }
    event.n_generated_tokens = (size_t)echo->n_tokens;
    if (echo->embedding && is_over && event.finish != TUTTI_FINISH_ERROR &&
        event.finish != TUTTI_FINISH_CANCELLED) {
        event.embedding = vector;
        event.n_embedding = sizeof vector / sizeof *vector;
    }
    struct echo copy = *echo;
    if (ends)
        echo->is_used = false;
    for (int c = 0; c < copy.n_choices; c++) {
        event.choice = c;
        event.is_last = ends && c == copy.n_choices - 1;
        copy.callback(copy.user, &event);
    }
    if (ends)
        free(copy.text);
}

static bool engine_step(void)
{
    bool did = false;
    for (int i = 0; i < MAX_ECHOES; i++)
        if (echoes[i].is_used) {
            echo_step(&echoes[i]);
            did = true;
        }
    return did;
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

static void start(void)
{
    static struct server_options options = { .embedding = TUTTI_EMBEDDING_MEAN,
                                             .step_timeout_s = 60,
                                             .no_access_log = true,
                                             .apis = SERVER_API_LLM_SERVING | SERVER_API_STEP |
                                                     SERVER_API_TGI,
                                             .max_body_bytes = 64 * 1024,
                                             .cors_origin = "https://chat.example" };
    static const struct http_options http_options = { .max_body_bytes = 64 * 1024,
                                                      .max_output_bytes = 1024 * 1024,
                                                      .header_timeout_s = 60,
                                                      .idle_timeout_s = 60,
                                                      .user = &app,
                                                      .head = route_head,
                                                      .request = route_request,
                                                      .reply = route_reply,
                                                      .fail = route_fail,
                                                      .done = route_done };
    struct tutti_error err;
    signal(SIGPIPE, SIG_IGN);
    if (tutti_model_open(&app.model, FUZZ_DEMO_MODEL, &(struct tutti_model_options){ .n_threads = 1 },
                         &err) != TUTTI_OK)
        abort();
    tutti_model_info(app.model, &app.info);
    app.options = &options;
    app.model_id = "demo";
    app.engine = (tutti_engine *)(void *)&app; /* never looked at: the functions above take its place */
    app.base = event_base_new();
    if (!app.base || clients_new(&app.clients, &err) != TUTTI_OK ||
        mailbox_open(&app.inbox, app.base, job_take_event, &app, &err) != TUTTI_OK ||
        guard_new(&app.guard, &options, true, &err) != TUTTI_OK ||
        intake_new(&app.intake, app.base, &err) != TUTTI_OK ||
        http_new(&app.http, app.base, &http_options, &err) != TUTTI_OK)
        abort();
}

/* Takes what has come on the client's side. False: the end. */
static bool take_reply(int fd, struct buf *replies)
{
    char bytes[4096];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        assert(buf_add(replies, bytes, (size_t)n));
    return n != 0;
}

/* Until nothing moves any more. */
static bool settle(int fd, struct buf *replies)
{
    bool is_open = true;
    for (int i = 0, n_quiet = 0; n_quiet < 3; i++) {
        assert(i < MAX_LOOPS);
        event_base_loop(app.base, EVLOOP_NONBLOCK);
        struct intake_counts intake;
        intake_counts(app.intake, &intake);
        if (intake.n_waiting + intake.n_running > 0) { /* a body is being read */
            sched_yield();
            n_quiet = 0;
            i--;
            continue;
        }
        bool did = engine_step();
        is_open = take_reply(fd, replies);
        n_quiet = did ? 0 : n_quiet + 1;
    }
    return is_open;
}

/* ---- what comes back --------------------------------------------------------------------------------------------- */

static const char *find_line(const char *head, const char *end, const char *name)
{
    const char *at = memmem(head, (size_t)(end - head), name, strlen(name));
    return at ? at + strlen(name) : NULL;
}

/* A body that claims to be JSON, in whole or by lines, is. */
static void check_body(const char *type, const char *body, size_t n_bytes)
{
    if (type && strncmp(type, "application/json\r", 17) == 0) {
        json_t *value = json_loadb(body, n_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert(value);
        json_decref(value);
    }
    if (!type || strncmp(type, "text/event-stream", 17) != 0)
        return;
    for (const char *line = body, *end = body + n_bytes, *next; line < end; line = next) {
        const char *lf = memchr(line, '\n', (size_t)(end - line));
        next = lf ? lf + 1 : end;
        const char *json = strncmp(line, "data:", 5) == 0 ? line + 5 : *line == '{' ? line : NULL;
        if (!json || !lf || strncmp(json, " [DONE]", 7) == 0)
            continue;
        json_t *value = json_loadb(json, (size_t)(lf - json), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert(value);
        json_decref(value);
    }
}

/* Reads one reply; returns its bytes. Where the connection ended under a stream, the rest is its part. */
static size_t check_reply(const char *bytes, size_t n_bytes, int *status, bool is_cut)
{
    assert(n_bytes > 15 && memcmp(bytes, "HTTP/1.1 ", 9) == 0);
    *status = atoi(bytes + 9);
    const char *end = memmem(bytes, n_bytes, "\r\n\r\n", 4);
    assert(end && *status >= 100 && *status < 600);
    const char *body = end + 4, *length = find_line(bytes, body, "\r\nContent-Length: "),
               *type = find_line(bytes, body, "\r\nContent-Type: ");
    size_t n_rest = n_bytes - (size_t)(body - bytes);
    if (find_line(bytes, body, "\r\nTransfer-Encoding: chunked\r\n")) {
        struct http_chunks chunks = { 0 };
        struct buf decoded = { 0 };
        size_t n_used = 0;
        const char *why;
        assert(http_chunks_read(&chunks, body, n_rest, &n_used, &decoded, SIZE_MAX / 2, &why) == 0);
        assert(is_cut || chunks.state == CHUNK_DONE);
        if (decoded.n_bytes > 0)
            check_body(type, decoded.bytes, decoded.n_bytes);
        buf_clear(&decoded);
        return (size_t)(body - bytes) + (chunks.state == CHUNK_DONE ? n_used : n_rest);
    }
    if (*status < 200 || *status == 204 || *status == 304)
        return (size_t)(body - bytes);
    if (!length) /* HTTP/1.0: a stream up to the end */
        return n_bytes;
    size_t n_body = (size_t)strtoull(length, NULL, 10);
    /* The reply to HEAD tells the length of a body that it has not. */
    if (n_rest < n_body || memcmp(body, "HTTP/1.1 ", n_rest < 9 ? n_rest : 9) == 0)
        return (size_t)(body - bytes);
    check_body(type, body, n_body);
    return (size_t)(body - bytes) + n_body;
}

int served_send(const uint8_t *bytes, size_t n_bytes, size_t n_part)
{
    int fds[2], status = 0;
    struct buf replies = { 0 };
    struct tutti_error err;
    if (!app.base)
        start();
    if (steps_new(&app.steps, &err) != TUTTI_OK ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds))
        abort();
    http_accept(app.http, fds[1], "fuzz", HTTP_SERVICE_API);
    bool is_open = true;
    for (size_t at = 0; at < n_bytes && is_open; at += n_part) {
        size_t n = n_bytes - at < n_part ? n_bytes - at : n_part;
        if (send(fds[0], bytes + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
            break; /* the server has enough of it */
        event_base_loop(app.base, EVLOOP_NONBLOCK);
        is_open = take_reply(fds[0], &replies);
    }
    settle(fds[0], &replies);
    shutdown(fds[0], SHUT_WR);
    settle(fds[0], &replies);
    close(fds[0]);
    job_stop_all(&app); /* chats in steps that nobody has asked to their end */
    settle(-1, &replies);
    struct http_counts counts;
    http_counts(app.http, &counts);
    assert(LIST_EMPTY(&app.jobs) && counts.n_open == 0);
    steps_free(app.steps);
    app.steps = NULL;
    for (size_t at = 0; at < replies.n_bytes;)
        at += check_reply(replies.bytes + at, replies.n_bytes - at, &status, true);
    buf_clear(&replies);
    return status;
}
