/* HTTP requests to a hub (libcurl): the token goes to the hub only, passing failures are tried again. */
#ifndef TUTTI_HUB_HUB_HTTP_H
#define TUTTI_HUB_HUB_HTTP_H

#include "hub/pull.h"

#include <curl/curl.h>

struct hub_session {
    const struct hub_name *name;
    const struct hub_pull_options *options;
    CURLM *multi;
    const char *token; /* NULL: none, or it must not be sent to this hub */
    bool is_token_withheld;
    struct curl_slist *headers;
    uint64_t not_before_us; /* of the next request */
    int n_failures;         /* since the download progressed */
};

MUST_CHECK enum tutti_status hub_http_open(struct hub_session *out, const struct hub_name *name,
                                           const struct hub_pull_options *options, struct tutti_error *err);
void hub_http_close(struct hub_session *session); /* also after a failure */

/* A response, the last one if there were redirects. */
struct hub_answer {
    int status;
    /* From headers; lengths are -1 if there is none. */
    int64_t range_begin, range_total, linked_bytes;
    char linked_etag[80], message[200], reason[40];
    char curl_text[CURL_ERROR_SIZE];
};

/* A GET request whose headers go to answer. write(): as CURLOPT_WRITEFUNCTION. NULL: out of memory. */
CURL *hub_http_request(struct hub_session *session, const char *url, struct hub_answer *answer,
                       curl_write_callback write, void *user);

/* Whether the response to a request is one with the wanted content. Otherwise *st is TUTTI_OK if it is to
 * be tried again after session->not_before_us, or else the failure. */
bool hub_http_is_good(struct hub_session *session, CURL *easy, CURLcode code, const struct hub_answer *answer,
                      const char *url, enum tutti_status *st, struct tutti_error *err);

/* Counts a failure, and sets the time of the next attempt. retry_after_s: what the server requested; 0:
 * nothing. text: the failure. Returns TUTTI_OK, or the failure if there were too many. */
MUST_CHECK enum tutti_status hub_http_try_again(struct hub_session *session, int64_t retry_after_s,
                                                const char *text, struct tutti_error *err);

/* Appends the whole body, of at most max_bytes. */
MUST_CHECK enum tutti_status hub_http_get(struct hub_session *session, const char *url, size_t max_bytes,
                                          struct buf *out, struct tutti_error *err);

#endif
