#include "base/files/protobuf.h"

#include "base/bytes.h"

#include <string.h>

uint64_t protobuf_varint(struct protobuf *m)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (m->at == m->end)
            break;
        uint8_t byte = *m->at++;
        if (shift == 63 && byte > 1)
            break;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
    m->is_bad = true;
    return 0;
}

static uint64_t read_fixed(struct protobuf *m, int n_bytes)
{
    m->is_bad |= m->end - m->at < n_bytes;
    if (m->is_bad)
        return 0;
    m->at += n_bytes;
    return bytes_load_le(m->at - n_bytes, n_bytes);
}

bool protobuf_next(struct protobuf *m, struct protobuf_field *field)
{
    if (m->is_bad || m->at == m->end)
        return false;
    uint64_t tag = protobuf_varint(m);
    *field = (struct protobuf_field){ .number = (uint32_t)(tag >> 3), .wire = (enum protobuf_wire)(tag & 7) };
    if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF)
        m->is_bad = true;
    if (m->is_bad)
        return false;
    switch (field->wire) {
    case PROTOBUF_VARINT:
        field->value = protobuf_varint(m);
        break;
    case PROTOBUF_FIXED64:
        field->value = read_fixed(m, 8);
        break;
    case PROTOBUF_FIXED32:
        field->value = read_fixed(m, 4);
        break;
    case PROTOBUF_BYTES: {
        uint64_t n = protobuf_varint(m);
        if (m->is_bad || n > (uint64_t)(m->end - m->at)) {
            m->is_bad = true;
            break;
        }
        field->bytes = m->at;
        field->n_bytes = (size_t)n;
        m->at += n;
        break;
    }
    default: /* groups are not part of any file that tutti reads */
        m->is_bad = true;
    }
    return !m->is_bad;
}

float protobuf_float(const struct protobuf_field *field)
{
    uint32_t bits = (uint32_t)field->value;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
