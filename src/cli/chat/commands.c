/* Commands of tutti chat: lines that begin with '/'. */
#include "base/utf8.h"
#include "cli/chat/attachment.h"
#include "cli/chat/chat.h"
#include "cli/chat/prompt.h"
#include "cli/chat/talk_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the conversation ---- */

static enum tutti_status run_clear(struct chat *chat, const char *argument, struct tutti_error *err)
{
    (void)argument;
    (void)err;
    talk_truncate(&chat->talk, talk_has_system(&chat->talk));
    chat_hint(chat, "[forgotten]");
    return TUTTI_OK;
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

enum tutti_status chat_set_system(struct chat *chat, const char *text, struct tutti_error *err)
{
    if (!utf8_is_valid(text, strlen(text)))
        return error_set(err, TUTTI_E_ARGUMENT, "the system message has bytes that are not UTF-8");
    enum tutti_status st = *text ? prompt_check_system(chat->model, text, err) : TUTTI_OK;
    return st == TUTTI_OK ? talk_set_system(&chat->talk, text, err) : st;
}

static enum tutti_status run_system(struct chat *chat, const char *argument, struct tutti_error *err)
{
    enum tutti_status st = chat_set_system(chat, argument, err);
    size_t n = chat->talk.n - talk_has_system(&chat->talk);
    if (st == TUTTI_OK)
        chat_hint(chat, *argument ? "[system message set]" : "[no system message]");
    if (st == TUTTI_OK && n > 0)
        chat_hint(chat, "[%zu message%s so far stay in the conversation; /clear forgets them]", n, plural(n));
    return st;
}

static enum tutti_status run_undo(struct chat *chat, const char *argument, struct tutti_error *err)
{
    struct talk *talk = &chat->talk;
    size_t n = talk->n;
    (void)argument;
    while (n > 0 && strcmp(talk->messages[n - 1].role, "user") != 0)
        n--;
    if (n == 0)
        return error_set(err, TUTTI_E_ARGUMENT, "/undo: there is no question to take back");
    talk_truncate(talk, n - 1);
    chat_hint(chat, "[took back the last question; %zu message%s left]", talk->n, plural(talk->n));
    return TUTTI_OK;
}

/* The answers so far stay until there is another one. */
static enum tutti_status run_regenerate(struct chat *chat, const char *argument, struct tutti_error *err)
{
    struct talk *talk = &chat->talk;
    struct tutti_message old = { 0 };
    bool is_answered = false;
    (void)argument;
    size_t n_users = talk->n - talk_ends_with(talk, "assistant");
    if (n_users == 0 || strcmp(talk->messages[n_users - 1].role, "user") != 0)
        return error_set(err, TUTTI_E_ARGUMENT, "/regenerate: there is no question to answer again");
    if (n_users < talk->n)
        old = talk->messages[--talk->n]; /* its slot stays free until the new answer takes it */
    enum tutti_status st = chat_answer(chat, &is_answered, err);
    if (old.role && talk->n == n_users) { /* refused, or no memory for the new one */
        talk->messages[talk->n++] = old;
        return st;
    }
    free((char *)(uintptr_t)old.content);
    free((char *)(uintptr_t)old.reasoning);
    return st;
}

/* ---- files ---- */

enum tutti_status chat_attach(struct chat *chat, const char *path, struct tutti_error *err)
{
    size_t n_before = chat->files.n_bytes, n_tokens = 0;
    struct talk *talk = &chat->talk;
    enum tutti_status st = attachment_read(&chat->files, path, attachment_max_bytes(chat->max_context), err);
    if (st != TUTTI_OK)
        return st;
    st = talk_add(talk, talk->n, "user", chat->files.bytes, chat->files.n_bytes, err);
    if (st == TUTTI_OK) {
        st = prompt_length(&n_tokens, chat->model, talk->messages, talk->n, chat->request.template_arguments,
                           err);
        talk_remove(talk, talk->n - 1);
    }
    if (st == TUTTI_OK && n_tokens >= (size_t)chat->max_context)
        st = error_set(err, TUTTI_E_LIMIT,
                       "%s: with this file the conversation has %zu tokens, but the context has %d", path,
                       n_tokens, chat->max_context);
    if (st != TUTTI_OK) {
        buf_truncate(&chat->files, n_before);
        return st;
    }
    chat->n_files++;
    chat_hint(chat, "[%s is attached to the next message: %zu of %d tokens of context]", path, n_tokens,
              chat->max_context);
    return TUTTI_OK;
}

static enum tutti_status run_file(struct chat *chat, const char *argument, struct tutti_error *err)
{
    if (strcmp(argument, "none") != 0)
        return *argument ? chat_attach(chat, argument, err)
                         : error_set(err, TUTTI_E_ARGUMENT, "/file: expected a path, or none (%d attached)",
                                     chat->n_files);
    buf_clear(&chat->files);
    chat->n_files = 0;
    chat_hint(chat, "[no files attached]");
    return TUTTI_OK;
}

/* ---- saving and loading ---- */

static enum tutti_status save(struct chat *chat, const char *command, const char *path, bool overwrites,
                              struct tutti_error *err)
{
    struct buf model = { 0 };
    if (*path == '\0')
        return error_set(err, TUTTI_E_ARGUMENT, "%s: expected a file", command);
    if (!buf_printf(&model, "%s%s%s", chat->info.name, chat->adapter ? ":" : "",
                    chat->adapter ? chat->adapter : ""))
        return error_out_of_memory(path, err);
    struct talk talk = chat->talk;
    talk.model = model.bytes;
    enum tutti_status st = talk_save(&talk, path, overwrites, err);
    buf_clear(&model);
    if (st == TUTTI_OK)
        chat_hint(chat, "[saved %zu message%s in %s]", talk.n, plural(talk.n), path);
    return st;
}

static enum tutti_status run_save(struct chat *chat, const char *argument, struct tutti_error *err)
{
    return save(chat, "/save", argument, false, err);
}

static enum tutti_status run_save_over(struct chat *chat, const char *argument, struct tutti_error *err)
{
    return save(chat, "/save!", argument, true, err);
}

/* The adapter in "NAME:ADAPTER". A model of another name has none of ours. */
static enum tutti_status find_adapter(const struct chat *chat, const char *path, const char *model,
                                      const char **out, struct tutti_error *err)
{
    const char *colon = model ? strrchr(model, ':') : NULL;
    *out = NULL;
    for (int i = 0; colon && i < tutti_model_n_adapters(chat->model) && !*out; i++)
        if (strcmp(tutti_model_adapter_name(chat->model, i), colon + 1) == 0)
            *out = tutti_model_adapter_name(chat->model, i);
    size_t n_name = colon ? (size_t)(colon - model) : 0;
    bool is_ours = colon && strlen(chat->info.name) == n_name && memcmp(chat->info.name, model, n_name) == 0;
    if (is_ours && !*out)
        return error_set(err, TUTTI_E_NOT_FOUND, "%s: model: found '%s', but no --lora has the name %s", path,
                         model, colon + 1);
    return TUTTI_OK;
}

/* Checks that the model can express the conversation, with one more question, within its context. */
static enum tutti_status check_talk(const struct chat *chat, const char *path, struct talk *talk,
                                    struct tutti_error *err)
{
    size_t n_tokens = 0;
    bool asks = !talk_ends_with(talk, "user");
    enum tutti_status st = TUTTI_OK;
    if (talk_has_system(talk))
        st = prompt_check_system(chat->model, talk->messages[0].content, err);
    if (st == TUTTI_OK && asks)
        st = talk_add(talk, talk->n, "user", "?", 1, err);
    if (st == TUTTI_OK)
        st = prompt_length(&n_tokens, chat->model, talk->messages, talk->n, NULL, err);
    if (st != TUTTI_OK) {
        error_prefix(err, "%s: messages", path);
        return st;
    }
    if (asks)
        talk_remove(talk, talk->n - 1);
    if (n_tokens >= (size_t)chat->max_context)
        return error_set(err, TUTTI_E_LIMIT, "%s: messages: found %zu tokens, but the context has %d", path,
                         n_tokens, chat->max_context);
    return TUTTI_OK;
}

enum tutti_status chat_load(struct chat *chat, const char *path, const struct talk *settings,
                            struct tutti_error *err)
{
    struct talk talk = { 0 };
    const char *adapter = NULL;
    enum tutti_status st = talk_load(&talk, path, err);
    if (st != TUTTI_OK)
        return st;
    const char *how = chat->talk.thinking.thinking; /* a file does not say how thinking is shown */
    bool is_shown = how && strcmp(how, "show") == 0, is_hidden = how && strcmp(how, "hide") == 0;
    if (talk.thinking.thinking ? is_shown && thinking_is_on(&talk.thinking) : is_shown || is_hidden)
        talk.thinking.thinking = how;
    if (settings) {
        options_copy_given(SAMPLING_OPTIONS, &talk.sampling, &settings->sampling);
        options_copy_given(THINKING_OPTIONS, &talk.thinking, &settings->thinking);
    }
    st = check_talk(chat, path, &talk, err);
    if (st == TUTTI_OK)
        st = find_adapter(chat, path, talk.model, &adapter, err);
    if (st == TUTTI_OK) {
        st = chat_apply(chat, &talk, err);
        if (st != TUTTI_OK)
            error_prefix(err, "%s", path);
    }
    if (st != TUTTI_OK) {
        talk_clear(&talk);
        return st;
    }
    talk_clear(&chat->talk);
    chat->talk = talk;
    chat->adapter = adapter;
    chat_hint(chat, "[loaded %zu message%s from %s%s%s]", talk.n, plural(talk.n), path,
              adapter ? ", adapter " : "", adapter ? adapter : "");
    if (talk_ends_with(&talk, "user"))
        chat_hint(chat, "[the last message has no answer; /regenerate answers it]");
    return TUTTI_OK;
}

static enum tutti_status run_load(struct chat *chat, const char *argument, struct tutti_error *err)
{
    return *argument ? chat_load(chat, argument, NULL, err)
                     : error_set(err, TUTTI_E_ARGUMENT, "/load: expected a file");
}

/* ---- settings ---- */

static enum tutti_status run_adapter(struct chat *chat, const char *argument, struct tutti_error *err)
{
    if (*argument == '\0' && tutti_model_n_adapters(chat->model) == 0) {
        fputs("[no adapters; --lora NAME=PATH loads one at the start]\n", stderr);
        return TUTTI_OK;
    }
    if (*argument == '\0') {
        fprintf(stderr, "[adapter %s; loaded:", chat->adapter ? chat->adapter : "none");
        for (int i = 0; i < tutti_model_n_adapters(chat->model); i++)
            fprintf(stderr, " %s", tutti_model_adapter_name(chat->model, i));
        fputs("]\n", stderr);
        return TUTTI_OK;
    }
    enum tutti_status st = adapter_flags_choose(argument, chat->model, &chat->adapter, err);
    if (st == TUTTI_OK)
        chat_hint(chat, "[adapter %s]", argument);
    return st == TUTTI_OK ? st
                          : error_set(err, st,
                                      "/adapter: no adapter has the name %s; --lora loads one, and "
                                      "/adapter lists them",
                                      argument);
}

/* The options that /set changes. Texts must outlive the line, so stop strings are left to --stop. */
static const struct set_table {
    const struct option *options;
    size_t base;
} SET_TABLES[] = {
    { SAMPLING_OPTIONS, offsetof(struct talk, sampling) },
    { THINKING_OPTIONS, offsetof(struct talk, thinking) },
};
enum { N_SET_TABLES = sizeof SET_TABLES / sizeof *SET_TABLES };

/* Settings have the names of their options, with underscores. */
static void use_underscores(char *text)
{
    for (char *c = text; *c; c++)
        *c = *c == '-' ? '_' : *c;
}

static enum tutti_status unknown_setting(const char *name, struct tutti_error *err)
{
    char text[400] = "";
    size_t n = 0;
    for (size_t t = 0; t < N_SET_TABLES; t++)
        for (const struct option *o = SET_TABLES[t].options; o->name && n < sizeof text; o++)
            if (o->kind != OPTION_TEXTS)
                n += (size_t)snprintf(text + n, sizeof text - n, " %s", o->name);
    use_underscores(text);
    return error_set(err, TUTTI_E_ARGUMENT, "/set: found '%.32s', expected one of:%s", name, text);
}

static enum tutti_status show_settings(const struct chat *chat, struct tutti_error *err)
{
    struct buf text = { 0 };
    bool ok = buf_add_string(&text, "") && talk_print_settings(&text, &chat->talk);
    if (ok)
        fprintf(stderr, "[%s]\n",
                text.n_bytes > 0 ? text.bytes : "no settings; the model's files say all of them");
    buf_clear(&text);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "/set: out of memory");
}

