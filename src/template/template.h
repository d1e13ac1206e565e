/* Chat templates: the subset of Jinja2 that published checkpoints use in `chat_template`.
 *
 * Templates and messages are untrusted. A template can only compute and print: it has no access
 * to files, nor to the clock except by strftime_now, and each rendering is bounded in steps,
 * memory, output and depth. Text keeps its origin: bytes that come from `user` (or were computed
 * from it) stay marked, byte for byte, through concatenation, slices, filters and methods, so
 * that user text never becomes a special token.
 *
 * The language is that of Jinja2 3.1 as transformers sets it up (trim_blocks, lstrip_blocks, loop
 * controls, generation blocks, raise_exception, strftime_now, a tojson that escapes no HTML),
 * values behave and print as in Python. Not supported: inheritance, includes and imports,
 * autoescape. Additional: append, pop and the like on lists and dicts.
 *
 * All recursion, and its bounds (a level takes at most 1 KB of stack;
 * tests/template/test_template_attacks.c runs all of it on 256 KB, tests/check_recursion.py finds
 * recursion that is not listed):
 *   parse.c       nested blocks                       MAX_NESTED_BLOCKS, 100, when the template is compiled
 *   parse_expr.c  nested expressions and targets      MAX_DEPTH, 120, blocks around them included
 *   parse_expr.c  the tree made of them and of chains MAX_TREE_DEPTH, 200 (a|b|c is as deep as it is long)
 *   eval.c exec.c expressions, blocks, macros, loops  template_limits.depth, 200, all levels together
 *   value.c       values from JSON, compared values   the same
 *   print.c       printed values, tojson              the same
 *   value.c       merge sorts                         log2 of the number of items
 *   exec.c template.c  targets, literals              the tree's depth
 *   template.c    counting the bytes of variables     200 levels, deeper ones are not counted
 * The tree and all values live in arenas: freeing them does not recurse. jansson parses the JSON
 * of a request, up to 2048 levels. https://jinja.palletsprojects.com/en/stable/templates/ */
#ifndef TUTTI_TEMPLATE_H
#define TUTTI_TEMPLATE_H

#include "base/error.h"

#include <jansson.h>

struct template;

enum { TEMPLATE_MAX_BYTES = 1024 * 1024 }; /* the longest published one has 40,000 */

/* On success *out is the caller's, for template_free(). name is for messages, such as "name: line
 * 3: ..."; those of rendering have only what follows its last slash. TUTTI_E_FORMAT: syntax error. TUTTI_E_UNSUPPORTED: a statement outside of the subset.
 * TUTTI_E_LIMIT: too long or nested too deeply. */
MUST_CHECK enum tutti_status template_compile(struct template **out, const char *text, size_t n_bytes,
                                              const char *name, struct tutti_error *err);
void template_free(struct template *tpl); /* NULL is allowed */

/* Whether the template reads a variable of that name anywhere. */
bool template_mentions(const struct template *tpl, const char *variable);

/* 0 selects the default. */
struct template_limits {
    /* Evaluated nodes plus 64-byte runs of processed text. Default: 10 million plus the bytes of
     * the variables' text. */
    uint64_t n_steps;
    size_t memory_bytes; /* of all values; default: 64 MiB plus 24 times the variables' text */
    size_t output_bytes; /* default: 64 MiB */
    int depth;           /* of calls, blocks, nested values and expressions together; default: 200 */
};

struct template_input {
    const json_t *trusted; /* object of variables whose text counts as the template's own: bos_token, ... */
    const json_t *user;    /* object of variables whose text is the user's: messages, tools, ... */
    /* Roles become part of special tokens ("<|" + role + "|>"): if the value of a key "role" in
     * `user` is one of these words, it counts as the template's own text. Ends with NULL; NULL:
     * none. */
    const char *const *roles;
    int64_t now; /* seconds since 1970 for strftime_now; 0: the clock */
    struct template_limits limits;
};

/* The rendered text, in segments of the same origin. */
struct template_output {
    char *text; /* n_bytes, and a terminating zero */
    size_t n_bytes;
    struct template_segment {
        size_t end; /* offset after the segment's last byte */
        bool is_user;
    } * segments;
    size_t n_segments;
};

/* Renders. On success *out is to be given to template_output_clear(). Any number of threads may
 * render one template. TUTTI_E_ARGUMENT: the template raised an exception or could not compute
 * with these variables. TUTTI_E_LIMIT, TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status template_render(const struct template *tpl, const struct template_input *input,
                                             struct template_output *out, struct tutti_error *err);

/* Converts the named arguments of a Python call, "a=1, b='x'", to a JSON object in *out. Only
 * literals are allowed, also null: no names, no operators. TUTTI_E_FORMAT: anything else. */
MUST_CHECK enum tutti_status template_read_arguments(const char *text, size_t n_bytes,
                                                     struct template_output *out, struct tutti_error *err);
void template_output_clear(struct template_output *out); /* a zeroed one is allowed */

#endif
