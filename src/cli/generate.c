/* tutti generate: prints the answer to one prompt as it is generated, or to a file of prompts as
 * one batch. */
#include "base/files/prompt_file.h"
#include "cli/chat/answer_text.h"
#include "cli/chat/attachment.h"
#include "cli/chat/prompt.h"
#include "cli/chat/thinking.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/input.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "server/json.h"
#include "server/openai/batch.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As in enum tutti_early_stopping. */
static const char *const EARLY_STOPPING[] = { "false", "true", "never", NULL };

/* As in enum tutti_embedding. */
static const char *const EMBEDDINGS[] = { "none", "mean", "last", "cls", NULL };

struct generate_values {
    struct option_texts prompt;
    struct option_texts attach;
    const char *file, *system, *system_file, *grammar, *json_schema, *batch, *adapter;
    enum tutti_early_stopping early_stopping;
    enum tutti_embedding embedding;
    bool chat, parse_special, json, no_kv_cache;
    int beams, best, dp;
    double length_penalty;
    struct thinking_flags thinking;
    struct sampling_flags sampling;
    struct session_flags session;
};

#define VALUES struct generate_values
static const struct option OPTIONS[] = {
    TEXTS_OPTION(VALUES, prompt, "prompt", "TEXT",
                 "the prompt; - reads it from standard input. Several are answered as one batch",
                 .letter = 'p', .may_be_empty = true),
    TEXT_OPTION(VALUES, file, "file", "FILE",
                "answer all prompts of the file as one batch: one per line, or JSON Lines with {\"prompt\": "
                "TEXT} or {\"messages\": [...]} and optionally \"max_tokens\"; - is standard input",
                .letter = 'f'),
    TEXT_OPTION(
        VALUES, batch, "batch", "FILE",
        "answer all requests of the file, in the format of OpenAI's Batch API: one per line, "
        "{\"custom_id\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\"}; also "
        "/v1/completions, /v1/embeddings, /v1/responses and /v1/rerank; - is standard input. A line with the "
        "response is printed for each as it ends. Settings of an answer are fields of its request: "
        "flags for them, such as --temperature or --grammar, are refused"),
    ENUM_OPTION(VALUES, embedding, "embedding", "KIND", EMBEDDINGS,
                "print an embedding of each prompt instead of an answer, as a JSON list: the mean of its "
                "tokens' hidden states, or that of the last or the first token (cls), normalized to length 1",
                .initial = "none"),
    FLAG_OPTION(VALUES, parse_special, "parse-special",
                "parse special tokens in prompts, for prompts written with the markers of a chat format; "
                "without it, and in messages, they are plain text"),
    FLAG_OPTION(VALUES, chat, "chat", "send the prompt as a user message, in the model's chat format"),
    TEXT_OPTION(VALUES, system, "system", "TEXT", "with --chat: a system message before the prompt",
                .needs = "chat"),
    TEXT_OPTION(VALUES, system_file, "system-file", "PATH",
                "with --chat: read the system message from a file; - is standard input", .needs = "chat"),
    TEXTS_OPTION(
        VALUES, attach, "attach", "PATH",
        "with --chat: put a text file before each prompt, its name before it, as tutti chat --file does; "
        "- is standard input",
        .needs = "chat"),
    TEXT_OPTION(VALUES, grammar, "grammar", "FILE",
                "constrain the answer by the grammar in the file, in llama.cpp's GBNF; - is standard input"),
    TEXT_OPTION(VALUES, json_schema, "json-schema", "FILE",
                "constrain the answer by the JSON Schema in the file; - is standard input"),
    INT_OPTION(VALUES, beams, "beams", "N",
               "beam search: keep the N most probable answers instead of sampling one; the result is printed "
               "at the end",
               .min = 1, .max = 64, .initial = "1"),
    INT_OPTION(VALUES, best, "best", "N", "with --beams: print the N best answers to each prompt", .min = 1,
               .max = 64, .initial = "1", .needs = "beams"),
    FLOAT_OPTION(VALUES, length_penalty, "length-penalty", "X",
                 "with --beams: length penalty: answers are scored by the sum of log-probabilities / "
                 "length^X, so a larger X favours long ones",
                 .min = -100, .max = 100, .initial = "1", .needs = "beams"),
    ENUM_OPTION(VALUES, early_stopping, "early-stopping", "WHEN", EARLY_STOPPING,
                "with --beams: when N answers have ended, true ends the search, false ends it when no beam "
                "is likely to become better, never when none can",
                .initial = "false", .needs = "beams"),
    FLAG_OPTION(VALUES, no_kv_cache, "no-kv-cache",
                "recompute every token from the beginning, for checking: the answer is the same"),
    FLAG_OPTION(VALUES, json, "json",
                "print one JSON object per line for each answer, in the order in which they end: index, "
                "text, finish_reason, usage; with --thinking show also reasoning_content"),
    INT_OPTION(VALUES, dp, "dp", "N",
               "divide the prompts evenly over N replicas of the model, each on --tp of the processes that "
               "mpirun started; the answers come in the order of the prompts, also with --json",
               .min = 1, .max = LIMIT_RANKS, .initial = "1"),
    TEXT_OPTION(VALUES, adapter, "adapter", "NAME",
                "adapter to answer with: one given by --lora, or none; without it, the first"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Thinking", THINKING_OPTIONS, offsetof(VALUES, thinking) },
    { "Answer", SAMPLING_OPTIONS, offsetof(VALUES, sampling) },
    SESSION_GROUPS(VALUES, session),
    { .title = NULL },
};

struct prompt_answer {
    struct batch *batch;
    struct answer_text parts; /* its text was not printed yet */
    uint64_t request_id;
    bool is_running, is_done, lost_text;
    bool is_in_thinking; /* the last text that was printed is thinking */
    const char *form;    /* how its thinking is marked; NULL: it has none */
    enum tutti_finish finish;
    struct tutti_error error;
    struct tutti_event last; /* for its counts; its pointers are not valid */
};

struct batch {
    const struct generate_values *values;
    tutti_engine *engine;
    struct prompt_file prompts;    /* of all replicas */
    size_t first, n;               /* range of this replica */
    bool is_ordered;               /* JSON too is printed in the order of the prompts */
    size_t n_choices;              /* answers to each prompt */
    struct prompt_answer *answers; /* [n][n_choices] */
    struct tutti_request request;
    struct tutti_string stops[OPTION_MAX_TEXTS];
    struct buf arguments, system, files; /* of the request; text of --system-file; blocks of --attach */
    const char *reasoning_form;          /* of answers to messages; NULL: the model does not think */
    bool shows_thinking;
    size_t n_submitted; /* prompts */
    size_t n_printed;   /* answers; plain text is printed in the order of the prompts */
    size_t n_failed;
    bool is_stopping;

    pthread_mutex_t mutex; /* guards the answers after submission, and the members below */
    size_t *ended;         /* [n * n_choices]: indices of the answers that ended, in that order */
    size_t n_ended;
};

/* ---- callbacks on the text thread ---- */

static void end_answer(struct prompt_answer *answer)
{
    struct batch *batch = answer->batch;
    answer->is_done = true;
    answer->is_running = false;
    batch->ended[batch->n_ended++] = (size_t)(answer - batch->answers);
}

/* A JSON list; nine digits are what a float needs. */
static bool add_vector(struct buf *out, const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double length = sum > 0 ? sqrt(sum) : 1;
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        ok = buf_printf(out, "%c%.9g", i == 0 ? '[' : ',', (double)(float)((double)x[i] / length));
    return ok && buf_add_string(out, "]");
}

static void generate_on_event(void *user, const struct tutti_event *event)
{
    struct prompt_answer *answer = (struct prompt_answer *)user + event->choice;
    struct batch *batch = answer->batch;
    pthread_mutex_lock(&batch->mutex);
    answer_text_add(&answer->parts, answer->form, event);
    if (answer->parts.is_lost)
        answer->lost_text = true;
    if (!batch->shows_thinking)
        buf_clear(&answer->parts.thinking);
    if (event->embedding && !add_vector(&answer->parts.text, event->embedding, event->n_embedding))
        answer->lost_text = true;
    if (event->finish != TUTTI_FINISH_NONE) {
        answer->finish = event->finish;
        answer->error = event->error;
    }
    answer->last = *event;
    if (event->finish != TUTTI_FINISH_NONE)
        end_answer(answer);
    pthread_mutex_unlock(&batch->mutex);
    interrupt_wake();
}

/* ---- submitting ---- */

static struct tutti_message message_of(const json_t *value)
{
    const json_t *content = json_object_get(value, "content");
    return (struct tutti_message){ .role = json_string_value(json_object_get(value, "role")),
                                   .content = json_string_value(content),
                                   .n_bytes = json_string_length(content),
                                   .name = json_string_value(json_object_get(value, "name")) };
}

static enum tutti_status submit(struct batch *batch, size_t index, struct tutti_error *err)
{
    const struct file_prompt *prompt = &batch->prompts.list[batch->first + index];
    size_t n_messages = 0, n_own = json_array_size(prompt->messages);
    struct tutti_message *messages = calloc(n_own + 2, sizeof *messages);
    struct tutti_request request = batch->request;
    const char *system = batch->values->system_file ? batch->system.bytes : batch->values->system;
    struct buf question = { 0 }; /* with the attached files */
    if (!messages || (batch->files.n_bytes > 0 && prompt->text &&
                      (!buf_add(&question, batch->files.bytes, batch->files.n_bytes) ||
                       !buf_add(&question, prompt->text, prompt->n_bytes)))) {
        free(messages);
        buf_clear(&question);
        return error_out_of_memory("the prompt", err);
    }
    for (; n_messages < n_own; n_messages++)
        messages[n_messages] = message_of(json_array_get(prompt->messages, n_messages));
    if (prompt->text && batch->values->chat) {
        if (system)
            messages[n_messages++] = (struct tutti_message){ "system", system, strlen(system), NULL };
        messages[n_messages] = (struct tutti_message){ "user", prompt->text, prompt->n_bytes, NULL };
        if (question.n_bytes > 0) {
            messages[n_messages].content = question.bytes;
            messages[n_messages].n_bytes = question.n_bytes;
        }
        n_messages++;
    } else if (prompt->text) {
        request.text = prompt->text;
        request.parse_special = batch->values->parse_special;
        request.n_text_bytes = prompt->n_bytes;
    }
    if (n_messages > 0)
        request.messages = messages;
    request.n_messages = n_messages;
    if (prompt->max_tokens > 0)
        request.max_tokens = prompt->max_tokens;
    struct prompt_answer *first = &batch->answers[index * batch->n_choices];
    for (size_t i = 0; i < batch->n_choices; i++)
        first[i].form = n_messages > 0 ? batch->reasoning_form : NULL;
    enum tutti_status st = tutti_engine_submit(batch->engine, &request, generate_on_event, first,
                                               &first->request_id, err);
    free(messages);
    buf_clear(&question);
    return st;
}

/* Submits until all are submitted or the queue is full; then the caller waits for an answer to
 * end. */
static void submit_more(struct batch *batch)
{
    while (batch->n_submitted < batch->n) {
        struct prompt_answer *answers = &batch->answers[batch->n_submitted * batch->n_choices];
        struct tutti_error err = { 0 };
        pthread_mutex_lock(&batch->mutex);
        size_t n_running = batch->n_submitted * batch->n_choices - batch->n_ended;
        for (size_t i = 0; i < batch->n_choices; i++)
            answers[i].is_running = true; /* before the first event */
        pthread_mutex_unlock(&batch->mutex);
        enum tutti_status st = submit(batch, batch->n_submitted, &err);
        if (st == TUTTI_E_BUSY && n_running > 0) {
            for (size_t i = 0; i < batch->n_choices; i++)
                answers[i].is_running = false;
            return;
        }
        batch->n_submitted++;
        if (st == TUTTI_OK)
            continue;
        pthread_mutex_lock(&batch->mutex);
        for (size_t i = 0; i < batch->n_choices; i++) {
            answers[i].finish = TUTTI_FINISH_ERROR;
            answers[i].error = err;
            end_answer(&answers[i]);
        }
        pthread_mutex_unlock(&batch->mutex);
    }
}

static void stop_all(struct batch *batch)
{
    batch->is_stopping = true;
    for (size_t i = 0; i < batch->n_submitted; i++) {
        pthread_mutex_lock(&batch->mutex);
        bool is_running = false;
        const struct prompt_answer *answers = &batch->answers[i * batch->n_choices];
        for (size_t k = 0; k < batch->n_choices; k++)
            is_running = is_running || answers[k].is_running;
        pthread_mutex_unlock(&batch->mutex);
        if (is_running)
            tutti_engine_cancel(batch->engine, answers->request_id);
    }
}

/* ---- printing ---- */

static const char *const FINISH_NAMES[] = {
    [TUTTI_FINISH_NONE] = "none",           [TUTTI_FINISH_STOP] = "stop",   [TUTTI_FINISH_LENGTH] = "length",
    [TUTTI_FINISH_CANCELLED] = "cancelled", [TUTTI_FINISH_ERROR] = "error",
};

static void print_answers_json(const struct prompt_answer *answer, size_t index, size_t choice)
{
    const struct tutti_event *last = &answer->last;
    size_t n_prompt = last->n_prompt_tokens, n_generated = last->n_generated_tokens;
    bool is_beam = answer->batch->values->beams > 1;
    const struct buf *text = &answer->parts.text, *thinking = &answer->parts.thinking;
    json_t *error = NULL;
    if (answer->finish == TUTTI_FINISH_ERROR)
        error = json_pack("{s:s, s:o}", "type", tutti_status_name(answer->error.status), "message",
                          json_text(answer->error.text, strlen(answer->error.text)));
    json_t *object = json_pack(
        "{s:I, s:s%, s:s, s:{s:I, s:I, s:I, s:{s:I}, s:{s:I, s:I}}, s:o*, s:o*, s:o*, s:o*}", "index",
        (json_int_t)index, "text", text->bytes ? text->bytes : "", text->n_bytes, "finish_reason",
        FINISH_NAMES[answer->finish], "usage", "prompt_tokens", (json_int_t)n_prompt, "completion_tokens",
        (json_int_t)n_generated, "total_tokens", (json_int_t)n_prompt + (json_int_t)n_generated,
        "prompt_tokens_details", "cached_tokens", (json_int_t)last->n_cached_tokens,
        "completion_tokens_details", "accepted_prediction_tokens", (json_int_t)last->n_accepted_drafts,
        "rejected_prediction_tokens", (json_int_t)last->n_rejected_drafts, "choice",
        is_beam ? json_integer((json_int_t)choice) : NULL, "score",
        is_beam ? json_real((double)last->beam_score) : NULL, "error", error, "reasoning_content",
        thinking->n_bytes > 0 ? json_text(thinking->bytes, thinking->n_bytes) : NULL);
    if (object && answer->batch->request.embedding != TUTTI_EMBEDDING_NONE &&
        answer->finish == TUTTI_FINISH_LENGTH) { /* nothing generated, nothing truncated */
        json_object_del(object, "text");
        json_object_del(object, "finish_reason");
        json_object_set_new(object, "embedding", json_loadb(text->bytes, text->n_bytes, 0, NULL));
    }
    output_json(object, false);
    json_decref(object);
}

/* Whether the answer before it, to the same prompt, has the same error: that of a prompt is printed once. */
static bool repeats_error(struct batch *batch, const struct prompt_answer *answer)
{
    if ((size_t)(answer - batch->answers) % batch->n_choices == 0 || answer->finish != TUTTI_FINISH_ERROR)
        return false;
    pthread_mutex_lock(&batch->mutex);
    bool is_done = answer[-1].is_done;
    pthread_mutex_unlock(&batch->mutex);
    return is_done && answer[-1].finish == TUTTI_FINISH_ERROR &&
           strcmp(answer[-1].error.text, answer->error.text) == 0;
}

static void report_failure(struct batch *batch, const struct prompt_answer *answer)
{
    size_t index = (size_t)(answer - batch->answers) / batch->n_choices;
    if (answer->finish != TUTTI_FINISH_ERROR)
        return;
    batch->n_failed++;
    if (repeats_error(batch, answer))
        return;
    if (batch->prompts.n > 1)
        fprintf(stderr, "tutti: prompt %zu: %s\n", batch->first + index, answer->error.text);
    else
        fprintf(stderr, "tutti: %s\n", answer->error.text);
}

static void mark_lost_text(struct prompt_answer *answer)
{
    if (answer->lost_text && answer->finish != TUTTI_FINISH_ERROR) {
        answer->finish = TUTTI_FINISH_ERROR;
        error_set(&answer->error, TUTTI_E_MEMORY, "out of memory for the answer's text");
    }
}

/* Prints new text of the first incomplete answer; false: nothing more to print now. */
static bool print_text(struct batch *batch)
{
    if (batch->n_printed == batch->n_submitted * batch->n_choices)
        return false;
    struct prompt_answer *answer = &batch->answers[batch->n_printed];
    pthread_mutex_lock(&batch->mutex);
    struct buf text = answer->parts.text; /* the text thread must not wait for slow output */
    struct buf thinking = answer->parts.thinking;
    answer->parts.text = answer->parts.thinking = (struct buf){ 0 };
    size_t n_thinking = answer->parts.n_thinking_tokens;
    bool is_done = answer->is_done;
    pthread_mutex_unlock(&batch->mutex);
    thinking_print(&answer->is_in_thinking, thinking.bytes, thinking.n_bytes);
    if (text.n_bytes > 0 || is_done)
        thinking_end(&answer->is_in_thinking, n_thinking);
    output_write(text.bytes, text.n_bytes);
    buf_clear(&text);
    buf_clear(&thinking);
    if (!is_done)
        return false;
    mark_lost_text(answer);
    if (!repeats_error(batch, answer))
        output_write("\n", 1);
    report_failure(batch, answer);
    batch->n_printed++;
    return true;
}

static bool print_ended(struct batch *batch)
{
    pthread_mutex_lock(&batch->mutex);
    bool has_ended = batch->n_printed < batch->n_ended;
    size_t index = has_ended ? batch->ended[batch->n_printed] : 0;
    if (has_ended && batch->is_ordered) {
        index = batch->n_printed;
        has_ended = batch->answers[index].is_done;
    }
    pthread_mutex_unlock(&batch->mutex);
    if (!has_ended)
        return false;
    struct prompt_answer *answer = &batch->answers[index]; /* ended: no other thread uses it */
    mark_lost_text(answer);
    print_answers_json(answer, batch->first + index / batch->n_choices, index % batch->n_choices);
    report_failure(batch, answer);
    answer_text_clear(&answer->parts);
    batch->n_printed++;
    return true;
}

static bool all_ended(struct batch *batch)
{
    pthread_mutex_lock(&batch->mutex);
    bool all = batch->n_ended == (batch->is_stopping ? batch->n_submitted : batch->n) * batch->n_choices;
    pthread_mutex_unlock(&batch->mutex);
    return all;
}

static enum tutti_status run_batch(struct batch *batch, struct tutti_error *err)
{
    struct progress progress;
    enum tutti_status st = TUTTI_OK;
    bool is_json = batch->values->json, is_interrupted = false;
    progress_begin(&progress, "answering", PROGRESS_STEPS);
    if (isatty(STDOUT_FILENO) || batch->prompts.n == 1)
        progress.is_terminal = false; /* the printed answers show the progress */
    st = interrupt_catch(err);
    if (st != TUTTI_OK)
        return st;
    for (bool is_over = false; !is_over;) {
        if (!batch->is_stopping)
            submit_more(batch);
        is_over = all_ended(batch);
        while (is_json ? print_ended(batch) : print_text(batch))
            ;
        st = output_flush(err);
        progress_update(&progress, batch->n_printed, batch->n * batch->n_choices);
        if (interrupt_taken() != 0) {
            is_interrupted = true;
            interrupt_restore(); /* a second one ends the program at once */
        }
        if ((is_interrupted || st != TUTTI_OK) && !batch->is_stopping)
            stop_all(batch);
        else if (!is_over)
            interrupt_wait();
    }
    interrupt_restore();
    progress_end(&progress);
    if (st == TUTTI_OK && is_interrupted)
        st = TUTTI_E_CANCELLED;
    if (st == TUTTI_OK && batch->n_failed > 0) /* each was reported */
        st = error_set(err, TUTTI_E_INTERNAL, "%s", "");
    return st;
}

/* ---- starting ---- */

static bool is_input(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

/* How many options read standard input, which can be read once. */
static int n_input_uses(const struct generate_values *values)
{
    int n = is_input(values->file) + is_input(values->grammar) + is_input(values->json_schema) +
            is_input(values->system_file);
    for (int i = 0; i < values->prompt.n; i++)
        n += is_input(values->prompt.texts[i]);
    for (int i = 0; i < values->attach.n; i++)
        n += is_input(values->attach.texts[i]);
    return n;
}

static bool reads_input(const struct generate_values *values)
{
    return n_input_uses(values) > 0;
}

/* Divides the prompts evenly: the replicas wait for each other at the end. */
static enum tutti_status take_share(struct batch *batch, const tutti_ranks *ranks, struct tutti_error *err)
{
    size_t n = batch->prompts.n, n_replicas = (size_t)batch->values->dp;
    if (n % n_replicas != 0)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "dp",
            "%zu prompt%s cannot be shared out evenly over %zu replicas (--dp): leave %zu out, or "
            "add %zu",
            n, n == 1 ? "" : "s", n_replicas, n % n_replicas, n_replicas - n % n_replicas);
    batch->n = n / n_replicas;
    batch->first = (size_t)tutti_ranks_group(ranks) * batch->n;
    batch->is_ordered = n_replicas > 1;
    return TUTTI_OK;
}

static enum tutti_status read_file(struct prompt_file *out, const char *path, struct tutti_error *err)
{
    enum tutti_status st = input_read(&out->bytes, path, err);
    return st == TUTTI_OK ? prompt_file_read(out, input_name(path), PROMPTS_TO_RUN, err) : st;
}

/* Refuses options that have no effect on embeddings. */
static enum tutti_status check_embedding(const struct generate_values *values, struct tutti_error *err)
{
    static const char *const ALLOWED[] = { "prompt", "file",   "embedding",   "parse-special",
                                           "chat",   "system", "system-file", "attach",
                                           "json",   "dp",     "adapter",     NULL };
    static const char *const NONE[] = { NULL };
    const struct option *o = options_first_given(OPTIONS, values, 0, ALLOWED);
    if (!o)
        o = options_first_given(SAMPLING_OPTIONS, values, offsetof(VALUES, sampling), NONE);
    if (!o)
        o = options_first_given(THINKING_OPTIONS, values, offsetof(VALUES, thinking), NONE);
    if (!o)
        o = options_first_given(DRAFT_OPTIONS, values, offsetof(VALUES, session.draft), NONE);
    if (!o && values->session.engine.max_lookup_tokens > 0)
        o = options_find(ENGINE_OPTIONS, "speculate");
    if (!o)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, o->name,
                           "--%s has no effect with --embedding, which generates no answer", o->name);
}

