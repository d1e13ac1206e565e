/* Tests of src/base/protobuf: every kind of field, and messages that are cut or broken. */
#include "base/files/protobuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_wire_type_is_read(void **state)
{
    (void)state;
    static const uint8_t MESSAGE[] = { 0x08, 0x96, 0x01,             /* 1: varint 150 */
                                       0x15, 0x00, 0x00, 0xC0, 0xBF, /* 2: float -1.5 */
                                       0x19, 1,    2,    3,    4,    5,    6,    7,    0x88, /* 3: fixed64 */
                                       0x22, 0x03, 'a',  0,    'b',                          /* 4: bytes */
                                       0x2A, 0x00,                                           /* 5: no bytes */
                                       0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                       0xFF, 0x01,                           /* 6: -1 */
                                       0xF8, 0xFF, 0xFF, 0xFF, 0x0F, 0x05 }; /* the largest number */
    struct protobuf m = protobuf_open(MESSAGE, sizeof MESSAGE);
    struct protobuf_field f;
    assert_true(protobuf_next(&m, &f) && f.number == 1 && f.wire == PROTOBUF_VARINT && f.value == 150);
    assert_true(protobuf_next(&m, &f) && f.number == 2 && f.wire == PROTOBUF_FIXED32);
    assert_true(protobuf_float(&f) == -1.5f);
    assert_true(protobuf_next(&m, &f) && f.number == 3 && f.wire == PROTOBUF_FIXED64);
    assert_true(f.value == 0x8807060504030201);
    assert_true(protobuf_next(&m, &f) && f.number == 4 && f.n_bytes == 3 && memcmp(f.bytes, "a\0b", 3) == 0);
    assert_true(protobuf_next(&m, &f) && f.number == 5 && f.n_bytes == 0);
    assert_true(protobuf_next(&m, &f) && f.number == 6 && (int32_t)(int64_t)f.value == -1);
    assert_true(protobuf_next(&m, &f) && f.number == 0x1FFFFFFF && f.value == 5);
    assert_false(protobuf_next(&m, &f));
    assert_false(m.is_bad);
}

struct broken {
    const char *bytes;
    size_t n_bytes;
};

#define BROKEN(text)                                                                                         \
    {                                                                                                        \
        .bytes = text, .n_bytes = sizeof text - 1                                                            \
    }

static void a_broken_message_is_bad_and_stays_so(void **state)
{
    (void)state;
    static const struct broken CASES[] = {
        BROKEN("\x08"),                                             /* no value */
        BROKEN("\x08\x80"),                                         /* half a varint */
        BROKEN("\x80"),                                             /* half a tag */
        BROKEN("\x00\x01"),                                         /* field 0 */
        BROKEN("\x80\x80\x80\x80\x10\x01"),                         /* a field number of 30 bits */
        BROKEN("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),     /* a varint of 65 bits */
        BROKEN("\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"), /* a varint of 11 bytes */
        BROKEN("\x0a\x02z"),                                        /* bytes after the end */
        BROKEN("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01z"),    /* a length that would wrap */
        BROKEN("\x0a\xff\xff\xff\xff\x0fz"),
        BROKEN("\x0d\x01\x02\x03"),                 /* half a fixed32 */
        BROKEN("\x09\x01\x02\x03\x04\x05\x06\x07"), /* half a fixed64 */
        BROKEN("\x0b\x0c"),                         /* a group */
        BROKEN("\x0e"),                             /* wire types that do not exist */
        BROKEN("\x0f"),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint8_t *copy = malloc(CASES[i].n_bytes); /* memory checkers watch its end */
        assert_non_null(copy);
        memcpy(copy, CASES[i].bytes, CASES[i].n_bytes);
        struct protobuf m = protobuf_open(copy, CASES[i].n_bytes);
        struct protobuf_field f;
        if (protobuf_next(&m, &f) || !m.is_bad || protobuf_next(&m, &f))
            fail_msg("case %zu", i);
        free(copy);
    }
}

static void an_empty_message_has_no_field(void **state)
{
    (void)state;
    struct protobuf m = protobuf_open("", 0);
    struct protobuf_field f;
    assert_false(protobuf_next(&m, &f));
    assert_false(m.is_bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wire_type_is_read),
        cmocka_unit_test(a_broken_message_is_bad_and_stays_so),
        cmocka_unit_test(an_empty_message_has_no_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
