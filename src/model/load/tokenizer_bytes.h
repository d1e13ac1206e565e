/* Reads the tokenizer files of checkpoints, and chooses the pre-tokenization rules if the files
 * do not state them. */
#ifndef TUTTI_MODEL_LOAD_TOKENIZER_BYTES_H
#define TUTTI_MODEL_LOAD_TOKENIZER_BYTES_H

#include "base/files/mapping.h"
#include "checkpoint/gguf/gguf.h"
#include "model/description/family.h"

/* The inputs for reading a folder's tokenizer. */
struct tokenizer_source {
    const struct family *family;
    const struct model_desc *desc;
    const struct checkpoint *ck;
    const char *folder;
    json_t *tokenizer_config; /* merged with other files, see tokenizer_settings.h. NULL: none */
    /* tokenizer.json, parsed once for all that read it. NULL: the folder has none, or it is no JSON
     * object, as json_error says. */
    json_t *json;
    struct tutti_error json_error;
    char path[4096]; /* of the tokenizer file */
};

MUST_CHECK enum tutti_status tokenizer_read_json(struct tokenizer **out, const struct tokenizer_source *s,
                                                 const struct mapping *map, struct tutti_error *err);
/* vocab.json, with merges.txt in the same folder. */
MUST_CHECK enum tutti_status tokenizer_read_vocab(struct tokenizer **out, const struct tokenizer_source *s,
                                                  const struct mapping *map, struct tutti_error *err);
/* vocab.txt of BertTokenizer. */
MUST_CHECK enum tutti_status tokenizer_read_wordpiece(struct tokenizer **out,
                                                      const struct tokenizer_source *s,
                                                      const struct mapping *map, struct tutti_error *err);
/* BertTokenizer's settings in tokenizer_config.json take precedence over the normalizer of tokenizer.json,
 * as in transformers. */
MUST_CHECK enum tutti_status tokenizer_apply_bert_settings(const struct tokenizer_source *s,
                                                           struct tutti_error *err);
MUST_CHECK enum tutti_status tokenizer_read_tiktoken(struct tokenizer **out, const struct tokenizer_source *s,
                                                     const struct mapping *map, struct tutti_error *err);

/* Values of tokenizer.ggml.model that only tutti writes, for tokenizers that the common values
 * cannot express: SentencePiece's settings one by one, and the texts of tokenizer.json and
 * tokenizer_config.json. */
#define TOKENIZER_KIND_OWN        "sentencepiece"
#define TOKENIZER_OWN_KEY(name)   "tokenizer.sentencepiece." name
#define TOKENIZER_KIND_JSON       "huggingface"
#define TOKENIZER_JSON_KEY        "tokenizer.huggingface.json"
#define TOKENIZER_JSON_CONFIG_KEY "tokenizer.huggingface.config"

MUST_CHECK enum tutti_status tokenizer_read_gguf_json(struct tokenizer **out, const struct gguf *gguf,
                                                      const char *path, struct tutti_error *err);

/* Whether tokenizer.json matches its special tokens in the normalized text, in which its own
 * normalizer lets them never occur: as of early conversions of LLaMA. */
bool tokenizer_json_hides_marks(const struct tokenizer_source *s);

/* Whether tokenizer.json puts a blank before a text, but LLaMA's class does not, by add_prefix_space. */
bool tokenizer_json_has_wrong_prefix(const struct tokenizer_source *s);

/* tokenizer.model of SentencePiece, with the added tokens that other files of the folder list. */
MUST_CHECK enum tutti_status tokenizer_read_sentencepiece(struct tokenizer **out,
                                                          const struct tokenizer_source *s,
                                                          const struct mapping *map, struct tutti_error *err);

/* tutti's own keys in a GGUF file, where GGUF has none: the added tokens with their flags, a JSON
 * list as in tokenizer.json ("in_model": the SentencePiece model also matches the token in any
 * text), and the rule of SentencePiece's dummy prefix. */
#define TOKENIZER_ADDED_KEY  "tokenizer.tutti.added_tokens"
#define TOKENIZER_PREFIX_KEY "tokenizer.tutti.prefixes_first_alone"

/* *out: the list, for json_decref(); NULL: the file has none. */
MUST_CHECK enum tutti_status tokenizer_read_added(json_t **out, const struct gguf *gguf, const char *path,
                                                  struct tutti_error *err);
/* Adds the tokens of such a list to a SentencePiece tokenizer. */
MUST_CHECK enum tutti_status tokenizer_add_listed(struct tokenizer *tok, const json_t *list, const char *name,
                                                  struct tutti_error *err);

/* tokenizer.ggml.model "bert". */
MUST_CHECK enum tutti_status tokenizer_read_gguf_bert(struct tokenizer **out, const struct gguf *gguf,
                                                      const char *path, struct tutti_error *err);

/* tokenizer.ggml.model "gpt2", "gemma4" and "whitespace". */
MUST_CHECK enum tutti_status tokenizer_read_gguf(struct tokenizer **out, const struct gguf *gguf,
                                                 const char *path, struct tutti_error *err);

#endif
