/* The workload: prompts from a file or synthetic ones, and the request bodies that contain them. */
#ifndef TUTTI_LOAD_WORK_H
#define TUTTI_LOAD_WORK_H

#include "base/files/prompt_file.h"

#include <jansson.h>

/* The HTTP interfaces that servers of language models offer. */
enum load_api {
    LOAD_API_OPENAI,      /* /v1/completions for a text, /v1/chat/completions for messages */
    LOAD_API_LLM_SERVING, /* MindSpore's: /models/NAME/generate_stream */
    LOAD_API_TGI,         /* Text Generation Inference: /generate_stream */
};
extern const char *const LOAD_API_NAMES[]; /* by enum load_api, NULL at the end */

/* Synthetic prompts. They differ from each other, so that no server has one in its prefix cache. */
struct made_prompts {
    int n_words;  /* above 0. A common word is about one token of most vocabularies */
    int n_shared; /* of these, the first n_shared are the same in all prompts */
    /* 0 to 1: relative variation of the number of words and of output tokens. */
    double spread;
    uint64_t seed;
};

struct work {
    struct prompt_file prompts; /* read as PROMPTS_TO_SEND; none: synthetic */
    struct made_prompts made;
};

/* The form of the requests. Pointers are borrowed. */
struct work_style {
    enum load_api api;
    const char *model;  /* NULL: not named; LOAD_API_LLM_SERVING needs one, for its path */
    bool as_chat;       /* send a text as a user message */
    int max_tokens;     /* if the prompt has none */
    double temperature; /* NaN: the server's own */
    bool ignore_eos;
    /* An object whose members are merged into each body and override it; NULL: none. */
    const json_t *more;
};

/* Checks that every prompt can be sent in this form. The error names the first that cannot. */
MUST_CHECK enum tutti_status work_check(const struct work *work, const struct work_style *style,
                                        struct tutti_error *err);

/* Replaces *out by the body of a request. index: below n; with synthetic prompts any number.
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status work_body(const struct work *work, const struct work_style *style,
                                       uint64_t index, struct buf *out, struct tutti_error *err);

/* Whether this request goes to the chat endpoint. */
bool work_is_chat(const struct work *work, const struct work_style *style, uint64_t index);

#endif
