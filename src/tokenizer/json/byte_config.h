/* Reads the settings of a byte-level tokenizer from tokenizer_config.json. */
#ifndef TUTTI_TOKENIZER_JSON_BYTE_CONFIG_H
#define TUTTI_TOKENIZER_JSON_BYTE_CONFIG_H

#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/json/byte_files.h"

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

/* Adds the tokens of added_tokens_decoder. The flags of those that were added before are replaced. */
MUST_CHECK enum tutti_status byte_config_add_all(struct tokenizer *tok, const json_t *config,
                                                 const char *name, struct tutti_error *err);

/* Makes special tokens of those of the vocabulary that the settings name: bos_token, eos_token, ... */
MUST_CHECK enum tutti_status byte_config_add_named(struct tokenizer *tok, const json_t *config,
                                                   const char *name, struct tutti_error *err);

/* Reads bos_token, eos_token, unk_token, and add_bos_token and add_eos_token, which count if the tokens around
 * a text are not known yet, and for the classes that ignore the file's. Tokens that are not in the vocabulary
 * are ignored. */
MUST_CHECK enum tutti_status byte_config_specials(struct tokenizer *tok, const json_t *config,
                                                  const char *name, struct tutti_error *err);

/* Whether tokenizer_class is name, with or without "Fast". */
bool byte_config_is_class(const json_t *config, const char *name);

/* Whether transformers 5 wrote the settings. It keeps them in tokenizer.json, and no class overrides that
 * file. */
bool byte_config_is_of_5(const json_t *config);

/* Whether a ByteLevel that is the whole pre-tokenizer puts a blank before a text; -1: as tokenizer.json says. */
int byte_config_prefix(const json_t *config);

/* The id of a token by its text: an added token, or one of the vocabulary. -1: not found. */
int32_t byte_config_find(const struct tokenizer *tok, const char *text);

#endif
