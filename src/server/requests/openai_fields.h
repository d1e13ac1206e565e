/* Checks the field names of a request: fields of other servers are understood, or refused by name. */
#ifndef TUTTI_SERVER_REQUESTS_OPENAI_FIELDS_H
#define TUTTI_SERVER_REQUESTS_OPENAI_FIELDS_H

#include "server/requests/openai_request.h"

/* api: one of enum api_kind; path: "" for the request, or of an object within it, such as "messages[0]". TUTTI_E_ARGUMENT with
 * err->param: a field that would change the answer in a way that tutti does not support, or a likely misspelling of a field. Other
 * unknown names are logged, and refused by the messages API. */
MUST_CHECK enum tutti_status api_check_fields(const json_t *object, unsigned api, const char *path,
                                              struct tutti_error *err);

/* Logs that a part of a request was ignored: what, such as "a tool of type", its name, and why; "" or ": REASON". Once for
 * each name, and for a bounded number of them. */
void api_warn_ignored(const char *what, const char *name, const char *why);

#endif