static enum tutti_status run_set(struct chat *chat, const char *argument, struct tutti_error *err)
{
    if (*argument == '\0')
        return show_settings(chat, err);
    char name[64], shown[80];
    size_t n = strcspn(argument, " "), t = 0;
    const char *value = argument + n + strspn(argument + n, " ");
    const struct option *o = NULL;
    struct talk talk = chat->talk; /* borrows everything but the settings */
    snprintf(name, sizeof name, "%.*s", (int)n, argument);
    for (; t < N_SET_TABLES && !(o = options_find(SET_TABLES[t].options, name)); t++)
        ;
    if (!o || o->kind == OPTION_TEXTS)
        return unknown_setting(name, err);
    if (*value == '\0')
        return error_set(err, TUTTI_E_ARGUMENT, "/set %s: expected a value, or default", name);
    void *values = (char *)&talk + SET_TABLES[t].base;
    snprintf(shown, sizeof shown, "/set %s", name);
    enum tutti_status st = TUTTI_OK;
    if (strcmp(value, "default") == 0)
        option_reset(o, values);
    else
        st = option_set_text(o, values, shown, value, err);
    if (st == TUTTI_OK)
        st = chat_apply(chat, &talk, err);
    if (st != TUTTI_OK)
        return st;
    chat->talk.sampling = talk.sampling;
    chat->talk.thinking = talk.thinking;
    o = sampling_flags_unused(&talk.sampling, &chat->request);
    chat_hint(chat, "[%s %s]", name, value);
    if (o) {
        snprintf(name, sizeof name, "%s", o->name);
        use_underscores(name);
        chat_hint(chat, "[%s has no effect while the temperature is 0]", name);
    }
    return TUTTI_OK;
}

