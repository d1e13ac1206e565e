/* Generates man pages and shell completion from the option tables that also make --help. */
#ifndef TUTTI_CLI_OPTIONS_MANUAL_H
#define TUTTI_CLI_OPTIONS_MANUAL_H

#include "cli/options/command.h"

/* Appends text as an escaped line of man(7). False: out of memory. */
MUST_CHECK bool manual_text(struct buf *out, const char *text);

struct command_list {
    const struct command *const *commands;
    int n;
    const char *introduction; /* sentences, as the next */
    const char *help;         /* of tutti help and tutti version */
};

/* tutti(1). False: out of memory, here and below. */
MUST_CHECK bool manual_overview(const struct command_list *list, struct buf *out);
/* tutti-COMMAND(1). */
MUST_CHECK bool manual_command(const struct command *command, struct buf *out);

/* For bash-completion's folder, under the name "tutti". */
MUST_CHECK bool completion_bash(const struct command_list *list, struct buf *out);
/* For zsh's $fpath, under the name "_tutti". */
MUST_CHECK bool completion_zsh(const struct command_list *list, struct buf *out);

#endif
