/* Growable arrays, JSON arrays, and the ends of strings. */
#include "base/containers/array.h"
#include "base/containers/key_map.h"
#include "base/json/json_list.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void an_array_grows_and_keeps_its_items(void **state)
{
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0, n_moves = 0;
    for (size_t n = 0; n < 1000; n++) {
        size_t before = capacity;
        assert_true(array_grow(&items, n, &capacity, sizeof *items));
        assert_true(n < capacity);
        n_moves += capacity != before;
        items[n] = (uint32_t)n * 7;
    }
    assert_int_equal(n_moves, 7); /* 16, 32, ... 1,024: the cost of an item is constant */
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], i * 7);
    free(items);
}

static void a_map_finds_all_numbers_of_a_key_and_no_others(void **state)
{
    (void)state;
    struct key_map map = { 0 };
    assert_int_equal(key_map_find(&map, 7), -1);
    for (int32_t i = 0; i < 3000; i++) /* keys with the same slot, and each key three times */
        assert_true(key_map_add(&map, (uint64_t)(i / 3) << 32, i));
    for (int32_t key = 0; key < 1000; key++) {
        uint64_t at = (uint64_t)key << 32;
        int sum = 0;
        for (int n = 0; n < 3; n++)
            sum += key_map_next(&map, (uint64_t)key << 32, &at);
        assert_int_equal(sum, 3 * 3 * key + 3);
        assert_int_equal(key_map_next(&map, (uint64_t)key << 32, &at), -1);
    }
    assert_int_equal(key_map_find(&map, (uint64_t)1000 << 32), -1);
    assert_int_equal(key_map_find(&map, 1), -1);
    key_map_clear(&map);
    assert_int_equal(key_map_find(&map, 0), -1);
}

static void an_array_that_cannot_grow_is_unchanged(void **state)
{
    (void)state;
    uint64_t *items = NULL, *before;
    size_t capacity = 0;
    assert_true(array_grow(&items, 0, &capacity, sizeof *items));
    items[0] = 5;
    before = items;
    assert_false(array_grow(&items, capacity, &capacity, SIZE_MAX / 4)); /* the bytes overflow */
    assert_ptr_equal(items, before);
    assert_int_equal(capacity, 16);
    assert_int_equal(items[0], 5);
    free(items);
    char *none = NULL;
    size_t most = SIZE_MAX / 2 + 1; /* the capacity overflows */
    assert_false(array_grow(&none, most, &most, 1));
    assert_null(none);
    assert_int_equal(most, SIZE_MAX / 2 + 1);
}

static json_t *square(const void *user, size_t index)
{
    const size_t *fails_at = user;
    return index == *fails_at ? NULL : json_integer((json_int_t)(index * index));
}

static void a_list_has_its_items_or_is_none(void **state)
{
    (void)state;
    static const int64_t NUMBERS[] = { INT64_MIN, 0, INT64_MAX };
    size_t never = 99, third = 2;
    json_t *list = json_list(4, square, &never);
    assert_int_equal(json_array_size(list), 4);
    assert_int_equal(json_integer_value(json_array_get(list, 3)), 9);
    json_decref(list);
    list = json_list(0, square, &never);
    assert_true(json_is_array(list));
    assert_int_equal(json_array_size(list), 0);
    json_decref(list);
    assert_null(json_list(4, square, &third));
    list = json_integers(NUMBERS, 3);
    assert_int_equal(json_array_size(list), 3);
    assert_true(json_integer_value(json_array_get(list, 0)) == INT64_MIN);
    assert_true(json_integer_value(json_array_get(list, 2)) == INT64_MAX);
    json_decref(list);
}

static void ends_are_compared(void **state)
{
    (void)state;
    assert_true(text_ends_with("model.ckpt", ".ckpt"));
    assert_true(text_ends_with(".ckpt", ".ckpt"));
    assert_true(text_ends_with("", ""));
    assert_false(text_ends_with("ckpt", ".ckpt"));
    assert_false(text_ends_with("model.ckpt.json", ".ckpt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_array_grows_and_keeps_its_items),
        cmocka_unit_test(a_map_finds_all_numbers_of_a_key_and_no_others),
        cmocka_unit_test(an_array_that_cannot_grow_is_unchanged),
        cmocka_unit_test(a_list_has_its_items_or_is_none),
        cmocka_unit_test(ends_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
