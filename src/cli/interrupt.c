#include "cli/interrupt.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>

/* Signal handlers can reach static memory alone. */
static sem_t wakeups;
static atomic_int pending; /* number of the signal */
static atomic_bool has_semaphore;

static void on_signal(int number)
{
    int saved = errno;
    atomic_store(&pending, number);
    sem_post(&wakeups); /* async-signal-safe */
    errno = saved;
}

static void set_handler(void (*handler)(int), bool terminate)
{
    struct sigaction action = { .sa_handler = handler };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* fails for a wrong signal number alone */
    if (terminate)
        sigaction(SIGTERM, &action, NULL);
}

void interrupt_catch(bool terminate)
{
    if (!atomic_exchange(&has_semaphore, true))
        sem_init(&wakeups, 0, 0); /* fails for a wrong value alone */
    set_handler(on_signal, terminate);
}

void interrupt_restore(void)
{
    set_handler(SIG_DFL, true);
}

void interrupt_wait(void)
{
    while (sem_wait(&wakeups) != 0 && errno == EINTR && !interrupt_is_pending())
        ;
    while (sem_trywait(&wakeups) == 0)
        ;
}

void interrupt_wake(void)
{
    sem_post(&wakeups);
}

int interrupt_taken(void)
{
    return atomic_exchange(&pending, 0);
}

bool interrupt_is_pending(void)
{
    return atomic_load(&pending) != 0;
}
