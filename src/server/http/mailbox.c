#include "server/http/mailbox.h"

#include <event2/event.h>
#include <sys/eventfd.h>
#include <unistd.h>

void mailbox_send(struct mailbox *box, struct mail *mail)
{
    struct mail *top = atomic_load_explicit(&box->top, memory_order_relaxed);
    do
        mail->next = top;
    while (!atomic_compare_exchange_weak_explicit(&box->top, &top, mail, memory_order_release,
                                                  memory_order_relaxed));
    uint64_t one = 1;
    if (!top && write(box->wake_fd, &one, sizeof one) < 0)
        return; /* fails only if the counter is full: then the loop is awake */
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
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) < 0)
        return;
    for (struct mail *mail = mailbox_take(box), *next; mail; mail = next) {
        next = mail->next;
        box->read(box->user, mail);
    }
}

enum tutti_status mailbox_open(struct mailbox *box, struct event_base *base,
                               void (*read)(void *user, struct mail *mail), void *user,
                               struct tutti_error *err)
{
    *box = (struct mailbox){ .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .read = read, .user = user };
    if (box->wake_fd >= 0)
        box->wake = event_new(base, box->wake_fd, EV_READ | EV_PERSIST, mailbox_on_wake, box);
    if (box->wake && event_add(box->wake, NULL) == 0)
        return TUTTI_OK;
    if (box->wake)
        event_free(box->wake);
    if (box->wake_fd >= 0)
        close(box->wake_fd);
    box->wake = NULL;
    return error_set(err, TUTTI_E_MEMORY, "out of event descriptors");
}

void mailbox_close(struct mailbox *box)
{
    if (!box->wake)
        return;
    event_free(box->wake);
    close(box->wake_fd);
    box->wake = NULL;
}
