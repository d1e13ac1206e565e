#include "offline/logits_base.h"

#include "base/buf.h"
#include "base/files/mapping.h"
#include "base/files/new_file.h"
#include "base/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char MAGIC[] = "tuttikl2", LLAMA_MAGIC[] = "_logits_";
enum { NUMBERS = 3, LLAMA_NUMBERS = 2 }; /* before the codes of a row */
enum {
    HEAD_BYTES = 8 + 6 * 4 + 8 + LOGITS_BASE_NAME_BYTES + 8,
    SUM_AT = HEAD_BYTES - 8,
    LLAMA_HEAD_BYTES = 8 + 3 * 4
};

/* A fingerprint that is equal for all conversions of one model: its sizes, those of each kind of layers. */
static uint64_t shape_fingerprint(const struct model *model)
{
    const struct model_desc *d = &model->desc;
    uint64_t sum = 0;
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *a = &d->kinds[i].attn;
        const int32_t shape[] = { d->n_layers, d->d_model,           a->n_heads, a->n_kv_heads,
                                  a->head_dim, d->kinds[i].ffn.d_ff, d->n_vocab };
        sum = hash64(sum, shape, sizeof shape);
        if (ffn_has_experts(&d->kinds[i].ffn)) {
            const struct expert_desc *e = &d->kinds[i].ffn.experts;
            const int32_t experts[] = { e->routing.n_experts, e->routing.n_chosen, e->d_ff, e->d_shared };
            sum = hash64(sum, experts, sizeof experts);
        }
    }
    return sum;
}

static uint64_t sum_of(const void *head, size_t n_head, const void *ids, size_t n_ids)
{
    return hash64(hash64(0, head, n_head), ids, n_ids);
}

/* Codes are padded, so that every row starts at a multiple of four bytes. */
static size_t row_bytes(int n_numbers, int n_vocab)
{
    return 4 * (size_t)n_numbers + ((size_t)n_vocab + 1) / 2 * 4;
}

static int64_t n_text_ids(const struct windows *w)
{
    return (int64_t)(w->n - 1) * w->step + w->n_context;
}

/* ---- writing ---- */

struct logits_base_writer {
    struct new_file *file;
    uint8_t *row;
    int n_vocab;
    uint64_t n_left; /* rows */
};

static bool add_u32(struct buf *buf, uint32_t value)
{
    uint8_t bytes[4] = { (uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                         (uint8_t)(value >> 24) };
    return buf_add(buf, bytes, sizeof bytes);
}

static bool add_u64(struct buf *buf, uint64_t value)
{
    return add_u32(buf, (uint32_t)value) && add_u32(buf, (uint32_t)(value >> 32));
}

static bool add_ids(struct buf *buf, const int32_t *ids, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++)
        ok = add_u32(buf, (uint32_t)ids[i]);
    return ok;
}

static bool build_head(struct buf *head, const struct model *model, const struct windows *w)
{
    struct buf ids = { 0 };
    char name[LOGITS_BASE_NAME_BYTES] = "";
    memcpy(name, model->name, strnlen(model->name, sizeof name - 1));
    const int numbers[] = { model->desc.n_vocab, w->n, w->n_context, w->step, w->first, w->n_head };
    bool ok = buf_add(head, MAGIC, 8);
    for (size_t i = 0; ok && i < sizeof numbers / sizeof *numbers; i++)
        ok = add_u32(head, (uint32_t)numbers[i]);
    ok = ok && add_u64(head, shape_fingerprint(model)) && buf_add(head, name, sizeof name) &&
         add_ids(&ids, w->ids, n_text_ids(w)) && add_ids(&ids, w->head, w->n_head);
    ok = ok && add_u64(head, sum_of(head->bytes, head->n_bytes, ids.bytes, ids.n_bytes)) &&
         buf_add(head, ids.bytes, ids.n_bytes);
    buf_clear(&ids);
    return ok;
}

