/* Collectives: for small vectors every rank computes the whole sum, for large ones each rank its
 * part (reduce-scatter, all-gather). Ranks on one machine send nothing: they read each other's
 * memory, with a barrier before and after. */
#include "base/system/clock.h"
#include "base/system/team.h"
#include "cluster/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 1 << 18, /* floats of a part that are sent at a time: they are still in the L2 cache when added */
    DIRECT_BYTES = 32 * 1024, /* up to this every rank computes the whole sum: one wait instead of two */
    LANES = 16,               /* parts of a vector begin at multiples of this */
    SEND_FLOATS = 1 << 28,    /* of one message */
    LINE_BYTES = 64,
    TEAM_FLOATS = 1 << 14, /* below, waking the threads takes longer than adding on one */
};

/* The shared state of a rank for barriers: the number of barriers that it has reached, followed by
 * its input of small sums. There are two inputs, used alternately, because a rank may write its
 * next one before the slowest rank has read the last. */
struct rank_buffer {
    _Alignas(LINE_BYTES) _Atomic uint64_t n_meetings;
    _Alignas(LINE_BYTES) float values[2][DIRECT_BYTES / sizeof(float)];
};

/* ---- memory that all ranks can read ---- */

static void free_piece(struct cluster *c, struct message_part *piece)
{
    for (int r = 0; piece->segments && r < c->n_ranks; r++)
        segment_free(&piece->segments[r]);
    free(piece->segments);
    *piece = (struct message_part){ 0 };
}

/* Allocates a piece on all ranks together. False: it failed on one rank, so no rank has it; or a
 * rank was lost. */
static bool make_piece(struct cluster *c, struct message_part *piece, size_t n_bytes, bool is_wanted)
{
    struct segment_card cards[CLUSTER_MAX_RANKS] = { 0 };
    *piece = (struct message_part){ n_bytes, calloc((size_t)c->n_ranks, sizeof *piece->segments) };
    for (int r = 0; piece->segments && r < c->n_ranks; r++)
        piece->segments[r].fd = -1;
    cards[c->rank].fd = -1;
    uint64_t is_made = is_wanted && piece->segments &&
                       segment_new(&piece->segments[c->rank], &cards[c->rank], n_bytes);
    bool is_alive = cluster_all_gather(c, cards, sizeof *cards);
    for (int r = 0; is_alive && r < c->n_ranks && is_made; r++)
        is_made = r == c->rank || segment_find(&piece->segments[r], &cards[r]);
    is_alive = is_alive && cluster_min(c, &is_made);
    if (is_alive && is_made)
        segment_hide(&piece->segments[c->rank]);
    else
        free_piece(c, piece);
    return piece->n_bytes > 0;
}

enum tutti_status cluster_open_sums(struct cluster *c, size_t direct_bytes, struct tutti_error *err)
{
    c->direct_bytes = direct_bytes > 0 && direct_bytes < DIRECT_BYTES ? direct_bytes : DIRECT_BYTES;
    if (c->n_ranks == 1)
        return TUTTI_OK;
    c->sums = aligned_alloc(LINE_BYTES, (size_t)c->n_ranks * CHUNK * sizeof *c->sums);
    (void)make_piece(c, &c->meeting, sizeof(struct rank_buffer), c->transport->n_local >= c->n_ranks);
    enum tutti_status st = c->sums ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "cluster: out of memory");
    return cluster_agree(c, st, err);
}

void cluster_close_sums(struct cluster *c)
{
    for (int i = 0; i < CLUSTER_PIECES; i++)
        free_piece(c, &c->pieces[i]);
    free_piece(c, &c->meeting);
    free(c->sums);
}

