/* Merges metrics of several processes in Prometheus' text format: each metric's help and type once, then the
 * samples of all. */
#ifndef TUTTI_SERVER_MODELS_METRICS_MERGE_H
#define TUTTI_SERVER_MODELS_METRICS_MERGE_H

#include "base/buf.h"

/* Zero-initialised is empty. */
struct metrics_merge {
    struct merged {
        char *name;
        struct buf head, samples;
    } * list;
    size_t n;
};

/* Adds a text whose samples get the label model. model: NULL: none. False: out of memory. */
MUST_CHECK bool metrics_merge_add(struct metrics_merge *merge, const char *text, const char *model);
/* Appends the result. False: out of memory. */
MUST_CHECK bool metrics_merge_write(const struct metrics_merge *merge, struct buf *out);
void metrics_merge_clear(struct metrics_merge *merge);

#endif
