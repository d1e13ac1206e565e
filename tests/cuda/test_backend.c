/* Steps of the CUDA backend on the stand-in for the driver: what the card gets to know, graphs, and failures of every call. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_state.h"
#include "base/system/clock.h"
#include "cuda/standin_find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 20, WIDTH = 33, MAX_PAGES = 40, MAX_SEQS = 20 };

static const float FREQS[4] = { 1, 0.5f, 0.25f, 0.125f };
static const float SLOPES[2] = { 0.5f, 0.25f };
static const struct attention_shape SHAPES[2] = {
    { .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 8,
      .rotary_dim = 8,
      .rope = ROPE_HALF,
      .rope_freqs = FREQS,
      .rope_scale = 1,
      .scale = 1 },
    { .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .alibi_slopes = SLOPES, .scale = 1 },
};
static const uint8_t KINDS[2] = { 0, 1 };

static enum tutti_status open_card(struct backend **out, struct tutti_error *err)
{
    const struct backend_options options = {
        .n_threads = 1, .n_layers = 2, .n_kinds = 2, .attention = SHAPES, .kinds = KINDS
    };
    return backend_open(out, "cuda", &options, err);
}

static struct backend *card_new(int max_rows)
{
    struct backend *be = NULL;
    struct tutti_error err = { 0 };
    if (open_card(&be, &err) != TUTTI_OK || be->ops->reserve(be, max_rows, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return be;
}

static void assert_no_failure(const struct backend *be)
{
    struct tutti_error err = { 0 };
    if (be->ops->check(be, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

/* The rows of a step with page tables of its own: n rows, of one sequence each. */
struct rows {
    struct step step;
    int32_t ids[ROWS], positions[ROWS], seqs[ROWS], outputs[ROWS], slots[ROWS];
    int32_t pages[MAX_SEQS][MAX_PAGES], windows[MAX_SEQS][MAX_PAGES];
    const int32_t *tables[MAX_SEQS], *window_tables[MAX_SEQS];
};

static void rows_init(struct rows *r, int n)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < ROWS; i++) {
        r->ids[i] = 100 + i;
        r->positions[i] = 3 * i;
        r->seqs[i] = i;
        r->outputs[i] = n - 1 - i;
        r->slots[i] = i;
        r->tables[i] = r->pages[i];
        r->window_tables[i] = r->windows[i];
        for (int p = 0; p < MAX_PAGES; p++) {
            r->pages[i][p] = 1000 * i + p;
            r->windows[i][p] = 100000 + 1000 * i + p;
        }
    }
    r->step = (struct step){ .n_rows = n,
                             .n_seqs = n,
                             .n_outputs = n,
                             .token_ids = r->ids,
                             .positions = r->positions,
                             .seqs = r->seqs,
                             .page_tables = r->tables,
                             .output_rows = r->outputs,
                             .slots = r->slots };
}

struct memory {
    struct floats x, y, w;
    float values[ROWS * WIDTH];
};

/* False: out of memory. */
static bool memory_init(struct memory *m, struct backend *be)
{
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        ones[i] = 1;
    for (int i = 0; i < ROWS * WIDTH; i++)
        m->values[i] = (float)(i % 17) - 8;
    m->x = be->ops->alloc(be, ROWS * WIDTH);
    m->y = be->ops->alloc(be, ROWS * WIDTH);
    m->w = be->ops->alloc_constant(be, ones, WIDTH);
    if (m->x.buffer)
        be->ops->upload(be, m->x, m->values, ROWS * WIDTH);
    return m->x.buffer && m->y.buffer && m->w.buffer;
}

static void memory_clear(struct memory *m, struct backend *be)
{
    be->ops->dealloc(be, m->x);
    be->ops->dealloc(be, m->y);
    be->ops->dealloc(be, m->w);
}

/* y = the output rows of factor * x; x is the same after it. */
static void run_step(struct backend *be, struct memory *m, const struct step *step, float factor,
                     float *hidden)
{
    int n = step->n_rows;
    be->ops->step_begin(be, step);
    be->ops->scale(be, m->x, factor, n, WIDTH);
    be->ops->gather(be, m->y, m->x, NO_FLOATS, WIDTH);
    if (hidden)
        be->ops->download(be, hidden, m->y, (size_t)step->n_outputs * WIDTH);
    be->ops->scale(be, m->x, 1 / factor, n, WIDTH);
    be->ops->rmsnorm(be, m->y, m->x, NO_FLOATS, m->w, n, WIDTH, 1e-5f);
    be->ops->step_submit(be);
    be->ops->step_wait(be);
}

