#include "checkpoint/quantized/packed_ints.h"

#include "base/half.h"
#include "base/text.h"
#include "base/transpose.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Columns and rows that are unpacked together: of GPTQ's words whole cache lines. */
enum { BLOCK = 32, ROWS = 64 };
enum { MOST_COLUMNS = 128 };            /* of a group's block, which are unpacked together instead */
enum { MOST_ORDERED = UINT16_MAX + 1 }; /* columns that tensor.order can number */

/* Where the numbers are: words of columns (GPTQ: [n_in / n][n_out]), of outputs in an order of
 * their own (AWQ: [n_in][n_out / 8]), or of columns of a row (compressed-tensors: [n_out][n_in /
 * n]); or signed bytes ([n_out][n_in]). */
enum layout { LAYOUT_GPTQ, LAYOUT_AWQ, LAYOUT_ROWS, LAYOUT_BYTES };

struct packed_ints {
    struct quantized_tensor base; /* from: words, scales, then zeros and g_idx if there are any */
    enum layout layout;
    int n_bits;
    int64_t group, n_groups; /* columns of a group */
    /* Added to each word of zero points: 1 in every number, as GPTQModel does with a whole word. A number that was 0 borrowed from the next
     * one when it was stored less 1, so this carries. */
    uint32_t zero_step;
    const struct tensor *zeros;  /* NULL: half of the range */
    const struct tensor *groups; /* group of each column; NULL: runs of columns */
    uint16_t order[];            /* of a compact tensor: tensor.order */
};

/* The bytes of all tensors while a part is made. */
struct packed_bytes {
    const uint8_t *words, *scales, *zeros, *groups;
    void *owned[QUANTIZED_MAX_FROM];
};

static uint32_t word_at(const uint8_t *words, int64_t i)
{
    uint32_t word;
    memcpy(&word, words + 4 * i, sizeof word);
    return word;
}

