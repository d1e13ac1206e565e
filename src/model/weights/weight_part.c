#include "model/weights/weight_part.h"

enum weight_part weight_part_of(const struct model_desc *desc, enum weight_slot slot)
{
    if (slot_info(slot)->is_of_experts || slot == SLOT_ROUTER_BIAS || slot == SLOT_EXPERT_FACTORS)
        return PART_EXPERTS;
    if (slot_info(slot)->is_of_layer)
        return PART_LAYER;
    bool is_input = (slot == SLOT_EMBEDDING && !desc->tied_output) || slot == SLOT_EMBEDDING_NORM ||
                    slot == SLOT_POSITIONS || slot == SLOT_SEGMENTS;
    return is_input ? PART_INPUT : PART_OUTPUT;
}

void weight_part_begin(const struct model *model, enum weight_slot slot, int layer)
{
    if (model->backend->ops->begin_weights)
        model->backend->ops->begin_weights(model->backend, weight_part_of(&model->desc, slot), layer);
}