float *cluster_alloc(struct cluster *c, size_t n_floats)
{
    size_t n_bytes;
    if (__builtin_mul_overflow(n_floats > 0 ? n_floats : 1, sizeof(float), &n_bytes) ||
        n_bytes > SIZE_MAX - LINE_BYTES)
        return NULL;
    n_bytes = (n_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    if (c->meeting.n_bytes > 0) {
        struct message_part none, *piece = &none;
        for (int i = CLUSTER_PIECES - 1; i >= 0; i--)
            piece = c->pieces[i].n_bytes == 0 ? &c->pieces[i] : piece;
        if (make_piece(c, piece, n_bytes, piece != &none))
            return piece->segments[c->rank].memory;
    }
    float *memory = aligned_alloc(LINE_BYTES, n_bytes);
    if (memory)
        memset(memory, 0, n_bytes);
    return memory;
}

void cluster_dealloc(struct cluster *c, float *memory)
{
    for (int i = 0; i < CLUSTER_PIECES; i++) {
        if (memory && c->pieces[i].n_bytes > 0 && c->pieces[i].segments[c->rank].memory == memory) {
            free_piece(c, &c->pieces[i]);
            return;
        }
    }
    free(memory);
}

/* Finds n floats at x in memory that all ranks can read: theirs [n_ranks] becomes each rank's
 * address of them. */
static bool find_theirs(const struct cluster *c, const float *x, size_t n, const float **theirs)
{
    uintptr_t at = (uintptr_t)x;
    for (int i = 0; i < CLUSTER_PIECES; i++) {
        const struct message_part *piece = &c->pieces[i];
        uintptr_t base = piece->n_bytes > 0 ? (uintptr_t)piece->segments[c->rank].memory : 0;
        if (base == 0 || at < base || at - base > piece->n_bytes ||
            n * sizeof *x > piece->n_bytes - (at - base))
            continue;
        for (int r = 0; r < c->n_ranks; r++)
            theirs[r] = (const float *)(const void *)((const char *)piece->segments[r].memory + (at - base));
        return true;
    }
    return false;
}

static struct rank_buffer *rank_place(const struct cluster *c, int rank)
{
    return c->meeting.segments[rank].memory;
}

/* Barrier: no rank goes on before all have arrived. Writes before it are visible to all ranks after
 * it. */
static bool meet(struct cluster *c)
{
    uint64_t number = ++c->n_meetings;
    if (cluster_is_lost(c))
        return false;
    c->is_ended = false;
    atomic_store_explicit(&rank_place(c, c->rank)->n_meetings, number, memory_order_release);
    for (int r = 0; r < c->n_ranks; r++) {
        struct waiting w = { 0 };
        while (atomic_load_explicit(&rank_place(c, r)->n_meetings, memory_order_acquire) < number)
            if (!cluster_wait(c, &w, false))
                return false;
    }
    return true;
}

/* ---- adding ---- */

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* sum may be one of the parts. */
static void add_parts(float *sum, const float *const *parts, int n_parts, size_t begin, size_t end)
{
    size_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        lanes x = *(const lanes *)(parts[0] + i);
        for (int p = 1; p < n_parts; p++)
            x += *(const lanes *)(parts[p] + i);
        *(lanes *)(sum + i) = x;
    }
    for (; i < end; i++) {
        float x = parts[0][i];
        for (int p = 1; p < n_parts; p++)
            x += parts[p][i];
        sum[i] = x;
    }
}

struct add_job {
    float *sum;
    const float **parts;
    int n_parts;
    size_t n;
};

static void add_some(void *arg, int thread, int n_threads)
{
    const struct add_job *job = arg;
    int64_t begin, end;
    team_range((int64_t)job->n, LANES, thread, n_threads, &begin, &end);
    if (job->n_parts > 1)
        add_parts(job->sum, job->parts, job->n_parts, (size_t)begin, (size_t)end);
    else if (begin < end)
        memcpy(job->sum + begin, job->parts[0] + begin, (size_t)(end - begin) * sizeof *job->sum);
}

/* sum [n] = the sum of the parts, in their order; a copy if there is one part. */
static void add_all(struct team *team, float *sum, const float **parts, int n_parts, size_t n)
{
    struct add_job job = { sum, parts, n_parts, n };
    if (team && n >= TEAM_FLOATS)
        team_run(team, add_some, &job);
    else
        add_some(&job, 0, 1);
}

