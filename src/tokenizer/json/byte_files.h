/* The files that byte-level tokenizers come in. What text becomes is what the Hugging Face tokenizers library (and tiktoken,
 * for its files) makes of it; of text that is no UTF-8 every wrong sequence is read as U+FFFD.
 *
 * Text yields added tokens by their spelling where the file does not call them special; a special one never. */
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

/* All: config is the folder's tokenizer_config.json, NULL: none. It says which tokens are bos, eos and unknown, and for
 * the last two formats which tokens are added. TUTTI_E_FORMAT: the file is wrong; TUTTI_E_UNSUPPORTED: it wants what is not
 * known here; both name file and field. */

/* tokenizer.json; docs/tokenizers.md lists what is supported. */
MUST_CHECK enum tutti_status tokenizer_from_json(struct tokenizer **out, const struct byte_file *file,
                                                 const json_t *config, struct tutti_error *err);

/* vocab.json and merges.txt, which do not say how text is cut: pre is a name as GGUF has them ("gpt-2", "qwen2"). */
MUST_CHECK enum tutti_status tokenizer_from_vocab_merges(struct tokenizer **out,
                                                         const struct byte_file *vocab,
                                                         const struct byte_file *merges, const char *pre,
                                                         const json_t *config, struct tutti_error *err);

/* Lines of base64 and rank. specials: [n_specials] what follows the last rank where config does not say it. */
MUST_CHECK enum tutti_status tokenizer_from_tiktoken(struct tokenizer **out, const struct byte_file *file,
                                                     const char *pre, const char *const *specials,
                                                     size_t n_specials, const json_t *config,
                                                     struct tutti_error *err);

/* Does a file look like lines of base64 and rank? */
bool tokenizer_is_tiktoken(const void *bytes, size_t n_bytes);

/* GGUF's tokenizer.ggml.model "gpt2". tokens as GGUF spells them, their types alone count; merges: "left right". Borrowed
 * for the call. adds_bos: -1: as the name of the steps has it. */
struct byte_vocab {
    const struct piece *tokens;
    size_t n_tokens;
    const struct piece *merges; /* bytes alone count */
    size_t n_merges;
    const char *pre;
    int adds_bos;
    bool adds_eos;
    bool lowers;         /* text becomes small letters first */
    const json_t *added; /* a list as tokenizer.json's added_tokens; NULL: by the types of tokens */
    int32_t unk_id, bos_id, eos_id; /* -1: none */
};
MUST_CHECK enum tutti_status tokenizer_from_byte_vocab(struct tokenizer **out, const struct byte_vocab *vocab,
                                                       const char *name, struct tutti_error *err);

/* GGUF's tokenizer.ggml.model "bert": WordPiece, in which a word begins with U+2581 instead of its continuation with "##".
 * tokens: their types count. */
struct bert_vocab {
    const struct piece *tokens;
    size_t n_tokens;
    bool lowers, strips_accents;
    int32_t unk_id, bos_id, sep_id; /* bos before a text, sep after it; -1: none, but for unk_id */
};
MUST_CHECK enum tutti_status tokenizer_from_bert_vocab(struct tokenizer **out, const struct bert_vocab *vocab,
                                                       const char *name, struct tutti_error *err);

/* ---- what GGUF must be told of one ---- */

bool tokenizer_is_byte_level(const struct tokenizer *tok);
/* The name of how it cuts text; NULL: GGUF has none for it. */
const char *tokenizer_pre(const struct tokenizer *tok);
/* Does it put bos in front of a text? -1: its files do not say. */
int tokenizer_adds_bos(const struct tokenizer *tok);
bool tokenizer_adds_eos(const struct tokenizer *tok); /* and eos after it? */
/* The spelling of a token in the alphabet of bytes, or as it is where it is no NORMAL one. False: out of memory. */
MUST_CHECK bool tokenizer_spelling(const struct tokenizer *tok, int32_t id, struct buf *out);
/* Merges, first to last: gives each as "left right" to `add`. False: it did, or out of memory. */
typedef bool merge_line_fn(void *to, const char *line, size_t n_bytes);
MUST_CHECK bool tokenizer_each_merge(const struct tokenizer *tok, merge_line_fn *add, void *to);

/* tokenizer_encode(), but where text spells special tokens it yields them: for text that is trusted. */
MUST_CHECK bool tokenizer_encode_trusted(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                         struct ids *out);

#endif
