#include "server/http/listen.h"

#include "base/log.h"
#include "base/system/os.h"
#include "server/http/supervisor.h"

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

enum {
    BACKLOG = 1024,
    MAX_INHERITED = 8,
    MAX_LISTENERS = 24,
    N_SERVICES = HTTP_SERVICE_METRICS + 1,
    PAUSE_MS = 100
};

/* A listening socket. */
struct listener {
    struct listeners *all;
    struct evconnlistener *accepts;
    enum http_service service;
};

struct listeners {
    struct listener list[MAX_LISTENERS];
    int n;
    struct event_base *base;
    struct http *http;
    struct event *resume; /* runs after the system ran out of descriptors */
    const char *scheme;
    bool is_inherited;
    struct {
        char *unix_path;
        char address[512];
    } services[N_SERVICES];
};

/* "host:port", or "unix". */
static void write_address(const struct sockaddr *sa, socklen_t n_sa, char *out, size_t n_bytes)
{
    char host[NI_MAXHOST], port[8];
    if (sa->sa_family == AF_UNIX ||
        getnameinfo(sa, n_sa, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, n_bytes, "unix");
    else
        snprintf(out, n_bytes, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *sa, int n_sa,
                      void *arg)
{
    struct listener *own = arg;
    char peer[64];
    (void)listener;
    write_address(sa, (socklen_t)n_sa, peer, sizeof peer);
    http_accept(own->all->http, fd, peer, own->service);
}

/* Out of descriptors: the socket stays readable, so pause instead of a busy loop. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct listener *own = arg;
    struct listeners *listeners = own->all;
    log_warn("cannot accept a connection: %s", strerror(errno));
    if (http_make_room(listeners->http))
        return; /* the socket is still readable: accept again at once */
    for (int i = 0; i < listeners->n; i++)
        evconnlistener_disable(listeners->list[i].accepts);
    struct timeval pause = { .tv_usec = PAUSE_MS * 1000 };
    evtimer_add(listeners->resume, &pause);
    (void)listener;
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct listeners *listeners = arg;
    (void)fd, (void)what;
    for (int i = 0; i < listeners->n; i++)
        evconnlistener_enable(listeners->list[i].accepts);
}

/* Takes ownership of a bound socket. backlog 0: it is listening already. */
static enum tutti_status add_listener(struct listeners *listeners, enum http_service service, int fd,
                                      int backlog, struct tutti_error *err)
{
    evutil_make_socket_nonblocking(fd);
    struct listener *own = &listeners->list[listeners->n];
    *own = (struct listener){ .all = listeners, .service = service };
    own->accepts = evconnlistener_new(listeners->base, on_accept, own,
                                      LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                      backlog, fd);
    if (!own->accepts) {
        int error = errno;
        close(fd);
        return error_set(err, TUTTI_E_IO, "cannot listen: %s", strerror(error));
    }
    evconnlistener_set_error_cb(own->accepts, on_accept_error);
    listeners->n++;
    return TUTTI_OK;
}

/* ---- TCP sockets ---- */

static int bind_address(const struct addrinfo *address)
{
    int fd = os_socket(address->ai_family, SOCK_STREAM), one = 1;
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

/* A name may have several addresses ("localhost": IPv4 and IPv6); all get the same port. */
static enum tutti_status listen_tcp(struct listeners *listeners, enum http_service service, const char *host,
                                    int port, struct tutti_error *err)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE };
    struct addrinfo *found = NULL;
    char port_text[16];
    snprintf(port_text, sizeof port_text, "%d", port);
    int failed = getaddrinfo(host, port_text, &hints, &found);
    if (failed)
        return error_set(err, TUTTI_E_IO, "cannot listen on %s: %s", host, gai_strerror(failed));
    enum tutti_status st = TUTTI_OK;
    int wanted = port, error = 0, n_before = listeners->n;
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
        st = add_listener(listeners, service, fd, BACKLOG, err);
    }
    freeaddrinfo(found);
    if (st == TUTTI_OK && listeners->n == n_before)
        st = error_set(err, TUTTI_E_IO, "cannot listen on %s port %d: %s", host, wanted, strerror(error));
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(listeners->services[service].address, sizeof listeners->services[service].address,
             "%s://%s%s%s:%d", listeners->scheme, is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
    return st;
}

/* ---- Unix sockets ---- */

/* True: path is a socket file whose server is gone; only then it may be replaced. */
static bool is_stale(const struct sockaddr_un *sa)
{
    struct stat st;
    if (lstat(sa->sun_path, &st) || !S_ISSOCK(st.st_mode))
        return false;
    int fd = os_socket(AF_UNIX, SOCK_STREAM);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)sa, sizeof *sa) && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return stale;
}

static enum tutti_status listen_unix(struct listeners *listeners, enum http_service service, const char *path,
                                     unsigned mode, struct tutti_error *err)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof sa.sun_path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path of a socket has at most %zu bytes", path,
                         sizeof sa.sun_path - 1);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    int fd = os_socket(AF_UNIX, SOCK_STREAM);
    if (fd < 0)
        return error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno));
    if (is_stale(&sa))
        unlink(path);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa)) {
        int error = errno;
        close(fd);
        return error_set(err, TUTTI_E_IO, "%s: cannot listen: %s", path, strerror(error));
    }
    listeners->services[service].unix_path = strdup(path);
    if (chmod(path, mode)) { /* whatever the umask; before listen(), so that no client connects too early */
        int error = errno;
        close(fd);
        return error_set(err, TUTTI_E_IO, "%s: cannot set its permissions to %04o: %s", path, mode,
                         strerror(error));
    }
    snprintf(listeners->services[service].address, sizeof listeners->services[service].address, "unix:%s",
             path);
    return add_listener(listeners, service, fd, BACKLOG, err);
}

