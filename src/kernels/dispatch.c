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
        want = CPU_AVX2 | CPU_AVX512 | (all & CPU_BF16);
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
    k->tile[DTYPE_F32] = k->tile[DTYPE_F16] = tile_float_ref;
    k->tile[DTYPE_BF16] = tile_bf16_ref;
#define SET_LINEAR(name, dtype)                                                                              \
    k->tile[dtype] = tile_##name##_ref;                                                                      \
    k->linear[dtype] = linear_##name##_ref;
    FOR_EACH_QUANTIZED(SET_LINEAR)
#undef SET_LINEAR
#define SET_LINEAR(name, dtype)                                                                              \
    k->tile[dtype] = tile_float_ref;                                                                         \
    k->linear[dtype] = linear_##name##_ref;
    FOR_EACH_FLOAT8(SET_LINEAR)
#undef SET_LINEAR
    k->linear[DTYPE_F32] = linear_f32_ref;
    k->linear[DTYPE_F16] = linear_f16_ref;
    k->linear[DTYPE_BF16] = linear_bf16_ref;
    k->rmsnorm = rmsnorm_ref;
    k->layernorm = layernorm_ref;
    k->add = add_ref;
    k->scale_add = scale_add_ref;
    k->silu_mul = silu_mul_ref;
    k->silu_clamped_mul = silu_clamped_mul_ref;
    k->gelu_tanh_mul = gelu_tanh_mul_ref;
    k->gelu_tanh = gelu_tanh_ref;
    k->gelu_sigmoid = gelu_sigmoid_ref;
    k->gelu_erf = gelu_erf_ref;
    k->softcap = softcap_ref;
    k->softmax = softmax_ref;
    k->rope_interleaved = rope_interleaved_ref;
    k->rope_half = rope_half_ref;
    k->attention_f16 = attention_f16_ref;
    k->attention_f32 = attention_f32_ref;
    k->attention_int8 = attention_int8_ref;
    k->attention_merge = attention_merge_ref;
    k->to_int8 = to_int8_ref;
    k->divide = divide_ref;
    k->scan_max = scan_max_ref;
    k->sum_exp = sum_exp_ref;
    k->find_above = find_above_ref;
    k->find_arrival = find_arrival_ref;
    k->to_half = to_half_ref;
    k->lora_down = lora_down_ref;
    k->lora_up = lora_up_ref;
    k->lora_down_half = lora_down_half_ref;
    k->lora_up_half = lora_up_half_ref;
}

#if defined(__x86_64__)
static void init_avx2(struct kernels *k)
{
#define SET_LINEAR(name, dtype)                                                                              \
    k->tile[dtype] = tile_##name##_avx2;                                                                     \
    k->linear[dtype] = linear_##name##_avx2;
    FOR_EACH_QUANTIZED(SET_LINEAR)
#undef SET_LINEAR
#define SET_LINEAR(name, dtype) k->linear[dtype] = linear_##name##_avx2;
    FOR_EACH_FLOAT8(SET_LINEAR)
#undef SET_LINEAR
    k->linear[DTYPE_F32] = linear_f32_avx2;
    k->linear[DTYPE_F16] = linear_f16_avx2;
    k->linear[DTYPE_BF16] = linear_bf16_avx2;
    k->rmsnorm = rmsnorm_avx2;
    k->layernorm = layernorm_avx2;
    k->add = add_avx2;
    k->scale_add = scale_add_avx2;
    k->silu_mul = silu_mul_avx2;
    k->silu_clamped_mul = silu_clamped_mul_avx2;
    k->gelu_tanh_mul = gelu_tanh_mul_avx2;
    k->gelu_tanh = gelu_tanh_avx2;
    k->gelu_sigmoid = gelu_sigmoid_avx2;
    k->gelu_erf = gelu_erf_avx2;
    k->softcap = softcap_avx2;
    k->softmax = softmax_avx2;
    k->rope_interleaved = rope_interleaved_avx2;
    k->rope_half = rope_half_avx2;
    k->attention_f16 = attention_f16_avx2;
    k->attention_f32 = attention_f32_avx2;
    k->attention_int8 = attention_int8_avx2;
    k->attention_merge = attention_merge_avx2;
    k->to_int8 = to_int8_avx2;
    k->divide = divide_avx2;
    k->scan_max = scan_max_avx2;
    k->sum_exp = sum_exp_avx2;
    k->find_above = find_above_avx2;
    k->find_arrival = find_arrival_avx2;
    k->to_half = to_half_avx2;
    k->lora_down = lora_down_avx2;
    k->lora_up = lora_up_avx2;
    k->lora_down_half = lora_down_half_avx2;
    k->lora_up_half = lora_up_half_avx2;
}

