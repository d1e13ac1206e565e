/* Byte-level BPE: tokens are byte sequences, merged by rank of a list of pairs. Tokens can also
 * consist of characters, for SentencePiece's BPE as implemented in the Hugging Face tokenizers
 * library. Sennrich, Haddow and Birch, 2016; on bytes: Radford et al., 2019.
 *
 * Text goes through four stages: added tokens are split off; the text between them is normalized;
 * patterns split it into words (pre-tokenization); in each word neighbouring tokens are merged,
 * the pair with the lowest rank first. */
#ifndef TUTTI_TOKENIZER_BYTES_BYTE_LEVEL_H
#define TUTTI_TOKENIZER_BYTES_BYTE_LEVEL_H

#include "tokenizer/stages/pretokenize.h"
#include "tokenizer/stages/text_decoder.h"
#include "tokenizer/stages/word_models.h"

/* The merge of a pair: its rank, and the id of the result. Slot of an open-addressing hash table;
 * id -1: free. */
struct merge_slot {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
};

struct merge_pair {
    int32_t left, right;
};

/* Maximum length of the marks of tokens that continue or end a word. */
enum { MAX_WORD_MARK_BYTES = 64 };

struct byte_level {
    struct normalizers normalizers;
    struct pretokenizer pre;
    const struct pre_name *named; /* the name that defined pre; NULL: defined step by step */
    struct merge_pair *pairs;     /* [n_pairs] by rank, in the file's order; NULL with has_ranks */
    size_t n_pairs, pairs_capacity;
    struct merge_slot *merges; /* [merge_mask + 1] */
    uint32_t merge_mask;
    /* A Bloom filter with one hash for pairs that merge: most pairs do not, and the filter fits
     * in a small cache. */
    uint64_t *merge_filter;
    int filter_shift;       /* a 64-bit hash >> filter_shift is the number of a bit */
    int32_t byte_ids[256];  /* -1: no token */
    uint32_t n_token_bytes; /* of the longest token that merges can produce */
    bool has_ranks;         /* no list of pairs: the merge with the lowest token id goes first */
    bool ignores_merges;    /* a word that is a token becomes that token, regardless of merges */
    bool fuses_unknown;
    /* Merging starts from characters instead of bytes. With tok->byte_fallback a character
     * without a token becomes its byte tokens. Spellings are the text itself, with blank marks. */
    bool has_characters;
    /* The pre-tokenizer writes bytes in the alphabet of byte_map.h, and merging starts from
     * bytes. */
    bool spells_words;
    bool takes_feeds_whole;          /* a word of line feeds that is a token becomes that token */
    struct buf inner_mark, end_mark; /* characters: of a token that continues a word, that ends one */
    struct word_model words;         /* other models than merges, for splitting a word */
    struct text_decoder decoder;     /* of tokens that are text */
    /* [n_pieces] whether merging a token's own bytes gives that token. 0: not known yet, 1: yes,
     * 2: no. */
    _Atomic uint8_t *whole;
};

/* A tokenizer without tokens. NULL: out of memory. */
struct tokenizer *byte_level_new(void);
void byte_level_free(struct byte_level *level); /* NULL is allowed */

/* ---- building a tokenizer. name: the file, for messages ---- */

/* Sets the token of an id. bytes: the text of the token. TUTTI_E_FORMAT: duplicate id or bytes,
 * or an id far beyond n_expected. */
MUST_CHECK enum tutti_status byte_level_put(struct tokenizer *tok, int64_t id, const char *bytes,
                                            size_t n_bytes, enum piece_type type, size_t n_expected,
                                            const char *name, struct tutti_error *err);
/* The same for a token spelled in the alphabet of byte_map.h. Any other spelling is kept as it
 * is, and no merge produces it. */
MUST_CHECK enum tutti_status byte_level_put_spelled(struct tokenizer *tok, int64_t id, const char *spelling,
                                                    size_t n_bytes, size_t n_expected, const char *name,
                                                    struct tutti_error *err);
/* Builds the index of tokens, when all are set. Merges and added tokens follow. */
MUST_CHECK enum tutti_status byte_level_index(struct tokenizer *tok, const char *name,
                                              struct tutti_error *err);