static uint64_t load64(const uint8_t *from)
{
    uint64_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

static void store64(uint8_t *to, uint64_t x)
{
    memcpy(to, &x, sizeof x);
}

static bool packed_bytes_open(struct packed_bytes *b, const struct packed_ints *p)
{
    *b = (struct packed_bytes){ 0 };
    b->words = tensor_bytes(p->base.from[0], &b->owned[0]);
    b->scales = tensor_bytes(p->base.from[1], &b->owned[1]);
    b->zeros = p->zeros ? tensor_bytes(p->zeros, &b->owned[2]) : NULL;
    b->groups = p->groups ? tensor_bytes(p->groups, &b->owned[3]) : NULL;
    return b->words && b->scales && (b->zeros || !p->zeros) && (b->groups || !p->groups);
}

static void packed_bytes_close(struct packed_bytes *b)
{
    for (int i = 0; i < QUANTIZED_MAX_FROM; i++)
        free(b->owned[i]);
}

/* AWQ's order: the bits of output 8k + i of a word of outputs begin at 4 * AWQ_PLACE[i]. */
static const int AWQ_PLACE[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

/* The zero point of a row's group. */
static int zero_at(const struct packed_ints *p, const struct packed_bytes *b, int64_t row, int64_t group)
{
    int64_t per_word = 32 / p->n_bits, n_out = p->base.tensor.shape[0];
    int mask = (1 << p->n_bits) - 1, shift = (int)(row % per_word) * p->n_bits;
    if (!p->zeros)
        return 1 << (p->n_bits - 1);
    if (p->layout == LAYOUT_ROWS)
        return (int)(word_at(b->zeros, row / per_word * p->n_groups + group) >> shift) & mask;
    if (p->layout == LAYOUT_AWQ)
        shift = 4 * AWQ_PLACE[row % 8];
    uint32_t word = word_at(b->zeros, group * (n_out / per_word) + row / per_word) + p->zero_step;
    return (int)(word >> shift) & mask;
}

static int64_t scale_index(const struct packed_ints *p, int64_t row, int64_t group)
{
    return p->layout == LAYOUT_ROWS || p->layout == LAYOUT_BYTES ? row * p->n_groups + group
                                                                 : group * p->base.tensor.shape[0] + row;
}

/* The column of the matrix at a place of the tensor. */
static int64_t column_at(const struct packed_ints *p, int64_t place)
{
    return p->base.tensor.order ? p->order[place] : place;
}

static int64_t group_at(const struct packed_ints *p, const struct packed_bytes *b, int64_t place)
{
    int64_t column = column_at(p, place);
    return p->groups ? (int64_t)word_at(b->groups, column) : column / p->group;
}

/* As unpack(), of columns in any order; n is a multiple of 16. Numbers of four columns of a row become a word, in loops
 * over the rows, whose words GPTQ stores together. Then the words are transposed. */
static void unpack_ordered(uint8_t out[ROWS][MOST_COLUMNS], const struct packed_ints *p,
                           const struct packed_bytes *b, int64_t row, int n_rows, int64_t place, int n)
{
    enum { LINE_WORDS = TRANSPOSE_LINE / 4 };
    int64_t n_out = p->base.tensor.shape[0], per_word = 32 / p->n_bits;
    int64_t n_words = (p->base.tensor.shape[1] + per_word - 1) / per_word; /* of a row */
    bool is_gptq = p->layout == LAYOUT_GPTQ;
    uint32_t mask = (1u << p->n_bits) - 1, words[MOST_COLUMNS / 4][ROWS] = { 0 };
    for (int c = 0; c < n; c++) {
        int64_t column = column_at(p, place + c), at = column / per_word;
        const uint8_t *from = b->words + 4 * (is_gptq ? at * n_out + row : row * n_words + at);
        uint32_t *to = words[c / 4];
        int shift = (int)(column % per_word) * p->n_bits, to_shift = c % 4 * 8;
        int64_t stride = is_gptq ? 1 : n_words;
        if (stride == 1) /* its own loop, which the compiler vectorizes */
            for (int r = 0; r < n_rows; r++)
                to[r] |= (word_at(from, r) >> shift & mask) << to_shift;
        else
            for (int r = 0; r < n_rows; r++)
                to[r] |= (word_at(from, r * stride) >> shift & mask) << to_shift;
    }
    for (int r = 0; r < n_rows; r += LINE_WORDS) {
        const uint8_t *lines[MOST_COLUMNS / 4];
        for (int i = 0; i < n / 4; i++)
            lines[i] = (const uint8_t *)&words[i][r];
        transpose_lines32(out[r], MOST_COLUMNS, lines, n / 4);
    }
}

/* Eight numbers of four bits as bytes, the lowest first. */
static uint64_t spread_nibbles(uint64_t x)
{
    x = (x | x << 16) & 0x0000FFFF0000FFFF;
    x = (x | x << 8) & 0x00FF00FF00FF00FF;
    return (x | x << 4) & 0x0F0F0F0F0F0F0F0F;
}

/* The numbers of n_rows rows (at most ROWS) from row on, of n columns (at most MOST_COLUMNS) from
 * column on, which is a multiple of BLOCK. */
static void unpack(uint8_t out[ROWS][MOST_COLUMNS], const struct packed_ints *p, const struct packed_bytes *b,
                   int64_t row, int n_rows, int64_t column, int n)
{
    int n_bits = p->n_bits, per_word = 32 / n_bits;
    uint32_t mask = (1u << n_bits) - 1;
    int64_t n_out = p->base.tensor.shape[0], n_in = p->base.tensor.shape[1];
    if (p->base.tensor.order) {
        unpack_ordered(out, p, b, row, n_rows, column, n);
        return;
    }
    if (p->layout == LAYOUT_AWQ) {
        for (int c = 0; c < n; c++)
            for (int r = 0; r < n_rows; r++) {
                uint32_t word = word_at(b->words, (column + c) * (n_out / 8) + (row + r) / 8);
                out[r][c] = (uint8_t)(word >> (4 * AWQ_PLACE[(row + r) % 8]) & 15);
            }
        return;
    }
    if (p->layout == LAYOUT_BYTES) {
        for (int r = 0; r < n_rows; r++)
            for (int c = 0; c < n; c++)
                out[r][c] = b->words[(row + r) * n_in + column + c] ^ 0x80;
        return;
    }
    int64_t n_words = (n_in + per_word - 1) / per_word;
    for (int c = 0; c < n; c += per_word)
        for (int r = 0; r < n_rows; r++) {
            int64_t at = (column + c) / per_word;
            uint32_t word = word_at(b->words, p->layout == LAYOUT_GPTQ ? at * n_out + row + r
                                                                       : (row + r) * n_words + at);
            if (n_bits == 4) {
                store64(&out[r][c], spread_nibbles(word));
                continue;
            }
            for (int i = 0; i < per_word; i++, word >>= n_bits)
                out[r][c + i] = (uint8_t)(word & mask);
        }
}

/* The same of a group's block: numbers of 32 columns as in Q4_0 or Q8_0, after the scale and zero point. */
static void put_group_block(uint8_t *to, enum dtype dtype, int n, uint16_t scale, int zero, int n_bits,
                            const uint8_t numbers[MOST_COLUMNS])
{
    bool has_zero = dtype == DTYPE_G4Z_32 || dtype == DTYPE_G4Z_64 || dtype == DTYPE_G4Z_128;
    const uint64_t each_byte = 0x0101010101010101;
    uint64_t add = has_zero ? 0 : (uint64_t)(8 - zero) * each_byte; /* each byte stays in 0..15 */
    memcpy(to, &scale, 2);
    to += 2;
    if (has_zero)
        *to++ = (uint8_t)(zero - 8);
    for (int begin = 0; begin < n; begin += BLOCK, numbers += BLOCK) {
        for (int i = 0; n_bits == 8 && i < BLOCK; i++)
            *to++ = (uint8_t)(numbers[i] - zero);
        for (int i = 0; n_bits < 8 && i < BLOCK / 2; i += 8, to += 8)
            store64(to, (load64(numbers + i) + add) | (load64(numbers + i + BLOCK / 2) + add) << 4);
    }
}

/* One block of 32 numbers with one scale (a float16) and zero point: base/dtype.h. */
static void packed_ints_put_block(uint8_t *to, enum dtype dtype, uint16_t scale, int zero,
                                  const uint8_t numbers[BLOCK])
{
    memcpy(to, &scale, 2);
    to += 2;
    if (dtype == DTYPE_Q8_0) {
        for (int i = 0; i < BLOCK; i++)
            to[i] = (uint8_t)(numbers[i] - zero);
        return;
    }
    int add = (dtype == DTYPE_Q4_0 ? 8 : 16) - zero;
    uint32_t high = 0;
    uint8_t *low = to + (dtype == DTYPE_Q5_0 ? 4 : 0);
    for (int i = 0; i < BLOCK; i++)
        high |= (uint32_t)((numbers[i] + add) >> 4 & 1) << i;
    if (dtype == DTYPE_Q5_0)
        memcpy(to, &high, sizeof high);
    for (int i = 0; i < BLOCK / 2; i++)
        low[i] = (uint8_t)(((numbers[i] + add) & 15) | ((numbers[i + BLOCK / 2] + add) & 15) << 4);
}

/* Columns begin..end of one block of a row. to: column begin. */
static void put_row(uint8_t *to, const struct packed_ints *p, const struct packed_bytes *b, int64_t row,
                    int64_t begin, int64_t end, const uint8_t numbers[MOST_COLUMNS])
{
    enum dtype type = p->base.tensor.dtype, scale_type = p->base.from[1]->dtype;
    int64_t group = group_at(p, b, begin);
    int zero = zero_at(p, b, row, group);
    float scale = quantized_float(b->scales, scale_type, scale_index(p, row, group));
    if (type >= DTYPE_G4_64 && type <= DTYPE_G4Z_128) {
        put_group_block(to, type, (int)(end - begin), float_to_half(scale), zero, p->n_bits, numbers);
        return;
    }
    if (dtype_block_elems(type) == BLOCK) {
        packed_ints_put_block(to, type, float_to_half(scale), zero, numbers);
        return;
    }
    for (int64_t c = begin; c < end; c++, to += 2) {
        int64_t next = group_at(p, b, c);
        if (next != group) {
            group = next;
            zero = zero_at(p, b, row, group);
            scale = quantized_float(b->scales, scale_type, scale_index(p, row, group));
        }
        float x = scale * (float)(numbers[c % BLOCK] - zero);
        uint16_t half = type == DTYPE_F16 ? float_to_half(x) : float_to_bf16(x);
        memcpy(to, &half, 2);
    }
}

static bool packed_ints_make_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct packed_ints *p = (const struct packed_ints *)t->source;
    struct packed_bytes b;
    uint8_t numbers[ROWS][MOST_COLUMNS];
    int64_t n_together = dtype_block_elems(t->dtype) > 1 ? dtype_block_elems(t->dtype) : BLOCK;
    bool ok = packed_bytes_open(&b, p);
    int64_t row_end = part->row + part->n_rows, column_end = part->column + part->n_columns;
    size_t stride = tensor_columns_bytes(t, part->n_columns);
    for (int64_t row = part->row; ok && row < row_end; row += ROWS) {
        int n_rows = row_end - row < ROWS ? (int)(row_end - row) : ROWS;
        for (int64_t block = part->column / n_together * n_together; block < column_end;
             block += n_together) {
            int64_t begin = block > part->column ? block : part->column;
            int64_t end = block + n_together < column_end ? block + n_together : column_end;
            unpack(numbers, p, &b, row, n_rows, block, (int)(end - block));
            uint8_t *to = (uint8_t *)bytes + (size_t)(row - part->row) * stride +
                          tensor_columns_bytes(t, begin - part->column);
            for (int r = 0; r < n_rows; r++, to += stride)
                put_row(to, p, &b, row + r, begin, end, numbers[r]);
        }
    }
    packed_bytes_close(&b);
    return ok;
}

static bool packed_ints_make(const struct tensor *t, void *bytes)
{
    const struct tensor_part all = { 0, t->shape[0], 0, t->shape[1] };
    return packed_ints_make_part(t, &all, bytes);
}

/* ---- checks ---- */

/* A word of equal numbers. */
static uint32_t repeated(uint32_t number, int n_bits)
{
    uint32_t word = 0;
    for (int i = 0; i < 32; i += n_bits)
        word |= number << i;
    return word;
}

/* Whether every zero point is the middle of the range. */
static enum tutti_status is_symmetric(bool *out, const struct packed_ints *p, struct tutti_error *err)
{
    struct packed_bytes b = { 0 };
    *out = true;
    if (!p->zeros)
        return TUTTI_OK;
    b.zeros = tensor_bytes(p->zeros, &b.owned[2]);
    /* Usually all words are those of symmetric weights, which takes a comparison each. */
    uint32_t middle = repeated(1u << (p->n_bits - 1), p->n_bits) - p->zero_step;
    size_t n_same = 0, n_words = p->zeros->n_bytes / 4;
    while (b.zeros && n_same < n_words && word_at(b.zeros, (int64_t)n_same) == middle)
        n_same++;
    for (int64_t g = 0; b.zeros && n_same < n_words && *out && g < p->n_groups; g++)
        for (int64_t r = 0; *out && r < p->base.tensor.shape[0]; r++)
            *out = zero_at(p, &b, r, g) == 1 << (p->n_bits - 1);
    packed_bytes_close(&b);
    tensor_forget(p->zeros);
    return b.zeros ? TUTTI_OK : error_out_of_memory(p->zeros->file, err);
}

/* Checks the group of each column. *is_plain: they are runs of p->group columns. */
static enum tutti_status check_groups(bool *is_plain, const struct packed_ints *p, struct tutti_error *err)
{
    void *owned;
    const uint8_t *groups = tensor_bytes(p->groups, &owned);
    enum tutti_status st = groups ? TUTTI_OK : error_out_of_memory(p->groups->file, err);
    *is_plain = true;
    for (int64_t c = 0; st == TUTTI_OK && c < p->base.tensor.shape[1]; c++) {
        int32_t group = (int32_t)word_at(groups, c);
        if (group < 0 || group >= p->n_groups)
            st = error_set(err, TUTTI_E_FORMAT,
                           "%s: tensor %s: column %" PRId64 " is in group %" PRId32 ", expected 0 to %" PRId64
                           "",
                           p->groups->file, p->groups->name, c, group, p->n_groups - 1);
        *is_plain = *is_plain && group == c / p->group;
    }
    free(owned);
    return st;
}

static enum tutti_status set_source(struct packed_ints *p, struct tutti_error *err)
{
    struct tensor *t = &p->base.tensor;
    p->base.source.make = packed_ints_make;
    p->base.source.make_part = packed_ints_make_part;
    if (!tensor_measure(t))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", t->file,
                         t->name);
    return TUTTI_OK;
}

