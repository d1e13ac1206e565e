#include "cli/terminal/interrupt.h"

#include "base/system/ending.h"
#include "base/system/os.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

/* Signal handlers can only use static memory. Any thread may receive a signal at any time, so an
 * interrupted system call does not reliably indicate it: everything waits for the event. */
static atomic_int pending; /* number of the signal */
static atomic_bool is_open;
static struct os_event event; /* once is_open */

void interrupt_wake(void)
{
    if (atomic_load(&is_open))
        os_event_set(&event); /* async-signal-safe */
}

static void on_signal(int number)
{
    int saved = errno;
    atomic_store(&pending, number);
    interrupt_wake();
    errno = saved;
}

static void set_handler(void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* these fail only for invalid signal numbers */
    sigaction(SIGTERM, &action, NULL);
}

enum tutti_status interrupt_catch(struct tutti_error *err)
{
    if (!atomic_load(&is_open)) {
        if (!os_event_open(&event))
            return error_set(err, TUTTI_E_IO, "out of event descriptors: %s", strerror(errno));
        atomic_store(&is_open, true);
    }
    set_handler(on_signal);
    return TUTTI_OK;
}

void interrupt_restore(void)
{
    set_handler(ending_default());
}

void interrupt_wait(void)
{
    struct pollfd fd = { .fd = event.read_fd, .events = POLLIN };
    while (poll(&fd, 1, -1) < 0 && errno == EINTR)
        ;
    os_event_reset(&event);
}

bool interrupt_wait_input(int fd)
{
    struct pollfd fds[] = {
        { .fd = fd, .events = POLLIN },
        { .fd = event.read_fd, .events = POLLIN },
    };
    while (!interrupt_is_pending()) {
        int n = poll(fds, 2, -1);
        if (n < 0 && errno != EINTR)
            return true; /* reading reports the error */
        if (n > 0 && fds[0].revents != 0 && !interrupt_is_pending())
            return true;
        if (n > 0 && fds[1].revents != 0)
            os_event_reset(&event);
    }
    return false;
}

int interrupt_taken(void)
{
    return atomic_exchange(&pending, 0);
}

bool interrupt_is_pending(void)
{
    return atomic_load(&pending) != 0;
}
