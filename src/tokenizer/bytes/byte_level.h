/* Inside of byte-level BPE: tokens are sequences of bytes, merged in the order of a list of pairs. Tokens may be made of
 * characters as well: SentencePiece's BPE as the Hugging Face tokenizers library has it.
 * Sennrich, Haddow and Birch, 2016; on bytes: Radford et al., 2019.
 *
 * Text runs through four steps: added tokens are cut out, what is between them is normalized, patterns cut that into
 * words, and in each word neighbours merge, the pair that stands first in the list before all others. */
#ifndef TUTTI_TOKENIZER_BYTES_BYTE_LEVEL_H
#define TUTTI_TOKENIZER_BYTES_BYTE_LEVEL_H

#include "tokenizer/stages/pretokenize.h"
#include "tokenizer/stages/text_decoder.h"
#include "tokenizer/stages/word_models.h"

/* What two neighbours become. Open addressing; id -1: free. */
struct merge_slot {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
};

struct merge_pair {
    int32_t left, right;
};

/* Longest mark of tokens that continue or end a word. */
enum { MAX_WORD_MARK_BYTES = 64 };

struct byte_level {
    struct normalizers normalizers;
    struct pretokenizer pre;
    const struct pre_name *named; /* the name that pre was made by; NULL: by single steps */
    struct merge_pair *pairs;     /* [n_pairs] by rank: as the file lists them. Ranks of tokens: NULL */
    size_t n_pairs, pairs_capacity;
    struct merge_slot *merges; /* [merge_mask + 1] */
    uint32_t merge_mask;
    /* One bit for some hash of each pair that merges: most pairs do not, and this much stays in a near cache. */
    uint64_t *merge_filter;
    int filter_shift;       /* a 64-bit hash >> filter_shift is the number of a bit */
    int32_t byte_ids[256];  /* -1: no token */
    uint32_t n_token_bytes; /* of the longest token that merges make */
    bool has_ranks;         /* no list of pairs: the token with the lowest id is made first */
    bool ignores_merges;    /* a word that is a token is that token, whatever merges would make of it */
    bool fuses_unknown;
    /* Merging begins with characters instead of bytes; one without a token is those of its bytes where tok->byte_fallback.
     * Spellings are the text itself, with blank marks. */
    bool has_characters;
    bool
        spells_words; /* the pre-tokenizer writes bytes in the alphabet of byte_map.h, and merges begin with bytes */
    bool takes_feeds_whole;          /* a word of line feeds that is a token is that token */
    struct buf inner_mark, end_mark; /* characters: of a token that continues a word, that ends one */
    struct word_model words;         /* how a word is cut where merges do not say it */
    struct text_decoder decoder;     /* of tokens that are text */
    _Atomic uint8_t
        *whole; /* [n_pieces] do merges make the token from its own bytes? 0: not known yet, 1: yes, 2: no */
};

/* A tokenizer without tokens. NULL: out of memory. */
struct tokenizer *byte_level_new(void);
void byte_level_free(struct byte_level *level); /* NULL is allowed */

/* While one is made. Errors name `name`, a file. */

/* Sets the token of an id. bytes: what it stands for; is_indexed: merges can make it.
 * TUTTI_E_FORMAT: the id or the bytes were given before, or the id is beyond n_expected by far. */
MUST_CHECK enum tutti_status byte_level_put(struct tokenizer *tok, int64_t id, const char *bytes,
                                            size_t n_bytes, enum piece_type type, size_t n_expected,
                                            const char *name, struct tutti_error *err);
/* The same for a token spelled in the alphabet of byte_map.h; one that is not stays as it is, and no merge makes it. */
MUST_CHECK enum tutti_status byte_level_put_spelled(struct tokenizer *tok, int64_t id, const char *spelling,
                                                    size_t n_bytes, size_t n_expected, const char *name,
                                                    struct tutti_error *err);
/* All tokens are there: builds their index. Merges and added tokens follow. */
MUST_CHECK enum tutti_status byte_level_index(struct tokenizer *tok, const char *name,
                                              struct tutti_error *err);
