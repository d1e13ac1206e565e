/* Reads a tokenizer's settings from the small JSON files of its folder and merges them as
 * transformers does. */
#ifndef TUTTI_MODEL_LOAD_TOKENIZER_SETTINGS_H
#define TUTTI_MODEL_LOAD_TOKENIZER_SETTINGS_H

#include "checkpoint/checkpoint.h"
#include "tokenizer/json/byte_files.h"

/* The text of a token given as a string or as an object with the member "content". NULL: neither.
 * Borrowed. */
const char *tokenizer_settings_text(const json_t *token);

/* Reads tokenizer_config.json of a checkpoint's folder. If it has no added_tokens_decoder,
 * special_tokens_map.json overrides its special tokens and added_tokens.json becomes its
 * added_tokens_decoder. Otherwise added_tokens.json only adds the tokens that are missing. *out
 * is for json_decref(); NULL with TUTTI_OK: none of these files exists, or the checkpoint is a
 * GGUF file. */
MUST_CHECK enum tutti_status tokenizer_settings_read(json_t **out, const struct checkpoint *ck,
                                                     struct tutti_error *err);

/* The id of the token that pads batches; -1: none. settings: NULL: none. Of a GGUF file
 * tokenizer.ggml.padding_token_id; of a folder pad_token, else pad_token_id in config.json. */
int32_t tokenizer_settings_pad(const json_t *settings, const struct checkpoint *ck,
                               const struct tokenizer *tok);

#endif
