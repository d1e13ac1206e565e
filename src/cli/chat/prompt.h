/* Prompts that chat templates make, rendered to see what a template does with a request. */
#ifndef TUTTI_CLI_CHAT_PROMPT_H
#define TUTTI_CLI_CHAT_PROMPT_H

#include "base/error.h"
#include "base/ids.h"

/* The number of ids of the messages' prompt. arguments: as template_arguments of struct tutti_request.
 * TUTTI_E_ARGUMENT: the template cannot express a message. */
MUST_CHECK enum tutti_status prompt_length(size_t *out, const tutti_model *model,
                                           const struct tutti_message *messages, size_t n_messages,
                                           const char *arguments, struct tutti_error *err);

/* Whether a question's prompt depends on which of two template arguments is given. */
MUST_CHECK enum tutti_status prompt_depends(bool *out, const tutti_model *model, const char *a, const char *b,
                                            struct tutti_error *err);

/* Checks that the template shows a system message. TUTTI_E_UNSUPPORTED: it does not. */
MUST_CHECK enum tutti_status prompt_check_system(const tutti_model *model, const char *system,
                                                 struct tutti_error *err);

#endif
