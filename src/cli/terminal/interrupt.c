#include "cli/terminal/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Signal handlers can only use static memory. Any thread may receive a signal at any time, so an
 * interrupted system call does not reliably indicate it: everything waits for the event. */
static atomic_int pending; /* number of the signal */
static atomic_int event = -1;

void interrupt_wake(void)
{
    uint64_t one = 1;
    ssize_t n = write(atomic_load(&event), &one, sizeof one); /* async-signal-safe */
    (void)n; /* fails if the counter is full: then the waiter is awake anyway */
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
    if (atomic_load(&event) < 0) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return error_set(err, TUTTI_E_IO, "eventfd: %s", strerror(errno));
        atomic_store(&event, fd);
    }
    set_handler(on_signal);
    return TUTTI_OK;
}

void interrupt_restore(void)
{
    set_handler(SIG_DFL);
}

static void reset_event(void)
{
    uint64_t count;
    ssize_t n = read(atomic_load(&event), &count, sizeof count);
    (void)n; /* an empty counter is fine */
}

void interrupt_wait(void)
{
    struct pollfd fd = { .fd = atomic_load(&event), .events = POLLIN };
    while (poll(&fd, 1, -1) < 0 && errno == EINTR)
        ;
    reset_event();
}

bool interrupt_wait_input(int fd)
{
    struct pollfd fds[] = {
        { .fd = fd, .events = POLLIN },
        { .fd = atomic_load(&event), .events = POLLIN },
    };
    while (!interrupt_is_pending()) {
        int n = poll(fds, 2, -1);
        if (n < 0 && errno != EINTR)
            return true; /* reading reports the error */
        if (n > 0 && fds[0].revents != 0 && !interrupt_is_pending())
            return true;
        if (n > 0 && fds[1].revents != 0)
            reset_event();
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
