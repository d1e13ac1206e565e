/* tutti chat: one conversation at the terminal. Ctrl-C stops the answer, not the program. */
#include "base/containers/array.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/chat_line.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/output.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_values {
    const char *system, *adapter;
    struct sampling_flags sampling;
    struct session_flags session;
};

static const struct option OPTIONS[] = {
    TEXT_OPTION(struct chat_values, system, "system", "TEXT", "a system message before the conversation"),
    TEXT_OPTION(struct chat_values, adapter, "adapter", "NAME",
                "adapter to answer with: one given by --lora, or none; without it, the first"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Answer", SAMPLING_OPTIONS, offsetof(struct chat_values, sampling) },
    SESSION_GROUPS(struct chat_values, session),
    { .title = NULL },
};

static const char COMMANDS_HELP[] =
    "/reset        forget the conversation\n"
    "/system TEXT  set the system message; without TEXT: remove it\n"
    "/help         show this\n"
    "/quit         end; so does Ctrl-D\n"
    "//TEXT        a message that begins with a slash\n"
    "A backslash at the end of a line continues the message on the next one.\n"
    "Ctrl-C stops an answer.\n";

struct chat {
    struct chat_line *reader;
    tutti_engine *engine;
    struct tutti_request request;
    struct tutti_string stops[OPTION_MAX_TEXTS];
    struct tutti_message *messages; /* the first is the system message, if any; contents are owned */
    size_t n_messages, capacity;
    bool is_interactive;

    pthread_mutex_t mutex; /* guards the answer that is being received */
    struct buf text;       /* not printed yet */
    bool is_done, lost_text;
    struct tutti_event last; /* its pointers are not valid */
};

/* ---- the conversation ---- */

static enum tutti_status chat_add_message(struct chat *chat, size_t index, const char *role, const char *text,
                                          size_t n_bytes, struct tutti_error *err)
{
    char *content = NULL;
    if (array_grow(&chat->messages, chat->n_messages, &chat->capacity, sizeof *chat->messages))
        content = malloc(n_bytes + 1);
    if (!content)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the conversation");
    if (n_bytes > 0)
        memcpy(content, text, n_bytes);
    content[n_bytes] = '\0';
    memmove(&chat->messages[index + 1], &chat->messages[index],
            (chat->n_messages - index) * sizeof *chat->messages);
    chat->messages[index] = (struct tutti_message){ .role = role, .content = content, .n_bytes = n_bytes };
    chat->n_messages++;
    return TUTTI_OK;
}

static void remove_message(struct chat *chat, size_t index)
{
    free((char *)(uintptr_t)chat->messages[index].content);
    chat->n_messages--;
    memmove(&chat->messages[index], &chat->messages[index + 1],
            (chat->n_messages - index) * sizeof *chat->messages);
}

static bool has_system(const struct chat *chat)
{
    return chat->n_messages > 0 && strcmp(chat->messages[0].role, "system") == 0;
}

static enum tutti_status set_system(struct chat *chat, const char *text, struct tutti_error *err)
{
    if (has_system(chat))
        remove_message(chat, 0);
    return *text ? chat_add_message(chat, 0, "system", text, strlen(text), err) : TUTTI_OK;
}

static void reset(struct chat *chat)
{
    size_t kept = has_system(chat);
    while (chat->n_messages > kept)
        remove_message(chat, chat->n_messages - 1);
}

/* ---- one answer ---- */

static void chat_on_event(void *user, const struct tutti_event *event)
{
    struct chat *chat = user;
    pthread_mutex_lock(&chat->mutex);
    if (!buf_add(&chat->text, event->text, event->n_text_bytes))
        chat->lost_text = true;
    chat->last = *event;
    chat->is_done = event->is_last;
    pthread_mutex_unlock(&chat->mutex);
    interrupt_wake();
}

/* Prints the answer while it arrives and keeps it in *answer. *signal_number: the signal that
 * stopped it, or 0. */
static enum tutti_status receive(struct chat *chat, uint64_t request_id, struct buf *answer,
                                 int *signal_number, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool is_done = false, is_cancelled = false;
    *signal_number = 0;
    while (!is_done) {
        pthread_mutex_lock(&chat->mutex);
        struct buf text = chat->text;
        chat->text = (struct buf){ 0 };
        is_done = chat->is_done;
        pthread_mutex_unlock(&chat->mutex);
        output_write(text.bytes, text.n_bytes);
        if (!buf_add(answer, text.bytes, text.n_bytes))
            chat->lost_text = true;
        buf_clear(&text);
        if (output_flush(st == TUTTI_OK ? err : NULL) != TUTTI_OK)
            st = TUTTI_E_IO;
        int number = interrupt_taken();
        if (number != 0)
            *signal_number = number;
        if ((number != 0 || st != TUTTI_OK || chat->lost_text) && !is_cancelled) {
            tutti_engine_cancel(chat->engine, request_id);
            is_cancelled = true;
        }
        if (!is_done)
            interrupt_wait();
    }
    if (st == TUTTI_OK && chat->lost_text)
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

/* Requests the answer to the conversation. If it is refused, prints the reason and removes the
 * last message: the conversation continues. */
static enum tutti_status answer(struct chat *chat, int *signal_number, struct tutti_error *err)
{
    struct buf text = { 0 };
    uint64_t request_id;
    chat->request.messages = chat->messages;
    chat->request.n_messages = chat->n_messages;
    chat->is_done = chat->lost_text = false;
    chat->last = (struct tutti_event){ 0 };
    *signal_number = 0;
    enum tutti_status st = tutti_engine_submit(chat->engine, &chat->request, chat_on_event, chat, &request_id,
                                               err);
    bool is_refused = st != TUTTI_OK;
    if (st == TUTTI_OK)
        st = receive(chat, request_id, &text, signal_number, err);
    if (st == TUTTI_OK && chat->last.finish == TUTTI_FINISH_ERROR) {
        is_refused = true;
        *err = chat->last.error;
        st = err->status;
    }
    if (text.n_bytes > 0)
        output_write("\n", 1);
    if (!is_refused && st == TUTTI_OK) {
        st = output_flush(err);
        show_figures(chat);
        if (st == TUTTI_OK && text.n_bytes == 0) /* stopped before the first word: drop the message */
            remove_message(chat, chat->n_messages - 1);
        else if (st == TUTTI_OK)
            st = chat_add_message(chat, chat->n_messages, "assistant", text.bytes, text.n_bytes, err);
    } else if (is_refused) {
        fprintf(stderr, "tutti: %s%s\n", err->text,
                st == TUTTI_E_LIMIT ? "; /reset forgets the conversation" : "");
        remove_message(chat, chat->n_messages - 1);
        st = chat->is_interactive ? TUTTI_OK : error_set(err, TUTTI_E_INTERNAL, "%s", "");
    }
    buf_clear(&text);
    return st;
}

/* ---- commands ---- */

static void hint(const struct chat *chat, const char *text)
{
    if (chat->is_interactive)
        fprintf(stderr, "%s\n", text);
}

static bool is_command(const char *line, const char *name, const char **argument)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || (line[n] != '\0' && line[n] != ' '))
        return false;
    *argument = line + n + strspn(line + n, " ");
    return true;
}

