#include "fleet/rank_table.h"

#include "base/json/json_field.h"
#include "base/json/json_type.h"
#include "checkpoint/json_file.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct table_server {
    const char *id, *ip;  /* ip: the host's; NULL: the table has none */
    int first, n_devices; /* in the table's devices */
};

struct device {
    int server, index; /* index: its place among the server's devices by device_id */
    int64_t device_id, rank;
    const char *ip; /* NULL: none */
};

struct rank_table {
    json_t *root; /* owns all strings */
    char *path;
    struct table_server *servers; /* [n_servers] */
    struct device *devices;       /* [n_ranks], in the table's order */
    int *by_rank;                 /* [n_ranks]: index of a device */
    int n_servers, n_ranks;
};

/* Where an error is: "server_list[1].device[0].rank_id". */
struct device_place {
    const struct rank_table *table;
    struct tutti_error *err;
    int server, device; /* -1: not in one */
};

static struct json_place json_place_at(const struct device_place *at)
{
    struct json_place place = { .file = at->table->path, .err = at->err };
    if (at->device >= 0)
        snprintf(place.prefix, sizeof place.prefix, "server_list[%d].device[%d].", at->server, at->device);
    else if (at->server >= 0)
        snprintf(place.prefix, sizeof place.prefix, "server_list[%d].", at->server);
    return place;
}

PRINTF_LIKE(3, 4)
static enum tutti_status wrong(const struct device_place *at, const char *key, const char *format, ...)
{
    struct json_place place = json_place_at(at);
    va_list args;
    va_start(args, format);
    enum tutti_status st = json_invalid_args(&place, key, format, args);
    va_end(args);
    return st;
}

/* ---- values ---- */

static enum tutti_status get_text(const struct device_place *at, const json_t *object, const char *key,
                                  const char **out)
{
    struct json_place place = json_place_at(at);
    enum tutti_status st = json_get_string(&place, object, key, out);
    return st == TUTTI_OK && !**out ? wrong(at, key, "an empty string") : st;
}

/* A number as a string or as a number. */
static enum tutti_status get_number(const struct device_place *at, const json_t *object, const char *key,
                                    int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!json_is_integer(value) && !text)
        return wrong(at, key, "%s, expected a number as a string", json_type_name(value));
    size_t n = text ? strlen(text) : 0;
    if (text && (n < 1 || n > 9 || strspn(text, "0123456789") != n))
        return wrong(at, key, "\"%.32s\", expected a number from 0 to %" PRId64, text, max);
    *out = text ? strtoll(text, NULL, 10) : json_integer_value(value);
    if (*out < 0 || *out > max)
        return wrong(at, key, "%" PRId64 ", expected a number from 0 to %" PRId64, *out, max);
    return TUTTI_OK;
}

static bool is_address(const char *text)
{
    struct in6_addr address;
    return inet_pton(AF_INET, text, &address) == 1 || inet_pton(AF_INET6, text, &address) == 1;
}

/* *out stays NULL if there is none. */
static enum tutti_status get_address(const struct device_place *at, const json_t *object, const char *key,
                                     const char **out)
{
    const json_t *value = json_object_get(object, key);
    *out = NULL;
    if (!value)
        return TUTTI_OK;
    enum tutti_status st = get_text(at, object, key, out);
    if (st == TUTTI_OK && !is_address(*out))
        st = wrong(at, key, "\"%.64s\", expected an IP address", *out);
    return st;
}

/* Hosts are written into mpirun's files, so only the characters of names and addresses are
 * allowed. */
static bool is_host(const char *text)
{
    size_t n = strlen(text);
    return n <= 255 && text[0] != '-' &&
           strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-") == n;
}

/* ---- the table ---- */

static enum tutti_status read_device(struct rank_table *t, struct device_place *at, const json_t *object,
                                     struct device *d)
{
    int64_t rank = 0, device_id = 0;
    if (!json_is_object(object))
        return wrong(at, "device_id", "%s in the place of a device, expected an object",
                     json_type_name(object));
    enum tutti_status st = get_number(at, object, "device_id", RANK_TABLE_MAX_DEVICE, &device_id);
    if (st == TUTTI_OK)
        st = get_address(at, object, "device_ip", &d->ip);
    if (st == TUTTI_OK)
        st = get_number(at, object, "rank_id", RANK_TABLE_MAX_RANKS - 1, &rank);
    if (st != TUTTI_OK)
        return st;
    d->server = at->server;
    d->device_id = device_id;
    d->rank = rank;
    for (int i = t->servers[at->server].first; i < t->n_ranks; i++) {
        if (t->devices[i].device_id == device_id)
            return wrong(at, "device_id", "%" PRId64 " is device[%d]'s too", device_id,
                         i - t->servers[at->server].first);
    }
    return TUTTI_OK;
}

