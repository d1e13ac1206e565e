/* Reads SentencePiece's tokenizer.model, and vocabularies given as arrays.
 * Format: sentencepiece_model.proto of the SentencePiece project. */
#include "base/limits.h"
#include "base/protobuf.h"
#include "tokenizer/vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

/* Field numbers of the messages. */
enum { FIELD_PIECES = 1, FIELD_TRAINER = 2, FIELD_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_MODEL_TYPE = 3,
    TRAINER_BLANK_IS_SUFFIX = 24,
    TRAINER_BYTE_FALLBACK = 35,
    TRAINER_UNK_SURFACE = 44,
    TRAINER_UNK_PIECE = 45,
    TRAINER_BOS_PIECE = 46,
    TRAINER_EOS_PIECE = 47,
};
enum { NORMALIZER_MAP = 2, NORMALIZER_DUMMY_PREFIX = 3, NORMALIZER_EXTRA_BLANKS = 4, NORMALIZER_ESCAPE = 5 };

static const char DEFAULT_UNK_SURFACE[] = " \xE2\x81\x87 ";

struct reader {
    struct tokenizer *tok;
    const char *name;
    struct tutti_error *err;
    int64_t model_type;
    const uint8_t *bos, *eos; /* spellings; NULL: the default */
    size_t n_bos, n_eos;
};

static enum tutti_status bad(const struct reader *r, const char *message)
{
    return error_set(r->err, TUTTI_E_FORMAT, "%s: %s is truncated or no protobuf message", r->name, message);
}

static enum tutti_status out_of_memory(const struct reader *r)
{
    return error_set(r->err, TUTTI_E_MEMORY, "%s: out of memory", r->name);
}

static enum tutti_status read_piece(struct reader *r, const struct protobuf_field *message)
{
    struct protobuf m = protobuf_open(message->bytes, message->n_bytes);
    struct protobuf_field f;
    const uint8_t *text = NULL;
    size_t n_bytes = 0;
    uint64_t type = PIECE_NORMAL;
    float score = 0;
    while (protobuf_next(&m, &f)) {
        if (f.number == PIECE_TEXT && f.wire == PROTOBUF_BYTES) {
            text = f.bytes;
            n_bytes = f.n_bytes;
        } else if (f.number == PIECE_SCORE && f.wire == PROTOBUF_FIXED32) {
            score = protobuf_float(&f);
        } else if (f.number == PIECE_TYPE && f.wire == PROTOBUF_VARINT) {
            type = f.value;
        }
    }
    if (m.is_bad)
        return bad(r, "a piece");
    if (n_bytes == 0 || n_bytes > MAX_PIECE_BYTES)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: piece %d has %zu bytes, expected 1 to %d", r->name,
                         r->tok->n_pieces, n_bytes, MAX_PIECE_BYTES);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: piece %d is of type %" PRIu64 ", expected 1 to 6",
                         r->name, r->tok->n_pieces, type);
    if (r->tok->n_pieces >= LIMIT_VOCAB)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: more than %d pieces", r->name, LIMIT_VOCAB);
    return vocab_add(r->tok, (const char *)text, n_bytes, score, (enum piece_type)type) ? TUTTI_OK
                                                                                        : out_of_memory(r);
}

static enum tutti_status read_trainer(struct reader *r, const struct protobuf_field *message)
{
    struct protobuf m = protobuf_open(message->bytes, message->n_bytes);
    struct protobuf_field f;
    while (protobuf_next(&m, &f)) {
        if (f.wire == PROTOBUF_VARINT && f.number == TRAINER_MODEL_TYPE) {
            r->model_type = (int64_t)f.value;
        } else if (f.wire == PROTOBUF_VARINT && f.number == TRAINER_BLANK_IS_SUFFIX) {
            r->tok->blank_is_suffix = f.value != 0;
        } else if (f.wire == PROTOBUF_VARINT && f.number == TRAINER_BYTE_FALLBACK) {
            r->tok->byte_fallback = f.value != 0;
        } else if (f.wire == PROTOBUF_BYTES && f.number == TRAINER_BOS_PIECE) {
            r->bos = f.bytes;
            r->n_bos = f.n_bytes;
        } else if (f.wire == PROTOBUF_BYTES && f.number == TRAINER_EOS_PIECE) {
            r->eos = f.bytes;
            r->n_eos = f.n_bytes;
        } else if (f.wire == PROTOBUF_BYTES && f.number == TRAINER_UNK_SURFACE) {
            buf_truncate(&r->tok->unk_surface, 0);
            if (!buf_add(&r->tok->unk_surface, f.bytes, f.n_bytes))
                return out_of_memory(r);
        }
    }
    return m.is_bad ? bad(r, "the trainer specification") : TUTTI_OK;
}

static enum tutti_status read_map(struct reader *r, const struct protobuf_field *f)
{
    struct tokenizer *tok = r->tok;
    if (f->n_bytes == 0)
        return TUTTI_OK;
    uint64_t trie_bytes = 0;
    for (int i = 0; i < 4 && f->n_bytes >= 4; i++)
        trie_bytes |= (uint64_t)f->bytes[i] << (8 * i);
    if (f->n_bytes < 4 || trie_bytes > f->n_bytes - 4 || trie_bytes % 4 != 0 || trie_bytes == 0)
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: precompiled_charsmap of %zu bytes says that its trie has %" PRIu64, r->name,
                         f->n_bytes, trie_bytes);
    free(tok->map_storage);
    tok->map_storage = malloc(f->n_bytes);
    if (!tok->map_storage)
        return out_of_memory(r);
    memcpy(tok->map_storage, f->bytes, f->n_bytes);
    tok->map = (struct charsmap){ .units = tok->map_storage + 4,
                                  .n_units = (size_t)trie_bytes / 4,
                                  .strings = (const char *)tok->map_storage + 4 + trie_bytes,
                                  .n_string_bytes = f->n_bytes - 4 - (size_t)trie_bytes };
    return TUTTI_OK;
}