enum tutti_status logits_base_create(struct logits_base_writer **out, const char *path,
                                     const struct model *model, const struct windows *windows,
                                     struct tutti_error *err)
{
    struct buf head = { 0 };
    enum tutti_status st = TUTTI_OK;
    struct logits_base_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->n_vocab = model->desc.n_vocab;
        w->n_left = (uint64_t)windows->n * (uint64_t)windows_n_scored(windows);
        w->row = calloc(1, row_bytes(NUMBERS, w->n_vocab));
    }
    if (!w || !w->row || !build_head(&head, model, windows))
        st = error_out_of_memory(path, err);
    if (st == TUTTI_OK)
        st = new_file_open(&w->file, path, err);
    if (st == TUTTI_OK)
        st = new_file_write(w->file, head.bytes, head.n_bytes, err);
    if (st == TUTTI_OK) {
        *out = w;
        w = NULL;
    }
    buf_clear(&head);
    logits_base_writer_free(w);
    return st;
}

/* tutti runs only on little-endian machines, so the row is written as it is in memory. */
enum tutti_status logits_base_add(struct logits_base_writer *w, const struct perplexity *p,
                                  const float *logits, int32_t target, struct tutti_error *err)
{
    float numbers[NUMBERS];
    struct coded_row row;
    if (w->n_left == 0)
        return error_set(err, TUTTI_E_INTERNAL, "more rows than the base was made for");
    uint16_t *codes = (uint16_t *)(void *)(w->row + sizeof numbers);
    enum tutti_status st = perplexity_code(p, logits, target, codes, &row, err);
    if (st != TUTTI_OK)
        return st;
    numbers[0] = row.scale;
    numbers[1] = row.min;
    numbers[2] = row.nll;
    memcpy(w->row, numbers, sizeof numbers);
    w->n_left--;
    return new_file_write(w->file, w->row, row_bytes(NUMBERS, w->n_vocab), err);
}

enum tutti_status logits_base_finish(struct logits_base_writer *w, struct tutti_error *err)
{
    if (w->n_left > 0)
        return error_set(err, TUTTI_E_INTERNAL, "%" PRIu64 " rows of the base have not come", w->n_left);
    return new_file_finish(w->file, err);
}

void logits_base_writer_free(struct logits_base_writer *w)
{
    if (!w)
        return;
    new_file_free(w->file);
    free(w->row);
    free(w);
}

/* ---- reading ---- */

struct logits_base {
    struct mapping map;
    char *path;
    char name[LOGITS_BASE_NAME_BYTES];
    bool is_llama;
    uint64_t fingerprint;
    int n_vocab;
    struct windows windows;
    int32_t *ids;
    uint16_t *codes;
    size_t row_bytes, next; /* next: offset of the next row */
    uint64_t row, n_rows;
};

static uint32_t u32_at(const struct logits_base *b, size_t at)
{
    uint32_t value;
    memcpy(&value, b->map.bytes + at, sizeof value);
    return value;
}

static uint64_t u64_at(const struct logits_base *b, size_t at)
{
    return u32_at(b, at) | (uint64_t)u32_at(b, at + 4) << 32;
}

static enum tutti_status bad(const struct logits_base *b, struct tutti_error *err, const char *what,
                             uint64_t found, const char *expected)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: %s %" PRIu64 ", expected %s", b->path, what, found, expected);
}

static enum tutti_status check_numbers(const struct logits_base *b, const uint32_t *n,
                                       struct tutti_error *err)
{
    if (n[0] < 1 || n[0] > LIMIT_VOCAB)
        return bad(b, err, "vocabulary of", n[0], "1 or more ids, within tutti's limits");
    if (n[1] < 1 || n[1] > INT32_MAX)
        return bad(b, err, "number of windows", n[1], "1 or more");
    if (n[2] < 2 || n[2] > LIMIT_CONTEXT)
        return bad(b, err, "window of", n[2], "2 or more ids, within tutti's limits");
    if (n[3] < 1 || n[3] > n[2])
        return bad(b, err, "step of", n[3], "1 to the length of a window");
    if (n[4] >= n[2] - 1)
        return bad(b, err, "first scored row", n[4], "one before the last of a window");
    return n[5] > n[4] + 1 ? bad(b, err, "head of", n[5], "no more ids than stand before the first score")
                           : TUTTI_OK;
}

