/* Checks the path of a file that a command is to write, before its work begins. */
#ifndef TUTTI_CLI_OPTIONS_OUTPUT_PATH_H
#define TUTTI_CLI_OPTIONS_OUTPUT_PATH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* TUTTI_E_ARGUMENT: path is "-", or the same file as one of inputs. shown: the option or operand, for messages.
 * inputs: [n] paths that the command reads; NULL entries are skipped. */
MUST_CHECK enum tutti_status output_path_check(const char *shown, const char *path, const char *const *inputs,
                                               size_t n, struct tutti_error *err);

/* By name, or because both exist and are one file. */
bool output_path_is_same(const char *a, const char *b);

/* Fails if no file can be created at path. Nothing is left there. */
MUST_CHECK enum tutti_status output_path_try(const char *path, struct tutti_error *err);

#endif
