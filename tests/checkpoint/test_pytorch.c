/* What PyTorch's files are made of, pickles, archives and tensors: what nobody should have written is told so. */
#include "bytes.h"

#include "checkpoint/pytorch/pickle.h"
#include "checkpoint/pytorch/pytorch.h"
#include "checkpoint/pytorch/zip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- pickles ---- */

static const struct pickle_global GLOBALS[] = { { "collections", "OrderedDict", .is_dict = true },
                                                { "torch", "Size", .is_dict = false } };

static enum tutti_status open_pickle(const void *bytes, size_t n, struct tutti_error *err)
{
    struct pickle *p = NULL;
    void *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read beyond */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    enum tutti_status st = pickle_open(&p, exact, n, GLOBALS, 2, "x.pkl", err);
    pickle_close(p);
    free(exact);
    return st;
}

static void a_broken_pickle_is_told_what_is_wrong(void **state)
{
    (void)state;
#define PICKLE(text) text, sizeof text - 1
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } CASES[] = {
        { PICKLE(""), "does not begin with" },
        { PICKLE("\x80"), "does not begin with" },
        { PICKLE("}."), "does not begin with" },
        { PICKLE("\x80\x02"), "no STOP" },
        { PICKLE("\x80\x02."), "STOP where not one value" },
        { PICKLE("\x80\x02(."), "STOP where not one value" },
        { PICKLE("\x80\x02}}."), "STOP where not one value" },
        { PICKLE("\x80\x02X\xFF\xFF\xFF\xFF"), "opcode 58 with wrong operands" },
        { PICKLE("\x80\x02U\x05"
                 "abc"),
          "opcode 55" },
        { PICKLE("\x80\x02J\x01\x02"), "opcode 4a" },
        { PICKLE("\x80\x02G\x01\x02"), "opcode 47" },
        { PICKLE("\x80\x02\x8A\x09"
                 "123456789."),
          "opcode 8a" }, /* nine bytes do not fit an int64 */
        { PICKLE("\x80\x02\x8B\xFF\xFF\xFF\x7F"), "opcode 8b at byte 2, which no tensor needs" },
        { PICKLE("\x80\x02i__main__\nf\n."), "opcode 69" }, /* INST, which calls */
        { PICKLE("\x80\x02(S'a'\no."), "opcode 53" },       /* OBJ, which calls */
        { PICKLE("\x80\x02"
                 "cos\nsystem\n."),
          "calls os.system" },
        { PICKLE("\x80\x02"
                 "c__builtin__\neval\n."),
          "calls __builtin__.eval" },
        { PICKLE("\x80\x02"
                 "ccollections\nOrderedDictX\n."),
          "calls collections.OrderedDictX" },
        { PICKLE("\x80\x02"
                 "ccollections\nOrdered"),
          "a global without an end" },
        { PICKLE("\x80\x02"
                 "ccollections"),
          "a global without an end" },
        { PICKLE("\x80\x02"
                 "a."),
          "opcode 61" },
        { PICKLE("\x80\x02]a."), "opcode 61" },
        { PICKLE("\x80\x02}K\x01"
                 "a."),
          "opcode 61" }, /* a dict is no list */
        { PICKLE("\x80\x02]e."), "opcode 65" },
        { PICKLE("\x80\x02(e."), "opcode 65" },
        { PICKLE("\x80\x02((e."), "opcode 65" },
        { PICKLE("\x80\x02}(K\x01u."), "opcode 75" }, /* a key without a value */
        { PICKLE("\x80\x02K\x01K\x02s."), "opcode 73" },
        { PICKLE("\x80\x02\x87."), "opcode 87" },
        { PICKLE("\x80\x02(K\x01\x86."), "opcode 86" }, /* across a mark */
        { PICKLE("\x80\x02t."), "opcode 74" },
        { PICKLE("\x80\x02h\x00."), "opcode 68" },
        { PICKLE("\x80\x02Nq\x01h\x00."), "opcode 68" }, /* between what was put */
        { PICKLE("\x80\x02Nr\xFF\xFF\xFF\xFFNN"), "opcode 72" },
        { PICKLE("\x80\x02)R."), "opcode 52" },
        { PICKLE("\x80\x02K\x01)R."), "opcode 52" }, /* a number is not called */
        { PICKLE("\x80\x02"
                 "ctorch\nSize\nK\x01R."),
          "opcode 52" },
        { PICKLE("\x80\x02K\x01}b."), "opcode 62" },
        { PICKLE("\x80\x02K\x01Q."), "opcode 51" },
        { PICKLE("\x80\x02"
                 "00."),
          "opcode 30" },
        { PICKLE("\x80\x01}."), "protocol 1, expected 2 to 5" },
        { PICKLE("\x80\x06}."), "protocol 6, expected 2 to 5" },
        { PICKLE("\x80\x04\x95\x01\0\0\0"), "opcode 95" }, /* a frame's length is cut off */
        { PICKLE("\x80\x04\x8C\x05"
                 "abc"),
          "opcode 8c" },
        { PICKLE("\x80\x04\x8D\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"), "opcode 8d" },
        { PICKLE("\x80\x04\x8E\x04\0\0\0\0\0\0\0abc"), "opcode 8e" },
        { PICKLE("\x80\x04\x94."), "opcode 94" }, /* nothing to keep */
        { PICKLE("\x80\x04N\x94h\x01."), "opcode 68" },
        { PICKLE("\x80\x04\x8C\x02os\x8C\x06system\x93."), "calls os.system" },
        { PICKLE("\x80\x04\x8C\x02os\x93."), "a global without a name" },
        { PICKLE("\x80\x04\x8C\x02osK\x01\x93."), "a global without a name" },
        { PICKLE("\x80\x04\x8C\x02os(\x8C\x01x\x93."), "a global without a name" },
        { PICKLE("\x80\x04\x8F."), "opcode 8f at byte 2, which no tensor needs" }, /* a set */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        enum tutti_status st = open_pickle(CASES[i].bytes, CASES[i].n, &err);
        if (st == TUTTI_OK || !strstr(err.text, CASES[i].words) || !strstr(err.text, "x.pkl"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CASES[i].words);
    }
}

