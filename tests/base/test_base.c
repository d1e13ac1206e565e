/* Tests of src/base: errors, conversions, buffers, the thread team. */
#include "base/buf.h"
#include "base/dtype.h"
#include "base/files/mapping.h"
#include "base/files/path_name.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/system/team.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void a_long_error_is_cut_between_characters(void **state)
{
    (void)state;
    char text[1024] = "";
    for (int i = 0; i < 300; i++)
        strcat(text, "é");
    for (int shift = 0; shift < 2; shift++) {
        struct tutti_error err;
        assert_int_equal(error_set(&err, TUTTI_E_IO, "%s%s", shift ? "x" : "", text), TUTTI_E_IO);
        size_t n = strlen(err.text);
        assert_true(n >= sizeof err.text - 3);
        assert_true((unsigned char)err.text[n - 1] == 0xA9); /* the second byte of é */
    }
}

static void an_error_takes_its_own_text_as_argument(void **state)
{
    (void)state;
    struct tutti_error err;
    error_set(&err, TUTTI_E_IO, "inner");
    error_set(&err, TUTTI_E_FORMAT, "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
    error_prefix(&err, "file %d", 3);
    assert_string_equal(err.text, "file 3: outer: inner");
}

static void an_error_quotes_characters_not_commands(void **state)
{
    (void)state;
    struct tutti_error err;
    error_set(&err, TUTTI_E_FORMAT, "a\x1B[2Jb\nc\x7F\xC2\x9B \xC2\xA0\xE4\xBD\xA0 \xFFz\xE4\xBD");
    assert_string_equal(err.text, "a?[2Jb?c??? \xC2\xA0\xE4\xBD\xA0 ?z??");
    error_set_param(&err, TUTTI_E_FORMAT, "x", "\t%s", "\r");
    assert_string_equal(err.text, "??");
    error_prefix(&err, "\x80");
    assert_string_equal(err.text, "?: ??");
    error_set_param(&err, TUTTI_E_ARGUMENT, "a.\xC3", "x");
    assert_string_equal(err.param, "a.?");
}

static void every_half_survives_the_way_to_float_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        bool is_nan = (h & 0x7C00) == 0x7C00 && (h & 0x3FF);
        assert_int_equal(float_to_half(half_to_float((uint16_t)h)), is_nan ? h | 0x200 : h);
    }
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(float_to_half(1.0f + 0x1p-11f), 0x3C00);     /* a tie, down to even */
    assert_int_equal(float_to_half(1.0f + 3 * 0x1p-11f), 0x3C02); /* a tie, up to even */
    assert_int_equal(float_to_half(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);
    assert_int_equal(float_to_half(65519.0f), 0x7BFF);
    assert_int_equal(float_to_half(65520.0f), 0x7C00);
    assert_int_equal(float_to_half(0x1p-25f), 0);
    assert_int_equal(float_to_half(0x1.8p-25f), 1);
    assert_int_equal(float_to_bf16(bits_float(0x3F808000)), 0x3F80);
    assert_int_equal(float_to_bf16(bits_float(0x3F818000)), 0x3F82);
    assert_int_equal(float_to_bf16(bits_float(0x7F800001)), 0x7FC0);
}

static void block_sizes_refuse_what_does_not_fit(void **state)
{
    (void)state;
    size_t n;
    assert_true(dtype_bytes(DTYPE_Q4_0, 64, &n) && n == 36);
    assert_false(dtype_bytes(DTYPE_Q4_0, 33, &n));
    assert_false(dtype_bytes(DTYPE_F32, -1, &n));
    assert_false(dtype_bytes(DTYPE_F64, INT64_MAX, &n));
    enum dtype dtype;
    assert_true(dtype_find("Q8_0", &dtype) && dtype == DTYPE_Q8_0);
    assert_false(dtype_find("q9_9", &dtype));
}

static void a_formatted_text_grows_the_buffer_where_it_must(void **state)
{
    (void)state;
    char text[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t n_before = 0; n_before < 70; n_before++)
        for (size_t n = 0; n < 140; n++) {
            struct buf buf = { 0 };
            assert_true(buf_add(&buf, text, n_before)); /* the first size is 64 */
            assert_true(buf_printf(&buf, "%.*s", (int)n, text));
            assert_int_equal(buf.n_bytes, n_before + n);
            assert_int_equal(strlen(buf.bytes), buf.n_bytes);
            assert_true(buf.n_bytes < buf.capacity);
            buf_clear(&buf);
        }
}

static void a_buffer_grows_and_stays_terminated(void **state)
{
    (void)state;
    struct buf buf = { 0 };
    for (int i = 0; i < 1000; i++)
        assert_true(buf_printf(&buf, "%d,", i));
    assert_int_equal(buf.n_bytes, 3890);
    assert_int_equal(buf.bytes[buf.n_bytes], 0);
    buf_truncate(&buf, 4);
    assert_string_equal(buf.bytes, "0,1,");
    buf_clear(&buf);
}

