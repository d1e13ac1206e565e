/* Reads the settings of a byte-level tokenizer from tokenizer_config.json. */
#ifndef TUTTI_TOKENIZER_JSON_BYTE_CONFIG_H
#define TUTTI_TOKENIZER_JSON_BYTE_CONFIG_H

#include "tokenizer/bytes/byte_level.h"

#include <jansson.h>

/* Parses the JSON of a file. *out: the caller's reference. Errors name the file. */
MUST_CHECK enum tutti_status byte_config_parse(json_t **out, const void *bytes, size_t n_bytes,
                                               const char *name, struct tutti_error *err);

/* Adds an entry of added_tokens or added_tokens_decoder: content and flags. */
MUST_CHECK enum tutti_status byte_config_add(struct tokenizer *tok, const json_t *entry, int64_t id,
                                             const char *name, struct tutti_error *err);

/* Fills byte tokens from {"spelling": id, ...}. */
MUST_CHECK enum tutti_status byte_config_vocab(struct tokenizer *tok, const json_t *vocab, const char *name,
                                               struct tutti_error *err);

/* Adds the tokens of added_tokens_decoder that were not added yet. */
MUST_CHECK enum tutti_status byte_config_add_all(struct tokenizer *tok, const json_t *config,
                                                 const char *name, struct tutti_error *err);

/* Makes special tokens of those of the vocabulary that the settings name: bos_token, eos_token, ... */
MUST_CHECK enum tutti_status byte_config_add_named(struct tokenizer *tok, const json_t *config,
                                                   const char *name, struct tutti_error *err);

/* Reads bos_token, eos_token, unk_token, add_bos_token. Tokens that are not in the vocabulary are
 * ignored. */
MUST_CHECK enum tutti_status byte_config_specials(struct tokenizer *tok, const json_t *config,
                                                  const char *name, struct tutti_error *err);

/* The id of a token by its text: an added token, or one of the vocabulary. -1: not found. */
int32_t byte_config_find(const struct tokenizer *tok, const char *text);

#endif
