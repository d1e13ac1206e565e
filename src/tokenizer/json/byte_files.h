/* Loads byte-level tokenizers from their file formats. Encoding gives the same ids as the Hugging
 * Face tokenizers library (or tiktoken, for its files). Each invalid UTF-8 sequence is read as
 * U+FFFD.
 *
 * Text can spell added tokens that are not special; it never yields special ones. */
#ifndef TUTTI_TOKENIZER_JSON_BYTE_FILES_H
#define TUTTI_TOKENIZER_JSON_BYTE_FILES_H

#include "tokenizer/tokenizer.h"

#include <jansson.h>

/* A file, or a part of one. */
struct byte_file {
    const void *bytes;
    size_t n_bytes;
    const char *name; /* for messages */
};

/* In all functions: config is the folder's tokenizer_config.json; NULL: none. It defines the bos,
 * eos and unknown tokens and, for vocab.json and tiktoken, the added tokens. TUTTI_E_FORMAT: the
 * file is invalid; TUTTI_E_UNSUPPORTED: it uses an unsupported feature; both name file and field. */

/* True in an entry of added_tokens_decoder that came from added_tokens.json, which has no flags.
 * "special" is then set if a special-token setting (such as "eos_token") names the token. */
#define TOKENIZER_WITHOUT_FLAGS "without_flags"

/* tokenizer.json; docs/tokenizers.md lists what is supported. */
MUST_CHECK enum tutti_status tokenizer_from_json(struct tokenizer **out, const struct byte_file *file,
                                                 const json_t *config, struct tutti_error *err);

/* The same of a parsed file, which is borrowed for the call. */
MUST_CHECK enum tutti_status tokenizer_from_json_root(struct tokenizer **out, const json_t *root,
                                                      const char *name, const json_t *config,
                                                      struct tutti_error *err);

/* vocab.json and merges.txt, which do not define the pre-tokenization: pre is one of GGUF's names
 * ("gpt-2", "qwen2"). */
MUST_CHECK enum tutti_status tokenizer_from_vocab_merges(struct tokenizer **out,
                                                         const struct byte_file *vocab,
                                                         const struct byte_file *merges, const char *pre,
                                                         const json_t *config, struct tutti_error *err);

/* tiktoken: lines of base64 and rank. specials: [n_specials] the tokens after the last rank, if
 * config does not define them. */
MUST_CHECK enum tutti_status tokenizer_from_tiktoken(struct tokenizer **out, const struct byte_file *file,
                                                     const char *pre, const char *const *specials,
                                                     size_t n_specials, const json_t *config,
                                                     struct tutti_error *err);

/* Whether a file looks like lines of base64 and rank. */
bool tokenizer_is_tiktoken(const void *bytes, size_t n_bytes);

/* GGUF's tokenizer.ggml.model "gpt2". tokens: spelled as in GGUF; of the other fields only the
 * type is used. merges: "left right". All is borrowed for the call. adds_bos: -1: the default of
 * pre. */
struct byte_vocab {
    const struct piece *tokens;
    size_t n_tokens;
    const struct piece *merges; /* only bytes are used */
    size_t n_merges;
    const char *pre;
    int adds_bos;
    bool adds_eos;
    bool lowers;                    /* text is lowercased first */
    const json_t *added;            /* a list as in tokenizer.json; NULL: by the types of tokens */
    int32_t unk_id, bos_id, eos_id; /* -1: none */
};
MUST_CHECK enum tutti_status tokenizer_from_byte_vocab(struct tokenizer **out, const struct byte_vocab *vocab,
                                                       const char *name, struct tutti_error *err);

/* GGUF's tokenizer.ggml.model "bert": WordPiece in GGUF's spelling: the start of a word has
 * U+2581, instead of "##" before its continuation. tokens: their types are used. */
struct bert_vocab {
    const struct piece *tokens;
    size_t n_tokens;
    bool lowers, strips_accents;
    int32_t unk_id, bos_id, sep_id; /* bos before a text, sep after it; -1: none, not allowed for unk_id */
};
MUST_CHECK enum tutti_status tokenizer_from_bert_vocab(struct tokenizer **out, const struct bert_vocab *vocab,
                                                       const char *name, struct tutti_error *err);

/* ---- settings to write into a GGUF file ---- */

bool tokenizer_is_byte_level(const struct tokenizer *tok);
/* GGUF's name for its pre-tokenization; NULL: none. */
const char *tokenizer_pre(const struct tokenizer *tok);
/* The same for programs that do not normalize: the name of the rules that cut text alike. NULL: none. */
const char *tokenizer_nearest_pre(const struct tokenizer *tok);
/* Whether it merges characters and spells others as bytes, as SentencePiece does. */
bool tokenizer_merges_text(const struct tokenizer *tok);
/* Gives every token that a merge produces a score as SentencePiece's files have it: merges with a
 * higher score come first. scores: [n_pieces]; 0 for all others. */
void tokenizer_score_merges(const struct tokenizer *tok, float *scores);
/* Whether it adds bos before a text. -1: its files do not say. */
int tokenizer_adds_bos(const struct tokenizer *tok);
bool tokenizer_adds_eos(const struct tokenizer *tok); /* eos after a text */
/* The spelling of a token in the alphabet of byte_map.h, or unchanged if it is not NORMAL. False:
 * out of memory. */
MUST_CHECK bool tokenizer_spelling(const struct tokenizer *tok, int32_t id, struct buf *out);
/* Calls add with each merge as "left right", in order of rank. False: add returned false, or out
 * of memory. */
typedef bool merge_line_fn(void *to, const char *line, size_t n_bytes);
MUST_CHECK bool tokenizer_each_merge(const struct tokenizer *tok, merge_line_fn *add, void *to);

/* tokenizer_encode() that recognizes special tokens in the text: for trusted text only. */
MUST_CHECK bool tokenizer_encode_trusted(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                         struct ids *out);

#endif