static enum tutti_status read_normalizer(struct reader *r, const struct protobuf_field *message)
{
    struct protobuf m = protobuf_open(message->bytes, message->n_bytes);
    struct protobuf_field f;
    while (protobuf_next(&m, &f)) {
        if (f.wire == PROTOBUF_BYTES && f.number == NORMALIZER_MAP) {
            enum tutti_status st = read_map(r, &f);
            if (st != TUTTI_OK)
                return st;
        } else if (f.wire == PROTOBUF_VARINT && f.number == NORMALIZER_DUMMY_PREFIX) {
            r->tok->add_dummy_prefix = f.value != 0;
        } else if (f.wire == PROTOBUF_VARINT && f.number == NORMALIZER_EXTRA_BLANKS) {
            r->tok->remove_extra_whitespaces = f.value != 0;
        } else if (f.wire == PROTOBUF_VARINT && f.number == NORMALIZER_ESCAPE) {
            r->tok->escape_whitespaces = f.value != 0;
        }
    }
    return m.is_bad ? bad(r, "the normalizer specification") : TUTTI_OK;
}

static enum tutti_status read_model(struct reader *r, const void *bytes, size_t n_bytes)
{
    struct protobuf m = protobuf_open(bytes, n_bytes);
    struct protobuf_field f;
    enum tutti_status st = TUTTI_OK;
    while (st == TUTTI_OK && protobuf_next(&m, &f)) {
        if (f.wire != PROTOBUF_BYTES)
            continue;
        if (f.number == FIELD_PIECES)
            st = read_piece(r, &f);
        else if (f.number == FIELD_TRAINER)
            st = read_trainer(r, &f);
        else if (f.number == FIELD_NORMALIZER)
            st = read_normalizer(r, &f);
    }
    return st == TUTTI_OK && m.is_bad ? bad(r, "the file") : st;
}

static int32_t find_special(const struct tokenizer *tok, const void *spelling, size_t n_bytes,
                            const char *fallback)
{
    int32_t id = spelling ? tokenizer_find(tok, spelling, n_bytes)
                          : tokenizer_find(tok, fallback, strlen(fallback));
    return id >= 0 && tok->pieces[id].type == PIECE_CONTROL ? id : -1;
}

static int32_t find_unknown(const struct tokenizer *tok)
{
    int32_t found = -1;
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        if (tok->pieces[id].type == PIECE_UNKNOWN) {
            if (found >= 0)
                return -2;
            found = id;
        }
    }
    return found;
}

static struct tokenizer *new_tokenizer(void)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok)
        return NULL;
    tok->add_dummy_prefix = tok->remove_extra_whitespaces = tok->escape_whitespaces =
        true; /* the format's defaults */
    tok->unk_id = tok->bos_id = tok->eos_id = -1;
    if (!buf_add_string(&tok->unk_surface, DEFAULT_UNK_SURFACE)) {
        tokenizer_free(tok);
        return NULL;
    }
    return tok;
}

enum tutti_status tokenizer_from_sentencepiece(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                               const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = new_tokenizer();
    if (!tok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    struct reader r = { .tok = tok, .name = name, .err = err, .model_type = MODEL_UNIGRAM };
    enum tutti_status st = read_model(&r, bytes, n_bytes);
    if (st != TUTTI_OK)
        goto done;
    if (tok->n_pieces == 0) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: there are no pieces", name);
        goto done;
    }
    if (r.model_type != MODEL_BPE) {
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: a SentencePiece model of type %" PRId64 ", expected 2 (BPE)", name, r.model_type);
        goto done;
    }
    st = vocab_finish(tok, name, err);
    if (st != TUTTI_OK)
        goto done;
    tok->unk_id = find_unknown(tok);
    if (tok->unk_id < 0) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: expected exactly one piece of type UNKNOWN", name);
        goto done;
    }
    tok->bos_id = find_special(tok, r.bos, r.n_bos, "<s>");
    tok->eos_id = find_special(tok, r.eos, r.n_eos, "</s>");
    *out = tok;
    tok = NULL;
done:
    tokenizer_free(tok);
    return st;
}

enum tutti_status tokenizer_from_bpe_vocab(struct tokenizer **out, const struct bpe_vocab *vocab,
                                           const char *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct tokenizer *tok = new_tokenizer();
    if (!tok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    tok->add_dummy_prefix = vocab->add_dummy_prefix;
    tok->remove_extra_whitespaces = vocab->remove_extra_whitespaces;
    tok->byte_fallback = vocab->byte_fallback;
    for (size_t i = 0; i < vocab->n_pieces; i++) {
        const struct piece *p = &vocab->pieces[i];
        if (p->n_bytes == 0 || p->n_bytes > MAX_PIECE_BYTES || i >= LIMIT_VOCAB) {
            st = error_set(err, TUTTI_E_FORMAT, "%s: token %zu has %zu bytes, expected 1 to %d", name, i,
                           p->n_bytes, MAX_PIECE_BYTES);
            goto done;
        }
        if (!vocab_add(tok, p->bytes, p->n_bytes, p->score, p->type)) {
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
            goto done;
        }
    }
    st = vocab_finish(tok, name, err);
    if (st != TUTTI_OK)
        goto done;
    tok->unk_id = vocab->unk_id;
    tok->bos_id = vocab->bos_id;
    tok->eos_id = vocab->eos_id;
    *out = tok;
    tok = NULL;
done:
    tokenizer_free(tok);
    return st;
}