static enum tutti_status check_flags(const struct generate_values *values, struct tutti_error *err)
{
    if ((values->prompt.n > 0) + !!values->file != 1)
        return error_set(err, TUTTI_E_ARGUMENT, "expected either --prompt TEXT, --file FILE or --batch FILE");
    if (values->best > values->beams)
        return error_set(err, TUTTI_E_ARGUMENT, "--best %d: --beams %d has no more answers", values->best,
                         values->beams);
    if (values->beams == 1 && (values->length_penalty != 1 || values->early_stopping != 0))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "beams",
            "--length-penalty and --early-stopping have no effect with --beams 1: expected "
            "more than one beam");
    if (values->parse_special && values->chat)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--parse-special: with --chat a prompt is a message, which stays text");
    if (values->system && values->system_file)
        return error_set_param(err, TUTTI_E_ARGUMENT, "system-file",
                               "--system-file: takes the place of --system, found both");
    if (n_input_uses(values) > 1)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "-: standard input can be read once, found %d options that read it",
                         n_input_uses(values));
    if (values->dp > 1 && reads_input(values))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "dp",
            "--dp %d: every replica reads the prompts, but standard input goes to only one of them: "
            "expected a file",
            values->dp);
    return values->embedding != TUTTI_EMBEDDING_NONE ? check_embedding(values, err) : TUTTI_OK;
}

