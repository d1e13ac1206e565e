/* tutti chat: one conversation at the terminal. Ctrl-C stops the answer, not the program. */
#include "cli/chat/chat.h"
#include "base/utf8.h"
#include "cli/chat/attachment.h"
#include "cli/options/command.h"
#include "cli/terminal/input.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/output.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUES struct chat_values
struct chat_values {
    const char *system, *system_file, *adapter, *load;
    struct option_texts files;
    struct sampling_flags sampling;
    struct thinking_flags thinking;
    struct session_flags session;
};

static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, system, "system", "TEXT", "a system message before the conversation"),
    TEXT_OPTION(VALUES, system_file, "system-file", "PATH", "read the system message from a file"),
    TEXTS_OPTION(VALUES, files, "file", "PATH",
                 "attach a text file to the first message, its name before it"),
    TEXT_OPTION(
        VALUES, load, "load", "FILE",
        "go on with a conversation that /save or the chat page saved as JSON, with its settings; flags "
        "take precedence over them"),
    TEXT_OPTION(VALUES, adapter, "adapter", "NAME",
                "adapter to answer with: one given by --lora, or none; without it, the first"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Thinking", THINKING_OPTIONS, offsetof(VALUES, thinking) },
    { "Answer", SAMPLING_OPTIONS, offsetof(VALUES, sampling) },
    { "Model", MODEL_OPTIONS, offsetof(VALUES, session.model) },
    { "Messages", CHAT_FORMAT_OPTIONS, offsetof(VALUES, session.model) },
    { "Adapters", ADAPTER_OPTIONS, offsetof(VALUES, session.adapters) },
    { "Engine", ENGINE_OPTIONS, offsetof(VALUES, session.engine) },
    { "Draft model", DRAFT_OPTIONS, offsetof(VALUES, session.draft) },
    { .title = NULL },
};

static enum tutti_status take_message(struct chat *chat, const struct buf *line, struct tutti_error *err)
{
    size_t n_blank = line->n_bytes ? strspn(line->bytes, " \t\r\n") : 0;
    if (n_blank == line->n_bytes)
        return TUTTI_OK;
    bool is_command = line->bytes[0] == '/' && !chat_line_was_quoted(chat->reader);
    bool is_escaped = is_command && line->bytes[1] == '/';
    if (is_command && !is_escaped)
        return chat_command(chat, line->bytes, err);
    return chat_say(chat, line->bytes + is_escaped, line->n_bytes - is_escaped, err);
}

static enum tutti_status converse(struct chat *chat, struct tutti_error *err)
{
    struct buf line = { 0 };
    enum chat_line_end end = CHAT_LINE_READ;
    enum tutti_status st = TUTTI_OK;
    while (st == TUTTI_OK && !chat->quits) {
        chat->signal_number = 0;
        st = chat_line_read(chat->reader, &line, &end, err);
        if (st == TUTTI_OK && end == CHAT_LINE_READ)
            st = take_message(chat, &line, err);
        else if (st == TUTTI_OK && end == CHAT_LINE_INTERRUPTED)
            chat->signal_number = interrupt_taken();
        if (end == CHAT_LINE_EOF)
            break;
        if (chat->signal_number == SIGTERM || (chat->signal_number != 0 && !chat->is_interactive))
            st = TUTTI_E_CANCELLED;
        else if (end == CHAT_LINE_INTERRUPTED)
            chat_hint(chat, "\n[Ctrl-D or /quit ends]");
    }
    if (end == CHAT_LINE_EOF && chat->is_interactive)
        output_write("\n", 1);
    buf_clear(&line);
    return st;
}

/* ---- starting ---- */

static enum tutti_status check_flags(const struct chat_values *values, struct tutti_error *err)
{
    if (values->system && values->system_file)
        return error_set_param(err, TUTTI_E_ARGUMENT, "system-file",
                               "--system-file: takes the place of --system, found both");
    for (int i = 0; i < values->files.n; i++)
        if (strcmp(values->files.texts[i], "-") == 0)
            return error_set_param(err, TUTTI_E_ARGUMENT, "file",
                                   "--file -: standard input has the messages; expected a path");
    if (values->system_file && strcmp(values->system_file, "-") == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "system-file",
                               "--system-file -: standard input has the messages; expected a path");
    return TUTTI_OK;
}