/* ---- small vectors: every rank reads all parts and adds them itself ---- */

static bool reduce_direct(struct cluster *c, float *x, size_t n)
{
    const float *parts[CLUSTER_MAX_RANKS];
    if (c->meeting.n_bytes > 0) {
        int turn = (int)(c->n_meetings & 1);
        memcpy(rank_place(c, c->rank)->values[turn], x, n * sizeof *x);
        if (!meet(c))
            return false;
        for (int r = 0; r < c->n_ranks; r++)
            parts[r] = rank_place(c, r)->values[turn];
        add_parts(x, parts, c->n_ranks, 0, n);
        return true;
    }
    int count = 0;
    for (int r = 0; r < c->n_ranks; r++) {
        parts[r] = r == c->rank ? x : c->sums + (size_t)r * CHUNK;
        if (r == c->rank)
            continue;
        c->sends[count] = cluster_message(c, r, x, n * sizeof *x);
        c->receives[count++] = cluster_message(c, r, parts[r], n * sizeof *x);
    }
    if (!cluster_exchange(c, count, count, false))
        return false;
    add_parts(x, parts, c->n_ranks, 0, n);
    return true;
}

/* ---- large vectors: each rank computes its part of the sum ---- */

/* How x is divided among the ranks: rank r has floats begins[r] to begins[r + 1]. */
struct parts {
    float *x;
    size_t begins[CLUSTER_MAX_RANKS + 1];
    const float *theirs[CLUSTER_MAX_RANKS]; /* is_seen: address of each rank's x */
    bool is_seen;
};

/* Divides x into n units of unit_floats each; the last one may be smaller. */
static void divide(const struct cluster *c, struct parts *p, float *x, size_t n, size_t unit_floats)
{
    size_t n_units = (n + unit_floats - 1) / unit_floats;
    *p = (struct parts){ .x = x };
    for (int r = 0; r <= c->n_ranks; r++) {
        int64_t begin = (int64_t)n_units, end;
        if (r < c->n_ranks)
            team_range((int64_t)n_units, 1, r, c->n_ranks, &begin, &end);
        p->begins[r] = (size_t)begin * unit_floats < n ? (size_t)begin * unit_floats : n;
    }
    p->is_seen = find_theirs(c, x, n, p->theirs);
}

static size_t part_n(const struct parts *p, int rank)
{
    return p->begins[rank + 1] - p->begins[rank];
}

static size_t largest_part(const struct cluster *c, const struct parts *p)
{
    size_t n = 0;
    for (int r = 0; r < c->n_ranks; r++)
        n = part_n(p, r) > n ? part_n(p, r) : n;
    return n;
}

/* How many floats of a part of n to send at a time, from offset at on. */
static size_t at_once(size_t n, size_t at, size_t most)
{
    size_t left = at < n ? n - at : 0;
    return left < most ? left : most;
}

/* Reduce-scatter: the own part of x becomes the sum. Other ranks may still read the other parts of
 * x when this returns. */
static bool reduce_part(struct cluster *c, struct team *team, const struct parts *p)
{
    const int n_ranks = c->n_ranks;
    float *own = p->x + p->begins[c->rank];
    const float *parts[CLUSTER_MAX_RANKS];
    assert(n_ranks > 1);
    if (p->is_seen) {
        if (!meet(c))
            return false;
        for (int r = 0; r < n_ranks; r++)
            parts[r] = p->theirs[r] + p->begins[c->rank];
        add_all(team, own, parts, n_ranks, part_n(p, c->rank));
        return true;
    }
    size_t n_most = largest_part(c, p);
    for (size_t at = 0; at < n_most; at += CHUNK) {
        size_t n_own = at_once(part_n(p, c->rank), at, CHUNK);
        int n_sends = 0, n_receives = 0;
        for (int r = 0; r < n_ranks; r++) {
            size_t n_theirs = at_once(part_n(p, r), at, CHUNK);
            parts[r] = r == c->rank ? own + at : c->sums + (size_t)r * CHUNK;
            if (r != c->rank && n_theirs > 0)
                c->sends[n_sends++] = cluster_message(c, r, p->x + p->begins[r] + at, n_theirs * sizeof *own);
            if (r != c->rank && n_own > 0)
                c->receives[n_receives++] = cluster_message(c, r, parts[r], n_own * sizeof *own);
        }
        if (!cluster_exchange(c, n_sends, n_receives, false))
            return false;
        add_all(team, own + at, parts, n_ranks, n_own);
    }
    return true;
}

