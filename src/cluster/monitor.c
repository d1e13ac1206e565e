#include "cluster/monitor.h"

#include "base/log.h"
#include "base/system/clock.h"
#include "base/system/os.h"
#include "base/system/thread.h"
#include "cluster/cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    JOIN_MS = 30000,    /* for all ranks to connect */
    CONNECT_MS = 3000,  /* for one address of rank 0, some of which may be unreachable */
    GREETING_MS = 3000, /* for a new connection to identify itself */
    RANK_0 = 0,
};

/* Messages of one byte; LOST and CUT_OFF are followed by a byte with the rank. */
enum { BEAT = 'b', GOODBYE = 'q', GIVING_UP = 'g', LOST = 'x', CUT_OFF = 'c' };

/* The first message of a connection, in both directions. */
struct greeting {
    uint8_t secret[16];
    int32_t rank, pid;
    char host[64];
};

struct peer {
    int fd; /* -1: none */
    bool said_goodbye;
    uint8_t news; /* LOST, CUT_OFF: the next byte is the rank; 0: neither */
    uint64_t seen_ms;
    int32_t pid;
    char host[64];
};

struct monitor {
    struct monitor_options options;
    uint8_t secret[16];
    int listener; /* -1: none */
    struct os_event wake;
    struct peer *peers; /* [n_ranks]; on rank 0 all others, on others only rank 0 */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_stopping;
    char text[512]; /* written before lost is set */
    atomic_int lost;
    uint64_t end_ms; /* when to terminate the process; 0: not set */
    bool is_cut_off; /* the lost rank may be on a machine that cannot be reached any more */
};

static uint64_t now_ms(void)
{
    return clock_now_us() / 1000;
}

static int time_left(uint64_t end_ms)
{
    uint64_t now = now_ms();
    return now < end_ms ? (int)(end_ms - now) : 0;
}

static struct greeting greet(const struct monitor *m)
{
    struct greeting g = { .rank = m->options.rank, .pid = getpid() };
    memcpy(g.secret, m->secret, sizeof g.secret);
    if (gethostname(g.host, sizeof g.host - 1) != 0)
        snprintf(g.host, sizeof g.host, "unknown");
    return g;
}

/* ---- whole messages on non-blocking sockets ---- */

static bool is_ready(int fd, short what, uint64_t end_ms)
{
    struct pollfd p = { .fd = fd, .events = what };
    int n;
    do
        n = poll(&p, 1, time_left(end_ms));
    while (n < 0 && errno == EINTR);
    return n > 0;
}

static bool send_greeting(const struct monitor *m, int fd)
{
    struct greeting g = greet(m); /* fits into the send buffer of a new connection */
    return send(fd, &g, sizeof g, MSG_NOSIGNAL) == (ssize_t)sizeof g;
}

static bool read_greeting(const struct monitor *m, int fd, struct greeting *g, uint64_t end_ms)
{
    for (size_t n = 0; n < sizeof *g;) {
        if (!is_ready(fd, POLLIN, end_ms))
            return false;
        ssize_t got = recv(fd, (char *)g + n, sizeof *g - n, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        n += got > 0 ? (size_t)got : 0;
    }
    g->host[sizeof g->host - 1] = '\0';
    return memcmp(g->secret, m->secret, sizeof g->secret) == 0;
}

static void meet(struct peer *peer, int fd, const struct greeting *g)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *peer = (struct peer){ .fd = fd, .seen_ms = now_ms(), .pid = g->pid };
    memcpy(peer->host, g->host, sizeof peer->host);
}

/* ---- opening ---- */

static enum tutti_status monitor_new(struct monitor **out, const struct monitor_options *options,
                                     struct tutti_error *err)
{
    struct monitor *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(err, TUTTI_E_MEMORY, "monitor of ranks: out of memory");
    m->options = *options;
    m->listener = -1;
    m->wake = (struct os_event)OS_NO_EVENT;
    atomic_init(&m->lost, -1);
    m->peers = calloc((size_t)options->n_ranks, sizeof *m->peers);
    for (int r = 0; m->peers && r < options->n_ranks; r++)
        m->peers[r].fd = -1;
    if (!m->peers || !os_event_open(&m->wake)) {
        enum tutti_status st = error_set(err, TUTTI_E_MEMORY, "monitor of ranks: %s", strerror(errno));
        monitor_free(m, true);
        return st;
    }
    *out = m;
    return TUTTI_OK;
}

/* Every address of this machine that others can reach; loopback addresses if all ranks are on this
 * machine. */
