/* Chooses the kernels for this processor. */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "kernels/vector/vector.h"
#if defined(__x86_64__)
#include "kernels/x86/x86.h"

#include <cpuid.h>
#elif defined(__aarch64__)
#include "kernels/arm/arm.h"
#endif

#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
/* State components that the operating system saves: SSE and AVX; opmask, upper halves and upper registers; tiles. */
enum { XCR0_AVX = 0x06, XCR0_AVX512 = 0xE6, XCR0_AMX = 0x60000 };

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

/* AMD's family; of those with AVX-512, 25 is Zen 4, and 26 and later ones have whole units. 0: another vendor. */
static unsigned amd_family(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    unsigned family = a >> 8 & 15, extended = a >> 20 & 255;
    return family + (family == 15 ? extended : 0);
}

/* Whether the processor multiplies tiles of bytes, and Linux permits this process to use them; requests that permission. */
static bool has_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };      /* older headers of compilers lack their names */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(d, AMX_TILE | AMX_INT8))
        return false;
#if defined(__linux__)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* GFNI, which unpacks weights in the kernels of CPU_SPLIT and CPU_PAIRED. */
static bool has_bit_matrices(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has(c, bit_GFNI);
}

unsigned cpu_runnable(void)
{
    unsigned cpu = cpu_detect();
    return (cpu & CPU_AVX512) && has_bit_matrices() ? cpu | CPU_SPLIT | CPU_PAIRED : cpu;
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
    if (cpu & CPU_AVX512)
        cpu |= CPU_AVXVNNI;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        if ((cpu & CPU_AVX512) && has(a, bit_AVX512BF16))
            cpu |= CPU_BF16;
        if (has(a, bit_AVXVNNI))
            cpu |= CPU_AVXVNNI | CPU_VEX;
    }
    if ((cpu & CPU_AVX512) && has_bit_matrices()) {
        unsigned family = amd_family();
        cpu |= family == 25 ? CPU_SPLIT : family > 25 ? CPU_PAIRED : 0;
    }
    if ((cpu & CPU_AVX512) && has(xcr0, XCR0_AMX) && has_tiles())
        cpu = (cpu & ~(unsigned)(CPU_SPLIT | CPU_PAIRED)) | CPU_AMX; /* which read other input rows */
    return cpu;
}
#elif defined(__aarch64__)
unsigned cpu_detect(void)
{
    return arm_detect();
}

unsigned cpu_runnable(void)
{
    return cpu_detect();
}
#else
unsigned cpu_detect(void)
{
    return CPU_REF;
}

unsigned cpu_runnable(void)
{
    return CPU_REF;
}
#endif

/* The levels by name, of each architecture from the lowest on. */
static const struct {
    const char *name;
    unsigned bits, further; /* further: used where the processor has them */
} LEVELS[] = {
    { "ref", CPU_REF, 0 },
    { "avx2", CPU_AVX2, 0 },
    { "avxvnni", CPU_AVX2 | CPU_AVXVNNI, CPU_VEX },
    { "avx512", CPU_AVX2 | CPU_AVX512, CPU_BF16 | CPU_SPLIT | CPU_PAIRED },
    { "amx", CPU_AVX2 | CPU_AVX512 | CPU_AMX, CPU_BF16 },
    { "neon", CPU_NEON, 0 },
    { "dotprod", CPU_NEON | CPU_DOTPROD, 0 },
    { "i8mm", CPU_NEON | CPU_DOTPROD | CPU_I8MM, 0 },
};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

const char *cpu_name(unsigned cpu)
{
    int best = 0;
    for (int i = 0; i < N_LEVELS; i++)
        best = (LEVELS[i].bits & ~cpu) == 0 ? i : best;
    return LEVELS[best].name;
}

enum tutti_status cpu_find(unsigned *out, const char *name, struct tutti_error *err)
{
    const char *origin = "cpu";
    if (!name) {
        name = getenv("TUTTI_CPU");
        origin = "TUTTI_CPU";
    }
    unsigned all = cpu_detect();
    if (!name || name[0] == '\0') {
        *out = all;
        return TUTTI_OK;
    }
    int i = 0;
    while (i < N_LEVELS && strcmp(name, LEVELS[i].name) != 0)
        i++;
    if (i == N_LEVELS)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s: \"%s\", expected \"ref\", \"avx2\", \"avxvnni\", \"avx512\", \"amx\", "
                         "\"neon\", \"dotprod\" or \"i8mm\"",
                         origin, name);
    if ((LEVELS[i].bits & ~all) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: \"%s\", but this processor offers \"%s\" at most",
                         origin, name, cpu_name(all));
    *out = LEVELS[i].bits | (all & LEVELS[i].further);
    return TUTTI_OK;
}