/* The next pair; both and what they make must be tokens. number: of the pair, for messages. */
MUST_CHECK enum tutti_status byte_level_add_merge(struct tokenizer *tok, const char *left, size_t n_left,
                                                  const char *right, size_t n_right, const char *name,
                                                  struct tutti_error *err);
/* "left right", as lines and strings spell it. */
MUST_CHECK enum tutti_status byte_level_add_merge_line(struct tokenizer *tok, const char *line,
                                                       size_t n_bytes, const char *name,
                                                       struct tutti_error *err);
/* Adds a token, or gives one that is there its role. added->id: its id. */
MUST_CHECK enum tutti_status byte_level_add(struct tokenizer *tok, const char *text, size_t n_bytes,
                                            struct added_token added, const char *name,
                                            struct tutti_error *err);
/* Cuts text as a name of GGUF says. named NULL: TUTTI_E_UNSUPPORTED, and says pre. */
MUST_CHECK enum tutti_status byte_level_use(struct tokenizer *tok, const struct pre_name *named,
                                            const char *pre, const char *name, struct tutti_error *err);
/* Everything is there. by_rank: no list of pairs, the token with the lowest id is made first (tiktoken). */
MUST_CHECK enum tutti_status byte_level_finish(struct tokenizer *tok, bool by_rank, const char *name,
                                               struct tutti_error *err);

/* Leaves out merges of tokens that the index does not have any more, after tokenizer_limit() has taken them out. */
MUST_CHECK enum tutti_status byte_level_limit(struct tokenizer *tok, const char *name,
                                              struct tutti_error *err);

static inline uint64_t byte_level_pair_hash(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15;
}

/* The slot of a pair, or the free one where it belongs. */
static inline struct merge_slot *byte_level_merge_slot(const struct byte_level *level, int32_t left,
                                                       int32_t right)
{
    uint64_t hash = byte_level_pair_hash(left, right);
    uint32_t i = ((uint32_t)(hash >> 32) ^ (uint32_t)(hash >> 15)) & level->merge_mask;
    while (level->merges[i].id >= 0 && (level->merges[i].left != left || level->merges[i].right != right))
        i = (i + 1) & level->merge_mask;
    return &level->merges[i];
}

/* What two neighbours become; NULL: they do not merge. */
static inline const struct merge_slot *byte_level_find_merge(const struct byte_level *level, int32_t left,
                                                             int32_t right)
{
    uint64_t bit = byte_level_pair_hash(left, right) >> level->filter_shift;
    if (!(level->merge_filter[bit / 64] >> (bit % 64) & 1))
        return NULL;
    const struct merge_slot *slot = byte_level_merge_slot(level, left, right);
    return slot->id >= 0 ? slot : NULL;
}

/* Does a tokenizer write what its tokens stand for in the alphabet of bytes? */
static inline bool byte_level_is_of_bytes(const struct tokenizer *tok)
{
    return tok->level && !tok->level->has_characters;
}

/* Fills tok->joints where merges begin with characters, once all merges are there. False: out of memory. */
MUST_CHECK bool byte_level_index_joints(struct tokenizer *tok);

/* Adds the ids of one word. False: out of memory. */
MUST_CHECK bool byte_level_encode_word(const struct tokenizer *tok, const char *word, size_t n_bytes,
                                       struct ids *out);

/* Adds the ids of a text. takes_special: spellings of CONTROL tokens become them. False: out of memory, or the patterns
 * take more steps than they are granted. */
MUST_CHECK bool byte_level_encode(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                  bool takes_special, struct ids *out);

/* tokenizer_encode_ranges(). */
MUST_CHECK bool byte_level_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                         const struct trusted_range *ranges, size_t n_ranges,
                                         struct ids *out);

/* The id of an added token by its spelling; -1: none. */
int32_t byte_level_find_control(const struct tokenizer *tok, const char *spelling, size_t n_bytes);

/* Adds the bytes of a token, as they stand in decoded text. False: out of memory. */
MUST_CHECK bool byte_level_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

#endif