static bool is_scaled(const struct memory *m, const struct step *step, float factor, const float *hidden)
{
    for (int i = 0; i < step->n_outputs * WIDTH; i++)
        if (hidden[i] != factor * m->values[step->output_rows[i / WIDTH] * WIDTH + i % WIDTH])
            return false;
    return true;
}

static void a_step_computes_its_rows(void **state)
{
    (void)state;
    struct backend *be = card_new(ROWS);
    struct memory m;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, be));
    for (int n = 1; n <= ROWS; n++) {
        struct rows r;
        rows_init(&r, n);
        memset(hidden, 0xff, sizeof hidden);
        run_step(be, &m, &r.step, 4, hidden);
        assert_true(is_scaled(&m, &r.step, 4, hidden));
    }
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void equal_steps_become_a_graph(void **state)
{
    (void)state;
    const struct standin_functions *driver = standin_functions();
    struct backend *be = card_new(ROWS);
    struct memory m;
    struct rows r;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, be));
    rows_init(&r, 7);
    driver->fail_call(NULL, 0, 0);
    for (int i = 0; i < 6; i++) {
        long n_launches = driver->calls("cuLaunchKernel");
        memset(hidden, 0xff, sizeof hidden);
        r.ids[0]++; /* data of a step do not count */
        r.positions[0]++;
        run_step(be, &m, &r.step, 2, hidden);
        assert_true(is_scaled(&m, &r.step, 2, hidden));
        if (i >= 2)
            assert_int_equal(driver->calls("cuLaunchKernel"), n_launches);
    }
    assert_int_equal(driver->calls("cuGraphInstantiateWithFlags"), 1);
    assert_true(driver->calls("cuGraphLaunch") >= 4);
    rows_init(&r, 8); /* the same bucket */
    run_step(be, &m, &r.step, 2, NULL);
    run_step(be, &m, &r.step, 2, NULL);
    long n_launches = driver->calls("cuLaunchKernel");
    r.step.n_rows = r.step.n_seqs = 6;
    r.step.n_outputs = 5;
    memset(r.outputs, 0, sizeof r.outputs);
    run_step(be, &m, &r.step, 2, NULL);
    assert_int_equal(driver->calls("cuLaunchKernel"), n_launches);
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void a_changed_argument_is_never_replayed(void **state)
{
    (void)state;
    struct backend *be = card_new(ROWS);
    struct memory m;
    struct rows r;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, be));
    rows_init(&r, 5);
    for (int i = 0; i < 40; i++) {
        float factor = i % 7 == 6 ? 8 : i % 3 == 2 ? 4 : 2;
        memset(hidden, 0xff, sizeof hidden);
        run_step(be, &m, &r.step, factor, hidden);
        assert_true(is_scaled(&m, &r.step, factor, hidden));
    }
    memory_clear(&m, be); /* another buffer may get the same place */
    assert_true(memory_init(&m, be));
    for (int i = 0; i < 4; i++) {
        run_step(be, &m, &r.step, 2, hidden);
        assert_true(is_scaled(&m, &r.step, 2, hidden));
    }
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void the_least_used_graphs_go(void **state)
{
    (void)state;
    const struct standin_functions *driver = standin_functions();
    struct backend *be = card_new(ROWS);
    struct memory m;
    struct rows r;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, be));
    rows_init(&r, 1);
    driver->fail_call(NULL, 0, 0);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 3 * N_GRAPHS; i++) {
            float factor = 2.0f + (float)i;
            for (int repeat = 0; repeat < 3; repeat++) {
                be->ops->upload(be, m.x, m.values, ROWS * WIDTH);
                run_step(be, &m, &r.step, factor, hidden);
                assert_true(is_scaled(&m, &r.step, factor, hidden));
            }
        }
    assert_int_equal(driver->calls("cuGraphInstantiateWithFlags") - driver->calls("cuGraphExecDestroy"),
                     N_GRAPHS);
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void a_step_without_graphs_is_the_same(void **state)
{
    (void)state;
    static const char *const CALLS[] = { "cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                         "cuGraphInstantiateWithFlags" };
    for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
        struct backend *be = card_new(ROWS);
        struct memory m;
        struct rows r;
        float hidden[ROWS * WIDTH];
        assert_true(memory_init(&m, be));
        rows_init(&r, 5);
        standin_functions()->fail_call(CALLS[c], 1, 900);
        for (int i = 0; i < 5; i++) {
            memset(hidden, 0xff, sizeof hidden);
            run_step(be, &m, &r.step, 2, hidden);
            assert_true(is_scaled(&m, &r.step, 2, hidden));
        }
        assert_string_equal(standin_functions()->failed(), CALLS[c]);
        assert_int_equal(standin_functions()->calls("cuGraphLaunch"), 0);
        standin_functions()->fail_call(NULL, 0, 0);
        assert_no_failure(be);
        memory_clear(&m, be);
        be->ops->free(be);
    }
}

