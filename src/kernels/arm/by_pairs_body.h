/* Cells of two output rows and two input rows, for SMMLA: eight columns of each. Expanded weights are stored as
 * SMMLA takes them, pairs of rows side by side, and so are inputs. */
#include "kernels/arm/load_here.h"

enum {
    MOST_CELLS = 2, /* 16 registers of totals, eight of inputs, two of sums */
    CELL_ROWS = 2,
    STRIPS = LANES / 2,
    STRIP_WEIGHTS = 4,
};

struct cell_bytes {
    int8x16_t q[MOST_CELLS][4]; /* columns 8k..8k + 7 of the first row, then of the second */
};

typedef struct {
    int8x16_t q[4];
} cell_input;

/* A last row without a second one is paired with itself. Through general registers, as put_twice(). */
INLINE void put_bytes(struct cell_bytes *to, const int8_t *q, int n_rows)
{
    for (int i = 0; i < n_rows; i += 2) {
        const int8_t *first = q + i * BLOCK, *second = i + 1 < n_rows ? first + BLOCK : first;
        for (int k = 0; k < 4; k++) {
            uint64_t a, b;
            memcpy(&a, first + 8 * k, sizeof a);
            memcpy(&b, second + 8 * k, sizeof b);
            __asm__("" : "+r"(a), "+r"(b));
            memcpy((char *)&to->q[i / 2][k], &a, sizeof a);
            memcpy((char *)&to->q[i / 2][k] + sizeof a, &b, sizeof b);
        }
    }
}

INLINE cell_input load_cell(const struct cell_bytes *x, int cell)
{
    return (cell_input){ { x->q[cell][0], x->q[cell][1], x->q[cell][2], x->q[cell][3] } };
}

/* Two cells leave registers for their steps. */
INLINE float32x4_t load_steps(const float *p)
{
    return vld1q_f32(p);
}

INLINE int32x4_t multiply(int32x4_t sum, int8x16_t w, cell_input q, const int k)
{
    return vmmlaq_s32(sum, w, q.q[k]);
}

/* Of rows 0 and 1, then of rows 2 and 3. */
INLINE void put_scales(float32x4_t *to, int four, float32x4_t x)
{
    to[2 * four] = vzip1q_f32(x, x);
    to[2 * four + 1] = vzip2q_f32(x, x);
}

INLINE void put_weights(int8x16_t (*to)[STRIP_WEIGHTS], int four, const int8x16_t *w)
{
    UNROLL
    for (int k = 0; k < 4; k++) {
        int32x4_t even = vreinterpretq_s32_s8(w[2 * k]), odd = vreinterpretq_s32_s8(w[2 * k + 1]);
        to[2 * four][k] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
        to[2 * four + 1][k] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
    }
}

INLINE void load_totals(float32x4_t *total, const float *out, int n_rows)
{
    UNROLL
    for (int four = 0; four < LANES / 4; four++) {
        float32x4_t first = vld1q_f32(out + 4 * four),
                    second = n_rows > 1 ? vld1q_f32(out + LANES + 4 * four) : first;
        total[2 * four] = vzip1q_f32(first, second);
        total[2 * four + 1] = vzip2q_f32(first, second);
    }
}

INLINE void store_totals(float *out, const float32x4_t *total, int n_rows)
{
    UNROLL
    for (int four = 0; four < LANES / 4; four++) {
        vst1q_f32(out + 4 * four, vuzp1q_f32(total[2 * four], total[2 * four + 1]));
        if (n_rows > 1)
            vst1q_f32(out + LANES + 4 * four, vuzp2q_f32(total[2 * four], total[2 * four + 1]));
    }
}

/* Weights are always expanded here. */
INLINE void unpack_strip(int8x16_t *w, const uint8_t *plane, int strip, const struct quant_format f)
{
    (void)w, (void)plane, (void)strip, (void)f;
    __builtin_unreachable();
}

#define TILES_TABLE(name) name##_1, name##_2
#define EXPANDED_TILES(name, runs, has_min)                                                                  \
    EXPANDED_TILE(name, runs, has_min, 1)                                                                    \
    EXPANDED_TILE(name, runs, has_min, 2)

#include "kernels/arm/integer_body.h"
