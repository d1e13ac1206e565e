/* Says at any moment whether a thread is inside a decode step, and in which phase of it, so that a program that
 * interposes malloc can end itself at an allocation there. The engine marks its threads; marking costs one store.
 *
 * A phase belongs to an engine: the engine thread and the compute threads that work for it point to it, the text
 * thread and the callers' threads do not. */
#ifndef TUTTI_ALLOC_GUARD_H
#define TUTTI_ALLOC_GUARD_H

#include <stdatomic.h>

/* NULL: between steps, where allocating is allowed. */
typedef _Atomic(const char *) alloc_phase;

/* From now on the calling thread works under this phase; NULL: under none. */
void alloc_guard_watch(alloc_phase *phase);

/* The phase that the calling thread is in; NULL: none. */
const char *alloc_guard_phase(void);

#endif
