#include "server/access/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_HOST = 256, MAX_OWN = 4 };

struct guard {
    const struct server_options *options;
    char own[MAX_OWN][MAX_HOST]; /* names of this server, without those of --allow-host; "": unused */
};

/* Host and port; the name in lower case, without the final dot. port: "" if there is none. */
struct authority {
    char name[MAX_HOST], port[8];
    bool is_v6;
};

/* False: text is not an authority. */
static bool authority_read(struct authority *out, const char *text)
{
    const char *end = strchr(text, ']');
    *out = (struct authority){ .is_v6 = *text == '[' };
    if (out->is_v6 && !end)
        return false;
    const char *name = text + out->is_v6;
    size_t n = out->is_v6 ? (size_t)(end - name) : strcspn(text, ":");
    const char *rest = out->is_v6 ? end + 1 : text + n;
    if (*rest == ':' && strlen(rest + 1) < sizeof out->port &&
        strspn(rest + 1, "0123456789") == strlen(rest + 1))
        snprintf(out->port, sizeof out->port, "%s", rest + 1);
    else if (*rest)
        return false;
    if (n > 1 && name[n - 1] == '.')
        n--;
    if (n == 0 || n >= sizeof out->name)
        return false;
    for (size_t i = 0; i < n; i++)
        out->name[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    return true;
}

/* ---- the header Host ---- */

static void add_own(struct guard *guard, size_t *n, const char *name)
{
    struct authority own;
    if (*n < MAX_OWN && authority_read(&own, name))
        memcpy(guard->own[(*n)++], own.name, sizeof own.name);
}

enum tutti_status guard_new(struct guard **out, const struct server_options *options, bool is_reachable,
                            struct tutti_error *err)
{
    struct guard *guard = calloc(1, sizeof *guard);
    char name[MAX_HOST] = "";
    size_t n = 0;
    if (!guard)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    guard->options = options;
    if (options->host && !options->unix_path)
        add_own(guard, &n, options->host);
    if (is_reachable && gethostname(name, sizeof name - 1) == 0) {
        add_own(guard, &n, name);
        name[strcspn(name, ".")] = '\0';
        add_own(guard, &n, name);
    }
    *out = guard;
    return TUTTI_OK;
}

void guard_free(struct guard *guard)
{
    free(guard);
}

static bool is_subdomain(const char *name, const char *dot_domain)
{
    size_t n = strlen(name), n_end = strlen(dot_domain);
    return n > n_end && !strcasecmp(name + n - n_end, dot_domain);
}

/* A page that was loaded by address comes from that address: DNS rebinding needs a name. */
static bool is_address(const struct authority *host)
{
    struct in6_addr v6;
    struct in_addr v4;
    char name[MAX_HOST];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(host->name, "%"), host->name); /* %: interface */
    return host->is_v6 ? inet_pton(AF_INET6, name, &v6) == 1 : inet_pton(AF_INET, host->name, &v4) == 1;
}

/* pattern: a name, "*.NAME" for all names below it, or "*". */
static bool host_matches(const char *pattern, const char *name)
{
    if (!strcmp(pattern, "*"))
        return true;
    return !strncmp(pattern, "*.", 2) ? is_subdomain(name, pattern + 1) : !strcasecmp(pattern, name);
}

static bool is_host_allowed(const struct guard *guard, const struct authority *host)
{
    if (host->is_v6)
        return is_address(host);
    if (is_address(host) || !strcmp(host->name, "localhost") || is_subdomain(host->name, ".localhost"))
        return true;
    for (size_t i = 0; i < MAX_OWN && guard->own[i][0]; i++)
        if (!strcmp(guard->own[i], host->name))
            return true;
    for (size_t i = 0; i < guard->options->n_allow_hosts; i++)
        if (host_matches(guard->options->allow_hosts[i], host->name))
            return true;
    return false;
}

