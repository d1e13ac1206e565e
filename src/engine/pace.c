#include "engine/pace.h"

enum { MANY_ROWS = 16 };           /* fewer say little of what a row costs */
static const double MARGIN = 0.95; /* of the slowdown allowed: steps vary */

/* Follows within a few steps; one step that something else held up changes little. */
static double follow(double mean, double value)
{
    if (mean <= 0)
        return value;
    double capped = value > 4 * mean ? 4 * mean : value;
    return mean + (capped - mean) / 8;
}

void pace_note(struct pace *p, int n_decoding, int n_reading, uint64_t us)
{
    if (n_reading == 0)
        p->decode_us = follow(p->decode_us, (double)us);
    else if (n_decoding + n_reading >= MANY_ROWS)
        p->row_us = follow(p->row_us, (double)us / (n_decoding + n_reading));
}

int pace_reading_rows(const struct pace *p, int n_decoding)
{
    if (p->max_slowdown <= 0 || p->row_us <= 0)
        return INT32_MAX;
    /* The last step that only decoded may have had fewer rows: while prompts follow each other there is none. */
    double alone = n_decoding * p->row_us > p->decode_us ? n_decoding * p->row_us : p->decode_us;
    double rows = MARGIN * p->max_slowdown * alone / p->row_us - n_decoding;
    return rows < 1 ? 1 : rows < INT32_MAX ? (int)rows : INT32_MAX;
}