static void assert_ints(struct cuda_backend *cuda, const int32_t *card, int n, const int32_t *host,
                        int32_t padding, int room)
{
    int32_t got[ROWS + 44];
    cuda_copy_out(cuda, got, card, (size_t)room * sizeof *got);
    for (int i = 0; i < room; i++)
        assert_int_equal(got[i], i < n ? host ? host[i] : 0 : padding);
}

static void rows_are_padded(void **state)
{
    (void)state;
    struct backend *be = card_new(64);
    struct cuda_backend *cuda = cuda_of(be);
    for (int n = 1; n <= ROWS; n++) {
        struct rows r;
        int32_t others[ROWS], prefixes[ROWS];
        rows_init(&r, n);
        for (int i = 0; i < ROWS; i++) {
            others[i] = 7 * i;
            prefixes[i] = i / 2;
        }
        r.step.n_outputs = (n + 1) / 2;
        if (n % 2 == 0)
            r.step.rope_positions = r.step.block_positions = others;
        if (n % 3 == 0)
            r.step.prefix_lens = prefixes;
        if (n % 5 == 0)
            r.step.window_tables = r.window_tables;
        be->ops->step_begin(be, &r.step);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        int padded = cuda->n_padded_rows, slot = cuda->state->tables[0].n_slots;
        assert_true(padded >= n && padded <= 2 * n);
        assert_int_equal(padded, cuda_padded_rows(cuda, n));
        assert_ints(cuda, cuda->rows.token_ids, n, r.ids, 0, padded);
        assert_ints(cuda, cuda->rows.positions, n, r.positions, 0, padded);
        assert_ints(cuda, cuda->rows.seqs, n, r.seqs, n, padded);
        assert_ints(cuda, cuda->rows.rope_positions, n, n % 2 == 0 ? others : r.positions, 0, padded);
        assert_ints(cuda, cuda->rows.block_positions, n, r.step.block_positions, 0, padded);
        assert_ints(cuda, cuda->rows.output_rows, r.step.n_outputs, r.outputs, 0, padded);
        assert_ints(cuda, cuda->rows.prefix_lens, n, r.step.prefix_lens, 0, padded + 1);
        assert_ints(cuda, cuda->rows.slots, n, r.slots, slot, padded + 1);
        struct step_counts counts;
        cuda_copy_out(cuda, &counts, cuda->rows.counts, sizeof counts);
        assert_int_equal(counts.n_rows, n);
        assert_int_equal(counts.n_seqs, n);
        assert_int_equal(counts.n_outputs, r.step.n_outputs);
        assert_int_equal(counts.n_hidden, 0);
    }
    assert_no_failure(be);
    be->ops->free(be);
}

static unsigned draw(unsigned n)
{
    static uint64_t random_state = 1;
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(random_state >> 33) % n;
}

static void assert_tables(struct cuda_backend *cuda, const struct rows *r)
{
    static int32_t got[MAX_PAGES];
    for (int s = 0; s < r->step.n_seqs; s++) {
        size_t at = (size_t)r->slots[s] * (size_t)cuda->rows.max_pages,
               n = (size_t)r->positions[s] / CUDA_PAGE_TOKENS + 1;
        cuda_copy_out(cuda, got, cuda->rows.page_tables + at, n * sizeof *got);
        assert_memory_equal(got, r->pages[s], n * sizeof *got);
        cuda_copy_out(cuda, got, cuda->rows.window_tables + at, n * sizeof *got);
        assert_memory_equal(got, r->step.window_tables ? r->windows[s] : r->pages[s], n * sizeof *got);
    }
}

