/* Copies of pages between the card and the host, on the stand-in for the driver: what they contain, whatever the steps do
 * meanwhile, and failures of every call. The stand-in carries out the work of a stream as late as it may. */
#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include "cuda/standin_find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PAGES = 6, N_COPIES = 2, N_FRAMES = 2 * N_PAGES, PAGE_FLOATS = 12 };

static const struct attention_shape SHAPES[2] = {
    { .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .scale = 1 },
    { .n_heads = 2, .n_kv_heads = 2, .head_dim = 16, .scale = 1 },
};
static const uint8_t KINDS[3] = { 0, 1, 0 };

struct world {
    struct backend *be;
    struct kv_memory *kv;
    uint8_t *host;
    size_t n; /* bytes of a page */
};

static enum tutti_status open_card(struct world *w, struct tutti_error *err)
{
    const struct backend_options options = { .n_threads = 1,
                                             .n_layers = 3,
                                             .n_kinds = 2,
                                             .attention = SHAPES,
                                             .kinds = KINDS,
                                             .page_floats = PAGE_FLOATS };
    *w = (struct world){ 0 };
    enum tutti_status st = backend_open(&w->be, "cuda", &options, err);
    if (st == TUTTI_OK)
        st = w->be->ops->reserve(w->be, 1, err);
    if (st == TUTTI_OK)
        st = w->be->ops->kv_new(w->be, &w->kv, N_PAGES, N_PAGES, DTYPE_F16, err);
    return st;
}

static enum tutti_status reserve(struct world *w, struct tutti_error *err)
{
    void *host = NULL;
    w->n = w->be->ops->kv_page_bytes(w->be, DTYPE_F16);
    enum tutti_status st = w->be->ops->kv_reserve_host(w->be, w->kv, N_FRAMES * w->n, N_COPIES, &host, err);
    w->host = host;
    return st;
}

static void close_card(struct world *w)
{
    if (w->kv)
        w->be->ops->kv_free(w->be, w->kv);
    w->be->ops->free(w->be);
}