/* All-gather: every rank gets the parts of all. */
static bool share_parts(struct cluster *c, struct team *team, const struct parts *p)
{
    if (p->is_seen) {
        if (!meet(c))
            return false;
        for (int r = 0; r < c->n_ranks; r++) {
            assert(p->theirs[r]);
            const float *theirs = p->theirs[r] + p->begins[r];
            if (r != c->rank)
                add_all(team, p->x + p->begins[r], &theirs, 1, part_n(p, r));
        }
        return meet(c); /* after this no rank reads x */
    }
    size_t n_most = largest_part(c, p);
    for (size_t at = 0; at < n_most; at += SEND_FLOATS) {
        size_t n_own = at_once(part_n(p, c->rank), at, SEND_FLOATS);
        int n_sends = 0, n_receives = 0;
        for (int r = 0; r < c->n_ranks; r++) {
            size_t n_theirs = at_once(part_n(p, r), at, SEND_FLOATS);
            if (r != c->rank && n_own > 0)
                c->sends[n_sends++] = cluster_message(c, r, p->x + p->begins[c->rank] + at,
                                                      n_own * sizeof *p->x);
            if (r != c->rank && n_theirs > 0)
                c->receives[n_receives++] = cluster_message(c, r, p->x + p->begins[r] + at,
                                                            n_theirs * sizeof *p->x);
        }
        if (!cluster_exchange(c, n_sends, n_receives, false))
            return false;
    }
    return true;
}

/* ---- functions of cluster.h ---- */

static void count(struct cluster *c, size_t n, uint64_t begin_ns)
{
    c->cost.n_reduces += n > 0;
    c->cost.n_reduced_bytes += n * sizeof(float);
    c->cost.reduce_ns += clock_now_ns() - begin_ns;
}

bool cluster_reduce(struct cluster *c, struct team *team, float *x, size_t n)
{
    if (c->n_ranks == 1)
        return true;
    uint64_t begin_ns = clock_now_ns();
    bool ok;
    if (n * sizeof *x <= c->direct_bytes) {
        ok = reduce_direct(c, x, n);
    } else {
        struct parts parts;
        divide(c, &parts, x, n, LANES);
        ok = reduce_part(c, team, &parts) && share_parts(c, team, &parts);
    }
    count(c, n, begin_ns);
    return ok;
}

bool cluster_prefers_scatter(const struct cluster *c, int n_rows, int n)
{
    return c->n_ranks > 1 && n_rows >= c->n_ranks &&
           (size_t)n_rows * (size_t)n * sizeof(float) > c->direct_bytes;
}

void cluster_own_rows(const struct cluster *c, int n_rows, int *begin, int *end)
{
    int64_t first, last;
    team_range(n_rows, 1, c->rank, c->n_ranks, &first, &last);
    *begin = (int)first;
    *end = (int)last;
}

bool cluster_reduce_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n)
{
    uint64_t begin_ns = clock_now_ns();
    struct parts parts;
    divide(c, &parts, x, (size_t)n_rows * (size_t)n, (size_t)n);
    bool ok = c->n_ranks == 1 || reduce_part(c, team, &parts);
    count(c, (size_t)n_rows * (size_t)n, begin_ns);
    return ok;
}

bool cluster_all_gather_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n)
{
    uint64_t begin_ns = clock_now_ns();
    struct parts parts;
    divide(c, &parts, x, (size_t)n_rows * (size_t)n, (size_t)n);
    bool ok = c->n_ranks == 1 || share_parts(c, team, &parts);
    count(c, 0, begin_ns);
    return ok;
}