static enum tutti_status run_stats(struct chat *chat, const char *argument, struct tutti_error *err)
{
    struct tutti_stats stats;
    const struct tutti_event *last = &chat->last;
    double seconds = (double)(last->total_us - last->ttft_us) / 1e6;
    size_t n = last->n_generated_tokens, n_tokens = 0;
    (void)argument;
    tutti_engine_stats(chat->engine, &stats);
    if (chat->talk.n > 0) {
        enum tutti_status st = prompt_length(&n_tokens, chat->model, chat->talk.messages, chat->talk.n,
                                             chat->request.template_arguments, err);
        if (st != TUTTI_OK)
            return st;
    }
    fprintf(stderr, "conversation: %zu message%s, %zu of %d tokens of context\n", chat->talk.n,
            plural(chat->talk.n), n_tokens, chat->max_context);
    if (n > 0)
        fprintf(stderr,
                "last answer:  %zu tokens (%zu of thinking), %.1f tokens/s, first after %.2f s; %zu of %zu "
                "prompt tokens from the cache\n",
                n, chat->received.n_thinking_tokens, n > 1 && seconds > 0 ? (double)(n - 1) / seconds : 0.0,
                (double)last->ttft_us / 1e6, last->n_cached_tokens, last->n_prompt_tokens);
    fprintf(stderr, "all answers:  %llu, %llu tokens; %llu prompt tokens, %llu from the cache\n",
            (unsigned long long)stats.n_finished, (unsigned long long)stats.n_generated_tokens,
            (unsigned long long)stats.n_prompt_tokens, (unsigned long long)stats.n_cached_tokens);
    return TUTTI_OK;
}

