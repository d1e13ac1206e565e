/* JSON in and out by jansson, with errors in the shape of OpenAI's API. */
#ifndef TUTTI_SERVER_JSON_H
#define TUTTI_SERVER_JSON_H

#include "base/buf.h"

#include <jansson.h>

/* Parses a whole text. TUTTI_E_ARGUMENT: with line and column; also where it nests deeper than LIMIT_JSON_DEPTH, or where its
 * values, without the bytes of strings, would take more memory than LIMIT_JSON_TREE_BYTES: then nothing of it is parsed.
 * *out is the caller's, for json_decref(). */
MUST_CHECK enum tutti_status json_read(json_t **out, const char *text, size_t n_bytes,
                                       struct tutti_error *err);

/* The same of a text that must be an object. On failure *out is NULL. */
MUST_CHECK enum tutti_status json_read_object(json_t **out, const char *text, size_t n_bytes,
                                              struct tutti_error *err);

/* Memory that a value takes, about. value nests no deeper than json_read() allows. */
size_t json_tree_bytes(const json_t *value);

/* Adds the value in compact form. False: out of memory. */
MUST_CHECK bool json_write(struct buf *out, const json_t *value);

/* Bytes as a string. What is no UTF-8 becomes "bytes:\xe4\xb8", as OpenAI writes parts of characters. */
json_t *json_text(const char *bytes, size_t n_bytes);

/* Bytes as a list of numbers. */
json_t *json_byte_list(const char *bytes, size_t n_bytes);

/* A logarithm: JSON has no infinity, -9999 stands for it as in OpenAI's API. */
json_t *json_logprob(float logprob);

/* HTTP status of an error. */
int json_error_status(enum tutti_status status);

/* {"error": {"message", "type", "param", "code"}}; code NULL: from err->status and the HTTP status. */
MUST_CHECK bool json_error_body(struct buf *out, int http_status, const char *code,
                                const struct tutti_error *err);

#endif
