/* The settings of a tokenizer from the small JSON files of its folder, combined as in transformers. */
#ifndef TUTTI_MODEL_LOAD_TOKENIZER_SETTINGS_H
#define TUTTI_MODEL_LOAD_TOKENIZER_SETTINGS_H

#include "checkpoint/checkpoint.h"

/* True in an entry of added_tokens_decoder that came from added_tokens.json, which has no flags: "special" says whether a
 * name is given to the token. */
#define TOKENIZER_WITHOUT_FLAGS "without_flags"

/* The text of a token, which is a string, or an object that has it as content. NULL: neither. Borrowed. */
const char *tokenizer_settings_text(const json_t *token);

/* tokenizer_config.json of a checkpoint's folder. Where it has no added_tokens_decoder, special_tokens_map.json overrides its
 * special tokens, and added_tokens.json becomes its added_tokens_decoder; one that it has is completed by added_tokens.json.
 * *out: for json_decref(); NULL with TUTTI_OK: none of these files exists, or the checkpoint is a GGUF file. */
MUST_CHECK enum tutti_status tokenizer_settings_read(json_t **out, const struct checkpoint *ck,
                                                     struct tutti_error *err);

#endif