/* Counts the columns of each group. False: out of memory. */
static bool count_columns(int64_t *counts, const struct packed_ints *p)
{
    int64_t n_in = p->base.tensor.shape[1];
    void *owned = NULL;
    const uint8_t *groups = p->groups ? tensor_bytes(p->groups, &owned) : NULL;
    for (int64_t c = 0; groups && c < n_in; c++)
        counts[word_at(groups, c)]++;
    for (int64_t g = 0; !p->groups && g < p->n_groups; g++)
        counts[g] = g + 1 < p->n_groups ? p->group : n_in - g * p->group;
    free(owned);
    return groups || !p->groups;
}

/* Sorts the columns by group, those of a group by number. counts: becomes where each group ends. False: out of
 * memory. */
static bool sort_columns(uint16_t *order, int64_t *counts, const struct packed_ints *p)
{
    void *owned;
    const uint8_t *groups = tensor_bytes(p->groups, &owned);
    int64_t first = 0;
    for (int64_t g = 0; g < p->n_groups; g++) {
        int64_t n = counts[g];
        counts[g] = first;
        first += n;
    }
    for (int64_t c = 0; groups && c < p->base.tensor.shape[1]; c++)
        order[counts[word_at(groups, c)]++] = (uint16_t)c;
    free(owned);
    return groups;
}

