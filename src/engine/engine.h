/* The engine behind include/tutti.h, and the model handle. */
#ifndef TUTTI_ENGINE_H
#define TUTTI_ENGINE_H

#include "model/model.h"

/* tutti_model is struct model: a handle from model_make() may be given to tutti_engine_open() by this cast. */
static inline tutti_model *model_handle(struct model *model)
{
    return (tutti_model *)model;
}
static inline struct model *model_of(const tutti_model *handle)
{
    return (struct model *)(uintptr_t)handle;
}

#endif
