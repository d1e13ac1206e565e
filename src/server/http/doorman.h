/* The startup responder: runs the event loop on a thread of its own while the model is loading, so
 * that requests are answered (with 503). Between start and stop the loop and everything on it
 * belong to that thread. */
#ifndef TUTTI_SERVER_HTTP_DOORMAN_H
#define TUTTI_SERVER_HTTP_DOORMAN_H

#include "base/error.h"

struct doorman;
struct event_base;

MUST_CHECK enum tutti_status doorman_start(struct doorman **out, struct event_base *base,
                                           struct tutti_error *err);
/* Returns when the thread has ended. NULL is allowed. */
void doorman_stop(struct doorman *doorman);

#endif
