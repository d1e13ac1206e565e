/* The parts of calls as nodes of a grammar: marks, names and arguments of a request's tools. */
#ifndef TUTTI_CALL_PARTS_H
#define TUTTI_CALL_PARTS_H

#include "engine/constraints/call_grammar.h"
#include "grammar/schema/schema_arguments.h"

enum { LIMIT_CALL_TOOLS = 4096 };

struct call_parts {
    const struct call_writer *writer;
    struct syntax *s;
    struct tutti_error *err;
    enum tutti_status status; /* of errors that are not the readers' */
    json_t *spec;             /* the text of the grammar */
    bool is_parallel;         /* several calls are allowed */
    bool has_reasoning;       /* a message of reasoning may come first */
    int n_tools;
    struct call_tool {
        const json_t *function;
        const char *name;
        const json_t *schema; /* of the arguments, an object */
        bool is_wanted;       /* may be called */
        bool is_loose;        /* with any arguments */
        int32_t json;         /* node of all arguments; -1: not created yet */
        size_t n_ways;
        struct schema_arguments *ways; /* NULL: not read yet */
        int32_t **values;              /* [n_ways][n + 1] nodes in Python; -1: not created yet */
    } * tools;
    /* values: in the form's dialect, and the owner of all shared nodes; texts: without quotes */
    struct schema_reader *values, *texts;
    int tool;       /* whose schema the readers have; 0: none */
    int32_t blanks; /* a node; -1: not created yet */
    bool has_text;  /* the form marks values that are texts */
};

/* only_strict: other tools take any arguments. False: error. call_parts_finish() is for the caller in either case. */
bool call_parts_init(struct call_parts *p, const struct call_writer *w, const char *text, size_t n_bytes,
                     bool only_strict, struct syntax *s, struct tutti_error *err);
/* Frees everything. Returns the status. */
MUST_CHECK enum tutti_status call_parts_finish(struct call_parts *p);
bool call_parts_are_ok(const struct call_parts *p);
/* Sets the error of tools. Returns -1. */
int32_t call_parts_fail(struct call_parts *p, const char *format, ...) PRINTF_LIKE(2, 3);

/* Nodes. Tools and ways are numbered from 1, arguments of a way from 0; the one after the last is any that
 * is not listed. */
int32_t call_parts_mark(struct call_parts *p, const char *text);
int32_t call_parts_blanks(struct call_parts *p);
int32_t call_parts_message(struct call_parts *p); /* text without marks of channels */
int32_t call_parts_id(struct call_parts *p);
int32_t call_parts_name(struct call_parts *p, int tool, const struct call_step *step);
int32_t call_parts_object(struct call_parts *p, int tool, const char *published);
int32_t call_parts_json(struct call_parts *p, int tool);
int32_t call_parts_key(struct call_parts *p, int tool, int way, int argument, const char *end);
int32_t call_parts_further_key(struct call_parts *p, int tool, int way, bool is_python);
enum { CALL_PARTS_NO_VALUE = -2 };
/* The value and the mark that ends it; CALL_PARTS_NO_VALUE: the step does not write this argument. */
int32_t call_parts_value(struct call_parts *p, int tool, int way, int argument, const struct call_step *step);
int32_t call_parts_python_value(struct call_parts *p, int tool, int way, int argument);

bool call_parts_may_call(const struct call_parts *p, int tool);
size_t call_parts_n_ways(struct call_parts *p, int tool);
const struct schema_arguments *call_parts_way(struct call_parts *p, int tool, int way); /* NULL: error */

/* Whether the vocabulary has no special token that the text begins with. */
bool call_parts_lacks_token(const struct call_parts *p, const char *text);
bool call_parts_is_stop(const struct call_parts *p, const char *text);

#endif
