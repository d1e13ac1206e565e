/* Values of a tool's arguments that a model writes without quotes, as text. */
#ifndef TUTTI_MODEL_CHAT_CALL_VALUES_H
#define TUTTI_MODEL_CHAT_CALL_VALUES_H

#include <jansson.h>

enum call_value_type { CALL_TYPE_TEXT = 1, CALL_TYPE_NULL = 2, CALL_TYPE_OTHER = 4 };

/* The types that a tool's schema allows for one argument, as bits; CALL_TYPE_OTHER if it does not
 * tell. parameters: the schema of all arguments; NULL: none. Follows "$ref" within it. */
unsigned call_value_types(const json_t *parameters, const char *name);

/* JSON or a literal of Python, else a text. NULL: no UTF-8, or out of memory. */
json_t *call_value_parse(const char *text, size_t n_bytes);

#endif
