/* Runs the event loop on a thread of its own while its owner is busy: requests that come while the model is loaded are
 * answered. Between the two calls the loop and all that hangs on it belong to that thread alone. */
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
