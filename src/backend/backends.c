/* The registry of backends: a device is a subfolder and a line here. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

const char *const DEVICE_NAMES[] = { "cpu", NULL };

/* In the order of DEVICE_NAMES. */
static const struct device {
    enum tutti_status (*open)(struct backend **out, const struct backend_options *options,
                              struct tutti_error *err);
    const struct backend_caps *caps;
} DEVICES[] = { { backend_cpu_new, &CPU_CAPS } };
_Static_assert(sizeof DEVICES / sizeof *DEVICES + 1 == sizeof DEVICE_NAMES / sizeof *DEVICE_NAMES,
               "one for each name");

/* NULL: not found. */
static const struct device *find_device(const char *name)
{
    for (int i = 0; DEVICE_NAMES[i]; i++)
        if (!name || strcmp(name, DEVICE_NAMES[i]) == 0)
            return &DEVICES[i];
    return NULL;
}

const struct backend_caps *backend_caps_of(const char *device)
{
    const struct device *found = find_device(device);
    return found ? found->caps : NULL;
}

enum tutti_status backend_open(struct backend **out, const char *device,
                               const struct backend_options *options, struct tutti_error *err)
{
    char known[64] = "";
    const struct device *found = find_device(device);
    if (found)
        return found->open(out, options, err);
    for (int i = 0; DEVICE_NAMES[i]; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i > 0 ? ", " : "",
                 DEVICE_NAMES[i]);
    return error_set_param(err, TUTTI_E_ARGUMENT, "device", "device \"%.32s\", expected %s", device, known);
}
