/* Chooses the kernels for this processor. */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#if defined(__x86_64__)
#include "kernels/x86/x86.h"

#include <cpuid.h>
#endif

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
/* State components that the operating system saves: SSE and AVX; opmask, upper halves and upper registers. */
enum { XCR0_AVX = 0x06, XCR0_AVX512 = 0xE6 };

static unsigned read_xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

/* The one kind of AMD's family 25 with AVX-512. */
static bool is_zen4(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    unsigned family = a >> 8 & 15, extended = a >> 20 & 255;
    return family + (family == 15 ? extended : 0) == 25;
}

unsigned cpu_detect(void)
{
    unsigned a, b, c, d, cpu = CPU_REF;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return cpu;
    unsigned xcr0 = read_xcr0();
    if (!has(xcr0, XCR0_AVX) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2))
        return cpu;
    cpu |= CPU_AVX2;
    if (has(xcr0, XCR0_AVX512) && has(b, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL) &&
        has(c, bit_AVX512VNNI))
        cpu |= CPU_AVX512;
    if ((cpu & CPU_AVX512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, bit_AVX512BF16))
        cpu |= CPU_BF16;
    if ((cpu & CPU_AVX512) && is_zen4())
        cpu |= CPU_SPLIT;
    return cpu;
}
#else
unsigned cpu_detect(void)
{
    return CPU_REF;
}
#endif

const char *cpu_name(unsigned cpu)
{
    return cpu & CPU_AVX512 ? "avx512" : cpu & CPU_AVX2 ? "avx2" : "ref";
}

enum tutti_status cpu_find(unsigned *out, const char *name, struct tutti_error *err)
{
    const char *origin = "cpu";
    if (!name) {
        name = getenv("TUTTI_CPU");
        origin = "TUTTI_CPU";
    }
    unsigned all = cpu_detect(), want;
    if (!name || name[0] == '\0')
        want = all;
    else if (strcmp(name, "ref") == 0)
        want = CPU_REF;
    else if (strcmp(name, "avx2") == 0)
        want = CPU_AVX2;
    else if (strcmp(name, "avx512") == 0)
        want = CPU_AVX2 | CPU_AVX512 | (all & (CPU_BF16 | CPU_SPLIT));
    else
        return error_set(err, TUTTI_E_ARGUMENT, "%s: \"%s\", expected \"ref\", \"avx2\" or \"avx512\"",
                         origin, name);
    if ((want & ~all) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: \"%s\", but this processor offers \"%s\" at most",
                         origin, name, cpu_name(all));
    *out = want;
    return TUTTI_OK;
}

static void init_ref(struct kernels *k)
{
    SET_VARIANT(ref)
    k->tile[DTYPE_F32] = k->tile[DTYPE_F16] = tile_float_ref;
    k->tile[DTYPE_F8_BLOCK] = k->tile[DTYPE_F8_ROW] = tile_float_ref;
    k->tile[DTYPE_BF16] = tile_bf16_ref;
}

#if defined(__x86_64__)
static void init_avx2(struct kernels *k)
{
    SET_VARIANT(avx2)
}

static void init_avx512(struct kernels *k)
{
    SET_VARIANT(avx512)
}

static void init_split(struct kernels *k)
{
#define SET_SPLIT(name, dtype) k->linear[dtype] = linear_##name##_avx512split;
    FOR_EACH_QUANTIZED(SET_SPLIT)
#undef SET_SPLIT
}
#endif

#if defined(__x86_64__)
size_t weights_ahead_bytes;

/* Intel's processors read some lines ahead into L2 by themselves. A prefetch that finds its line there
 * holds a fill buffer of L1 for a short time only, which leaves buffers for the inputs; so it is with Zen 4.
 * AMD's other processors need a prefetch for the whole latency of memory. Measured: docs/notes/kernels.md. */
static size_t prefetch_distance(void)
{
    enum { SHORT = 2304, LONG = 9216 };
    unsigned a, b, c, d;
    bool is_intel = __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && d == signature_INTEL_edx;
    return is_intel || (cpu_detect() & CPU_SPLIT) ? SHORT : LONG;
}
#endif

void kernels_init(struct kernels *k, unsigned cpu)
{
    *k = (struct kernels){ .cpu = cpu };
    init_ref(k);
#if defined(__x86_64__)
    size_t distance = prefetch_distance();
    if (weights_ahead_bytes != distance) /* other threads may be reading it */
        weights_ahead_bytes = distance;
    if (cpu & CPU_AVX2)
        init_avx2(k);
    if (cpu & CPU_AVX512)
        init_avx512(k); /* the best comes last */
    if (cpu & CPU_SPLIT)
        init_split(k);
    if (cpu & CPU_BF16)
        k->linear[DTYPE_BF16] = linear_bf16_avx512bf16;
#endif
}
