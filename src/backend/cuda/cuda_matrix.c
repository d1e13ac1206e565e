/* Weight matrices of the CUDA backend: the host's threads pack them into a staging buffer, piece by piece. */
#include "backend/cuda/cuda_linear_state.h"
#include "backend/cuda/experts/cuda_experts.h"
#include "backend/matrix_source.h"
#include "base/hash.h"
#include "base/rng.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPLIT_WARPS = 2048,  /* tiles times splits should be as many: they fill a large card */
    SPLIT_COLUMNS = 256, /* of a split, at least */
    READ_FLOATS = 4 << 20,
    CARD_ALIGNMENT = 256,
};

/* Tiles of 16 rows, or of 8 of gate and 8 of up. */
static int64_t count_tiles(int64_t n_out, bool is_gate_up)
{
    return is_gate_up ? (n_out / 2 + 7) / 8 : (n_out + LINEAR_TILE - 1) / LINEAR_TILE;
}

static size_t round_up(size_t n)
{
    return (n + CARD_ALIGNMENT - 1) / CARD_ALIGNMENT * CARD_ALIGNMENT;
}

/* Weights and scales; tiles of all experts. */
static uint64_t packed_bytes(enum dtype type, int n_in, int64_t n_tiles)
{
    uint64_t tile = cuda_tile_bytes(cuda_format(type), n_in);
    return round_up(tile * (uint64_t)n_tiles) + round_up((uint64_t)n_tiles * LINEAR_TILE * sizeof(float));
}

uint64_t cuda_packed_bytes(enum dtype type, int n_in, int64_t n_out, bool is_gate_up)
{
    return n_in > 0 && n_in % dtype_block_elems(type) == 0
               ? packed_bytes(type, n_in, count_tiles(n_out, is_gate_up))
               : 0;
}

/* Splits of the columns: a function of the matrix only, since they decide the bits of its products. */
static int split_shift_of(enum linear_format format, int n_in, int n_tiles)
{
    int shift = 0;
    if (format == LINEAR_F32)
        return __builtin_ctz(LINEAR_F32_SPLITS);
    while (1 << shift < LINEAR_MAX_SPLITS && (int64_t)n_tiles << shift < SPLIT_WARPS &&
           n_in >> (shift + 1) >= SPLIT_COLUMNS)
        shift++;
    return shift;
}

/* The row at a place of a tile; -1: padding. */
static int row_of(const struct matrix *m, int tile, int place)
{
    int row = tile * LINEAR_TILE + place, half = m->n_out / 2;
    if (!m->is_gate_up)
        return row < m->n_out ? row : -1;
    row = tile * 8 + place % 8;
    return row < half ? place / 8 * half + row : -1;
}

/* Where a row of the matrix is. */
static void place_of_row(const struct matrix *m, int row, int *tile, int *place)
{
    int half = m->n_out / 2, is_up = m->is_gate_up && row >= half, n = m->is_gate_up ? 8 : LINEAR_TILE;
    row -= is_up ? half : 0;
    *tile = row / n;
    *place = row % n + 8 * is_up;
}

/* ---- packing ---- */

/* Tiles begin to end - 1 of all experts' tiles, into the staging buffer. */
struct packing {
    const struct matrix_source *source;
    const struct matrix *m;
    size_t row_bytes; /* of the packed type */
    uint8_t *scratch; /* [n_threads][16 rows of the packed type, then a row of floats] */
    size_t scratch_bytes;
    uint8_t *staging;
    float *scales; /* [n_experts][n_tiles][16] */
    int64_t begin, end;
    atomic_llong next;
};

/* The part with this row of an expert's matrix; *row becomes the row's index in it. */
static int part_of(const struct matrix_source *source, int n_experts, int expert, int *row)
{
    int p = expert * (source->n_parts / n_experts);
    while (*row >= source->parts[p].n_rows)
        *row -= source->parts[p++].n_rows;
    return p;
}

/* The row in the packed type: in place if it is stored in that type, else converted. */
static const uint8_t *row_as(const struct packing *job, int expert, int row, uint8_t *converted,
                             float *floats)
{
    const struct matrix_part *part = &job->source
                                          ->parts[part_of(job->source, job->m->n_experts, expert, &row)];
    int n_in = job->m->n_in;
    size_t row_bytes = 0;
    bool fits = dtype_bytes(part->dtype, n_in, &row_bytes);
    assert(fits);
    (void)fits;
    const uint8_t *stored = (const uint8_t *)part->data +
                            (size_t)row * (part->stride > 0 ? part->stride : row_bytes);
    if (part->dtype == job->m->dtype)
        return stored;
    dequantize(floats, stored, part->dtype, n_in);
    quantize(converted, floats, job->m->dtype, n_in);
    return converted;
}