/* Refuses options that have no effect on any of these prompts. */
static enum tutti_status check_prompts(const struct generate_values *values,
                                       const struct prompt_file *prompts, struct tutti_error *err)
{
    static const char *const NONE[] = { NULL };
    bool has_text = false, has_messages = values->chat;
    for (size_t i = 0; i < prompts->n; i++) {
        has_text = has_text || prompts->list[i].text;
        has_messages = has_messages || prompts->list[i].messages;
    }
    const struct option *o = has_messages ? NULL
                                          : options_first_given(THINKING_OPTIONS, values,
                                                                offsetof(VALUES, thinking), NONE);
    if (!o && !has_messages && values->session.model.options.chat_format)
        o = options_find(CHAT_FORMAT_OPTIONS, "chat-format");
    if (o)
        return error_set_param(err, TUTTI_E_ARGUMENT, o->name, "--%s has no effect without --chat", o->name);
    if (!has_text && (values->chat || values->parse_special))
        return error_set_param(err, TUTTI_E_ARGUMENT, "chat",
                               "--%s has no effect: every prompt of %s has messages already",
                               values->chat ? "chat" : "parse-special", input_name(values->file));
    return TUTTI_OK;
}

static enum tutti_status read_prompts(const struct generate_values *values, struct prompt_file *out,
                                      struct tutti_error *err)
{
    if ((values->prompt.n > 0) + !!values->file != 1)
        return error_set(err, TUTTI_E_ARGUMENT, "expected either --prompt TEXT, --file FILE or --batch FILE");
    if (values->file)
        return read_file(out, values->file, err);
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < values->prompt.n && st == TUTTI_OK; i++) {
        const char *prompt = values->prompt.texts[i];
        if (strcmp(prompt, "-") != 0) {
            st = prompt_file_add(out, prompt, strlen(prompt), err);
            continue;
        }
        st = input_read(&out->bytes, "-", err);
        if (st == TUTTI_OK)
            st = prompt_file_add(out, out->bytes.bytes, out->bytes.n_bytes, err);
    }
    return st;
}

