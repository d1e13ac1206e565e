/* The commands of tutti. Each is one file, whose only public name is its struct command. */
#ifndef TUTTI_CLI_OPTIONS_COMMAND_H
#define TUTTI_CLI_OPTIONS_COMMAND_H

#include "base/error.h"
#include "cli/options/options.h"

struct command {
    const char *name;
    const char *summary; /* a phrase for the list of commands */
    const char *about;   /* sentences; ends before the options. Paragraphs are separated by an empty line */
    const char *example; /* lines of shell; NULL: none */
    struct option_set options;
    int n_models;        /* operands from the first that are a MODEL, which may be the name of one on a hub */
    size_t values_bytes; /* size of the struct that the options fill */

    /* Runs with checked values; operands ends with NULL. TUTTI_E_ARGUMENT: wrong usage. A failure with
     * an empty text was already reported, or needs no report (the reader of standard output has closed
     * it). */
    enum tutti_status (*run)(const void *values, const char *const *operands, struct tutti_error *err);
};

extern const struct command COMMAND_SERVE, COMMAND_CHAT, COMMAND_GENERATE, COMMAND_BENCH, COMMAND_LOAD,
    COMMAND_CONVERT, COMMAND_INSPECT, COMMAND_TOKENIZE, COMMAND_LOGITS, COMMAND_PERPLEXITY, COMMAND_SHARD,
    COMMAND_RANKS, COMMAND_PLAN, COMMAND_DEVICES, COMMAND_PULL, COMMAND_LIST, COMMAND_RM;

/* For commands that share no options. */
#define OPTION_SET(groups_, operands_, min_, max_, missing_)                                                 \
    {                                                                                                        \
        .operands = (operands_), .min_operands = (min_), .max_operands = (max_), .missing = (missing_),      \
        .groups = (groups_)                                                                                  \
    }

#endif
