/* Reads SentencePiece's tokenizer.model, and vocabularies given as arrays.
 * Format: sentencepiece_model.proto of the SentencePiece project. */
#include "base/files/protobuf.h"
#include "base/limits.h"
#include "tokenizer/legacy/icetext.h"
#include "tokenizer/legacy/jieba.h"
#include "tokenizer/pieces/unigram.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2, MODEL_WORD = 3, MODEL_CHAR = 4 };

/* Field numbers of the messages. */
enum { FIELD_PIECES = 1, FIELD_TRAINER = 2, FIELD_NORMALIZER = 3, FIELD_DENORMALIZER = 5 };
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

struct model_reader {
    struct tokenizer *tok;
    const char *name;
    struct tutti_error *err;
    int64_t model_type;
    int32_t first;            /* id of the file's first piece */
    int32_t null_piece;       /* id of the piece that is one zero byte; -1: none */
    const uint8_t *bos, *eos; /* spellings */
    size_t n_bos, n_eos;      /* 0: the default */
};

static enum tutti_status bad(const struct model_reader *r, const char *message)
{
    return error_set(r->err, TUTTI_E_FORMAT, "%s: %s is truncated or no protobuf message", r->name, message);
}

static enum tutti_status read_piece(struct model_reader *r, const struct protobuf_field *message)
{
    struct protobuf m = protobuf_open(message->bytes, message->n_bytes);
    struct protobuf_field f;
    const uint8_t *text = NULL;
    size_t n_bytes = 0;
    uint64_t type = PIECE_NORMAL;
    float score = 0;
    int32_t number = r->tok->n_pieces - r->first;
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
        return error_set(r->err, TUTTI_E_FORMAT, "%s: pieces[%d] is truncated or no protobuf message",
                         r->name, number);
    if (n_bytes == 0 || n_bytes > MAX_PIECE_BYTES)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: pieces[%d].piece has %zu bytes, expected 1 to %d",
                         r->name, number, n_bytes, MAX_PIECE_BYTES);
    if (n_bytes == 1 && text[0] == 0) /* the library ignores it with byte fallback */
        r->null_piece = r->tok->n_pieces;
    else if (memchr(text, 0, n_bytes))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: pieces[%d].piece holds a zero byte", r->name, number);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: pieces[%d].type is %" PRIu64 ", expected 1 to 6",
                         r->name, number, type);
    if (r->tok->n_pieces >= LIMIT_VOCAB)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: more than %d pieces", r->name, LIMIT_VOCAB);
    return vocab_add(r->tok, (const char *)text, n_bytes, score, (enum piece_type)type)
               ? TUTTI_OK
               : error_out_of_memory(r->name, r->err);
}

static enum tutti_status set_unk_surface(struct tokenizer *tok, const void *text, size_t n_bytes,
                                         const char *name, struct tutti_error *err)
{
    buf_truncate(&tok->unk_surface, 0);
    return buf_add(&tok->unk_surface, text, n_bytes) ? TUTTI_OK : error_out_of_memory(name, err);
}

static enum tutti_status read_trainer(struct model_reader *r, const struct protobuf_field *message)
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
            enum tutti_status st = set_unk_surface(r->tok, f.bytes, f.n_bytes, r->name, r->err);
            if (st != TUTTI_OK)
                return st;
        }
    }
    return m.is_bad ? bad(r, "trainer_spec") : TUTTI_OK;
}

static enum tutti_status set_map(struct tokenizer *tok, const uint8_t *bytes, size_t n_bytes,
                                 const char *name, struct tutti_error *err)
{
    free(tok->map_storage);
    tok->map_storage = NULL;
    tok->n_map_bytes = 0;
    tok->map = (struct charsmap){ 0 };
    if (n_bytes == 0)
        return TUTTI_OK;
    tok->map_storage = malloc(n_bytes);
    if (!tok->map_storage)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    memcpy(tok->map_storage, bytes, n_bytes);
    tok->n_map_bytes = n_bytes;
    return charsmap_read(&tok->map, tok->map_storage, n_bytes, name, err);
}

