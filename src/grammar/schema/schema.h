/* Compiles a JSON Schema into a grammar of valid JSON texts:
 * https://json-schema.org/draft/2020-12
 *
 * Every text of the grammar is valid, but not every valid text is in the grammar. Properties come
 * in the order of the schema; optional ones may be missing. Between JSON tokens there is at most
 * one blank, or a line break and an indentation. Numbers have at most 16 digits before the point.
 * A schema with "properties" but without "additionalProperties" allows no other properties.
 * Without "type", the keywords decide the type.
 *
 * The table of schema_keywords.c has the supported keywords. Errors name those that are not: unevaluated...,
 * $dynamicRef, and references to other documents. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_H

#include "grammar/syntax.h"

/* Fills *out, which was zeroed; the caller clears it in either case. text: JSON. TUTTI_E_ARGUMENT
 * with err->param "response_format": what is invalid or unsupported, and where; TUTTI_E_LIMIT;
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status schema_read(struct syntax *out, const char *text, size_t n_bytes,
                                         struct tutti_error *err);

/* A regular expression in the syntax of the keyword "pattern", which the whole text must match. */
MUST_CHECK enum tutti_status schema_read_pattern(struct syntax *out, const char *text, size_t n_bytes,
                                                 struct tutti_error *err);

/* Any JSON object. */
MUST_CHECK enum tutti_status schema_any_object(struct syntax *out, struct tutti_error *err);

#endif
