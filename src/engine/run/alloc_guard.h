/* Tracks which threads are inside a decode step, and in which phase. A program that interposes malloc
 * uses this to abort on an allocation there. The engine marks its threads; marking costs one store.
 *
 * A phase belongs to an engine. The engine thread and its compute threads point to it; the text
 * thread and the callers' threads do not. */
#ifndef TUTTI_ALLOC_GUARD_H
#define TUTTI_ALLOC_GUARD_H

#include <stdatomic.h>

/* NULL: between steps, where allocating is allowed. */
typedef _Atomic(const char *) alloc_phase;

/* From now on the calling thread works in this phase; NULL: in none. */
void alloc_guard_watch(alloc_phase *phase);

/* The phase that the calling thread is in; NULL: none. */
const char *alloc_guard_phase(void);

#endif
