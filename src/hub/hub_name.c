#include "hub/hub_name.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME_PART = 96, MAX_FILE_NAME = 240 };

static const struct {
    const char *prefix, *public_hub, *revision, *token;
} LAYOUTS[] = {
    [HUB_HUGGING_FACE] = { "hf:", "https://huggingface.co", "main", "HF_TOKEN" },
    [HUB_MODELSCOPE] = { "ms:", "https://www.modelscope.cn", "master", "MODELSCOPE_API_TOKEN" },
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

bool hub_name_is(const char *text)
{
    for (int i = 0; i < N_LAYOUTS; i++)
        if (starts_with(text, LAYOUTS[i].prefix))
            return true;
    return false;
}

static bool is_plain(char c)
{
    return text_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* ORG or NAME: as hubs allow it. */
static bool is_name_part(const char *text, size_t n)
{
    if (n == 0 || n > MAX_NAME_PART || text[0] == '.' || text[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_plain(text[i]) && !strchr("-._", text[i]))
            return false;
    return true;
}

/* Whether a revision has only characters that hubs allow in one. */
static bool revision_is_valid(const char *revision)
{
    for (const char *c = revision; *c; c++)
        if (!is_plain(*c) && !strchr("-._/+=", *c))
            return false;
    return !strstr(revision, "..") && revision[0] != '/' && revision[0] != '-';
}

bool hub_path_is_safe(const char *path)
{
    size_t n_part = 0;
    for (const char *c = path;; c++) {
        if (*c == '/' || *c == '\0') {
            const char *part = c - n_part;
            if (n_part == 0 || n_part > MAX_FILE_NAME || strspn(part, ".") == n_part)
                return false;
            n_part = 0;
            if (*c == '\0')
                return c - path < 1024;
        } else if ((unsigned char)*c < ' ' || *c == 127 || *c == '\\') {
            return false;
        } else {
            n_part++;
        }
    }
}

/* Copies n bytes; false: they do not fit. */
static bool copy(char *out, size_t size, const char *text, size_t n)
{
    return (size_t)snprintf(out, size, "%.*s", (int)n, text) < size;
}

/* http:// or https://, a host, optionally a port and a path, without characters that would change the
 * meaning of what follows. */
static bool is_hub_url(const char *url)
{
    const char *at = starts_with(url, "https://") ? url + 8 : starts_with(url, "http://") ? url + 7 : "";
    if (!is_plain(*at) && *at != '[')
        return false;
    for (const char *c = at; *c; c++)
        if (!is_plain(*c) && !strchr("-._~:/[]", *c))
            return false;
    return !strstr(at, "//") && !strstr(at, "..");
}

static enum tutti_status set_hub(struct hub_name *out, const char *url, size_t n, const char *source,
                                 struct tutti_error *err)
{
    while (n > 0 && url[n - 1] == '/')
        n--;
    if (!copy(out->hub, sizeof out->hub, url, n) || !is_hub_url(out->hub))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s: '%.100s': expected the hub's URL, such as https://huggingface.co", source, url);
    return TUTTI_OK;
}

/* The hub of a name that has no URL. */
static enum tutti_status find_hub(struct hub_name *out, const char *hub, struct tutti_error *err)
{
    const char *endpoint = getenv("HF_ENDPOINT"), *domain = getenv("MODELSCOPE_DOMAIN");
    if (hub)
        return set_hub(out, hub, strlen(hub), "--hub", err);
    if (out->layout == HUB_HUGGING_FACE && endpoint && *endpoint)
        return set_hub(out, endpoint, strlen(endpoint), "HF_ENDPOINT", err);
    if (out->layout == HUB_MODELSCOPE && domain && *domain) {
        char url[sizeof out->hub];
        int n = snprintf(url, sizeof url, "%s%s", strstr(domain, "://") ? "" : "https://", domain);
        return set_hub(out, url, (size_t)n < sizeof url ? (size_t)n : 0, "MODELSCOPE_DOMAIN", err);
    }
    snprintf(out->hub, sizeof out->hub, "%s", LAYOUTS[out->layout].public_hub);
    return TUTTI_OK;
}

static enum tutti_status wrong_name(const char *text, struct tutti_error *err)
{
    return error_set(
        err, TUTTI_E_ARGUMENT,
        "'%.200s': expected a model of a hub as ORG/NAME, optionally with @REVISION and then with "
        ":TYPE or :FILE, such as hf:Qwen/Qwen3-0.6B-GGUF:q8_0",
        text);
}

enum tutti_status hub_name_parse(struct hub_name *out, const char *text, const char *hub,
                                 struct tutti_error *err)
{
    const char *at = text;
    *out = (struct hub_name){ .layout = HUB_HUGGING_FACE };
    for (int i = 0; i < N_LAYOUTS; i++)
        if (starts_with(text, LAYOUTS[i].prefix)) {
            out->layout = (enum hub_layout)i;
            at += strlen(LAYOUTS[i].prefix);
        }
    /* The host's port is part of the URL. */
    const char *scheme = strstr(at, "://"), *host = scheme ? scheme + 3 : at;
    const char *path = scheme ? host + strcspn(host, "/") : at;
    const char *end = path + strcspn(path, "@:"), *name = end, *org;
    while (name > path && name[-1] != '/')
        name--;
    org = name > path ? name - 1 : name;
    while (org > path && org[-1] != '/')
        org--;
    if (org == name || !is_name_part(org, (size_t)(name - 1 - org)) ||
        !is_name_part(name, (size_t)(end - name)) || (!scheme && org != at) ||
        !copy(out->model, sizeof out->model, org, (size_t)(end - org)))
        return wrong_name(text, err);
    enum tutti_status st = scheme ? set_hub(out, at, (size_t)(org - at), text, err) : find_hub(out, hub, err);
    if (st != TUTTI_OK)
        return st;
    if (*end == '@') {
        size_t n = strcspn(end + 1, ":");
        if (n == 0 || !copy(out->revision, sizeof out->revision, end + 1, n) ||
            !revision_is_valid(out->revision))
            return wrong_name(text, err);
        end += 1 + n;
        if (strcmp(out->revision, LAYOUTS[out->layout].revision) == 0)
            out->revision[0] = '\0';
    }
    if (*end == ':' && (!copy(out->selection, sizeof out->selection, end + 1, strlen(end + 1)) ||
                        !hub_path_is_safe(out->selection) || out->selection[0] == '.'))
        return wrong_name(text, err);
    return TUTTI_OK;
}

bool hub_name_write(const struct hub_name *name, struct buf *out)
{
    bool is_public = strcmp(name->hub, LAYOUTS[name->layout].public_hub) == 0;
    return buf_printf(out, "%s%s%s%s%s%s%s%s", LAYOUTS[name->layout].prefix, is_public ? "" : name->hub,
                      is_public ? "" : "/", name->model, name->revision[0] ? "@" : "", name->revision,
                      name->selection[0] ? ":" : "", name->selection);
}

/* The revision, or the hub's default. */
static const char *revision_of(const struct hub_name *name)
{
    return name->revision[0] ? name->revision : LAYOUTS[name->layout].revision;
}

const char *hub_name_token_variable(const struct hub_name *name)
{
    return LAYOUTS[name->layout].token;
}

/* ---- URLs ---- */

bool hub_add_escaped(struct buf *out, const char *text, const char *keep)
{
    bool ok = true;
    for (const char *c = text; *c && ok; c++)
        ok = is_plain(*c) || strchr("-._~", *c) || strchr(keep, *c)
                 ? buf_add(out, c, 1)
                 : buf_printf(out, "%%%02X", (unsigned)(unsigned char)*c);
    return ok;
}

bool hub_add_listing_url(struct buf *out, const struct hub_name *name)
{
    const char *revision = revision_of(name);
    if (name->layout == HUB_MODELSCOPE)
        return buf_printf(out, "%s/api/v1/models/%s/repo/files?Revision=", name->hub, name->model) &&
               hub_add_escaped(out, revision, "") && buf_add_string(out, "&Recursive=true");
    return buf_printf(out, "%s/api/models/%s/revision/", name->hub, name->model) &&
           hub_add_escaped(out, revision, "") && buf_add_string(out, "?blobs=true");
}

bool hub_add_file_url(struct buf *out, const struct hub_name *name, const char *commit, const char *file)
{
    const char *revision = commit ? commit : revision_of(name);
    if (name->layout == HUB_MODELSCOPE)
        return buf_printf(out, "%s/api/v1/models/%s/repo?Revision=", name->hub, name->model) &&
               hub_add_escaped(out, revision, "") && buf_add_string(out, "&FilePath=") &&
               hub_add_escaped(out, file, "");
    return buf_printf(out, "%s/%s/resolve/", name->hub, name->model) && hub_add_escaped(out, revision, "") &&
           buf_add_string(out, "/") && hub_add_escaped(out, file, "/");
}
