/* An engine without a model, with the interface of include/tutti.h, for tests of the server: slow, failing and full on demand.
 *
 * The answer is the prompt's words, one "token" each, sent from one thread as the real one does. Words of the prompt
 * command it: "slow=MS" a pause before each word; "words=N" N words of "w0 w1 ..." instead; "fail=N" a numeric error
 * after N words; "early" an error before any; "long" a prompt beyond the context.
 *
 * MOCK_HOLD in the environment is a path: while there is such a file, no request gets more than its first word.
 * MOCK_TOOL_FORM and MOCK_REASONING_FORM in the environment are the forms of the model's calls and reasoning;
 * MOCK_REASONING_OPEN: the prompt opens the reasoning. */
#include "tutti.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REQUESTS = 512, PAGE_TOKENS = 16, N_PAGES = 4096, MAX_CONTEXT = 2048, N_VOCAB = 256 };

struct mock_request {
    bool used, cancelled;
    uint64_t id;
    tutti_callback callback;
    void *user;
    int n_choices, n_words, n_sent, max_tokens, fail_after;
    bool early, is_long;
    char *text;
    size_t n_sent_bytes;
    uint64_t pause_us, next_us, start_us, first_us;
};

struct tutti_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    struct mock_request requests[MAX_REQUESTS];
    uint64_t next_id;
    int max_queue;
    bool draining, closing;
    struct tutti_stats stats;
};

