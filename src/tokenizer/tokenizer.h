/* Text to token ids and back. A tokenizer is immutable once made: any number of threads may read it.
 *
 * Pieces have ids 0..n-1. Text never yields CONTROL or UNUSED pieces by spelling them, nor UNKNOWN and BYTE ones: these
 * stand for characters that are no piece. */
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

/* From the bytes of a SentencePiece tokenizer.model (unigram or BPE). name is for messages. The bytes may go away
 * afterwards. TUTTI_E_FORMAT: the library would refuse the file too, or a score is no finite number.
 * TUTTI_E_UNSUPPORTED: a word or character model, or one with a denormalizer. */
MUST_CHECK enum tutti_status tokenizer_from_sentencepiece(struct tokenizer **out, const void *bytes,
                                                          size_t n_bytes, const char *name,
                                                          struct tutti_error *err);

/* From ChatGLM-6B's ice_text.model. n_images: tokens of images in front of those of the file (20000 in its first
 * release). Line feeds, tabs and runs of blanks have pieces of their own here; a text that spells those pieces is not told
 * apart from them, as by its authors. bos and eos are <sop> and <eop>. */
MUST_CHECK enum tutti_status tokenizer_from_icetext(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                                    int32_t n_images, const char *name,
                                                    struct tutti_error *err);

/* From PanGu-Alpha's vocab.model. jieba_folder: the files of the Python package jieba, with which its authors cut text into
 * words; NULL: without them, which gives other ids for Chinese text. eos is <eod>. */
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

/* The files of the Python package jieba that cut text into words, by their places in its folder. */
enum { N_WORD_FILES = 4 };
extern const char *const WORD_FILES[N_WORD_FILES];
struct word_files {
    struct word_file {
        const void *bytes;
        size_t n_bytes;
    } file[N_WORD_FILES];
};

/* A SentencePiece vocabulary as arrays, GGUF's tokenizer.ggml.model "llama" (BPE) and "t5" (unigram). byte_fallback: BYTE
 * pieces replace characters without a piece. Unless all 256 of them are there, unk_id must be, for what they do not cover.
 * What follows map is what those two cannot say. The arrays are borrowed for the call. */
struct piece_vocab {
    const struct piece *pieces;
    size_t n_pieces;
    bool add_dummy_prefix, remove_extra_whitespaces, byte_fallback;
    int32_t unk_id, bos_id, eos_id; /* -1: none */
    bool is_unigram;
    const uint8_t *map; /* [n_map_bytes] the normalizer's precompiled_charsmap; NULL: none */
    size_t n_map_bytes;
    bool keeps_blanks, blank_is_suffix; /* no blank marks; they stand behind words */
    const char *unk_surface; /* [n_unk_surface] what the unknown piece is shown as; NULL: the default */
    size_t n_unk_surface;
    enum piece_rules { PIECES_PLAIN, PIECES_ICETEXT, PIECES_PANGU } rules;
    int32_t n_images;               /* PIECES_ICETEXT: how many of the first pieces are images */
    const struct word_files *words; /* PIECES_PANGU; NULL: none */
};
MUST_CHECK enum tutti_status tokenizer_from_pieces(struct tokenizer **out, const struct piece_vocab *vocab,
                                                   const char *name, struct tutti_error *err);

void tokenizer_free(struct tokenizer *tok); /* NULL is allowed */

/* ---- while a model is being loaded ---- */

/* Appends a CONTROL piece to the vocabulary; *id: its id. */
MUST_CHECK enum tutti_status tokenizer_add_control(struct tokenizer *tok, const char *text, int32_t *id,
                                                   struct tutti_error *err);

/* An added token: its text becomes the token before the tokenizer does anything else. */
struct added_token {
    int32_t id;
    bool is_special;         /* found only in trusted text */
    bool takes_left_blanks;  /* blanks before it belong to it */
    bool takes_right_blanks; /* blanks after it do */
    bool is_single_word;     /* no letter, digit or underscore may precede or follow it */
    bool is_normalized;      /* it is looked for in normalized text */
};

/* For SentencePiece's kinds; tokenizer_finish_added() ends the adding. A token beyond the vocabulary is appended, and ids between are
 * padding; one within it may get another spelling. A special token is hidden in decoded text (PIECE_CONTROL) unless it is an
 * ordinary piece of the model: that one stays text, and is cut out of trusted text.
 * TUTTI_E_FORMAT: the id or the text is out of range. name: the file, for messages. */
MUST_CHECK enum tutti_status tokenizer_add_token(struct tokenizer *tok, const char *text, size_t n_bytes,
                                                 struct added_token token, const char *name,
                                                 struct tutti_error *err);
/* The pieces of the model that are special by themselves: CONTROL and UNKNOWN, of GGUF vocabularies USER_DEFINED as well. */
MUST_CHECK enum tutti_status tokenizer_add_own_tokens(struct tokenizer *tok, bool with_user_defined,
                                                      const char *name, struct tutti_error *err);
void tokenizer_clear_added(struct tokenizer *tok);
MUST_CHECK enum tutti_status tokenizer_finish_added(struct tokenizer *tok, const char *name,
                                                    struct tutti_error *err);
