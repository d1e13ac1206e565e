#include "kernels/arm/neon/vec16.h"

/* Offsets of the bytes of each lane's scale. */
struct places {
    uint8x16_t a, b, c, d;
};

INLINE uint8x16_t bytes_of(const uint8_t *places)
{
    static const uint8_t OFFSETS[16] = { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3 };
    uint32_t word;
    memcpy(&word, places, sizeof word);
    uint8x16_t x = vreinterpretq_u8_u32(vdupq_n_u32(word)); /* p0, p1, p2, p3, ... */
    x = vzip1q_u8(x, x);
    x = vzip1q_u8(x, x);
    return vaddq_u8(vshlq_n_u8(x, 2), vld1q_u8(OFFSETS));
}

INLINE struct places load_places(const uint8_t *p)
{
    return (struct places){ bytes_of(p), bytes_of(p + 4), bytes_of(p + 8), bytes_of(p + 12) };
}

INLINE vec16 pick_scales(const float *scales, struct places places)
{
    uint8x16x2_t all = { { vld1q_u8((const uint8_t *)scales), vld1q_u8((const uint8_t *)(scales + 4)) } };
#define PICK(bytes) vreinterpretq_f32_u8(vqtbl2q_u8(all, bytes))
    return OF_ONE(vec16, PICK, places);
#undef PICK
}

#define IS_WIDE 1
#include "kernels/vector/linear_float8_body.h"