static enum tutti_status read_map(struct model_reader *r, const struct protobuf_field *f)
{
    char what[512];
    snprintf(what, sizeof what, "%s: normalizer_spec.precompiled_charsmap", r->name);
    return set_map(r->tok, f->bytes, f->n_bytes, what, r->err);
}

static enum tutti_status read_normalizer(struct model_reader *r, const struct protobuf_field *message)
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
    return m.is_bad ? bad(r, "normalizer_spec") : TUTTI_OK;
}

/* Refuses a denormalizer, a map for decoded text. No known model has one, and it would prevent
 * streaming. */
static enum tutti_status read_denormalizer(const struct model_reader *r, const struct protobuf_field *message)
{
    struct protobuf m = protobuf_open(message->bytes, message->n_bytes);
    struct protobuf_field f;
    while (protobuf_next(&m, &f)) {
        if (f.wire == PROTOBUF_BYTES && f.number == NORMALIZER_MAP && f.n_bytes > 0)
            return error_set(r->err, TUTTI_E_UNSUPPORTED,
                             "%s: denormalizer_spec.precompiled_charsmap has %zu bytes, expected none",
                             r->name, f.n_bytes);
    }
    return m.is_bad ? bad(r, "denormalizer_spec") : TUTTI_OK;
}

static enum tutti_status read_model(struct model_reader *r, const void *bytes, size_t n_bytes)
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
        else if (f.number == FIELD_DENORMALIZER)
            st = read_denormalizer(r, &f);
    }
    if (st == TUTTI_OK && m.is_bad)
        return bad(r, "the file");
    if (st == TUTTI_OK && r->null_piece >= 0 && !r->tok->byte_fallback)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: pieces[%d].piece holds a zero byte", r->name,
                         r->null_piece - r->first);
    if (st == TUTTI_OK && r->null_piece >= 0)
        r->tok->pieces[r->null_piece].type = PIECE_UNUSED;
    return st;
}

static int32_t find_special(const struct tokenizer *tok, const void *spelling, size_t n_bytes,
                            const char *fallback)
{
    int32_t id = n_bytes > 0 ? tokenizer_find(tok, spelling, n_bytes)
                             : tokenizer_find(tok, fallback, strlen(fallback));
    return id >= 0 && tok->pieces[id].type == PIECE_CONTROL ? id : -1;
}

/* Checks a model file beyond single pieces. */
static enum tutti_status check_pieces(struct model_reader *r)
{
    struct tokenizer *tok = r->tok;
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        if (tok->pieces[id].type == PIECE_BYTE && !tok->byte_fallback)
            return error_set(r->err, TUTTI_E_FORMAT,
                             "%s: pieces[%d] is of type BYTE, but trainer_spec.byte_fallback is not set",
                             r->name, id);
        if (tok->pieces[id].type != PIECE_UNKNOWN)
            continue;
        if (tok->unk_id >= 0)
            return error_set(r->err, TUTTI_E_FORMAT,
                             "%s: pieces[%d] and pieces[%d] are of type UNKNOWN, expected one", r->name,
                             tok->unk_id, id);
        tok->unk_id = id;
    }
    return tok->unk_id >= 0
               ? TUTTI_OK
               : error_set(r->err, TUTTI_E_FORMAT, "%s: no piece is of type UNKNOWN, expected one", r->name);
}