static void apply_search(const struct generate_values *values, struct tutti_request *request)
{
    request->embedding = values->embedding;
    request->no_kv_cache = values->no_kv_cache;
    request->n_beams = values->beams;
    request->n_choices = values->best;
    request->length_penalty = values->length_penalty;
    request->early_stopping = values->early_stopping;
}

/* text: storage that the request points to. */
static enum tutti_status read_grammar(const struct generate_values *values, struct buf *text,
                                      struct tutti_request *request, struct tutti_error *err)
{
    const char *path = values->grammar ? values->grammar : values->json_schema;
    if (!path)
        return TUTTI_OK;
    if (values->grammar && values->json_schema)
        return error_set(err, TUTTI_E_ARGUMENT, "--grammar and --json-schema cannot go together");
    enum tutti_status st = input_read(text, path, err);
    if (st == TUTTI_OK && text->n_bytes == 0)
        st = error_set(err, TUTTI_E_ARGUMENT, "%s is empty", input_name(path));
    request->grammar_kind = values->grammar ? TUTTI_GRAMMAR_GBNF : TUTTI_GRAMMAR_JSON_SCHEMA;
    request->grammar = text->bytes;
    request->n_grammar_bytes = text->n_bytes;
    return st;
}

/* Reads --system-file and the attached files, and checks that the model can express them within its context. */
static enum tutti_status read_files(struct batch *batch, const tutti_model *model, struct tutti_error *err)
{
    const struct generate_values *values = batch->values;
    struct tutti_message messages[2] = { { .role = "system" }, { .role = "user" } };
    struct tutti_stats stats;
    size_t n_tokens = 0;
    enum tutti_status st = TUTTI_OK;
    tutti_engine_stats(batch->engine, &stats);
    size_t max_bytes = attachment_max_bytes(stats.max_context);
    if (values->system_file)
        st = system_file_read(&batch->system, values->system_file, max_bytes, err);
    const char *system = values->system_file ? batch->system.bytes : values->system;
    if (st == TUTTI_OK && system)
        st = prompt_check_system(model, system, err);
    messages[0].content = system;
    messages[0].n_bytes = system ? strlen(system) : 0;
    for (int i = 0; i < values->attach.n && st == TUTTI_OK; i++) {
        const char *path = values->attach.texts[i];
        st = attachment_read(&batch->files, path, max_bytes, err);
        messages[1].content = batch->files.bytes;
        messages[1].n_bytes = batch->files.n_bytes;
        if (st == TUTTI_OK)
            st = prompt_length(&n_tokens, model, system ? messages : messages + 1, system ? 2 : 1, NULL, err);
        if (st == TUTTI_OK && n_tokens >= (size_t)stats.max_context)
            st = error_set(err, TUTTI_E_LIMIT,
                           "%s: with this file the prompt has %zu tokens, but the context has %d",
                           input_name(path), n_tokens, stats.max_context);
    }
    return st;
}

