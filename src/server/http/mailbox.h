/* Passes items from any thread to the thread of the event loop.
 *
 * Items are pushed on a lock-free stack. The first push on an empty stack wakes the loop, which takes
 * the whole stack and reverses it. So the sender never waits, and many items cost one wakeup. */
#ifndef TUTTI_SERVER_HTTP_MAILBOX_H
#define TUTTI_SERVER_HTTP_MAILBOX_H

#include "base/error.h"
#include "base/system/os.h"

#include <stdatomic.h>

struct event;
struct event_base;

/* The first member of every item. */
struct mail {
    struct mail *next; /* private to mailbox.c until it is read */
};

/* Zero-initialised is closed. */
struct mailbox {
    _Atomic(struct mail *) top; /* the newest */
    struct os_event event;
    struct event *wake; /* NULL: closed */
    void (*read)(void *user, struct mail *mail);
    void *user;
};

/* read: called on the loop's thread for every item, in order; it owns the item. TUTTI_E_MEMORY: out of
 * event descriptors. */
MUST_CHECK enum tutti_status mailbox_open(struct mailbox *box, struct event_base *base,
                                          void (*read)(void *user, struct mail *mail), void *user,
                                          struct tutti_error *err);
void mailbox_send(struct mailbox *box, struct mail *mail);
/* The items that were not read, oldest first. */
struct mail *mailbox_take(struct mailbox *box);
void mailbox_close(struct mailbox *box); /* leaves unread items; a closed one is allowed */

#endif
