/* POST /v1/responses: https://platform.openai.com/docs/api-reference/responses
 *
 * A request becomes one of the chat API, so that both read settings in the same way. Nothing is stored: what refers to an earlier
 * response is refused. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_RESPONSES_H
#define TUTTI_SERVER_OPENAI_OPENAI_RESPONSES_H

#include "server/openai/openai_reply.h"

/* Reads a body, which is taken over. */
MUST_CHECK enum tutti_status responses_read(struct api_request *req, struct app *app, json_t *root,
                                            struct tutti_error *err);

/* A field of the request as its client wrote it; NULL: it is absent, or null. */
const json_t *responses_asked(const struct api_request *req, const char *name);

/* Errors of the chat API name its fields: from now on err has the name that the client knows. */
void responses_name_field(struct tutti_error *err);

#endif
