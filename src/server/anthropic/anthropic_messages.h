/* POST /v1/messages and /v1/messages/count_tokens: https://docs.anthropic.com/en/api/messages
 *
 * A request is translated to the chat API, so all of them parse settings in the same way. The reply is a
 * list of blocks: the reasoning, the text, the calls. */
#ifndef TUTTI_SERVER_ANTHROPIC_ANTHROPIC_MESSAGES_H
#define TUTTI_SERVER_ANTHROPIC_ANTHROPIC_MESSAGES_H

#include "server/job.h"

extern const struct job_api ANTHROPIC_MESSAGES;

void count_tokens_request(struct app *app, struct http_conn *conn);

/* Reads a parsed body and takes ownership of it. is_count: of count_tokens, which has no settings of an
 * answer. */
MUST_CHECK enum tutti_status messages_read(struct api_request *req, const tutti_model *model, json_t *root,
                                           bool is_count, struct tutti_error *err);

/* Renames err->param from the chat API's field to the field of this API. */
void messages_name_field(struct tutti_error *err);

#endif
