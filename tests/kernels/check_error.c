/* The error of each weight type's arithmetic: its linear layer compared with the same weights in float64. */
#include "check.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>

enum { N_IN = 4096, N_ROWS = 16 };

/* Of a normal distribution, by the sum of twelve even ones; every 64th is an outlier, as activations have them. */
static float activation(struct check *c, int i, bool has_outliers)
{
    double sum = -6;
    for (int k = 0; k < 12; k++)
        sum += (double)check_random(c) * 0x1p-32;
    return (float)(has_outliers && i % 64 == 7 ? 20 * sum : sum);
}

/* Root of the mean square of the error, of the mean square of the result. */
static double relative_error(struct check *c, const struct kernels *k, enum dtype type, bool has_outliers)
{
    uint8_t *panel = check_tame_panel(c, type, N_IN);
    float *x = check_floats(c, (size_t)N_ROWS * N_IN), *w = check_floats(c, N_IN);
    float *y = check_floats(c, (size_t)panel_floats(N_ROWS));
    void *tile = check_bytes(c, tile_bytes(type, N_ROWS, N_IN));
    double error = 0, all = 0;
    for (int i = 0; i < N_ROWS * N_IN; i++)
        x[i] = activation(c, i, has_outliers);
    k->tile[type](tile, x, N_IN, N_ROWS, 0, N_IN);
    k->linear[type](y, panel, tile, N_ROWS, N_IN);
    for (int row = 0; row < PANEL_ROWS; row++) {
        unpack_row(w, panel, row, type, N_IN);
        for (int r = 0; r < N_ROWS; r++) {
            double want = 0;
            for (int i = 0; i < N_IN; i++)
                want += (double)w[i] * (double)x[r * N_IN + i];
            double got = (double)y[(row / LANES * half_rows(N_ROWS) + r) * LANES + row % LANES];
            error += (got - want) * (got - want);
            all += want * want;
        }
    }
    check_forget(c);
    return sqrt(error / all);
}

void report_errors(struct check *c)
{
    struct kernels k;
    kernels_init(&k, cpu_detect());
    c->random = 88172645463325252u;
    printf("%-6s %12s %14s\n", "type", "normal", "with outliers");
    for (int type = 0; type < DTYPE_COUNT; type++)
        if (dtype_is_weight((enum dtype)type)) {
            double normal = relative_error(c, &k, (enum dtype)type, false);
            printf("%-6s %12.1e %14.1e\n", dtype_name((enum dtype)type), normal,
                   relative_error(c, &k, (enum dtype)type, true));
        }
}
