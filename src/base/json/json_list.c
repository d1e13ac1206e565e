#include "base/json/json_list.h"

#include <stdbool.h>

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

json_t *json_members(const struct json_member *members, size_t n)
{
    json_t *made = json_object();
    bool ok = made != NULL;
    for (size_t i = 0; i < n; i++)
        ok = json_object_set_new(made, members[i].name, members[i].value) == 0 && ok;
    if (ok)
        return made;
    json_decref(made);
    return NULL;
}

json_t *json_merge(json_t *object, json_t *more)
{
    bool ok = object && more && json_object_update(object, more) == 0;
    json_decref(more);
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}