static void a_path_has_the_name_of_its_last_part(void **state)
{
    (void)state;
    static const char *const CASES[][2] = {
        { "a", "a" }, { "a/b.c", "b.c" }, { "/a/b//", "b" }, { "/", "" },         { "..a/...", "..." },
        { "", "" },   { ".", "tmp" },     { "./", "tmp" },   { "/dev/..", ".." }, { "/usr/bin/..//", "usr" },
    };
    char before[4096], name[64];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir("/tmp"), 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        path_name(name, sizeof name, CASES[i][0]);
        assert_string_equal(name, CASES[i][1]);
    }
    assert_int_equal(chdir(before), 0);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    struct mapping map;
    struct tutti_error err;
    assert_int_equal(mapping_open(&map, "/nowhere/at all", &err), TUTTI_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/at all"));
    assert_int_equal(mapping_open(&map, "/", &err), TUTTI_E_FORMAT);
}

static void write_text(const char *path, const char *text, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

/* The text of a pointer, as `git clone` without Git LFS leaves it. */
static void a_git_lfs_pointer_is_told_from_the_file_it_stands_for(void **state)
{
    (void)state;
    static const char POINTER[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:61a7b147390c64585d6c3543dd6fc636906c9af3865a5548f27f31aee1d4c8e2\nsize 4241003\n";
    struct mapping map;
    struct tutti_error err;
    char path[64], large[2048] = "";
    snprintf(path, sizeof path, "/tmp/tutti-pointer-%d", (int)getpid());
    write_text(path, POINTER, strlen(POINTER));
    assert_int_equal(mapping_open(&map, path, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "Git LFS pointer"));
    assert_non_null(strstr(err.text, "git lfs pull"));
    memcpy(large, POINTER, strlen(POINTER)); /* a large file that begins so is a file */
    write_text(path, large, sizeof large);
    assert_int_equal(mapping_open(&map, path, &err), TUTTI_OK);
    mapping_close(&map);
    write_text(path, POINTER, 20); /* and so is a short text */
    assert_int_equal(mapping_open(&map, path, &err), TUTTI_OK);
    mapping_close(&map);
    unlink(path);
}

static void a_pipe_is_refused_without_waiting(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-test-XXXXXX", path[64];
    struct mapping map;
    struct tutti_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mapping_open(&map, path, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "not a regular file"));
    unlink(path);
    rmdir(folder);
}

/* Of a file of 3 pages and 5 bytes every piece is forgotten, from every border. */
static void forgotten_bytes_are_read_again(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 3 * page + 5;
    char path[] = "/tmp/tutti-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct mapping map;
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    assert_true(!map.bytes && map.n_bytes == 0);
    mapping_forget(&map, NULL, 0);
    mapping_close(&map);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    assert_int_equal(map.n_bytes, n);
    const size_t borders[] = { 0, 1, page - 1, page, page + 1, 2 * page, 3 * page, n };
    for (int a = 0; a < 8; a++) {
        for (int b = a; b < 8; b++) {
            mapping_forget(&map, map.bytes + borders[a], borders[b] - borders[a]);
            assert_memory_equal(map.bytes, bytes, n);
        }
    }
    mapping_close(&map);
    assert_null(map.bytes);
    free(bytes);
    unlink(path);
}

static void shares_cover_everything_once(void **state)
{
    (void)state;
    for (int n = 0; n < 100; n++) {
        for (int n_threads = 1; n_threads < 8; n_threads++) {
            int64_t next = 0;
            for (int t = 0; t < n_threads; t++) {
                int64_t begin, end;
                team_range(n, 16, t, n_threads, &begin, &end);
                assert_int_equal(begin, next);
                assert_true(end >= begin && (begin % 16 == 0 || begin == n));
                next = end;
            }
            assert_int_equal(next, n);
        }
    }
}

struct work {
    struct team *team;
    atomic_int n;
    int seen[64];
};

static void count(void *arg, int thread, int n_threads)
{
    struct work *work = arg;
    assert_in_range(thread, 0, n_threads - 1);
    atomic_fetch_add(&work->n, 1);
    work->seen[thread]++; /* nobody else runs this thread's share */
}

static void every_thread_runs_each_piece_of_work(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 9; n_threads++) { /* also more than there are cores */
        struct work work = { 0 };
        assert_int_equal(team_new(&work.team, &(struct team_options){ .n_threads = n_threads }, NULL),
                         TUTTI_OK);
        for (int i = 0; i < 200; i++) {
            team_run(work.team, count, &work);
            assert_int_equal(atomic_load(&work.n), (i + 1) * n_threads);
            if (i % 50 == 0)
                usleep(3000); /* long enough for the workers to fall asleep */
        }
        for (int t = 0; t < n_threads; t++)
            assert_int_equal(work.seen[t], 200);
        team_free(work.team);
    }
    assert_int_equal(team_new(&(struct team *){ NULL }, &(struct team_options){ .n_threads = 1000 }, NULL),
                     TUTTI_E_ARGUMENT);
}