static void pack_one(struct packing *job, int thread, int64_t i)
{
    const struct matrix *m = job->m;
    uint8_t *converted = job->scratch + (size_t)thread * job->scratch_bytes;
    float *floats = (float *)(converted + job->scratch_bytes - (size_t)m->n_in * sizeof(float));
    uint8_t *tile = job->staging + (size_t)(i - job->begin) * m->tile_bytes;
    const uint8_t *rows[LINEAR_TILE];
    for (int place = 0; place < LINEAR_TILE; place++) {
        int row = row_of(m, (int)(i % m->n_tiles), place);
        rows[place] = row < 0 ? NULL
                              : row_as(job, (int)(i / m->n_tiles), row,
                                       converted + (size_t)place * job->row_bytes, floats);
    }
    memset(tile, 0, m->tile_bytes);
    cuda_pack_tile(tile, job->scales + i * LINEAR_TILE, rows, m->dtype, m->n_in, floats);
}

static void pack_some(void *arg, int thread, int n_threads)
{
    struct packing *job = arg;
    (void)n_threads;
    for (int64_t i; (i = job->begin + atomic_fetch_add(&job->next, 1)) < job->end;)
        pack_one(job, thread, i);
}

static void pack_tiles(struct cuda_backend *cuda, struct packing *job)
{
    const struct matrix *m = job->m;
    int64_t n_all = (int64_t)m->n_experts * m->n_tiles,
            most = (int64_t)(cuda->linear->staging_bytes / m->tile_bytes);
    for (job->begin = 0; job->begin < n_all; job->begin = job->end) {
        job->end = job->begin + most < n_all ? job->begin + most : n_all;
        atomic_store(&job->next, 0);
        team_run(cuda->team, pack_some, job);
        cuda_copy_in(cuda, m->weights + (size_t)job->begin * m->tile_bytes, job->staging,
                     (size_t)(job->end - job->begin) * m->tile_bytes);
    }
    cuda_copy_in(cuda, m->scales, job->scales, (size_t)n_all * LINEAR_TILE * sizeof *job->scales);
}

static bool reserve_staging(struct cuda_backend *cuda, const struct matrix *m)
{
    struct cuda_linear *linear = cuda_linear_of(cuda);
    if (!linear || (linear->staging && linear->staging_bytes >= m->tile_bytes))
        return linear != NULL;
    cuda_pinned_free(cuda, linear->staging);
    linear->staging_bytes = m->tile_bytes > LINEAR_STAGING_BYTES ? m->tile_bytes : LINEAR_STAGING_BYTES;
    linear->staging = cuda_pinned_new(cuda, linear->staging_bytes);
    return linear->staging != NULL;
}

static void copy_bias(struct cuda_backend *cuda, struct matrix *m, const struct matrix_source *source)
{
    size_t n = (size_t)m->n_experts * (size_t)m->n_tiles * LINEAR_TILE;
    for (int k = 0; k < m->n_experts * m->n_out; k++) {
        int expert = k / m->n_out, row = k % m->n_out, in_part = row, tile, place;
        const float *bias = source->biases[part_of(source, m->n_experts, expert, &in_part)];
        place_of_row(m, row, &tile, &place);
        m->host_bias[(expert * m->n_tiles + tile) * LINEAR_TILE + place] = bias ? bias[in_part] : 0.0f;
    }
    cuda_copy_in(cuda, m->bias, m->host_bias, n * sizeof *m->host_bias);
}

static bool copy_orders(struct cuda_backend *cuda, struct matrix *m, const struct matrix_source *source)
{
    size_t n_lists = m->order_stride > 0 ? (size_t)m->n_experts : 1, n_in = (size_t)m->n_in;
    uint16_t *orders = malloc(n_lists * n_in * sizeof *orders);
    if (!orders)
        return false;
    for (size_t e = 0; e < n_lists; e++)
        for (size_t c = 0; c < n_in; c++)
            orders[e * n_in + c] = source->orders[e] ? source->orders[e][c] : (uint16_t)c;
    cuda_copy_in(cuda, m->order, orders, n_lists * n_in * sizeof *orders);
    free(orders);
    return true;
}

/* ---- descriptions ---- */

