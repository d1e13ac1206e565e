#include "base/json/json_list.h"

json_t *json_list(size_t n, json_item_fn *item, const void *user)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        if (json_array_append_new(list, item(user, i)) != 0) { /* also if the item is NULL */
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *integer_at(const void *user, size_t index)
{
    return json_integer(((const int64_t *)user)[index]);
}

json_t *json_integers(const int64_t *values, size_t n)
{
    return json_list(n, integer_at, values);
}
