#include "fleet/rank_table.h"

#include "base/containers/tree.h"
#include "base/json/json_field.h"
#include "base/json/json_type.h"
#include "checkpoint/json_file.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HOST_NAME = 255 };

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

/* Where an error is: "server_list[1].device[0]."; device -1: in the server itself. */
static struct json_place rank_table_place_of(const struct rank_table *t, int server, int device,
                                             struct tutti_error *err)
{
    struct json_place at = { .file = t->path, .err = err };
    int n = snprintf(at.prefix, sizeof at.prefix, "server_list[%d].", server);
    if (device >= 0)
        snprintf(at.prefix + n, sizeof at.prefix - (size_t)n, "device[%d].", device);
    return at;
}

/* ---- values ---- */

static enum tutti_status get_text(const struct json_place *at, const json_t *object, const char *key,
                                  const char **out)
{
    enum tutti_status st = json_get_string(at, object, key, out);
    return st == TUTTI_OK && !**out ? json_invalid(at, key, "an empty string") : st;
}

/* A number as a string or as a number. */
static enum tutti_status get_number(const struct json_place *at, const json_t *object, const char *key,
                                    int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!json_is_integer(value) && !text)
        return json_invalid(at, key, "%s, expected a number as a string", json_type_name(value));
    size_t n = text ? strlen(text) : 0;
    if (text && (n < 1 || n > 9 || strspn(text, "0123456789") != n))
        return json_invalid(at, key, "\"%.32s\", expected a number from 0 to %" PRId64, text, max);
    *out = text ? strtoll(text, NULL, 10) : json_integer_value(value);
    if (*out < 0 || *out > max)
        return json_invalid(at, key, "%" PRId64 ", expected a number from 0 to %" PRId64, *out, max);
    return TUTTI_OK;
}

static bool is_address(const char *text)
{
    struct in6_addr address;
    return inet_pton(AF_INET, text, &address) == 1 || inet_pton(AF_INET6, text, &address) == 1;
}

/* *out stays NULL if there is none. */
static enum tutti_status get_address(const struct json_place *at, const json_t *object, const char *key,
                                     const char **out)
{
    const json_t *value = json_object_get(object, key);
    *out = NULL;
    if (!value)
        return TUTTI_OK;
    enum tutti_status st = get_text(at, object, key, out);
    if (st == TUTTI_OK && !is_address(*out))
        st = json_invalid(at, key, "\"%.64s\", expected an IP address", *out);
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

static enum tutti_status read_device(struct rank_table *t, int server, const json_t *object,
                                     struct tutti_error *err)
{
    const struct table_server *s = &t->servers[server];
    const struct json_place at = rank_table_place_of(t, server, t->n_ranks - s->first, err);
    struct device *d = &t->devices[t->n_ranks];
    *d = (struct device){ .server = server };
    if (!json_is_object(object))
        return json_invalid(&at, "device_id", "%s in the place of a device, expected an object",
                            json_type_name(object));
    enum tutti_status st = get_number(&at, object, "device_id", RANK_TABLE_MAX_DEVICE, &d->device_id);
    if (st == TUTTI_OK)
        st = get_address(&at, object, "device_ip", &d->ip);
    if (st == TUTTI_OK)
        st = get_number(&at, object, "rank_id", RANK_TABLE_MAX_RANKS - 1, &d->rank);
    for (int i = s->first; st == TUTTI_OK && i < t->n_ranks; i++) {
        struct device *other = &t->devices[i];
        if (other->device_id == d->device_id)
            st = json_invalid(&at, "device_id", "%" PRId64 " is device[%d]'s too", d->device_id,
                              i - s->first);
        else
            (other->device_id < d->device_id ? d : other)->index++;
    }
    t->n_ranks += st == TUTTI_OK;
    return st;
}

static enum tutti_status read_server(struct rank_table *t, int server, const json_t *object,
                                     struct tutti_error *err)
{
    const struct json_place at = rank_table_place_of(t, server, -1, err);
    struct table_server *s = &t->servers[server];
    const json_t *devices = json_object_get(object, "device"), *device;
    const char *server_ip = NULL;
    size_t n = json_array_size(devices), i;
    if (!json_is_object(object))
        return json_invalid(&at, "server_id", "%s in the place of a server, expected an object",
                            json_type_name(object));
    enum tutti_status st = get_text(&at, object, "server_id", &s->id);
    if (st == TUTTI_OK && !is_host(s->id))
        st = json_invalid(&at, "server_id", "\"%.64s\", expected the name or address of a host", s->id);
    for (int other = 0; st == TUTTI_OK && other < server; other++)
        if (strcmp(t->servers[other].id, s->id) == 0)
            st = json_invalid(&at, "server_id", "\"%.64s\" is server_list[%d]'s too", s->id, other);
    if (st == TUTTI_OK)
        st = get_address(&at, object, "host_ip", &s->ip);
    if (st == TUTTI_OK)
        st = get_address(&at, object, "server_ip", &server_ip);
    s->ip = s->ip ? s->ip : server_ip;
    if (st == TUTTI_OK && n < 1)
        st = json_invalid(&at, "device", "%s, expected a list of at least one device",
                          json_is_array(devices) ? "an empty list" : json_type_name(devices));
    if (st == TUTTI_OK && n > (size_t)(RANK_TABLE_MAX_RANKS - t->n_ranks))
        st = json_invalid(&at, "device", "more than %d ranks", RANK_TABLE_MAX_RANKS);
    if (st != TUTTI_OK)
        return st;
    struct device *more = realloc(t->devices, ((size_t)t->n_ranks + n) * sizeof *more);
    if (!more)
        return error_out_of_memory(t->path, err);
    t->devices = more;
    s->first = t->n_ranks;
    s->n_devices = (int)n;
    json_array_foreach(devices, i, device) if (st == TUTTI_OK) st = read_device(t, server, device, err);
    return st;
}

static struct json_place device_place(const struct rank_table *t, const struct device *d,
                                      struct tutti_error *err)
{
    return rank_table_place_of(t, d->server, (int)(d - t->devices) - t->servers[d->server].first, err);
}

/* Refuses a value that another device has too. */
static enum tutti_status wrong_same(const struct rank_table *t, const struct device *d,
                                    const struct device *other, const char *key, const char *value,
                                    struct tutti_error *err)
{
    struct json_place at = device_place(t, d, err), second = device_place(t, other, err);
    return json_invalid(&at, key, "%.64s is %.*s's too", value, (int)strlen(second.prefix) - 1,
                        second.prefix);
}

static enum tutti_status sort_ranks(struct rank_table *t, struct tutti_error *err)
{
    t->by_rank = malloc((size_t)t->n_ranks * sizeof *t->by_rank);
    if (!t->by_rank)
        return error_out_of_memory(t->path, err);
    for (int i = 0; i < t->n_ranks; i++)
        t->by_rank[i] = -1;
    for (int i = 0; i < t->n_ranks; i++) {
        const struct device *d = &t->devices[i];
        struct json_place at = device_place(t, d, err);
        char rank[24];
        snprintf(rank, sizeof rank, "%" PRId64, d->rank);
        if (d->rank >= t->n_ranks)
            return json_invalid(&at, "rank_id", "%s, but there are %d devices, so ranks are 0 to %d", rank,
                                t->n_ranks, t->n_ranks - 1);
        if (t->by_rank[d->rank] >= 0)
            return wrong_same(t, d, &t->devices[t->by_rank[d->rank]], "rank_id", rank, err);
        t->by_rank[d->rank] = i;
    }
    return TUTTI_OK;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const struct device *)a)->ip, ((const struct device *)b)->ip);
}

