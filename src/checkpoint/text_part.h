/* The language part of a checkpoint with a vision part: its configuration and its tensors, as if they
 * were a checkpoint of their own. And the tensors of a model that was saved without its head. */
#ifndef TUTTI_CHECKPOINT_TEXT_PART_H
#define TUTTI_CHECKPOINT_TEXT_PART_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Replaces text_config by its settings, which have priority, and removes those of the vision part and
 * those that only count within text_config. The first files of Qwen2-VL and Qwen2.5-VL have no
 * text_config, but its settings at top level.
 * *has_vision: whether there was a vision part. False: out of memory. */
bool text_part_unwrap(json_t *config, bool *has_vision);

/* The name of a tensor of such a checkpoint in a model that generates text: an end of name, or a text in
 * out (size bytes). NULL: it belongs to the vision part. */
const char *text_part_name(const char *name, char *out, size_t size);

/* Embedding models are saved without a head that generates text (Qwen3-Embedding): their tensors have no
 * "model." in front. This tensor's name shows it. */
#define BARE_EMBEDDING "embed_tokens.weight"

#endif