/* The type of a compact tensor: of the longest blocks that each group has a multiple of. The tensor's own: none. */
static enum dtype compact_type(const struct packed_ints *p, const int64_t *counts, bool is_middle)
{
    static const enum dtype TYPES[3][3] = { { DTYPE_G8_128, DTYPE_G8_64, DTYPE_Q8_0 },
                                            { DTYPE_G4_128, DTYPE_G4_64, DTYPE_Q4_0 },
                                            { DTYPE_G4Z_128, DTYPE_G4Z_64, DTYPE_G4Z_32 } };
    const enum dtype *types = TYPES[p->n_bits == 8 ? 0 : is_middle ? 1 : 2];
    int fit = 3;
    for (int i = 2; i >= 0; i--) {
        bool fits = true;
        for (int64_t g = 0; fits && g < p->n_groups; g++)
            fits = counts[g] % dtype_block_elems(types[i]) == 0;
        fit = fits ? i : fit;
    }
    bool can = fit < 3 && p->base.from[1]->dtype != DTYPE_F32 && (is_middle || p->n_bits < 8) &&
               (!p->groups || p->base.tensor.shape[1] <= MOST_ORDERED);
    return can ? types[fit] : p->base.tensor.dtype;
}

/* Makes the compact tensor of p. counts: columns of each group. */
static enum tutti_status make_compact(struct quantized *q, struct packed_ints *p, enum dtype type,
                                      int64_t *counts, struct tutti_error *err)
{
    struct tensor *t = &p->base.tensor;
    size_t order_bytes = p->groups ? (size_t)t->shape[1] * sizeof *p->order : 0;
    struct packed_ints *compact = quantized_add(q, sizeof *compact + order_bytes, t, "weight", err);
    if (!compact)
        return TUTTI_E_MEMORY;
    compact->layout = p->layout;
    compact->n_bits = p->n_bits;
    compact->group = p->group;
    compact->n_groups = p->n_groups;
    compact->zero_step = p->zero_step;
    compact->zeros = p->zeros;
    compact->groups = p->groups;
    for (size_t i = 0; i < p->base.source.n_from; i++)
        quantized_add_from(&compact->base, p->base.from[i]);
    compact->base.tensor.dtype = type;
    compact->base.tensor.n_dims = t->n_dims;
    memcpy(compact->base.tensor.shape, t->shape, sizeof t->shape);
    if (p->groups && !sort_columns(compact->order, counts, p))
        return error_out_of_memory(t->file, err);
    compact->base.tensor.order = p->groups ? compact->order : NULL;
    t->compact = &compact->base.tensor;
    return set_source(compact, err);
}