static enum tutti_status read_server(struct rank_table *t, struct device_place *at, const json_t *object)
{
    struct table_server *s = &t->servers[at->server];
    const json_t *devices = json_object_get(object, "device");
    const char *server_ip = NULL;
    if (!json_is_object(object))
        return wrong(at, "server_id", "%s in the place of a server, expected an object",
                     json_type_name(object));
    enum tutti_status st = get_text(at, object, "server_id", &s->id);
    if (st == TUTTI_OK && !is_host(s->id))
        st = wrong(at, "server_id", "\"%.64s\", expected the name or address of a host", s->id);
    for (int i = 0; st == TUTTI_OK && i < at->server; i++) {
        if (strcmp(t->servers[i].id, s->id) == 0)
            st = wrong(at, "server_id", "\"%.64s\" is server_list[%d]'s too", s->id, i);
    }
    if (st == TUTTI_OK)
        st = get_address(at, object, "host_ip", &s->ip);
    if (st == TUTTI_OK)
        st = get_address(at, object, "server_ip", &server_ip);
    s->ip = s->ip ? s->ip : server_ip;
    if (st == TUTTI_OK && (!json_is_array(devices) || json_array_size(devices) < 1))
        st = wrong(at, "device", "%s, expected a list of at least one device",
                   json_is_array(devices) ? "an empty list" : json_type_name(devices));
    if (st != TUTTI_OK)
        return st;
    size_t n = json_array_size(devices);
    if (n > (size_t)(RANK_TABLE_MAX_RANKS - t->n_ranks))
        return wrong(at, "device", "more than %d ranks", RANK_TABLE_MAX_RANKS);
    struct device *more = realloc(t->devices, ((size_t)t->n_ranks + n) * sizeof *more);
    if (!more)
        return error_out_of_memory(t->path, at->err);
    t->devices = more;
    s->first = t->n_ranks;
    for (; at->device + 1 < (int)n && st == TUTTI_OK;) {
        at->device++;
        st = read_device(t, at, json_array_get(devices, (size_t)at->device), &t->devices[t->n_ranks]);
        t->n_ranks += st == TUTTI_OK;
    }
    s->n_devices = (int)n;
    at->device = -1;
    return st;
}

static struct device_place device_place(const struct rank_table *t, int device, struct tutti_error *err)
{
    int server = t->devices[device].server;
    return (struct device_place){ t, err, server, device - t->servers[server].first };
}

static enum tutti_status sort_ranks(struct rank_table *t, struct tutti_error *err)
{
    size_t n = (size_t)t->n_ranks;
    t->by_rank = malloc(n * sizeof *t->by_rank);
    if (!t->by_rank)
        return error_out_of_memory(t->path, err);
    for (int i = 0; i < t->n_ranks; i++)
        t->by_rank[i] = -1;
    for (int i = 0; i < t->n_ranks; i++) {
        int64_t rank = t->devices[i].rank;
        struct device_place at = device_place(t, i, err);
        if (rank >= t->n_ranks)
            return wrong(&at, "rank_id", "%" PRId64 ", but there are %d devices, so ranks are 0 to %d", rank,
                         t->n_ranks, t->n_ranks - 1);
        if (t->by_rank[rank] >= 0) {
            struct device_place other = device_place(t, t->by_rank[rank], err);
            return wrong(&at, "rank_id", "%" PRId64 " is server_list[%d].device[%d]'s too", rank,
                         other.server, other.device);
        }
        t->by_rank[rank] = i;
    }
    return TUTTI_OK;
}

static int by_address(const void *a, const void *b)
{
    const struct device *x = *(const struct device *const *)a, *y = *(const struct device *const *)b;
    int order = strcmp(x->ip, y->ip);
    return order ? order : (x > y) - (x < y);
}

/* Device addresses must be unique, since devices communicate by them. */
static enum tutti_status check_addresses(const struct rank_table *t, struct tutti_error *err)
{
    const struct device **sorted = malloc((size_t)t->n_ranks * sizeof *sorted);
    enum tutti_status st = TUTTI_OK;
    size_t n = 0;
    if (!sorted)
        return error_out_of_memory(t->path, err);
    for (int i = 0; i < t->n_ranks; i++) {
        if (t->devices[i].ip)
            sorted[n++] = &t->devices[i];
    }
    qsort((void *)sorted, n, sizeof *sorted, by_address);
    for (size_t i = 1; i < n && st == TUTTI_OK; i++) {
        if (strcmp(sorted[i]->ip, sorted[i - 1]->ip) != 0)
            continue;
        struct device_place at = device_place(t, (int)(sorted[i] - t->devices), err);
        struct device_place other = device_place(t, (int)(sorted[i - 1] - t->devices), err);
        st = wrong(&at, "device_ip", "%.64s is server_list[%d].device[%d]'s too", sorted[i]->ip, other.server,
                   other.device);
    }
    free((void *)sorted);
    return st;
}

