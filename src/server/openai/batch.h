/* Runs a file of requests in the format of OpenAI's Batch API, without a server: one JSON object
 * per line, {"custom_id", "method": "POST", "url", "body"}, and one line with its response for
 * each. https://platform.openai.com/docs/api-reference/batch/request-input */
#ifndef TUTTI_SERVER_OPENAI_BATCH_H
#define TUTTI_SERVER_OPENAI_BATCH_H

#include "base/error.h"

struct server_batch {
    const char *model_id;           /* what requests call the model; NULL: tutti_model_info's name */
    enum tutti_embedding embedding; /* as in struct server_options */
    const char *lines;              /* the whole file */
    size_t n_bytes;
    /* Receives each response line when its request ends. False: it cannot be written; the run is
     * aborted. */
    bool (*write)(void *user, const char *line, size_t n_bytes);
    void *user;
    size_t n_ok, n_failed; /* results */
};

/* Every line gets a response, even an invalid one. No other user of the engine is allowed meanwhile.
 * TUTTI_E_IO: write() returned false, or a response was lost for lack of memory; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status server_batch_run(struct server_batch *batch, tutti_engine *engine,
                                              tutti_model *model, struct tutti_error *err);

#endif
