/* The stream of one answer, byte by byte as it comes, for each of the interfaces.
 *
 * OpenAI and TGI: server-sent events as the HTML standard, section 9.2, has them, whose data is a JSON object (or
 * "[DONE]"). llm-serving: a JSON object a line. The bytes are hostile: lines are bounded, and whatever does not look as
 * the interface says ends the answer. */
#ifndef TUTTI_LOAD_ANSWER_H
#define TUTTI_LOAD_ANSWER_H

#include "base/buf.h"
#include "load/work.h"

enum answer_state {
    ANSWER_RUNNING,
    ANSWER_COMPLETE, /* the interface's own end was seen; what follows is ignored */
    ANSWER_BAD,      /* not what the interface says */
    ANSWER_ERROR,    /* the server told an error within the stream */
};

/* Zero-initialise and set api. */
struct answer {
    enum load_api api;
    enum answer_state state;
    uint32_t n_pieces; /* events that held text to be shown */
    uint32_t n_tokens; /* events that held a token, by the server's own way of sending */
    bool has_usage;    /* the next ones were told by the server */
    uint32_t output_tokens;
    bool has_prompt_tokens;
    uint32_t prompt_tokens, cached_tokens;
    char text[256]; /* of ANSWER_BAD and ANSWER_ERROR: what is wrong */

    /* private to answer.c */
    struct buf line, data;
    size_t n_events;
    bool has_data, after_cr, is_finished;
};

/* Reads on. n_pieces grows by what these bytes completed. */
void answer_feed(struct answer *a, const char *bytes, size_t n_bytes);

/* The response is over. False: it had not come to its end. */
bool answer_end(struct answer *a);

void answer_reset(struct answer *a, enum load_api api); /* for the next one; storage is kept */
void answer_clear(struct answer *a);

#endif
