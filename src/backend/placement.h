/* Which weights of a model a card has in its memory, where it cannot have all: the CPU computes with the others. */
#ifndef TUTTI_BACKEND_PLACEMENT_H
#define TUTTI_BACKEND_PLACEMENT_H

#include <stdbool.h>

/* What a weight belongs to. */
enum weight_part {
    PART_INPUT, /* the embedding, and what is added to it; a matrix that is also the output's is of PART_OUTPUT */
    PART_LAYER,   /* a layer, but for its experts; with its keys and values */
    PART_EXPERTS, /* the experts of a layer, which are most of it */
    PART_OUTPUT,  /* the final norm and the output matrix; logits are sampled where they are */
    PART_SHARED,  /* what all layers read: every device gets a copy */
};

/* A choice of layers as in llama.cpp: the output comes first, then the last layers. */
struct placement {
    int n_layers;      /* of the model, with that for multi-token prediction, if it is loaded */
    int first_on_card; /* layers from this one on are on the card; n_layers: none, and the output is not either */
    int n_cpu_experts; /* the experts of the layers before this one are not on the card */
};

/* Not of PART_SHARED. */
static inline bool placement_is_on_card(const struct placement *p, enum weight_part part, int layer)
{
    switch (part) {
    case PART_INPUT:
        return p->first_on_card == 0;
    case PART_LAYER:
        return layer >= p->first_on_card;
    case PART_EXPERTS:
        return layer >= p->first_on_card && layer >= p->n_cpu_experts;
    default:
        return p->first_on_card < p->n_layers;
    }
}

#endif