static void init_ref(struct kernels *k)
{
    SET_VARIANT(ref)
    k->tile[DTYPE_F32] = k->tile[DTYPE_F16] = tile_float_ref;
    k->tile[DTYPE_F8_BLOCK] = k->tile[DTYPE_F8_ROW] = tile_float_ref;
    k->tile[DTYPE_BF16] = tile_bf16_ref;
}

struct prefetch_distance weights_ahead, weights_ahead_many;

#if defined(__x86_64__)
/* A prefetch that finds its line in L2 holds a fill buffer of L1 for a short time only, which leaves buffers for the
 * inputs. Intel's processors and Zen 4 read some lines ahead into L2 by themselves; on Intel's, whose fill buffers the other
 * thread of a core takes a part of, prefetches into L2 bring more. AMD's other processors need a prefetch for
 * the whole latency of memory. Measured: docs/notes/kernels.md. */
static struct prefetch_distance prefetch_distance(bool is_many)
{
    unsigned a, b, c, d;
    bool is_intel = __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && d == signature_INTEL_edx;
    if (is_intel)
        return (struct prefetch_distance){ .all = 1152, .l2 = 3456 };
    if (cpu_detect() & CPU_SPLIT)
        return is_many ? (struct prefetch_distance){ .all = 576, .l2 = 6912 }
                       : (struct prefetch_distance){ .all = 2304 };
    return (struct prefetch_distance){ .all = 9216 };
}

static void init_fast(struct kernels *k)
{
    if (k->cpu & CPU_AVX2) {
        SET_VARIANT(avx2)
    }
    if (k->cpu & CPU_VEX) {
        FOR_EACH_QUANTIZED(SET_LINEAR, vex)
    } else if (k->cpu & CPU_AVXVNNI) {
        FOR_EACH_QUANTIZED(SET_LINEAR, evex)
    }
    if (k->cpu & CPU_AVX512) { /* the best comes last */
        SET_VARIANT(avx512)
    }
    if (k->cpu & CPU_SPLIT) {
        FOR_EACH_QUANTIZED(SET_LINEAR, avx512split)
        FOR_EACH_PAIRED(SET_TILE, avx512split)
    }
    if (k->cpu & CPU_PAIRED) {
        FOR_EACH_PAIRED(SET_INTEGER_LINEAR, avx512paired)
    }
    if (k->cpu & CPU_AMX) {
        FOR_EACH_QUANTIZED(SET_LINEAR, amx)
    }
    if (k->cpu & CPU_BF16)
        k->linear[DTYPE_BF16] = linear_bf16_avx512bf16;
}
#elif defined(__aarch64__)
/* Not measured. Long enough for the latency of memory at the speed of one core. */
static struct prefetch_distance prefetch_distance(bool is_many)
{
    (void)is_many;
    return (struct prefetch_distance){ .all = 4608 };
}

static void init_fast(struct kernels *k)
{
    if (k->cpu & CPU_NEON) {
        SET_VARIANT(neon)
    }
    if (k->cpu & CPU_DOTPROD) {
        FOR_EACH_QUANTIZED(SET_LINEAR, dotprod)
    }
    if (k->cpu & CPU_I8MM) {
        FOR_EACH_QUANTIZED(SET_LINEAR, i8mm)
    }
}
#else
static struct prefetch_distance prefetch_distance(bool is_many)
{
    (void)is_many;
    return (struct prefetch_distance){ 0 };
}

static void init_fast(struct kernels *k)
{
    (void)k;
}
#endif

void kernels_init(struct kernels *k, unsigned cpu)
{
    *k = (struct kernels){ .cpu = cpu };
    init_ref(k);
    if (weights_ahead.all == 0) { /* only the first time: other threads may be reading them */
        weights_ahead = prefetch_distance(false);
        weights_ahead_many = prefetch_distance(true);
    }
    init_fast(k);
}
