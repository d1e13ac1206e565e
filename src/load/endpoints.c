/* The URLs of requests, and their common curl options. */
#include "base/system/os.h"
#include "base/text.h"
#include "load/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_TIMEOUT_MS = 10000, MAX_LIST_BYTES = 1 << 20 };

/* The URL of the server without query and fragment, and without "/v1", which users often add. */
static enum tutti_status set_path(CURLU *url, const char *path, struct tutti_error *err)
{
    char *base = NULL;
    struct buf whole = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (curl_url_get(url, CURLUPART_PATH, &base, 0) != CURLUE_OK)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        base[--n] = '\0';
    if (text_ends_with(base, "/v1") && strncmp(path, "/v1/", 4) == 0)
        n -= 3;
    if (!buf_add(&whole, base, n) || !buf_add_string(&whole, path) ||
        curl_url_set(url, CURLUPART_PATH, whole.bytes, 0) != CURLUE_OK)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
    buf_clear(&whole);
    curl_free(base);
    return st;
}

static enum tutti_status check_url(const char *base, CURLU *url, struct tutti_error *err)
{
    char *part = NULL;
    CURLUcode code = curl_url_set(url, CURLUPART_URL, base, 0);
    if (code == CURLUE_UNSUPPORTED_SCHEME || code == CURLUE_BAD_SCHEME || !strstr(base, "://"))
        return error_set(err, TUTTI_E_ARGUMENT, "%s: expected a URL such as http://127.0.0.1:8080", base);
    if (code != CURLUE_OK)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: %s; expected a URL such as http://127.0.0.1:8080", base,
                         curl_url_strerror(code));
    if (curl_url_get(url, CURLUPART_SCHEME, &part, 0) != CURLUE_OK)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
    bool is_http = strcmp(part, "http") == 0 || strcmp(part, "https") == 0;
    curl_free(part);
    if (!is_http)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: expected a URL of http or https", base);
    static const struct {
        CURLUPart part;
        const char *name;
    } NOT_WANTED[] = { { CURLUPART_QUERY, "query" },
                       { CURLUPART_FRAGMENT, "fragment" },
                       { CURLUPART_USER, "user name" } };
    for (size_t i = 0; i < sizeof NOT_WANTED / sizeof *NOT_WANTED; i++)
        if (curl_url_get(url, NOT_WANTED[i].part, &part, 0) == CURLUE_OK) {
            curl_free(part);
            return error_set(err, TUTTI_E_ARGUMENT, "%s: expected a URL without a %s", base,
                             NOT_WANTED[i].name);
        }
    return TUTTI_OK;
}

/* base with path appended, for curl_free(). NULL: error in *err. */
static char *url_with_path(const char *base, const char *path, enum tutti_status *st, struct tutti_error *err)
{
    CURLU *url = curl_url();
    char *whole = NULL;
    *st = url ? check_url(base, url, err) : error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
    if (*st == TUTTI_OK)
        *st = set_path(url, path, err);
    if (*st == TUTTI_OK && curl_url_get(url, CURLUPART_URL, &whole, 0) != CURLUE_OK)
        *st = error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
    curl_url_cleanup(url);
    return whole;
}

enum tutti_status endpoints_init(struct endpoints *out, const struct load_options *options,
                                 struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct buf path = { 0 };
    *out = (struct endpoints){ 0 };
    if (options->style.api == LOAD_API_OPENAI) {
        out->plain = url_with_path(options->url, "/v1/completions", &st, err);
        if (st == TUTTI_OK)
            out->chat = url_with_path(options->url, "/v1/chat/completions", &st, err);
    } else if (options->style.api == LOAD_API_TGI) {
        out->plain = url_with_path(options->url, "/generate_stream", &st, err);
    } else {
        char *name = curl_easy_escape(NULL, options->style.model, 0);
        if (name && buf_printf(&path, "/models/%s/generate_stream", name))
            out->plain = url_with_path(options->url, path.bytes, &st, err);
        else
            st = error_set(err, TUTTI_E_MEMORY, "out of memory for the URL");
        curl_free(name);
        buf_clear(&path);
    }
    return st;
}

void endpoints_clear(struct endpoints *e)
{
    curl_free(e->plain);
    curl_free(e->chat);
    *e = (struct endpoints){ 0 };
}

void client_set_common(CURL *easy, const struct load_options *options)
{
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* measure the server itself, ignoring proxy variables */
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    if (options->ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, options->ca_file);
}

static bool add_header(struct curl_slist **list, const char *text)
{
    struct curl_slist *longer = curl_slist_append(*list, text);
    if (longer)
        *list = longer;
    return longer != NULL;
}

struct curl_slist *client_headers(const char *key)
{
    struct curl_slist *list = NULL;
    struct buf bearer = { 0 };
    bool ok = add_header(&list, "Content-Type: application/json") &&
              add_header(&list, "User-Agent: tutti-load/" TUTTI_VERSION) &&
              add_header(&list, "Expect:"); /* no round trip before large bodies */
    if (key)
        ok = ok && buf_printf(&bearer, "Authorization: Bearer %s", key) && add_header(&list, bearer.bytes);
    if (bearer.bytes)
        os_forget(bearer.bytes, bearer.n_bytes);
    buf_clear(&bearer);
    if (ok)
        return list;
    curl_slist_free_all(list);
    return NULL;
}

/* ---- model name ---- */

static size_t add_to_list(char *bytes, size_t size, size_t n, void *user)
{
    struct buf *list = user;
    return list->n_bytes + size * n <= MAX_LIST_BYTES && buf_add(list, bytes, size * n) ? size * n : 0;
}

enum tutti_status load_find_model(struct buf *out, const struct load_options *options,
                                  struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct buf list = { 0 };
    char text[CURL_ERROR_SIZE] = "";
    long status = 0;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(err, TUTTI_E_MEMORY, "libcurl cannot start");
    char *url = url_with_path(options->url, "/v1/models", &st, err);
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = client_headers(options->n_keys ? options->keys[0] : NULL);
    json_t *answer = NULL;
    if (st != TUTTI_OK)
        goto done;
    if (!easy || !headers) {
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for a request");
        goto done;
    }
    client_set_common(easy, options);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)PROBE_TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, add_to_list);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &list);
    CURLcode code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK && status == 0)
        st = error_set(err, TUTTI_E_IO, "%s: %s", url, text[0] ? text : curl_easy_strerror(code));
    if (code != CURLE_OK || status != 200)
        goto done;
    answer = json_loadb(list.bytes ? list.bytes : "", list.n_bytes, 0, NULL);
    const json_t *id = json_object_get(json_array_get(json_object_get(answer, "data"), 0), "id");
    if (json_is_string(id) && !buf_add_string(out, json_string_value(id)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the model's name");
done:
    json_decref(answer);
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    curl_free(url);
    buf_clear(&list);
    curl_global_cleanup();
    return st;
}