/* Makes the request of the flags, for this model. */
static enum tutti_status make_request(struct batch *batch, const tutti_model *model, struct tutti_error *err)
{
    const struct generate_values *values = batch->values;
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    sampling_flags_apply(&values->sampling, model, batch->stops, &batch->request);
    apply_search(values, &batch->request);
    enum tutti_status st = sampling_flags_check(&values->sampling, &batch->request, err);
    if (st == TUTTI_OK && values->embedding == TUTTI_EMBEDDING_NONE && info.has_chat)
        st = thinking_flags_apply(&values->thinking, model, &batch->arguments, &batch->request, err);
    batch->reasoning_form = batch->request.shows_marks ? info.reasoning_form : NULL;
    batch->shows_thinking = values->thinking.thinking && strcmp(values->thinking.thinking, "show") == 0;
    return st == TUTTI_OK ? read_files(batch, model, err) : st;
}

/* Receives a replica's status and the output that replica 0 prints for it. */
static void take_part(void *user, int replica, const void *bytes, size_t n_bytes)
{
    enum tutti_status *worst = user, theirs;
    (void)replica;
    memcpy(&theirs, bytes, sizeof theirs);
    output_write((const char *)bytes + sizeof theirs, n_bytes - sizeof theirs);
    *worst = *worst == TUTTI_OK ? theirs : *worst;
}

