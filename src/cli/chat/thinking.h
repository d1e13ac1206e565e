/* Options for models that think (reason) before they answer. */
#ifndef TUTTI_CLI_CHAT_THINKING_H
#define TUTTI_CLI_CHAT_THINKING_H

#include "base/buf.h"
#include "cli/options/options.h"

struct thinking_flags {
    const char *thinking; /* "show", "hide", "on", "off"; NULL: not given */
    const char *effort;   /* NULL: not given */
    int budget;           /* -1: not given */
};
extern const struct option THINKING_OPTIONS[];

/* Whether the model shall think, whatever its template does by itself; whether it shall not. */
bool thinking_is_on(const struct thinking_flags *flags);
bool thinking_is_off(const struct thinking_flags *flags);

/* Sets shows_marks, max_reasoning_tokens and template_arguments of a request for messages. arguments: storage
 * that the request points to. An error names the option: TUTTI_E_ARGUMENT: two contradict each other;
 * TUTTI_E_UNSUPPORTED: the model does not think, or cannot honour the option. On failure the request is
 * unchanged. */
MUST_CHECK enum tutti_status thinking_flags_apply(const struct thinking_flags *flags,
                                                  const tutti_model *model, struct buf *arguments,
                                                  struct tutti_request *request, struct tutti_error *err);

/* Prints thinking on standard output, apart from the answer that follows thinking_end(), and dimmed on a terminal.
 * *is_open: whether thinking was printed since the last end. */
void thinking_print(bool *is_open, const char *text, size_t n_bytes);
void thinking_end(bool *is_open, size_t n_tokens);

#endif
