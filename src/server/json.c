#include "server/json.h"

#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/json/json_wide.h"
#include "base/limits.h"

#include <math.h>
#include <string.h>

/* Upper bounds of what jansson allocates for a value, without the bytes of strings: the block, its
 * allocator's header, and its entry in a list or object. */
enum {
    VALUE_BYTES = 48, /* a number, true, false, null */
    STRING_BYTES = 96,
    ARRAY_BYTES = 144, /* and room for its first eight values */
    OBJECT_BYTES = 280,
    MEMBER_BYTES = 96, /* the key of a value in an object */
};

/* Result of one pass over a text before it is parsed: its depth, and the size of its tree. The pass
 * stops at a limit. */
struct outline {
    int depth;
    size_t tree_bytes;
};

static size_t end_of_string(const char *text, size_t n_bytes, size_t at)
{
    for (at++; at < n_bytes && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at;
}

static struct outline outline_of(const char *text, size_t n_bytes)
{
    struct outline out = { 0 };
    int depth = 0;
    bool in_scalar = false;
    for (size_t i = 0;
         i < n_bytes && out.depth <= LIMIT_JSON_DEPTH && out.tree_bytes <= LIMIT_JSON_TREE_BYTES; i++) {
        bool was_scalar = in_scalar;
        in_scalar = false;
        switch (text[i]) {
        case '"':
            i = end_of_string(text, n_bytes, i);
            out.tree_bytes += STRING_BYTES; /* a key's as well */
            break;
        case '[':
        case '{':
            out.tree_bytes += text[i] == '[' ? ARRAY_BYTES : OBJECT_BYTES;
            if (++depth > out.depth)
                out.depth = depth;
            break;
        case ']':
        case '}':
            depth--;
            break;
        case ':':
        case ',':
        case ' ':
        case '\t':
        case '\n':
        case '\r':
            break;
        default:
            in_scalar = true;
            out.tree_bytes += was_scalar ? 0 : VALUE_BYTES;
        }
    }
    return out;
}

size_t json_tree_bytes(const json_t *value)
{
    size_t n_bytes = 0, i;
    const char *key;
    json_t *member;
    const json_t *entry;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        n_bytes = OBJECT_BYTES;
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
            n_bytes += MEMBER_BYTES + strlen(key) + json_tree_bytes(member);
        return n_bytes;
    case JSON_ARRAY:
        n_bytes = ARRAY_BYTES;
        json_array_foreach(value, i, entry) n_bytes += json_tree_bytes(entry);
        return n_bytes;
    default:
        return json_is_string(value) ? STRING_BYTES + json_string_length(value) : VALUE_BYTES;
    }
}

/* ---- U+0000 in strings ---- */

/* Members whose strings are texts, read with their length. All other strings are names and words, which are compared
 * and kept as C strings: U+0000 would cut them. */
/* clang-format off */
static const char *const TEXTS[] = {
    "content", "text", "prompt", "input", "inputs", "input_prefix", "suffix", "input_suffix",
    "query", "documents", "history", "system", "output", "instructions", "arguments", "description",
    "stop", "stop_sequences", "grammar", "guided_regex", "guided_json", "guided_choice",
    "guided_grammar", "regex", "choice", "value", "title", "context", "cache_salt", "user",
    "filename", "repo_name", "prompt_cache_key", "safety_identifier", "data",
};
/* clang-format on */

/* Members within others whose object keeps its strings as JSON. */
static const char *const OBJECTS[] = { "metadata", "parameters", "input_schema", "input", "arguments" };

enum { PATH_BYTES = 96 };

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

/* Finds a string that U+0000 would cut. path: of value, [PATH_BYTES], and of the string if there is one. is_text: value
 * is a text, or a list of texts. value nests no deeper than LIMIT_JSON_DEPTH. */