/* Adds the compact tensor, if groups and types allow one. */
static enum tutti_status add_compact(struct quantized *q, struct packed_ints *p, bool is_middle,
                                     struct tutti_error *err)
{
    enum dtype own = p->base.tensor.dtype;
    int64_t *counts = calloc((size_t)p->n_groups, sizeof *counts);
    enum tutti_status st = TUTTI_OK;
    if (!counts || !count_columns(counts, p)) {
        st = error_out_of_memory(p->base.tensor.file, err);
    } else {
        enum dtype type = compact_type(p, counts, is_middle);
        if (type != own)
            st = make_compact(q, p, type, counts, err);
    }
    free(counts);
    return st;
}

/* Chooses the types once all fields are set. */
static enum tutti_status finish(struct quantized *q, struct packed_ints *p, struct tutti_error *err)
{
    struct tensor *t = &p->base.tensor;
    enum dtype scale = p->base.from[1]->dtype;
    bool is_plain = true, is_middle = true;
    enum tutti_status st = p->groups ? check_groups(&is_plain, p, err) : TUTTI_OK;
    if (st == TUTTI_OK && is_plain)
        p->groups = NULL;
    if (st == TUTTI_OK)
        st = is_symmetric(&is_middle, p, err);
    if (st != TUTTI_OK)
        return st;
    if (is_middle)
        p->zeros = NULL; /* spares a lookup for each group of each row */
    bool fits = is_plain && (p->group % BLOCK == 0 || p->n_groups == 1) && t->shape[1] % BLOCK == 0 &&
                scale != DTYPE_F32 && (is_middle || p->n_bits < 8);
    t->dtype = !fits            ? scale == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16
               : p->n_bits == 8 ? DTYPE_Q8_0
               : is_middle      ? DTYPE_Q4_0
                                : DTYPE_Q5_0;
    st = set_source(p, err);
    return st == TUTTI_OK ? add_compact(q, p, is_middle, err) : st;
}

