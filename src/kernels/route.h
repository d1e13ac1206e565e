/* The router of a mixture of experts: from a row's logits to the experts that it uses and their
 * weights. Shazeer et al., 2017; DeepSeek-AI, 2024 (DeepSeek-V3), section 2.1.2 (groups, the
 * correction bias). */
#ifndef TUTTI_KERNELS_ROUTE_H
#define TUTTI_KERNELS_ROUTE_H

#include "kernels/kernels.h"

#include <stdbool.h>

struct routing {
    int n_experts, n_chosen; /* at most LIMIT_EXPERTS; each row uses n_chosen */
    enum {
        ROUTE_SOFTMAX, /* scores: softmax over the logits of all experts */
        ROUTE_SIGMOID
    } kind;
    bool is_normed; /* the weights of a row are divided by their sum */
    float scale;    /* factor of the weights; 0: none */
    /* Experts are in n_groups groups of equal size; a row uses only experts of the n_chosen_groups
     * best groups. A group is rated by the sum of its group_best (1 or 2) highest scores. n_groups 0
     * or 1: no groups. */
    int n_groups, n_chosen_groups, group_best;
};

float route_sigmoid(float x); /* 1 / (1 + exp(-x)) */

/* Chooses the experts with the highest scores; of equal ones the lower id. ids [n_chosen], in
 * ascending order, and their weights. scores [n_experts]: the logits, overwritten. bias
 * [n_experts]: added to the scores for choosing only; NULL: none. factors [n_experts]: each weight is
 * multiplied by that of its expert, after all else; NULL: none.
 *
 * The sum for is_normed adds the weights to 1e-20 in the order of ids; 1e-20 keeps a row of zeros
 * finite. */
void route_row(const struct kernels *k, const struct routing *routing, const float *bias,
               const float *factors, float *scores, int32_t *ids, float *weights);

#endif
