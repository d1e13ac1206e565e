/* Threads that leave signals to the program's own: a handler runs on whichever thread lets the signal in, and those of the engine
 * have steps to make. Faults of a thread itself (SIGSEGV and its like) stay its own, and so does SIGPROF. */
#ifndef TUTTI_BASE_SYSTEM_THREAD_H
#define TUTTI_BASE_SYSTEM_THREAD_H

#include <pthread.h>

/* As pthread_create() with no attributes; returns its error number. */
int thread_start(pthread_t *thread, void *(*entry)(void *arg), void *arg);

#endif
