#include "base/json/json_type.h"

#include <math.h>

const char *json_type_name(const json_t *value)
{
    static const char *const NAMES[] = { "an object", "a list", "a string", "an integer",
                                         "a number",  "true",   "false",    "null" };
    if (json_is_real(value) && fabs(json_real_value(value)) >= 0x1p63)
        return "a number beyond 64 bits"; /* json_load_wide() may have read an integer */
    return value ? NAMES[json_typeof(value)] : "nothing";
}
