/* Converts text to token ids and back. A tokenizer is immutable once built: any number of threads
 * may use it.
 *
 * Pieces (tokens) have ids 0..n-1. Text never yields CONTROL or UNUSED pieces by spelling them,
 * nor UNKNOWN or BYTE pieces, which represent characters without a piece. */
#ifndef TUTTI_TOKENIZER_H
#define TUTTI_TOKENIZER_H

#include "base/buf.h"
#include "base/error.h"
#include "base/ids.h"

/* As SentencePiece and GGUF number them. */
enum piece_type {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
};

struct tokenizer;

/* From the bytes of a SentencePiece tokenizer.model (unigram or BPE). name is for messages. The
 * bytes may be freed afterwards. TUTTI_E_FORMAT: the library would refuse the file too, or a
 * score is not finite. TUTTI_E_UNSUPPORTED: a word or character model, or one with a
 * denormalizer. */
MUST_CHECK enum tutti_status tokenizer_from_sentencepiece(struct tokenizer **out, const void *bytes,
                                                          size_t n_bytes, const char *name,
                                                          struct tutti_error *err);

/* From ChatGLM-6B's ice_text.model. n_images: image tokens before those of the file (20000 in its
 * first release). Line feeds, tabs and runs of blanks have their own pieces; as in the original,
 * a text that spells such a piece gives the same id. bos and eos are <sop> and <eop>. */
MUST_CHECK enum tutti_status tokenizer_from_icetext(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                                    int32_t n_images, const char *name,
                                                    struct tutti_error *err);

/* From PanGu-Alpha's vocab.model. jieba_folder: the files of the Python package jieba, with which
 * the original splits text into words; NULL: none, which gives other ids for Chinese text. eos is
 * <eod>. */
MUST_CHECK enum tutti_status tokenizer_from_pangu(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                                  const char *jieba_folder, const char *name,
                                                  struct tutti_error *err);

/* One piece of a vocabulary given as arrays (GGUF's tokenizer.ggml.*). */
struct piece {
    const char *bytes; /* not terminated */
    size_t n_bytes;
    float score;
    enum piece_type type;
};

/* The files of the Python package jieba for word splitting, by their paths in its folder. */
enum { N_WORD_FILES = 4 };
extern const char *const WORD_FILES[N_WORD_FILES];
struct word_files {
    struct word_file {
        const void *bytes;
        size_t n_bytes;
    } file[N_WORD_FILES];
};

/* A SentencePiece vocabulary as arrays, GGUF's tokenizer.ggml.model "llama" (BPE) and "t5"
 * (unigram). byte_fallback: BYTE pieces replace characters without a piece. Unless all 256 of
 * them exist, unk_id must be set for uncovered bytes. The members after map are settings that
 * those two GGUF kinds do not have. The arrays are borrowed for the call. */
struct piece_vocab {
    const struct piece *pieces;
    size_t n_pieces;
    bool add_dummy_prefix, remove_extra_whitespaces, byte_fallback;
    int32_t unk_id, bos_id, eos_id; /* -1: none */
    bool is_unigram;
    const uint8_t *map; /* [n_map_bytes] the normalizer's precompiled_charsmap; NULL: none */
    size_t n_map_bytes;
    bool keeps_blanks, blank_is_suffix; /* no blank marks; marks follow words */
    const char *unk_surface;            /* [n_unk_surface] text of the unknown piece; NULL: the default */
    size_t n_unk_surface;
    enum piece_rules { PIECES_PLAIN, PIECES_ICETEXT, PIECES_PANGU } rules;
    int32_t n_images;               /* PIECES_ICETEXT: number of image tokens at the start */
    const struct word_files *words; /* PIECES_PANGU; NULL: none */
};
MUST_CHECK enum tutti_status tokenizer_from_pieces(struct tokenizer **out, const struct piece_vocab *vocab,
                                                   const char *name, struct tutti_error *err);