/* Device addresses must be unique, since devices communicate by them. */
static enum tutti_status check_addresses(const struct rank_table *t, struct tutti_error *err)
{
    void *tree = NULL;
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < t->n_ranks && st == TUTTI_OK; i++) {
        const struct device *d = &t->devices[i], *const *first = NULL;
        if (d->ip && !(first = tsearch(d, &tree, by_address)))
            st = error_out_of_memory(t->path, err);
        else if (first && *first != d)
            st = wrong_same(t, d, *first, "device_ip", d->ip, err);
    }
    tree_clear(&tree, by_address, NULL);
    return st;
}

static enum tutti_status read_table(struct rank_table *t, struct tutti_error *err)
{
    const struct json_place root = { .file = t->path, .err = err }, *at = &root;
    const char *version = NULL, *status = NULL;
    const json_t *list = json_object_get(t->root, "server_list"), *server;
    size_t n = json_array_size(list), i;
    int64_t count = 0;
    enum tutti_status st = get_text(at, t->root, "version", &version);
    if (st == TUTTI_OK && version && strcmp(version, "1.0") != 0 && strcmp(version, "1.2") != 0)
        st = json_invalid(at, "version", "\"%.32s\", expected \"1.0\" or \"1.2\"", version);
    if (st == TUTTI_OK)
        st = get_text(at, t->root, "status", &status);
    if (st == TUTTI_OK && status && strcmp(status, "completed") != 0)
        st = json_invalid(at, "status", "\"%.32s\", expected \"completed\"", status);
    if (st == TUTTI_OK)
        st = get_number(at, t->root, "server_count", RANK_TABLE_MAX_RANKS, &count);
    if (st == TUTTI_OK && !json_is_array(list))
        st = json_invalid(at, "server_list", "%s, expected a list", json_type_name(list));
    if (st == TUTTI_OK && (n < 1 || n != (size_t)count))
        st = json_invalid(at, "server_count", "%" PRId64 ", but server_list has %zu servers", count, n);
    if (st == TUTTI_OK) {
        assert(n > 0);
        t->servers = calloc(n, sizeof *t->servers);
        st = t->servers ? TUTTI_OK : error_out_of_memory(t->path, err);
    }
    json_array_foreach(list, i, server) if (st == TUTTI_OK) st = read_server(t, (int)i, server, err);
    t->n_servers = (int)n;
    if (st == TUTTI_OK)
        st = sort_ranks(t, err);
    return st == TUTTI_OK ? check_addresses(t, err) : st;
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
    char own[MAX_HOST_NAME + 1] = "", addresses[128];
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
