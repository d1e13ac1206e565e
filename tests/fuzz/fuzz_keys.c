/* Any bytes as a file of API keys: an error, or keys with names that fit into a line of a log; what the file does not hold opens
 * nothing. The last line serves as a request's header too. */
#include "base/utf8.h"
#include "scratch.h"
#include "server/access/keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_name(const char *name)
{
    assert(!name || (*name && strlen(name) < 64 && utf8_is_printable(name, strlen(name))));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const struct client_limits DEFAULTS = { .weight = 1 };
    struct keys *keys = NULL;
    struct tutti_error err = { 0 };
    if (keys_open(&keys, scratch_write("keys", bytes, n_bytes), &DEFAULTS, &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !keys);
        return 0;
    }
    const char *name;
    for (size_t i = 0; (name = keys_name(keys, i)); i++) {
        const struct client_limits *limits = keys_limits(keys, name);
        check_name(name);
        assert(limits->weight >= 0.001 && limits->weight <= 1000 && limits->tokens_per_minute >= 0);
        assert(limits->concurrency >= 0 && limits->priority >= TUTTI_PRIORITY_FIRST);
        assert(limits->priority <= TUTTI_PRIORITY_LAST);
    }
    const uint8_t *line = n_bytes > 0 ? memrchr(bytes, '\n', n_bytes) : NULL;
    size_t n = line ? (size_t)(bytes + n_bytes - line - 1) : n_bytes;
    char *header = malloc(n + 8);
    assert(header);
    memcpy(header, "Bearer ", 7);
    memcpy(header + 7, bytes + n_bytes - n, n);
    header[7 + n] = '\0';
    check_name(keys_find(keys, header));
    check_name(keys_find(keys, header + 7));
    assert(!keys_find(keys, "Bearer ") && !keys_find(keys, "") && !keys_find(keys, NULL));
    free(header);
    keys_close(keys);
    return 0;
}
