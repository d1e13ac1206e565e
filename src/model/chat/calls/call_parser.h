/* The state of a parser of tool calls, and the steps of a form that are in files of their own. */
#ifndef TUTTI_MODEL_CHAT_CALLS_CALL_PARSER_H
#define TUTTI_MODEL_CHAT_CALLS_CALL_PARSER_H

#include "base/buf.h"
#include "model/chat/calls/call_arguments.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/calls/call_notation.h"
#include "tutti.h"

#include <string.h>

enum { CALL_MAX_NAME = 256 }; /* bytes of a name, or of what is skipped */

/* Where a scan of a JSON object is. */
enum object_place { OBJECT_BEGIN, OBJECT_KEY, OBJECT_IN_KEY, OBJECT_COLON, OBJECT_VALUE, OBJECT_IN_VALUE };

struct tutti_tool_parser {
    json_t *tools;      /* as in OpenAI's API */
    uint64_t forms;     /* the rows of the table that the answer may have, as bits */
    bool any_arguments; /* may be any JSON value */
    char starts[32];    /* the first bytes of their openings, as a string */
    enum {
        PARSER_SEARCH, /* for an opening */
        PARSER_FORM,   /* within a form */
        PARSER_TAIL,   /* no call can follow; the rest should be blank */
        PARSER_NONE,   /* no more calls will be found: the text is not their syntax */
    } state;
    int form, step;          /* row of the table, and index of its step */
    size_t n_seen;           /* bytes of the longest answer so far */
    size_t at;               /* bytes of the answer that are parsed */
    size_t mark;             /* where the current form begins */
    bool is_first;           /* the form began with the answer, not at an opening */
    size_t n_content;        /* bytes before the first call */
    size_t scanned, n_solid; /* bytes of content seen, and without the blanks at their end */

    /* The current call. */
    size_t n_calls; /* that have begun */
    bool is_open;   /* more arguments of call number n_calls - 1 follow */
    bool has_begun; /* the form has reported a call */
    struct buf name;
    json_t *ids; /* of each call, a string or null */
    json_t *id;  /* of the call that was not reported yet; NULL: none */

    /* Within a step. */
    bool is_entered; /* the step has begun */
    size_t searched; /* offset where the search for the end of a key or value goes on */
    enum object_place place;
    int depth;  /* brackets open in a JSON value or in Python */
    char quote; /* of the string that is open in them; 0: none */
    bool is_escaped;
    bool is_streamed;          /* the value is passed on as arguments */
    bool is_reported;          /* the object's call was reported */
    size_t begin, first;       /* offsets of the object; of a key, value or argument in it */
    size_t written, n_written; /* offset and bytes of the object's arguments */
    size_t n_key;
    struct notation_scan scan;
    enum call_key { KEY_OTHER, KEY_NAME, KEY_ARGUMENTS, KEY_ID } key;

    struct call_arguments arguments; /* that are not passed on as they are written */
    json_t *object;                  /* the last one that was parsed */

    bool is_pending; /* delta was found by tutti_tool_parser_content() */
    struct tutti_tool_call_delta delta;
};

/* The result of a step. */
enum progress {
    STEP_WAIT,  /* more text is needed */
    STEP_GO,    /* something was parsed */
    STEP_DELTA, /* the same, and p->delta is set */
    STEP_FAIL,  /* the text is not of this form */
};

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static inline size_t n_without_blanks(const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && is_blank(text[n_bytes - 1]))
        n_bytes--;
    return n_bytes;
}

enum match { MATCH_YES, MATCH_NO, MATCH_LATER };

/* Whether text begins with mark. MATCH_LATER: it is the beginning of mark. */
static inline enum match match_mark(const char *mark, const char *text, size_t n_bytes)
{
    size_t n = strlen(mark), n_same = n < n_bytes ? n : n_bytes;
    if (memcmp(text, mark, n_same) != 0)
        return MATCH_NO;
    return n_same < n ? MATCH_LATER : MATCH_YES;
}

/* The tool of the current call. */
const json_t *call_parser_tool(const struct tutti_tool_parser *p);

/* Passes on the arguments that were printed. */
enum progress call_parser_give(struct tutti_tool_parser *p, bool is_last);

/* CALL_KEY, CALL_ATTRIBUTE, CALL_SKIP: everything up to the step's text. */
enum progress call_parse_until(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                               size_t n_bytes);

/* CALL_VALUE, CALL_LINES, CALL_TEXT, CALL_QUOTED: everything up to the step's text. */
enum progress call_parse_value(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                               size_t n_bytes);

/* CALL_DICT */
enum progress call_parse_dict(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                              size_t n_bytes);

/* CALL_ELEMENT: the value and the tag that closes it. */
enum progress call_parse_element(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                                 size_t n_bytes);

#endif
