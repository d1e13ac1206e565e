/* The two halves of a low-rank update, against their twins: rows in company, and each alone. */
#include "check.h"
#include "kernels/ref/ref.h"

#include <string.h>

static const int LENGTHS[] = { 1, 7, 16, 17, 63, 64, 65, 80, 256, 1003 };
static const int RANKS[] = { 1, 3, 4, 5, 8, 19, 64 };

static float *filled(struct check *c, size_t n)
{
    float *x = check_floats(c, n);
    check_fill(c, x, n);
    return x;
}

/* Up to LORA_ROWS rows of n floats, and where they begin. */
struct rows {
    float *all, *at[LORA_ROWS];
    size_t n;
};

static struct rows rows_new(struct check *c, int n_rows, int n)
{
    struct rows rows = { .n = (size_t)n_rows * (size_t)n };
    rows.all = filled(c, rows.n);
    for (int r = 0; r < n_rows; r++)
        rows.at[r] = rows.all + (size_t)r * (size_t)n;
    return rows;
}

static uint16_t *halves_of(struct check *c, const float *x, size_t n)
{
    uint16_t *halves = check_bytes(c, n * sizeof *halves);
    for (size_t i = 0; i < n; i++)
        halves[i] = float_to_half(x[i]);
    return halves;
}

static const float *const *read_only(const struct rows *rows)
{
    return (const float *const *)rows->at;
}

static void check_down(struct check *c, int n_rows, int rank, int n)
{
    int last = rank - 1;
    if (check_next(c, (any_fn *)c->k->lora_down, "lora_down_%d_%d_%d_%d", n_rows, rank, n, (int)c->fill)) {
        float *a = filled(c, (size_t)rank * (size_t)n);
        struct rows x = rows_new(c, n_rows, n), want = rows_new(c, n_rows, rank),
                    got = rows_new(c, n_rows, rank);
        lora_down_ref(want.at, a, read_only(&x), n_rows, rank, n);
        c->k->lora_down(got.at, a, read_only(&x), n_rows, rank, n);
        check_bits(c, want.all, got.all, want.n);
        /* one row with one row of a: the same bits again */
        const float *row = x.at[n_rows - 1];
        c->k->lora_down(got.at, a + (size_t)last * (size_t)n, &row, 1, 1, n);
        check_bits(c, want.at[n_rows - 1] + last, got.all, 1);
        check_done(c);
    }
    if (check_next(c, (any_fn *)c->k->lora_down_half, "lora_down_half_%d_%d_%d_%d", n_rows, rank, n,
                   (int)c->fill)) {
        uint16_t *half = halves_of(c, filled(c, (size_t)rank * (size_t)n), (size_t)rank * (size_t)n);
        struct rows x = rows_new(c, n_rows, n), want = rows_new(c, n_rows, rank),
                    got = rows_new(c, n_rows, rank);
        lora_down_half_ref(want.at, half, read_only(&x), n_rows, rank, n);
        c->k->lora_down_half(got.at, half, read_only(&x), n_rows, rank, n);
        check_bits(c, want.all, got.all, want.n);
        check_done(c);
    }
}

static void check_up(struct check *c, int n_rows, int rank, int n)
{
    size_t stride = (size_t)n;
    if (check_next(c, (any_fn *)c->k->lora_up, "lora_up_%d_%d_%d_%d", n_rows, rank, n, (int)c->fill)) {
        float *b = filled(c, (size_t)rank * stride);
        struct rows t = rows_new(c, n_rows, rank), y = rows_new(c, n_rows, n), want = rows_new(c, n_rows, n),
                    got = rows_new(c, n_rows, n);
        memcpy(want.all, y.all, y.n * sizeof *y.all);
        memcpy(got.all, y.all, y.n * sizeof *y.all);
        lora_up_ref(want.at, b, stride, read_only(&t), n_rows, rank, n);
        c->k->lora_up(got.at, b, stride, read_only(&t), n_rows, rank, n);
        check_bits(c, want.all, got.all, want.n);
        /* one row from any column on: the same bits again */
        int half = n / 2;
        float *part = y.at[n_rows - 1] + half;
        const float *sums = t.at[n_rows - 1];
        c->k->lora_up(&part, b + half, stride, &sums, 1, rank, n - half);
        check_bits(c, want.at[n_rows - 1] + half, part, stride - (size_t)half);
        check_done(c);
    }
    if (check_next(c, (any_fn *)c->k->lora_up_half, "lora_up_half_%d_%d_%d_%d", n_rows, rank, n,
                   (int)c->fill)) {
        uint16_t *b = halves_of(c, filled(c, (size_t)rank * stride), (size_t)rank * stride);
        struct rows t = rows_new(c, n_rows, rank), want = rows_new(c, n_rows, n),
                    got = rows_new(c, n_rows, n);
        memcpy(got.all, want.all, want.n * sizeof *want.all);
        lora_up_half_ref(want.at, b, stride, read_only(&t), n_rows, rank, n);
        c->k->lora_up_half(got.at, b, stride, read_only(&t), n_rows, rank, n);
        check_bits(c, want.all, got.all, want.n);
        check_done(c);
    }
}

void check_lora(struct check *c)
{
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (size_t r = 0; r < sizeof RANKS / sizeof *RANKS; r++) {
            for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
                /* as many as go together, and in turn each fewer */
                const int n_rows[] = { LORA_ROWS, 1 + (int)(r + i) % (LORA_ROWS - 1) };
                for (int k = 0; k < 2; k++) {
                    check_down(c, n_rows[k], RANKS[r], LENGTHS[i]);
                    check_up(c, n_rows[k], RANKS[r], LENGTHS[i]);
                }
            }
        }
    }
}
