/* The event loop of a run: starts requests and decides when the run is over. libevent watches the
 * sockets of libcurl's multi interface, so thousands of idle streams cost nothing. */
#include "load/client.h"

#include "base/containers/array.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    PROGRESS_US = 200000,
    SPARE_FILES = 64,      /* for the program itself */
    MAX_DISPATCH_US = 500, /* of handling sockets before arrivals are checked again */
    ARRIVAL_PRIORITY = 0,
    SOCKET_PRIORITY = 1,
    N_PRIORITIES = 2,
};

const char *load_outcome_name(enum load_outcome outcome)
{
    static const char *const NAMES[] = {
        [LOAD_COMPLETE] = "complete",
        [LOAD_NO_CONNECTION] = "no connection",
        [LOAD_TOO_MANY] = "HTTP 429",
        [LOAD_UNAVAILABLE] = "HTTP 503",
        [LOAD_REJECTED] = "rejected",
        [LOAD_SERVER_ERROR] = "server error",
        [LOAD_TIMEOUT] = "timeout",
        [LOAD_CUT] = "cut",
        [LOAD_BAD_ANSWER] = "bad answer",
        [LOAD_UNFINISHED] = "unfinished",
        [LOAD_OUTCOMES] = "",
        [LOAD_PENDING] = "pending",
    };
    return NAMES[outcome];
}

void client_fail(struct load_client *c, enum tutti_status status, const char *what)
{
    if (c->status == TUTTI_OK) {
        c->status = status;
        if (what)
            error_set(c->err, status, "%s", what);
    }
    event_base_loopbreak(c->base);
}

static struct timeval timeval_of(int64_t us)
{
    if (us < 0)
        us = 0;
    return (struct timeval){ .tv_sec = us / 1000000, .tv_usec = us % 1000000 };
}

static void set_timer(struct load_client *c, struct event *timer, int64_t us)
{
    struct timeval time = timeval_of(us);
    if (event_add(timer, &time) != 0)
        client_fail(c, TUTTI_E_MEMORY, "out of memory for a timer");
}

/* ---- starting and ending requests ---- */

static void end_if_done(struct load_client *c)
{
    if (c->arrivals_over && c->n_open == 0 && c->n_waiting == 0 && c->next_start == c->run->n_records)
        event_base_loopbreak(c->base);
}

/* No further requests will arrive. */
static void end_arrivals(struct load_client *c)
{
    if (c->arrivals_over)
        return;
    c->arrivals_over = true;
    set_timer(c, c->draining, (int64_t)(c->options->drain_s * 1e6));
    end_if_done(c);
}

/* False: the number of requests is reached, or out of memory. */
static bool add_record(struct load_client *c, int64_t scheduled_us)
{
    struct load_run *run = c->run;
    if (c->arrivals_over)
        return false;
    if (!array_grow(&run->records, run->n_records, &c->capacity, sizeof *run->records)) {
        client_fail(c, TUTTI_E_MEMORY, "out of memory for the records");
        return false;
    }
    uint32_t prompt = c->options->work->prompts.list ? rounds_next(&c->rounds) : (uint32_t)run->n_records;
    run->records[run->n_records++] = (struct load_record){
        .scheduled_us = scheduled_us,
        .started_us = -1,
        .first_us = -1,
        .last_us = -1,
        .ended_us = -1,
        .prompt = prompt,
        .outcome = LOAD_PENDING,
    };
    return true;
}

static bool is_last(const struct load_client *c)
{
    const struct load_options *options = c->options;
    size_t most = options->n_requests ? options->n_requests : LOAD_MAX_REQUESTS;
    return c->run->n_records >= most;
}

static struct load_slot *take_slot(struct load_client *c)
{
    struct load_slot *slot = c->free_slots;
    if (slot) {
        c->free_slots = slot->next_free;
        return slot;
    }
    if (c->n_slots == c->max_open)
        return NULL;
    slot = slot_new(c);
    if (!slot)
        client_fail(c, TUTTI_E_MEMORY, "out of memory for a connection");
    else
        c->slots[c->n_slots++] = slot;
    return slot;
}

/* Open loop: starts requests that have arrived, as slots are available. */
static void start_arrived(struct load_client *c)
{
    while (c->status == TUTTI_OK && !c->is_stopping && c->next_start < c->run->n_records) {
        struct load_slot *slot = take_slot(c);
        if (!slot || !slot_start(slot, c->next_start++))
            return;
    }
}

