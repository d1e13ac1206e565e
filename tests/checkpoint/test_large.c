/* Files above 4 GiB with tensors of more than 2^31 elements. They are sparse: they take no room. */
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/tensor_set.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_ROWS  INT64_C(5)
#define N_COLS  (INT64_C(1) << 30)
#define N_ELEMS (N_ROWS * N_COLS)

struct bytes {
    uint8_t bytes[1024];
    size_t n;
};

static void put(struct bytes *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        b->bytes[b->n++] = i < 8 ? (uint8_t)(value >> (8 * i)) : 0;
}

static void put_text(struct bytes *b, const char *text)
{
    memcpy(b->bytes + b->n, text, strlen(text));
    b->n += strlen(text);
}

/* head, N_ELEMS bytes of which the last is 77, tail; opened, and the one tensor checked. */
static void check(const struct bytes *head, const struct bytes *tail)
{
    char path[] = "/tmp/tutti-large-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    off_t end = (off_t)head->n + N_ELEMS;
    assert_int_equal(ftruncate(fd, end + (off_t)tail->n), 0);
    assert_int_equal(pwrite(fd, head->bytes, head->n, 0), head->n);
    assert_int_equal(pwrite(fd, tail->bytes, tail->n, end), tail->n);
    assert_int_equal(pwrite(fd, "M", 1, end - 1), 1);
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = tensor_set_open(&file, path, &err);
    unlink(path);
    if (st != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_int_equal(file->n, 1);
    const struct tensor *t = &file->tensors[0];
    assert_string_equal(t->name, "big");
    assert_int_equal(t->n_dims, 2);
    assert_true(t->shape[0] == N_ROWS && t->shape[1] == N_COLS && t->n_bytes == (size_t)N_ELEMS);
    assert_non_null(t->data);
    assert_int_equal(((const uint8_t *)t->data)[N_ELEMS - 1], 'M');
    assert_int_equal(((const uint8_t *)t->data)[0], 0);
    tensor_forget(t);
    assert_int_equal(((const uint8_t *)t->data)[N_ELEMS - 1], 'M');
    tensor_set_close(file);
    /* One byte less: the tensor does not fit. */
    assert_int_equal(ftruncate(fd, end - 1), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(tensor_set_open(&file, path, &err), TUTTI_E_FORMAT);
    assert_true(err.text[0] != '\0');
    close(fd);
}

static void a_large_safetensors_file_is_read(void **state)
{
    (void)state;
    struct bytes head = { .n = 8 }, tail = { .n = 0 };
    put_text(&head, "{\"big\":{\"dtype\":\"I8\",\"shape\":[5,1073741824],\"data_offsets\":[0,5368709120]}}");
    head.bytes[0] = (uint8_t)(head.n - 8);
    check(&head, &tail);
}

static void a_large_gguf_file_is_read(void **state)
{
    (void)state;
    struct bytes head = { .n = 0 }, tail = { .n = 0 };
    put_text(&head, "GGUF");
    put(&head, 3, 4);
    put(&head, 1, 8);
    put(&head, 0, 8);
    put(&head, 3, 8);
    put_text(&head, "big");
    put(&head, 2, 4);
    put(&head, (uint64_t)N_COLS, 8);
    put(&head, (uint64_t)N_ROWS, 8);
    put(&head, 24, 4); /* I8 */
    put(&head, 0, 8);
    head.n = (head.n + 31) / 32 * 32;
    check(&head, &tail);
}

static void put_varint(struct bytes *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put(b, (value & 0x7F) | 0x80, 1);
    put(b, value, 1);
}

static void a_large_mindspore_file_is_read(void **state)
{
    (void)state;
    struct bytes head = { .n = 0 }, tensor = { .n = 0 }, value = { .n = 0 }, tail = { .n = 0 };
    put(&tensor, 1 << 3, 1);
    put_varint(&tensor, (uint64_t)N_ROWS);
    put(&tensor, 1 << 3, 1);
    put_varint(&tensor, (uint64_t)N_COLS);
    put_text(&tensor, "\x12\x04Int8\x1A");
    put_varint(&tensor, (uint64_t)N_ELEMS);
    put_text(&value, "\x0A\x03"
                     "big\x12");
    put_varint(&value, tensor.n + (uint64_t)N_ELEMS);
    put(&head, 0x0A, 1);
    put_varint(&head, value.n + tensor.n + (uint64_t)N_ELEMS);
    memcpy(head.bytes + head.n, value.bytes, value.n);
    memcpy(head.bytes + head.n + value.n, tensor.bytes, tensor.n);
    head.n += value.n + tensor.n;
    check(&head, &tail);
}

/* is_central: sizes and offset stand in the extra field. */
static void put_entry(struct bytes *b, bool is_central, const char *name, uint64_t n_data, uint64_t offset)
{
    put(b, is_central ? 0x02014B50 : 0x04034B50, 4);
    put(b, 45, is_central ? 4 : 2);
    put(b, 0, 12);
    put(b, UINT32_MAX, 4);
    put(b, UINT32_MAX, 4);
    put(b, strlen(name), 2);
    put(b, is_central ? 28 : 20, 2);
    if (is_central) {
        put(b, 0, 10);
        put(b, UINT32_MAX, 4);
    }
    put_text(b, name);
    put(b, 1, 2);
    put(b, is_central ? 24 : 16, 2);
    put(b, n_data, 8);
    put(b, n_data, 8);
    if (is_central)
        put(b, offset, 8);
}

static void a_large_pytorch_file_is_read(void **state)
{
    (void)state;
    static const char PICKLE[] =
        "\x80\x02}U\x03"
        "bigctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nCharStorage\nU\x01"
        "0U\x03"
        "cpu"
        "\x8A\x05\x00\x00\x00\x40\x01tQK\x00K\x05J\x00\x00\x00\x40\x86J\x00\x00\x00\x40K\x01\x86\x89}tRs.";
    struct bytes head = { .n = 0 }, tail = { .n = 0 };
    put_entry(&head, false, "x/data.pkl", sizeof PICKLE - 1, 0);
    memcpy(head.bytes + head.n, PICKLE, sizeof PICKLE - 1);
    head.n += sizeof PICKLE - 1;
    uint64_t local = head.n;
    put_entry(&head, false, "x/data/0", (uint64_t)N_ELEMS, 0);
    uint64_t central = head.n + (uint64_t)N_ELEMS;
    put_entry(&tail, true, "x/data.pkl", sizeof PICKLE - 1, 0);
    put_entry(&tail, true, "x/data/0", (uint64_t)N_ELEMS, local);
    uint64_t central_bytes = tail.n;
    put(&tail, 0x06064B50, 4);
    put(&tail, 44, 8);
    put(&tail, 45, 4);
    put(&tail, 0, 8);
    put(&tail, 2, 8);
    put(&tail, 2, 8);
    put(&tail, central_bytes, 8);
    put(&tail, central, 8);
    put(&tail, 0x07064B50, 4);
    put(&tail, 0, 4);
    put(&tail, central + central_bytes, 8);
    put(&tail, 1, 4);
    put(&tail, 0x06054B50, 4);
    put(&tail, 0, 4);
    put(&tail, UINT32_MAX, 4);
    put(&tail, UINT64_MAX, 8);
    put(&tail, 0, 2);
    check(&head, &tail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_safetensors_file_is_read),
        cmocka_unit_test(a_large_gguf_file_is_read),
        cmocka_unit_test(a_large_mindspore_file_is_read),
        cmocka_unit_test(a_large_pytorch_file_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