static enum tutti_status choose_kind(const struct model_reader *r)
{
    bool is_known = r->model_type == MODEL_WORD || r->model_type == MODEL_CHAR;
    r->tok->kind = r->model_type == MODEL_UNIGRAM ? TOKENIZER_UNIGRAM : TOKENIZER_BPE;
    if (r->model_type == MODEL_UNIGRAM || r->model_type == MODEL_BPE)
        return TUTTI_OK;
    return error_set(r->err, TUTTI_E_UNSUPPORTED,
                     "%s: trainer_spec.model_type is %" PRId64
                     "%s; of SentencePiece models unigram (1) and BPE (2) are supported",
                     r->name, r->model_type,
                     !is_known                     ? ""
                     : r->model_type == MODEL_WORD ? " (word)"
                                                   : " (char)");
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

/* What follows the pieces, whatever they were read from. */
static enum tutti_status finish(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    enum tutti_status st = tok->kind == TOKENIZER_UNIGRAM ? unigram_finish(tok, name, err) : TUTTI_OK;
    if (st == TUTTI_OK)
        st = tokenizer_add_own_tokens(tok, false, false, name, err);
    return st == TUTTI_OK ? tokenizer_finish_added(tok, name, err) : st;
}

/* The pieces, the checks and the tokens that a text may hold; n_images as below. */
static enum tutti_status fill_from_file(struct tokenizer *tok, const void *bytes, size_t n_bytes,
                                        int32_t n_images, const char *name, struct tutti_error *err)
{
    bool is_icetext = n_images >= 0;
    enum tutti_status st = TUTTI_OK;
    struct model_reader r = {
        .tok = tok, .name = name, .err = err, .model_type = MODEL_UNIGRAM, .null_piece = -1
    };
    if (is_icetext)
        st = icetext_add_images(tok, n_images, name, err);
    r.first = tok->n_pieces;
    if (st == TUTTI_OK)
        st = read_model(&r, bytes, n_bytes);
    if (st == TUTTI_OK)
        st = tok->n_pieces > r.first ? choose_kind(&r)
                                     : error_set(err, TUTTI_E_FORMAT, "%s: there are no pieces", name);
    if (st == TUTTI_OK && is_icetext)
        st = icetext_add_specials(tok, name, err);
    if (st == TUTTI_OK)
        st = vocab_finish(tok, name, err);
    if (st == TUTTI_OK)
        st = vocab_check_bytes(tok, false, name, err);
    if (st == TUTTI_OK)
        st = check_pieces(&r);
    if (st == TUTTI_OK && is_icetext)
        st = icetext_finish(tok, name, err);
    if (st != TUTTI_OK)
        return st;
    tok->bos_id = is_icetext ? find_special(tok, NULL, 0, "<sop>") : find_special(tok, r.bos, r.n_bos, "<s>");
    tok->eos_id = is_icetext ? find_special(tok, NULL, 0, "<eop>")
                             : find_special(tok, r.eos, r.n_eos, "</s>");
    return finish(tok, name, err);
}

/* n_images: image tokens before the file's pieces; -1: not an icetext file. */
static enum tutti_status read_model_file(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                         int32_t n_images, const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = new_tokenizer();
    return tok ? tokenizer_give(out, tok, fill_from_file(tok, bytes, n_bytes, n_images, name, err))
               : error_out_of_memory(name, err);
}

enum tutti_status tokenizer_from_sentencepiece(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                               const char *name, struct tutti_error *err)
{
    return read_model_file(out, bytes, n_bytes, -1, name, err);
}

enum tutti_status tokenizer_from_icetext(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                         int32_t n_images, const char *name, struct tutti_error *err)
{
    if (n_images < 0 || n_images > LIMIT_VOCAB / 2)
        return error_set(err, TUTTI_E_FORMAT, "%s: %d image tokens, expected 0 to %d", name, n_images,
                         LIMIT_VOCAB / 2);
    return read_model_file(out, bytes, n_bytes, n_images, name, err);
}

enum tutti_status tokenizer_from_pangu(struct tokenizer **out, const void *bytes, size_t n_bytes,
                                       const char *jieba_folder, const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = NULL;
    enum tutti_status st = read_model_file(&tok, bytes, n_bytes, -1, name, err);
    if (st == TUTTI_OK && jieba_folder)
        st = jieba_open(&tok->jieba, jieba_folder, err);
    if (st == TUTTI_OK) {
        tok->is_pangu = true;
        int32_t end_id = tokenizer_find(tok, "<eod>", 5);
        tok->eos_id = end_id >= 0 ? end_id : tok->eos_id;
    }
    return tokenizer_give(out, tok, st);
}

static enum tutti_status add_vocab_piece(struct tokenizer *tok, const struct piece *p, const char *name,
                                         struct tutti_error *err)
{
    if (tok->n_pieces >= LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT, "%s: more than %d tokens", name, LIMIT_VOCAB);
    if (p->n_bytes == 0 || p->n_bytes > MAX_PIECE_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: token %d has %zu bytes, expected 1 to %d", name,
                         tok->n_pieces, p->n_bytes, MAX_PIECE_BYTES);
    if ((int)p->type < PIECE_NORMAL || (int)p->type > PIECE_BYTE)
        return error_set(err, TUTTI_E_FORMAT, "%s: token %d is of type %d, expected 1 to 6", name,
                         tok->n_pieces, (int)p->type);
    return vocab_add(tok, p->bytes, p->n_bytes, p->score, p->type)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
}

static enum tutti_status check_special(const struct tokenizer *tok, const char *what, int32_t id,
                                       const char *name, struct tutti_error *err)
{
    return id >= -1 && id < tok->n_pieces
               ? TUTTI_OK
               : error_set(err, TUTTI_E_FORMAT, "%s: the id of the %s token is %d, expected 0 to %d", name,
                           what, id, tok->n_pieces - 1);
}

static enum tutti_status set_rules(struct tokenizer *tok, const struct piece_vocab *vocab, const char *name,
                                   struct tutti_error *err)
{
    if (vocab->rules == PIECES_PLAIN)
        return TUTTI_OK;
    if (vocab->n_images < 0 || vocab->n_images > tok->n_pieces)
        return error_set(err, TUTTI_E_FORMAT, "%s: %d images, expected 0 to %d, as many as tokens", name,
                         vocab->n_images, tok->n_pieces);
    if (vocab->rules == PIECES_ICETEXT) {
        tok->n_images = vocab->n_images;
        return icetext_finish(tok, name, err);
    }
    tok->is_pangu = true;
    return vocab->words ? jieba_read(&tok->jieba, vocab->words, name, err) : TUTTI_OK;
}

static enum tutti_status fill_from_pieces(struct tokenizer *tok, const struct piece_vocab *vocab,
                                          const char *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    tok->add_dummy_prefix = vocab->add_dummy_prefix;
    tok->remove_extra_whitespaces = vocab->remove_extra_whitespaces;
    tok->byte_fallback = vocab->byte_fallback;
    tok->kind = vocab->is_unigram ? TOKENIZER_UNIGRAM : TOKENIZER_BPE;
    tok->escape_whitespaces = !vocab->keeps_blanks;
    tok->blank_is_suffix = vocab->blank_is_suffix;
    if (vocab->unk_surface)
        st = set_unk_surface(tok, vocab->unk_surface, vocab->n_unk_surface, name, err);
    if (st == TUTTI_OK && vocab->n_map_bytes > 0) {
        char what[512];
        snprintf(what, sizeof what, "%s: the normalization table", name);
        st = set_map(tok, vocab->map, vocab->n_map_bytes, what, err);
    }
    for (size_t i = 0; st == TUTTI_OK && i < vocab->n_pieces; i++)
        st = add_vocab_piece(tok, &vocab->pieces[i], name, err);
    if (st == TUTTI_OK && tok->n_pieces == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there are no tokens", name);
    if (st == TUTTI_OK)
        st = vocab_finish(tok, name, err);
    if (st == TUTTI_OK)
        st = vocab_check_bytes(tok, vocab->unk_id >= 0, name, err);
    if (st == TUTTI_OK)
        st = check_special(tok, "unknown", vocab->unk_id, name, err);
    if (st == TUTTI_OK)
        st = check_special(tok, "begin", vocab->bos_id, name, err);
    if (st == TUTTI_OK)
        st = check_special(tok, "end", vocab->eos_id, name, err);
    if (st == TUTTI_OK && vocab->unk_id < 0 && !vocab->byte_fallback)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there are neither BYTE tokens nor an unknown token", name);
    if (st == TUTTI_OK)
        st = set_rules(tok, vocab, name, err);
    if (st != TUTTI_OK)
        return st;
    tok->unk_id = vocab->unk_id;
    tok->bos_id = vocab->bos_id;
    tok->eos_id = vocab->eos_id;
    return finish(tok, name, err);
}

enum tutti_status tokenizer_from_pieces(struct tokenizer **out, const struct piece_vocab *vocab,
                                        const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = new_tokenizer();
    return tok ? tokenizer_give(out, tok, fill_from_pieces(tok, vocab, name, err))
               : error_out_of_memory(name, err);
}
