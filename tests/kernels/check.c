#include "check.h"

#include "base/half.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *check_bytes(struct check *c, size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (n_bytes + page - 1) / page * page;
    uint8_t *base = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || c->n_memory == (int)(sizeof c->memory / sizeof *c->memory) ||
        mprotect(base + room, page, PROT_NONE) != 0) {
        fprintf(stderr, "checkkernels: no memory\n");
        exit(1);
    }
    memset(base, 0xA5, room);
    c->memory[c->n_memory].base = base;
    c->memory[c->n_memory++].n_bytes = room + page;
    return base + room - n_bytes;
}

float *check_floats(struct check *c, size_t n)
{
    return check_bytes(c, n * sizeof(float));
}

uint32_t check_random(struct check *c)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (uint32_t)(c->random >> 32);
}

static float random_value(struct check *c, enum fill fill)
{
    static const float HOSTILE[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3.4e38f, -3.4e38f, 1e-45f };
    float x = (float)(int32_t)check_random(c) * 0x1p-31f;
    uint32_t pick = check_random(c);
    switch (fill) {
    case FILL_WIDE:
        return ldexpf(x, (int)(pick % 81) - 40);
    case FILL_HUGE:
        return x * 3.4e38f;
    case FILL_DENORMAL:
        return pick % 4 == 0 ? copysignf(0.0f, x) : x * 1e-38f;
    case FILL_HOSTILE:
        return pick % 61 == 0 ? HOSTILE[(pick >> 8) % 8] : x;
    default:
        return x;
    }
}

void check_fill(struct check *c, float *x, size_t n)
{
    static const float MOST[] = { 127, 120, 115 }; /* format_most_input() */
    float equal = random_value(c, FILL_WIDE);
    for (size_t i = 0; i < n; i++) {
        if (c->fill == FILL_EXTREME && i % BLOCK == 0)
            equal = ldexpf(MOST[check_random(c) % 3], (int)(check_random(c) % 5));
        x[i] = c->fill == FILL_EQUAL     ? equal
               : c->fill == FILL_EXTREME ? copysignf(equal, random_value(c, FILL_RANDOM))
                                         : random_value(c, c->fill);
    }
}

bool check_next(struct check *c, any_fn *variant, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->name, sizeof c->name, format, args);
    va_end(args);
    c->has_failed = false;
    for (int i = 0; i < c->n_seen; i++)
        if (c->seen[i] == variant && strcmp(c->seen_name[i], c->name) == 0)
            return false;
    if (c->n_seen == (int)(sizeof c->seen / sizeof *c->seen)) {
        fprintf(stderr, "checkkernels: more than %d variants\n", c->n_seen);
        exit(1);
    }
    c->seen[c->n_seen] = variant;
    strcpy(c->seen_name[c->n_seen++], c->name);
    return c->level != CPU_REF;
}

static void fail(struct check *c, const char *what)
{
    if (!c->has_failed)
        printf("# %s, %s, fill %d: %s\n", c->name, cpu_name(c->level), (int)c->fill, what);
    c->has_failed = true;
}

void check_bits(struct check *c, const float *want, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (float_bits(want[i]) != float_bits(got[i]) && !(isnan(want[i]) && isnan(got[i]))) {
            char what[128];
            snprintf(what, sizeof what, "element %zu of %zu is %a (%g), expected %a (%g)", i, n,
                     (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
            fail(c, what);
            return;
        }
}

void check_same(struct check *c, const void *want, const void *got, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (((const uint8_t *)want)[i] != ((const uint8_t *)got)[i]) {
            char what[128];
            snprintf(what, sizeof what, "byte %zu of %zu is %d, expected %d", i, n_bytes,
                     ((const uint8_t *)got)[i], ((const uint8_t *)want)[i]);
            fail(c, what);
            return;
        }
}

void check_true(struct check *c, bool is_true, const char *what)
{
    if (!is_true)
        fail(c, what);
}

void check_forget(struct check *c)
{
    for (int i = 0; i < c->n_memory; i++)
        munmap(c->memory[i].base, c->memory[i].n_bytes);
    c->n_memory = 0;
}

void check_done(struct check *c)
{
    check_forget(c);
    if (c->has_failed)
        c->n_failed++;
    else
        c->n_passed++;
    c->has_failed = false;
}
