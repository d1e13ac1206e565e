/* Protects a server without keys against web pages (CSRF, DNS rebinding).
 *
 * A browser lets any page send requests to any address that it can reach, such as a server on the
 * user's own machine. Three checks refuse pages that do not belong to the server:
 * - Host: a page whose name is made to resolve to this machine (DNS rebinding) sends its own name,
 *   not the server's.
 * - Origin and Sec-Fetch-Site: the browser sends the origin of the page that made the request.
 * - Content-Type: a page can send a form or text/plain directly, but JSON only after a preflight
 *   request.
 * The first two apply if no key is needed, because a page does not know the keys. The third always
 * applies. */
#ifndef TUTTI_SERVER_ACCESS_GUARD_H
#define TUTTI_SERVER_ACCESS_GUARD_H

#include "server/http/http.h"
#include "server/server.h"

struct guard;

/* options: borrowed. is_reachable: other machines can connect, so this machine's name is allowed as
 * Host. */
MUST_CHECK enum tutti_status guard_new(struct guard **out, const struct server_options *options,
                                       bool is_reachable, struct tutti_error *err);
void guard_free(struct guard *guard); /* NULL is allowed */

/* Checks Host and origin. has_keys: the server needs keys. TUTTI_E_ARGUMENT: refuse with status 403. */
MUST_CHECK enum tutti_status guard_check(const struct guard *guard, const struct http_conn *conn,
                                         bool has_keys, struct tutti_error *err);

/* Checks that the body is JSON without a content coding. TUTTI_E_ARGUMENT: refuse with status 415. */
MUST_CHECK enum tutti_status guard_check_body(const struct http_head *head, struct tutti_error *err);

#endif
