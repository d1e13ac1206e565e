/* Error reporting: a function that can fail returns enum tutti_status and takes struct
 * tutti_error *err last. */
#ifndef TUTTI_BASE_ERROR_H
#define TUTTI_BASE_ERROR_H

#include "tutti.h"

#define MUST_CHECK                         __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_arg, first_arg) __attribute__((format(printf, format_arg, first_arg)))

/* Formats the text and returns status. The text is cut to fit at a UTF-8 border; control
 * characters and invalid UTF-8 become '?'. err may be NULL. Clears err->param. */
enum tutti_status error_set(struct tutti_error *err, enum tutti_status status, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* Tells the analyzer, which does not see other files, that error_set() returns its argument
 * status. */
#ifdef __clang_analyzer__
#define error_set(err, status, ...) ((error_set)(err, status, __VA_ARGS__), (status))
#endif

/* The same, and names the invalid request field. */
enum tutti_status error_set_param(struct tutti_error *err, enum tutti_status status, const char *param,
                                  const char *format, ...) PRINTF_LIKE(4, 5);

/* TUTTI_E_MEMORY; name: what the memory was for, usually a file. */
static inline enum tutti_status error_out_of_memory(const char *name, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
}

/* Of a failed call for a file: "NAME: " and the text of errno. TUTTI_E_NOT_FOUND or TUTTI_E_IO. */
enum tutti_status error_from_errno(const char *name, struct tutti_error *err);

/* Prepends "prefix: " to the existing text. */
void error_prefix(struct tutti_error *err, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
