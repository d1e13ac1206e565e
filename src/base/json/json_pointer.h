/* Looks up the place in a JSON value that a JSON Pointer (RFC 6901) names. */
#ifndef TUTTI_BASE_JSON_JSON_POINTER_H
#define TUTTI_BASE_JSON_JSON_POINTER_H

#include <jansson.h>

/* pointer: as after the # of a URI, "/$defs/a~1b%20c"; "" is value itself. NULL: it leads nowhere. */
const json_t *json_pointer(const json_t *value, const char *pointer);

#endif
