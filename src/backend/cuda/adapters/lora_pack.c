#include "backend/cuda/adapters/lora_pack.h"

#include "backend/lora_factor.h"
#include "base/hash.h"

#include <assert.h>
#include <string.h>

/* Memory that is filled from front to back. */
struct filled {
    uint8_t *host; /* NULL: only counted */
    const uint8_t *card;
    size_t n;
};

static size_t place(struct filled *f, size_t n_bytes)
{
    size_t at = f->n;
    f->n += (n_bytes + 15) / 16 * 16;
    return at;
}

/* The card's address of a copy of n_bytes; NULL: from is NULL. */
static const void *place_copy(struct filled *f, const void *from, size_t n_bytes)
{
    if (!from)
        return NULL;
    size_t at = place(f, n_bytes);
    if (f->host && n_bytes > 0)
        memcpy(f->host + at, from, n_bytes);
    return f->card + at;
}

static size_t padded(int n)
{
    return ((size_t)n + LORA_COLUMNS - 1) / LORA_COLUMNS * LORA_COLUMNS;
}

/* Where the parts of a packed source are. */
struct lora_places {
    size_t pieces, scales, a;
};

static void pack_part(struct filled *f, const struct lora_places *at, const struct lora_source *source,
                      int index, int rank_begin)
{
    const struct lora_part *part = &source->parts[index];
    bool is_half = source->type == DTYPE_F16;
    size_t n_in = (size_t)source->n_in, n_out = (size_t)part->n_out, rank = (size_t)part->rank;
    size_t row = padded(source->n_in), n_padded = padded(part->n_out),
           b = place(f, rank * n_padded * (is_half ? 2 : 4));
    if (!f->host)
        return;
    struct lora_update piece = { .b = f->card + b,
                                 .out_begin = part->out_begin,
                                 .n_out = part->n_out,
                                 .n_padded = (int32_t)n_padded,
                                 .rank_begin = rank_begin,
                                 .rank = part->rank };
    memcpy(f->host + at->pieces + (size_t)index * sizeof piece, &piece, sizeof piece);
    for (size_t i = 0; i < rank; i++) {
        struct lora_rank as = lora_rank_of(part, source->n_in, i, is_half);
        size_t sum = (size_t)rank_begin + i;
        memcpy(f->host + at->scales + sum * sizeof as.scale, &as.scale, sizeof as.scale);
        for (size_t k = 0; k < n_in; k++)
            lora_put_factor(f->host + at->a, sum * row + k, part->a[i * n_in + k], is_half, as.a_exponent);
        for (size_t j = 0; j < n_out; j++)
            lora_put_factor(f->host + b, i * n_padded + j, part->b[j * rank + i], is_half, as.b_exponent);
    }
}

size_t lora_pack(uint8_t *host, const uint8_t *card, const struct lora_source *source)
{
    struct filled f = { host, card, 0 };
    struct lora_change change = { .n_pieces = source->n_parts,
                                  .is_half = source->type == DTYPE_F16,
                                  .n_padded = (int32_t)padded(source->n_in) };
    size_t head = place(&f, sizeof change), n_out = (size_t)source->n_out * sizeof(float);
    for (int i = 0; i < source->n_parts; i++) {
        const struct lora_part *part = &source->parts[i];
        assert(part->rank >= 1 && part->rank <= LORA_MAX_RANK && part->out_begin >= 0 &&
               part->out_begin + part->n_out <= source->n_out);
        change.rank += part->rank;
    }
    struct lora_places at = { .pieces = place(&f, (size_t)source->n_parts * sizeof(struct lora_update)) };
    at.scales = place(&f, (size_t)change.rank * sizeof(float));
    at.a = place(&f, (size_t)change.rank * padded(source->n_in) * (change.is_half ? 2 : 4));
    change.pieces = (const void *)(card + at.pieces);
    change.scales = (const void *)(card + at.scales);
    change.a = card + at.a;
    change.factors = place_copy(&f, source->factors, n_out);
    change.shifts = place_copy(&f, source->shifts, n_out);
    for (int i = 0, rank = 0; i < source->n_parts; i++) {
        pack_part(&f, &at, source, i, rank);
        rank += source->parts[i].rank;
    }
    if (host)
        memcpy(host + head, &change, sizeof change);
    return f.n;
}

uint64_t lora_hash(const uint8_t *host, size_t n_bytes, const struct lora_source *source)
{
    struct filled f = { 0 };
    const int32_t shape[] = { source->n_in,          source->n_out,           source->n_parts,
                              (int32_t)source->type, source->factors != NULL, source->shifts != NULL };
    uint64_t sum = hash64(0, shape, sizeof shape);
    for (int i = 0; i < source->n_parts; i++) {
        const int32_t part[] = { source->parts[i].out_begin, source->parts[i].n_out, source->parts[i].rank };
        sum = hash64(sum, part, sizeof part);
    }
    place(&f, sizeof(struct lora_change)); /* the first two have addresses */
    place(&f, (size_t)source->n_parts * sizeof(struct lora_update));
    return hash64(sum, host + f.n, n_bytes - f.n);
}

/* ---- embedding ---- */

/* The card's address of the transposed from [n_rows][n_columns], times scale. */
static const void *place_transposed(struct filled *f, const float *from, int n_rows, int n_columns,
                                    float scale)
{
    size_t rows = (size_t)n_rows, columns = (size_t)n_columns, at = place(f, rows * columns * sizeof(float));
    for (size_t r = 0; f->host && r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            float x = scale * from[r * columns + c];
            memcpy(f->host + at + (c * rows + r) * sizeof x, &x, sizeof x);
        }
    }
    return f->card + at;
}

size_t embedding_pack(uint8_t *host, const uint8_t *card, const struct embedding_source *source, int table)
{
    struct filled f = { host, card, 0 };
    size_t n = (size_t)source->n_columns * sizeof(float);
    struct embedding_change change = {
        .n_ids = source->n_ids, .rank = source->rank, .n_virtual = source->n_virtual, .table = table
    };
    size_t head = place(&f, sizeof change);
    change.ids = place_copy(&f, source->ids, (size_t)source->n_ids * sizeof *source->ids);
    change.rows = place_copy(&f, source->rows, (size_t)source->n_ids * n);
    change.a = place_transposed(&f, source->a, source->rank, source->n_vocab, source->scale);
    change.b = place_transposed(&f, source->b, source->n_columns, source->rank, 1);
    change.virtual_rows = place_copy(&f, source->virtual_rows, (size_t)source->n_virtual * n);
    if (host)
        memcpy(host + head, &change, sizeof change);
    return f.n;
}

uint64_t embedding_hash(const uint8_t *host, size_t n_bytes, const struct embedding_source *source)
{
    struct filled f = { 0 };
    const int32_t shape[] = { source->n_vocab, source->n_columns, source->n_ids, source->rank,
                              source->n_virtual };
    place(&f, sizeof(struct embedding_change)); /* has addresses */
    return hash64(hash64(0, shape, sizeof shape), host + f.n, n_bytes - f.n);
}
