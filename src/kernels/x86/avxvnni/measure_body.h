/* The peak of vpdpbusd in vectors of 256 bits, in the encoding of dot_four(). */
#ifndef TUTTI_KERNELS_X86_AVXVNNI_MEASURE_BODY_H
#define TUTTI_KERNELS_X86_AVXVNNI_MEASURE_BODY_H

#define MEASURE_INT8(variant)                                                                                \
    uint64_t measure_int8_##variant(int64_t rounds)                                                          \
    {                                                                                                        \
        __m256i acc[12], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);                                   \
        for (int i = 0; i < 12; i++)                                                                         \
            acc[i] = _mm256_set1_epi32(i);                                                                   \
        for (int64_t r = 0; r < rounds; r++)                                                                 \
            for (int i = 0; i < 12; i++)                                                                     \
                acc[i] = dot_four(acc[i], a, b);                                                             \
        for (int i = 1; i < 12; i++)                                                                         \
            acc[0] = _mm256_add_epi32(acc[0], acc[i]);                                                       \
        return (uint64_t)_mm256_extract_epi64(acc[0], 0);                                                    \
    }

#endif