static void a_pickle_says_what_was_saved(void **state)
{
    (void)state;
    /* OrderedDict([("a", (1, -2, 70000)), ("b", [True, None, 0.5])]) with attributes, and bytes after STOP. */
    static const char BYTES[] = "\x80\x02"
                                "ccollections\nOrderedDict\nq\x00)Rq\x01(U\x01"
                                "aK\x01J\xFE\xFF\xFF\xFF"
                                "\x8A\x03\x70\x11\x01\x87X\x01\x00\x00\x00"
                                "b](\x88NG\x3F\xE0\x00\x00\x00\x00\x00\x00"
                                "eu}U\x01xh\x01sb.rest";
    struct pickle *p;
    struct tutti_error err;
    if (pickle_open(&p, BYTES, sizeof BYTES - 1, GLOBALS, 2, "x.pkl", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_int_equal(pickle_n_bytes(p), sizeof BYTES - 1 - 4);
    const struct pickle_value *dict = pickle_result(p);
    assert_int_equal(dict->kind, PICKLE_DICT);
    assert_int_equal(dict->items->n, 4);
    const struct pickle_value *at = dict->items->at;
    assert_int_equal(at[0].kind, PICKLE_STRING);
    assert_memory_equal(at[0].text, "a", 1);
    assert_int_equal(at[1].kind, PICKLE_TUPLE);
    assert_int_equal(at[1].items->n, 3);
    assert_int_equal(at[1].items->at[0].integer, 1);
    assert_int_equal(at[1].items->at[1].integer, -2);
    assert_int_equal(at[1].items->at[2].integer, 70000);
    assert_int_equal(at[3].kind, PICKLE_LIST);
    assert_int_equal(at[3].items->n, 3);
    assert_int_equal(at[3].items->at[0].integer, 1);
    assert_int_equal(at[3].items->at[1].kind, PICKLE_NONE);
    assert_true(at[3].items->at[2].number == 0.5);
    pickle_close(p);
}

/* Each of these wants far more than its size: time, memory or depth. */
static void a_pickle_bomb_ends_soon(void **state)
{
    (void)state;
    enum { N = 4 << 20 };
    static const struct {
        const char *unit;
        const char *words; /* NULL: it is read */
    } BOMBS[] = {
        { "(", "opcode 28" }, /* a stack of marks */
        { "}", "opcode 7d" }, /* a stack of dicts */
        { "]\x85"
          "0",
          "STOP where" },     /* objects that are thrown away */
        { "\x85", NULL },     /* tuples in tuples */
        { "2", "opcode 32" }, /* DUP, of protocol 0 */
    };
    uint8_t *bytes = malloc(N);
    assert_non_null(bytes);
    for (size_t i = 0; i < sizeof BOMBS / sizeof *BOMBS; i++) {
        struct tutti_error err = { 0 };
        size_t n = 0, size = strlen(BOMBS[i].unit);
        memcpy(bytes, "\x80\x02N", 3);
        for (n = 3; n + size < N - 1; n += size)
            memcpy(bytes + n, BOMBS[i].unit, size);
        if (strstr(BOMBS[i].unit, "0"))
            bytes[2] = '('; /* nothing but a mark is left at the end */
        bytes[n++] = '.';
        enum tutti_status st = open_pickle(bytes, n, &err);
        if (BOMBS[i].words ? st == TUTTI_OK || !strstr(err.text, BOMBS[i].words) : st != TUTTI_OK)
            fail_msg("bomb %zu: status %d, \"%s\"", i, st, err.text);
    }
    free(bytes);
}

/* ---- archives ---- */

static void patch(struct bytes *b, size_t at, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        b->bytes[at + (size_t)i] = (uint8_t)(value >> (8 * i));
}

/* Two stored entries, "a" of 5 bytes and "bb" of 3; where their parts are: */
enum {
    LOCAL_A = 0,
    DATA_A = 31,
    LOCAL_B = 36,
    DATA_B = 68,
    CENTRAL_A = 71,
    CENTRAL_B = 118,
    END = 166,
    SIZE = 188
};

static void put_header(struct bytes *b, bool is_central, const char *name, uint32_t n_data, uint32_t offset)
{
    put(b, is_central ? 0x02014B50 : 0x04034B50, 4);
    put(b, 20, is_central ? 4 : 2); /* versions */
    put(b, 0, 8);                   /* flags, method, time */
    put(b, 0, 4);                   /* checksum */
    put(b, n_data, 4);
    put(b, n_data, 4);
    put(b, strlen(name), 2);
    put(b, 0, 2);
    if (is_central) {
        put(b, 0, 10);
        put(b, offset, 4);
    }
    put_text(b, name, strlen(name));
}

static struct bytes make_archive(void)
{
    struct bytes b = { .n = 0 };
    put_header(&b, false, "a", 5, 0);
    put_text(&b, "hello", 5);
    assert_int_equal(b.n, LOCAL_B);
    put_header(&b, false, "bb", 3, 0);
    put_text(&b, "you", 3);
    assert_int_equal(b.n, CENTRAL_A);
    put_header(&b, true, "a", 5, LOCAL_A);
    assert_int_equal(b.n, CENTRAL_B);
    put_header(&b, true, "bb", 3, LOCAL_B);
    assert_int_equal(b.n, END);
    put(&b, 0x06054B50, 4);
    put(&b, 0, 4);
    put(&b, 2, 2);
    put(&b, 2, 2);
    put(&b, END - CENTRAL_A, 4);
    put(&b, CENTRAL_A, 4);
    put(&b, 0, 2);
    assert_int_equal(b.n, SIZE);
    return b;
}

/* The content of an entry, or an error. */
static enum tutti_status look(const struct bytes *b, const char *name, const void **data, uint64_t *n,
                              struct tutti_error *err)
{
    struct zip *zip = NULL;
    enum tutti_status st = zip_open(&zip, b->bytes, b->n, "x.zip", err);
    const struct zip_entry *entry = st == TUTTI_OK ? zip_find(zip, name, strlen(name)) : NULL;
    if (st == TUTTI_OK && !entry)
        st = error_set(err, TUTTI_E_NOT_FOUND, "x.zip: no such entry");
    if (st == TUTTI_OK) {
        *n = entry->n_bytes;
        st = zip_data(zip, entry, data, err);
    }
    zip_close(zip);
    return st;
}

static void an_archives_entries_lie_where_they_are_stored(void **state)
{
    (void)state;
    struct bytes b = make_archive();
    const void *data;
    uint64_t n;
    assert_int_equal(look(&b, "a", &data, &n, NULL), TUTTI_OK);
    assert_ptr_equal(data, b.bytes + DATA_A);
    assert_int_equal(n, 5);
    assert_int_equal(look(&b, "bb", &data, &n, NULL), TUTTI_OK);
    assert_ptr_equal(data, b.bytes + DATA_B);
    assert_int_equal(look(&b, "b", &data, &n, NULL), TUTTI_E_NOT_FOUND);
    patch(&b, END + 20, 7, 2); /* with a comment */
    put_text(&b, "comment", 7);
    assert_int_equal(look(&b, "bb", &data, &n, NULL), TUTTI_OK);
}

static void a_broken_archive_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        int n;
        const char *words;
    } CASES[] = {
        { END, 0, 4, "no end record" },
        { END + 20, 1, 2, "no end record" }, /* a comment longer than the file */
        { END + 4, 1, 2, "a part of several" },
        { END + 10, 3, 2, "3 entries do not fit in" },
        { END + 10, 0xFFFF, 2, "no 64-bit end record" },
        { END + 12, 0xFFFFFFFE, 4, "does not lie before its end record" },
        { END + 16, 0xFFFFFFFF, 4, "no 64-bit end record" },
        { END + 16, END, 4, "does not lie before its end record" },
        { END + 16, CENTRAL_A - 1, 4, "entry 0 of its directory is broken" },
        { CENTRAL_A + 28, 0xFFFF, 2, "entry 0 of its directory is broken" },
        { CENTRAL_B + 30, 1, 2, "entry 1 of its directory is broken" },
        { CENTRAL_B + 24, 0xFFFFFFFF, 4, "bb: its 64-bit sizes are missing" },
        { CENTRAL_B + 8, 1, 2, "bb is encrypted" },
        { CENTRAL_B + 10, 8, 2, "bb is compressed (method 8)" },
        { CENTRAL_B + 42, 0xFFFFFFF0, 4, "bb: no header at byte" },
        { CENTRAL_B + 42, 1, 4, "bb: no header at byte 1" },
        { CENTRAL_B + 42, LOCAL_A, 4, "is of another entry" },
        { LOCAL_B + 26, 0xFFFF, 2, "is of another entry" },
        { LOCAL_B + 28, 0xFFFF, 2, "is of another entry" },
        { LOCAL_B + 30, 'x', 1, "is of another entry" },
        { CENTRAL_B + 24, 4, 4, "4 bytes (3 stored)" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct bytes b = make_archive();
        struct tutti_error err = { 0 };
        const void *data;
        uint64_t n;
        patch(&b, CASES[i].at, CASES[i].value, CASES[i].n);
        enum tutti_status st = look(&b, "bb", &data, &n, &err);
        if (st == TUTTI_OK || !strstr(err.text, CASES[i].words) || !strstr(err.text, "x.zip"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CASES[i].words);
    }
    struct bytes b = make_archive();
    struct tutti_error err;
    const void *data;
    uint64_t n;
    patch(&b, CENTRAL_B + 20, 500, 4); /* both sizes beyond the file */
    patch(&b, CENTRAL_B + 24, 500, 4);
    assert_int_equal(look(&b, "bb", &data, &n, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "500 bytes"));
    b = make_archive();
    patch(&b, CENTRAL_B + 28, 1, 2); /* "b", and the rest is an extra field */
    patch(&b, CENTRAL_B + 30, 1, 2);
    patch(&b, CENTRAL_B + 46, 'a', 1);
    assert_int_equal(look(&b, "a", &data, &n, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "duplicate entry a"));
}

static void sizes_of_64_bits_are_read(void **state)
{
    (void)state;
    struct bytes b = { .n = 0 };
    put_header(&b, false, "a", 5, 0);
    put_text(&b, "hello", 5);
    size_t central = b.n;
    put_header(&b, true, "a", UINT32_MAX, UINT32_MAX);
    patch(&b, central + 30, 4 + 6 + 4 + 24, 2);
    put(&b, 0x7075, 2); /* an extra field of another kind first */
    put(&b, 6, 2);
    put(&b, 0, 6);
    put(&b, 1, 2);
    put(&b, 24, 2);
    put(&b, 5, 8);
    put(&b, 5, 8);
    put(&b, 0, 8);
    size_t end64 = b.n;
    put(&b, 0x06064B50, 4);
    put(&b, 44, 8);
    put(&b, 45, 4);
    put(&b, 0, 8);
    put(&b, 1, 8);
    put(&b, 1, 8);
    put(&b, end64 - central, 8);
    put(&b, central, 8);
    size_t locator = b.n;
    put(&b, 0x07064B50, 4);
    put(&b, 0, 4);
    put(&b, end64, 8);
    put(&b, 1, 4);
    put(&b, 0x06054B50, 4);
    put(&b, 0, 4);
    put(&b, UINT64_MAX, 8);
    put(&b, UINT32_MAX, 4);
    put(&b, 0, 2);
    const void *data;
    uint64_t n;
    struct tutti_error err = { 0 };
    if (look(&b, "a", &data, &n, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n, 5);
    assert_memory_equal(data, "hello", 5);
    patch(&b, locator + 8, UINT64_MAX - 8, 8);
    assert_int_equal(look(&b, "a", &data, &n, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "no 64-bit end record at byte"));
    patch(&b, locator + 8, end64, 8);
    patch(&b, end64 + 48, UINT64_MAX, 8);
    assert_int_equal(look(&b, "a", &data, &n, &err), TUTTI_E_FORMAT);
    patch(&b, end64 + 48, central, 8);
    patch(&b, central + 30, 4 + 6 + 4 + 20, 2); /* the extra field ends within the offset */
    assert_int_equal(look(&b, "a", &data, &n, &err), TUTTI_E_FORMAT);
}

/* ---- tensors of PyTorch ---- */

static void put_short(struct bytes *b, const char *text) /* SHORT_BINSTRING */
{
    put(b, 'U', 1);
    put(b, strlen(text), 1);
    put_text(b, text, strlen(text));
}

static void put_tuple(struct bytes *b, const int64_t *values, int n)
{
    put(b, '(', 1);
    for (int i = 0; i < n; i++) {
        put(b, 0x8A, 1);
        put(b, 8, 1);
        put(b, (uint64_t)values[i], 8);
    }
    put(b, 't', 1);
}

/* How a tensor is described; the storage that lies there is "0", of 24 bytes. */
struct described {
    const char *type, *key;
    int64_t numel, offset;
    int n_dims, n_strides;
    int64_t shape[6], stride[6];
};

static const struct described GOOD = { .type = "FloatStorage",
                                       .key = "0",
                                       .numel = 6,
                                       .n_dims = 2,
                                       .n_strides = 2,
                                       .shape = { 2, 3 },
                                       .stride = { 3, 1 } };

static void put_tensor(struct bytes *b, const char *name, const struct described *d)
{
    static const char CALL[] = "ctorch._utils\n_rebuild_tensor_v2\n((U\x07storage";
    put_short(b, name);
    put_text(b, CALL, sizeof CALL - 1);
    put_text(b, "ctorch\n", 7);
    put_text(b, d->type, strlen(d->type));
    put(b, '\n', 1);
    put_short(b, d->key);
    put_short(b, "cpu");
    put(b, 0x8A, 1);
    put(b, 8, 1);
    put(b, (uint64_t)d->numel, 8);
    put_text(b, "tQ\x8A\x08", 4);
    put(b, (uint64_t)d->offset, 8);
    put_tuple(b, d->shape, d->n_dims);
    put_tuple(b, d->stride, d->n_strides);
    put_text(b, "\x89}tRs", 5);
}

/* An archive of "x/data.pkl", "x/data/0" and an entry of the caller's choice. */
static struct bytes wrap(const struct bytes *pickle, const char *extra, const char *content)
{
    const char *const names[] = { "x/data.pkl", "x/data/0", extra };
    const void *const data[] = { pickle->bytes, "0123456789abcdefghijklmn", content };
    const size_t sizes[] = { pickle->n, 24, strlen(content) };
    uint32_t at[3];
    struct bytes b = { .n = 0 };
    for (int i = 0; i < 3; i++) {
        at[i] = (uint32_t)b.n;
        put_header(&b, false, names[i], (uint32_t)sizes[i], 0);
        put_text(&b, data[i], sizes[i]);
    }
    size_t central = b.n;
    for (int i = 0; i < 3; i++)
        put_header(&b, true, names[i], (uint32_t)sizes[i], at[i]);
    size_t end = b.n;
    put(&b, 0x06054B50, 4);
    put(&b, 0, 4);
    put(&b, 3, 2);
    put(&b, 3, 2);
    put(&b, end - central, 4);
    put(&b, central, 4);
    put(&b, 0, 2);
    return b;
}

static enum tutti_status open_pytorch(const struct bytes *b, struct tutti_error *err)
{
    struct tensor_set *file = NULL;
    enum tutti_status st = tensor_set_open_memory(&file, &PYTORCH_FORMAT, b->bytes, b->n, "x.bin", err);
    tensor_set_close(file);
    return st;
}

static void a_broken_tensor_of_pytorch_is_told_what_is_wrong(void **state)
{
    (void)state;
    struct {
        struct described d;
        const char *words;
        enum tutti_status status;
    } cases[] = {
        { GOOD, "", TUTTI_OK },
        { GOOD, "its storage data/1 is missing", TUTTI_E_FORMAT },
        { GOOD, "storage 0 has 24 bytes, expected 28", TUTTI_E_FORMAT },
        { GOOD, "storage 0 has 24 bytes, expected 12", TUTTI_E_FORMAT },
        { GOOD, "not described as PyTorch does", TUTTI_E_FORMAT },
        { GOOD, "not described as PyTorch does", TUTTI_E_FORMAT },
        { GOOD, "its offset, shape or strides", TUTTI_E_FORMAT },
        { GOOD, "from element 1 does not lie within a storage of 6", TUTTI_E_FORMAT },
        { GOOD, "does not lie within", TUTTI_E_FORMAT },
        { GOOD, "[2, 3] with strides [4, 1] from element 0 does not lie", TUTTI_E_FORMAT },
        { GOOD, "its offset, shape or strides", TUTTI_E_FORMAT },
        { GOOD, "does not lie within", TUTTI_E_FORMAT },
        { GOOD, "the shape's product overflows", TUTTI_E_FORMAT },
        { GOOD, "its offset, shape or strides", TUTTI_E_FORMAT },
        { GOOD, "6 dimensions, expected at most 5", TUTTI_E_UNSUPPORTED },
        { GOOD, "shows elements more than once", TUTTI_E_UNSUPPORTED },
        { GOOD, "calls torch.QInt8Storage", TUTTI_E_UNSUPPORTED },
        { GOOD, "", TUTTI_OK },
    };
    size_t i = 1;
    cases[i++].d.key = "1";
    cases[i++].d.numel = 7;
    cases[i++].d.type = "HalfStorage";
    cases[i++].d.numel = -1;
    cases[i++].d.numel = INT64_MAX;
    cases[i++].d.offset = -1;
    cases[i++].d.offset = 1;
    cases[i++].d.offset = INT64_MAX;
    cases[i++].d.stride[0] = 4;
    cases[i++].d.stride[0] = -3;
    cases[i++].d.stride[0] = INT64_MAX;
    cases[i].d.shape[0] = INT64_MAX / 2;
    cases[i++].d.shape[1] = 4;
    cases[i++].d.n_strides = 1;
    cases[i].d.n_dims = 6;
    cases[i++].d.n_strides = 6;
    cases[i++].d.stride[0] = 0;
    cases[i++].d.type = "QInt8Storage";
    cases[i].d.shape[0] = 3; /* turned: it fits */
    cases[i].d.shape[1] = 2;
    cases[i].d.stride[0] = 1;
    cases[i++].d.stride[1] = 3;
    assert_int_equal(i, sizeof cases / sizeof *cases);
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes pickle = { .bytes = "\x80\x02}", .n = 3 };
        struct tutti_error err = { 0 };
        put_tensor(&pickle, "t", &cases[i].d);
        put(&pickle, '.', 1);
        struct bytes b = wrap(&pickle, "x/version", "3\n");
        enum tutti_status st = open_pytorch(&b, &err);
        if (st != cases[i].status || !strstr(err.text, cases[i].words))
            fail_msg("case %zu: status %d, \"%s\", expected %d, \"%s\"", i, st, err.text, cases[i].status,
                     cases[i].words);
    }
}

static void an_odd_archive_of_pytorch_is_told_what_is_wrong(void **state)
{
    (void)state;
    struct tutti_error err;
    struct bytes pickle = { .bytes = "\x80\x02}", .n = 3 };
    put_tensor(&pickle, "t", &GOOD);
    struct bytes twice = pickle;
    put(&pickle, '.', 1);
    struct bytes b = wrap(&pickle, "x/byteorder", "little");
    assert_int_equal(open_pytorch(&b, &err), TUTTI_OK);
    b = wrap(&pickle, "x/byteorder", "big");
    assert_int_equal(open_pytorch(&b, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "byte order \"big\""));
    b = wrap(&pickle, "y/data.pkl", "\x80\x02}.");
    assert_int_equal(open_pytorch(&b, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "one folder with data.pkl"));
    put_tensor(&twice, "t", &GOOD);
    put(&twice, '.', 1);
    b = wrap(&twice, "x/version", "3\n");
    assert_int_equal(open_pytorch(&b, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "duplicate tensor t"));
    struct bytes odd = { .bytes = "\x80\x02}", .n = 3 };
    put_tensor(&odd, "a\nb", &GOOD);
    put(&odd, '.', 1);
    b = wrap(&odd, "x/version", "3\n");
    assert_int_equal(open_pytorch(&b, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "printable"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_pickle_is_told_what_is_wrong),
        cmocka_unit_test(a_pickle_says_what_was_saved),
        cmocka_unit_test(a_pickle_bomb_ends_soon),
        cmocka_unit_test(an_archives_entries_lie_where_they_are_stored),
        cmocka_unit_test(a_broken_archive_is_told_what_is_wrong),
        cmocka_unit_test(sizes_of_64_bits_are_read),
        cmocka_unit_test(a_broken_tensor_of_pytorch_is_told_what_is_wrong),
        cmocka_unit_test(an_odd_archive_of_pytorch_is_told_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