/* st: of this replica's part. On failure this process ends, and the others are notified. */
static enum tutti_status bring_together(tutti_ranks *ranks, enum tutti_status st, struct buf *part,
                                        struct tutti_error *err)
{
    if (st != TUTTI_OK && st != TUTTI_E_CANCELLED && err->text[0] != '\0')
        return st;
    memcpy(part->bytes, &st, sizeof st);
    enum tutti_status collected = tutti_ranks_collect(ranks, part->bytes, part->n_bytes, take_part, &st, err);
    if (collected != TUTTI_OK)
        return collected;
    if (tutti_ranks_group(ranks) > 0)
        return TUTTI_OK; /* replica 0 reports the error */
    collected = output_flush(err);
    if (collected == TUTTI_OK && st == TUTTI_E_INTERNAL)
        return error_set(err, st, "%s", ""); /* each was reported by its replica */
    return collected == TUTTI_OK ? st : collected;
}

static void drop_part(void *user, int group, const void *bytes, size_t n_bytes)
{
    (void)user;
    (void)group;
    (void)bytes;
    (void)n_bytes;
}

/* Every replica refuses the same prompts with st. Only replica 0 reports it, once the others have come here too: a launcher
 * ends all processes with the first that fails. */
static enum tutti_status refuse_together(tutti_ranks *ranks, enum tutti_status st)
{
    struct tutti_error lost = { 0 };
    enum tutti_status collected = tutti_ranks_collect(ranks, &st, sizeof st, drop_part, NULL, &lost);
    return collected == TUTTI_OK && tutti_ranks_group(ranks) > 0 ? TUTTI_OK : st;
}