static enum tutti_status run_quit(struct chat *chat, const char *argument, struct tutti_error *err)
{
    (void)argument;
    (void)err;
    chat->quits = true;
    return TUTTI_OK;
}

static enum tutti_status run_help(struct chat *chat, const char *argument, struct tutti_error *err);

/* ---- the table ---- */

static const struct chat_command {
    const char *name, *argument, *help; /* help NULL: another name of a command */
    bool takes_argument;
    enum tutti_status (*run)(struct chat *chat, const char *argument, struct tutti_error *err);
} COMMANDS[] = {
    { "/clear", "", "forget the conversation (also /reset); the system message stays", false, run_clear },
    { "/reset", "", NULL, false, run_clear },
    { "/system", "TEXT", "set the system message; without TEXT: remove it. The history stays", true,
      run_system },
    { "/file", "PATH", "attach a text file to the next message; none: detach all", true, run_file },
    { "/regenerate", "", "answer the last question again", false, run_regenerate },
    { "/undo", "", "take back the last question and its answer", false, run_undo },
    { "/set", "NAME VALUE",
      "change a setting: temperature, top_p, seed, max_tokens, thinking ...; without NAME: list them", true,
      run_set },
    { "/adapter", "NAME", "answer with this adapter, or none; without NAME: list them", true, run_adapter },
    { "/save", "FILE", "save the conversation: JSON, or Markdown if FILE ends in .md", true, run_save },
    { "/save!", "FILE", "the same, and replace FILE", true, run_save_over },
    { "/load", "FILE", "go on with a saved conversation", true, run_load },
    { "/stats", "", "show tokens, context and speed", false, run_stats },
    { "/help", "", "show this", false, run_help },
    { "/quit", "", "end; so does Ctrl-D", false, run_quit },
    { "/exit", "", NULL, false, run_quit },
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

static enum tutti_status run_help(struct chat *chat, const char *argument, struct tutti_error *err)
{
    (void)chat;
    (void)argument;
    (void)err;
    for (int i = 0; i < N_COMMANDS; i++)
        if (COMMANDS[i].help)
            fprintf(stderr, "%-11s %-10s  %s\n", COMMANDS[i].name, COMMANDS[i].argument, COMMANDS[i].help);
    fputs(
        "//TEXT                  a message that begins with a slash\n"
        "A message between lines \"\"\" may have any number of lines, and a backslash at the end of a line\n"
        "continues it on the next one.\n"
        "Ctrl-C stops an answer.\n",
        stderr);
    return TUTTI_OK;
}

static enum tutti_status unknown_command(const char *word, struct tutti_error *err)
{
    const char *names[N_COMMANDS + 1] = { NULL };
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = COMMANDS[i].name;
    const char *meant = options_nearest(word, names);
    return error_set(err, TUTTI_E_ARGUMENT, "unknown command %s; %s%s%s", word,
                     meant ? "did you mean " : "/help lists the commands", meant ? meant : "",
                     meant ? "?" : "");
}

enum tutti_status chat_command(struct chat *chat, const char *line, struct tutti_error *err)
{
    char word[32];
    size_t n = strcspn(line, " \n");
    const char *argument = line + n + strspn(line + n, " \n");
    const struct chat_command *command = NULL;
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word), line);
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(COMMANDS[i].name, word) == 0)
            command = &COMMANDS[i];
    enum tutti_status st = !command ? unknown_command(word, err)
                           : *argument && !command->takes_argument
                               ? error_set(err, TUTTI_E_ARGUMENT, "%s takes no argument, found '%.40s'", word,
                                           argument)
                               : command->run(chat, argument, err);
    if (st == TUTTI_OK || err->text[0] == '\0')
        return st;
    fprintf(stderr, "tutti: %s\n", err->text);
    return chat_failed(chat, err);
}
