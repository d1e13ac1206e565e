/* What web pages may send to a server without keys.
 *
 * A browser lets any page send requests to any address that it can reach, a server on the user's own machine among them.
 * Three checks keep pages out that do not belong to the server:
 * - Host: a page whose name is made to resolve to this machine (DNS rebinding) sends that name, which is not the server's.
 * - Origin and Sec-Fetch-Site: the browser sends the origin of the page that made the request.
 * - Content-Type: a page can send a form or text/plain without asking, JSON only after a preflight request.
 * The first two hold where no key is needed; a page does not know the keys. The third one always holds. */
#ifndef TUTTI_SERVER_ACCESS_GUARD_H
#define TUTTI_SERVER_ACCESS_GUARD_H

#include "server/http/http.h"
#include "server/server.h"

struct guard;

/* options: borrowed. is_reachable: clients of other machines can connect, so that this machine's name is one of ours. */
MUST_CHECK enum tutti_status guard_new(struct guard **out, const struct server_options *options,
                                       bool is_reachable, struct tutti_error *err);
void guard_free(struct guard *guard); /* NULL is allowed */

/* May this request be answered? has_keys: the server needs keys. TUTTI_E_ARGUMENT: no, with status 403. */
MUST_CHECK enum tutti_status guard_check(const struct guard *guard, const struct http_conn *conn,
                                         bool has_keys, struct tutti_error *err);

/* Is the body JSON, and as it is? TUTTI_E_ARGUMENT: no, with status 415. */
MUST_CHECK enum tutti_status guard_check_body(const struct http_head *head, struct tutti_error *err);

#endif
