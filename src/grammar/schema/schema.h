/* JSON Schema to a grammar of texts that are valid by it: https://json-schema.org/draft/2020-12
 *
 * Every text of the grammar is valid; not every valid text is in it. Properties come in the order of the schema, optional ones
 * may be missing; between tokens stands at most one blank, or a line's end and an indentation; numbers have at most 16 digits
 * before the point. Where a schema says "properties" and not "additionalProperties", no others are written. What a keyword
 * speaks of decides the type where none is given.
 *
 * Not supported, and named in the error: not, if, dependent..., patternProperties, propertyNames, minProperties,
 * maxProperties, uniqueItems, contains, multipleOf, unevaluated..., $dynamicRef; oneOf whose alternatives could hold together;
 * references to other documents. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_H

#include "grammar/syntax.h"

/* Fills *out, which was zeroed; the caller clears it in either case. text: JSON. TUTTI_E_ARGUMENT with err->param
 * "response_format": what is wrong or not supported, and where; TUTTI_E_LIMIT; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status schema_read(struct syntax *out, const char *text, size_t n_bytes,
                                         struct tutti_error *err);

/* A regular expression as the keyword "pattern" has it, of the text itself, all of which must match. */
MUST_CHECK enum tutti_status schema_read_pattern(struct syntax *out, const char *text, size_t n_bytes,
                                                 struct tutti_error *err);

/* Any JSON object. */
MUST_CHECK enum tutti_status schema_any_object(struct syntax *out, struct tutti_error *err);

#endif
