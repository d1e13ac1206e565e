#include "server/http/startup_responder.h"

#include "base/log.h"
#include "base/system/thread.h"
#include "server/http/mailbox.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct startup_responder {
    struct event_base *base;
    struct mailbox inbox; /* of the message that the loop must stop */
    struct mail stop;
    pthread_t thread;
    bool has_thread;
};

static void on_stop(void *user, struct mail *mail)
{
    struct startup_responder *responder = user;
    (void)mail;
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
    enum tutti_status st = mailbox_open(&responder->inbox, base, on_stop, responder, err);
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
        mailbox_send(&responder->inbox, &responder->stop);
        pthread_join(responder->thread, NULL);
    }
    mailbox_close(&responder->inbox);
    free(responder);
}