/* numbers: n_vocab, n_windows, n_context, step, first, n_head. Sets everything but the ids. */
static enum tutti_status set_numbers(struct logits_base *b, const uint32_t *n, size_t ids_at,
                                     struct tutti_error *err)
{
    enum tutti_status st = check_numbers(b, n, err);
    if (st != TUTTI_OK)
        return st;
    b->n_vocab = (int)n[0];
    b->windows = (struct windows){
        .n = (int)n[1], .n_context = (int)n[2], .step = (int)n[3], .first = (int)n[4], .n_head = (int)n[5]
    };
    /* At most 2^31 windows of at most LIMIT_CONTEXT rows: no product of these counts reaches 2^63. */
    uint64_t n_ids = (uint64_t)n_text_ids(&b->windows) + n[5];
    b->n_rows = (uint64_t)n[1] * (uint64_t)windows_n_scored(&b->windows);
    b->row_bytes = row_bytes(b->is_llama ? LLAMA_NUMBERS : NUMBERS, b->n_vocab);
    b->next = ids_at + 4 * n_ids;
    size_t rows_bytes, whole;
    if (__builtin_mul_overflow(b->n_rows, b->row_bytes, &rows_bytes) ||
        __builtin_add_overflow(rows_bytes, b->next, &whole))
        whole = SIZE_MAX;
    if (whole != b->map.n_bytes)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: file of %zu bytes, but %u windows of %u ids with a vocabulary of %u take %zu: "
                         "it is cut off, "
                         "or no file of this kind",
                         b->path, b->map.n_bytes, n[1], n[2], n[0], whole);
    return TUTTI_OK;
}

static enum tutti_status read_ids(struct logits_base *b, size_t at, struct tutti_error *err)
{
    size_t n = (b->next - at) / 4, n_text = (size_t)n_text_ids(&b->windows);
    b->ids = malloc(n * sizeof *b->ids);
    b->codes = malloc(b->row_bytes);
    if (!b->ids || !b->codes)
        return error_out_of_memory(b->path, err);
    memcpy(b->ids, b->map.bytes + at, n * sizeof *b->ids);
    for (size_t i = 0; i < n; i++) {
        if (b->ids[i] < 0 || b->ids[i] >= b->n_vocab)
            return error_set(err, TUTTI_E_FORMAT, "%s: id %d at %zu, expected 0 to %d", b->path, b->ids[i], i,
                             b->n_vocab - 1);
    }
    b->windows.ids = b->ids;
    b->windows.head = b->ids + n_text;
    return TUTTI_OK;
}

static enum tutti_status read_own(struct logits_base *b, struct tutti_error *err)
{
    uint32_t numbers[6];
    if (b->map.n_bytes < HEAD_BYTES)
        return bad(b, err, "file of", b->map.n_bytes, "a header of 112 bytes");
    for (size_t i = 0; i < 6; i++)
        numbers[i] = u32_at(b, 8 + 4 * i);
    b->fingerprint = u64_at(b, 32);
    memcpy(b->name, b->map.bytes + 40, sizeof b->name - 1);
    enum tutti_status st = set_numbers(b, numbers, HEAD_BYTES, err);
    if (st != TUTTI_OK)
        return st;
    uint64_t sum = sum_of(b->map.bytes, SUM_AT, b->map.bytes + HEAD_BYTES, b->next - HEAD_BYTES);
    if (sum != u64_at(b, SUM_AT))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: its header or its ids were changed: their sum is %016" PRIx64
                         ", expected %016" PRIx64,
                         b->path, sum, u64_at(b, SUM_AT));
    return read_ids(b, HEAD_BYTES, err);
}