/* Adds what every layout has. */
static void add_inputs(struct packed_ints *p, const struct tensor *words, const struct tensor *scales)
{
    quantized_add_from(&p->base, words);
    quantized_add_from(&p->base, scales);
    if (p->zeros)
        quantized_add_from(&p->base, p->zeros);
    if (p->groups)
        quantized_add_from(&p->base, p->groups);
}

static enum tutti_status wrong_dims(const struct tensor *t, const char *expected, struct tutti_error *err)
{
    char found[128];
    tensor_shape_text(found, sizeof found, t->shape, t->n_dims);
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected %s", t->file, t->name,
                     dtype_name(t->dtype), found, expected);
}

/* Sets the shape and the groups. */
static enum tutti_status set_shape(struct packed_ints *p, const struct quantized *q, const struct tensor *t,
                                   int64_t n_out, int64_t n_in, struct tutti_error *err)
{
    struct tensor *made = &p->base.tensor;
    if (n_out < 1 || n_in < 1 || n_out > INT32_MAX || n_in > INT32_MAX)
        return wrong_dims(t, "a matrix with rows and columns", err);
    made->n_dims = 2;
    made->shape[0] = n_out;
    made->shape[1] = n_in;
    p->group = q->group > 0 && q->group < n_in ? q->group : n_in;
    p->n_groups = (n_in + p->group - 1) / p->group;
    return TUTTI_OK;
}

/* ---- GPTQ and AWQ ---- */

static enum tutti_status wrap_columns(struct quantized *q, const struct checkpoint *ck,
                                      const struct tensor *t, const struct tensor **made,
                                      struct tutti_error *err)
{
    static const char END[] = "qweight";
    const struct tensor *scales = NULL;
    int64_t per_word = 32 / q->n_bits;
    bool is_awq = q->method == &AWQ_METHOD;
    if (!text_ends_with(t->name, ".qweight"))
        return TUTTI_OK;
    if (t->n_dims != 2 || t->dtype != DTYPE_I32 || t->shape[0] > INT32_MAX || t->shape[1] > INT32_MAX)
        return wrong_dims(t, "a matrix of i32", err);
    struct packed_ints *p = quantized_add(q, sizeof *p, t, END, err);
    if (!p)
        return TUTTI_E_MEMORY;
    p->layout = is_awq ? LAYOUT_AWQ : LAYOUT_GPTQ;
    p->n_bits = (int)q->n_bits;
    p->zero_step = q->adds_one ? repeated(1, p->n_bits) : 0;
    int64_t n_out = is_awq ? t->shape[1] * per_word : t->shape[1];
    int64_t n_in = is_awq ? t->shape[0] : t->shape[0] * per_word;
    enum tutti_status st = set_shape(p, q, t, n_out, n_in, err);
    if (st == TUTTI_OK && n_out % per_word != 0)
        st = wrong_dims(t, "columns in whole words of zero points", err);
    if (st == TUTTI_OK)
        st = quantized_require(&scales, ck, t, END, "scales", err);
    if (st == TUTTI_OK)
        st = quantized_require(&p->zeros, ck, t, END, "qzeros", err);
    if (st == TUTTI_OK)
        st = quantized_check_float(scales, err);
    if (st == TUTTI_OK)
        st = quantized_check(scales, scales->dtype, 2, p->n_groups, n_out, err);
    if (st == TUTTI_OK)
        st = quantized_check(p->zeros, DTYPE_I32, 2, p->n_groups, n_out / per_word, err);
    p->groups = is_awq ? NULL : quantized_sibling(ck, t, END, "g_idx");
    if (st == TUTTI_OK && !p->groups && q->has_order)
        st = quantized_require(&p->groups, ck, t, END, "g_idx", err);
    if (st == TUTTI_OK && p->groups)
        st = quantized_check(p->groups, DTYPE_I32, 1, 0, n_in, err);
    if (st != TUTTI_OK)
        return st;
    add_inputs(p, t, scales);
    checkpoint_take(ck, t->name);
    *made = &p->base.tensor;
    return finish(q, p, err);
}