static void list_addresses(bool is_local, struct monitor_invitation *invitation)
{
    struct ifaddrs *all = NULL;
    uint16_t n = 0;
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *a = all; a && n < MONITOR_ADDRESSES; a = a->ifa_next) {
        int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
        bool is_loop = a->ifa_flags & IFF_LOOPBACK, is_up = a->ifa_flags & IFF_UP;
        if (!is_up || is_loop != is_local || (family != AF_INET && (family != AF_INET6 || is_local)))
            continue;
        if (family == AF_INET) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a->ifa_addr;
            memcpy(invitation->addresses[n].bytes, &in->sin_addr, sizeof in->sin_addr);
        } else {
            const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)a->ifa_addr;
            if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr))
                continue; /* link-local: needs an interface's name */
            memcpy(invitation->addresses[n].bytes, &in->sin6_addr, sizeof in->sin6_addr);
        }
        invitation->addresses[n++].is_ipv6 = family == AF_INET6;
    }
    freeifaddrs(all);
    invitation->n_addresses = n;
}

/* One socket for IPv4 and IPv6, if the system has IPv6. */
static int open_listener(bool is_local, uint16_t *port)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any };
    struct sockaddr_in four = { .sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY) };
    int off = 0;
    int fd = is_local ? -1 : os_socket(AF_INET6, SOCK_STREAM);
    if (fd >= 0 && (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0 ||
                    bind(fd, (struct sockaddr *)&six, sizeof six) != 0)) {
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        fd = os_socket(AF_INET, SOCK_STREAM);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&four, sizeof four) != 0) {
            close(fd);
            return -1;
        }
    }
    socklen_t n = sizeof six; /* the larger one; the port is at the same offset in both */
    if (fd < 0 || listen(fd, CLUSTER_MAX_RANKS) != 0 || getsockname(fd, (struct sockaddr *)&six, &n) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(six.sin6_port);
    return fd;
}

enum tutti_status monitor_listen(struct monitor **out, const struct monitor_options *options,
                                 struct monitor_invitation *invitation, struct tutti_error *err)
{
    struct monitor *m;
    enum tutti_status st = monitor_new(&m, options, err);
    if (st != TUTTI_OK)
        return st;
    *invitation = (struct monitor_invitation){ 0 };
    list_addresses(options->is_local, invitation);
    m->listener = open_listener(options->is_local, &invitation->port);
    if (m->listener < 0 || getentropy(m->secret, sizeof m->secret) != 0 || invitation->n_addresses == 0) {
        st = error_set(err, TUTTI_E_IO, "monitor of ranks: cannot listen: %s",
                       invitation->n_addresses == 0 ? "this machine has no address" : strerror(errno));
        monitor_free(m, true);
        return st;
    }
    memcpy(invitation->secret, m->secret, sizeof m->secret);
    *out = m;
    return TUTTI_OK;
}

/* -1: no answer at that address. */
static int connect_to(const struct monitor_invitation *invitation, int i, uint64_t end_ms)
{
    bool is_ipv6 = invitation->addresses[i].is_ipv6;
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(invitation->port) };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(invitation->port) };
    memcpy(&six.sin6_addr, invitation->addresses[i].bytes, sizeof six.sin6_addr);
    memcpy(&four.sin_addr, invitation->addresses[i].bytes, sizeof four.sin_addr);
    int fd = os_socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM);
    int rc = fd < 0    ? -1
             : is_ipv6 ? connect(fd, (struct sockaddr *)&six, sizeof six)
                       : connect(fd, (struct sockaddr *)&four, sizeof four);
    int error = 0;
    socklen_t n = sizeof error;
    bool is_open = rc == 0 || (fd >= 0 && errno == EINPROGRESS && is_ready(fd, POLLOUT, end_ms) &&
                               getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0);
    if (!is_open && fd >= 0)
        close(fd);
    return is_open ? fd : -1;
}

enum tutti_status monitor_join(struct monitor **out, const struct monitor_options *options,
                               const struct monitor_invitation *invitation, struct tutti_error *err)
{
    struct monitor *m;
    enum tutti_status st = monitor_new(&m, options, err);
    if (st != TUTTI_OK)
        return st;
    memcpy(m->secret, invitation->secret, sizeof m->secret);
    uint64_t end_ms = now_ms() + JOIN_MS;
    int n = invitation->n_addresses < MONITOR_ADDRESSES ? invitation->n_addresses : MONITOR_ADDRESSES;
    for (int i = 0; m->peers[RANK_0].fd < 0 && n > 0 && now_ms() < end_ms; i = (i + 1) % n) {
        int fd = connect_to(invitation, i, now_ms() + CONNECT_MS);
        struct greeting g;
        /* Rank 0 may answer other ranks first. */
        if (fd >= 0 && send_greeting(m, fd) && read_greeting(m, fd, &g, end_ms) && g.rank == RANK_0)
            meet(&m->peers[RANK_0], fd, &g);
        else if (fd >= 0)
            close(fd);
        else
            usleep(20000);
    }
    if (m->peers[RANK_0].fd < 0) {
        st = error_set(err, TUTTI_E_IO, "rank %d cannot reach rank 0 at any of its %d addresses, port %d",
                       options->rank, n, invitation->port);
        monitor_free(m, true);
        return st;
    }
    *out = m;
    return TUTTI_OK;
}

