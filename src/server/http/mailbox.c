#include "server/http/mailbox.h"

#include <event2/event.h>

void mailbox_send(struct mailbox *box, struct mail *mail)
{
    struct mail *top = atomic_load_explicit(&box->top, memory_order_relaxed);
    do
        mail->next = top;
    while (!atomic_compare_exchange_weak_explicit(&box->top, &top, mail, memory_order_release,
                                                  memory_order_relaxed));
    if (!top)
        os_event_set(&box->event);
}

struct mail *mailbox_take(struct mailbox *box)
{
    struct mail *newest = atomic_exchange_explicit(&box->top, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct mail *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static void mailbox_on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct mailbox *box = arg;
    (void)fd;
    (void)what;
    os_event_reset(&box->event);
    for (struct mail *mail = mailbox_take(box), *next; mail; mail = next) {
        next = mail->next;
        box->read(box->user, mail);
    }
}

enum tutti_status mailbox_open(struct mailbox *box, struct event_base *base,
                               void (*read)(void *user, struct mail *mail), void *user,
                               struct tutti_error *err)
{
    *box = (struct mailbox){ .event = OS_NO_EVENT, .read = read, .user = user };
    if (os_event_open(&box->event))
        box->wake = event_new(base, box->event.read_fd, EV_READ | EV_PERSIST, mailbox_on_wake, box);
    if (box->wake && event_add(box->wake, NULL) == 0)
        return TUTTI_OK;
    if (box->wake)
        event_free(box->wake);
    os_event_close(&box->event);
    box->wake = NULL;
    return error_set(err, TUTTI_E_MEMORY, "out of event descriptors");
}

void mailbox_close(struct mailbox *box)
{
    if (!box->wake)
        return;
    event_free(box->wake);
    os_event_close(&box->event);
    box->wake = NULL;
}