static void init_avx512(struct kernels *k)
{
#define SET_LINEAR(name, dtype)                                                                              \
    k->tile[dtype] = tile_##name##_avx512;                                                                   \
    k->linear[dtype] = linear_##name##_avx512;
    FOR_EACH_QUANTIZED(SET_LINEAR)
#undef SET_LINEAR
#define SET_LINEAR(name, dtype) k->linear[dtype] = linear_##name##_avx512;
    FOR_EACH_FLOAT8(SET_LINEAR)
#undef SET_LINEAR
    k->linear[DTYPE_F32] = linear_f32_avx512;
    k->linear[DTYPE_F16] = linear_f16_avx512;
    k->linear[DTYPE_BF16] = linear_bf16_avx512;
    k->rmsnorm = rmsnorm_avx512;
    k->layernorm = layernorm_avx512;
    k->add = add_avx512;
    k->scale_add = scale_add_avx512;
    k->silu_mul = silu_mul_avx512;
    k->silu_clamped_mul = silu_clamped_mul_avx512;
    k->gelu_tanh_mul = gelu_tanh_mul_avx512;
    k->gelu_tanh = gelu_tanh_avx512;
    k->gelu_sigmoid = gelu_sigmoid_avx512;
    k->gelu_erf = gelu_erf_avx512;
    k->softcap = softcap_avx512;
    k->softmax = softmax_avx512;
    k->rope_interleaved = rope_interleaved_avx512;
    k->rope_half = rope_half_avx512;
    k->attention_f16 = attention_f16_avx512;
    k->attention_f32 = attention_f32_avx512;
    k->attention_int8 = attention_int8_avx512;
    k->attention_merge = attention_merge_avx512;
    k->to_int8 = to_int8_avx512;
    k->divide = divide_avx512;
    k->scan_max = scan_max_avx512;
    k->sum_exp = sum_exp_avx512;
    k->find_above = find_above_avx512;
    k->find_arrival = find_arrival_avx512;
    k->to_half = to_half_avx512;
    k->lora_down = lora_down_avx512;
    k->lora_up = lora_up_avx512;
    k->lora_down_half = lora_down_half_avx512;
    k->lora_up_half = lora_up_half_avx512;
}
#endif

#if defined(__x86_64__)
size_t x86_prefetch_bytes;

/* Intel's processors read some lines ahead into L2 by themselves. A prefetch that finds its line there
 * holds a fill buffer of L1 for a short time only, which leaves buffers for the inputs. AMD's
 * processors need a prefetch for the whole latency of memory. Measured: docs/notes/kernels.md. */
static size_t prefetch_distance(void)
{
    enum { INTEL = 2304, OTHERS = 9216 };
    unsigned a, b, c, d;
    bool is_intel = __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && d == signature_INTEL_edx;
    return is_intel ? INTEL : OTHERS;
}
#endif

void kernels_init(struct kernels *k, unsigned cpu)
{
    *k = (struct kernels){ .cpu = cpu };
    init_ref(k);
#if defined(__x86_64__)
    size_t distance = prefetch_distance();
    if (x86_prefetch_bytes != distance) /* other threads may be reading it */
        x86_prefetch_bytes = distance;
    if (cpu & CPU_AVX2)
        init_avx2(k);
    if (cpu & CPU_AVX512)
        init_avx512(k); /* the best comes last */
    if (cpu & CPU_BF16)
        k->linear[DTYPE_BF16] = linear_bf16_avx512bf16;
#endif
}
