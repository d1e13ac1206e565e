/* Inside of a tokenizer: the pieces, their index, and the rules of normalization. */
#ifndef TUTTI_TOKENIZER_VOCAB_H
#define TUTTI_TOKENIZER_VOCAB_H

#include "tokenizer/tokenizer.h"

#define BLANK_MARK "\xE2\x96\x81" /* U+2581, what SentencePiece writes for a space */

enum { MAX_PIECE_BYTES = 65536 };

/* The precompiled normalization table: a double array of units, then replacement strings. NULL units: none. */
struct charsmap {
    const uint8_t *units; /* [n_units], 32 bits each, little endian */
    size_t n_units;
    const char *strings; /* NUL-terminated, one behind the other */
    size_t n_string_bytes;
};

struct piece_entry {
    uint32_t offset, n_bytes; /* in bytes */
    float score;
    uint8_t type;
};

struct tokenizer {
    struct buf bytes; /* of all pieces */
    struct piece_entry *pieces;
    int32_t n_pieces, capacity;
    int32_t *
        slots; /* [n_slots] open-addressed: id + 1; pieces by their bytes, CONTROL pieces that were added included */
    uint32_t n_slots;
    int32_t byte_ids[256]; /* -1: none */
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, byte_fallback, blank_is_suffix;
    bool has_unused;
    int32_t unk_id, bos_id, eos_id;
    int32_t n_library_pieces; /* those that the vocabulary came with; the rest was appended */
    struct buf unk_surface;
    /* USER_DEFINED pieces by first byte: ids sorted by length, longest first. */
    int32_t *user_defined;
    int32_t n_user_defined;
    struct charsmap map;
    uint8_t *map_storage;
};

/* Adds a piece at the end of the vocabulary. False: no memory. */
MUST_CHECK bool vocab_add(struct tokenizer *tok, const char *bytes, size_t n_bytes, float score,
                          enum piece_type type);

/* Builds the index; every piece must have its own spelling. name is for messages. */
MUST_CHECK enum tutti_status vocab_finish(struct tokenizer *tok, const char *name, struct tutti_error *err);

static inline const char *vocab_bytes(const struct tokenizer *tok, int32_t id)
{
    return tok->bytes.bytes + tok->pieces[id].offset;
}

/* The longest USER_DEFINED piece that text begins with; 0: none. */
size_t vocab_match_user_defined(const struct tokenizer *tok, const char *text, size_t n_bytes);

/* Normalizes text as SentencePiece does. False: no memory. */
MUST_CHECK bool tokenizer_normalize(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                    struct buf *out);

/* The byte of a BYTE piece "<0xHH>", or -1. */
int vocab_byte_value(const char *bytes, size_t n_bytes);

#endif