static struct world world_new(void)
{
    struct world w;
    struct tutti_error err = { 0 };
    if (open_card(&w, &err) != TUTTI_OK || reserve(&w, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return w;
}

static void world_free(struct world *w)
{
    struct tutti_error err = { 0 };
    if (w->be->ops->check(w->be, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    close_card(w);
}

static uint8_t *frame_of(const struct world *w, int frame)
{
    return w->host + (size_t)frame * w->n;
}

static uint8_t byte_of(int value, size_t i)
{
    return (uint8_t)((size_t)value * 31 + i * 7);
}

static void fill(const struct world *w, int frame, int value)
{
    for (size_t i = 0; i < w->n; i++)
        frame_of(w, frame)[i] = byte_of(value, i);
}

static bool has(const struct world *w, int frame, int value)
{
    for (size_t i = 0; i < w->n; i++)
        if (frame_of(w, frame)[i] != byte_of(value, i))
            return false;
    return true;
}

static void write_begin(struct world *w, int copy, int frame)
{
    w->be->ops->kv_write_begin(w->be, w->kv, copy, frame_of(w, frame));
}

/* Waits for the copy, and ends it. */
static void write_end(struct world *w, int copy, int frame, int32_t page_id)
{
    (void)w->be->ops->kv_is_copied(w->be, w->kv, copy, true);
    w->be->ops->kv_write_end(w->be, w->kv, copy, page_id, frame_of(w, frame));
}

static void write_page(struct world *w, int value, int32_t page_id)
{
    fill(w, 0, value);
    write_begin(w, 0, 0);
    write_end(w, 0, 0, page_id);
}

static void read_begin(struct world *w, int copy, int32_t page_id, int frame)
{
    memset(frame_of(w, frame), 0xAB, w->n);
    w->be->ops->kv_read_begin(w->be, w->kv, copy, page_id, frame_of(w, frame));
}

static bool is_copied(struct world *w, int copy, bool waits)
{
    return w->be->ops->kv_is_copied(w->be, w->kv, copy, waits);
}

static void copy_within(struct world *w, int32_t dst, int32_t src)
{
    w->be->ops->kv_copy_page(
        w->be, w->kv, &(struct page_copy){ .dst = dst, .src = src, .window_dst = dst, .window_src = src });
}

/* A step of one row, which takes nothing from the pages. */
static void run_step(struct world *w, struct floats x)
{
    static const int32_t ZERO = 0, *const TABLE = &ZERO;
    const struct step step = {
        .n_rows = 1, .n_seqs = 1, .token_ids = &ZERO, .positions = &ZERO, .seqs = &ZERO, .page_tables = &TABLE
    };
    w->be->ops->step_begin(w->be, &step);
    w->be->ops->scale(w->be, x, 2, 1, 8);
    w->be->ops->step_submit(w->be);
    w->be->ops->step_wait(w->be);
}

/* ---- tests ---- */

/* All pages by all copies, several under way, in each round with other values. False: some page has something else. */
static bool pages_go_and_come(struct world *w, int n_rounds)
{
    bool ok = true;
    for (int round = 0; round < n_rounds; round++) {
        for (int page = 0; page < N_PAGES + N_COPIES; page++) {
            int before = page - N_COPIES;
            if (before >= 0)
                write_end(w, before % N_COPIES, before, before);
            if (page < N_PAGES) {
                fill(w, page, 100 * round + page);
                write_begin(w, page % N_COPIES, page);
            }
        }
        for (int page = 0; page < N_PAGES + N_COPIES; page++) {
            int before = page - N_COPIES;
            if (before >= 0) {
                while (!is_copied(w, before % N_COPIES, before % 2))
                    ;
                if (w->be->ops->check(w->be, NULL) != TUTTI_OK)
                    return false; /* the card may still write to the frame */
                ok = ok && has(w, N_PAGES + before, 100 * round + before);
            }
            if (page < N_PAGES)
                read_begin(w, page % N_COPIES, page, N_PAGES + page);
        }
    }
    return ok;
}

static void what_goes_to_the_card_comes_back(void **state)
{
    (void)state;
    struct world w = world_new();
    assert_true(pages_go_and_come(&w, 3));
    world_free(&w);
}

static void a_page_is_read_as_it_was(void **state)
{
    (void)state;
    struct world w = world_new();
    write_page(&w, 1, 1);
    write_page(&w, 2, 2);
    read_begin(&w, 1, 1, 5);
    copy_within(&w, 1, 2); /* the page is another one's now */
    read_begin(&w, 0, 1, 6);
    assert_true(is_copied(&w, 1, true) && has(&w, 5, 1));
    assert_true(is_copied(&w, 0, true) && has(&w, 6, 2));
    world_free(&w);
}

static void a_written_page_is_there_for_what_follows(void **state)
{
    (void)state;
    struct world w = world_new();
    write_page(&w, 1, 1);
    copy_within(&w, 3, 1);
    write_page(&w, 2, 1); /* by the same copy, whose first page may still have to be made */
    copy_within(&w, 4, 1);
    fill(&w, 0, 9); /* the host's memory is free again */
    for (int page = 3; page <= 4; page++) {
        read_begin(&w, 0, page, 5);
        assert_true(is_copied(&w, 0, true) && has(&w, 5, page - 2));
    }
    world_free(&w);
}

static void no_page_changes_before_the_end(void **state)
{
    (void)state;
    struct world w = world_new();
    for (int page = 0; page < N_PAGES; page++)
        write_page(&w, page, page);
    fill(&w, 0, 50);
    write_begin(&w, 0, 0);
    assert_true(is_copied(&w, 0, true));
    write_end(&w, 0, 0, -1); /* given up */
    for (int page = 0; page < N_PAGES; page++) {
        read_begin(&w, 0, page, 1);
        assert_true(is_copied(&w, 0, true) && has(&w, 1, page));
    }
    world_free(&w);
}

/* The frame is as read_begin() left it. On a card that would be a data race with the copy; the stand-in makes it later. */
__attribute__((no_sanitize_thread)) static bool is_untouched(const struct world *w, int frame)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->host[(size_t)frame * w->n + i] != 0xAB)
            return false;
    return true;
}

/* A step ends while copies that began before it are still under way, and asking for them does not wait. */
static void steps_do_not_wait(void **state)
{
    (void)state;
    struct world w = world_new();
    struct floats x = w.be->ops->alloc(w.be, 8);
    assert_non_null(x.buffer);
    write_page(&w, 7, 3);
    fill(&w, 1, 8);
    run_step(&w, x);
    read_begin(&w, 0, 3, 2);
    write_begin(&w, 1, 1);
    run_step(&w, x);
    assert_true(is_untouched(&w, 2));
    assert_false(is_copied(&w, 0, false));
    run_step(&w, x);
    assert_true(is_copied(&w, 0, false));
    assert_true(has(&w, 2, 7));
    assert_false(is_copied(&w, 1, false));
    assert_true(is_copied(&w, 1, true));
    write_end(&w, 1, 1, 4);
    run_step(&w, x);
    read_begin(&w, 0, 4, 2);
    assert_true(is_copied(&w, 0, true) && has(&w, 2, 8));
    w.be->ops->dealloc(w.be, x);
    world_free(&w);
}

static void memory_goes_back(void **state)
{
    (void)state;
    struct world w = world_new();
    read_begin(&w, 0, 3, 0); /* a copy under way, too */
    write_begin(&w, 1, 1);
    close_card(&w); /* the stand-in ends the process if something is left */
    assert_int_equal(standin_functions()->bytes(), 0);
}

static void too_much_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct tutti_error err = { 0 };
    void *host = NULL;
    assert_int_equal(open_card(&w, &err), TUTTI_OK);
    struct floats rest = w.be->ops->alloc(w.be, (size_t)w.be->ops->memory_left(w.be) / sizeof(float) - 64);
    assert_non_null(rest.buffer);
    assert_int_equal(w.be->ops->kv_reserve_host(w.be, w.kv, 4096, 4, &host, &err), TUTTI_E_MEMORY);
    assert_non_null(strstr(err.text, "the card is out of memory for 4 pages on their way"));
    w.be->ops->dealloc(w.be, rest);
    assert_null(host);
    assert_int_equal(w.be->ops->kv_reserve_host(w.be, w.kv, (size_t)1 << 60, 4, &host, &err), TUTTI_E_MEMORY);
    assert_non_null(strstr(err.text, "pinned memory"));
    world_free(&w);
}

/* After each call of the driver that may fail: a clear error, no wrong page, and nothing is left. */
static void every_call_may_fail(void **state)
{
    (void)state;
    static const int ERRORS[] = { 999, CUDA_ERROR_OUT_OF_MEMORY };
    const struct standin_functions *driver = standin_functions();
    for (size_t e = 0; e < sizeof ERRORS / sizeof *ERRORS; e++) {
        int n_failed = 0;
        for (long call = 1;; call++) {
            struct world w;
            struct tutti_error err = { 0 };
            assert_int_equal(open_card(&w, &err), TUTTI_OK);
            driver->fail_call(NULL, call, ERRORS[e]);
            enum tutti_status st = reserve(&w, &err);
            bool is_right = st != TUTTI_OK || pages_go_and_come(&w, 1);
            if (st == TUTTI_OK)
                st = w.be->ops->check(w.be, &err);
            bool has_hit = driver->failed() != NULL;
            assert_int_equal(st != TUTTI_OK, has_hit);
            assert_true(st != TUTTI_OK ? err.status == st && strlen(err.text) > 4 : is_right);
            driver->fail_call(NULL, 0, 0);
            close_card(&w);
            assert_int_equal(driver->bytes(), 0);
            if (!has_hit)
                break;
            n_failed++;
        }
        print_message("# error %d: %d calls fail clearly\n", ERRORS[e], n_failed);
        assert_true(n_failed > 100);
    }
}

/* A driver that fails while it frees leaves nothing either. */
static void freeing_may_fail(void **state)
{
    (void)state;
    static const char *const CALLS[] = { "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuMemFreeHost",
                                         "cuStreamSynchronize", "cuMemFree_v2" };
    for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
        struct world w = world_new();
        assert_true(pages_go_and_come(&w, 3));
        standin_functions()->fail_call(CALLS[c], 1, 999);
        close_card(&w);
        assert_string_equal(standin_functions()->failed(), CALLS[c]);
        standin_functions()->fail_call(NULL, 0, 0);
        assert_int_equal(standin_functions()->bytes(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_to_the_card_comes_back),
        cmocka_unit_test(a_page_is_read_as_it_was),
        cmocka_unit_test(a_written_page_is_there_for_what_follows),
        cmocka_unit_test(no_page_changes_before_the_end),
        cmocka_unit_test(steps_do_not_wait),
        cmocka_unit_test(memory_goes_back),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(freeing_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
