/* The two halves of a low-rank update, against their twins. */
#include "check.h"
#include "kernels/ref/ref.h"

#include <string.h>

static const int LENGTHS[] = { 1, 7, 16, 17, 63, 64, 65, 80, 256, 1003 };
static const int RANKS[] = { 1, 3, 4, 5, 8, 19, 64 };

static void check_down(struct check *c, int rank, int n)
{
    if (check_next(c, (any_fn *)c->k->lora_down, "lora_down_%d_%d_%d", rank, n, (int)c->fill)) {
        float *a = check_floats(c, (size_t)rank * (size_t)n), *x = check_floats(c, (size_t)n);
        float *want = check_floats(c, (size_t)rank), *got = check_floats(c, (size_t)rank);
        check_fill(c, a, (size_t)rank * (size_t)n);
        check_fill(c, x, (size_t)n);
        lora_down_ref(want, a, x, rank, n);
        c->k->lora_down(got, a, x, rank, n);
        check_bits(c, want, got, (size_t)rank);
        int last = rank - 1; /* a row of a alone: the same bits again */
        c->k->lora_down(got, a + (size_t)last * (size_t)n, x, 1, n);
        check_bits(c, want + last, got, 1);
        check_done(c);
    }
}

static void check_up(struct check *c, int rank, int n)
{
    if (check_next(c, (any_fn *)c->k->lora_up, "lora_up_%d_%d_%d", rank, n, (int)c->fill)) {
        size_t stride = (size_t)n;
        float *b = check_floats(c, (size_t)rank * stride), *t = check_floats(c, (size_t)rank);
        float *y = check_floats(c, stride), *want = check_floats(c, stride), *got = check_floats(c, stride);
        check_fill(c, b, (size_t)rank * stride);
        check_fill(c, t, (size_t)rank);
        check_fill(c, y, stride);
        memcpy(want, y, stride * sizeof *y);
        memcpy(got, y, stride * sizeof *y);
        lora_up_ref(want, b, stride, t, rank, n);
        c->k->lora_up(got, b, stride, t, rank, n);
        check_bits(c, want, got, stride);
        int half = n / 2; /* from any column on: the same bits again */
        c->k->lora_up(y + half, b + half, stride, t, rank, n - half);
        check_bits(c, want + half, y + half, stride - (size_t)half);
        check_done(c);
    }
}

static uint16_t *check_halves(struct check *c, size_t n)
{
    float *x = check_floats(c, n);
    uint16_t *halves = check_bytes(c, n * sizeof *halves);
    check_fill(c, x, n);
    for (size_t i = 0; i < n; i++)
        halves[i] = float_to_half(x[i]);
    return halves;
}

static void check_half(struct check *c, int rank, int n)
{
    size_t n_row = (size_t)n, all = (size_t)rank * n_row;
    if (check_next(c, (any_fn *)c->k->lora_down_half, "lora_down_half_%d_%d_%d", rank, n, (int)c->fill)) {
        uint16_t *a = check_halves(c, all);
        float *x = check_floats(c, n_row), *want = check_floats(c, (size_t)rank),
              *got = check_floats(c, (size_t)rank);
        check_fill(c, x, n_row);
        lora_down_half_ref(want, a, x, rank, n);
        c->k->lora_down_half(got, a, x, rank, n);
        check_bits(c, want, got, (size_t)rank);
        check_done(c);
    }
    if (check_next(c, (any_fn *)c->k->lora_up_half, "lora_up_half_%d_%d_%d", rank, n, (int)c->fill)) {
        uint16_t *b = check_halves(c, all);
        float *t = check_floats(c, (size_t)rank), *want = check_floats(c, n_row),
              *got = check_floats(c, n_row);
        check_fill(c, t, (size_t)rank);
        check_fill(c, want, n_row);
        memcpy(got, want, n_row * sizeof *got);
        lora_up_half_ref(want, b, n_row, t, rank, n);
        c->k->lora_up_half(got, b, n_row, t, rank, n);
        check_bits(c, want, got, n_row);
        check_done(c);
    }
}

void check_lora(struct check *c)
{
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (size_t r = 0; r < sizeof RANKS / sizeof *RANKS; r++) {
            for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
                check_down(c, RANKS[r], LENGTHS[i]);
                check_up(c, RANKS[r], LENGTHS[i]);
                check_half(c, RANKS[r], LENGTHS[i]);
            }
        }
    }
}
