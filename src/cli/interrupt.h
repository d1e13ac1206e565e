/* Ctrl-C as an event that a command waits for, beside the events of the engine. */
#ifndef TUTTI_CLI_INTERRUPT_H
#define TUTTI_CLI_INTERRUPT_H

#include "base/error.h"

/* From now on SIGINT (and SIGTERM, if terminate) wakes interrupt_wait() instead of ending the process; before this
 * call, and after interrupt_restore(), it does what the system does with it. */
void interrupt_catch(bool terminate);
void interrupt_restore(void);

/* Waits until interrupt_wake() was called or a signal came; wakes are not counted one by one. */
void interrupt_wait(void);
void interrupt_wake(void); /* from any thread */

/* The signal that came since the last call; 0: none. */
int interrupt_taken(void);

/* Has one come? It stays for interrupt_taken(). */
bool interrupt_is_pending(void);

#endif
