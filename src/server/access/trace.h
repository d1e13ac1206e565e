/* The header traceparent of W3C Trace Context: which trace a request belongs to, so that its line in the log can be found
 * from the client's side. The server makes no spans of its own known; its request id doubles as the id of one. */
#ifndef TUTTI_SERVER_ACCESS_TRACE_H
#define TUTTI_SERVER_ACCESS_TRACE_H

#include "server/http/http.h"

enum { TRACE_TEXT_BYTES = 56 };

struct trace {
    char trace_id[33], parent_id[17], span_id[17]; /* lower-case hexadecimal; span_id: this request */
    bool is_sampled;
};

/* Reads one value, all of it. False: it is not what the recommendation allows, and must count as absent. */
MUST_CHECK bool trace_parse(struct trace *out, const char *value);

/* That of a request. False: it has none, more than one, or a wrong one. */
MUST_CHECK bool trace_find(struct trace *out, const struct http_conn *conn);

/* The value for those who are asked next, and for the reply. */
void trace_write(const struct trace *trace, char out[TRACE_TEXT_BYTES]);

#endif
