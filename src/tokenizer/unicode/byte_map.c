#include "tokenizer/unicode/byte_map.h"

#include <stdlib.h>

/* Bytes that are printable in Latin-1 map to themselves, the other 68 in order to U+0100, U+0101,
 * ... */
static bool stands_for_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Index of a byte among those that do not map to themselves. */
static int other_index(int byte)
{
    if (byte <= 32)
        return byte;
    return byte <= 160 ? 33 + byte - 127 : 67; /* 127 to 160, then 173 */
}

static int other_byte(int index)
{
    if (index <= 32)
        return index;
    return index < 67 ? 127 + index - 33 : 173;
}

enum { N_OTHERS = 68 };

bool byte_map_read(const char *spelling, size_t n_bytes, struct buf *out)
{
    size_t before = out->n_bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        int byte = (uint8_t)spelling[i];
        if (byte >= 0x80) { /* the alphabet is below U+0800: two bytes */
            int next = i + 1 < n_bytes ? (uint8_t)spelling[i + 1] : 0;
            int code = (byte & 0x1F) << 6 | (next & 0x3F);
            bool is_pair = byte >= 0xC2 && byte < 0xE0 && (next & 0xC0) == 0x80;
            bool is_other = is_pair && code >= 0x100 && code < 0x100 + N_OTHERS;
            if (!is_pair || (!is_other && (code >= 0x100 || !stands_for_itself(code))))
                goto no;
            byte = is_other ? other_byte(code - 0x100) : code;
            i++;
        } else if (!stands_for_itself(byte)) {
            goto no;
        }
        char c = (char)byte;
        if (!buf_add(out, &c, 1))
            goto no;
    }
    return true;
no:
    buf_truncate(out, before);
    return false;
}

bool byte_map_write(const char *bytes, size_t n_bytes, struct buf *out)
{
    for (size_t i = 0; i < n_bytes; i++) {
        int byte = (uint8_t)bytes[i], code = stands_for_itself(byte) ? byte : 0x100 + other_index(byte);
        char pair[2] = { (char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)) };
        if (code < 0x80)
            pair[0] = (char)code;
        if (!buf_add(out, pair, code < 0x80 ? 1 : 2))
            return false;
    }
    return true;
}
