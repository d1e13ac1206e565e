/* warpgroup.h on the host: barriers, bulk copies, and products that run while their warps go on.
 *
 * A bulk copy is carried out when it is issued or when nothing else can run, by chance. A product is computed when it is issued,
 * but its accumulators hold NaNs until wgmma_wait(); then its operands must be what they were. What the asynchronous proxy may not
 * see reads as NaN: bytes of shared memory that were last written by threads, without async_fence(). */
#include "cuda/emulator_parts.h"
#include "kernels/cuda/warpgroup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BARRIERS = 16,
    MAX_COPIES = 1024,
    MAX_COLUMNS = 128,
    MAX_ON_WAY = 32, /* products of a warp */
    MAX_HELD = 64,   /* registers of a after a fence */
    MAX_SUMS = 4,    /* accumulators of a thread */
    LOG_LENGTH = 4096,
};
static const uint32_t ON_WAY = 0x7fbadbad; /* a NaN: an accumulator of a product that is not complete */

static struct barrier {
    const uint64_t *at;
    uint32_t phase;   /* that is running */
    bool is_expected; /* barrier_expect() was called in it */
    int64_t n_bytes;  /* expected, but not arrived */
} barriers[MAX_BARRIERS];
static int n_barriers;

static struct copy {
    uint8_t *to;
    const uint8_t *from;
    uint32_t n_bytes;
    struct barrier *barrier;
} copies[MAX_COPIES];
static int n_copies;

/* Dynamic shared memory as the asynchronous proxy sees it, and which pieces of 16 bytes it sees at all. */
static uint8_t seen[EMULATED_SHARED];
static bool is_seen[EMULATED_SHARED / 16];

/* Of a thread. */
static struct thread {
    struct held {
        const half2 *at;
        half2 value;
    } held[MAX_HELD]; /* a, as the last fence saw it */
    int n_held;
    struct sums {
        float *at;    /* NULL: unused */
        int n, group; /* group: the last with a product for it; -1: none */
        bool is_fenced;
        float values[MAX_COLUMNS / 2]; /* as kept, or the products' result */
    } sums[MAX_SUMS];
    struct operand {
        const half2 *at;
        half2 value[4];
        int group;
    } operands[MAX_ON_WAY];
    int n_operands, n_groups;
} * threads;

/* Of a warp: b of the products that are on their way. */
static struct warp {
    struct read {
        uint32_t b;
        int n, group;
        uint8_t bytes[MAX_COLUMNS * 32];
    } reads[MAX_ON_WAY];
    int n_reads;
    unsigned n_products;
} * warps;

/* Of a warpgroup: what product number i % LOG_LENGTH was. */
static struct {
    uint64_t block; /* number of the block since the begin; 0: none */
    unsigned number;
    int n;
    uint32_t b;
} log_of[EMULATED_WARPS / 4][LOG_LENGTH];
static uint64_t block_number;
static int n_block_threads;
static int n_changed; /* threads, and so warps, that the begin of the next block must set back */

/* The product that the warp's lanes take their part of. */
static float products[16][MAX_COLUMNS];

void emulated_asynchronous_begin(int n_threads)
{
    if (!threads)
        threads = calloc(EMULATED_THREADS, sizeof *threads);
    if (!warps)
        warps = calloc(EMULATED_WARPS, sizeof *warps);
    if (!threads || !warps)
        emulated_fail("no memory for products");
    n_barriers = n_copies = 0;
    memset(is_seen, 0, (emulated_dynamic_bytes() + 15) / 16);
    for (int t = 0; t < n_changed; t++) {
        threads[t].n_held = threads[t].n_operands = threads[t].n_groups = 0;
        for (int i = 0; i < MAX_SUMS; i++)
            threads[t].sums[i].at = NULL;
    }
    for (int w = 0; w < n_changed / WARP; w++)
        warps[w].n_reads = 0, warps[w].n_products = 0;
    n_block_threads = n_threads;
    n_changed = 0;
    block_number++;
}

void emulated_asynchronous_end(void)
{
    if (n_copies > 0)
        emulated_fail("bulk copies are on their way at the end of the block");
}

void emulated_asynchronous_thread_end(void)
{
    if (n_changed > 0 && threads[emulated_thread].n_operands > 0)
        emulated_fail("products are on their way at the end of the thread");
}