static enum tutti_status run_command(struct chat *chat, const char *line, bool *quits,
                                     struct tutti_error *err)
{
    static const char *const NAMES[] = { "/reset", "/system", "/help", "/quit", NULL };
    const char *argument;
    if (is_command(line, "/reset", &argument)) {
        reset(chat);
        hint(chat, "[forgotten]");
    } else if (is_command(line, "/system", &argument)) {
        hint(chat, *argument ? "[system message set]" : "[no system message]");
        return set_system(chat, argument, err);
    } else if (is_command(line, "/help", &argument)) {
        fputs(COMMANDS_HELP, stderr);
    } else if (is_command(line, "/quit", &argument) || is_command(line, "/exit", &argument)) {
        *quits = true;
    } else {
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(line, " \n"), line);
        const char *meant = options_nearest(word, NAMES);
        fprintf(stderr, "tutti: unknown command %s; %s%s%s\n", word,
                meant ? "did you mean " : "/help lists them", meant ? meant : "", meant ? "?" : "");
    }
    return TUTTI_OK;
}

static enum tutti_status take_message(struct chat *chat, const struct buf *line, bool *quits,
                                      int *signal_number, struct tutti_error *err)
{
    size_t n_blank = line->n_bytes ? strspn(line->bytes, " \t\r\n") : 0;
    *signal_number = 0;
    if (n_blank == line->n_bytes)
        return TUTTI_OK;
    bool is_escaped = line->bytes[0] == '/' && line->bytes[1] == '/';
    if (line->bytes[0] == '/' && !is_escaped)
        return run_command(chat, line->bytes, quits, err);
    enum tutti_status st = chat_add_message(chat, chat->n_messages, "user", line->bytes + is_escaped,
                                            line->n_bytes - is_escaped, err);
    return st == TUTTI_OK ? answer(chat, signal_number, err) : st;
}