/* ---- sockets inherited from systemd ---- */

static void describe_address(struct listeners *listeners, int fd)
{
    union address address = address_of(fd);
    char name[64], *out = listeners->services[HTTP_SERVICE_API].address;
    size_t n_bytes = sizeof listeners->services[HTTP_SERVICE_API].address;
    if (address.any.sa_family == AF_UNIX) /* a name that begins with a zero byte is abstract */
        snprintf(out, n_bytes, "unix:%s%.*s", address.un.sun_path[0] ? "" : "@",
                 (int)sizeof address.un.sun_path - 1, address.un.sun_path + !address.un.sun_path[0]);
    else if (address.any.sa_family == AF_UNSPEC)
        snprintf(out, n_bytes, "descriptor %d", fd);
    else {
        write_address(&address.any, sizeof address, name, sizeof name);
        snprintf(out, n_bytes, "%s://%s", listeners->scheme, name);
    }
}

static enum tutti_status listen_inherited(struct listeners *listeners, const int *fds, int n,
                                          struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    describe_address(listeners, fds[0]);
    listeners->is_inherited = true;
    for (int i = 0; st == TUTTI_OK && i < n; i++)
        st = add_listener(listeners, HTTP_SERVICE_API, fds[i], 0, err);
    log_info("listening on %d socket%s from systemd; host and port of the options are ignored", n,
             n == 1 ? "" : "s");
    return st;
}

/* ---- listening ---- */

/* "unix:PATH", "HOST:PORT", "[ADDRESS]:PORT", ":PORT" or "PORT" of 127.0.0.1. */
static enum tutti_status listen_metrics(struct listeners *listeners, const struct server_options *options,
                                        struct tutti_error *err)
{
    char host[256] = "127.0.0.1", *end = NULL;
    const char *text = options->metrics_listen;
    if (!strncmp(text, "unix:", 5))
        return listen_unix(listeners, HTTP_SERVICE_METRICS, text + 5, options->unix_mode, err);
    const char *colon = strrchr(text, ':'), *port_text = colon ? colon + 1 : text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    bool is_v6 = n > 2 && text[0] == '[' && text[n - 1] == ']';
    if (n > 0)
        snprintf(host, sizeof host, "%.*s", (int)(is_v6 ? n - 2 : n), text + is_v6);
    long port = *port_text >= '0' && *port_text <= '9' ? strtol(port_text, &end, 10) : -1;
    if (port < 0 || port > 65535 || *end || n >= sizeof host || (!is_v6 && strchr(host, ':')))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "the address for metrics is \"%.200s\", expected HOST:PORT, PORT or unix:PATH",
                         text);
    return listen_tcp(listeners, HTTP_SERVICE_METRICS, host, (int)port, err);
}

enum tutti_status listeners_open(struct listeners **out, struct event_base *base, struct http *http,
                                 const struct server_options *options, struct tutti_error *err)
{
    struct listeners *listeners = calloc(1, sizeof *listeners);
    if (!listeners)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    listeners->base = base;
    listeners->http = http;
    listeners->scheme = options->tls_cert_file ? "https" : "http";
    listeners->resume = evtimer_new(base, on_resume, listeners);
    int fds[MAX_INHERITED], n_fds = 0;
    enum tutti_status st = supervisor_sockets(fds, MAX_INHERITED, &n_fds, err);
    if (st == TUTTI_OK && !listeners->resume)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    if (st != TUTTI_OK)
        ; /* nothing to listen on */
    else if (n_fds > 0)
        st = listen_inherited(listeners, fds, n_fds, err);
    else if (options->unix_path)
        st = listen_unix(listeners, HTTP_SERVICE_API, options->unix_path, options->unix_mode, err);
    else
        st = listen_tcp(listeners, HTTP_SERVICE_API, options->host, options->port, err);
    if (st == TUTTI_OK && options->metrics_listen)
        st = listen_metrics(listeners, options, err);
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
        evconnlistener_free(listeners->list[i].accepts);
    for (int service = 0; service < N_SERVICES; service++) {
        if (listeners->services[service].unix_path)
            unlink(listeners->services[service].unix_path);
        free(listeners->services[service].unix_path);
    }
    if (listeners->resume)
        event_free(listeners->resume);
    free(listeners);
}

bool listeners_are_inherited(const struct listeners *listeners)
{
    return listeners->is_inherited;
}

bool listeners_are_reachable(const struct listeners *listeners, enum http_service service)
{
    for (int i = 0; i < listeners->n; i++) {
        if (listeners->list[i].service != service)
            continue;
        union address address = address_of(evconnlistener_get_fd(listeners->list[i].accepts));
        bool is_v4 = address.any.sa_family == AF_INET, is_v6 = address.any.sa_family == AF_INET6;
        if ((is_v4 && ntohl(address.in.sin_addr.s_addr) >> 24 != 127) ||
            (is_v6 && !IN6_IS_ADDR_LOOPBACK(&address.in6.sin6_addr)))
            return true;
    }
    return false;
}

const char *listeners_address(const struct listeners *listeners)
{
    return listeners->services[HTTP_SERVICE_API].address;
}

const char *listeners_metrics_address(const struct listeners *listeners)
{
    return listeners->services[HTTP_SERVICE_METRICS].address;
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