/* Adds the next merge. Both parts and the result must be tokens. */
MUST_CHECK enum tutti_status byte_level_add_merge(struct tokenizer *tok, const char *left, size_t n_left,
                                                  const char *right, size_t n_right, const char *name,
                                                  struct tutti_error *err);
/* The same from "left right", the form used in files. */
MUST_CHECK enum tutti_status byte_level_add_merge_line(struct tokenizer *tok, const char *line,
                                                       size_t n_bytes, const char *name,
                                                       struct tutti_error *err);
/* Adds an added token, or makes an existing token an added one. added.id: its id. */
MUST_CHECK enum tutti_status byte_level_add(struct tokenizer *tok, const char *text, size_t n_bytes,
                                            struct added_token added, const char *name,
                                            struct tutti_error *err);
/* Sets the pre-tokenization to one of GGUF's names. named NULL: TUTTI_E_UNSUPPORTED, with pre in
 * the message. */
MUST_CHECK enum tutti_status byte_level_use(struct tokenizer *tok, const struct pre_name *named,
                                            const char *pre, const char *name, struct tutti_error *err);
/* Finishes building. by_rank: no list of pairs, the merge with the lowest token id goes first
 * (tiktoken). */
MUST_CHECK enum tutti_status byte_level_finish(struct tokenizer *tok, bool by_rank, const char *name,
                                               struct tutti_error *err);

/* Removes merges of tokens that tokenizer_limit() has removed from the index. */
MUST_CHECK enum tutti_status byte_level_limit(struct tokenizer *tok, const char *name,
                                              struct tutti_error *err);

static inline uint64_t byte_level_pair_hash(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15;
}

/* The slot of a pair, or the free slot for it. */
static inline struct merge_slot *byte_level_merge_slot(const struct byte_level *level, int32_t left,
                                                       int32_t right)
{
    uint64_t hash = byte_level_pair_hash(left, right);
    uint32_t i = ((uint32_t)(hash >> 32) ^ (uint32_t)(hash >> 15)) & level->merge_mask;
    while (level->merges[i].id >= 0 && (level->merges[i].left != left || level->merges[i].right != right))
        i = (i + 1) & level->merge_mask;
    return &level->merges[i];
}

/* The merge of two neighbours; NULL: they do not merge. */
static inline const struct merge_slot *byte_level_find_merge(const struct byte_level *level, int32_t left,
                                                             int32_t right)
{
    uint64_t bit = byte_level_pair_hash(left, right) >> level->filter_shift;
    if (!(level->merge_filter[bit / 64] >> (bit % 64) & 1))
        return NULL;
    const struct merge_slot *slot = byte_level_merge_slot(level, left, right);
    return slot->id >= 0 ? slot : NULL;
}

/* Whether the tokenizer's files spell tokens in the alphabet of byte_map.h. */
static inline bool byte_level_is_of_bytes(const struct tokenizer *tok)
{
    return tok->level && !tok->level->has_characters;
}

/* Fills tok->joints if merging starts from characters, after all merges were added. False: out of
 * memory. */
MUST_CHECK bool byte_level_index_joints(struct tokenizer *tok);

/* Whether merging the bytes of any token gives it: then it does not matter whether words that are tokens are merged. False also if
 * memory ran out. */
bool byte_level_has_whole_tokens(const struct tokenizer *tok);

/* Adds the ids of one word. False: out of memory. */
MUST_CHECK bool byte_level_encode_word(const struct tokenizer *tok, const char *word, size_t n_bytes,
                                       struct ids *out);

/* Adds the ids of a text. takes_special: CONTROL tokens are recognized by their spelling. False:
 * out of memory, or the patterns exceeded their step limit. */
MUST_CHECK bool byte_level_encode(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                  bool takes_special, struct ids *out);

/* tokenizer_encode_ranges(). */
MUST_CHECK bool byte_level_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                         const struct trusted_range *ranges, size_t n_ranges,
                                         struct ids *out);

/* The id of an added token by its spelling; -1: none. */
int32_t byte_level_find_control(const struct tokenizer *tok, const char *spelling, size_t n_bytes);

/* Adds the bytes of a token, as in decoded text. False: out of memory. */
MUST_CHECK bool byte_level_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

#endif