static int by_device(const void *a, const void *b)
{
    const struct device *x = *(struct device *const *)a, *y = *(struct device *const *)b;
    return x->device_id < y->device_id ? -1 : x->device_id > y->device_id;
}

static enum tutti_status number_devices(struct rank_table *t, struct tutti_error *err)
{
    struct device **sorted = malloc((size_t)t->n_ranks * sizeof *sorted);
    if (!sorted)
        return error_out_of_memory(t->path, err);
    for (int i = 0; i < t->n_ranks; i++)
        sorted[i] = &t->devices[i];
    for (int s = 0; s < t->n_servers; s++) {
        struct device **of_server = sorted + t->servers[s].first;
        qsort(of_server, (size_t)t->servers[s].n_devices, sizeof *sorted, by_device);
        for (int i = 0; i < t->servers[s].n_devices; i++)
            of_server[i]->index = i;
    }
    free(sorted);
    return TUTTI_OK;
}

static enum tutti_status read_table_head(const struct rank_table *t, const struct device_place *at,
                                         size_t *n_servers)
{
    const char *version = NULL, *status = NULL;
    const json_t *list = json_object_get(t->root, "server_list");
    int64_t count = 0;
    enum tutti_status st = get_text(at, t->root, "version", &version);
    if (st == TUTTI_OK && version && strcmp(version, "1.0") != 0 && strcmp(version, "1.2") != 0)
        st = wrong(at, "version", "\"%.32s\", expected \"1.0\" or \"1.2\"", version);
    if (st == TUTTI_OK)
        st = get_text(at, t->root, "status", &status);
    if (st == TUTTI_OK && status && strcmp(status, "completed") != 0)
        st = wrong(at, "status", "\"%.32s\", expected \"completed\"", status);
    if (st == TUTTI_OK)
        st = get_number(at, t->root, "server_count", RANK_TABLE_MAX_RANKS, &count);
    if (st == TUTTI_OK && !json_is_array(list))
        st = wrong(at, "server_list", "%s, expected a list", json_type_name(list));
    if (st == TUTTI_OK && (json_array_size(list) < 1 || json_array_size(list) != (size_t)count))
        st = wrong(at, "server_count", "%" PRId64 ", but server_list has %zu servers", count,
                   json_array_size(list));
    *n_servers = json_array_size(list);
    return st;
}

static enum tutti_status read_table(struct rank_table *t, struct tutti_error *err)
{
    struct device_place at = { t, err, -1, -1 };
    size_t n = 0;
    enum tutti_status st = read_table_head(t, &at, &n);
    if (st != TUTTI_OK)
        return st;
    t->servers = calloc(n, sizeof *t->servers);
    if (!t->servers)
        return error_out_of_memory(t->path, err);
    for (; at.server + 1 < (int)n && st == TUTTI_OK;) {
        at.server++;
        st = read_server(t, &at, json_array_get(json_object_get(t->root, "server_list"), (size_t)at.server));
    }
    t->n_servers = (int)n;
    if (st == TUTTI_OK)
        st = sort_ranks(t, err);
    if (st == TUTTI_OK)
        st = check_addresses(t, err);
    return st == TUTTI_OK ? number_devices(t, err) : st;
}

enum tutti_status rank_table_read(struct rank_table **out, const char *path, struct tutti_error *err)
{
    struct rank_table *t = calloc(1, sizeof *t);
    if (!t || !(t->path = strdup(path))) {
        free(t);
        return error_out_of_memory(path, err);
    }
    enum tutti_status st = json_file_load(path, &t->root, err);
    if (st == TUTTI_OK && !t->root)
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s: No such file or directory", path);
    if (st == TUTTI_OK)
        st = read_table(t, err);
    if (st == TUTTI_OK)
        *out = t;
    else
        rank_table_free(t);
    return st;
}

void rank_table_free(struct rank_table *t)
{
    if (!t)
        return;
    json_decref(t->root);
    free(t->path);
    free(t->servers);
    free(t->devices);
    free(t->by_rank);
    free(t);
}

int rank_table_n_ranks(const struct rank_table *t)
{
    return t->n_ranks;
}

