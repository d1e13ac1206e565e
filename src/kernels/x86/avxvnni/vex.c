/* AVX-VNNI: vpdpbusd of 256 bits in the encoding of processors without AVX-512. */
#include <immintrin.h>

#define IS_VNNI             1
#define DOT                 "%{vex%} vpdpbusd"
#define dot_four(sum, w, q) _mm256_dpbusd_avx_epi32(sum, w, q)
#include "kernels/x86/avx2/linear_quantized_body.h"
#include "kernels/x86/avxvnni/measure_body.h"

FOR_EACH_QUANTIZED(LINEAR, vex)
MEASURE_INT8(vex)
