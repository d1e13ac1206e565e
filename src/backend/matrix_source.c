#include "backend/matrix_source.h"

#include "kernels/quantize/quantize.h"

#include <string.h>

/* The rows of one expert's matrix; 0: those of another expert are more or fewer. */
static int64_t count_rows(const struct matrix_source *source)
{
    int n_experts = matrix_source_experts(source), n_parts = source->n_parts / n_experts;
    int64_t n_out = 0;
    for (int e = 0; e < n_experts; e++) {
        int64_t n = 0;
        for (int p = 0; p < n_parts; p++)
            n += source->parts[e * n_parts + p].n_rows;
        if (e > 0 && n != n_out)
            return 0;
        n_out = n;
    }
    return n_parts * n_experts == source->n_parts ? n_out : 0;
}

static enum tutti_status check_part(const struct matrix_source *source, const struct matrix_part *part,
                                    struct tutti_error *err)
{
    if (part->n_rows <= 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: part of %d rows, expected at least 1", source->name,
                         part->n_rows);
    if (!dtype_is_weight(part->dtype))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: type %s is not a type of weights", source->name,
                         dtype_name(part->dtype));
    if (source->n_in <= 0 || source->n_in % dtype_block_elems(part->dtype) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: rows of %d elements stored as %s, expected a multiple of %d", source->name,
                         source->n_in, dtype_name(part->dtype), dtype_block_elems(part->dtype));
    if (part->dtype != source->type && !quantize_can(source->type))
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: rows stored as %s cannot become %s, which is only read", source->name,
                         dtype_name(part->dtype), dtype_name(source->type));
    return TUTTI_OK;
}

enum tutti_status matrix_source_check(const struct matrix_source *source, int padding, int64_t *n_out,
                                      struct tutti_error *err)
{
    int n_experts = matrix_source_experts(source);
    int64_t n = count_rows(source);
    if (!dtype_is_weight(source->type))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: type %s is not a type of weights", source->name,
                         dtype_name(source->type));
    for (int p = 0; p < source->n_parts; p++) {
        enum tutti_status st = check_part(source, &source->parts[p], err);
        if (st != TUTTI_OK)
            return st;
    }
    if (source->is_gate_up && n % 2 != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: %lld rows%s, expected two equal halves", source->name,
                         (long long)n, n_experts > 1 ? " of each expert" : "");
    if (n == 0 || n > (INT32_MAX - padding) / n_experts)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: %lld rows%s, expected 1 to %d", source->name,
                         (long long)n, n_experts > 1 ? " of each expert" : "",
                         (INT32_MAX - padding) / n_experts);
    if (source->n_in % dtype_block_elems(source->type) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: %d input columns, but type %s needs a multiple of %d",
                         source->name, source->n_in, dtype_name(source->type),
                         dtype_block_elems(source->type));
    *n_out = n;
    return TUTTI_OK;
}

bool matrix_source_orders_differ(const struct matrix_source *source)
{
    const uint16_t *const *orders = source->orders;
    size_t n_bytes = (size_t)source->n_in * sizeof **orders;
    bool differ = false;
    for (int e = 1; e < matrix_source_experts(source); e++)
        differ = differ || (orders[e] != orders[0] &&
                            (!orders[e] || !orders[0] || memcmp(orders[e], orders[0], n_bytes) != 0));
    return differ;
}
