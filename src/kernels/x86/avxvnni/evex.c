/* The same as vex.c in the encoding of AVX-512, where that variant can be tried without AVX-VNNI. */
#include <immintrin.h>

#define IS_VNNI             1
#define DOT                 "%{evex%} vpdpbusd"
#define dot_four(sum, w, q) _mm256_dpbusd_epi32(sum, w, q)
#include "kernels/x86/avx2/linear_quantized_body.h"
#include "kernels/x86/avxvnni/measure_body.h"

FOR_EACH_QUANTIZED(LINEAR, evex)
MEASURE_INT8(evex)
