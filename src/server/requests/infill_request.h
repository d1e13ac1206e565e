/* Requests to fill a gap in a text: /infill, and "suffix" of /v1/completions. */
#ifndef TUTTI_SERVER_REQUESTS_INFILL_REQUEST_H
#define TUTTI_SERVER_REQUESTS_INFILL_REQUEST_H

#include "server/app.h"
#include "server/requests/openai_request.h"

/* Prompts are tokenized here, so their number is small: each has the suffix's tokens. */
enum { INFILL_MAX_PROMPTS = 16, INFILL_MAX_FILES = 1024, INFILL_MAX_RESPONSE_FIELDS = 64 };

/* Reads "suffix" of a request whose other fields were read. Without one, or with an empty one, nothing is
 * changed. */
MUST_CHECK enum tutti_status infill_read_suffix(struct api_request *req, const struct app *app,
                                                struct tutti_error *err);

/* Reads a body of llama-server's /infill and takes ownership of it. */
MUST_CHECK enum tutti_status infill_read_body(struct api_request *req, struct app *app, json_t *body,
                                              struct tutti_error *err);

#endif