struct tutti_model {
    int unused;
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

/* ---- model ------------------------------------------------------------------------------------------------------- */

void tutti_model_info(const tutti_model *model, struct tutti_model_info *out)
{
    (void)model;
    *out = (struct tutti_model_info){ .name = "mock",
                                      .family = "mock",
                                      .chat_format = "mock",
                                      .tool_form = getenv("MOCK_TOOL_FORM"),
                                      .reasoning_form = getenv("MOCK_REASONING_FORM"),
                                      .has_reasoning = getenv("MOCK_REASONING_FORM"),
                                      .weight_type = "f32",
                                      .kv_type = "f16",
                                      .n_vocab = N_VOCAB,
                                      .n_ctx = MAX_CONTEXT,
                                      .has_tokenizer = true,
                                      .has_chat = true,
                                      .n_usable_vocab = N_VOCAB,
                                      .bos_id = -1,
                                      .eos_id = 0,
                                      .pad_id = -1 };
}

void tutti_sampling_init(struct tutti_sampling *out, const tutti_model *model)
{
    (void)model;
    *out = (struct tutti_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
}

int tutti_model_n_adapters(const tutti_model *model)
{
    (void)model;
    return 0;
}

const char *tutti_model_adapter_name(const tutti_model *model, int index)
{
    (void)model;
    (void)index;
    return NULL;
}

int64_t tutti_tokenize(const tutti_model *model, const char *text, size_t n_bytes, bool add_special,
                       int32_t *ids, size_t max_ids)
{
    (void)model, (void)add_special;
    for (size_t i = 0; i < n_bytes && i < max_ids; i++)
        ids[i] = (unsigned char)text[i];
    return (int64_t)n_bytes;
}

int64_t tutti_tokenize_trusted(const tutti_model *model, const char *text, size_t n_bytes, bool add_special,
                               int32_t *ids, size_t max_ids)
{
    return tutti_tokenize(model, text, n_bytes, add_special, ids, max_ids);
}

int64_t tutti_detokenize(const tutti_model *model, const int32_t *ids, size_t n_ids, char *text,
                         size_t max_bytes)
{
    (void)model;
    for (size_t i = 0; i < n_ids && i < max_bytes; i++)
        text[i] = (char)ids[i];
    return (int64_t)n_ids;
}

static int64_t copy_text(const char *text, char *out, size_t max_bytes)
{
    size_t n = strlen(text);
    memcpy(out, text, n < max_bytes ? n : max_bytes);
    return (int64_t)n;
}

/* A vocabulary of bytes; id 0 ends an answer. */
bool tutti_token_info(const tutti_model *model, int32_t id, struct tutti_token_info *out)
{
    static char spellings[N_VOCAB];
    (void)model;
    *out = (struct tutti_token_info){ .spelling = "" };
    if (id < 0 || id >= N_VOCAB)
        return false;
    spellings[id] = (char)id;
    *out = (struct tutti_token_info){ .spelling = &spellings[id], .n_bytes = 1 };
    if (id == 0)
        *out = (struct tutti_token_info){ .spelling = "<end>", .n_bytes = 5, .is_special = true };
    return true;
}

int64_t tutti_token_bytes(const tutti_model *model, int32_t id, char *bytes, size_t max_bytes)
{
    const char text[2] = { (char)id, '\0' };
    (void)model;
    return id < 0 || id >= N_VOCAB ? -1 : copy_text(text, bytes, max_bytes);
}

enum tutti_status tutti_apply_chat_template(const tutti_model *model, const struct tutti_request *request,
                                            int32_t *ids, size_t max_ids, size_t *n_ids,
                                            struct tutti_error *err)
{
    (void)err;
    *n_ids = 0;
    for (size_t i = 0; i < request->n_messages; i++) {
        size_t n_left = max_ids > *n_ids ? max_ids - *n_ids : 0;
        *n_ids += (size_t)tutti_tokenize(model, request->messages[i].content, request->messages[i].n_bytes,
                                         false, n_left > 0 ? ids + *n_ids : NULL, n_left);
    }
    return TUTTI_OK;
}

enum tutti_status tutti_apply_infill(const tutti_model *model, const struct tutti_infill *infill,
                                     int32_t *ids, size_t max_ids, size_t *n_ids, size_t *n_left_out,
                                     struct tutti_error *err)
{
    (void)model, (void)infill, (void)ids, (void)max_ids, (void)n_ids, (void)n_left_out;
    err->status = TUTTI_E_ARGUMENT;
    snprintf(err->text, sizeof err->text, "the mock has no tokens for it");
    return TUTTI_E_ARGUMENT;
}

size_t tutti_infill_stops(const tutti_model *model, int32_t *ids, size_t max_ids)
{
    (void)model, (void)ids, (void)max_ids;
    return 0;
}

bool tutti_engine_progress(tutti_engine *engine, uint64_t request_id, struct tutti_progress *out)
{
    bool is_found = false;
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < MAX_REQUESTS; i++)
        is_found = is_found || (engine->requests[i].used && engine->requests[i].id == request_id);
    pthread_mutex_unlock(&engine->lock);
    *out = (struct tutti_progress){ .phase = TUTTI_PHASE_DECODE };
    return is_found;
}

const char *tutti_version(void)
{
    return "mock";
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static long command(const char *text, const char *name, long otherwise)
{
    const char *at = strstr(text, name);
    return at ? strtol(at + strlen(name), NULL, 10) : otherwise;
}

static int count_words(const char *text)
{
    int n = 0;
    for (const char *p = text; *p; n++) {
        p += strspn(p, " ");
        if (!*p)
            break;
        p += strcspn(p, " ");
    }
    return n;
}

static void word_of(const struct mock_request *request, int i, char *out, size_t n_bytes)
{
    if (command(request->text, "words=", -1) >= 0) {
        snprintf(out, n_bytes, "%sw%d", i ? " " : "", i);
        return;
    }
    const char *p = request->text;
    for (int k = 0; k < i; k++) {
        p += strspn(p, " ");
        p += strcspn(p, " ");
    }
    size_t n_blanks = strspn(p, " "); /* those between words stay */
    p += i ? 0 : n_blanks;
    snprintf(out, n_bytes, "%.*s", (int)((i ? n_blanks : 0) + strcspn(p + (i ? n_blanks : 0), " ")), p);
}

enum tutti_status tutti_engine_submit(tutti_engine *engine, const struct tutti_request *request,
                                      tutti_callback callback, void *user, uint64_t *request_id,
                                      struct tutti_error *err)
{
    enum tutti_status st = TUTTI_E_BUSY;
    int n_used = 0;
    struct mock_request *place = NULL;
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < MAX_REQUESTS; i++) {
        n_used += engine->requests[i].used;
        if (!engine->requests[i].used)
            place = &engine->requests[i];
    }
    if (engine->draining) {
        st = TUTTI_E_CLOSED;
    } else if (place && n_used < engine->max_queue) {
        st = TUTTI_OK;
        const char *text = request->text ? request->text : "";
        size_t n_bytes = request->n_text_bytes;
        if (request->n_messages > 0) {
            text = request->messages[request->n_messages - 1].content;
            n_bytes = request->messages[request->n_messages - 1].n_bytes;
        }
        *place = (struct mock_request){ .used = true,
                                        .id = ++engine->next_id,
                                        .callback = callback,
                                        .user = user,
                                        .n_choices = request->n_choices ? request->n_choices : 1,
                                        .max_tokens = request->max_tokens,
                                        .text = strndup(text, n_bytes),
                                        .start_us = now_us() };
        place->n_words = (int)command(place->text, "words=", count_words(place->text));
        place->pause_us = (uint64_t)command(place->text, "slow=", 0) * 1000;
        place->fail_after = (int)command(place->text, "fail=", -1);
        place->early = strstr(place->text, "early") != NULL;
        place->is_long = strstr(place->text, "long") && !strstr(place->text, "longcat");
        place->next_us = place->start_us + place->pause_us;
        *request_id = place->id;
        engine->stats.n_requests++;
    } else {
        engine->stats.n_refused++;
    }
    pthread_mutex_unlock(&engine->lock);
    if (st != TUTTI_OK && err) {
        *err = (struct tutti_error){ .status = st, .is_overloaded = st == TUTTI_E_BUSY };
        snprintf(err->text, sizeof err->text, "%s", st == TUTTI_E_BUSY ? "the queue is full" : "draining");
    }
    return st;
}

enum tutti_status tutti_engine_check_queue(tutti_engine *engine, uint64_t owner, double weight, int priority,
                                           struct tutti_error *err)
{
    (void)owner, (void)weight, (void)priority;
    int n_used = 0;
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < MAX_REQUESTS; i++)
        n_used += engine->requests[i].used;
    bool is_full = n_used == MAX_REQUESTS || n_used >= engine->max_queue;
    engine->stats.n_refused += is_full;
    pthread_mutex_unlock(&engine->lock);
    if (!is_full)
        return TUTTI_OK;
    *err = (struct tutti_error){ .status = TUTTI_E_BUSY, .is_overloaded = true };
    snprintf(err->text, sizeof err->text, "the queue is full");
    return TUTTI_E_BUSY;
}