/* bits and group_size, which both methods have. */
static enum tutti_status read_sizes(struct quantized *q, struct tutti_error *err)
{
    const json_t *bits = json_object_get(q->config, "bits"),
                 *group = json_object_get(q->config, "group_size");
    bool is_awq = q->method == &AWQ_METHOD;
    q->n_bits = json_integer_value(bits);
    q->group = json_integer_value(group);
    if (q->n_bits != 4 && (is_awq || (q->n_bits != 8 && q->n_bits != 2)))
        return quantized_refuse(q, "bits", bits, is_awq ? "4" : "2, 4 or 8", err);
    if (q->group != -1 && q->group < 1)
        return quantized_refuse(q, "group_size", group, "the columns of a group, or -1", err);
    return TUTTI_OK;
}

/* The format of the weights, which newer versions of transformers write as "format". *key: the one that the
 * file has; NULL with neither. */
static const json_t *find_format(const struct quantized *q, const char *older, const char **key)
{
    const json_t *format = json_object_get(q->config, older);
    *key = format ? older : "format";
    return format ? format : json_object_get(q->config, "format");
}

/* GPTQModel's rules for modules whose names match: "-:" excludes them, any other gives them settings of their
 * own. */
static enum tutti_status check_rules(const struct quantized *q, struct tutti_error *err)
{
    const char *rule, *key;
    json_t *settings, *value;
    char path[128];
    json_object_foreach(json_object_get(q->config, "dynamic"), rule, settings)
    {
        bool excludes = strncmp(rule, "-:", 2) == 0;
        snprintf(path, sizeof path, "dynamic: \"%.100s\"", rule);
        json_object_foreach(settings, key, value)
        {
            if (!excludes && !json_equal(value, json_object_get(q->config, key)))
                return quantized_refuse(q, path, settings,
                                        "the bits, group_size and other settings of all modules", err);
        }
    }
    return TUTTI_OK;
}

static enum tutti_status gptq_configure(struct quantized *q, struct tutti_error *err)
{
    const char *key;
    const json_t *format = find_format(q, "checkpoint_format", &key);
    const char *name = format ? json_string_value(format) : "gptq";
    if (!name || (strcmp(name, "gptq") != 0 && strcmp(name, "gptq_v2") != 0))
        return quantized_refuse(q, key, format, "\"gptq\" or \"gptq_v2\"", err);
    const json_t *marlin = json_object_get(q->config, "is_marlin_format");
    if (json_is_true(marlin))
        return quantized_refuse(q, "is_marlin_format", marlin, "false", err);
    const json_t *rotation = json_object_get(q->config,
                                             "rotation"); /* of GPTQModel: weights for rotated inputs */
    if (rotation && !json_is_null(rotation))
        return quantized_refuse(q, "rotation", rotation, "null", err);
    q->adds_one = strcmp(name, "gptq") == 0;
    q->has_order = json_is_true(json_object_get(q->config, "desc_act"));
    enum tutti_status st = check_rules(q, err);
    return st == TUTTI_OK ? read_sizes(q, err) : st;
}

static enum tutti_status awq_configure(struct quantized *q, struct tutti_error *err)
{
    const char *key;
    const json_t *format = find_format(q, "version", &key);
    if (format && (!json_is_string(format) || strcasecmp(json_string_value(format), "gemm") != 0))
        return quantized_refuse(q, key, format, "\"gemm\"", err);
    return read_sizes(q, err);
}

static const char *const IGNORED[] = { NULL };

const struct quantized_method GPTQ_METHOD = {
    .name = "gptq", .configure = gptq_configure, .wrap = wrap_columns, .ignored = IGNORED
};
const struct quantized_method AWQ_METHOD = {
    .name = "awq", .configure = awq_configure, .wrap = wrap_columns, .ignored = IGNORED
};

/* ---- compressed-tensors ---- */

/* weight_shape: two integers, rows and columns. */
static enum tutti_status read_weight_shape(int64_t out[2], const struct tensor *t, struct tutti_error *err)
{
    if ((t->dtype != DTYPE_I64 && t->dtype != DTYPE_I32) || t->n_dims != 1 || t->shape[0] != 2)
        return wrong_dims(t, "two integers: rows and columns", err);
    void *owned;
    const uint8_t *bytes = tensor_bytes(t, &owned);
    for (int i = 0; bytes && i < 2; i++) {
        int32_t small;
        memcpy(&out[i], bytes + (t->dtype == DTYPE_I64 ? 8 * i : 0), t->dtype == DTYPE_I64 ? 8 : 4);
        memcpy(&small, bytes + 4 * i, 4);
        if (t->dtype == DTYPE_I32)
            out[i] = small;
    }
    free(owned);
    return bytes ? TUTTI_OK : error_out_of_memory(t->file, err);
}

