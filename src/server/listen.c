#include "server/listen.h"

#include "base/log.h"
#include "server/supervisor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024, MAX_LISTENERS = 8, PAUSE_MS = 100 };

struct listeners {
    struct evconnlistener *list[MAX_LISTENERS];
    int n;
    struct http *http;
    struct event *resume; /* after the system ran out of descriptors */
    char *unix_path;
    const char *scheme;
    bool is_inherited;
    char address[512];
};

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *sa, int n_sa,
                      void *arg)
{
    struct listeners *listeners = arg;
    char peer[64] = "unix", host[INET6_ADDRSTRLEN] = "";
    (void)listener, (void)n_sa;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(peer, sizeof peer, "%s:%d", host, ntohs(in->sin_port));
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)sa;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(peer, sizeof peer, "[%s]:%d", host, ntohs(in->sin6_port));
    }
    http_accept(listeners->http, fd, peer, HTTP_DOOR_API);
}

/* Without descriptors the socket stays readable: a pause instead of a busy loop. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct listeners *listeners = arg;
    log_warn("cannot accept a connection: %s", strerror(errno));
    if (http_make_room(listeners->http))
        return; /* the socket is still readable: the next try is at once */
    for (int i = 0; i < listeners->n; i++)
        evconnlistener_disable(listeners->list[i]);
    struct timeval pause = { .tv_usec = PAUSE_MS * 1000 };
    evtimer_add(listeners->resume, &pause);
    (void)listener;
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct listeners *listeners = arg;
    (void)fd, (void)what;
    for (int i = 0; i < listeners->n; i++)
        evconnlistener_enable(listeners->list[i]);
}

/* Takes the bound socket over. backlog 0: it is listened on already. */
static enum tutti_status add_listener(struct listeners *listeners, struct event_base *base, int fd,
                                      int backlog, struct tutti_error *err)
{
    evutil_make_socket_nonblocking(fd);
    struct evconnlistener *listener = evconnlistener_new(
        base, on_accept, listeners, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
        backlog, fd);
    if (!listener) {
        int error = errno;
        close(fd);
        return error_set(err, TUTTI_E_IO, "cannot listen: %s", strerror(error));
    }
    evconnlistener_set_error_cb(listener, on_accept_error);
    listeners->list[listeners->n++] = listener;
    return TUTTI_OK;
}

/* ---- TCP --------------------------------------------------------------------------------------------------------- */

static int bind_address(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_un un;
};

static union address address_of(int fd)
{
    union address address;
    socklen_t n = sizeof address;
    memset(&address, 0, sizeof address);
    if (getsockname(fd, &address.any, &n) != 0)
        address.any.sa_family = AF_UNSPEC;
    return address;
}

static int port_of(int fd)
{
    union address address = address_of(fd);
    return ntohs(address.any.sa_family == AF_INET6 ? address.in6.sin6_port : address.in.sin_port);
}

/* A name may have several addresses ("localhost": IPv4 and IPv6); all of them get the same port. */
static enum tutti_status listen_tcp(struct listeners *listeners, struct event_base *base,
                                    const struct server_options *options, struct tutti_error *err)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE };
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", options->port);
    int failed = getaddrinfo(options->host, service, &hints, &found);
    if (failed)
        return error_set(err, TUTTI_E_IO, "cannot listen on %s: %s", options->host, gai_strerror(failed));
    enum tutti_status st = TUTTI_OK;
    int port = options->port, error = 0;
    for (const struct addrinfo *address = found; address && st == TUTTI_OK && listeners->n < MAX_LISTENERS;
         address = address->ai_next) {
        if (address->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)(void *)address->ai_addr)->sin6_port = htons((uint16_t)port);
        else
            ((struct sockaddr_in *)(void *)address->ai_addr)->sin_port = htons((uint16_t)port);
        int fd = bind_address(address);
        if (fd < 0) {
            error = errno;
            continue;
        }
        port = port_of(fd);
        st = add_listener(listeners, base, fd, BACKLOG, err);
    }
    freeaddrinfo(found);
    if (st == TUTTI_OK && listeners->n == 0)
        st = error_set(err, TUTTI_E_IO, "cannot listen on %s port %d: %s", options->host, options->port,
                       strerror(error));
    bool is_v6 = strchr(options->host, ':') != NULL;
    snprintf(listeners->address, sizeof listeners->address, "%s://%s%s%s:%d", listeners->scheme,
             is_v6 ? "[" : "", options->host, is_v6 ? "]" : "", port);
    return st;
}