/* Sets the fields that need no memory. */
static enum tutti_status describe(struct matrix *m, const struct matrix_source *source,
                                  struct tutti_error *err)
{
    int n_experts = matrix_source_experts(source);
    int64_t n_out;
    enum tutti_status st = matrix_source_check(source, 2 * LINEAR_TILE, &n_out, err);
    if (st != TUTTI_OK)
        return st;
    m->dtype = source->type;
    m->format = cuda_format(m->dtype);
    m->n_in = source->n_in;
    m->n_out = (int)n_out;
    m->n_experts = n_experts;
    m->is_gate_up = source->is_gate_up;
    m->n_tiles = (int)count_tiles(n_out, m->is_gate_up);
    m->tile_bytes = cuda_tile_bytes(m->format, m->n_in);
    m->n_units = (int)(m->tile_bytes / (size_t)linear_unit_bytes(m->format));
    m->split_shift = split_shift_of(m->format, m->n_in, m->n_tiles);
    size_t n_tiles = (size_t)n_experts * (size_t)m->n_tiles, n;
    if (__builtin_mul_overflow(m->tile_bytes + 2 * LINEAR_TILE * sizeof(float), n_tiles, &n) ||
        n > SIZE_MAX / 2)
        return error_set(err, TUTTI_E_LIMIT, "%s: %d x %d x %d elements overflow memory", source->name,
                         n_experts, m->n_out, m->n_in);
    m->n_bytes = packed_bytes(m->dtype, m->n_in, (int64_t)n_tiles);
    if (source->biases)
        m->n_bytes += round_up(n_tiles * LINEAR_TILE * sizeof(float));
    if (source->orders) {
        m->order_stride = matrix_source_orders_differ(source) ? (size_t)m->n_in : 0;
        m->n_bytes += round_up((m->order_stride > 0 ? (size_t)n_experts : 1) * (size_t)m->n_in *
                               sizeof *m->order);
    }
    return TUTTI_OK;
}

/* Divides the card's memory. */
static void place_arrays(struct matrix *m, const struct matrix_source *source)
{
    size_t n_tiles = (size_t)m->n_experts * (size_t)m->n_tiles,
           n_floats = round_up(n_tiles * LINEAR_TILE * sizeof(float));
    uint8_t *at = m->weights + round_up(n_tiles * m->tile_bytes);
    m->scales = (float *)at;
    at += n_floats;
    if (source->biases) {
        m->bias = (float *)at;
        at += n_floats;
    }
    if (source->orders)
        m->order = (uint16_t *)at;
}

enum tutti_status cuda_matrix_new(struct backend *be, struct matrix **out, const struct matrix_source *source,
                                  struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct matrix *m = calloc(1, sizeof *m);
    struct packing job = { .source = source, .m = m };
    size_t n_threads = (size_t)team_n_threads(cuda->team), n_scales;
    if (!m)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", source->name);
    enum tutti_status st = describe(m, source, err);
    if (st != TUTTI_OK)
        goto done;
    if (!cuda_linear_load(cuda, m->format) ||
        (source->n_experts > 0 && !cuda_need(cuda, CUDA_KERNEL_route_few, CUDA_NEED_FILE))) {
        st = cuda_check(cuda, err);
        goto done;
    }
    bool fits = dtype_bytes(m->dtype, m->n_in, &job.row_bytes);
    assert(fits);
    (void)fits;
    n_scales = (size_t)m->n_experts * (size_t)m->n_tiles * LINEAR_TILE;
    job.scratch_bytes = (LINEAR_TILE * job.row_bytes + (size_t)m->n_in * sizeof(float) + 63) / 64 * 64;
    job.scratch = malloc(n_threads * job.scratch_bytes);
    job.scales = malloc(n_scales * sizeof *job.scales);
    if (source->biases)
        m->host_bias = calloc(n_scales, sizeof *m->host_bias);
    m->weights = cuda_memory_new(cuda, m->n_bytes);
    if (!m->weights || !job.scratch || !job.scales || (source->biases && !m->host_bias) ||
        !reserve_staging(cuda, m)) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory for %zu bytes of packed weights%s",
                       source->name, m->n_bytes, m->weights ? "" : " on the card");
        goto done;
    }
    place_arrays(m, source);
    job.staging = cuda->linear->staging;
    pack_tiles(cuda, &job);
    if (source->biases)
        copy_bias(cuda, m, source);
    if (source->orders && !copy_orders(cuda, m, source)) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", source->name);
        goto done;
    }
    if (source->n_experts > 0 && !cuda_experts_note(cuda, m, source->n_chosen)) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", source->name);
        goto done;
    }
    st = cuda_check(cuda, err);
    if (st != TUTTI_OK)
        goto done;
    int columns = (m->n_in + LINEAR_X_COLUMNS - 1) / LINEAR_X_COLUMNS * LINEAR_X_COLUMNS;
    if (columns > cuda->linear->max_columns)
        cuda->linear->max_columns = columns;
    cuda->linear->has_f32 = cuda->linear->has_f32 || m->format == LINEAR_F32;
    *out = m;
    m = NULL;
done:
    free(job.scratch);
    free(job.scales);
    cuda_matrix_free(be, m);
    return st;
}

