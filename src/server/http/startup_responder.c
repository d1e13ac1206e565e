#include "server/http/startup_responder.h"

#include "base/log.h"
#include "base/system/thread.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct startup_responder {
    struct event_base *base;
    struct event *stop;
    int stop_fd;
    pthread_t thread;
    bool has_thread;
};

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    struct startup_responder *responder = arg;
    (void)fd, (void)what;
    event_base_loopbreak(responder->base);
}

static void *loop_main(void *arg)
{
    struct startup_responder *responder = arg;
    if (event_base_dispatch(responder->base) < 0)
        log_error("the event loop failed while the model was loaded");
    return NULL;
}

enum tutti_status startup_responder_start(struct startup_responder **out, struct event_base *base,
                                          struct tutti_error *err)
{
    struct startup_responder *responder = calloc(1, sizeof *responder);
    if (!responder)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    responder->base = base;
    responder->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (responder->stop_fd >= 0)
        responder->stop = event_new(base, responder->stop_fd, EV_READ, on_stop, responder);
    enum tutti_status st = TUTTI_OK;
    if (!responder->stop || event_add(responder->stop, NULL))
        st = error_set(err, TUTTI_E_MEMORY, "out of event descriptors");
    if (st == TUTTI_OK) {
        int failed = thread_start(&responder->thread, loop_main, responder);
        responder->has_thread = !failed;
        if (failed)
            st = error_set(err, TUTTI_E_MEMORY, "cannot start the server's thread: %s", strerror(failed));
    }
    if (st != TUTTI_OK) {
        startup_responder_stop(responder);
        return st;
    }
    *out = responder;
    return TUTTI_OK;
}

void startup_responder_stop(struct startup_responder *responder)
{
    if (!responder)
        return;
    if (responder->has_thread) {
        uint64_t one = 1;
        ssize_t written = write(responder->stop_fd, &one, sizeof one);
        (void)written; /* fails only if the counter is full */
        pthread_join(responder->thread, NULL);
    }
    if (responder->stop)
        event_free(responder->stop);
    if (responder->stop_fd >= 0)
        close(responder->stop_fd);
    free(responder);
}
