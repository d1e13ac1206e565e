/* Parses tool calls in an answer, piece by piece while the model writes it, or a complete answer at
 * once. Families write calls in four ways:
 *
 *   <tool_call>{"name": ..., "arguments": {...}}</tool_call>   Qwen and others, anywhere and several
 *   {"name": ..., "parameters": {...}}                          LLaMA-3, the whole answer
 *   [{"name": ..., "arguments": {...}}, ...]                    Mistral, the whole answer
 *   NAME, a line's end, JSON or ```python tool_call(a=1)```     GLM-4, ChatGLM3, the whole answer
 *
 * Only tools that the request lists are called; anything else stays text. JSON arguments that follow
 * the name are passed on as the model writes them, and Python arguments are converted to JSON one by
 * one. A call written otherwise (arguments before the name, as a string, or none) is passed on when
 * its object is complete.
 *
 * Linear time: each byte of an answer is parsed a bounded number of times. A beginning that is
 * matched again with more text is at most 4 KB long; an object and a Python argument are parsed once,
 * when they are complete. Nothing here recurses. jansson parses JSON (up to 2048 levels);
 * src/template parses Python, and template.h lists what recurses there. */
#ifndef TUTTI_MODEL_CHAT_CALL_READER_H
#define TUTTI_MODEL_CHAT_CALL_READER_H

#include "base/buf.h"

#include <jansson.h>

/* Zero-initialise. */
struct call_reader {
    enum {
        CALL_AWAITED, /* the next call has not certainly begun */
        CALL_HEAD,    /* its object is next */
        CALL_NAMED,   /* after its name in a line: an object or Python is next */
        CALL_FENCE,   /* the same: Python is next */
        CALL_JSON,    /* inside JSON arguments */
        CALL_PYTHON,  /* inside Python arguments */
        CALL_OBJECT,  /* inside its object, but not in arguments that are passed on */
        CALL_CLOSING, /* after its object */
        CALL_TAIL,    /* no call can follow; the rest should be blank */
        CALL_CODE,    /* the same after Python; the rest may be the end of a code block */
        CALL_NONE,    /* no more calls will be found here: what was read is not their syntax */
    } state;
    enum { WAY_UNKNOWN, WAY_TAGGED, WAY_OBJECT, WAY_LIST, WAY_NAMED } way; /* how calls are written */
    bool takes_any;    /* set by the caller: arguments may be any JSON value */
    bool is_told;      /* the current call's name and arguments were passed on */
    bool is_open;      /* more arguments of call number n_calls - 1 follow */
    size_t at;         /* bytes of the answer that are done */
    size_t n_calls;    /* that have begun */
    size_t n_searched; /* bytes where no tag begins, while another syntax is read */
    size_t n_content;  /* bytes before the first call in tags */
    size_t begin;      /* offset of the current call's object, or of its name in a line */
    size_t n_name;     /* of the name in a line */
    int depth;         /* brackets open in the arguments or the object */
    char quote;        /* of the string that is open in them; 0: none */
    bool is_escaped;
    size_t first;    /* offset of the arguments; of the current one in Python */
    struct buf made; /* the arguments before it, as JSON; or those of object */
    size_t n_given;  /* bytes of made that were returned */
    json_t *names;   /* of the arguments in made; NULL: none yet */
    json_t *object;  /* the last one that was parsed */
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
 * answer grows further. text may have moved, but its earlier bytes must be the same. tools: a
 * request's list. */
bool call_reader_next(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece);
void call_reader_clear(struct call_reader *r);

/* The tool calls in a complete answer: [{"name", "arguments": JSON as text}]. *n_content: bytes
 * of content before them. NULL: no calls (all is content, also if it breaks off within a call), or
 * out of memory. takes_any: as above. The result is for json_decref(). */
json_t *chat_find_calls(const char *text, size_t n_bytes, const json_t *tools, bool takes_any,
                        size_t *n_content);

/* How many bytes of a growing answer are certainly content, whatever follows. n_known: at most
 * what an earlier call returned; these bytes are not searched again. */
size_t chat_sure_content(const char *text, size_t n_bytes, size_t n_known, const json_t *tools);

#endif