/* ---- Unix -------------------------------------------------------------------------------------------------------- */

/* A socket file whose server is gone may be replaced, anything else may not. */
static bool is_stale(const struct sockaddr_un *sa)
{
    struct stat st;
    if (lstat(sa->sun_path, &st) || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)sa, sizeof *sa) && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return stale;
}

static enum tutti_status listen_unix(struct listeners *listeners, struct event_base *base, const char *path,
                                     struct tutti_error *err)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof sa.sun_path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path of a socket holds at most %zu bytes", path,
                         sizeof sa.sun_path - 1);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno));
    if (is_stale(&sa))
        unlink(path);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa)) {
        int error = errno;
        close(fd);
        return error_set(err, TUTTI_E_IO, "%s: cannot listen: %s", path, strerror(error));
    }
    listeners->unix_path = strdup(path);
    snprintf(listeners->address, sizeof listeners->address, "unix:%s", path);
    return add_listener(listeners, base, fd, BACKLOG, err);
}

/* ---- inherited --------------------------------------------------------------------------------------------------- */

static void describe(struct listeners *listeners, int fd)
{
    union address address = address_of(fd);
    char host[INET6_ADDRSTRLEN] = "", *out = listeners->address;
    size_t n_bytes = sizeof listeners->address;
    if (address.any.sa_family == AF_UNIX) /* a name that begins with zero is of the abstract kind */
        snprintf(out, n_bytes, "unix:%s%.*s", address.un.sun_path[0] ? "" : "@",
                 (int)sizeof address.un.sun_path - 1, address.un.sun_path + !address.un.sun_path[0]);
    else if (address.any.sa_family == AF_INET6)
        snprintf(out, n_bytes, "%s://[%s]:%d", listeners->scheme,
                 inet_ntop(AF_INET6, &address.in6.sin6_addr, host, sizeof host), port_of(fd));
    else if (address.any.sa_family == AF_INET)
        snprintf(out, n_bytes, "%s://%s:%d", listeners->scheme,
                 inet_ntop(AF_INET, &address.in.sin_addr, host, sizeof host), port_of(fd));
    else
        snprintf(out, n_bytes, "descriptor %d", fd);
}

static enum tutti_status listen_inherited(struct listeners *listeners, struct event_base *base,
                                          const int *fds, int n, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    describe(listeners, fds[0]);
    listeners->is_inherited = true;
    for (int i = 0; st == TUTTI_OK && i < n; i++)
        st = add_listener(listeners, base, fds[i], 0, err);
    log_info("listening on %d socket%s of systemd, whatever address the options name", n, n == 1 ? "" : "s");
    return st;
}

/* ------------------------------------------------------------------------------------------------------------------ */

enum tutti_status listeners_open(struct listeners **out, struct event_base *base, struct http *http,
                                 const struct server_options *options, struct tutti_error *err)
{
    struct listeners *listeners = calloc(1, sizeof *listeners);
    if (!listeners)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    listeners->http = http;
    listeners->scheme = options->tls_cert_file ? "https" : "http";
    listeners->resume = evtimer_new(base, on_resume, listeners);
    int fds[MAX_LISTENERS], n_fds = 0;
    enum tutti_status st = supervisor_sockets(fds, MAX_LISTENERS, &n_fds, err);
    if (st == TUTTI_OK && !listeners->resume)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    if (st != TUTTI_OK)
        ; /* nothing to listen on */
    else if (n_fds > 0)
        st = listen_inherited(listeners, base, fds, n_fds, err);
    else if (options->unix_path)
        st = listen_unix(listeners, base, options->unix_path, err);
    else
        st = listen_tcp(listeners, base, options, err);
    if (st != TUTTI_OK) {
        listeners_close(listeners);
        return st;
    }
    *out = listeners;
    return TUTTI_OK;
}

void listeners_close(struct listeners *listeners)
{
    if (!listeners)
        return;
    for (int i = 0; i < listeners->n; i++)
        evconnlistener_free(listeners->list[i]);
    if (listeners->unix_path)
        unlink(listeners->unix_path);
    free(listeners->unix_path);
    if (listeners->resume)
        event_free(listeners->resume);
    free(listeners);
}

bool listeners_are_inherited(const struct listeners *listeners)
{
    return listeners->is_inherited;
}

const char *listeners_address(const struct listeners *listeners)
{
    return listeners->address;
}

void raise_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        log_warn("cannot raise the limit on open files: %s", strerror(errno));
}