static void on_arrival(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    struct load_client *c = user;
    double limit_s = c->options->duration_s > 0 ? c->options->duration_s : INFINITY;
    while (!c->arrivals_over && c->next_arrival_us <= client_now_us(c)) {
        if (!add_record(c, c->next_arrival_us))
            return;
        start_arrived(c);
        double next_s = arrivals_next(&c->arrivals);
        if (is_last(c) || next_s > limit_s)
            end_arrivals(c);
        c->next_arrival_us = (int64_t)(next_s * 1e6);
    }
    if (!c->arrivals_over)
        set_timer(c, c->arrival, c->next_arrival_us - client_now_us(c));
}

/* Closed loop: the slot's user sends its next request. */
static void ask(struct load_slot *slot)
{
    struct load_client *c = slot->client;
    int64_t now_us = client_now_us(c);
    if (c->options->duration_s > 0 && now_us > (int64_t)(c->options->duration_s * 1e6))
        end_arrivals(c); /* the timer that ends them may be late */
    if (!c->is_stopping && add_record(c, now_us) && slot_start(slot, c->next_start)) {
        c->next_start++;
        if (is_last(c))
            end_arrivals(c);
    }
    end_if_done(c);
}

static void on_wake(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    struct load_slot *slot = user;
    slot->client->n_waiting--;
    ask(slot);
}

static void continue_after(struct load_slot *slot, bool failed)
{
    struct load_client *c = slot->client;
    if (c->options->rate > 0) {
        slot->next_free = c->free_slots;
        c->free_slots = slot;
        start_arrived(c);
    } else if (!failed) {
        ask(slot);
        return;
    } else if (!c->arrivals_over) {
        c->n_waiting++;
        set_timer(c, slot->wake, (int64_t)(slot_pause_s(slot) * 1e6));
    }
    end_if_done(c);
}

/* Aborts running requests and drops waiting ones. */
static void stop(struct load_client *c)
{
    c->is_stopping = true;
    c->arrivals_over = true;
    for (int i = 0; i < c->n_slots; i++)
        if (c->slots[i]->is_open)
            slot_abort(c->slots[i]);
    for (; c->next_start < c->run->n_records; c->next_start++)
        c->run->records[c->next_start].outcome = LOAD_UNFINISHED;
    event_base_loopbreak(c->base);
}

/* ---- libcurl and libevent ---- */

static void take_finished(struct load_client *c)
{
    CURLMsg *message;
    int n_left;
    while (c->status == TUTTI_OK && (message = curl_multi_info_read(c->multi, &n_left))) {
        struct load_slot *slot = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &slot);
        if (slot_can_resend(slot, code)) {
            slot_resend(slot); /* message is gone */
            continue;
        }
        slot_finish(slot, code); /* message is gone */
        continue_after(slot, c->run->records[slot->record].outcome != LOAD_COMPLETE);
    }
}

static void act(struct load_client *c, curl_socket_t socket, int events)
{
    int n_running;
    if (curl_multi_socket_action(c->multi, socket, events, &n_running) != CURLM_OK)
        client_fail(c, TUTTI_E_INTERNAL, "libcurl cannot go on");
    take_finished(c);
}

static void on_socket(evutil_socket_t fd, short what, void *user)
{
    act(user, fd, (what & EV_READ ? CURL_CSELECT_IN : 0) | (what & EV_WRITE ? CURL_CSELECT_OUT : 0));
}

static void on_curl_timer(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    act(user, CURL_SOCKET_TIMEOUT, 0);
}

/* libcurl says what it waits for. known: the event of this socket; NULL: none. */
static int watch_socket(CURL *easy, curl_socket_t socket, int what, void *user, void *known)
{
    (void)easy;
    struct load_client *c = user;
    struct event *event = known;
    if (what == CURL_POLL_REMOVE) {
        if (event)
            event_free(event);
        return 0;
    }
    short wanted = (short)((what & CURL_POLL_IN ? EV_READ : 0) | (what & CURL_POLL_OUT ? EV_WRITE : 0) |
                           EV_PERSIST);
    bool ok = true;
    if (!event) {
        event = event_new(c->base, socket, wanted, on_socket, c);
        ok = event && curl_multi_assign(c->multi, socket, event) == CURLM_OK;
    } else {
        event_del(event);
        ok = event_assign(event, c->base, socket, wanted, on_socket, c) == 0;
    }
    if (!ok || event_add(event, NULL) != 0) {
        client_fail(c, TUTTI_E_MEMORY, "out of memory for an event");
        return -1;
    }
    return 0;
}

