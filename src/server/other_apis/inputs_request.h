/* Parses requests of the form {"inputs": text, "parameters": {...}}, for Text Generation Inference
 * and llm-serving. */
#ifndef TUTTI_SERVER_OTHER_APIS_INPUTS_REQUEST_H
#define TUTTI_SERVER_OTHER_APIS_INPUTS_REQUEST_H

#include "server/job.h"

/* The APIs. */
extern const struct job_api TGI, LLM_SERVING;

struct inputs_rules {
    /* Booleans and numbers may be strings, and settings out of range are clamped or replaced by
     * defaults. */
    bool is_lenient;
    int max_new_tokens; /* default; 0: as many as the context holds */
    int top_k;          /* default */
    enum {
        INPUTS_STREAM_BY_BODY,
        INPUTS_STREAM,
        INPUTS_WHOLE
    } stream; /* the body's "stream", or always, or never */
};

/* Parses text into a zeroed out; unknown fields are ignored. TUTTI_E_ARGUMENT with err->param. Call
 * api_request_clear() in any case. */
MUST_CHECK enum tutti_status inputs_request_read(struct api_request *out, const struct inputs_rules *rules,
                                                 const tutti_model *model, const char *text, size_t n_bytes,
                                                 struct tutti_error *err);

/* Sets out->model, which job_open() looks up, to a name that the body does not have as "model". name: a new reference, or
 * NULL if memory ran out. */
MUST_CHECK enum tutti_status inputs_set_model(struct api_request *out, json_t *name, struct tutti_error *err);

#endif