int rank_table_n_servers(const struct rank_table *t)
{
    return t->n_servers;
}

static const char *server_host(const struct table_server *s)
{
    return s->ip ? s->ip : s->id;
}

const char *rank_table_host(const struct rank_table *t, int rank)
{
    return server_host(&t->servers[t->devices[t->by_rank[rank]].server]);
}

/* ---- files for mpirun ---- */

bool rank_table_hostfile(const struct rank_table *t, struct buf *out)
{
    bool ok = true;
    for (int i = 0; i < t->n_servers && ok; i++)
        ok = buf_printf(out, "%s slots=%d\n", server_host(&t->servers[i]), t->servers[i].n_devices);
    return ok;
}

enum tutti_status rank_table_rankfile(const struct rank_table *t, int n_cores, struct buf *out,
                                      struct tutti_error *err)
{
    for (int i = 0; i < t->n_servers; i++) {
        if (t->servers[i].n_devices > n_cores)
            return error_set_param(
                err, TUTTI_E_ARGUMENT, "cores",
                "%s: server_list[%d]: %d ranks on %s, but %d cores; each needs one of its own", t->path, i,
                t->servers[i].n_devices, server_host(&t->servers[i]), n_cores);
    }
    bool ok = true;
    for (int rank = 0; rank < t->n_ranks && ok; rank++) {
        const struct device *d = &t->devices[t->by_rank[rank]];
        const struct table_server *s = &t->servers[d->server];
        int64_t begin = (int64_t)d->index * n_cores / s->n_devices;
        int64_t last = ((int64_t)d->index + 1) * n_cores / s->n_devices - 1;
        ok = buf_printf(out, "rank %d=%s slot=%" PRId64, rank, server_host(s), begin);
        if (ok && last > begin)
            ok = buf_printf(out, "-%" PRId64, last);
        ok = ok && buf_add_string(out, "\n");
    }
    return ok ? TUTTI_OK : error_out_of_memory(t->path, err);
}

/* ---- this machine ---- */

static bool same_address(const char *text, const struct sockaddr *address)
{
    struct in6_addr wanted;
    if (address->sa_family == AF_INET)
        return inet_pton(AF_INET, text, &wanted) == 1 &&
               memcmp(&wanted, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4) == 0;
    if (address->sa_family == AF_INET6)
        return inet_pton(AF_INET6, text, &wanted) == 1 &&
               memcmp(&wanted, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16) == 0;
    return false;
}

/* Compares with the machine's own names, which may be short; no DNS look-up. */
static bool is_own_name(const char *name, const char *own)
{
    size_t n = strcspn(name, "."), m = strcspn(own, ".");
    if (is_address(name))
        return false;
    if (strcasecmp(name, own) == 0 || strcasecmp(name, "localhost") == 0)
        return true;
    return n == m && strncasecmp(name, own, n) == 0 && (name[n] == '\0' || own[m] == '\0');
}

/* addresses: those of this machine, for messages. */
static bool is_here(const struct table_server *s, const char *own, char *addresses, size_t size)
{
    struct ifaddrs *list = NULL;
    bool found = is_own_name(s->id, own);
    addresses[0] = '\0';
    if (getifaddrs(&list) != 0)
        return found;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (!i->ifa_addr)
            continue;
        found = found || same_address(s->id, i->ifa_addr) || (s->ip && same_address(s->ip, i->ifa_addr));
        if (i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK))
            inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, text,
                      sizeof text);
        size_t n = strlen(addresses);
        if (text[0])
            snprintf(addresses + n, size - n, "%s%s", n ? ", " : "", text);
    }
    freeifaddrs(list);
    return found;
}

enum tutti_status rank_table_check(const struct rank_table *t, int rank, int n_ranks, struct tutti_error *err)
{
    char own[HOST_NAME_MAX + 1] = "", addresses[128];
    if (t->n_ranks != n_ranks)
        return error_set_param(err, TUTTI_E_ARGUMENT, "rank_table",
                               "%s: it has %d ranks, but %d were started", t->path, t->n_ranks, n_ranks);
    const struct table_server *s = &t->servers[t->devices[t->by_rank[rank]].server];
    if (gethostname(own, sizeof own - 1) != 0)
        own[0] = '\0';
    if (is_here(s, own, addresses, sizeof addresses))
        return TUTTI_OK;
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "rank_table",
        "%s: rank %d belongs on %s%s%s, but runs on %s (%s); was mpirun given the hostfile and "
        "rankfile of this table?",
        t->path, rank, s->id, s->ip ? ", " : "", s->ip ? s->ip : "", own, addresses);
}