size_t tokenizer_n_added(const struct tokenizer *tok);
struct added_token tokenizer_added(const struct tokenizer *tok, size_t index);

/* Where SentencePiece's kinds put the dummy prefix: before every part between two added tokens (the default), or only before a part that
 * begins the text. */
void tokenizer_set_prefix_rule(struct tokenizer *tok, bool at_first_alone);
bool tokenizer_prefixes_first_alone(const struct tokenizer *tok);

/* Which tokens begin and end a text; -1: none. */
void tokenizer_set_ends(struct tokenizer *tok, int32_t bos_id, int32_t eos_id);

/* Is it a piece that the SentencePiece model finds in any text, though other files call it special? */
bool tokenizer_is_mark_of_model(const struct tokenizer *tok, int32_t id);

/* Which tokens surround a text: bos before it, eos after it, if the tokenizer has them. */
void tokenizer_set_affixes(struct tokenizer *tok, bool adds_bos, bool adds_eos);

/* Tokens from id n_rows on are never made from text any more, for a model with fewer rows. Special added tokens among them are
 * still recognized, so that a prompt with one can be refused. TUTTI_E_FORMAT: the remaining tokens cannot represent any text. */
MUST_CHECK enum tutti_status tokenizer_limit(struct tokenizer *tok, int32_t n_rows, const char *name,
                                             struct tutti_error *err);

int32_t tokenizer_n_pieces(const struct tokenizer *tok);
int32_t tokenizer_bos(const struct tokenizer *tok); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_unk(const struct tokenizer *tok);
struct piece tokenizer_piece(const struct tokenizer *tok,
                             int32_t id); /* id within the vocabulary; borrowed */
int32_t tokenizer_find(const struct tokenizer *tok, const char *piece, size_t n_bytes); /* -1: none */
/* The id of a CONTROL piece by its spelling; a NORMAL piece may be spelled alike. -1: none. */
int32_t tokenizer_find_control(const struct tokenizer *tok, const char *spelling);
bool tokenizer_adds_dummy_prefix(const struct tokenizer *tok);

/* The tokens that a tokenizer's files put around a text if special tokens are added. is_known: the files define them; else the model's
 * family does. */
enum { MAX_AFFIX_IDS = 8 };
struct token_affixes {
    bool is_known;
    int n_before, n_after;
    int32_t before[MAX_AFFIX_IDS], after[MAX_AFFIX_IDS];
};
const struct token_affixes *tokenizer_affixes(const struct tokenizer *tok); /* borrowed */

/* All of a SentencePiece tokenizer's vocabulary but the pieces and the files of words; borrowed. */
void tokenizer_describe(const struct tokenizer *tok, struct piece_vocab *out);

/* GGUF's tokenizer.ggml.model that can say all of it, with struct piece_vocab's settings; NULL: none can. */
const char *tokenizer_gguf_kind(const struct tokenizer *tok);

/* Adds the ids of text, equal to SentencePiece's EncodeAsIds() for every sequence of bytes (version 0.2.3 of the library;
 * older ones differ where a model has a CONTROL or UNUSED piece of a single character). The time is that of n log n in
 * the longest part that merges could join, which is mostly a word.
 * False: out of memory, a text of 512 MiB and more, or more ids than out->max, which is noticed as early as the kind of tokenizer
 * allows (ids.h). */
MUST_CHECK bool tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                 struct ids *out);

/* The same for a text of which parts are trusted: a special token counts only within one range. Text between two special tokens follows
 * the tokenizer's own rules, so that it is cut as by the reference library. The rest is the text of users: no special token is made of it,
 * not even one that a SentencePiece model finds in any text.
 * ranges: ascending, none overlaps another. */
struct trusted_range {
    size_t begin, end; /* bytes of the text */
};
MUST_CHECK bool tokenizer_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                        const struct trusted_range *ranges, size_t n_ranges, struct ids *out);

/* Adds the text of all ids together, equal to SentencePiece's DecodeIds(). Ids must lie within the vocabulary.
 * False: out of memory. */
MUST_CHECK bool tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n_ids,
                                 struct buf *out);

/* The bytes that one token stands for inside a text (the blank mark as a space, a BYTE piece as its byte, nothing for
 * CONTROL). Adds them to out. False: out of memory. */
MUST_CHECK bool tokenizer_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

/* ---- incremental detokenizer ----
 * The concatenation of all output, detokenizer_finish() included, equals tokenizer_decode() of all ids. Each push
 * yields all text that no later token can change, in whole UTF-8 characters. */
struct detokenizer {
    const struct tokenizer *tok;
    bool at_start;   /* nothing but control pieces so far: the blank of the dummy prefix is dropped */
    uint8_t held[4]; /* the start of a character that is not complete */
    int n_held;
    uint8_t n_stripped; /* characters dropped from the text's start */
    int n_marks;        /* characters that may end the text, and are dropped then */
};

/* keep_first_blank: the text continues another one, so its first blank is text. */
void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, bool keep_first_blank);
/* False: out of memory. Ids outside the vocabulary yield nothing. */
MUST_CHECK bool detokenizer_push(struct detokenizer *d, int32_t id, struct buf *out);
MUST_CHECK bool detokenizer_finish(struct detokenizer *d, struct buf *out);

#endif