static int watch_time(CURLM *multi, long timeout_ms, void *user)
{
    (void)multi;
    struct load_client *c = user;
    if (timeout_ms < 0)
        event_del(c->curl_timer);
    else
        set_timer(c, c->curl_timer, 1000 * (int64_t)timeout_ms);
    return 0;
}

/* ---- other events ---- */

static void on_closing(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    struct load_client *c = user;
    for (int i = 0; i < c->n_slots; i++) /* waiting users send no more requests */
        if (c->slots[i]->wake && event_pending(c->slots[i]->wake, EV_TIMEOUT, NULL)) {
            event_del(c->slots[i]->wake);
            c->n_waiting--;
        }
    end_arrivals(c);
}

static void on_draining(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    stop(user);
}

static void on_stop_signal(evutil_socket_t number, short what, void *user)
{
    (void)number, (void)what;
    struct load_client *c = user;
    c->run->was_interrupted = true;
    stop(c);
}

static void on_progress(evutil_socket_t fd, short what, void *user)
{
    (void)fd, (void)what;
    struct load_client *c = user;
    struct load_progress now = {
        .elapsed_s = (double)client_now_us(c) / 1e6,
        .n_arrived = c->run->n_records,
        .n_running = (uint64_t)c->n_open,
        .n_complete = c->n_complete,
        .n_failed = c->n_failed,
        .n_pieces = c->n_pieces,
    };
    c->options->progress(c->options->user, &now);
}

/* ---- a run ---- */

/* Raises the limit of open files for the requests; concurrency 0: as many as possible. */
static enum tutti_status allow_files(int *concurrency, struct tutti_error *err)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)(*concurrency > 0 ? *concurrency : LOAD_MAX_OPEN) + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return error_set(err, TUTTI_E_IO, "the limit on open files cannot be read");
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            return error_set(err, TUTTI_E_IO, "the limit on open files cannot be raised to %llu",
                             (unsigned long long)limit.rlim_cur);
    }
    if (limit.rlim_cur < wanted && (*concurrency > 0 || limit.rlim_cur <= SPARE_FILES))
        return error_set(err, TUTTI_E_LIMIT,
                         "%d requests at once need %llu open files, but the system allows %llu (ulimit -n)",
                         *concurrency, (unsigned long long)wanted, (unsigned long long)limit.rlim_cur);
    *concurrency = (int)((limit.rlim_cur < wanted ? limit.rlim_cur : wanted) - SPARE_FILES);
    return TUTTI_OK;
}

static bool make_events(struct load_client *c)
{
    struct event_config *config = event_config_new();
    struct timeval interval = { .tv_usec = MAX_DISPATCH_US };
    /* Timers of microseconds; arrivals are not delayed by many ready sockets. */
    if (config &&
        event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER | EVENT_BASE_FLAG_NOLOCK) == 0 &&
        event_config_set_max_dispatch_interval(config, &interval, -1, SOCKET_PRIORITY) == 0)
        c->base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    if (!c->base || event_base_priority_init(c->base, N_PRIORITIES) != 0)
        return false;
    c->curl_timer = evtimer_new(c->base, on_curl_timer, c);
    c->arrival = evtimer_new(c->base, on_arrival, c);
    c->closing = evtimer_new(c->base, on_closing, c);
    c->draining = evtimer_new(c->base, on_draining, c);
    c->progress = event_new(c->base, -1, EV_PERSIST, on_progress, c);
    c->signals[0] = evsignal_new(c->base, SIGINT, on_stop_signal, c);
    c->signals[1] = evsignal_new(c->base, SIGTERM, on_stop_signal, c);
    return c->curl_timer && c->arrival && c->closing && c->draining && c->progress && c->signals[0] &&
           c->signals[1] && event_priority_set(c->arrival, ARRIVAL_PRIORITY) == 0 &&
           event_add(c->signals[0], NULL) == 0 && event_add(c->signals[1], NULL) == 0;
}

static bool make_multi(struct load_client *c)
{
    c->multi = curl_multi_init();
    return c->multi && curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, watch_socket) == CURLM_OK &&
           curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c) == CURLM_OK &&
           curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, watch_time) == CURLM_OK &&
           curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c) == CURLM_OK &&
           curl_multi_setopt(c->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING) == CURLM_OK &&
           curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)c->max_open) == CURLM_OK;
}