static enum tutti_status set_system(struct chat *chat, const struct chat_values *values,
                                    struct tutti_error *err)
{
    struct buf text = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (values->system)
        return chat_set_system(chat, values->system, err);
    if (values->system_file)
        st = system_file_read(&text, values->system_file, attachment_max_bytes(chat->max_context), err);
    if (st == TUTTI_OK && values->system_file)
        st = chat_set_system(chat, text.bytes, err);
    buf_clear(&text);
    return st;
}

/* Applies the command line to the chat, whose engine is open. */
static enum tutti_status begin(struct chat *chat, const struct chat_values *values, struct tutti_error *err)
{
    struct talk settings = { .sampling = values->sampling, .thinking = values->thinking };
    chat->talk.sampling = values->sampling;
    chat->talk.thinking = values->thinking;
    enum tutti_status st = chat_apply(chat, &chat->talk, err);
    if (st == TUTTI_OK && values->load)
        st = chat_load(chat, values->load, &settings, err);
    if (st == TUTTI_OK)
        st = sampling_flags_check(&values->sampling, &chat->request, err);
    if (st == TUTTI_OK && (values->adapter || !values->load))
        st = adapter_flags_choose(values->adapter, chat->model, &chat->adapter, err);
    if (st == TUTTI_OK)
        st = set_system(chat, values, err);
    for (int i = 0; i < values->files.n && st == TUTTI_OK; i++)
        st = chat_attach(chat, values->files.texts[i], err);
    return st;
}

static enum tutti_status run_chat(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct chat_values *values = v;
    struct chat chat = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    struct session session = { 0 };
    struct tutti_stats stats;
    tutti_ranks *ranks = NULL;
    bool is_done;
    talk_init(&chat.talk);
    enum tutti_status st = check_flags(values, err);
    if (st == TUTTI_OK)
        st = model_flags_join(&values->session.model, &values->session.adapters, &values->session.draft,
                              operands[0], &ranks, &is_done, err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = session_open_model(&session, &values->session, ranks, operands[0], err);
    if (st != TUTTI_OK)
        goto done;
    chat.model = session.model;
    tutti_model_info(session.model, &chat.info);
    if (chat.info.chat_format[0] == '\0') {
        st = error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: the model has no chat format; --chat-format names one, and 'tutti generate' needs none",
            operands[0]);
        goto done;
    }
    st = session_open_engine(&session, &values->session, 1, err);
    if (st != TUTTI_OK)
        goto done;
    chat.engine = session.engine;
    tutti_engine_stats(session.engine, &stats);
    chat.max_context = stats.max_context;
    st = interrupt_catch(err);
    if (st == TUTTI_OK)
        st = chat_line_new(&chat.reader, err);
    if (st == TUTTI_OK) {
        chat.is_interactive = chat_line_is_interactive(chat.reader);
        chat_hint(&chat, "%s (%s). /help lists the commands, Ctrl-D ends.", chat.info.name, chat.info.family);
        st = begin(&chat, values, err);
    }
    if (st == TUTTI_OK)
        st = converse(&chat, err);
done:
    chat_line_free(chat.reader);
    interrupt_restore();
    session_close(&session);
    talk_clear(&chat.talk);
    answer_text_clear(&chat.received);
    buf_clear(&chat.arguments);
    buf_clear(&chat.files);
    tutti_ranks_close(ranks);
    return st;
}

const struct command COMMAND_CHAT = {
    .name = "chat",
    .summary = "chat with a model at the terminal",
    .about =
        "Each line is a message. The answer is shown while it is generated, and Ctrl-C stops it; what "
        "was shown stays in the conversation. Lines can be edited, and the arrow keys bring back lines "
        "of earlier sessions (kept in $XDG_STATE_HOME/tutti/history, or in ~/.local/state). A message "
        "between two lines \"\"\" may have any number of lines. /help lists further commands, such as "
        "/file, /regenerate, /set, /save and /load. If standard input is no terminal, only the answers "
        "are printed.\n"
        "\n"
        "/save writes the body of a request to /v1/chat/completions: the messages, the settings that were "
        "given, and the model, with its adapter as MODEL:ADAPTER. /load and --load read such files and "
        "those that the chat page exports as JSON; both refuse what they cannot honour, and name the "
        "field. /system changes the system message only; the messages so far stay.",
    .example = "tutti chat models/demo --system \"You are a helpful assistant.\"\n"
               "tutti chat models/demo --file notes.txt --temperature 0.2\n"
               "tutti chat models/demo --load talk.json",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct chat_values),
    .run = run_chat,
};