/* ---- watching ---- */

static void lose(struct monitor *m, int rank, bool is_cut_off, const char *how)
{
    if (atomic_load(&m->lost) >= 0)
        return;
    const struct peer *peer = &m->peers[rank];
    if (peer->host[0] != '\0')
        snprintf(m->text, sizeof m->text, "rank %d of %d (host %s, process %d) was lost: %s", rank,
                 m->options.n_ranks, peer->host, peer->pid, how);
    else
        snprintf(m->text, sizeof m->text, "rank %d of %d was lost: %s", rank, m->options.n_ranks, how);
    atomic_store(&m->lost, rank);
    m->is_cut_off = is_cut_off;
    const uint8_t news[2] = { is_cut_off ? CUT_OFF : LOST, (uint8_t)rank };
    for (int r = 1; m->options.rank == RANK_0 && r < m->options.n_ranks; r++)
        if (m->peers[r].fd >= 0 && r != rank)
            (void)send(m->peers[r].fd, news, sizeof news, MSG_NOSIGNAL | MSG_DONTWAIT);
    m->end_ms = now_ms() + (is_cut_off ? MONITOR_CUT_OFF_MS : MONITOR_GRACE_MS);
    if (m->options.lost)
        m->options.lost(m->options.user);
}

static void leave(struct peer *peer)
{
    close(peer->fd);
    peer->fd = -1;
}

static void hear(struct monitor *m, int rank)
{
    struct peer *peer = &m->peers[rank];
    uint8_t bytes[64];
    ssize_t n = recv(peer->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        leave(peer);
        if (!peer->said_goodbye)
            lose(m, rank, false, "its process ended, or its connection broke");
        return;
    }
    peer->seen_ms = now_ms();
    for (ssize_t i = 0; i < n; i++) {
        if (peer->news != 0 && bytes[i] < m->options.n_ranks)
            lose(m, bytes[i], peer->news == CUT_OFF, "reported by rank 0");
        peer->news = peer->news == 0 && (bytes[i] == LOST || bytes[i] == CUT_OFF) ? bytes[i] : 0;
        if (bytes[i] == GIVING_UP)
            lose(m, rank, false, "it gave up");
        peer->said_goodbye = peer->said_goodbye || bytes[i] == GOODBYE;
    }
}

static void check_silence(struct monitor *m)
{
    char how[64];
    for (int r = 0; r < m->options.n_ranks; r++) {
        const struct peer *peer = &m->peers[r];
        uint64_t silent_ms = peer->fd >= 0 ? now_ms() - peer->seen_ms : 0;
        if (silent_ms <= MONITOR_SILENCE_MS || peer->said_goodbye)
            continue;
        snprintf(how, sizeof how, "no sign of life for %.1f s", (double)silent_ms / 1000);
        bool is_first = atomic_load(&m->lost) < 0;
        lose(m, r, !m->options.is_local, how);
        /* Now, because mpirun may kill this process before its error is printed. */
        if (is_first && m->is_cut_off)
            log_error("%s", m->text);
    }
}

