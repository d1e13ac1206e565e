/* The internals of a tokenizer: the pieces, their index, and the normalization rules. */
#ifndef TUTTI_TOKENIZER_VOCAB_VOCAB_H
#define TUTTI_TOKENIZER_VOCAB_VOCAB_H

#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab/added.h"
#include "tokenizer/vocab/trie.h"

#define BLANK_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's mark for a space */

enum { MAX_PIECE_BYTES = 7999 }; /* the library refuses longer ones */

/* The precompiled normalization table: a double array of units, then replacement strings. n_units 0: none. */
struct charsmap {
    const uint8_t *units; /* [n_units], 32 bits each, little endian */
    size_t n_units;
    const char *strings; /* NUL-terminated, one after the other */
    size_t n_string_bytes;
};

struct piece_entry {
    uint32_t offset, n_bytes; /* in bytes */
    float score;
    uint8_t type;
};

/* Open addressing. The slot contains the hash, so that a miss costs one cache line. */
struct piece_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
};

struct byte_level;

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_UNIGRAM /* SentencePiece's */, TOKENIZER_BYTE_LEVEL };

struct tokenizer {
    enum tokenizer_kind kind;
    struct byte_level *level; /* only of TOKENIZER_BYTE_LEVEL */
    struct buf bytes;         /* of all pieces */
    struct piece_entry *pieces;
    int32_t n_pieces;
    size_t capacity; /* of pieces */
    /* The original pieces, which are in the index; the others were appended. */
    int32_t n_library_pieces;
    struct piece_slot *slots; /* [slot_mask + 1] */
    uint32_t slot_mask;
    int32_t byte_ids[256];  /* of BYTE pieces; -1: none */
    int32_t ascii_ids[128]; /* of mergeable pieces of one ASCII character; -1: none */
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, byte_fallback, blank_is_suffix;
    bool has_unused;
    bool lacks_bytes; /* byte_fallback, but some BYTE pieces are missing */
    int32_t n_rows;   /* ids from here on are never made; 0: no limit */
    int32_t unk_id, bos_id, eos_id;
    struct buf unk_surface;
    struct added_tokens added;
    bool prefixes_first_only; /* tokenizer_set_prefix_rule() */
    struct token_affixes affixes;

    /* One bit for the hash of each pair of adjacent characters in some mergeable piece (and for
     * other pairs, by collision). If it is not set, no merge can ever join the two, so a text
     * splits into short segments. TOKENIZER_BYTE_LEVEL: of ids of characters; NULL: any two may
     * join. */
    uint64_t *joints;
    int joint_shift;        /* a 64-bit hash >> joint_shift is the number of a bit */
    uint32_t n_merge_bytes; /* of the longest mergeable piece */

    struct trie user_defined; /* the USER_DEFINED pieces, also those that became special; empty: none */
    struct charsmap map;
    uint8_t *map_storage; /* [n_map_bytes] the map as the file has it */
    size_t n_map_bytes;

    struct trie trie; /* of a unigram model: the mergeable pieces */
    float unknown_score;

    bool is_pangu;
    struct jieba *jieba; /* for PanGu-Alpha; NULL: no dictionary was found */

    /* ChatGLM-6B's pieces for characters that its normalizer would lose. blanks_id: the piece of
     * two blanks; those of up to 80 blanks follow. */
    bool is_icetext;
    int32_t n_images; /* ids below it are images, which decoding ignores */
    int32_t newline_id, tab_id, blanks_id;

    bool is_plain[256]; /* by first byte: the normalizer always copies the character */
};

/* Adds a piece at the end of the vocabulary. False: out of memory. */
MUST_CHECK bool vocab_add(struct tokenizer *tok, const char *bytes, size_t n_bytes, float score,
                          enum piece_type type);

/* Builds the indices. Every piece must have a unique spelling. BYTE pieces may be missing, see
 * vocab_check_bytes(). name is for messages. */
MUST_CHECK enum tutti_status vocab_finish(struct tokenizer *tok, const char *name, struct tutti_error *err);

/* With byte_fallback: TUTTI_E_FORMAT unless every byte has a BYTE piece or, with may_lack_some,
 * at least one has. */
MUST_CHECK enum tutti_status vocab_check_bytes(struct tokenizer *tok, bool may_lack_some, const char *name,
                                               struct tutti_error *err);

/* Builds only the index, piece by piece. vocab_new_index(): false: out of memory.
 * vocab_add_to_index(): -1: added; else the piece that already has this spelling. */
MUST_CHECK bool vocab_new_index(struct tokenizer *tok);
int32_t vocab_add_to_index(struct tokenizer *tok, int32_t id);

