/* Signals that end a program which does not handle them: SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGXCPU. */
#ifndef TUTTI_BASE_SYSTEM_ENDING_H
#define TUTTI_BASE_SYSTEM_ENDING_H

#include <signal.h>

typedef void (*signal_handler)(int number);

/* The handler with which these signals end this process: SIG_DFL. The kernel drops signals without a handler to process 1,
 * which is a container's program: there, a handler that exits with 128 + number. Async-signal-safe. */
signal_handler ending_default(void);

/* Replaces a handler by another one where it is this one: a signal that is ignored (nohup) or that the program handles
 * itself does not end it, and stays as it is. */
void ending_replace(signal_handler from, signal_handler to);

void ending_block(sigset_t *old); /* in the calling thread; *old: its mask before */

#endif
