/* Parses and writes JSON with jansson; errors are in OpenAI's format. */
#ifndef TUTTI_SERVER_JSON_H
#define TUTTI_SERVER_JSON_H

#include "base/buf.h"

#include <jansson.h>

/* Parses a whole text. TUTTI_E_ARGUMENT: names line and column. Also if it nests deeper than
 * LIMIT_JSON_DEPTH, or if its values, without the bytes of strings, would take more memory than
 * LIMIT_JSON_TREE_BYTES: this is checked before parsing. U+0000 is allowed in texts, such as prompts, and refused in
 * names and words, which are C strings. *out is the caller's, for json_decref(). */
MUST_CHECK enum tutti_status json_read(json_t **out, const char *text, size_t n_bytes,
                                       struct tutti_error *err);

/* The same for a text that must be an object. On failure *out is NULL. */
MUST_CHECK enum tutti_status json_read_object(json_t **out, const char *text, size_t n_bytes,
                                              struct tutti_error *err);

/* Approximate memory of a value. value nests no deeper than json_read() allows. */
size_t json_tree_bytes(const json_t *value);

/* Appends the value in compact form. False: out of memory. */
MUST_CHECK bool json_write(struct buf *out, const json_t *value);

/* Appends the entries of a list without its brackets, after a comma if out has some already. */
MUST_CHECK bool json_write_entries(struct buf *out, const json_t *list);

/* Appends an object that has members without its last brace, for more members. */
MUST_CHECK bool json_write_open(struct buf *out, const json_t *object);

/* Bytes as a string. Invalid UTF-8 becomes "bytes:\xe4\xb8", as OpenAI writes parts of characters. */
json_t *json_text(const char *bytes, size_t n_bytes);

/* Bytes as a list of numbers. */
json_t *json_byte_list(const char *bytes, size_t n_bytes);

/* A log-probability: JSON has no infinity, so -9999 replaces it as in OpenAI's API. */
json_t *json_logprob(float logprob);

/* HTTP status for an error. */
int json_error_status(enum tutti_status status);

/* {"error": {"message", "type", "param", "code"}} */
json_t *json_error_value(int http_status, const struct tutti_error *err);
/* The same of Anthropic's API, which has a status of its own for a full queue: {"type": "error", "error":
 * {"type", "message"}, "request_id"}. */
int json_anthropic_status(const struct tutti_error *err);
json_t *json_anthropic_error(int http_status, const struct tutti_error *err, const char *request_id);
MUST_CHECK bool json_error_body(struct buf *out, int http_status, const struct tutti_error *err);

#endif