/* ---- barriers and bulk copies ---- */

static size_t offset_of(const void *shared)
{
    ptrdiff_t at = (const uint8_t *)shared - (const uint8_t *)emulated_dynamic_shared();
    if (at < 0 || (size_t)at >= emulated_dynamic_bytes())
        emulated_fail("an address that is not in dynamic shared memory");
    return (size_t)at;
}

uint32_t shared_address(const void *shared)
{
    return (uint32_t)offset_of(shared);
}

static struct barrier *find_barrier(const uint64_t *at)
{
    for (int i = 0; i < n_barriers; i++)
        if (barriers[i].at == at)
            return &barriers[i];
    emulated_fail("a barrier before barrier_init()");
}

static void end_phase(struct barrier *b)
{
    if (!b->is_expected || b->n_bytes != 0)
        return;
    b->phase++;
    b->is_expected = false;
}

void barrier_init(uint64_t *at)
{
    for (int i = 0; i < n_barriers; i++)
        if (barriers[i].at == at)
            emulated_fail("barrier_init() of a barrier in use");
    if (n_barriers == MAX_BARRIERS || (uintptr_t)at % 8 != 0)
        emulated_fail("too many barriers, or one that is not aligned");
    barriers[n_barriers++] = (struct barrier){ .at = at };
}

void barrier_expect(uint64_t *at, uint32_t n_bytes)
{
    struct barrier *b = find_barrier(at);
    if (b->is_expected)
        emulated_fail("barrier_expect() twice in a phase");
    b->is_expected = true;
    b->n_bytes += n_bytes;
    end_phase(b);
}

static bool is_over(const void *at, uint32_t parity)
{
    return (find_barrier(at)->phase & 1) != parity;
}

void barrier_wait(uint64_t *at, uint32_t parity)
{
    if (parity > 1)
        emulated_fail("a parity that is neither 0 nor 1");
    emulated_wait("barrier_wait", is_over, at, parity);
}

static void carry_out(int i)
{
    struct copy c = copies[i];
    size_t at = offset_of(c.to);
    copies[i] = copies[--n_copies];
    memcpy(c.to, c.from, c.n_bytes);
    memcpy(seen + at, c.from, c.n_bytes);
    memset(is_seen + at / 16, true, c.n_bytes / 16);
    c.barrier->n_bytes -= c.n_bytes;
    end_phase(c.barrier);
}

bool emulated_asynchronous_go_on(void)
{
    if (n_copies == 0)
        return false;
    carry_out((int)emulated_draw((unsigned)n_copies));
    return true;
}

void copy_bulk(void *shared, const void *from, uint32_t n_bytes, uint64_t *barrier)
{
    if (((uintptr_t)from | offset_of(shared) | n_bytes) % 16 != 0 || n_bytes == 0)
        emulated_fail("copy_bulk of addresses or bytes that are no multiples of 16");
    if (offset_of(shared) + n_bytes > emulated_dynamic_bytes())
        emulated_fail("copy_bulk past the end of shared memory");
    if (emulated_is_early())
        emulated_fail("copy_bulk before grid_wait()");
    if (n_copies == MAX_COPIES)
        emulated_fail("too many bulk copies on their way");
    copies[n_copies++] = (struct copy){ shared, from, n_bytes, find_barrier(barrier) };
    if (emulated_draw(2) == 0)
        carry_out((int)emulated_draw((unsigned)n_copies));
}

void async_fence(void)
{
    size_t n = emulated_dynamic_bytes();
    memcpy(seen, emulated_dynamic_shared(), n);
    memset(is_seen, true, n / 16);
}

/* ---- products ---- */

static void meet(const char *name)
{
    (void)emulated_exchange(name, "", 1);
}

static struct sums *find_sums(const float *at)
{
    for (int i = 0; i < MAX_SUMS; i++)
        if (threads[emulated_thread].sums[i].at == at)
            return &threads[emulated_thread].sums[i];
    return NULL;
}

void wgmma_keep(float *acc, int n)
{
    struct sums *s = find_sums(acc);
    if (s && s->group >= 0)
        emulated_fail("accumulators of a product that is not complete");
    if (!s)
        s = find_sums(NULL);
    if (!s || n > MAX_COLUMNS / 2)
        emulated_fail("too many accumulators");
    n_changed = n_block_threads;
    *s = (struct sums){ .at = acc, .n = n, .group = -1 };
    memcpy(s->values, acc, (size_t)n * sizeof *acc);
}

