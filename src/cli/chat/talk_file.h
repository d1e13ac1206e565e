/* Conversations as files. JSON is the body of a request to /v1/chat/completions: "model", "messages", and the
 * settings under their names in OpenAI's API. Files of the chat page (docs/http-api.md) are read too. */
#ifndef TUTTI_CLI_CHAT_TALK_FILE_H
#define TUTTI_CLI_CHAT_TALK_FILE_H

#include "cli/chat/talk.h"

/* Writes the file at once, under its name when it is complete: as JSON, or as the chat page's Markdown if the
 * path ends in ".md". TUTTI_E_ARGUMENT: it exists and overwrites is false. */
MUST_CHECK enum tutti_status talk_save(const struct talk *talk, const char *path, bool overwrites,
                                       struct tutti_error *err);

/* Appends the settings that were given, as the file names them: "temperature 0, seed 5". False: out of memory. */
MUST_CHECK bool talk_print_settings(struct buf *out, const struct talk *talk);

/* Reads JSON from memory. name: the file in messages, which also name the field. On success *out is the
 * caller's, for talk_clear(). TUTTI_E_FORMAT: anything that a chat does not honour. */
MUST_CHECK enum tutti_status talk_read(struct talk *out, const char *name, const char *bytes, size_t n_bytes,
                                       struct tutti_error *err);
MUST_CHECK enum tutti_status talk_load(struct talk *out, const char *path, struct tutti_error *err);

#endif