static bool find_cut_string(const json_t *value, bool is_text, char *path)
{
    size_t n = strlen(path), i;
    const char *key;
    const json_t *entry;
    json_t *member;
    if (json_is_string(value))
        return !is_text && strlen(json_string_value(value)) != json_string_length(value);
    json_array_foreach(value, i, entry)
    {
        snprintf(path + n, PATH_BYTES - n, "[%zu]", i);
        if (find_cut_string(entry, is_text, path))
            return true;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        bool is_kept = n > 0 ? is_one_of(key, OBJECTS, sizeof OBJECTS / sizeof *OBJECTS)
                             : !strcmp(key, "chat_template_kwargs") || !strcmp(key, "metadata");
        if (is_kept && json_is_object(member))
            continue;
        snprintf(path + n, PATH_BYTES - n, "%s%s", n > 0 ? "." : "", key);
        if (find_cut_string(member, is_one_of(key, TEXTS, sizeof TEXTS / sizeof *TEXTS), path))
            return true;
    }
    path[n] = '\0';
    return false;
}

/* Refuses the body of a request if U+0000 would cut one of its strings. Bodies without the escape are not searched. */
static enum tutti_status check_zeros(const json_t *value, const char *text, size_t n_bytes,
                                     struct tutti_error *err)
{
    char path[PATH_BYTES] = "";
    if (!memmem(text, n_bytes, "\\u0000", 6) || !find_cut_string(value, false, path))
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, path,
                           "%s has the character U+0000, expected a string without it", path);
}

enum tutti_status json_read(json_t **out, const char *text, size_t n_bytes, struct tutti_error *err)
{
    if (n_bytes == 0)
        return error_set(err, TUTTI_E_ARGUMENT, "the body is empty, expected JSON");
    struct outline outline = outline_of(text, n_bytes);
    if (outline.depth > LIMIT_JSON_DEPTH)
        return error_set(err, TUTTI_E_ARGUMENT, "the JSON nests deeper than %d levels", LIMIT_JSON_DEPTH);
    if (outline.tree_bytes > LIMIT_JSON_TREE_BYTES)
        return error_set(
            err, TUTTI_E_ARGUMENT,
            "the JSON has too many values: %zu bytes of it would take more than %d MiB of memory", n_bytes,
            LIMIT_JSON_TREE_BYTES / (1024 * 1024));
    json_error_t at;
    json_t *value = json_load_wide(text, n_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);
    if (!value && at.text[0] == '\0') /* jansson has a text for every other error */
        return error_set(err, TUTTI_E_MEMORY, "out of memory");
    if (!value)
        return error_set(err, TUTTI_E_ARGUMENT, "the body is not %s: line %d, column %d: %s",
                         json_error_code(&at) == json_error_numeric_overflow
                             ? "supported JSON (numbers from -1.8e308 to 1.8e308)"
                             : "valid JSON",
                         at.line, at.column, at.text);
    enum tutti_status st = check_zeros(value, text, n_bytes, err);
    if (st != TUTTI_OK) {
        json_decref(value);
        return st;
    }
    *out = value;
    return TUTTI_OK;
}

enum tutti_status json_read_object(json_t **out, const char *text, size_t n_bytes, struct tutti_error *err)
{
    json_t *value = NULL;
    *out = NULL;
    enum tutti_status st = json_read(&value, text, n_bytes, err);
    if (st == TUTTI_OK && !json_is_object(value)) {
        st = json_wrong_part("", "the body", "a JSON object", value, err);
        json_decref(value);
    }
    if (st == TUTTI_OK)
        *out = value;
    return st;
}

bool json_write(struct buf *out, const json_t *value)
{
    return json_print_to(out, value, JSON_COMPACT | JSON_ENCODE_ANY);
}

bool json_write_entries(struct buf *out, const json_t *list)
{
    size_t i;
    const json_t *entry;
    bool ok = true;
    json_array_foreach(list, i, entry)
        ok = ok && (out->n_bytes == 0 || buf_add_string(out, ",")) && json_write(out, entry);
    return ok;
}

bool json_write_open(struct buf *out, const json_t *object)
{
    bool ok = json_write(out, object);
    if (ok)
        buf_truncate(out, out->n_bytes - 1);
    return ok;
}

json_t *json_text(const char *bytes, size_t n_bytes)
{
    json_t *text = json_stringn(bytes ? bytes : "", n_bytes);
    if (text)
        return text;
    struct buf escaped = { 0 };
    bool ok = buf_add_string(&escaped, "bytes:");
    for (size_t i = 0; bytes && i < n_bytes && ok; i++)
        ok = buf_printf(&escaped, "\\x%02x", (unsigned char)bytes[i]);
    text = ok ? json_stringn(escaped.bytes, escaped.n_bytes) : NULL;
    buf_clear(&escaped);
    return text;
}

