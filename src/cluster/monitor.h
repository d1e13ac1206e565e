/* Detects lost ranks over its own TCP connections: an MPI library waits for ever for a rank that was
 * killed, stopped or disconnected.
 *
 * Each rank has a TCP connection to rank 0, and a thread that sends a byte every half second. A
 * connection that closes without a goodbye, or 3 s of silence, means that the rank is lost. Rank 0
 * notifies the others, so the group ends as a whole. If the process has not exited a moment later,
 * the thread terminates it, because it may hang in a library call. */
#ifndef TUTTI_CLUSTER_MONITOR_H
#define TUTTI_CLUSTER_MONITOR_H

#include "base/error.h"

enum {
    MONITOR_BEAT_MS = 500,
    MONITOR_SILENCE_MS = 3000,
    MONITOR_GRACE_MS = 1500,    /* for replies that must report the loss */
    MONITOR_CUT_OFF_MS = 10000, /* for the launcher to notice that it cannot reach a machine */
    MONITOR_ADDRESSES = 16,
};

struct monitor;

/* What other ranks need to connect to rank 0: plain memory that rank 0 sends them. */
struct monitor_invitation {
    uint8_t secret[16]; /* of this run: authenticates ranks */
    uint16_t port;
    uint16_t n_addresses;
    struct {
        uint8_t is_ipv6;
        uint8_t bytes[16];
    } addresses[MONITOR_ADDRESSES];
};

struct monitor_options {
    int rank, n_ranks;
    bool is_local; /* all ranks are on this machine: listen on loopback only */
    bool stays;    /* do not terminate the process or its launcher */
    void (*lost)(void *user);
    void *user;
};

/* Rank 0: listens and fills invitation. Other ranks: connect to it. TUTTI_E_IO. */
MUST_CHECK enum tutti_status monitor_listen(struct monitor **out, const struct monitor_options *options,
                                            struct monitor_invitation *invitation, struct tutti_error *err);
MUST_CHECK enum tutti_status monitor_join(struct monitor **out, const struct monitor_options *options,
                                          const struct monitor_invitation *invitation,
                                          struct tutti_error *err);

/* Starts watching; rank 0 first waits for the others. TUTTI_E_IO: a rank did not connect. */
MUST_CHECK enum tutti_status monitor_start(struct monitor *m, struct tutti_error *err);

/* Stops watching. is_orderly: the others do not count it as a loss. NULL is allowed.
 *
 * After the silence of another machine it returns only when the launcher has sent a signal. A launcher
 * that has not noticed the loss within MONITOR_CUT_OFF_MS is killed. */
void monitor_free(struct monitor *m, bool is_orderly);

/* The rank that was lost; -1: none. Any thread. */
int monitor_lost(const struct monitor *m);
/* What is known of the loss; borrowed. "" if none is lost. */
const char *monitor_text(const struct monitor *m);

#endif
