/* The startup responder: runs the event loop on a thread of its own while the model is loading, so
 * that requests are answered (with 503). Between start and stop the loop and everything on it
 * belong to that thread. */
#ifndef TUTTI_SERVER_HTTP_STARTUP_RESPONDER_H
#define TUTTI_SERVER_HTTP_STARTUP_RESPONDER_H

#include "base/error.h"

struct startup_responder;
struct event_base;

MUST_CHECK enum tutti_status startup_responder_start(struct startup_responder **out, struct event_base *base,
                                                     struct tutti_error *err);
/* Returns when the thread has ended. NULL is allowed. */
void startup_responder_stop(struct startup_responder *responder);

#endif