void tokenizer_free(struct tokenizer *tok); /* NULL is allowed */

/* ---- while a model is being loaded ---- */

/* Appends a CONTROL piece to the vocabulary; *id: its id. */
MUST_CHECK enum tutti_status tokenizer_add_control(struct tokenizer *tok, const char *text, int32_t *id,
                                                   struct tutti_error *err);

/* An added token: matched in the text before all other steps of the tokenizer. */
struct added_token {
    int32_t id;
    bool is_special;         /* found only in trusted text */
    bool takes_left_blanks;  /* includes white space before it */
    bool takes_right_blanks; /* includes white space after it */
    bool is_single_word;     /* no letter, digit or underscore may precede or follow it */
    bool is_normalized;      /* is matched in normalized text */
};

/* For SentencePiece tokenizers; call tokenizer_finish_added() after the last. A token beyond the
 * vocabulary is appended, with padding for ids between; one within it may get another spelling. A
 * special token is hidden in decoded text (PIECE_CONTROL) unless it is an ordinary piece of the
 * model: then it stays text, and is only recognized in trusted text. TUTTI_E_FORMAT: the id or
 * the text is out of range. name: the file, for messages. */
MUST_CHECK enum tutti_status tokenizer_add_token(struct tokenizer *tok, const char *text, size_t n_bytes,
                                                 struct added_token token, const char *name,
                                                 struct tutti_error *err);
/* Adds the model's own special pieces: CONTROL and UNKNOWN; of GGUF vocabularies also
 * USER_DEFINED. stripping: a text loses the blanks after them, as in Phi-3. */
MUST_CHECK enum tutti_status tokenizer_add_own_tokens(struct tokenizer *tok, bool with_user_defined,
                                                      bool stripping, const char *name,
                                                      struct tutti_error *err);
void tokenizer_clear_added(struct tokenizer *tok);
MUST_CHECK enum tutti_status tokenizer_finish_added(struct tokenizer *tok, const char *name,
                                                    struct tutti_error *err);
size_t tokenizer_n_added(const struct tokenizer *tok);
struct added_token tokenizer_added(const struct tokenizer *tok, size_t index);

/* Where SentencePiece tokenizers add the dummy prefix: before every part between two added tokens
 * (the default), or only at the start of the text. */
void tokenizer_set_prefix_rule(struct tokenizer *tok, bool at_first_only);
bool tokenizer_prefixes_first_only(const struct tokenizer *tok);
void tokenizer_drop_prefix(struct tokenizer *tok); /* text gets no dummy prefix, whatever the file says */

/* Sets the bos and eos tokens; -1: none. */
void tokenizer_set_ends(struct tokenizer *tok, int32_t bos_id, int32_t eos_id);

/* Whether it is a piece that the SentencePiece model matches in any text, although other files
 * declare it special. */
bool tokenizer_is_mark_of_model(const struct tokenizer *tok, int32_t id);

/* Sets whether bos is added before and eos after a text, if the tokenizer has them. */
void tokenizer_set_affixes(struct tokenizer *tok, bool adds_bos, bool adds_eos);

/* Limits the ids that text can yield to those below n_rows, for a model with a smaller embedding.
 * Special added tokens beyond it are still recognized, so that a prompt with one can be refused.
 * TUTTI_E_FORMAT: the remaining tokens cannot represent every text. */
MUST_CHECK enum tutti_status tokenizer_limit(struct tokenizer *tok, int32_t n_rows, const char *name,
                                             struct tutti_error *err);

int32_t tokenizer_n_pieces(const struct tokenizer *tok);
int32_t tokenizer_bos(const struct tokenizer *tok); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_unk(const struct tokenizer *tok);
struct piece tokenizer_piece(const struct tokenizer *tok,
                             int32_t id); /* id within the vocabulary; borrowed */
