/* What an engine counts is zero when all of its requests have ended. */
#ifndef TEST_NOTHING_HELD_H
#define TEST_NOTHING_HELD_H

#include "tutti.h"

/* Waits until the engine has ended all requests; fails the test where a page, a slot, a place in the queue, a share, memory
 * of a request or the use of a spilled page is still held. */
void assert_nothing_held(tutti_engine *engine);

#endif
