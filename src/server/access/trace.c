#include "server/access/trace.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { VALUE_BYTES = 55, TRACE_AT = 3, PARENT_AT = 36, FLAGS_AT = 53 }; /* 00-(32)-(16)-00 */

/* True: n lower-case hexadecimal digits, not all of them zero unless may_be_zero. */
static bool is_id(const char *text, size_t n, bool may_be_zero)
{
    return strspn(text, "0123456789abcdef") >= n && (may_be_zero || strspn(text, "0") < n);
}

bool trace_parse(struct trace *out, const char *value)
{
    size_t n = strlen(value);
    /* A later version may append fields; version ff is invalid. */
    bool ok = n >= VALUE_BYTES && is_id(value, 2, true) && strncmp(value, "ff", 2) != 0 &&
              (strncmp(value, "00", 2) == 0 ? n == VALUE_BYTES
                                            : !value[VALUE_BYTES] || value[VALUE_BYTES] == '-') &&
              value[TRACE_AT - 1] == '-' && is_id(value + TRACE_AT, 32, false) &&
              value[PARENT_AT - 1] == '-' && is_id(value + PARENT_AT, 16, false) &&
              value[FLAGS_AT - 1] == '-' && is_id(value + FLAGS_AT, 2, true);
    if (!ok)
        return false;
    *out = (struct trace){ .is_sampled = strchr("13579bdf", value[FLAGS_AT + 1]) != NULL };
    memcpy(out->trace_id, value + TRACE_AT, 32);
    memcpy(out->parent_id, value + PARENT_AT, 16);
    return true;
}

bool trace_find(struct trace *out, const struct http_conn *conn)
{
    const struct http_head *head = &http_request(conn)->head;
    const char *value = NULL;
    for (int i = 0; i < head->n_headers; i++) {
        if (strcasecmp(head->headers[i].name, "traceparent"))
            continue;
        if (value)
            return false;
        value = head->headers[i].value;
    }
    if (!value || !trace_parse(out, value))
        return false;
    snprintf(out->span_id, sizeof out->span_id, "%.16s", http_request(conn)->id + strlen("req_"));
    return true;
}

void trace_write(const struct trace *trace, char out[TRACE_TEXT_BYTES])
{
    snprintf(out, TRACE_TEXT_BYTES, "00-%s-%s-%s", trace->trace_id, trace->span_id,
             trace->is_sampled ? "01" : "00");
}
