/* Answers of tutti chat: requested, printed while they arrive, kept in the conversation. */
#include "base/utf8.h"
#include "cli/chat/chat.h"
#include "cli/chat/prompt.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void chat_hint(const struct chat *chat, const char *format, ...)
{
    va_list args;
    if (!chat->is_interactive)
        return;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

enum tutti_status chat_failed(const struct chat *chat, struct tutti_error *err)
{
    return chat->is_interactive ? TUTTI_OK : error_set(err, TUTTI_E_INTERNAL, "%s", "");
}

enum tutti_status chat_apply(struct chat *chat, const struct talk *talk, struct tutti_error *err)
{
    enum tutti_status st = thinking_flags_apply(&talk->thinking, chat->model, &chat->arguments,
                                                &chat->request, err);
    if (st == TUTTI_OK)
        sampling_flags_apply(&talk->sampling, chat->model, chat->stops, &chat->request);
    return st;
}

/* ---- receiving ---- */

static void chat_on_event(void *user, const struct tutti_event *event)
{
    struct chat *chat = user;
    pthread_mutex_lock(&chat->mutex);
    answer_text_add(&chat->received, chat->request.shows_marks ? chat->info.reasoning_form : NULL, event);
    chat->last = *event;
    chat->is_done = event->is_last;
    pthread_mutex_unlock(&chat->mutex);
    interrupt_wake();
}

/* Without --thinking, thinking is for people: where the output is no terminal, only the answers are printed. */
static bool shows_thinking(const struct chat *chat)
{
    const char *how = chat->talk.thinking.thinking;
    return how && strcmp(how, "on") != 0 ? strcmp(how, "show") == 0 : chat->is_interactive;
}

static void end_thinking(struct chat *chat, size_t n_tokens)
{
    thinking_end(&chat->is_in_thinking, n_tokens);
    if (chat->is_thinking_hidden) {
        progress_end(&chat->progress);
        chat_hint(chat, "[thought for %zu token%s]", n_tokens, n_tokens == 1 ? "" : "s");
    }
    chat->is_thinking_hidden = false;
}

static void print_thinking(struct chat *chat, const struct buf *text, size_t n_tokens)
{
    char line[64];
    if (text->n_bytes == 0)
        return;
    if (shows_thinking(chat)) {
        thinking_print(&chat->is_in_thinking, text->bytes, text->n_bytes);
        return;
    }
    if (!chat->is_thinking_hidden)
        progress_begin(&chat->progress, "thinking", PROGRESS_TOKENS);
    chat->is_thinking_hidden = true;
    snprintf(line, sizeof line, "[thinking: %zu tokens]", n_tokens);
    progress_draw(&chat->progress, line);
}

/* What was received of an answer so far, and printed. */
struct chat_answer {
    struct buf thinking, text;
    size_t n_thinking_tokens;
    bool is_lost; /* out of memory */
};

static void answer_clear(struct chat_answer *answer)
{
    buf_clear(&answer->thinking);
    buf_clear(&answer->text);
}

/* Moves what has arrived to *answer and prints it. Returns whether that was all. */
static bool print_arrived(struct chat *chat, struct chat_answer *answer)
{
    pthread_mutex_lock(&chat->mutex);
    struct buf thinking = chat->received.thinking, text = chat->received.text;
    size_t n_tokens = chat->received.n_thinking_tokens;
    chat->received.thinking = chat->received.text = (struct buf){ 0 };
    answer->is_lost = answer->is_lost || chat->received.is_lost;
    bool is_done = chat->is_done;
    pthread_mutex_unlock(&chat->mutex);
    answer->n_thinking_tokens = n_tokens;
    print_thinking(chat, &thinking, n_tokens);
    if (text.n_bytes > 0 || is_done)
        end_thinking(chat, n_tokens);
    output_write(text.bytes, text.n_bytes);
    if ((thinking.n_bytes > 0 && !buf_add(&answer->thinking, thinking.bytes, thinking.n_bytes)) ||
        (text.n_bytes > 0 && !buf_add(&answer->text, text.bytes, text.n_bytes)))
        answer->is_lost = true;
    buf_clear(&thinking);
    buf_clear(&text);
    return is_done;
}

/* Prints the answer while it arrives and keeps it in *answer. */
static enum tutti_status receive(struct chat *chat, uint64_t request_id, struct chat_answer *answer,
                                 struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool is_done = false, is_cancelled = false;
    while (!is_done) {
        is_done = print_arrived(chat, answer);
        if (output_flush(st == TUTTI_OK ? err : NULL) != TUTTI_OK)
            st = TUTTI_E_IO;
        int number = interrupt_taken();
        if (number != 0)
            chat->signal_number = number;
        if ((number != 0 || st != TUTTI_OK || answer->is_lost) && !is_cancelled) {
            tutti_engine_cancel(chat->engine, request_id);
            is_cancelled = true;
        }
        if (!is_done)
            interrupt_wait();
    }
    if (st == TUTTI_OK && answer->is_lost)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the answer's text");
    return st;
}

static void show_figures(const struct chat *chat)
{
    const struct tutti_event *last = &chat->last;
    double seconds = (double)(last->total_us - last->ttft_us) / 1e6;
    size_t n = last->n_generated_tokens;
    if (!chat->is_interactive || !isatty(STDERR_FILENO) || n == 0)
        return;
    fprintf(stderr, "[%zu tokens", n);
    if (n > 1 && seconds > 0) /* the first token belongs to prefill */
        fprintf(stderr, ", %.1f tokens/s", (double)(n - 1) / seconds);
    fprintf(stderr, ", first after %.2f s%s]\n", (double)last->ttft_us / 1e6,
            last->finish == TUTTI_FINISH_CANCELLED ? ", stopped"
            : last->finish == TUTTI_FINISH_LENGTH  ? ", cut at its limit"
                                                   : "");
}

/* ---- answers ---- */

static enum tutti_status keep_answer(struct chat *chat, const struct chat_answer *answer,
                                     struct tutti_error *err)
{
    struct talk *talk = &chat->talk;
    enum tutti_status st = talk_add(talk, talk->n, "assistant", answer->text.bytes, answer->text.n_bytes,
                                    err);
    if (st == TUTTI_OK && answer->thinking.n_bytes > 0)
        st = talk_set_thinking(talk, answer->thinking.bytes, answer->thinking.n_bytes, err);
    return st;
}

/* Says why there is no answer, and what to do. A prompt as long as the context is the usual reason. */
static void report_refusal(const struct chat *chat, enum tutti_status st, const struct tutti_error *err)
{
    size_t n_tokens = 0;
    bool is_full = st == TUTTI_E_LIMIT &&
                   prompt_length(&n_tokens, chat->model, chat->talk.messages, chat->talk.n,
                                 chat->request.template_arguments, NULL) == TUTTI_OK &&
                   n_tokens >= (size_t)chat->max_context;
    if (!is_full) {
        fprintf(stderr, "tutti: %s\n", err->text);
        return;
    }
    fprintf(
        stderr,
        "tutti: with this message the conversation has %zu tokens, which leaves no room for an answer in the "
        "context of %d; /undo takes back the last question and its answer, /clear forgets the "
        "conversation%s\n",
        n_tokens, chat->max_context, chat->n_files > 0 ? ", /file none the attached files" : "");
}

enum tutti_status chat_answer(struct chat *chat, bool *is_answered, struct tutti_error *err)
{
    struct chat_answer answer = { 0 };
    uint64_t request_id;
    chat->request.messages = chat->talk.messages;
    chat->request.n_messages = chat->talk.n;
    chat->request.adapter = chat->adapter;
    answer_text_clear(&chat->received);
    chat->is_done = false;
    chat->last = (struct tutti_event){ 0 };
    chat->signal_number = 0;
    *is_answered = false;
    enum tutti_status st = tutti_engine_submit(chat->engine, &chat->request, chat_on_event, chat, &request_id,
                                               err);
    bool is_refused = st != TUTTI_OK;
    if (st == TUTTI_OK)
        st = receive(chat, request_id, &answer, err);
    if (st == TUTTI_OK && chat->last.finish == TUTTI_FINISH_ERROR) {
        is_refused = true;
        *err = chat->last.error;
        st = err->status;
    }
    if (answer.text.n_bytes > 0)
        output_write("\n", 1);
    if (is_refused) {
        report_refusal(chat, st, err);
        st = chat_failed(chat, err);
    } else if (st == TUTTI_OK) {
        st = output_flush(err);
        show_figures(chat);
        *is_answered = st == TUTTI_OK && answer.text.n_bytes + answer.thinking.n_bytes > 0;
        if (*is_answered)
            st = keep_answer(chat, &answer, err);
    }
    answer_clear(&answer);
    return st;
}

enum tutti_status chat_say(struct chat *chat, const char *text, size_t n_bytes, struct tutti_error *err)
{
    struct buf message = { 0 };
    if (!utf8_is_valid(text, n_bytes)) {
        fprintf(stderr, "tutti: the message is not sent: it has bytes that are not UTF-8; convert the input, "
                        "or use a locale with UTF-8\n");
        return chat_failed(chat, err);
    }
    bool is_answered = false,
         ok = chat->files.n_bytes == 0 || buf_add(&message, chat->files.bytes, chat->files.n_bytes);
    ok = ok && buf_add(&message, text, n_bytes);
    enum tutti_status st = ok ? talk_add(&chat->talk, chat->talk.n, "user", message.bytes, message.n_bytes,
                                         err)
                              : error_set(err, TUTTI_E_MEMORY, "out of memory for the message");
    buf_clear(&message);
    if (st != TUTTI_OK)
        return st;
    st = chat_answer(chat, &is_answered, err);
    if (!is_answered) {
        talk_truncate(&chat->talk, chat->talk.n - talk_ends_with(&chat->talk, "user"));
        return st;
    }
    buf_clear(&chat->files);
    chat->n_files = 0;
    return st;
}
