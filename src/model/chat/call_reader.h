/* Calls of tools in an answer while it grows: what of a call is certain goes out before the call is complete.
 *
 * No byte of an answer is looked at more than a bounded number of times: what may still become a call is at most 4 KB long, and
 * an argument in Python is read once, when it is complete. Nothing here recurses; JSON is read by jansson (2048 levels), and Python by
 * the room template, whose header lists what recurses there.
 *
 * Reads the ways of writing calls that chat_find_calls() knows, as far as they begin with the name of a listed tool: arguments in JSON are
 * given as the model writes them, those in Python as JSON, one after the other. Whatever is written in another way is not given;
 * it is for chat_find_calls() at the end. */
#ifndef TUTTI_MODEL_CHAT_CALL_READER_H
#define TUTTI_MODEL_CHAT_CALL_READER_H

#include "base/buf.h"

#include <jansson.h>

/* Zero-initialise. */
struct call_reader {
    enum {
        CALL_AWAITED, /* of the next call nothing is certain */
        CALL_JSON,    /* its arguments come, as JSON */
        CALL_PYTHON,  /* as Python */
        CALL_ENDED,   /* its arguments are complete */
        CALL_NONE,    /* no more calls will be found here */
    } state;
    enum { WAY_UNKNOWN, WAY_TAGGED, WAY_OBJECT, WAY_LIST, WAY_NAMED } way; /* how calls are written */
    size_t at;      /* bytes of the answer that need not be looked at again */
    size_t n_calls; /* begun */
    int depth;      /* brackets open in the arguments */
    char quote;     /* of the string that is open in them; 0: none */
    bool is_escaped;
    size_t first;    /* byte of the argument in Python that is being read */
    struct buf made; /* the arguments before it as JSON */
    size_t n_given;  /* bytes of it */
    json_t *names;   /* of those arguments; NULL: none yet */
};

/* A piece of call number index. First comes one with the name; the arguments of all pieces together are a JSON object. What is pointed to is
 * valid until the answer grows or the next call. */
struct call_piece {
    size_t index;
    const char *name; /* NULL: not the first piece */
    size_t n_name;
    const char *arguments;
    size_t n_bytes;
    bool is_last; /* the arguments are complete */
};

/* The next piece of an answer, which has grown to n_bytes of text; false: none before it grows further. text may have moved, its
 * beginning must not have changed. tools: as of chat_find_calls(). */
bool call_reader_next(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece);
void call_reader_clear(struct call_reader *r);

#endif
