/* Starts threads that block signals, so that handlers run on the program's main thread and do not
 * delay the engine's threads. Faults (SIGSEGV and the like) and SIGPROF stay unblocked. */
#ifndef TUTTI_BASE_SYSTEM_THREAD_H
#define TUTTI_BASE_SYSTEM_THREAD_H

#include <pthread.h>

/* As pthread_create() with no attributes; returns its error number. */
int thread_start(pthread_t *thread, void *(*entry)(void *arg), void *arg);

#endif
