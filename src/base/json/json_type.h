/* Names the type of a JSON value for messages. */
#ifndef TUTTI_BASE_JSON_JSON_TYPE_H
#define TUTTI_BASE_JSON_JSON_TYPE_H

#include <jansson.h>

/* "an object", "a list", "a string", "an integer", "a number", "true", "false", "null"; "nothing"
 * for NULL. Static. */
const char *json_type_name(const json_t *value);

#endif