int32_t tokenizer_find(const struct tokenizer *tok, const char *piece, size_t n_bytes); /* -1: none */
/* The id of a CONTROL piece by its spelling; a NORMAL piece may have the same spelling. -1: none. */
int32_t tokenizer_find_control(const struct tokenizer *tok, const char *spelling);
/* The id of an added token by its spelling, special or not. -1: none. */
int32_t tokenizer_find_added(const struct tokenizer *tok, const char *spelling);

/* The special tokens that a tokenizer adds before and after a text. is_known: its files define
 * them; otherwise the model's family does. */
enum { MAX_AFFIX_IDS = 8 };
struct token_affixes {
    bool is_known;
    int n_before, n_after;
    int32_t before[MAX_AFFIX_IDS], after[MAX_AFFIX_IDS];
    /* Between the two texts of a pair, which has the others too. n_between 0: the files do not say it. */
    int n_between;
    int32_t between[MAX_AFFIX_IDS];
};
const struct token_affixes *tokenizer_affixes(const struct tokenizer *tok); /* borrowed */

/* Fills the settings of a SentencePiece vocabulary, except pieces and words; borrowed. */
void tokenizer_describe(const struct tokenizer *tok, struct piece_vocab *out);

/* GGUF's tokenizer.ggml.model that can express this tokenizer, with struct piece_vocab's
 * settings; NULL: none. */
const char *tokenizer_gguf_kind(const struct tokenizer *tok);

/* Adds the ids of text, equal to SentencePiece's EncodeAsIds() for every sequence of bytes
 * (version 0.2.3 of the library; older ones differ where a model has a CONTROL or UNUSED piece of
 * a single character). The time is n log n in the longest part that merges could join, usually a
 * word. False: out of memory, a text of 512 MiB or more, a pattern's limit (out->why), or more ids
 * than out->max, which is detected as early as the kind of tokenizer allows (ids.h). */
MUST_CHECK bool tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                 struct ids *out);

/* The error of a text that could not be encoded. TUTTI_E_LIMIT: it names the limit; TUTTI_E_MEMORY. */
enum tutti_status tokenizer_encode_error(const struct ids *out, struct tutti_error *err);

/* The same for a text with trusted ranges: special tokens are recognized only if they are within
 * one range. Text between two special tokens is split by the tokenizer's own rules, as in the
 * reference library. The rest is user text: it never yields a special token, not even one that a
 * SentencePiece model matches in any text. ranges: ascending, without overlap. */
struct trusted_range {
    size_t begin, end; /* bytes of the text */
};
MUST_CHECK bool tokenizer_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                        const struct trusted_range *ranges, size_t n_ranges, struct ids *out);

/* Appends the text of all ids together, equal to SentencePiece's DecodeIds(). Ids must be within the
 * vocabulary. False: out of memory. */
MUST_CHECK bool tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n_ids,
                                 struct buf *out);

/* Appends the bytes of one token inside a text (the blank mark as a space, a BYTE piece as its
 * byte, nothing for CONTROL). False: out of memory. */
MUST_CHECK bool tokenizer_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

/* ---- incremental detokenizer ---- The concatenation of all output, detokenizer_finish()
 * included, equals tokenizer_decode() of all ids. Each push yields all text that no later token
 * can change, in whole UTF-8 characters. */
struct detokenizer {
    const struct tokenizer *tok;
    bool at_start;   /* only control pieces so far: the dummy prefix's blank is dropped */
    uint8_t held[4]; /* an incomplete character */
    int n_held;
    uint8_t n_stripped; /* characters dropped from the text's start */
    int n_marks;        /* pending characters that are dropped if they end the text */
};

/* keep_first_blank: the text continues another one, so its first blank is text. */
void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, bool keep_first_blank);
/* False: out of memory. Ids outside the vocabulary yield nothing. */
MUST_CHECK bool detokenizer_push(struct detokenizer *d, int32_t id, struct buf *out);
MUST_CHECK bool detokenizer_finish(struct detokenizer *d, struct buf *out);

#endif