/* Sequences grow, end, come with other slots, have windows or not; tables grow if nobody reserved them. */
static void page_tables_follow_every_change(void **state)
{
    (void)state;
    for (int is_reserved = 0; is_reserved < 2; is_reserved++) {
        struct backend *be = card_new(ROWS);
        struct tutti_error err;
        struct rows r;
        rows_init(&r, ROWS);
        if (is_reserved)
            assert_int_equal(be->ops->reserve_tables(be, MAX_SEQS, MAX_PAGES, &err), TUTTI_OK);
        for (int i = 0; i < 120; i++) {
            r.step.n_rows = r.step.n_seqs = r.step.n_outputs = 1 + (int)draw(ROWS);
            r.step.window_tables = draw(2) ? r.window_tables : NULL;
            memset(r.outputs, 0, sizeof r.outputs);
            if (!is_reserved && i == 60)
                r.slots[0] = 300; /* more slots than a table has at first */
            for (int n = (int)draw(10); n > 0; n--) {
                int seq = (int)draw(ROWS);
                r.positions[seq] = (int)draw(MAX_PAGES * CUDA_PAGE_TOKENS);
                r.pages[seq][draw(MAX_PAGES)] = (int32_t)draw(10000);
                r.windows[seq][draw(MAX_PAGES)] = (int32_t)draw(10000);
            }
            be->ops->step_begin(be, &r.step);
            be->ops->step_submit(be);
            be->ops->step_wait(be);
            assert_tables(cuda_of(be), &r);
        }
        assert_no_failure(be);
        be->ops->free(be);
    }
}

static void more_changes_than_a_step_carries_are_sent(void **state)
{
    (void)state;
    enum { LONG = MAX_CHANGES / 2 + 1000 };
    struct backend *be = card_new(ROWS);
    struct cuda_backend *cuda = cuda_of(be);
    struct rows r;
    int32_t *pages[3], *got = calloc(LONG, sizeof *got);
    assert_non_null(got);
    rows_init(&r, 3);
    for (int s = 0; s < 3; s++) {
        pages[s] = calloc(LONG, sizeof **pages);
        assert_non_null(pages[s]);
        r.tables[s] = pages[s];
        r.positions[s] = LONG * CUDA_PAGE_TOKENS - 1;
    }
    for (int i = 0; i < 3; i++) {
        for (int s = 0; s < 3; s++)
            for (int p = 0; p < LONG; p++)
                pages[s][p] = (int32_t)draw(1 << 20);
        be->ops->step_begin(be, &r.step);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        for (int s = 0; s < 3; s++) {
            cuda_copy_out(cuda, got, cuda->rows.page_tables + (size_t)s * (size_t)cuda->rows.max_pages,
                          LONG * sizeof *got);
            assert_memory_equal(got, pages[s], LONG * sizeof *got);
        }
    }
    assert_no_failure(be);
    for (int s = 0; s < 3; s++)
        free(pages[s]);
    free(got);
    be->ops->free(be);
}

static void data_of_a_step_have_their_places(void **state)
{
    (void)state;
    struct backend *be = card_new(ROWS);
    struct cuda_backend *cuda = cuda_of(be);
    struct rows r;
    int32_t a[8], b[8], got[8];
    void *places[3][2];
    rows_init(&r, 4);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 8; j++) {
            a[j] = 10 * i + j;
            b[j] = 1000 + a[j];
        }
        be->ops->step_begin(be, &r.step);
        places[i][0] = cuda_step_data(cuda, a, sizeof a, sizeof a);
        assert_ptr_equal(cuda_step_data(cuda, a, sizeof a, sizeof a), places[i][0]);
        places[i][1] = cuda_step_data(cuda, b, 4 * sizeof *b, sizeof b);
        a[0]++; /* the same array with other values is another one */
        void *other = cuda_step_data(cuda, a, sizeof a, sizeof a);
        assert_ptr_not_equal(other, places[i][0]);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        cuda_copy_out(cuda, got, other, sizeof got);
        assert_memory_equal(got, a, sizeof got);
        a[0]--;
        cuda_copy_out(cuda, got, places[i][0], sizeof got);
        assert_memory_equal(got, a, sizeof got);
        cuda_copy_out(cuda, got, places[i][1], sizeof got);
        assert_memory_equal(got, b, 4 * sizeof *got);
        assert_ptr_equal(places[i][0], places[0][0]);
        assert_ptr_equal(places[i][1], places[0][1]);
    }
    assert_no_failure(be);
    char *large = calloc(1, 2 * STEP_DATA_BYTES);
    assert_non_null(large);
    be->ops->step_begin(be, &r.step);
    assert_null(cuda_step_data(cuda, large, 2 * STEP_DATA_BYTES, 2 * STEP_DATA_BYTES));
    be->ops->step_submit(be);
    be->ops->step_wait(be);
    struct tutti_error err;
    assert_int_equal(be->ops->check(be, &err), TUTTI_E_LIMIT);
    free(large);
    be->ops->free(be);
}