static inline const char *vocab_bytes(const struct tokenizer *tok, int32_t id)
{
    return tok->bytes.bytes + tok->pieces[id].offset;
}

/* A piece that text may become: NORMAL, USER_DEFINED, and UNUSED on the way to others. */
static inline bool vocab_is_mergeable(const struct tokenizer *tok, int32_t id)
{
    uint8_t type = tok->pieces[id].type;
    return type == PIECE_NORMAL || type == PIECE_USER_DEFINED || type == PIECE_UNUSED;
}

/* Whether all of these bytes have BYTE pieces. A character of which one byte has no piece is
 * unknown as a whole. */
static inline bool vocab_has_bytes(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    bool has = tok->byte_fallback;
    for (size_t i = 0; has && i < n_bytes; i++)
        has = tok->byte_ids[(uint8_t)text[i]] >= 0;
    return has;
}

/* Length of a character by its lead byte only, as the library splits normalized text. n_bytes >=
 * 1. */
static inline size_t vocab_char_length(const char *text, size_t n_bytes)
{
    static const uint8_t LENGTHS[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4 };
    size_t n = LENGTHS[(uint8_t)*text >> 4];
    return n < n_bytes ? n : n_bytes;
}

/* The bytes of one character (1 to 4) as a number. */
static inline uint32_t vocab_char_code(const char *text, size_t n_bytes)
{
    uint32_t code = 0;
    for (size_t i = 0; i < n_bytes; i++)
        code = code << 8 | (uint8_t)text[i];
    return code;
}

static inline uint64_t vocab_joint_hash(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15;
}

/* Sets up the index of vocab_may_join() without entries. False: out of memory. */
MUST_CHECK bool vocab_new_joints(struct tokenizer *tok);
static inline void vocab_add_joint(struct tokenizer *tok, uint32_t left, uint32_t right)
{
    uint64_t bit = vocab_joint_hash(left, right) >> tok->joint_shift;
    tok->joints[bit / 64] |= (uint64_t)1 << (bit % 64);
}

/* Whether two adjacent characters can be part of one piece. */
static inline bool vocab_may_join(const struct tokenizer *tok, uint32_t left, uint32_t right)
{
    uint64_t bit = vocab_joint_hash(left, right) >> tok->joint_shift;
    return tok->joints[bit / 64] >> (bit % 64) & 1;
}

/* How a SentencePiece tokenizer encodes a part of a text. */
struct part_rules {
    bool continues;   /* not the start of the text: no dummy prefix, and a leading blank is text */
    bool takes_marks; /* user-defined pieces that were declared special are matched, as in the library */
};

/* Ends the building of a tokenizer: st, with the tokenizer in *out, or freed if st is an error. */
MUST_CHECK enum tutti_status tokenizer_give(struct tokenizer **out, struct tokenizer *tok,
                                            enum tutti_status st);

/* Length of the longest USER_DEFINED piece that text begins with; 0: none. Like the library, it
 * considers only the 64 shortest. */
size_t vocab_match_user_defined(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                bool takes_marks);

/* Reads a precompiled map: a trie's size in bytes, the trie (whole blocks of 256 units), and its
 * strings, each with a zero byte at its end. bytes are borrowed by the map. Errors name `name`. */
MUST_CHECK enum tutti_status charsmap_read(struct charsmap *map, const uint8_t *bytes, size_t n_bytes,
                                           const char *name, struct tutti_error *err);
/* The replacement of the shortest key that text begins with. False: no such key. */
bool charsmap_first(const struct charsmap *map, const char *text, size_t n_bytes, const char **to,
                    size_t *n_to);
/* Whether any key of the map begins with this byte. */
bool charsmap_has_lead(const struct charsmap *map, uint8_t byte);

/* Appends the characters that become complete with one more byte. An incomplete character becomes
 * one U+FFFD. False: out of memory. */
MUST_CHECK bool detokenizer_push_byte(struct detokenizer *d, uint8_t byte, struct buf *out);
/* Releases characters from the held bytes. Each byte that cannot be part of a character becomes
 * U+FFFD; an incomplete character is kept, unless all is set. False: out of memory. */
MUST_CHECK bool detokenizer_release(struct detokenizer *d, bool all, struct buf *out);

/* Normalizes text as SentencePiece does. False: out of memory. */
MUST_CHECK bool tokenizer_normalize(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                    struct part_rules rules, struct buf *out);

/* Adds the ids of normalized text by SentencePiece's BPE. False: out of memory. */
MUST_CHECK bool bpe_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_marks,
                           struct ids *out);

/* The byte of a BYTE piece "<0xHH>", or -1. */
int vocab_byte_value(const char *bytes, size_t n_bytes);

#endif
