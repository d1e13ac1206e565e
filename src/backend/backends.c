/* The registry of backends: a device is a subfolder and a line here. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

const char *const DEVICE_NAMES[] = { "cpu", NULL };

/* In the order of DEVICE_NAMES. */
static enum tutti_status (*const OPEN[])(struct backend **out, const struct backend_options *options,
                                         struct tutti_error *err) = { backend_cpu_new };
_Static_assert(sizeof OPEN / sizeof *OPEN + 1 == sizeof DEVICE_NAMES / sizeof *DEVICE_NAMES,
               "one for each name");

enum tutti_status backend_open(struct backend **out, const char *device,
                               const struct backend_options *options, struct tutti_error *err)
{
    char known[64] = "";
    for (int i = 0; DEVICE_NAMES[i]; i++) {
        if (!device || strcmp(device, DEVICE_NAMES[i]) == 0)
            return OPEN[i](out, options, err);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i > 0 ? ", " : "",
                 DEVICE_NAMES[i]);
    }
    return error_set_param(err, TUTTI_E_ARGUMENT, "device", "device \"%.32s\", expected %s", device, known);
}
