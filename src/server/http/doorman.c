#include "server/http/doorman.h"

#include "base/log.h"
#include "base/system/thread.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct doorman {
    struct event_base *base;
    struct event *stop;
    int stop_fd;
    pthread_t thread;
    bool has_thread;
};

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    struct doorman *doorman = arg;
    (void)fd, (void)what;
    event_base_loopbreak(doorman->base);
}

static void *loop_main(void *arg)
{
    struct doorman *doorman = arg;
    if (event_base_dispatch(doorman->base) < 0)
        log_error("the event loop failed while the model was loaded");
    return NULL;
}

enum tutti_status doorman_start(struct doorman **out, struct event_base *base, struct tutti_error *err)
{
    struct doorman *doorman = calloc(1, sizeof *doorman);
    if (!doorman)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    doorman->base = base;
    doorman->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (doorman->stop_fd >= 0)
        doorman->stop = event_new(base, doorman->stop_fd, EV_READ, on_stop, doorman);
    enum tutti_status st = TUTTI_OK;
    if (!doorman->stop || event_add(doorman->stop, NULL))
        st = error_set(err, TUTTI_E_MEMORY, "the system has no event descriptor left");
    if (st == TUTTI_OK) {
        int failed = thread_start(&doorman->thread, loop_main, doorman);
        doorman->has_thread = !failed;
        if (failed)
            st = error_set(err, TUTTI_E_MEMORY, "cannot start the server's thread: %s", strerror(failed));
    }
    if (st != TUTTI_OK) {
        doorman_stop(doorman);
        return st;
    }
    *out = doorman;
    return TUTTI_OK;
}

void doorman_stop(struct doorman *doorman)
{
    if (!doorman)
        return;
    if (doorman->has_thread) {
        uint64_t one = 1;
        ssize_t written = write(doorman->stop_fd, &one, sizeof one);
        (void)written; /* can fail only where the counter is full */
        pthread_join(doorman->thread, NULL);
    }
    if (doorman->stop)
        event_free(doorman->stop);
    if (doorman->stop_fd >= 0)
        close(doorman->stop_fd);
    free(doorman);
}
