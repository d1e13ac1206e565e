/* Reads the wire format of protocol buffers: a message is a sequence of fields.
 * Format: https://protobuf.dev/programming-guides/encoding/ */
#ifndef TUTTI_BASE_FILES_PROTOBUF_H
#define TUTTI_BASE_FILES_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum protobuf_wire { PROTOBUF_VARINT = 0, PROTOBUF_FIXED64 = 1, PROTOBUF_BYTES = 2, PROTOBUF_FIXED32 = 5 };

struct protobuf {
    const uint8_t *at, *end;
    bool is_bad; /* truncated, an overlong varint, a group or an unknown wire type; sticks */
};

struct protobuf_field {
    uint32_t number;
    enum protobuf_wire wire;
    uint64_t value;       /* of varint, fixed64, fixed32 */
    const uint8_t *bytes; /* of PROTOBUF_BYTES, borrowed */
    size_t n_bytes;
};

static inline struct protobuf protobuf_open(const void *bytes, size_t n_bytes)
{
    return (struct protobuf){ .at = bytes, .end = (const uint8_t *)bytes + n_bytes };
}

/* Reads a number; 0 if is_bad is set. */
uint64_t protobuf_varint(struct protobuf *message);

/* Reads the next field. False: end of the message, or is_bad. */
bool protobuf_next(struct protobuf *message, struct protobuf_field *field);

float protobuf_float(const struct protobuf_field *field); /* of PROTOBUF_FIXED32 */

#endif