static enum tutti_status check_host(const struct guard *guard, const struct http_conn *conn,
                                    struct tutti_error *err)
{
    const char *text = http_request(conn)->head.host;
    struct authority host;
    /* Browsers always send Host, so a request without it is from another program. Pages cannot
     * reach a Unix socket. */
    if (!text || !*text || !strcmp(http_request(conn)->peer, "unix"))
        return TUTTI_OK;
    if (authority_read(&host, text) && is_host_allowed(guard, &host))
        return TUTTI_OK;
    return error_set(
        err, TUTTI_E_ARGUMENT,
        "the header Host is \"%.200s\", which is not a name of this server; to allow that name, start "
        "the server with --allow-host NAME",
        text);
}

/* ---- the header Origin ---- */

static const char *port_of(const struct authority *authority, const char *otherwise)
{
    return authority->port[0] ? authority->port : otherwise;
}

/* True: the page is from this server. Behind a proxy that terminates TLS only the server's name and
 * port are known, not its scheme. */
static bool is_same_origin(const char *origin, const char *host)
{
    struct authority page, server;
    const char *port = !strncasecmp(origin, "https://", 8) ? "443" : "80", *at = strstr(origin, "://");
    return at && host && authority_read(&page, at + 3) && authority_read(&server, host) &&
           page.is_v6 == server.is_v6 && !strcmp(page.name, server.name) &&
           !strcmp(port_of(&page, port), port_of(&server, port));
}

static enum tutti_status refuse_page(const char *page, struct tutti_error *err)
{
    return error_set(
        err, TUTTI_E_ARGUMENT,
        "a page of %.200s must not use this server, which has no keys; to allow it, start the server "
        "with --cors-origin ORIGIN, or with --api-key-file FILE",
        page);
}

static enum tutti_status check_page(const struct guard *guard, const struct http_head *head,
                                    struct tutti_error *err)
{
    const char *allowed = guard->options->cors_origin, *origin = http_head_find(head, "Origin");
    const char *site = http_head_find(head, "Sec-Fetch-Site"), *mode = http_head_find(head, "Sec-Fetch-Mode");
    if (allowed && !strcmp(allowed, "*"))
        return TUTTI_OK;
    if (origin)
        return (allowed && !strcmp(allowed, origin)) || is_same_origin(origin, head->host)
                   ? TUTTI_OK
                   : refuse_page(origin, err);
    /* Without Origin: refuses an image or script loaded by another page, but allows a link to this
     * server's page. */
    bool is_other = site && strcmp(site, "same-origin") && strcmp(site, "none");
    bool is_link = mode && !strcmp(mode, "navigate") && strcmp(head->method, "POST");
    return is_other && !is_link ? refuse_page("another site", err) : TUTTI_OK;
}

enum tutti_status guard_check(const struct guard *guard, const struct http_conn *conn, bool has_keys,
                              struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (!has_keys || guard->options->n_allow_hosts > 0)
        st = check_host(guard, conn, err);
    if (st == TUTTI_OK && !has_keys)
        st = check_page(guard, &http_request(conn)->head, err);
    return st;
}

/* ---- Content-Type ---- */

/* "application/json", or another JSON type such as "application/problem+json", with any parameters. */
static bool is_json(const char *type)
{
    size_t n = strcspn(type, "; \t");
    return (n == 16 && !strncasecmp(type, "application/json", n)) ||
           (n > 17 && !strncasecmp(type, "application/", 12) && !strncasecmp(type + n - 5, "+json", 5));
}

enum tutti_status guard_check_body(const struct http_head *head, struct tutti_error *err)
{
    const char *coding = http_head_find(head, "Content-Encoding"),
               *type = http_head_find(head, "Content-Type");
    if (coding && *coding && strcasecmp(coding, "identity"))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "Content-Encoding is \"%.64s\", which is not supported; send the body uncompressed",
                         coding);
    if (!type || !*type)
        return error_set(err, TUTTI_E_ARGUMENT, "Content-Type is missing, expected application/json");
    if (!is_json(type))
        return error_set(err, TUTTI_E_ARGUMENT, "Content-Type is \"%.128s\", expected application/json",
                         type);
    return TUTTI_OK;
}