static bool make_headers(struct load_client *c)
{
    const struct load_options *options = c->options;
    size_t n = options->n_keys ? options->n_keys : 1;
    c->headers = calloc(n + 1, sizeof *c->headers); /* ends with NULL */
    for (size_t i = 0; c->headers && i < n; i++) {
        c->headers[i] = client_headers(options->n_keys ? options->keys[i] : NULL);
        if (!c->headers[i])
            return false;
    }
    return c->headers != NULL;
}

/* Starts the users of a closed loop, each with a request at once. */
static void start_users(struct load_client *c)
{
    for (int i = 0; i < c->max_open && c->status == TUTTI_OK && !c->arrivals_over; i++) {
        struct load_slot *slot = take_slot(c);
        if (!slot)
            return;
        slot->wake = evtimer_new(c->base, on_wake, slot);
        if (!slot->wake)
            client_fail(c, TUTTI_E_MEMORY, "out of memory for a timer");
        else
            ask(slot);
    }
}

static double processor_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage); /* fails only for an invalid argument */
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void run_loop(struct load_client *c)
{
    const struct load_options *options = c->options;
    double busy_s = processor_s();
    c->run->started_unix_s = (int64_t)time(NULL);
    c->start_ns = clock_now_ns();
    if (options->progress) {
        struct timeval interval = timeval_of(PROGRESS_US);
        if (event_add(c->progress, &interval) != 0)
            client_fail(c, TUTTI_E_MEMORY, "out of memory for a timer");
    }
    if (options->duration_s > 0)
        set_timer(c, c->closing, (int64_t)(options->duration_s * 1e6));
    if (options->rate > 0) {
        arrivals_init(&c->arrivals, options->process, options->rate, options->seed);
        c->next_arrival_us = (int64_t)(arrivals_next(&c->arrivals) * 1e6);
        set_timer(c, c->arrival, c->next_arrival_us);
    } else {
        start_users(c);
    }
    if (c->status == TUTTI_OK && event_base_dispatch(c->base) < 0)
        client_fail(c, TUTTI_E_INTERNAL, "libevent cannot go on");
    if (c->status != TUTTI_OK)
        stop(c);
    int64_t end_us = client_now_us(c);
    c->run->busy = (processor_s() - busy_s) / ((double)end_us / 1e6);
    int64_t last_us = 0;
    for (size_t i = 0; i < c->run->n_records; i++)
        last_us = c->run->records[i].ended_us > last_us ? c->run->records[i].ended_us : last_us;
    c->run->total_s = (double)last_us / 1e6;
}

static void clear_client(struct load_client *c)
{
    for (int i = 0; c->slots && i < c->n_slots; i++)
        slot_free(c->slots[i]);
    free(c->slots);
    if (c->multi)
        curl_multi_cleanup(c->multi); /* closes the kept connections: their events go here */
    struct event *events[] = { c->curl_timer, c->arrival,    c->closing,   c->draining,
                               c->progress,   c->signals[0], c->signals[1] };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (c->base)
        event_base_free(c->base);
    for (size_t i = 0; c->headers && c->headers[i]; i++)
        curl_slist_free_all(c->headers[i]);
    free(c->headers);
    endpoints_clear(&c->endpoints);
    rounds_clear(&c->rounds);
}

enum tutti_status load_run(struct load_run *out, const struct load_options *options, struct tutti_error *err)
{
    *out = (struct load_run){ 0 };
    struct load_client c = { .options = options, .run = out, .max_open = options->concurrency, .err = err };
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(err, TUTTI_E_MEMORY, "libcurl cannot start");
    enum tutti_status st = work_check(options->work, &options->style, err);
    if (st == TUTTI_OK)
        st = endpoints_init(&c.endpoints, options, err);
    if (st == TUTTI_OK)
        st = allow_files(&c.max_open, err);
    if (st == TUTTI_OK && options->work->prompts.list)
        st = rounds_init(&c.rounds, (uint32_t)options->work->prompts.n, options->in_order, options->seed,
                         err);
    if (st != TUTTI_OK)
        goto done;
    c.slots = calloc((size_t)c.max_open, sizeof(struct load_slot *));
    if (!c.slots || !make_headers(&c) || !make_events(&c) || !make_multi(&c)) {
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the connections");
        goto done;
    }
    run_loop(&c);
    st = c.status;
done:
    clear_client(&c);
    curl_global_cleanup();
    return st;
}

void load_run_clear(struct load_run *run)
{
    free(run->records);
    free(run->ticks);
    samples_clear(&run->gaps);
    *run = (struct load_run){ 0 };
}
