#include "base/json/json_pointer.h"

#include <stdbool.h>
#include <stdlib.h>

/* "a~1b%20c" up to the next slash: the key that it names. */
static bool read_part(const char **at, char *out, size_t room)
{
    size_t n = 0;
    const char *c = *at;
    for (; *c && *c != '/'; c++) {
        char byte = *c;
        if (byte == '%' && c[1] && c[2]) {
            char digits[3] = { c[1], c[2], '\0' }, *end;
            byte = (char)strtol(digits, &end, 16);
            if (*end)
                return false;
            c += 2;
        }
        if (byte == '~' && (c[1] == '0' || c[1] == '1'))
            byte = *++c == '0' ? '~' : '/';
        if (n + 1 == room)
            return false;
        out[n++] = byte;
    }
    out[n] = '\0';
    *at = c;
    return n > 0 || c[-1] == '/';
}

const json_t *json_pointer(const json_t *value, const char *pointer)
{
    char key[512];
    while (value && *pointer == '/') {
        pointer++;
        if (!read_part(&pointer, key, sizeof key))
            return NULL;
        if (json_is_array(value)) {
            char *end;
            unsigned long index = strtoul(key, &end, 10);
            value = *key && !*end ? json_array_get(value, index) : NULL;
        } else {
            value = json_object_get(value, key);
        }
    }
    return *pointer ? NULL : value;
}
