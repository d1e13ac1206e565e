#include "server/models/name_scan.h"

#include "base/text.h"

#include <string.h>

static const char KEY[] = "model";

/* The string that ends at scan->at. Its letters may be written as escapes. */
static bool is_key(const struct name_scan *scan, const char *bytes)
{
    const char *c = bytes + scan->text, *end = bytes + scan->at;
    for (const char *letter = KEY; *letter; letter++) {
        uint32_t code;
        if (c < end && *c == *letter)
            c++;
        else if (end - c >= 6 && !memcmp(c, "\\u", 2) && hex_read(c + 2, 4, 4, &code) &&
                 code == (unsigned char)*letter)
            c += 6;
        else
            return false;
    }
    return c == end;
}

/* The quote at scan->at ends a string. True: it is the name. */
static bool end_text(struct name_scan *scan, const char *bytes)
{
    scan->in_text = false;
    if (scan->depth != 1)
        return false;
    if (!scan->is_value) {
        scan->is_model = is_key(scan, bytes);
        return false;
    }
    if (!scan->is_model)
        return false;
    scan->begin = scan->text;
    scan->end = scan->at;
    return true;
}

bool name_scan(struct name_scan *scan, const char *bytes, size_t n_bytes, size_t n_slice)
{
    size_t stop = n_bytes - scan->at > n_slice ? scan->at + n_slice : n_bytes;
    for (; scan->at < stop; scan->at++) {
        char c = bytes[scan->at];
        if (scan->in_text) {
            if (scan->is_escaped)
                scan->is_escaped = false;
            else if (c == '\\')
                scan->is_escaped = true;
            else if (c == '"' && end_text(scan, bytes))
                return true;
        } else if (c == '"') {
            scan->in_text = true;
            scan->text = scan->at + 1;
        } else if (c == '{' || c == '[') {
            scan->depth++;
        } else if (c == '}' || c == ']') {
            if (--scan->depth <= 0)
                return true;
        } else if (scan->depth == 1 && (c == ':' || c == ',')) {
            scan->is_value = c == ':';
        }
    }
    return scan->at == n_bytes;
}

size_t name_of_query(const char *query, char *name, size_t size)
{
    size_t n = 0;
    while (strncmp(query, "model=", sizeof "model=" - 1) != 0) {
        query += strcspn(query, "&");
        if (!*query++)
            return 0;
    }
    for (const char *c = query + sizeof "model=" - 1; *c && *c != '&' && n < size; c++) {
        uint32_t code;
        if (*c == '%' && hex_read(c + 1, strnlen(c + 1, 2), 2, &code)) {
            name[n++] = (char)code;
            c += 2;
        } else {
            name[n++] = *c == '+' ? ' ' : *c;
        }
    }
    return n;
}
