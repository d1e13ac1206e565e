/* Byte-level tokenizers of checkpoints: which file of a folder, which rules where the files do not say them. */
#ifndef TUTTI_MODEL_LOAD_TOKENIZER_BYTES_H
#define TUTTI_MODEL_LOAD_TOKENIZER_BYTES_H

#include "base/files/mapping.h"
#include "checkpoint/gguf/gguf.h"
#include "model/description/family.h"

/* What is needed to read a folder's tokenizer. */
struct tokenizer_source {
    const struct family *family;
    const struct model_desc *desc;
    const struct checkpoint *ck;
    const char *folder;
    json_t *tokenizer_config; /* completed by other files: tokenizer_settings.h. NULL: none */
    char path[4096];          /* of the file that is read */
};

MUST_CHECK enum tutti_status tokenizer_read_json(struct tokenizer **out, const struct tokenizer_source *s,
                                                 const struct mapping *map, struct tutti_error *err);
/* vocab.json, with merges.txt beside it. */
MUST_CHECK enum tutti_status tokenizer_read_vocab(struct tokenizer **out, const struct tokenizer_source *s,
                                                  const struct mapping *map, struct tutti_error *err);
MUST_CHECK enum tutti_status tokenizer_read_tiktoken(struct tokenizer **out, const struct tokenizer_source *s,
                                                     const struct mapping *map, struct tutti_error *err);

/* Names of tokenizer.ggml.model that no other program has, for what those that others know cannot say: SentencePiece's
 * settings one by one, and the text of a tokenizer.json with that of tokenizer_config.json. */
#define TOKENIZER_KIND_OWN        "sentencepiece"
#define TOKENIZER_OWN_KEY(name)   "tokenizer.sentencepiece." name
#define TOKENIZER_KIND_JSON       "huggingface"
#define TOKENIZER_JSON_KEY        "tokenizer.huggingface.json"
#define TOKENIZER_JSON_CONFIG_KEY "tokenizer.huggingface.config"

MUST_CHECK enum tutti_status tokenizer_read_gguf_json(struct tokenizer **out, const struct gguf *gguf,
                                                      const char *path, struct tutti_error *err);

/* tokenizer.model of SentencePiece, with the added tokens that other files of the folder list. */
MUST_CHECK enum tutti_status tokenizer_read_sentencepiece(struct tokenizer **out,
                                                          const struct tokenizer_source *s,
                                                          const struct mapping *map, struct tutti_error *err);

/* tutti's own keys in a GGUF file, for what GGUF has no keys: the added tokens with their flags, a JSON list as in tokenizer.json
 * ("in_model": the SentencePiece model also finds it in any text), and the rule of SentencePiece's dummy prefix. */
#define TOKENIZER_ADDED_KEY  "tokenizer.tutti.added_tokens"
#define TOKENIZER_PREFIX_KEY "tokenizer.tutti.prefixes_first_alone"

/* *out: the list, for json_decref(); NULL: the file has none. */
MUST_CHECK enum tutti_status tokenizer_read_added(json_t **out, const struct gguf *gguf, const char *path,
                                                  struct tutti_error *err);
/* Gives the tokens of such a list to a tokenizer of SentencePiece's kinds. */
MUST_CHECK enum tutti_status tokenizer_add_listed(struct tokenizer *tok, const json_t *list, const char *name,
                                                  struct tutti_error *err);

/* tokenizer.ggml.model "bert". */
MUST_CHECK enum tutti_status tokenizer_read_gguf_bert(struct tokenizer **out, const struct gguf *gguf,
                                                      const char *path, struct tutti_error *err);

/* tokenizer.ggml.model "gpt2", "gemma4" and "whitespace". */
MUST_CHECK enum tutti_status tokenizer_read_gguf(struct tokenizer **out, const struct gguf *gguf,
                                                 const char *path, struct tutti_error *err);

#endif
