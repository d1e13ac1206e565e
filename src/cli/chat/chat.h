/* The state of tutti chat, shared by its parts: answers and commands. */
#ifndef TUTTI_CLI_CHAT_CHAT_H
#define TUTTI_CLI_CHAT_CHAT_H

#include "cli/chat/answer_text.h"
#include "cli/chat/talk.h"
#include "cli/options/flags.h"
#include "cli/terminal/chat_line.h"
#include "cli/terminal/progress.h"

#include <pthread.h>

struct chat {
    struct chat_line *reader;
    const tutti_model *model;
    tutti_engine *engine;
    struct tutti_model_info info;
    int max_context; /* tokens */
    bool is_interactive, quits;

    struct talk talk;
    const char *adapter; /* the model's text; NULL: none */
    /* Of the talk's settings, see chat_apply(). */
    struct tutti_request request;
    struct tutti_string stops[OPTION_MAX_TEXTS];
    struct buf arguments;

    struct buf files; /* attached to the next message */
    int n_files;

    int signal_number;       /* the signal that stopped the last answer; 0: none */
    bool is_in_thinking;     /* the last text that was printed is thinking */
    bool is_thinking_hidden; /* the answer so far is thinking, of which a line shows the tokens */
    struct progress progress;

    pthread_mutex_t mutex; /* guards the answer that is being received */
    struct answer_text received;
    bool is_done;
    struct tutti_event last; /* its pointers are not valid */
};

/* ---- answers: answer.c ---- */

/* Makes the request of a talk's settings. TUTTI_E_*: one of them is not for this model; nothing has changed. */
MUST_CHECK enum tutti_status chat_apply(struct chat *chat, const struct talk *talk, struct tutti_error *err);

/* Requests the answer to the talk, whose last message is the user's, prints it while it arrives and adds it to
 * the talk. *is_answered: false: it was refused, with the reason printed, or stopped before the first word. */
MUST_CHECK enum tutti_status chat_answer(struct chat *chat, bool *is_answered, struct tutti_error *err);

/* Adds the user's message, with the attached files before it, and gets the answer. A message that is refused
 * leaves the conversation and the attached files as they were. */
MUST_CHECK enum tutti_status chat_say(struct chat *chat, const char *text, size_t n_bytes,
                                      struct tutti_error *err);

/* After a failure that was printed: an error without text that ends the program, unless the user can go on. */
enum tutti_status chat_failed(const struct chat *chat, struct tutti_error *err);

void chat_hint(const struct chat *chat, const char *format, ...) PRINTF_LIKE(2, 3); /* if it is interactive */

/* ---- commands: commands.c ---- */

/* Runs a line that begins with '/'. A command that fails prints why, and changes nothing. */
MUST_CHECK enum tutti_status chat_command(struct chat *chat, const char *line, struct tutti_error *err);

MUST_CHECK enum tutti_status chat_attach(struct chat *chat, const char *path, struct tutti_error *err);
MUST_CHECK enum tutti_status chat_set_system(struct chat *chat, const char *text, struct tutti_error *err);
/* The file's conversation and settings take the place of the present ones. settings: of the command line, which
 * take precedence; NULL: none. */
MUST_CHECK enum tutti_status chat_load(struct chat *chat, const char *path, const struct talk *settings,
                                       struct tutti_error *err);

#endif