static enum tutti_status converse(struct chat *chat, struct tutti_error *err)
{
    struct buf line = { 0 };
    enum chat_line_end end = CHAT_LINE_READ;
    enum tutti_status st = TUTTI_OK;
    bool quits = false;
    while (st == TUTTI_OK && !quits) {
        int signal_number = 0;
        st = chat_line_read(chat->reader, &line, &end, err);
        if (st == TUTTI_OK && end == CHAT_LINE_READ)
            st = take_message(chat, &line, &quits, &signal_number, err);
        else if (st == TUTTI_OK && end == CHAT_LINE_INTERRUPTED)
            signal_number = interrupt_taken();
        if (end == CHAT_LINE_EOF)
            break;
        if (signal_number == SIGTERM || (signal_number != 0 && !chat->is_interactive))
            st = TUTTI_E_CANCELLED;
        else if (end == CHAT_LINE_INTERRUPTED)
            hint(chat, "\n[Ctrl-D or /quit ends]");
    }
    if (end == CHAT_LINE_EOF && chat->is_interactive)
        output_write("\n", 1);
    buf_clear(&line);
    return st;
}

static enum tutti_status run_chat(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct chat_values *values = v;
    struct chat chat = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    struct tutti_model_info info;
    struct session session = { 0 };
    tutti_ranks *ranks = NULL;
    bool is_done;
    enum tutti_status st = model_flags_join(&values->session.model, &values->session.adapters, operands[0],
                                            &ranks, &is_done, err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = session_open_model(&session, &values->session, ranks, operands[0], err);
    if (st != TUTTI_OK)
        goto done;
    tutti_model_info(session.model, &info);
    if (info.chat_format[0] == '\0') {
        st = error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: the model has no chat format; --chat-format names one, and 'tutti generate' needs none",
            operands[0]);
        goto done;
    }
    st = adapter_flags_choose(values->adapter, session.model, &chat.request.adapter, err);
    if (st == TUTTI_OK)
        st = session_open_engine(&session, &values->session, 1, err);
    if (st != TUTTI_OK)
        goto done;
    chat.engine = session.engine;
    sampling_flags_apply(&values->sampling, session.model, chat.stops, &chat.request);
    st = interrupt_catch(err);
    if (st == TUTTI_OK)
        st = chat_line_new(&chat.reader, err);
    if (st == TUTTI_OK && values->system)
        st = set_system(&chat, values->system, err);
    if (st == TUTTI_OK) {
        chat.is_interactive = chat_line_is_interactive(chat.reader);
        if (chat.is_interactive)
            fprintf(stderr, "%s (%s). /help lists the commands, Ctrl-D ends.\n", info.name, info.family);
        st = converse(&chat, err);
    }
done:
    chat_line_free(chat.reader);
    interrupt_restore();
    session_close(&session);
    while (chat.n_messages > 0)
        remove_message(&chat, chat.n_messages - 1);
    free(chat.messages);
    buf_clear(&chat.text);
    tutti_ranks_close(ranks);
    return st;
}

const struct command COMMAND_CHAT = {
    .name = "chat",
    .summary = "chat with a model at the terminal",
    .about = "Each line is a message. The answer is shown while it is generated, and Ctrl-C stops it. "
             "Lines can be edited, and the arrow keys bring back lines of earlier sessions (kept in "
             "$XDG_STATE_HOME/tutti/history, or in ~/.local/state). /help lists further commands. If "
             "standard input is no terminal, only the answers are printed.",
    .example = "tutti chat models/demo --system \"You are a helpful assistant.\"",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct chat_values),
    .run = run_chat,
};
