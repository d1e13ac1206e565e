/* Parses the stream of one answer incrementally, for each HTTP API.
 *
 * OpenAI and TGI: server-sent events (HTML standard, section 9.2) whose data is a JSON object or
 * "[DONE]". llm-serving: one JSON object per line. The input is untrusted: lines are bounded, and
 * anything unexpected ends the answer. */
#ifndef TUTTI_LOAD_ANSWER_H
#define TUTTI_LOAD_ANSWER_H

#include "base/buf.h"
#include "load/work.h"

enum answer_state {
    ANSWER_RUNNING,
    ANSWER_COMPLETE, /* the API's end marker was seen; the rest is ignored */
    ANSWER_BAD,      /* invalid for the API */
    ANSWER_ERROR,    /* the server sent an error in the stream */
};

/* Zero-initialise and set api. */
struct answer {
    enum load_api api;
    enum answer_state state;
    uint32_t n_pieces; /* events with visible text */
    uint32_t n_tokens; /* events with a token, by the API's rules */
    bool has_usage;    /* the server sent usage, in the next members */
    uint32_t output_tokens;
    bool has_prompt_tokens;
    uint32_t prompt_tokens, cached_tokens;
    char text[256]; /* of ANSWER_BAD and ANSWER_ERROR: what is wrong */

    /* private to answer.c */
    struct buf line, data;
    size_t n_events;
    bool has_data, after_cr, is_finished;
};

/* The text in {"error": {"message": TEXT}} or {"error": TEXT}. NULL: none. */
const char *answer_error_message(const json_t *value);

/* Parses further bytes. n_pieces grows by the completed pieces. */
void answer_feed(struct answer *a, const char *bytes, size_t n_bytes);

/* Call at the end of the response. False: the answer was incomplete. */
bool answer_end(struct answer *a);

void answer_reset(struct answer *a, enum load_api api); /* for the next answer; keeps the storage */
void answer_clear(struct answer *a);

#endif
