/* Turns Ctrl-C into an event that a command can wait for, together with engine events and
 * standard input. */
#ifndef TUTTI_CLI_TERMINAL_INTERRUPT_H
#define TUTTI_CLI_TERMINAL_INTERRUPT_H

#include "base/error.h"

/* From now on SIGINT and SIGTERM wake the waiting functions below instead of ending the process.
 * interrupt_restore() undoes this. TUTTI_E_IO: a system call failed. */
MUST_CHECK enum tutti_status interrupt_catch(struct tutti_error *err);
void interrupt_restore(void);

/* Waits until interrupt_wake() was called or a signal came. Several such events count as one. */
void interrupt_wait(void);
void interrupt_wake(void); /* from any thread */

/* Waits until fd can be read (or is at its end), or a signal came: then false. */
bool interrupt_wait_input(int fd);

/* Returns and clears the signal received since the last call; 0: none. */
int interrupt_taken(void);

/* Whether a signal was received. It stays for interrupt_taken(). */
bool interrupt_is_pending(void);

#endif