/* "_logits_"; i32 n_context, n_vocab, n_windows; i32 ids[n_windows][n_context]; rows of the
 * second half of each window, as f32 scale and minimum and codes. */
static enum tutti_status read_llama(struct logits_base *b, struct tutti_error *err)
{
    if (b->map.n_bytes < LLAMA_HEAD_BYTES)
        return bad(b, err, "file of", b->map.n_bytes, "a header of 20 bytes");
    uint32_t n_context = u32_at(b, 8);
    uint32_t numbers[6] = { u32_at(b, 12), u32_at(b, 16), n_context, n_context, n_context / 2, 0 };
    b->is_llama = true;
    enum tutti_status st = set_numbers(b, numbers, LLAMA_HEAD_BYTES, err);
    return st == TUTTI_OK ? read_ids(b, LLAMA_HEAD_BYTES, err) : st;
}

enum tutti_status logits_base_open(struct logits_base **out, const char *path, struct tutti_error *err)
{
    enum tutti_status st;
    struct logits_base *b = calloc(1, sizeof *b);
    if (!b || !(b->path = strdup(path))) {
        st = error_out_of_memory(path, err);
        goto done;
    }
    st = mapping_open(&b->map, path, err);
    if (st != TUTTI_OK)
        goto done;
    if (b->map.n_bytes >= 8 && memcmp(b->map.bytes, MAGIC, 8) == 0)
        st = read_own(b, err);
    else if (b->map.n_bytes >= 8 && memcmp(b->map.bytes, LLAMA_MAGIC, 8) == 0)
        st = read_llama(b, err);
    else
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: no file of log-probabilities, as --save-logits writes it: it does not begin with "
                       "\"%s\" or \"%s\"",
                       path, MAGIC, LLAMA_MAGIC);
    if (st != TUTTI_OK)
        goto done;
    *out = b;
    b = NULL;
done:
    logits_base_close(b);
    return st;
}

void logits_base_close(struct logits_base *b)
{
    if (!b)
        return;
    mapping_close(&b->map);
    free(b->path);
    free(b->ids);
    free(b->codes);
    free(b);
}

const struct windows *logits_base_windows(const struct logits_base *b)
{
    return &b->windows;
}

bool logits_base_is_llama(const struct logits_base *b)
{
    return b->is_llama;
}

int logits_base_n_vocab(const struct logits_base *b)
{
    return b->n_vocab;
}

const char *logits_base_name(const struct logits_base *b)
{
    return b->name;
}

bool logits_base_fits(const struct logits_base *b, const struct model *model)
{
    return b->is_llama || b->fingerprint == shape_fingerprint(model);
}

enum tutti_status logits_base_next(struct logits_base *b, struct coded_row *out, struct tutti_error *err)
{
    if (b->row == b->n_rows)
        return error_set(err, TUTTI_E_INTERNAL, "%s: no more rows", b->path);
    const uint8_t *row = b->map.bytes + b->next;
    float numbers[NUMBERS] = { 0 };
    size_t numbers_bytes = (b->is_llama ? LLAMA_NUMBERS : NUMBERS) * sizeof *numbers;
    memcpy(numbers, row, numbers_bytes);
    /* Rounding can make the logarithm of a certain token positive. */
    if (!isfinite(numbers[0]) || !isfinite(numbers[1]) || !isfinite(numbers[2]) || numbers[0] < 0 ||
        numbers[1] > 0.001f || numbers[2] < -0.001f)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: row %" PRIu64 ": scale %g, minimum %g, expected log-probabilities", b->path,
                         b->row, (double)numbers[0], (double)numbers[1]);
    memcpy(b->codes, row + numbers_bytes, (size_t)b->n_vocab * sizeof *b->codes);
    mapping_forget(&b->map, row, b->row_bytes);
    *out = (struct coded_row){ numbers[0], numbers[1], b->codes, !b->is_llama, numbers[2] };
    b->next += b->row_bytes;
    b->row++;
    return TUTTI_OK;
}
