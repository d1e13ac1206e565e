/* Converts and writes tensor data: chunks of rows are read from the mapping, converted by all
 * threads, and written. */
#ifndef TUTTI_OFFLINE_CONVERT_STREAM_H
#define TUTTI_OFFLINE_CONVERT_STREAM_H

#include "base/system/team.h"
#include "checkpoint/gguf/gguf.h"
#include "model/weights/weights.h"
#include "offline/convert.h"

/* A range of rows of one stored tensor; of several matrices all their rows. Rows are numbered in the
 * order of the loaded model. */
struct planned_part {
    const struct tensor *tensor;
    int64_t first_row, n_rows; /* of a vector: elements */
    struct change {            /* compared with the stored order */
        int n_permuted_heads;  /* > 0: rows of each head change from half-split to interleaved order */
        struct head_order order;
        bool is_transposed;
        bool is_less_one;   /* 1 is added to every element */
        bool has_unit_rows; /* each row is divided by its length */
    } change;
    struct merge_rows merge; /* what adapters change of its rows */
};

/* A tensor of the converted file: parts whose rows are concatenated. */
struct planned {
    char name[64];
    struct planned_part *parts; /* [n_parts], freed by the planner */
    size_t n_parts, capacity;   /* n_parts 0: of values */
    const float *values;        /* [shape[0]]: a tensor that the source does not store */
    int n_dims;
    int64_t shape[3];
    enum dtype wanted, type; /* type: fitted to the rows */
    /* [n_importance]: weights of the squared errors, a row of them for each of one or more equal
     * runs of rows; NULL: all the same. */
    const float *importance;
    int64_t n_importance;
};

struct convert_stream {
    const struct checkpoint *ck;
    const struct convert_options *options;
    struct gguf_writer *writer;
    struct team *team;
    uint64_t done, total; /* bytes, for progress */
};

/* Writes the next tensor in declaration order, and reports it. */
MUST_CHECK enum tutti_status convert_stream_tensor(struct convert_stream *stream, const struct planned *plan,
                                                   struct tutti_error *err);

#endif
