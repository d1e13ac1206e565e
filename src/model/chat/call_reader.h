/* Incremental tool-call parser: streams the name and arguments of a call while the model still
 * writes it.
 *
 * Linear time: each byte of an answer is parsed a bounded number of times. Text that may still
 * become a call is at most 4 KB long, and a Python argument is parsed once, when it is complete.
 * Nothing here recurses. jansson parses JSON (up to 2048 levels); src/template parses Python, and
 * template.h lists what recurses there.
 *
 * Understands the call syntaxes of chat_find_calls() that begin with the name of a listed tool.
 * JSON arguments are passed on as the model writes them; Python arguments are converted to JSON
 * one by one. Any other syntax is not streamed: chat_find_calls() finds such calls at the end of
 * the answer. */
#ifndef TUTTI_MODEL_CHAT_CALL_READER_H
#define TUTTI_MODEL_CHAT_CALL_READER_H

#include "base/buf.h"

#include <jansson.h>

/* Zero-initialise. */
struct call_reader {
    enum {
        CALL_AWAITED, /* the next call has not certainly begun */
        CALL_JSON,    /* inside JSON arguments */
        CALL_PYTHON,  /* inside Python arguments */
        CALL_ENDED,   /* its arguments are complete */
        CALL_NONE,    /* no more calls will be found here */
    } state;
    enum { WAY_UNKNOWN, WAY_TAGGED, WAY_OBJECT, WAY_LIST, WAY_NAMED } way; /* how calls are written */
    size_t at;      /* bytes of the answer that are done */
    size_t n_calls; /* that have begun */
    int depth;      /* brackets open in the arguments */
    char quote;     /* of the string that is open in them; 0: none */
    bool is_escaped;
    size_t first;    /* offset of the current Python argument */
    struct buf made; /* the arguments before it, as JSON */
    size_t n_given;  /* bytes of made that were returned */
    json_t *names;   /* of the arguments in made; NULL: none yet */
};

/* A piece of call number index. The first piece has the name; the arguments of all pieces joined
 * are a JSON object. The pointers are valid until the answer grows or call_reader_next() is
 * called again. */
struct call_piece {
    size_t index;
    const char *name; /* NULL: not the first piece */
    size_t n_name;
    const char *arguments;
    size_t n_bytes;
    bool is_last; /* the arguments are complete */
};

/* Gets the next piece of an answer that has grown to n_bytes of text. False: no piece until the
 * answer grows further. text may have moved, but its earlier bytes must be the same. tools: as in
 * chat_find_calls(). */
bool call_reader_next(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece);
void call_reader_clear(struct call_reader *r);

#endif
