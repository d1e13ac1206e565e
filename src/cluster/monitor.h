/* Watches whether the ranks of a group are alive, beside the messages that they exchange: a message-passing library waits for
 * ever for a rank that was killed, stopped or cut off.
 *
 * Each rank has a TCP connection to rank 0, and a thread that sends a byte every half second. A connection that ends without
 * a goodbye, or 3 s of silence, is a loss. Rank 0 tells the others, so that the group ends as a whole. Where the process has not
 * ended by itself a moment later, the thread ends it: nothing is left hanging in a library's call. */
#ifndef TUTTI_CLUSTER_MONITOR_H
#define TUTTI_CLUSTER_MONITOR_H

#include "base/error.h"

enum {
    MONITOR_BEAT_MS = 500,
    MONITOR_SILENCE_MS = 3000,
    MONITOR_GRACE_MS = 1500, /* for answers that must be told of the loss */
    MONITOR_ADDRESSES = 16,
};

struct monitor;

/* What the others must know to reach rank 0: plain memory that it sends them. */
struct monitor_invitation {
    uint8_t secret[16]; /* of this run: no other process is taken for a rank */
    uint16_t port;
    uint16_t n_addresses;
    struct {
        uint8_t is_ipv6;
        uint8_t bytes[16];
    } addresses[MONITOR_ADDRESSES];
};

struct monitor_options {
    int rank, n_ranks;
    bool is_local; /* all ranks are on this machine: nothing listens outside of it */
    bool stays;    /* the process is not ended */
    void (*lost)(void *user);
    void *user;
};

/* Rank 0: listens, and says where. The others: connect to it. TUTTI_E_IO. */
MUST_CHECK enum tutti_status monitor_listen(struct monitor **out, const struct monitor_options *options,
                                            struct monitor_invitation *invitation, struct tutti_error *err);
MUST_CHECK enum tutti_status monitor_join(struct monitor **out, const struct monitor_options *options,
                                          const struct monitor_invitation *invitation,
                                          struct tutti_error *err);

/* Rank 0 waits for the others; then the watching begins. TUTTI_E_IO: a rank did not come. */
MUST_CHECK enum tutti_status monitor_start(struct monitor *m, struct tutti_error *err);

/* Ends the watching; the others learn whether that is in order, else it counts as a loss. After the silence of another machine it
 * returns when MONITOR_GRACE_MS have passed: what mpirun sends there when this process ends is never acknowledged, and while it is
 * on its way TCP asks for no sign of life, so mpirun must have missed that machine before. NULL is allowed. */
void monitor_free(struct monitor *m, bool is_orderly);

/* The rank that was lost; -1: none. Any thread. */
int monitor_lost(const struct monitor *m);
/* What is known of its end; borrowed. "" where none is lost. */
const char *monitor_text(const struct monitor *m);

#endif
