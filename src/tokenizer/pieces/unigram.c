/* SentencePiece's unigram model: the segmentation of a text into pieces with the greatest sum of
 * scores. Kudo, "Subword Regularization", 2018; the search is Viterbi's, in the library's order
 * and precision. */
#include "tokenizer/pieces/unigram.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* The score of an unknown character, relative to that of the worst piece. */
static const float UNKNOWN_PENALTY = 10;

/* The score of a USER_DEFINED piece. Logarithms of probabilities are negative, so such a piece always
 * wins. */
static float user_defined_score(size_t n_bytes)
{
    return (float)(0.1 * (double)(n_bytes - 1));
}

/* Larger sums are subtracted from all open paths, so that long texts lose no precision. */
static const float GREATEST_SUM = 100000;

enum tutti_status unigram_finish(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    struct spelling *list = malloc(((size_t)tok->n_pieces + 1) * sizeof *list);
    size_t n = 0;
    float lowest = FLT_MAX;
    for (int32_t id = 0; list && id < tok->n_pieces; id++) {
        const struct piece_entry *p = &tok->pieces[id];
        if (p->type == PIECE_NORMAL)
            lowest = fminf(lowest, p->score);
        if (vocab_is_mergeable(tok, id))
            list[n++] = (struct spelling){ .bytes = vocab_bytes(tok, id), .n_bytes = p->n_bytes, .id = id };
    }
    bool ok = list && trie_build(&tok->trie, list, n);
    free(list);
    tok->unknown_score = lowest - UNKNOWN_PENALTY;
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
}

static const uint32_t NO_PATH = UINT32_MAX;

/* The best segmentation of the text up to some position. */
struct piece_path {
    float score;
    int32_t id;     /* of its last piece; that of unknown characters may be -1 */
    uint32_t begin; /* of that piece; NO_PATH: not reachable */
};

struct search {
    const struct tokenizer *tok;
    const char *text;
    size_t n_bytes;
    struct piece_path *paths; /* [n_bytes + 1] */
    size_t frontier;          /* the furthest reachable position */
    bool takes_marks;
};

static void offer(struct search *s, size_t begin, size_t end, float score, int32_t id)
{
    struct piece_path *to = &s->paths[end];
    if (end > s->frontier)
        s->frontier = end;
    if (to->begin == NO_PATH || score > to->score)
        *to = (struct piece_path){ .score = score, .id = id, .begin = (uint32_t)begin };
}

static void lower_sums(struct search *s, size_t at)
{
    float offset = s->paths[at].score;
    for (size_t i = at; i <= s->frontier; i++) {
        if (i == at || s->paths[i].begin != NO_PATH)
            s->paths[i].score -= offset;
    }
    s->paths[at].score = 0; /* also if the sum was NaN */
}

/* Extends paths by all pieces that begin at one position. Returns the length of the character
 * there. */
static size_t extend(struct search *s, size_t at)
{
    const struct tokenizer *tok = s->tok;
    size_t n_char = vocab_char_length(s->text + at, s->n_bytes - at);
    bool has_character = false;
    uint32_t node = 0;
    if (s->paths[at].score < -GREATEST_SUM || s->paths[at].score > GREATEST_SUM)
        lower_sums(s, at);
    float here = s->paths[at].score;
    for (size_t end = at; end < s->n_bytes;) {
        node = trie_child(&tok->trie, node, (uint8_t)s->text[end++]);
        if (node == 0)
            break;
        int32_t id = tok->trie.nodes[node].id;
        uint8_t type = id < 0 ? PIECE_UNUSED : tok->pieces[id].type;
        bool is_mark = type == PIECE_CONTROL; /* user-defined in the model, special by another file */
        if (type == PIECE_UNUSED || (is_mark && !s->takes_marks))
            continue;
        bool is_user_defined = type == PIECE_USER_DEFINED || is_mark;
        float score = is_user_defined ? user_defined_score(end - at) : tok->pieces[id].score;
        offer(s, at, end, score + here, id);
        has_character |= end - at == n_char;
    }
    if (!has_character)
        offer(s, at, at + n_char, tok->unknown_score + here, tok->unk_id);
    return n_char;
}

/* piece: its id, and its end in begin. */
static bool add_piece(const struct tokenizer *tok, const char *text, size_t begin, struct piece_path piece,
                      bool *after_unknown, struct ids *out)
{
    bool is_unknown = piece.id == tok->unk_id;
    bool has_bytes = is_unknown && vocab_has_bytes(tok, text + begin, piece.begin - begin);
    bool fuses = is_unknown && !has_bytes && *after_unknown;
    *after_unknown = is_unknown && !has_bytes;
    if (!is_unknown)
        return ids_add(out, piece.id);
    if (!has_bytes)
        return fuses || ids_add(out, tok->unk_id);
    for (size_t at = begin; at < piece.begin; at++) {
        if (!ids_add(out, tok->byte_ids[(uint8_t)text[at]]))
            return false;
    }
    return true;
}

/* Reverses the path to the text's end: stores each piece's end at its begin. */
static void reverse_paths(struct piece_path *paths, size_t n_bytes)
{
    struct piece_path piece = paths[n_bytes];
    for (size_t end = n_bytes; end > 0;) {
        struct piece_path before = paths[piece.begin];
        paths[piece.begin] = (struct piece_path){ .id = piece.id, .begin = (uint32_t)end };
        end = piece.begin;
        piece = before;
    }
}

bool unigram_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_marks,
                    struct ids *out)
{
    if (n_bytes == 0)
        return true;
    /* If every byte is part of some id, and no id has more bytes than the longest piece. */
    if (tok->byte_fallback && !tok->lacks_bytes && tok->n_merge_bytes > 0 &&
        !ids_has_room(out, n_bytes / tok->n_merge_bytes))
        return false;
    struct search s = { .tok = tok, .text = text, .n_bytes = n_bytes, .takes_marks = takes_marks };
    s.paths = malloc((n_bytes + 1) * sizeof *s.paths);
    if (!s.paths)
        return false;
    for (size_t i = 0; i <= n_bytes; i++)
        s.paths[i] = (struct piece_path){ .begin = NO_PATH };
    for (size_t at = 0; at < n_bytes;)
        at += extend(&s, at);

    reverse_paths(s.paths, n_bytes);
    bool ok = true, after_unknown = false;
    for (size_t at = 0; ok && at < n_bytes; at = s.paths[at].begin)
        ok = add_piece(tok, text, at, s.paths[at], &after_unknown, out);
    free(s.paths);
    return ok;
}