void tutti_engine_cancel(tutti_engine *engine, uint64_t request_id)
{
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < MAX_REQUESTS; i++)
        if (engine->requests[i].used && engine->requests[i].id == request_id)
            engine->requests[i].cancelled = true;
    pthread_mutex_unlock(&engine->lock);
}

/* One word of each choice, or the end. Called without the lock; true: the request is over. */
static bool step(struct mock_request *request, struct tutti_stats *stats)
{
    struct tutti_event event = { .request_id = request->id,
                                 .n_prompt_tokens = strlen(request->text),
                                 .begins_in_reasoning = getenv("MOCK_REASONING_OPEN") };
    char word[4096] = "";
    bool over = true;
    if (request->cancelled) {
        event.finish = TUTTI_FINISH_CANCELLED;
        stats->n_cancelled++;
    } else if (request->early || request->is_long || request->n_sent == request->fail_after) {
        event.finish = TUTTI_FINISH_ERROR;
        event.error.status = request->is_long ? TUTTI_E_LIMIT
                             : request->early ? TUTTI_E_ARGUMENT
                                              : TUTTI_E_NUMERIC;
        snprintf(event.error.param, sizeof event.error.param, "%s", request->is_long ? "messages" : "");
        snprintf(event.error.text, sizeof event.error.text, "%s",
                 request->is_long
                     ? "This model's maximum context length is 2048 tokens. However, you requested "
                       "4001 tokens (4000 in the messages, 1 in the completion)."
                     : "mock failure");
        event.error.context_tokens = request->is_long ? 2048 : 0;
        stats->n_failed++;
    } else if (request->n_sent >= request->n_words) {
        event.finish = TUTTI_FINISH_STOP;
        stats->n_finished++;
    } else if (request->max_tokens && request->n_sent >= request->max_tokens) {
        event.finish = TUTTI_FINISH_LENGTH;
        stats->n_finished++;
    } else {
        word_of(request, request->n_sent++, word, sizeof word);
        over = false;
    }
    if (!request->first_us)
        request->first_us = now_us();
    struct tutti_top_token top = { 1, -0.5f, word, strlen(word) };
    if (!over)
        request->n_sent_bytes += strlen(word);
    struct tutti_token token = { 1, -0.5f, word, strlen(word), &top, 1, request->n_sent_bytes };
    for (int c = 0; c < request->n_choices; c++) {
        event.choice = c;
        event.text = word;
        event.n_text_bytes = strlen(word);
        event.tokens = over ? NULL : &token;
        event.n_tokens = over ? 0 : 1;
        event.is_last = over && c == request->n_choices - 1;
        event.n_generated_tokens = (size_t)request->n_sent;
        event.ttft_us = request->first_us - request->start_us;
        event.total_us = now_us() - request->start_us;
        stats->n_generated_tokens += !over;
        request->callback(request->user, &event);
    }
    return over;
}

