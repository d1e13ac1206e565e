/* Ctrl-C as an event that a command waits for, beside the events of the engine and what comes from standard input. */
#ifndef TUTTI_CLI_TERMINAL_INTERRUPT_H
#define TUTTI_CLI_TERMINAL_INTERRUPT_H

#include "base/error.h"

/* From now on SIGINT and SIGTERM wake those who wait here, instead of ending the process. After interrupt_restore()
 * they end it again. TUTTI_E_IO: the system refused. */
MUST_CHECK enum tutti_status interrupt_catch(struct tutti_error *err);
void interrupt_restore(void);

/* Waits until interrupt_wake() was called or a signal came; several are one. */
void interrupt_wait(void);
void interrupt_wake(void); /* from any thread */

/* Waits until fd can be read (or is at its end), or a signal came: then false. */
bool interrupt_wait_input(int fd);

/* The signal that came since the last call; 0: none. */
int interrupt_taken(void);

/* Has one come? It stays for interrupt_taken(). */
bool interrupt_is_pending(void);

#endif
