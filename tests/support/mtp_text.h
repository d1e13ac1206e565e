/* A text that a model with a layer for multi-token prediction (MTP) reads, and the layer's logits. */
#ifndef TUTTI_TESTS_MTP_TEXT_H
#define TUTTI_TESTS_MTP_TEXT_H

#include "model/model.h"

enum { MTP_TEXT_TOKENS = 80, MTP_TEXT_PAGES = 8 };

/* In pages that are not in order. */
struct mtp_text {
    struct model *model;
    struct kv_memory *kv; /* to be freed by model_kv_free() */
    int32_t pages[MTP_TEXT_PAGES], ids[MTP_TEXT_TOKENS];
    const int32_t *table;
    int32_t positions[MTP_TEXT_TOKENS], seqs[MTP_TEXT_TOKENS], outputs[MTP_TEXT_TOKENS];
};

/* Copies ids [n]. */
void mtp_text_open(struct mtp_text *text, struct model *model, const int32_t *ids, int n);

/* A step of the model over n positions from begin on, and what the engine keeps of it. */
void mtp_text_step(struct mtp_text *text, int begin, int n);

/* The layer's logits [n_vocab] after the token at a position. previous: as model_submit_mtp()'s. */
void mtp_text_predict(struct mtp_text *text, int position, int32_t previous, float *logits);

#endif
