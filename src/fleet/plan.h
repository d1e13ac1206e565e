/* Calculates what each rank of a model holds, how many users fit, and how many machines a number
 * of users needs. One machine runs one rank; a replica consists of tp ranks. */
#ifndef TUTTI_FLEET_PLAN_H
#define TUTTI_FLEET_PLAN_H

#include "model/load/device/parts.h"
#include "model/load/fit.h"
#include "model/ranks/split.h"

/* The model's sizes. */
struct plan_model {
    struct model_desc desc;
    enum dtype kv_type;
    /* Of each weight, matrices packed, of all layers of a kind together. */
    double bytes[MAX_LAYER_KINDS][SLOT_COUNT];
    struct split_blocks blocks;
    struct fit_sizes sizes;     /* of all weights, as each type */
    struct weight_parts *parts; /* what a card and the CPU may divide; owned */
};

struct plan_layout {
    int tp, dp;              /* ranks of a replica, replicas */
    int n_heads, n_kv_heads; /* of the first layer, of the rank with the most of them */
    double weight_bytes;     /* of the largest rank */
    double user_bytes;       /* keys and values of one user's context, on the largest rank */
    int64_t n_users_fit;     /* of all replicas; 0: even the weights do not fit */
};

/* Lists the layouts on n_hosts machines, each with memory_bytes for weights, keys and values:
 * every tp that the model's heads allow, with as many replicas as there are machines for.
 * context: tokens of each user, at least 1. layouts: [LIMIT_RANKS]. Returns their number. */
int plan_layouts(struct plan_layout *layouts, const struct plan_model *model, int n_hosts,
                 double memory_bytes, int context);

/* Finds the layout with the fewest machines that holds n_users; of two with equally many, the one
 * with the smaller tp. false: LIMIT_RANKS machines do not suffice. */
bool plan_fewest(struct plan_layout *layout, const struct plan_model *model, double memory_bytes, int context,
                 int64_t n_users);

#endif