/* Zero points are packed along the rows. */
static enum tutti_status check_zeros(const struct packed_ints *p, struct tutti_error *err)
{
    int64_t per_word = 32 / p->n_bits, n_words = (p->base.tensor.shape[0] + per_word - 1) / per_word;
    return p->zeros ? quantized_check(p->zeros, DTYPE_I32, 2, n_words, p->n_groups, err) : TUTTI_OK;
}

enum tutti_status packed_ints_wrap_rows(struct quantized *q, const struct checkpoint *ck,
                                        const struct tensor *t, const struct tensor **made,
                                        struct tutti_error *err)
{
    static const char END[] = "weight_packed";
    const struct tensor *scales = NULL, *shape = NULL;
    int64_t dims[2] = { 0 }, per_word = 32 / q->n_bits;
    if (t->n_dims != 2 || t->dtype != DTYPE_I32)
        return wrong_dims(t, "a matrix of i32", err);
    enum tutti_status st = quantized_require(&scales, ck, t, END, "weight_scale", err);
    if (st == TUTTI_OK)
        st = quantized_require(&shape, ck, t, END, "weight_shape", err);
    if (st == TUTTI_OK)
        st = read_weight_shape(dims, shape, err);
    if (st != TUTTI_OK)
        return st;
    struct packed_ints *p = quantized_add(q, sizeof *p, t, END, err);
    if (!p)
        return TUTTI_E_MEMORY;
    p->layout = LAYOUT_ROWS;
    p->n_bits = (int)q->n_bits;
    st = set_shape(p, q, shape, dims[0], dims[1], err);
    if (st == TUTTI_OK)
        st = quantized_check(t, DTYPE_I32, 2, dims[0], (dims[1] + per_word - 1) / per_word, err);
    if (st == TUTTI_OK)
        st = quantized_check_float(scales, err);
    if (st == TUTTI_OK)
        st = quantized_check(scales, scales->dtype, 2, dims[0], p->n_groups, err);
    if (st != TUTTI_OK)
        return st;
    p->zeros = quantized_sibling(ck, t, END, "weight_zero_point");
    p->groups = quantized_sibling(ck, t, END, "weight_g_idx");
    if (!p->zeros && q->has_zeros) /* symmetric: false */
        st = quantized_require(&p->zeros, ck, t, END, "weight_zero_point", err);
    if (st == TUTTI_OK && !p->groups && q->has_order)
        st = quantized_require(&p->groups, ck, t, END, "weight_g_idx", err);
    if (st == TUTTI_OK)
        st = check_zeros(p, err);
    if (st == TUTTI_OK && p->groups)
        st = quantized_check(p->groups, DTYPE_I32, 1, 0, dims[1], err);
    if (st != TUTTI_OK)
        return st;
    add_inputs(p, t, scales);
    checkpoint_take(ck, t->name);
    *made = &p->base.tensor;
    return finish(q, p, err);
}

enum tutti_status packed_ints_wrap_int8(struct quantized *q, const struct checkpoint *ck,
                                        const struct tensor *t, const struct tensor **made,
                                        struct tutti_error *err)
{
    const struct tensor *scales = NULL;
    if (t->n_dims != 2)
        return wrong_dims(t, "a matrix of i8", err);
    struct packed_ints *p = quantized_add(q, sizeof *p, t, "weight", err);
    if (!p)
        return TUTTI_E_MEMORY;
    p->layout = LAYOUT_BYTES;
    p->n_bits = 8;
    enum tutti_status st = set_shape(p, q, t, t->shape[0], t->shape[1], err);
    if (st == TUTTI_OK)
        st = quantized_require(&scales, ck, t, "weight", "weight_scale", err);
    if (st == TUTTI_OK)
        st = quantized_check_float(scales, err);
    if (st == TUTTI_OK)
        st = quantized_check(scales, scales->dtype, 2, t->shape[0], p->n_groups, err);
    const struct tensor *zeros = quantized_sibling(ck, t, "weight", "weight_zero_point");
    if (st == TUTTI_OK && zeros)
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: tensor %s: zero points of bytes are not supported, expected symmetric weights",
                       zeros->file, zeros->name);
    if (st != TUTTI_OK)
        return st;
    add_inputs(p, t, scales);
    checkpoint_take(ck, t->name);
    *made = &p->base.tensor;
    return finish(q, p, err);
}