static void say(struct monitor *m, uint8_t byte)
{
    for (int r = 0; r < m->options.n_ranks; r++) /* if the buffer is full, enough beats are queued */
        if (m->peers[r].fd >= 0)
            (void)send(m->peers[r].fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Kills mpirun, which had MONITOR_CUT_OFF_MS to notice the loss. It would take a quarter of an hour: its
 * messages to the silent machine are never acknowledged, and TCP sends no keepalives while data is
 * unacknowledged. A process manager can restart the group only after mpirun has ended. */
static void end_launcher(void)
{
    static const char *const LAUNCHERS[] = { "mpirun\n",  "mpiexec\n", "orterun\n", "orted\n",
                                             "prterun\n", "prte\n",    "prted\n" };
    char path[64], name[64] = "";
    pid_t parent = getppid();
    snprintf(path, sizeof path, "/proc/%d/comm", (int)parent);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (!fgets(name, sizeof name, file))
        name[0] = '\0';
    fclose(file);
    for (size_t i = 0; i < sizeof LAUNCHERS / sizeof *LAUNCHERS; i++)
        if (strcmp(name, LAUNCHERS[i]) == 0 && kill(parent, SIGKILL) != 0)
            log_error("cannot end the launcher (process %d): %s", (int)parent, strerror(errno));
}

/* Terminates the process, which has had its time to exit. */
static void end_process(const struct monitor *m)
{
    if (m->is_cut_off)
        end_launcher();
    char line[600];
    int n = snprintf(line, sizeof line, "tutti: %s\n", m->text);
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        _exit(EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}

static void *monitor_watch(void *arg)
{
    struct monitor *m = arg;
    struct pollfd fds[CLUSTER_MAX_RANKS + 1];
    uint64_t beat_ms = 0;
    os_name_thread("tutti-monitor");
    while (!atomic_load(&m->is_stopping)) {
        if (now_ms() >= beat_ms) {
            say(m, BEAT);
            beat_ms = now_ms() + MONITOR_BEAT_MS;
        }
        for (int r = 0; r < m->options.n_ranks; r++)
            fds[r] = (struct pollfd){ .fd = m->peers[r].fd, .events = POLLIN };
        fds[m->options.n_ranks] = (struct pollfd){ .fd = m->wake.read_fd, .events = POLLIN };
        int n = poll(fds, (nfds_t)m->options.n_ranks + 1, time_left(beat_ms));
        for (int r = 0; n > 0 && r < m->options.n_ranks; r++)
            if (fds[r].revents)
                hear(m, r);
        if (n >= 0) /* all bytes sent were received, even if this process was stopped for a while */
            check_silence(m);
        if (m->end_ms > 0 && now_ms() >= m->end_ms && !m->options.stays)
            end_process(m);
    }
    return NULL;
}

/* Rank 0: accepts connections that know the secret. */
static enum tutti_status take_in(struct monitor *m, struct tutti_error *err)
{
    uint64_t end_ms = now_ms() + JOIN_MS;
    for (int n_missing = m->options.n_ranks - 1; n_missing > 0;) {
        struct greeting g;
        int fd = is_ready(m->listener, POLLIN, end_ms) ? os_accept(m->listener) : -1;
        bool is_rank = fd >= 0 && read_greeting(m, fd, &g, now_ms() + GREETING_MS) && g.rank > 0 &&
                       g.rank < m->options.n_ranks && m->peers[g.rank].fd < 0 && send_greeting(m, fd);
        if (is_rank) {
            meet(&m->peers[g.rank], fd, &g);
            n_missing--;
        } else if (fd >= 0) {
            close(fd);
        }
        if (n_missing > 0 && now_ms() >= end_ms) {
            int r = 1;
            while (m->peers[r].fd >= 0)
                r++;
            return error_set(err, TUTTI_E_IO, "rank %d did not connect to rank 0 within %d s", r,
                             JOIN_MS / 1000);
        }
    }
    close(m->listener);
    m->listener = -1;
    for (int r = 1; r < m->options.n_ranks; r++)
        m->peers[r].seen_ms = now_ms();
    return TUTTI_OK;
}

enum tutti_status monitor_start(struct monitor *m, struct tutti_error *err)
{
    enum tutti_status st = m->options.rank == RANK_0 ? take_in(m, err) : TUTTI_OK;
    if (st != TUTTI_OK)
        return st;
    int rc = thread_start(&m->thread, monitor_watch, m);
    m->has_thread = rc == 0;
    return rc == 0 ? TUTTI_OK
                   : error_set(err, TUTTI_E_MEMORY, "cannot create the monitor thread: %s", strerror(rc));
}

void monitor_free(struct monitor *m, bool is_orderly)
{
    if (!m)
        return;
    atomic_store(&m->is_stopping, true);
    if (m->has_thread) {
        os_event_set(&m->wake);
        pthread_join(m->thread, NULL);
        if (atomic_load(&m->lost) < 0)
            say(m, is_orderly ? GOODBYE : GIVING_UP);
        /* A signal interrupts it: the launcher has noticed the loss. */
        if (m->is_cut_off && !m->options.stays && poll(NULL, 0, time_left(m->end_ms)) == 0)
            end_launcher();
    }
    for (int r = 0; m->peers && r < m->options.n_ranks; r++)
        if (m->peers[r].fd >= 0)
            close(m->peers[r].fd);
    if (m->listener >= 0)
        close(m->listener);
    os_event_close(&m->wake);
    free(m->peers);
    free(m);
}

int monitor_lost(const struct monitor *m)
{
    return atomic_load_explicit(&m->lost, memory_order_acquire);
}

const char *monitor_text(const struct monitor *m)
{
    return monitor_lost(m) >= 0 ? m->text : "";
}
