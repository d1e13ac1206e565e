/* Matrix instructions, sums and maxima of a warp (device.h) on the host: computed for the whole warp by the lane that comes
 * first after all have met. A step of a warp runs its lanes one after another, so each finds its part before the next one is made. */
#include "cuda/emulator_parts.h"

#include <string.h>

enum { ROWS = 16, DEPTH = 16, COLUMNS = 8 };

typedef float columns __attribute__((vector_size(COLUMNS * sizeof(float))));

/* What a lane gives. */
struct part {
    uint32_t a[4], b[2];
    float acc[4];
};

/* The sums of the instruction that the warp's lanes take their part of. */
static columns sums[ROWS];

static void to_floats(float *to, const uint16_t *from, int n, bool is_bf16)
{
    if (is_bf16)
        for (int i = 0; i < n; i++)
            to[i] = bf16_to_float(from[i]);
    else
        for (int i = 0; i < n; i++)
            to[i] = emulated_half_float(from[i]);
}

static void compute(const struct part *all, bool is_bf16)
{
    uint16_t bits_a[ROWS][DEPTH], bits_b[DEPTH][COLUMNS];
    float a[ROWS][DEPTH];
    columns b[DEPTH];
    for (int lane = 0; lane < WARP; lane++) {
        const struct part *part = &all[lane];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            memcpy(&bits_a[g + i % 2 * 8][2 * t + i / 2 * 8], &part->a[i], sizeof part->a[i]);
            sums[g + i / 2 * 8][2 * t + i % 2] = part->acc[i];
        }
        for (int i = 0; i < 2; i++) {
            bits_b[2 * t + 8 * i][g] = (uint16_t)part->b[i];
            bits_b[2 * t + 8 * i + 1][g] = (uint16_t)(part->b[i] >> 16);
        }
    }
    to_floats(a[0], bits_a[0], ROWS * DEPTH, is_bf16);
    to_floats((float *)b, bits_b[0], DEPTH * COLUMNS, is_bf16);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < DEPTH; k++)
            sums[r] = sums[r] + a[r][k] * b[k];
}

void emulated_mma(const char *name, bool is_bf16, float acc[4], const uint32_t a[4], const uint32_t b[2])
{
    struct part mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    memcpy(mine.acc, acc, sizeof mine.acc);
    const struct part *all = emulated_exchange(name, &mine, sizeof mine);
    if (emulated_is_first_lane())
        compute(all, is_bf16);
    int g = thread_id() % WARP / 4, t = thread_id() % 4;
    for (int i = 0; i < 4; i++)
        acc[i] = sums[g + i / 2 * 8][2 * t + i % 2];
}

/* ---- sums and maxima of groups of lanes ---- */

static float combine_f32(float x, float y, bool is_max)
{
    return is_max ? max_f32(x, y) : x + y;
}

static float fold_f32(const char *name, float v, int n, bool is_max)
{
    static float lanes[WARP];
    const float *all = emulated_exchange(name, &v, sizeof v);
    if (emulated_is_first_lane()) {
        memcpy(lanes, all, sizeof lanes);
        for (int mask = n / 2; mask > 0; mask /= 2) {
            float before[WARP];
            memcpy(before, lanes, sizeof before);
            for (int i = 0; i < WARP; i++)
                lanes[i] = combine_f32(before[i], before[i ^ mask], is_max);
        }
    }
    return lanes[thread_id() % WARP];
}

float emulated_warp_sum_f32(float v, int n)
{
    return fold_f32("warp_sum_f32", v, n, false);
}

float emulated_warp_max_f32(float v, int n)
{
    return fold_f32("warp_max_f32", v, n, true);
}

uint32_t emulated_warp_max_u32(uint32_t v, int n)
{
    static uint32_t largest[WARP]; /* of each group */
    const uint32_t *all = emulated_exchange("warp_max_u32", &v, sizeof v);
    if (emulated_is_first_lane())
        for (int i = 0; i < WARP; i++)
            largest[i / n] = i % n == 0 || all[i] > largest[i / n] ? all[i] : largest[i / n];
    return largest[thread_id() % WARP / n];
}
