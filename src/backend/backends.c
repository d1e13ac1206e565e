/* The registry of backends: a device is a subfolder and a line here. */
#include "backend/cpu/cpu_open.h"

#include "backend/cuda/cuda_open.h"
#include "backend/mixed/mixed_open.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const DEVICE_NAMES[] = { "cpu", "cuda", "auto", NULL };

/* ordinal: the device's number; -1: none was given. */
typedef enum tutti_status open_fn(struct backend **out, int ordinal, const struct backend_options *options,
                                  struct tutti_error *err);

static enum tutti_status open_cpu(struct backend **out, int ordinal, const struct backend_options *options,
                                  struct tutti_error *err)
{
    if (ordinal > 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "device",
                               "device cpu:%d: all processors are device cpu", ordinal);
    return backend_cpu_new(out, options, err);
}

/* A card, or a card and the CPU together. */
static enum tutti_status open_cuda(struct backend **out, int ordinal, const struct backend_options *options,
                                   struct tutti_error *err)
{
    return options->placement ? backend_mixed_new(out, ordinal, options, err)
                              : backend_cuda_new(out, ordinal, options, err);
}

/* The card, if there is one. */
static enum tutti_status open_auto(struct backend **out, int ordinal, const struct backend_options *options,
                                   struct tutti_error *err)
{
    struct tutti_error why = { 0 };
    if (ordinal < 0 && backend_cuda_new(out, CUDA_ANY_CARD, options, &why) == TUTTI_OK)
        return TUTTI_OK;
    if (ordinal >= 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "device",
                               "device auto:%d: a number needs the device's name", ordinal);
    log_info("device auto: the CPU computes (%s)", why.text);
    return backend_cpu_new(out, options, err);
}

/* In the order of DEVICE_NAMES. */
static const struct device {
    open_fn *open;
    const struct backend_caps *caps;
} DEVICES[] = { { open_cpu, &CPU_CAPS }, { open_cuda, &CUDA_CAPS }, { open_auto, &CPU_CAPS } };
_Static_assert(sizeof DEVICES / sizeof *DEVICES + 1 == sizeof DEVICE_NAMES / sizeof *DEVICE_NAMES,
               "one for each name");

/* NULL: not found. *ordinal: the number after the name; -1: none. */
static const struct device *find_device(const char *name, int *ordinal)
{
    *ordinal = -1;
    if (!name)
        return &DEVICES[0];
    const char *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    if (colon) {
        size_t n_digits = strspn(colon + 1, "0123456789");
        if (n_digits == 0 || n_digits > 4 || colon[1 + n_digits] != '\0')
            return NULL;
        *ordinal = atoi(colon + 1);
    }
    for (int i = 0; DEVICE_NAMES[i]; i++)
        if (strlen(DEVICE_NAMES[i]) == n && memcmp(name, DEVICE_NAMES[i], n) == 0)
            return &DEVICES[i];
    return NULL;
}

enum tutti_status backend_devices(struct tutti_device *out, int max, int *n, struct tutti_error *err)
{
    return cuda_devices(out, max, n, err);
}

const struct backend_caps *backend_caps_of(const char *device)
{
    int ordinal;
    const struct device *found = find_device(device, &ordinal);
    return found ? found->caps : NULL;
}

bool backend_is_card(const char *device)
{
    int ordinal;
    const struct device *found = find_device(device, &ordinal);
    return found && found->open == open_cuda;
}

enum tutti_status backend_open(struct backend **out, const char *device,
                               const struct backend_options *options, struct tutti_error *err)
{
    char known[64] = "";
    int ordinal;
    const struct device *found = find_device(device, &ordinal);
    if (found)
        return found->open(out, ordinal, options, err);
    for (int i = 0; DEVICE_NAMES[i]; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i > 0 ? ", " : "",
                 DEVICE_NAMES[i]);
    return error_set_param(err, TUTTI_E_ARGUMENT, "device", "device \"%.32s\", expected %s", device, known);
}