static void do_nothing(void *arg, int thread, int n_threads)
{
    (void)arg;
    (void)thread;
    (void)n_threads;
}

/* With more threads than cores, some of these teams end while a worker is between seeing a share and taking it: its share was
 * run by the caller, and what it finds instead is the end. A worker that misses it is waited for forever. */
static void a_team_ends_while_a_worker_looks_for_its_share(void **state)
{
    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct team *team;
        assert_int_equal(team_new(&team, &(struct team_options){ .n_threads = 6 }, NULL), TUTTI_OK);
        for (int run = 0; run <= i % 7; run++)
            team_run(team, do_nothing, NULL);
        team_free(team);
    }
}

/* ---- a worker that gets no core ---- */

static int held_pipe[2], release_pipe[2];

static void hold(int signal)
{
    char byte = 0;
    (void)signal;
    if (write(held_pipe[1], &byte, 1) != 1 || read(release_pipe[0], &byte, 1) != 1)
        abort();
}

static void note_thread(void *arg, int thread, int n_threads)
{
    sigset_t set;
    (void)n_threads;
    ((pthread_t *)arg)[thread] = pthread_self();
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* threads of a team take no signals */
    if (thread == 0)
        usleep(2000); /* else the caller has taken the other share before the worker has looked */
}

static void the_caller_runs_the_share_of_a_thread_that_does_not_come(void **state)
{
    (void)state;
    struct sigaction action = { .sa_handler = hold }, before;
    struct work work = { 0 };
    pthread_t threads[2] = { pthread_self(), pthread_self() };
    char byte = 0;
    assert_int_equal(pipe(held_pipe) | pipe(release_pipe), 0);
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    assert_int_equal(team_new(&work.team, &(struct team_options){ .n_threads = 2 }, NULL), TUTTI_OK);
    while (pthread_equal(threads[1], pthread_self()))
        team_run(work.team, note_thread, threads);
    assert_int_equal(pthread_kill(threads[1], SIGUSR1), 0);
    assert_int_equal(read(held_pipe[0], &byte, 1), 1); /* from now on the worker does nothing */
    for (int i = 1; i <= 100; i++) {
        team_run(work.team, count, &work);
        assert_int_equal(atomic_load(&work.n), 2 * i);
    }
    team_run(work.team, note_thread, threads);
    assert_true(pthread_equal(threads[1], pthread_self()));
    assert_int_equal(write(release_pipe[1], &byte, 1), 1);
    while (pthread_equal(threads[1], pthread_self()))
        team_run(work.team, note_thread, threads);
    team_free(work.team);
    sigaction(SIGUSR1, &before, NULL);
    for (int i = 0; i < 2; i++) {
        close(held_pipe[i]);
        close(release_pipe[i]);
    }
}

static void a_checksum_sees_every_byte_its_place_and_the_length(void **state)
{
    (void)state;
    uint8_t bytes[200] = { 0 };
    for (size_t n = 0; n <= 130; n++) {
        uint64_t sum = hash64(7, bytes, n);
        assert_true(sum == hash64(7, bytes, n));
        assert_true(sum != hash64(8, bytes, n));
        assert_true(sum != hash64(7, bytes, n + 1)); /* zeros count */
        for (size_t i = 0; i < n; i++) {
            bytes[i] ^= 0x10;
            assert_true(sum != hash64(7, bytes, n));
            bytes[i] ^= 0x10;
        }
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    uint64_t sum = hash64(0, bytes, sizeof bytes);
    uint8_t swapped[sizeof bytes]; /* runs of 64 bytes in another order */
    memcpy(swapped, bytes + 64, 64);
    memcpy(swapped + 64, bytes, 64);
    memcpy(swapped + 128, bytes + 128, sizeof bytes - 128);
    assert_true(sum != hash64(0, swapped, sizeof swapped));
    assert_true(sum == UINT64_C(0x7c64f3b17285e96a)); /* of the Python package xxhash */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_error_is_cut_between_characters),
        cmocka_unit_test(an_error_takes_its_own_text_as_argument),
        cmocka_unit_test(an_error_quotes_characters_not_commands),
        cmocka_unit_test(every_half_survives_the_way_to_float_and_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(block_sizes_refuse_what_does_not_fit),
        cmocka_unit_test(a_buffer_grows_and_stays_terminated),
        cmocka_unit_test(a_formatted_text_grows_the_buffer_where_it_must),
        cmocka_unit_test(a_path_has_the_name_of_its_last_part),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_git_lfs_pointer_is_told_from_the_file_it_stands_for),
        cmocka_unit_test(a_pipe_is_refused_without_waiting),
        cmocka_unit_test(a_checksum_sees_every_byte_its_place_and_the_length),
        cmocka_unit_test(forgotten_bytes_are_read_again),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(every_thread_runs_each_piece_of_work),
        cmocka_unit_test(a_team_ends_while_a_worker_looks_for_its_share),
        cmocka_unit_test(the_caller_runs_the_share_of_a_thread_that_does_not_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
