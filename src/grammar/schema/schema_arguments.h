/* The arguments of tool calls by the schema of a tool's parameters: as one JSON object, or each by itself
 * for models that write them so.
 *
 * A reader has one dialect. The parameters of several tools may be read by one reader, one after the other. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_ARGUMENTS_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_ARGUMENTS_H

#include "grammar/schema/schema_reader.h"

/* Sets the parameters that references are looked up in. NULL, or an empty object: any object. Returns
 * their schema, limited to objects; NULL: error. */
const json_t *schema_begin_tool(struct schema_reader *r, const json_t *parameters);

/* An argument. schema NULL: any value. Names are borrowed from the schemas. */
struct schema_argument {
    const char *name;
    const json_t *schema;
    bool is_required;
};

/* One of several ways to fill the parameters. */
struct schema_arguments {
    struct schema_argument *list;
    size_t n;
    const json_t *further;    /* the schema of arguments that are not listed; NULL: none are allowed */
    const json_t *properties; /* has the names that are listed, and those that are not allowed */
};

/* All ways: an array of *n. NULL: error, also if a keyword cannot be enforced argument by argument. */
struct schema_arguments *schema_list_arguments(struct schema_reader *r, const json_t *schema, size_t *n);
void schema_free_arguments(struct schema_arguments *ways, size_t n);

/* A value in the reader's dialect; schema NULL: any. */
int32_t schema_argument_value(struct schema_reader *r, const json_t *schema);

/* The schema of null where a schema allows it, else of nothing. NULL: error. */
const json_t *schema_null_of(struct schema_reader *r, const json_t *schema);

enum { SCHEMA_MAX_MARKS = 3 };

/* For readers of plain text (is_raw). The text of a string without quotes, which contains none of the marks
 * (NULL: no further one). may_be_null: the text null means the value null. */
struct schema_text {
    const char *marks[SCHEMA_MAX_MARKS];
    bool may_be_null;
};
int32_t schema_argument_text(struct schema_reader *r, const json_t *schema, const struct schema_text *text);
/* The name of an argument that is not listed: letters, digits and _, for is_plain without - and dots. */
int32_t schema_argument_name(struct schema_reader *r, const struct schema_arguments *listed, bool is_plain);

#endif