static enum tutti_status answer_all(struct batch *batch, const char *path, tutti_ranks *ranks,
                                    struct tutti_error *err)
{
    const struct generate_values *values = batch->values;
    size_t n = batch->n * batch->n_choices, n_seqs = batch->n * (size_t)values->beams;
    struct session session = { 0 };
    struct buf part = { 0 };
    enum tutti_status none = TUTTI_OK;
    assert(n > 0); /* at least one answer to at least one prompt */
    batch->answers = calloc(n, sizeof *batch->answers);
    batch->ended = calloc(n, sizeof *batch->ended);
    if (!batch->answers || !batch->ended || !buf_add(&part, &none, sizeof none)) {
        buf_clear(&part);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for %zu prompts", n);
    }
    for (size_t i = 0; i < n; i++)
        batch->answers[i].batch = batch;
    enum tutti_status st = session_open_model(&session, &values->session, ranks, path, err);
    if (st == TUTTI_OK)
        st = adapter_flags_choose(values->adapter, session.model, &batch->request.adapter, err);
    if (st == TUTTI_OK)
        st = session_open_engine(&session, &values->session, n_seqs < INT32_MAX ? (int)n_seqs : INT32_MAX,
                                 err);
    if (st != TUTTI_OK)
        goto done;
    batch->engine = session.engine;
    st = make_request(batch, session.model, err);
    if (st != TUTTI_OK)
        goto done;
    if (tutti_ranks_group(ranks) > 0)
        output_keep(&part);
    st = run_batch(batch, err);
    tutti_engine_close(session.engine);
    session.engine = NULL;
    if (values->dp > 1)
        st = bring_together(ranks, st, &part, err);
done:
    output_keep(NULL);
    session_close(&session);
    buf_clear(&part);
    return st;
}

/* ---- batch files ---- */