void wgmma_fence(half2 *a, int n)
{
    struct thread *t = &threads[emulated_thread];
    if (n > MAX_HELD)
        emulated_fail("too many registers for a fence");
    n_changed = n_block_threads;
    meet("wgmma_fence");
    for (int i = 0; i < n; i++)
        t->held[i] = (struct held){ &a[i], a[i] };
    t->n_held = n;
    for (int i = 0; i < MAX_SUMS; i++)
        t->sums[i].is_fenced = true;
}

/* Where 16 bytes of b are: rows 8 k to 8 k + 7 of column c. */
static size_t piece_of(uint32_t b, int k, int c)
{
    size_t start = (b & 0x3fff) << 4, k_bytes = (b >> 16 & 0x3fff) << 4, n_bytes = 128;
    return start + (size_t)k * k_bytes + (size_t)(c / 8) * n_bytes + (size_t)(c % 8) * 16;
}

static const uint8_t *piece_bytes(size_t at)
{
    if (at + 16 > emulated_dynamic_bytes())
        emulated_fail("a product reads past the end of shared memory");
    return (const uint8_t *)emulated_dynamic_shared() + at;
}

/* b as floats, [16][n], and as bytes. */
static void read_matrix(float floats[16][MAX_COLUMNS], struct read *read)
{
    for (int k = 0; k < 2; k++) {
        for (int c = 0; c < read->n; c++) {
            size_t at = piece_of(read->b, k, c);
            const uint8_t *bytes = piece_bytes(at);
            bool is_known = is_seen[at / 16] && memcmp(bytes, seen + at, 16) == 0;
            uint16_t halves[8];
            memcpy(halves, bytes, sizeof halves);
            memcpy(read->bytes + (c * 2 + k) * 16, bytes, 16);
            for (int i = 0; i < 8; i++)
                floats[8 * k + i][c] = is_known ? emulated_half_float(halves[i]) : NAN;
        }
    }
}

/* The sums of 16 products, in an order that mma_half() does not have: so it shows where the two are mixed. */
static void multiply(float a[16][16], float b[16][MAX_COLUMNS], int n)
{
    for (int r = 0; r < 16; r++) {
        for (int c = 0; c < n; c++) {
            float four[4];
            for (int i = 0; i < 4; i++)
                four[i] = (a[r][4 * i] * b[4 * i][c] + a[r][4 * i + 1] * b[4 * i + 1][c]) +
                          (a[r][4 * i + 2] * b[4 * i + 2][c] + a[r][4 * i + 3] * b[4 * i + 3][c]);
            products[r][c] = (four[0] + four[1]) + (four[2] + four[3]);
        }
    }
}

struct part {
    half2 a[4];
    uint32_t b;
    int n;
};

/* Of the whole warp, by the lane that comes first. */
static void compute(const struct part *all, int group)
{
    struct warp *w = &warps[emulated_thread / WARP];
    float a[16][16], b[16][MAX_COLUMNS];
    for (int lane = 0; lane < WARP; lane++) {
        if (all[lane].b != all[0].b || all[lane].n != all[0].n)
            emulated_fail("the lanes of the warp have different descriptors");
        for (int i = 0; i < 4; i++)
            for (int half = 0; half < 2; half++)
                a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] = emulated_half_float(
                    (uint16_t)(all[lane].a[i] >> 16 * half));
    }
    if (all[0].b & ~0x3fff3fffu)
        emulated_fail("a descriptor with bits that have no meaning here");
    if (w->n_reads == MAX_ON_WAY)
        emulated_fail("too many products on their way");
    struct read *read = &w->reads[w->n_reads++];
    read->b = all[0].b;
    read->n = all[0].n;
    read->group = group;
    read_matrix(b, read);
    multiply(a, b, read->n);
    /* The other warps of the warpgroup do the same. */
    unsigned number = w->n_products++;
    int warpgroup = emulated_thread / WARPGROUP, slot = (int)(number % LOG_LENGTH);
    if (log_of[warpgroup][slot].block == block_number && log_of[warpgroup][slot].number == number &&
        (log_of[warpgroup][slot].n != read->n || log_of[warpgroup][slot].b != read->b))
        emulated_fail("the warps of the warpgroup have different products");
    log_of[warpgroup][slot].block = block_number;
    log_of[warpgroup][slot].number = number;
    log_of[warpgroup][slot].n = read->n;
    log_of[warpgroup][slot].b = read->b;
}

