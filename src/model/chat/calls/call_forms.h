/* The forms in which models write tool calls, as a table: each form is a short program of marks and
 * parts of a call, which tool_parser.c interprets while an answer grows. */
#ifndef TUTTI_MODEL_CHAT_CALL_FORMS_H
#define TUTTI_MODEL_CHAT_CALL_FORMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum call_op {
    CALL_MARK,   /* blanks, then text; anything else: the answer does not have this form */
    CALL_CLOSE,  /* the same, or the end of the answer */
    CALL_OPTION, /* blanks, then text if it is there */
    CALL_IF,     /* blanks; if text follows, the step `to` is next, after text */
    CALL_PEEK,   /* the same, but text belongs to that step */
    CALL_GOTO,   /* the step `to` is next */
    CALL_SKIP,   /* everything up to text, and text */
    /* Parts of a call. text has the bytes that can follow a name. */
    CALL_NAME,
    CALL_NAME_ID, /* "functions.NAME:INDEX", which is also the call's id */
    CALL_ID,
    /* A JSON object with name and arguments, in any order. text is how it is published: @ is the name, $ the
     * arguments, # a number. */
    CALL_OBJECT,
    CALL_JSON,       /* the arguments as a JSON object */
    CALL_PYTHON,     /* the arguments as in Python, up to a closing parenthesis */
    CALL_PAIRS,      /* arguments in pairs follow */
    CALL_KEY,        /* an argument's name, up to text */
    CALL_ATTRIBUTE,  /* the same, with &amp; and &quot; for two signs */
    CALL_VALUE,      /* its value, up to text */
    CALL_LINES,      /* the same; a line break at either end does not belong to it. to 1: it has both */
    CALL_TEXT,       /* as CALL_VALUE; a text, whatever the tool's schema says */
    CALL_QUOTED,     /* as CALL_VALUE; a text, unless the tool's schema has another type */
    CALL_DICT,       /* a value in Gemma's notation; text is the mark around its texts */
    CALL_ELEMENT,    /* a value of nested elements, and the tag that closes it; text is before each tag */
    CALL_PAIRS_OVER, /* no further pairs */
    CALL_DONE,       /* the call or the list of calls is complete; the next one begins with a mark */
    CALL_LAST,       /* the same, and only blanks may follow */
};

/* What a grammar of the form makes of a CALL_OPTION or CALL_IF: models write only what is published, but
 * some answers vary. Of a CALL_SKIP: WRITE_NEVER if nothing is before its text. WRITE_TOKEN: either, but never
 * where the vocabulary lacks the special token that the text begins with. */
enum call_writing { WRITE_EITHER, WRITE_ALWAYS, WRITE_NEVER, WRITE_TOKEN };

enum { CALL_MAX_OPENINGS = 3, CALL_MAX_TRAITS = 2, CALL_MAX_NEXT = 2 };

struct call_step {
    enum call_op op;
    const char *text;
    int to;
    enum call_writing writing;
    /* Of a CALL_LINES: marks of the following steps. A line that begins with one of these ends the value too,
     * since models leave text out. They begin with the same byte as text. */
    const char *next[CALL_MAX_NEXT];
};

struct call_form {
    const char *name; /* rows with one name are variants of one form */
    /* Each of these begins a call, anywhere in the answer; models write the first. None: the calls are the
     * whole answer. */
    const char *openings[CALL_MAX_OPENINGS];
    /* A chat template that contains all of these texts is of this form. None: never by its text. */
    const char *traits[CALL_MAX_TRAITS];
    const struct call_step *steps;
    size_t n_steps;
    bool is_part;       /* an opening belongs to the first step */
    bool is_named_only; /* the row is not tried for a model whose form is not known */
};

size_t call_forms_count(void); /* at most 64 */
const struct call_form *call_form_at(size_t i);

/* The rows of a form, as bits; name NULL: those of all forms. 0: there is no such form. */
uint64_t call_forms_find(const char *name);

/* The row that a chat template is of; NULL: its text does not tell. */
const struct call_form *call_form_of_template(const char *text, size_t n_bytes);

/* The first row of a form; NULL: there is no such form. */
const struct call_form *call_form_find(const char *name);

/* Whether grammars of the row can be made. */
bool call_form_can_be_written(const struct call_form *form);
/* The row by which a grammar makes a model of this row write calls: that one, or the first of "list" if it
 * cannot be written or is NULL, for a model whose form is not known. */
const struct call_form *call_form_written(const struct call_form *form);

/* Whether text, such as a special token, occurs in what the rows of a form match. */
bool call_form_mentions(uint64_t rows, const char *text, size_t n_bytes);

#endif
