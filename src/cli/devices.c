/* tutti devices: shows what can compute on this machine. */
#include "base/json/json_list.h"
#include "base/system/memory_left.h"
#include "cli/options/command.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "tutti.h"

#include <stdio.h>

enum { MOST_DEVICES = 64 };

struct devices_values {
    bool json;
};

#define VALUES struct devices_values
static const struct option OPTIONS[] = {
    FLAG_OPTION(VALUES, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { .title = NULL },
};

/* A version as the driver has it. text: at least 16 bytes. Returns text. */
static const char *write_version(char *text, int major, int minor)
{
    snprintf(text, 16, "%d.%d", major, minor);
    return text;
}

static json_t *device_json(const void *user, size_t index)
{
    const struct tutti_device *d = &((const struct tutti_device *)user)[index];
    char capability[16], driver[16];
    const struct json_member members[] = {
        { "device", json_string(d->id) },
        { "name", json_string(d->name) },
        { "compute_capability",
          json_string(write_version(capability, d->capability / 10, d->capability % 10)) },
        { "kernels", d->kernel_level > 0 ? json_integer(d->kernel_level) : json_null() },
        { "cuda", json_string(write_version(driver, d->driver / 1000, d->driver % 1000 / 10)) },
        { "multiprocessors", json_integer(d->n_multiprocessors) },
        { "clock_mhz", d->clock_mhz > 0 ? json_integer(d->clock_mhz) : json_null() },
        { "memory_gbps", d->memory_gbps > 0 ? json_real(d->memory_gbps) : json_null() },
        { "memory_bytes", json_integer((json_int_t)d->memory_bytes) },
        { "free_bytes", d->free_bytes > 0 ? json_integer((json_int_t)d->free_bytes) : json_null() },
    };
    return JSON_MEMBERS(members);
}

/* why: why there is none. */
static void print_json(const struct tutti_device *devices, int n, const char *why)
{
    const struct json_member members[] = {
        { "devices", json_list((size_t)n, device_json, devices) },
        { "missing", n > 0 ? json_null() : json_string(why) },
        { "cpu_free_bytes", json_integer((json_int_t)memory_left("")) },
    };
    json_t *root = JSON_MEMBERS(members);
    output_json(root, true); /* NULL: fails, which output_flush() reports */
    json_decref(root);
}

static void print_table(const struct tutti_device *devices, int n, const char *why)
{
    char memory[NUMBER_SIZE_BYTES], left[NUMBER_SIZE_BYTES], level[32];
    output_printf("%-8s %-32s %10s %10s  %-10s %-5s %s\n", "device", "name", "memory", "free", "capability",
                  "CUDA", "kernels");
    for (int i = 0; i < n; i++) {
        const struct tutti_device *d = &devices[i];
        snprintf(level, sizeof level, "level %d", d->kernel_level);
        output_printf("%-8s %-32s %10s %10s  %2d.%-7d %2d.%-2d %s\n", d->id, d->name,
                      number_write_size(memory, d->memory_bytes),
                      d->free_bytes > 0 ? number_write_size(left, d->free_bytes) : "not known",
                      d->capability / 10, d->capability % 10, d->driver / 1000, d->driver % 1000 / 10,
                      d->kernel_level > 0 ? level : "none");
    }
    output_printf("%-8s %-32s %10s %10s\n", "cpu", "the processor", "",
                  number_write_size(left, memory_left("")));
    if (n == 0)
        output_printf("\nNo cards: %s\n", why);
}

static enum tutti_status run_devices(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct devices_values *values = v;
    struct tutti_device devices[MOST_DEVICES];
    struct tutti_error why = { 0 };
    int n = 0;
    (void)operands;
    enum tutti_status st = tutti_devices(devices, MOST_DEVICES, &n, &why);
    if (st != TUTTI_OK && st != TUTTI_E_UNSUPPORTED) { /* a card that is there and fails */
        *err = why;
        return st;
    }
    values->json ? print_json(devices, n, why.text) : print_table(devices, n, why.text);
    return TUTTI_OK;
}

const struct command COMMAND_DEVICES = {
    .name = "devices",
    .summary = "show the cards of this machine",
    .about = "Prints for each card, as --device takes it: its name, its memory and what is free of it, its "
             "compute "
             "capability, the CUDA version that the driver is for, and the level of the kernels that would "
             "run on it "
             "(none: the card is too old, or this build has no kernels). Without a card it says why. tutti "
             "--list-devices is the same.",
    .example = "tutti devices",
    .options = OPTION_SET(GROUPS, "", 0, 0, ""),
    .values_bytes = sizeof(struct devices_values),
    .run = run_devices,
};
