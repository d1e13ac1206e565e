/* What a weight belongs to, where a card and the CPU divide a model. */
#ifndef TUTTI_MODEL_WEIGHTS_WEIGHT_PART_H
#define TUTTI_MODEL_WEIGHTS_WEIGHT_PART_H

#include "model/model.h"

enum weight_part weight_part_of(const struct model_desc *desc, enum weight_slot slot);
/* Tells the backend which weight is made next. */
void weight_part_begin(const struct model *model, enum weight_slot slot, int layer);

#endif