static void long_lists_are_launched_in_pieces(void **state)
{
    (void)state;
    enum { N = 40000 };
    struct backend *be = card_new(ROWS);
    struct memory m;
    struct rows r;
    float got[WIDTH];
    assert_true(memory_init(&m, be));
    rows_init(&r, 1);
    for (int i = 0; i < 3; i++) {
        be->ops->step_begin(be, &r.step);
        for (int j = 0; j < N; j++)
            be->ops->scale(be, m.x, j % 2 == 0 ? 2 : 0.5f, 1, 1);
        be->ops->scale(be, m.x, 2, 1, 1);
        be->ops->download(be, got, m.x, WIDTH);
        be->ops->scale(be, m.x, 0.5f, 1, 1);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        assert_true(got[0] == 2 * m.values[0]);
        assert_true(got[1] == m.values[1]);
    }
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void large_downloads_are_of_their_time(void **state)
{
    (void)state;
    enum { LARGE = DOWNLOAD_BYTES / 4 + 100 };
    struct backend *be = card_new(ROWS);
    struct rows r;
    struct floats x = be->ops->alloc(be, LARGE);
    float *host = calloc(LARGE, sizeof *host), *got = calloc(LARGE, sizeof *got), one = 1, after[2];
    assert_true(x.buffer && host && got);
    for (int i = 0; i < LARGE; i++)
        host[i] = (float)i;
    rows_init(&r, 1);
    for (int i = 0; i < 3; i++) {
        be->ops->upload(be, x, host, LARGE);
        be->ops->step_begin(be, &r.step);
        be->ops->scale(be, x, 2, 1, 2);
        be->ops->download(be, got, x, LARGE);
        be->ops->scale(be, x, 2, 1, 2);
        be->ops->download(be, after, x, 2);
        be->ops->scale(be, x, 2, 1, 2);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        assert_true(got[1] == 2 && got[LARGE - 1] == (float)(LARGE - 1));
        assert_true(after[1] == 4);
        be->ops->download(be, &one, floats_at(x, 1), 1);
        assert_true(one == 8);
    }
    assert_no_failure(be);
    be->ops->dealloc(be, x);
    free(host);
    free(got);
    be->ops->free(be);
}

static void memory_that_is_left_is_told(void **state)
{
    (void)state;
    struct backend *be = card_new(ROWS);
    uint64_t before = be->ops->memory_left(be);
    struct floats x = be->ops->alloc(be, 1 << 20);
    assert_int_equal(before - be->ops->memory_left(be), 4 << 20);
    assert_null(be->ops->alloc(be, (size_t)1 << 40).buffer);
    assert_null(be->ops->alloc(be, SIZE_MAX / 2).buffer);
    assert_no_failure(be); /* running out between steps is the caller's to tell */
    be->ops->dealloc(be, x);
    assert_int_equal(be->ops->memory_left(be), before);
    be->ops->free(be);
    assert_int_equal(standin_functions()->bytes(), 0);
}

static void the_card_describes_itself(void **state)
{
    (void)state;
    const struct standin_functions *driver = standin_functions();
    struct backend *be = card_new(ROWS);
    struct tutti_device d, later;
    struct memory m;
    struct rows r;
    assert_true(memory_init(&m, be));
    be->ops->describe(be, &d);
    assert_string_equal(d.id, "cuda:0");
    assert_string_equal(d.name, "Emulator 0");
    assert_int_equal(d.capability, 80);
    assert_int_equal(d.kernel_level, 80);
    assert_int_equal(d.driver, 12040);
    assert_int_equal(d.clock_mhz, 1500);
    assert_true(d.memory_gbps == 256); /* both edges of 2 GHz, 64 bytes */
    assert_int_equal(d.memory_bytes, 2L << 30);
    assert_int_equal(d.free_bytes, be->ops->memory_left(be));
    assert_true(d.loading_seconds > 0 && d.busy_seconds == 0);

    /* Every step counts, and no more than the time that has passed. */
    uint64_t begin_ns = clock_now_ns();
    double seconds = 0;
    rows_init(&r, 5);
    for (int i = 0; i < 3 * N_BUSY; i++) {
        run_step(be, &m, &r.step, 2, NULL);
        be->ops->describe(be, &later);
        assert_true(later.busy_seconds > seconds);
        seconds = later.busy_seconds;
    }
    assert_true(seconds < (double)(clock_now_ns() - begin_ns) * 1e-9);

    /* Steps that nobody has waited for yet are counted when their end is known. */
    be->ops->step_begin(be, &r.step);
    be->ops->scale(be, m.x, 2, 5, WIDTH);
    be->ops->step_submit(be);
    be->ops->describe(be, &later);
    assert_true(later.busy_seconds == seconds);
    be->ops->step_wait(be);
    be->ops->describe(be, &later);
    assert_true(later.busy_seconds > seconds);

    /* What the driver refuses to tell is not known, and no failure of the backend. */
    static const char *const CALLS[] = { "cuMemGetInfo_v2", "cuCtxSetCurrent" };
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        driver->fail_call(CALLS[i], 1, 999);
        be->ops->describe(be, &d);
        assert_int_equal(d.free_bytes, 0);
        assert_int_equal(d.memory_bytes, 2L << 30);
        assert_string_equal(driver->failed(), CALLS[i]);
        driver->fail_call(NULL, 0, 0);
    }
    run_step(be, &m, &r.step, 2, NULL);
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void all_cards_are_listed(void **state)
{
    (void)state;
    const struct standin_functions *driver = standin_functions();
    struct tutti_device devices[4], *d = &devices[2];
    struct tutti_error err = { 0 };
    int n = 0;
    setenv("TUTTI_STANDIN_CARDS", "3", 1);
    assert_int_equal(backend_devices(devices, 4, &n, &err), TUTTI_OK);
    assert_int_equal(n, 3);
    assert_string_equal(d->id, "cuda:2");
    assert_string_equal(d->name, "Emulator 2");
    assert_int_equal(d->memory_bytes, (2L << 30) + 2);
    assert_int_equal(d->free_bytes, 2L << 30);
    assert_int_equal(backend_devices(devices, 2, &n, &err), TUTTI_OK);
    assert_int_equal(n, 2);

    /* A card that cannot be opened is listed; only its free memory is not known. */
    driver->fail_call("cuDevicePrimaryCtxRetain", 3, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(backend_devices(devices, 4, &n, &err), TUTTI_OK);
    assert_int_equal(n, 3);
    assert_true(d->free_bytes == 0 && devices[1].free_bytes > 0);
    for (int attribute = 1; attribute <= 7; attribute++) { /* four of each card must be known */
        driver->fail_call("cuDeviceGetAttribute", attribute, 999);
        enum tutti_status st = backend_devices(devices, 1, &n, &err);
        assert_int_equal(st, attribute <= 4 ? TUTTI_E_IO : TUTTI_OK);
        if (st != TUTTI_OK)
            assert_non_null(strstr(err.text, "listing the cards"));
        else
            assert_true(devices[0].clock_mhz == 0 || devices[0].memory_gbps == 0);
    }
    driver->fail_call("cuDeviceGetName", 2, 999);
    assert_int_equal(backend_devices(devices, 4, &n, &err), TUTTI_E_IO);
    driver->fail_call(NULL, 0, 0);
    unsetenv("TUTTI_STANDIN_CARDS");
}

static enum tutti_status matrix_new(struct backend *be, struct matrix **out, struct tutti_error *err)
{
    enum { N_IN = 64, N_OUT = 16 };
    float rows[N_OUT * N_IN];
    for (int i = 0; i < N_OUT * N_IN; i++)
        rows[i] = (float)(i % 5);
    const struct matrix_part part = { .data = rows, .dtype = DTYPE_F32, .n_rows = N_OUT };
    const struct matrix_source source = {
        .name = "w", .parts = &part, .n_parts = 1, .n_in = N_IN, .type = DTYPE_Q8_0
    };
    return be->ops->matrix_new(be, out, &source, err);
}

/* What the model has decides which kernels are compiled, and nothing is compiled in a step. */
static void kernels_are_loaded_for_what_is_created(void **state)
{
    (void)state;
    enum {
        OF_EVERY_STEP = 3,
        OF_PAGES = 3,
        OF_MATRICES = 2,
        OF_SAMPLING = 2
    }; /* of pages: one file, and two kernels by themselves */
    const struct standin_functions *driver = standin_functions();
    struct tutti_error err = { 0 };
    struct matrix *first = NULL, *second = NULL;
    struct kv_memory *kv = NULL;
    struct backend *be = NULL;
    driver->fail_call(NULL, 0, 0);
    assert_int_equal(open_card(&be, &err), TUTTI_OK);
    assert_int_equal(driver->calls("cuModuleLoadDataEx"), OF_EVERY_STEP);
    assert_int_equal(be->ops->kv_new(be, &kv, 4, 4, DTYPE_F16, &err), TUTTI_OK);
    assert_int_equal(driver->calls("cuModuleLoadDataEx"), OF_EVERY_STEP + OF_PAGES);
    assert_int_equal(matrix_new(be, &first, &err), TUTTI_OK);
    assert_int_equal(matrix_new(be, &second, &err), TUTTI_OK); /* of the same type */
    long n = OF_EVERY_STEP + OF_PAGES + OF_MATRICES;
    assert_int_equal(driver->calls("cuModuleLoadDataEx"), n);
    assert_int_equal(be->ops->reserve_sampling(be, 100, &err), TUTTI_OK);
    assert_int_equal(driver->calls("cuModuleLoadDataEx"), n + OF_SAMPLING);
    assert_int_equal(be->ops->reserve(be, ROWS, &err), TUTTI_OK);
    assert_no_failure(be);

    /* An operation whose kernel nobody requested fails, with its name: it is not loaded in the step. */
    struct rows r;
    struct memory m;
    rows_init(&r, 1);
    assert_true(memory_init(&m, be));
    be->ops->step_begin(be, &r.step);
    cuda_launch(cuda_of(be), CUDA_KERNEL_route_few, (struct cuda_grid){ 1, 1, 1, 128, 0 }, "", 0);
    be->ops->step_submit(be);
    be->ops->step_wait(be);
    assert_int_equal(driver->calls("cuModuleLoadDataEx"), n + OF_SAMPLING);
    assert_int_equal(be->ops->check(be, &err), TUTTI_E_IO);
    assert_non_null(strstr(err.text, "launching kernel route_few"));
    memory_clear(&m, be);
    be->ops->matrix_free(be, first);
    be->ops->matrix_free(be, second);
    be->ops->kv_free(be, kv);
    be->ops->free(be);
}

/* ---- failures ---- */

/* Opening, loading, steps and closing. Returns the first error, or TUTTI_E_INTERNAL if a result is wrong. */
static enum tutti_status live(struct tutti_error *err)
{
    struct backend *be = NULL;
    struct memory m = { 0 };
    struct rows r;
    struct matrix *matrix = NULL;
    struct kv_memory *kv = NULL;
    float hidden[ROWS * WIDTH];
    enum tutti_status st = open_card(&be, err);
    if (st != TUTTI_OK)
        return st;
    st = matrix_new(be, &matrix, err);
    if (st == TUTTI_OK)
        st = be->ops->kv_new(be, &kv, 4, 4, DTYPE_I8, err);
    if (st == TUTTI_OK)
        st = be->ops->reserve_sampling(be, 100, err);
    if (st == TUTTI_OK)
        st = be->ops->reserve_tables(be, MAX_SEQS, MAX_PAGES, err);
    if (st == TUTTI_OK)
        st = be->ops->reserve(be, ROWS, err);
    if (st == TUTTI_OK && !memory_init(&m, be))
        st = error_set(err, TUTTI_E_MEMORY, "no memory");
    rows_init(&r, 5);
    for (int i = 0; i < 6 && st == TUTTI_OK; i++) {
        r.pages[0][0]++;
        run_step(be, &m, &r.step, i % 4 == 3 ? 4 : 2, hidden);
        st = be->ops->check(be, err);
        if (st == TUTTI_OK && !is_scaled(&m, &r.step, i % 4 == 3 ? 4 : 2, hidden))
            st = error_set(err, TUTTI_E_INTERNAL, "wrong results");
    }
    (void)be->ops->memory_left(be);
    if (st == TUTTI_OK)
        st = be->ops->check(be, err);
    memory_clear(&m, be);
    be->ops->matrix_free(be, matrix);
    be->ops->kv_free(be, kv);
    be->ops->free(be); /* the stand-in ends the process if something is left */
    return st;
}

/* What the child's process ends with. */
enum { FAILED_CLEARLY, WENT_ON, NO_MORE_CALLS, WRONG, UNCLEAR };

static int live_with_failure(long call, int error)
{
    struct tutti_error err = { 0 };
    const struct standin_functions *driver = standin_functions();
    driver->fail_call(NULL, call, error);
    enum tutti_status st = live(&err);
    if (!driver->failed())
        return st == TUTTI_OK ? NO_MORE_CALLS : WRONG;
    if (driver->bytes() != 0 || st == TUTTI_E_INTERNAL)
        return WRONG;
    if (st == TUTTI_OK)
        return WENT_ON;
    return err.status == st && strlen(err.text) > 4 ? FAILED_CLEARLY : UNCLEAR;
}

static void every_call_may_fail(void **state)
{
    (void)state;
    static const int ERRORS[] = { 999, CUDA_ERROR_OUT_OF_MEMORY };
    for (size_t e = 0; e < sizeof ERRORS / sizeof *ERRORS; e++) {
        int counts[UNCLEAR + 1] = { 0 };
        for (long call = 1; counts[NO_MORE_CALLS] == 0; call++) {
            fflush(NULL);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0)
                _exit(live_with_failure(call, ERRORS[e]));
            int status = 0;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (!WIFEXITED(status) || WEXITSTATUS(status) >= WRONG)
                fail_msg("call %ld with error %d: the process ended with %#x", call, ERRORS[e],
                         (unsigned)status);
            counts[WEXITSTATUS(status)]++;
        }
        print_message("# error %d: %d calls fail clearly, %d make no difference\n", ERRORS[e],
                      counts[FAILED_CLEARLY], counts[WENT_ON]);
        assert_true(counts[FAILED_CLEARLY] > 100);
    }
}

static void after_a_failure_nothing_is_launched(void **state)
{
    (void)state;
    const struct standin_functions *driver = standin_functions();
    struct backend *be = card_new(ROWS);
    struct memory m;
    struct rows r;
    struct tutti_error err;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, be));
    rows_init(&r, 5);
    driver->fail_call("cuStreamSynchronize", 1, 719);
    run_step(be, &m, &r.step, 2, hidden);
    assert_int_equal(be->ops->check(be, &err), TUTTI_E_IO);
    assert_string_equal(err.text,
                        "device cuda: computing a step: CUDA_ERROR_719 (719): an error of the stand-in");
    driver->fail_call(NULL, 0, 0);
    run_step(be, &m, &r.step, 2, hidden);
    be->ops->upload(be, m.x, m.values, WIDTH);
    be->ops->download(be, hidden, m.x, WIDTH);
    assert_int_equal(driver->calls("cuLaunchKernel") + driver->calls("cuMemcpyHtoDAsync_v2"), 0);
    assert_int_equal(be->ops->check(be, &err), TUTTI_E_IO);
    assert_non_null(strstr(err.text, "719")); /* the first error stays */
    memory_clear(&m, be);
    be->ops->free(be);
    be = card_new(ROWS); /* opened again, it works */
    assert_true(memory_init(&m, be));
    run_step(be, &m, &r.step, 2, hidden);
    assert_true(is_scaled(&m, &r.step, 2, hidden));
    assert_no_failure(be);
    memory_clear(&m, be);
    be->ops->free(be);
}

