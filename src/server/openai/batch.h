/* A file of requests in the form of OpenAI's Batch API, worked off without a server: one JSON object a line,
 * {"custom_id", "method": "POST", "url", "body"}, and for each a line with its response.
 * https://platform.openai.com/docs/api-reference/batch/request-input */
#ifndef TUTTI_SERVER_OPENAI_BATCH_H
#define TUTTI_SERVER_OPENAI_BATCH_H

#include "base/error.h"

struct server_batch {
    const char *model_id;           /* what requests call the model; NULL: tutti_model_info's name */
    enum tutti_embedding embedding; /* where a request does not say it */
    const char *lines;              /* the whole file */
    size_t n_bytes;
    /* Takes an answer's line as it ends. False: nothing more can be written, and all is given up. */
    bool (*write)(void *user, const char *line, size_t n_bytes);
    void *user;
    size_t n_ok, n_failed; /* afterwards */
};

/* Every line gets an answer, also one that is no request. Nobody else may use the engine meanwhile.
 * TUTTI_E_IO: write() said false, or an answer could not be kept; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status server_batch_run(struct server_batch *batch, tutti_engine *engine,
                                              tutti_model *model, struct tutti_error *err);

#endif
