/* POST /v1/responses: https://platform.openai.com/docs/api-reference/responses
 *
 * A request is translated to the chat API, so both parse settings in the same way. Nothing is
 * stored: references to an earlier response are refused. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_RESPONSES_H
#define TUTTI_SERVER_OPENAI_OPENAI_RESPONSES_H

#include "server/openai/openai_reply.h"

/* Reads a parsed body and takes ownership of it. */
MUST_CHECK enum tutti_status responses_read(struct api_request *req, struct app *app, json_t *root,
                                            struct tutti_error *err);

/* A field of the request as its client wrote it; NULL: it is absent or null. */
const json_t *responses_field(const struct api_request *req, const char *name);

/* The function that the model calls by this name: {"namespace", "name"} if the client has put it into a namespace, else
 * NULL. */
const json_t *responses_function(const struct api_request *req, const char *name);

/* Renames err->param from the chat API's field to the field of the responses API. */
void responses_name_field(struct tutti_error *err);

#endif
