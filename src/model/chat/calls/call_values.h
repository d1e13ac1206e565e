/* Values of a tool's arguments that a model writes without quotes, as text. */
#ifndef TUTTI_MODEL_CHAT_CALL_VALUES_H
#define TUTTI_MODEL_CHAT_CALL_VALUES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* CALL_TYPE_ANY: the schema does not tell; then CALL_TYPE_OTHER is set too. */
enum call_value_type { CALL_TYPE_TEXT = 1, CALL_TYPE_NULL = 2, CALL_TYPE_OTHER = 4, CALL_TYPE_ANY = 8 };

/* The types that a schema allows, as bits; NULL: any. root: the schema of all arguments, for "$ref". */
unsigned call_schema_types(const json_t *root, const json_t *schema);

/* The schema of the member of this name; name NULL: of the items of a list. Looks into alternatives. NULL: the
 * schema does not tell. */
const json_t *call_schema_below(const json_t *root, const json_t *schema, const char *name);

/* Whether a tool's schema has an argument of this name. parameters: the schema of all arguments; NULL: none. */
bool call_value_is_listed(const json_t *parameters, const char *name);

/* The types that a tool's schema allows for one argument. */
unsigned call_value_types(const json_t *parameters, const char *name);

/* JSON or a literal of Python, else a text. may_be_text: the schema allows a text too, so of Python only True,
 * False and None are read. NULL: no UTF-8, or out of memory. */
json_t *call_value_parse(const char *text, size_t n_bytes, bool may_be_text);

/* Whether the text is JSON with integers beyond 64 bits. A json_t cannot hold them, so such JSON is passed on
 * as the model wrote it. */
bool call_value_is_wide(const char *text, size_t n_bytes);

/* The function of this name among tools, which are as in OpenAI's API, with "function" or without. NULL:
 * there is none. */
const json_t *call_tool_find(const json_t *tools, const char *name, size_t n_bytes);

/* Whether the text can still become the name of a tool. */
bool call_tool_may_be(const json_t *tools, const char *text, size_t n_bytes);

#endif
