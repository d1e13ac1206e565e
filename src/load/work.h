/* What is asked: prompts of a file or made-up ones, and the bodies of the requests that carry them.
 *
 * A file holds a prompt a line, or JSON Lines (its first line that is not blank begins with '{') with either
 * "prompt": TEXT or "messages": [{"role", "content"}, ...], and "max_tokens" (or "output_len") where this prompt's answer
 * has a length of its own. Blank lines are left out. */
#ifndef TUTTI_LOAD_WORK_H
#define TUTTI_LOAD_WORK_H

#include "base/buf.h"

#include <jansson.h>

/* The HTTP interfaces that servers of language models offer. */
enum load_api {
    LOAD_API_OPENAI,      /* /v1/completions for a text, /v1/chat/completions for messages */
    LOAD_API_LLM_SERVING, /* MindSpore's: /models/NAME/generate_stream */
    LOAD_API_TGI,         /* Text Generation Inference: /generate_stream */
};

struct work_item {
    const char *text; /* NULL: messages */
    size_t n_bytes;
    json_t *messages;
    int max_tokens; /* 0: not told */
};

/* Made-up prompts differ from each other, so that no server has read one before. */
struct made_prompts {
    int n_words;  /* above 0. A common word is about one token of most vocabularies */
    int n_shared; /* of these, the first ones are the same in all prompts */
    /* 0 to 1: numbers of words and of tokens to answer with lie within that part of what was asked for. */
    double spread;
    uint64_t seed;
};

struct work {
    struct work_item *items; /* NULL: made up */
    size_t n, capacity;
    struct made_prompts made;
    json_t *values; /* array; what the items point into */
    struct buf bytes;
};

/* Takes what bytes holds (it is then empty). Fills *out, for work_clear(), also after a failure. The error names the file
 * and line. */
MUST_CHECK enum tutti_status work_read(struct work *out, const char *name, struct buf *bytes,
                                       struct tutti_error *err);
void work_make(struct work *out, const struct made_prompts *made);
void work_clear(struct work *work);

/* How the requests are put. Pointers are borrowed. */
struct work_style {
    enum load_api api;
    const char *model;  /* NULL: not named; LOAD_API_LLM_SERVING needs one, for its path */
    bool as_chat;       /* a text becomes a user's message */
    int max_tokens;     /* where the item has none */
    double temperature; /* NaN: the server's own */
    bool ignore_eos;
    /* An object whose members are put into each body, over what stands there; NULL: none. */
    const json_t *more;
};

/* Can every item be asked in this way? The error says which cannot. */
MUST_CHECK enum tutti_status work_check(const struct work *work, const struct work_style *style,
                                        struct tutti_error *err);

/* Replaces *out by the body of a request. index: below n, or of made-up prompts any number. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status work_body(const struct work *work, const struct work_style *style,
                                       uint64_t index, struct buf *out, struct tutti_error *err);

/* Does this request go to the chat endpoint? */
bool work_is_chat(const struct work *work, const struct work_style *style, uint64_t index);

#endif