static bool write_line(void *user, const char *line, size_t n_bytes)
{
    output_write(line, n_bytes);
    return output_flush(user) == TUTTI_OK;
}

/* With --batch each request has its own settings: refuses options that would have no effect. */
static enum tutti_status check_batch(const struct generate_values *values, struct tutti_error *err)
{
    static const char *const ALLOWED[] = { "batch", "embedding", NULL }, *const NONE[] = { NULL };
    const struct option *o = options_first_given(OPTIONS, values, 0, ALLOWED);
    if (!o)
        o = options_first_given(SAMPLING_OPTIONS, values, offsetof(VALUES, sampling), NONE);
    if (!o)
        o = options_first_given(THINKING_OPTIONS, values, offsetof(VALUES, thinking), NONE);
    if (!o)
        return TUTTI_OK;
    return error_set_param(
        err, TUTTI_E_ARGUMENT, o->name,
        "--%s has no effect with --batch: the requests of its file have all settings in their \"body\" "
        "(docs/http-api.md)",
        o->name);
}

static enum tutti_status answer_requests(const struct generate_values *values, const char *path,
                                         tutti_ranks *ranks, struct tutti_error *err)
{
    struct session session = { 0 };
    struct buf lines = { 0 };
    struct tutti_error write_error = { 0 };
    struct server_batch batch = { .write = write_line, .user = &write_error };
    enum tutti_status st = input_read(&lines, values->batch, err);
    if (st == TUTTI_OK)
        st = session_open_model(&session, &values->session, ranks, path, err);
    if (st == TUTTI_OK)
        st = session_open_engine(&session, &values->session, 0, err);
    batch.lines = lines.bytes ? lines.bytes : "";
    batch.n_bytes = lines.n_bytes;
    batch.embedding = values->embedding;
    if (st == TUTTI_OK)
        st = server_batch_run(&batch, session.engine, session.model, err);
    if (write_error.status != TUTTI_OK)
        *err = write_error;
    if (st == TUTTI_OK && batch.n_failed > 0)
        st = error_set(err, TUTTI_E_INTERNAL,
                       "%zu of %zu requests failed; their response lines have the errors", batch.n_failed,
                       batch.n_failed + batch.n_ok);
    session_close(&session);
    buf_clear(&lines);
    return st;
}

static enum tutti_status run_generate(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct generate_values *values = v;
    struct batch batch = { .values = values, .mutex = PTHREAD_MUTEX_INITIALIZER };
    struct model_flags model = values->session.model;
    tutti_ranks *ranks = NULL;
    bool is_done;
    struct buf grammar = { 0 };
    model.n_replicas = values->dp;
    enum tutti_status st = values->batch ? check_batch(values, err) : TUTTI_OK;
    if (st != TUTTI_OK)
        return st;
    st = model_flags_join(&model, &values->session.adapters, &values->session.draft, operands[0], &ranks,
                          &is_done, err);
    if (st != TUTTI_OK || is_done)
        return st;
    if (values->batch) {
        st = answer_requests(values, operands[0], ranks, err);
        tutti_ranks_close(ranks);
        return st;
    }
    st = check_flags(values, err);
    if (st == TUTTI_OK)
        st = read_prompts(values, &batch.prompts, err);
    if (st == TUTTI_OK)
        st = check_prompts(values, &batch.prompts, err);
    if (st == TUTTI_OK)
        st = read_grammar(values, &grammar, &batch.request, err);
    if (st == TUTTI_OK)
        st = take_share(&batch, ranks, err);
    batch.n_choices = (size_t)values->best;
    if (st == TUTTI_OK)
        st = answer_all(&batch, operands[0], ranks, err);
    else if (st == TUTTI_E_ARGUMENT && values->dp > 1)
        st = refuse_together(ranks, st);
    tutti_ranks_close(ranks);
    for (size_t i = 0; batch.answers && i < batch.n * batch.n_choices; i++)
        answer_text_clear(&batch.answers[i].parts);
    free(batch.ended);
    free(batch.answers);
    prompt_file_clear(&batch.prompts);
    buf_clear(&grammar);
    buf_clear(&batch.arguments);
    buf_clear(&batch.system);
    buf_clear(&batch.files);
    return st;
}

const struct command COMMAND_GENERATE = {
    .name = "generate",
    .summary = "generate the answer to a prompt, or to a file of prompts",
    .about = "Writes the model's answer to standard output while it is generated. A file of prompts "
             "runs as one batch: the answers are printed in the order of the prompts, each followed "
             "by a line break, or as JSON Lines as they end. Index 0 is the first prompt.",
    .example = "tutti generate models/demo --chat -p \"What is the capital of France?\"\n"
               "tutti generate models/demo --chat -f questions.txt --json --temperature 0 > answers.jsonl\n"
               "tutti generate models/demo --batch requests.jsonl > responses.jsonl\n"
               "mpirun -n 4 tutti generate models/demo --dp 4 --chat -f questions.txt > answers.txt",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct generate_values),
    .run = run_generate,
};