void cuda_matrix_free(struct backend *be, struct matrix *m)
{
    if (!m)
        return;
    cuda_memory_free(cuda_of(be), m->weights);
    free(m->host_bias);
    free(m);
}

size_t cuda_matrix_bytes(const struct matrix *m)
{
    return m->n_bytes;
}

enum dtype cuda_matrix_type(const struct matrix *m)
{
    return m->dtype;
}

uint64_t cuda_matrix_checksum(struct backend *be, const struct matrix *m)
{
    const int32_t shape[] = { (int32_t)m->dtype, m->n_in, m->n_out, m->is_gate_up, m->n_experts };
    return mix64(hash64(0, shape, sizeof shape) ^ cuda_checksum_bytes(cuda_of(be), m->weights, m->n_bytes));
}

/* ---- reading ---- */

/* Rows begin to begin + n - 1 as float32, to host [n][n_in]. card: memory for them. */
static void read_rows(struct cuda_backend *cuda, float *host, float *card, const struct matrix *m, int begin,
                      int n)
{
    cuda_read_rows(cuda, card, m, NULL, -begin, n);
    cuda_copy_out(cuda, host, card, (size_t)n * (size_t)m->n_in * sizeof *host);
}

float cuda_matrix_read(struct backend *be, float *host, const struct matrix *m, int row)
{
    struct cuda_backend *cuda = cuda_of(be);
    int tile, place;
    assert(m->n_experts == 1 && row >= 0 && row < m->n_out);
    if (host) {
        float *card = cuda_memory_new(cuda, (size_t)m->n_in * sizeof *card);
        memset(host, 0, (size_t)m->n_in * sizeof *host); /* without memory on the card */
        if (card)
            read_rows(cuda, host, card, m, row, 1);
        cuda_memory_free(cuda, card);
    }
    place_of_row(m, row, &tile, &place);
    return m->host_bias ? m->host_bias[tile * LINEAR_TILE + place] : 0;
}

struct lengths_job {
    const struct lora_part *part;
    const double *products; /* [rank][rank]: A . A^T */
    const float *rows;      /* [n][n_in], from row begin of the part on */
    float *lengths;
    int n_in, begin, n;
};

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* |w + s b A|^2 = |w|^2 + 2 s b . (A w) + s^2 b (A A^T) b. */
static float length_of(const struct lengths_job *job, int row)
{
    const struct lora_part *part = job->part;
    const float *w = job->rows + (size_t)(row - job->begin) * (size_t)job->n_in,
                *b = part->b + (size_t)row * (size_t)part->rank;
    double s = (double)part->scale, cross = 0, update = 0;
    for (int i = 0; i < part->rank; i++) {
        double sum = 0;
        cross += (double)b[i] * dot(part->a + (size_t)i * (size_t)job->n_in, w, job->n_in);
        for (int j = 0; j < part->rank; j++)
            sum += job->products[(size_t)i * (size_t)part->rank + (size_t)j] * (double)b[j];
        update += sum * (double)b[i];
    }
    double total = dot(w, w, job->n_in) + 2 * s * cross + s * s * update;
    return (float)sqrt(total > 0 ? total : 0);
}

static void lengths_some(void *arg, int thread, int n_threads)
{
    const struct lengths_job *job = arg;
    int64_t begin, end;
    team_range(job->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        job->lengths[job->begin + i] = length_of(job, job->begin + (int)i);
}

bool cuda_matrix_lengths(struct backend *be, float *host, const struct matrix *m,
                         const struct lora_part *part)
{
    struct cuda_backend *cuda = cuda_of(be);
    size_t rank = (size_t)part->rank, n_in = (size_t)m->n_in;
    int most = READ_FLOATS / m->n_in > 0 ? READ_FLOATS / m->n_in : 1;
    double *products = malloc(rank * rank * sizeof *products);
    float *rows = malloc((size_t)most * n_in * sizeof *rows),
          *card = cuda_memory_new(cuda, (size_t)most * n_in * sizeof *card);
    bool has_all = products && rows && card;
    for (size_t i = 0; has_all && i < rank; i++)
        for (size_t j = 0; j < rank; j++)
            products[i * rank + j] = dot(part->a + i * n_in, part->a + j * n_in, m->n_in);
    for (int begin = 0; has_all && begin < part->n_out; begin += most) {
        int n = part->n_out - begin < most ? part->n_out - begin : most;
        read_rows(cuda, rows, card, m, part->out_begin + begin, n);
        team_run(cuda->team, lengths_some,
                 &(struct lengths_job){ .part = part,
                                        .products = products,
                                        .rows = rows,
                                        .lengths = host,
                                        .n_in = m->n_in,
                                        .begin = begin,
                                        .n = n });
    }
    free(products);
    free(rows);
    cuda_memory_free(cuda, card);
    return has_all;
}
