/* W3C Trace Context: reads and writes the header traceparent, so that a request's log line can be found
 * from the client's trace. The server exports no spans; its request id is also its span id. */
#ifndef TUTTI_SERVER_ACCESS_TRACE_H
#define TUTTI_SERVER_ACCESS_TRACE_H

#include "server/http/http.h"

enum { TRACE_TEXT_BYTES = 56 };

struct trace {
    char trace_id[33], parent_id[17], span_id[17]; /* lower-case hexadecimal; span_id: this request */
    bool is_sampled;
};

/* Parses one header value. False: invalid by the recommendation; treat it as absent. */
MUST_CHECK bool trace_parse(struct trace *out, const char *value);

/* Finds the header of a request. False: absent, duplicate, or invalid. */
MUST_CHECK bool trace_find(struct trace *out, const struct http_conn *conn);

/* The value for downstream requests and for the reply. */
void trace_write(const struct trace *trace, char out[TRACE_TEXT_BYTES]);

#endif
