#include "base/json/json_type.h"

const char *json_type_name(const json_t *value)
{
    static const char *const NAMES[] = { "an object", "a list", "a string", "an integer",
                                         "a number",  "true",   "false",    "null" };
    return value ? NAMES[json_typeof(value)] : "nothing";
}
