/* SMMLA makes twice as many products as SDOT, if there are two input rows for it. With up to four rows reading
 * the weights takes longer than either, and the kernels of dotprod/ expand them in registers. */
#include "kernels/arm/arm.h"

#include <arm_neon.h>
#include <string.h>

#include "kernels/arm/by_pairs_body.h"

enum { FEW_ROWS = 4 };

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_i8mm(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)         \
    {                                                                                                        \
        const struct quant_format f = quant_format(dtype);                                                   \
        if (n_rows <= FEW_ROWS)                                                                              \
            linear_##name##_dotprod(out, panel, x, n_rows, n_in);                                            \
        else                                                                                                 \
            linear_integers(out, panel, x, n_rows, n_in / BLOCK, expanded_tiles(f), true, f);                \
    }
FOR_EACH_QUANTIZED(LINEAR)
