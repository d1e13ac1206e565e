/* Values of a tool's arguments that a model writes without quotes, as text. */
#ifndef TUTTI_MODEL_CHAT_CALL_VALUES_H
#define TUTTI_MODEL_CHAT_CALL_VALUES_H

#include <jansson.h>

/* A text where the schema says so, else JSON or a literal of Python, else a text. schema NULL: none.
 * NULL: no UTF-8, or out of memory. */
json_t *call_value_parse(const json_t *schema, const char *text, size_t n_bytes);

#endif