static void check_held(const struct thread *t, const half2 *a)
{
    for (int i = 0; i < 4; i++) {
        bool is_held = false;
        for (int k = 0; k < t->n_held; k++)
            is_held = is_held || (t->held[k].at == &a[i] && t->held[k].value == a[i]);
        if (!is_held)
            emulated_fail("registers of a were written after the fence");
    }
}

void wgmma(int n, float *acc, const half2 a[4], uint32_t b)
{
    struct thread *t = &threads[emulated_thread];
    struct sums *s = find_sums(acc);
    struct part mine = { .b = b, .n = n };
    if (n != 8 && n != 16 && n != 32 && n != 64 && n != 128)
        emulated_fail("a number of columns that wgmma() does not have");
    check_held(t, a);
    if (!s || s->n != n / 2)
        emulated_fail("accumulators without wgmma_keep(), or of another number");
    if (s->group < 0 && (!s->is_fenced || memcmp(s->values, acc, (size_t)s->n * sizeof *acc) != 0))
        emulated_fail("accumulators were written after the fence");
    if (t->n_operands == MAX_ON_WAY)
        emulated_fail("too many products on their way");
    memcpy(mine.a, a, sizeof mine.a);
    struct operand *operand = &t->operands[t->n_operands++];
    operand->at = a;
    operand->group = t->n_groups;
    memcpy(operand->value, a, sizeof operand->value);
    const struct part *all = emulated_exchange("wgmma", &mine, sizeof mine);
    if (emulated_is_first_lane())
        compute(all, t->n_groups);
    int g = emulated_lane() / 4, column = emulated_lane() % 4 * 2;
    for (int i = 0; i < n / 2; i++)
        s->values[i] = s->values[i] + products[g + i / 2 % 2 * 8][i / 4 * 8 + column + i % 2];
    s->group = t->n_groups;
    for (int i = 0; i < n / 2; i++)
        memcpy(&acc[i], &ON_WAY, sizeof ON_WAY);
}

void wgmma_commit(void)
{
    meet("wgmma_commit");
    n_changed = n_block_threads;
    threads[emulated_thread].n_groups++;
}

static void complete_sums(struct sums *s)
{
    for (int i = 0; i < s->n; i++)
        if (memcmp(&s->at[i], &ON_WAY, sizeof ON_WAY) != 0)
            emulated_fail("accumulators were written before the product was complete");
    memcpy(s->at, s->values, (size_t)s->n * sizeof *s->at);
    s->at = NULL;
}

void wgmma_wait(int n)
{
    struct thread *t = &threads[emulated_thread];
    struct warp *w = &warps[emulated_thread / WARP];
    int n_left = 0, first = t->n_groups - n; /* that is not complete */
    meet("wgmma_wait");
    for (int i = 0; i < w->n_reads; i++) /* by the first lane, before any lane goes on */
        for (int k = 0; k < 2 && w->reads[i].group < first; k++)
            for (int c = 0; c < w->reads[i].n; c++)
                if (memcmp(piece_bytes(piece_of(w->reads[i].b, k, c)), w->reads[i].bytes + (c * 2 + k) * 16,
                           16) != 0)
                    emulated_fail("shared memory was written before the product was complete");
    for (int i = 0; i < w->n_reads; i++) {
        if (w->reads[i].group >= first && i != n_left)
            w->reads[n_left] = w->reads[i];
        n_left += w->reads[i].group >= first;
    }
    w->n_reads = n_left;
    n_left = 0;
    for (int i = 0; i < t->n_operands; i++) {
        if (t->operands[i].group >= first)
            t->operands[n_left++] = t->operands[i];
        else if (memcmp(t->operands[i].at, t->operands[i].value, sizeof t->operands[i].value) != 0)
            emulated_fail("registers of a were written before the product was complete");
    }
    t->n_operands = n_left;
    for (int i = 0; i < MAX_SUMS; i++)
        if (t->sums[i].at && t->sums[i].group >= 0 && t->sums[i].group < first)
            complete_sums(&t->sums[i]);
}