static bool is_held(void)
{
    const char *path = getenv("MOCK_HOLD");
    return path && access(path, F_OK) == 0;
}

static void *run(void *arg)
{
    struct tutti_engine *engine = arg;
    for (;;) {
        bool idle = true, any = false, held = is_held();
        for (int i = 0; i < MAX_REQUESTS; i++) {
            struct mock_request *request = &engine->requests[i];
            pthread_mutex_lock(&engine->lock);
            bool used = request->used,
                 due = request->cancelled || (now_us() >= request->next_us && !(held && request->n_sent > 0));
            pthread_mutex_unlock(&engine->lock);
            any |= used;
            if (!used || !due)
                continue;
            idle = false;
            request->next_us = now_us() + request->pause_us;
            bool over = step(request, &engine->stats);
            pthread_mutex_lock(&engine->lock);
            if (over) {
                free(request->text);
                request->used = false;
            }
            pthread_mutex_unlock(&engine->lock);
        }
        pthread_mutex_lock(&engine->lock);
        bool ends = engine->closing && !any;
        pthread_mutex_unlock(&engine->lock);
        if (ends)
            return NULL;
        if (idle)
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
}

/* ---- engine ------------------------------------------------------------------------------------------------------ */

enum tutti_status tutti_engine_open(tutti_engine **out, tutti_model *model,
                                    const struct tutti_engine_options *options, struct tutti_error *err)
{
    (void)model, (void)err;
    struct tutti_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return TUTTI_E_MEMORY;
    engine->max_queue = options->max_queue ? options->max_queue : MAX_REQUESTS;
    pthread_mutex_init(&engine->lock, NULL);
    if (pthread_create(&engine->thread, NULL, run, engine)) {
        free(engine);
        return TUTTI_E_MEMORY;
    }
    *out = engine;
    return TUTTI_OK;
}

void tutti_engine_charge(tutti_engine *engine, uint64_t owner, int64_t n_tokens)
{
    (void)engine, (void)owner, (void)n_tokens;
}

void tutti_engine_drain(tutti_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->draining = true;
    pthread_mutex_unlock(&engine->lock);
}

void tutti_engine_close(tutti_engine *engine)
{
    if (!engine)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    for (int i = 0; i < MAX_REQUESTS; i++)
        engine->requests[i].cancelled = true;
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void tutti_engine_device(tutti_engine *engine, struct tutti_device *out)
{
    (void)engine;
    *out = (struct tutti_device){ 0 };
}

void tutti_engine_stats(tutti_engine *engine, struct tutti_stats *out)
{
    pthread_mutex_lock(&engine->lock);
    *out = engine->stats;
    uint64_t n_used = 0;
    for (int i = 0; i < MAX_REQUESTS; i++)
        n_used += engine->requests[i].used;
    pthread_mutex_unlock(&engine->lock);
    out->n_running = n_used;
    out->is_full = n_used == MAX_REQUESTS || n_used >= (uint64_t)engine->max_queue;
    out->kv_pages_total = N_PAGES;
    out->kv_pages_used = n_used;
    out->kv_pages_free = N_PAGES - n_used;
    out->kv_page_tokens = PAGE_TOKENS;
    out->has_prefix_cache = true;
    out->max_context = MAX_CONTEXT;
}