static void two_backends_share_a_card(void **state)
{
    (void)state;
    struct backend *a = card_new(ROWS), *b = card_new(ROWS);
    struct memory m, n;
    struct rows r;
    float hidden[ROWS * WIDTH];
    assert_true(memory_init(&m, a));
    assert_true(memory_init(&n, b));
    assert_true(b->ops->share_threads(b, a));
    rows_init(&r, 5);
    for (int i = 0; i < 4; i++) {
        run_step(a, &m, &r.step, 2, hidden);
        assert_true(is_scaled(&m, &r.step, 2, hidden));
        run_step(b, &n, &r.step, 4, hidden);
        assert_true(is_scaled(&n, &r.step, 4, hidden));
    }
    memory_clear(&m, a);
    a->ops->free(a);
    run_step(b, &n, &r.step, 4, hidden);
    assert_true(is_scaled(&n, &r.step, 4, hidden));
    assert_no_failure(b);
    memory_clear(&n, b);
    b->ops->free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail), /* first: its processes begin without a driver */
        cmocka_unit_test(a_step_computes_its_rows),
        cmocka_unit_test(equal_steps_become_a_graph),
        cmocka_unit_test(a_changed_argument_is_never_replayed),
        cmocka_unit_test(the_least_used_graphs_go),
        cmocka_unit_test(a_step_without_graphs_is_the_same),
        cmocka_unit_test(rows_are_padded),
        cmocka_unit_test(page_tables_follow_every_change),
        cmocka_unit_test(more_changes_than_a_step_carries_are_sent),
        cmocka_unit_test(data_of_a_step_have_their_places),
        cmocka_unit_test(long_lists_are_launched_in_pieces),
        cmocka_unit_test(large_downloads_are_of_their_time),
        cmocka_unit_test(memory_that_is_left_is_told),
        cmocka_unit_test(the_card_describes_itself),
        cmocka_unit_test(all_cards_are_listed),
        cmocka_unit_test(kernels_are_loaded_for_what_is_created),
        cmocka_unit_test(after_a_failure_nothing_is_launched),
        cmocka_unit_test(two_backends_share_a_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