json_t *json_byte_list(const char *bytes, size_t n_bytes)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n_bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

json_t *json_logprob(float logprob)
{
    return json_real(isfinite(logprob) && logprob > -9999.0f ? number_of_float(logprob) : -9999.0);
}

int json_error_status(enum tutti_status status)
{
    switch (status) {
    case TUTTI_OK:
        return 200;
    case TUTTI_E_ARGUMENT:
    case TUTTI_E_LIMIT:
    case TUTTI_E_UNSUPPORTED:
        return 400;
    case TUTTI_E_NOT_FOUND:
        return 404;
    case TUTTI_E_BUSY:
        return 429;
    case TUTTI_E_CLOSED:
    case TUTTI_E_CANCELLED:
    case TUTTI_E_MEMORY:
    case TUTTI_E_TIMEOUT:
        return 503;
    default:
        return 500;
    }
}

static const char *code_of(int http_status, const struct tutti_error *err)
{
    static const struct {
        int http_status;
        const char *code;
    } USUAL[] = {
        { 401, "invalid_api_key" },
        { 403, "forbidden" },
        { 404, "not_found" },
        { 405, "method_not_allowed" },
        { 409, "conflict" },
        { 413, "request_too_large" },
        { 415, "unsupported_media_type" },
        { 429, "rate_limit_exceeded" },
        { 503, "unavailable" },
    };
    enum tutti_status status = err->status;
    if (http_status == 400 && status == TUTTI_E_LIMIT && err->context_tokens > 0)
        return "context_length_exceeded";
    if (http_status == 404 && status == TUTTI_E_NOT_FOUND && !strcmp(err->param, "model"))
        return "model_not_found";
    if (http_status == 503 && status == TUTTI_E_TIMEOUT)
        return "queue_timeout";
    if (http_status == 500 && status == TUTTI_E_NUMERIC)
        return "model_error";
    for (size_t i = 0; i < sizeof USUAL / sizeof *USUAL; i++)
        if (USUAL[i].http_status == http_status)
            return USUAL[i].code;
    return NULL;
}

json_t *json_error_value(int http_status, const struct tutti_error *err)
{
    const char *type = http_status == 429   ? "rate_limit_error"
                       : http_status >= 500 ? "server_error"
                                            : "invalid_request_error";
    /* Texts may quote the request; a truncated UTF-8 character must not make the whole error fail. */
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message",
                     json_text(err->text, strlen(err->text)), "type", type, "param",
                     err->param[0] ? err->param : NULL, "code", code_of(http_status, err));
}

int json_anthropic_status(const struct tutti_error *err)
{
    enum { OVERLOADED = 529 };
    bool is_overloaded = (err->status == TUTTI_E_BUSY && err->is_overloaded) ||
                         err->status == TUTTI_E_TIMEOUT;
    return is_overloaded ? OVERLOADED : json_error_status(err->status);
}

json_t *json_anthropic_error(int http_status, const struct tutti_error *err, const char *request_id)
{
    static const struct {
        int http_status;
        const char *type;
    } TYPES[] = {
        { 401, "authentication_error" }, { 403, "permission_error" }, { 404, "not_found_error" },
        { 413, "request_too_large" },    { 429, "rate_limit_error" }, { 529, "overloaded_error" },
    };
    const char *type = http_status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].http_status == http_status)
            type = TYPES[i].type;
    /* By this code Anthropic's clients recognize a server that stores nothing, and send the whole
     * conversation instead. */
    json_t *details = !strcmp(err->param, "thread") ? json_pack("{s:s, s:[]}", "error_code",
                                                                "thread_unsupported_request", "unsupported")
                                                    : NULL;
    return json_pack("{s:s, s:{s:s, s:o, s:o*}, s:s}", "type", "error", "error", "type", type, "message",
                     json_text(err->text, strlen(err->text)), "details", details, "request_id", request_id);
}

bool json_error_body(struct buf *out, int http_status, const struct tutti_error *err)
{
    json_t *error = json_error_value(http_status, err);
    bool ok = json_write(out, error);
    json_decref(error);
    return ok;
}
