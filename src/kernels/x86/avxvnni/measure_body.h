/* The peak of vpdpbusd in vectors of 256 bits, in the encoding of dot_four(). */
#ifndef TUTTI_KERNELS_X86_AVXVNNI_MEASURE_BODY_H
#define TUTTI_KERNELS_X86_AVXVNNI_MEASURE_BODY_H

/* Twelve independent sums cover the latency. The empty assembly keeps each in its register: gcc 12 moves sums
 * to the stack and back in each round otherwise. */
#define FOR_EACH_SUM(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define MEASURE_START(i) __m256i sum##i = _mm256_set1_epi32(i);
#define MEASURE_PRODUCT(i)                                                                                   \
    sum##i = dot_four(sum##i, a, b);                                                                         \
    __asm__("" : "+x"(sum##i));
#define MEASURE_ADD(i) all = _mm256_add_epi32(all, sum##i);

#define MEASURE_INT8(variant)                                                                                \
    uint64_t measure_int8_##variant(int64_t rounds)                                                          \
    {                                                                                                        \
        __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), all = _mm256_setzero_si256();              \
        FOR_EACH_SUM(MEASURE_START)                                                                          \
        for (int64_t r = 0; r < rounds; r++) {                                                               \
            FOR_EACH_SUM(MEASURE_PRODUCT)                                                                    \
        }                                                                                                    \
        FOR_EACH_SUM(MEASURE_ADD)                                                                            \
        return (uint64_t)_mm256_extract_epi64(all, 0);                                                       \
    }

#endif
