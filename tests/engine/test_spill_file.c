/* The spill file: complete pages are restored, anything else is refused. */
#include "base/rng.h"
#include "engine/kv/spill_file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE_BYTES = 5000, N_SLOTS = 70, SLOT_BYTES = 8192, SEGMENT_BYTES = 4096 + 32 * SLOT_BYTES };
enum { T = 16 }; /* tokens of a page */
static const struct spill_identity IDENTITY = { 1, 2, 3, 4, PAGE_BYTES, T };
/* two whole segments and six slots of a third */
static const uint64_t FILE_BYTES = 4096 + 2 * SEGMENT_BYTES + 4096 + 6 * SLOT_BYTES;

struct folder {
    char path[64], file[96];
};

static int make_folder(void **state)
{
    struct folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    strcpy(f->path, "/tmp/tutti-spill-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->file, sizeof f->file, "%s/kv-pages", f->path);
    *state = f;
    return 0;
}

static int remove_folder(void **state)
{
    struct folder *f = *state;
    unlink(f->file);
    rmdir(f->file);
    rmdir(f->path);
    free(f);
    return 0;
}

static struct spill_file *open_file(const struct folder *f, uint64_t n_bytes,
                                    const struct spill_identity *identity, const char *started_anew)
{
    struct spill_file *file = NULL;
    struct tutti_error err = { 0 };
    char why[128];
    if (spill_file_open(&file, f->path, n_bytes, identity, why, sizeof why, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_string_equal(why, started_anew);
    return file;
}

static void refuses_to_open(const char *dir, uint64_t n_bytes, enum tutti_status status, const char *words)
{
    struct spill_file *file = NULL;
    struct tutti_error err = { 0 };
    char why[128];
    assert_int_equal(spill_file_open(&file, dir, n_bytes, &IDENTITY, why, sizeof why, &err), status);
    assert_null(file);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

/* What record id holds, with ids [n_ids] of a page. */
static struct spill_record record_of(uint64_t id, int32_t *ids, int n_ids)
{
    for (int i = 0; i < n_ids; i++)
        ids[i] = (int32_t)mix64(id * 100 + (uint64_t)i);
    return (struct spill_record){ .id = id, .parent = id > 1 ? id - 1 : SPILL_ROOT, .ids = ids };
}

static void make_page(uint64_t id, uint8_t *page)
{
    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t)mix64(id << 32 ^ i);
}

static void write_page(struct spill_file *file, int32_t slot, uint64_t id)
{
    uint8_t page[PAGE_BYTES];
    int32_t ids[T];
    struct spill_record r = record_of(id, ids, T);
    struct tutti_error err;
    make_page(id, page);
    if (spill_file_write(file, slot, &r, page, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

/* The slot's id; 0: it holds nothing. What is believed must be right; a page that is not must be refused: then *n_refused. */
static uint64_t check_slot(struct spill_file *file, int32_t slot, int *n_refused)
{
    struct spill_record records[SPILL_SEGMENT_SLOTS], want;
    int32_t ids[SPILL_SEGMENT_SLOTS * T], want_ids[T];
    uint8_t page[PAGE_BYTES], want_page[PAGE_BYTES];
    bool is_end;
    int32_t first = slot / SPILL_SEGMENT_SLOTS * SPILL_SEGMENT_SLOTS, n = spill_file_n_slots(file) - first;
    n = n < SPILL_SEGMENT_SLOTS ? n : SPILL_SEGMENT_SLOTS;
    assert_int_equal(spill_file_load(file, first, n, records, ids, &is_end, NULL), TUTTI_OK);
    const struct spill_record *r = &records[slot - first];
    if (r->id == 0)
        return 0;
    want = record_of(r->id, want_ids, T);
    assert_int_equal(r->parent, want.parent);
    assert_memory_equal(r->ids, want.ids, sizeof want_ids);
    if (spill_file_read(file, slot, r, page, NULL) != TUTTI_OK) {
        ++*n_refused;
        return 0;
    }
    make_page(r->id, want_page);
    assert_memory_equal(page, want_page, PAGE_BYTES);
    return r->id;
}

static void what_was_written_comes_back_after_a_restart(void **state)
{
    struct folder *f = *state;
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    int n_refused = 0;
    assert_int_equal(spill_file_n_slots(file), N_SLOTS);
    for (int32_t slot = 0; slot < N_SLOTS; slot += 3)
        write_page(file, slot, (uint64_t)slot + 1);
    write_page(file, 3, 100); /* in the place of another */
    spill_file_close(file);
    file = open_file(f, FILE_BYTES, &IDENTITY, "");
    for (int32_t slot = 0; slot < N_SLOTS; slot++)
        assert_int_equal(check_slot(file, slot, &n_refused), slot % 3 ? 0 : slot == 3 ? 100 : slot + 1);
    assert_int_equal(n_refused, 0);
    struct stat info;
    assert_int_equal(stat(f->file, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_true((uint64_t)info.st_size <= FILE_BYTES);
    spill_file_close(file);
}

static void another_size_keeps_what_fits(void **state)
{
    struct folder *f = *state;
    int n_refused = 0;
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    for (int32_t slot = 0; slot < N_SLOTS; slot++)
        write_page(file, slot, (uint64_t)slot + 1);
    spill_file_close(file);
    file = open_file(f, 4096 + SEGMENT_BYTES + 4096 + 2 * SLOT_BYTES, &IDENTITY, "");
    assert_int_equal(spill_file_n_slots(file), 34);
    for (int32_t slot = 0; slot < 34; slot++)
        assert_int_equal(check_slot(file, slot, &n_refused), slot + 1);
    spill_file_close(file);
    file = open_file(f, FILE_BYTES, &IDENTITY, "");
    for (int32_t slot = 0; slot < N_SLOTS; slot++)
        assert_int_equal(check_slot(file, slot, &n_refused) > 0, slot < 34);
    spill_file_close(file);
    refuses_to_open(f->path, 2 * 4096 + SLOT_BYTES - 1, TUTTI_E_LIMIT, "needs 16384");
}

static void pages_of_another_model_are_given_up(void **state)
{
    struct folder *f = *state;
    static const char *const WORDS[] = { "its pages were computed with other weights",
                                         "its pages were computed by another model",
                                         "its pages were computed with other arithmetic",
                                         "its pages have another KV type", "its pages have another KV type" };
    for (size_t i = 0; i < 5; i++) {
        int n_refused = 0;
        struct spill_identity other = IDENTITY;
        ((uint64_t *)&other)[i] += 1;
        struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
        write_page(file, 0, 7);
        assert_int_equal(check_slot(file, 0, &n_refused), 7);
        spill_file_close(file);
        file = open_file(f, FILE_BYTES, &other, WORDS[i]);
        assert_int_equal(check_slot(file, 0, &n_refused), 0);
        spill_file_close(file);
        unlink(f->file);
    }
}

static void one_process_at_a_time_has_it(void **state)
{
    struct folder *f = *state;
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    refuses_to_open(f->path, FILE_BYTES, TUTTI_E_BUSY, "another process has it open");
    spill_file_close(file);
    spill_file_close(open_file(f, FILE_BYTES, &IDENTITY, ""));
}

static void links_and_strange_files_are_refused(void **state)
{
    struct folder *f = *state;
    char link[96], slash[100], other[96], below[128];
    snprintf(link, sizeof link, "%s-link", f->path);
    snprintf(slash, sizeof slash, "%s/", link);
    snprintf(other, sizeof other, "%s-other", f->path);
    assert_int_equal(symlink(f->path, link), 0);
    refuses_to_open(link, FILE_BYTES, TUTTI_E_IO, "not a link");
    refuses_to_open(slash, FILE_BYTES, TUTTI_E_IO, "not a link");
    unlink(link);
    assert_int_equal(symlink(other, f->file), 0);
    refuses_to_open(f->path, FILE_BYTES, TUTTI_E_IO, "not a link");
    assert_int_equal(access(other, F_OK), -1);
    unlink(f->file);
    int fd = open(other, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(linkat(AT_FDCWD, other, AT_FDCWD, f->file, 0), 0);
    refuses_to_open(f->path, FILE_BYTES, TUTTI_E_IO, "without further names");
    refuses_to_open(other, FILE_BYTES, TUTTI_E_IO, "expected a folder");
    unlink(other);
    unlink(f->file);
    assert_int_equal(mkfifo(f->file, 0600), 0);
    refuses_to_open(f->path, FILE_BYTES, TUTTI_E_IO, "expected a regular file");
    unlink(f->file);
    assert_int_equal(mkdir(f->file, 0700), 0);
    refuses_to_open(f->path, FILE_BYTES, TUTTI_E_IO, "s a directory");
    rmdir(f->file);
    snprintf(below, sizeof below, "%s/a/b", f->path);
    refuses_to_open(below, FILE_BYTES, TUTTI_E_IO, "creating the folder");
}

static void what_others_could_write_to_is_not_believed(void **state)
{
    struct folder *f = *state;
    int n_refused = 0;
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    write_page(file, 0, 7);
    spill_file_close(file);
    assert_int_equal(chmod(f->file, 0620), 0);
    file = open_file(f, FILE_BYTES, &IDENTITY, "other users could write to it");
    assert_int_equal(check_slot(file, 0, &n_refused), 0);
    spill_file_close(file);
}

/* Bytes that something else has written there. */
static void overwrite(const struct folder *f, int64_t at, const void *bytes, size_t n_bytes)
{
    int fd = open(f->file, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n_bytes, at), n_bytes);
    close(fd);
}

/* Records of large pages take several blocks of a segment. */
static void pages_of_any_number_of_tokens_come_back(void **state)
{
    struct folder *f = *state;
    enum { N = 40, MOST = 1000 };
    static const int SIZES[] = { 1, 5, 17, 64, MOST };
    static int32_t ids[SPILL_SEGMENT_SLOTS * MOST], want_ids[MOST];
    for (size_t k = 0; k < sizeof SIZES / sizeof *SIZES; k++) {
        int n_ids = SIZES[k];
        struct spill_identity identity = IDENTITY;
        identity.page_tokens = (uint64_t)n_ids;
        struct spill_file *file = open_file(f, 2 * FILE_BYTES, &identity,
                                            k > 0 ? "its pages have another number of tokens" : "");
        assert_true(spill_file_n_slots(file) >= N);
        uint8_t page[PAGE_BYTES], want_page[PAGE_BYTES];
        for (int32_t slot = 0; slot < N; slot++) {
            struct spill_record r = record_of((uint64_t)slot + 1, ids, n_ids);
            make_page(r.id, page);
            assert_int_equal(spill_file_write(file, slot, &r, page, NULL), TUTTI_OK);
        }
        spill_file_close(file);
        file = open_file(f, 2 * FILE_BYTES, &identity, "");
        for (int32_t first = 0; first < N; first += SPILL_SEGMENT_SLOTS) {
            struct spill_record records[SPILL_SEGMENT_SLOTS];
            bool is_end;
            int n = N - first < SPILL_SEGMENT_SLOTS ? N - first : SPILL_SEGMENT_SLOTS;
            assert_int_equal(spill_file_load(file, first, n, records, ids, &is_end, NULL), TUTTI_OK);
            for (int i = 0; i < n; i++) {
                struct spill_record want = record_of((uint64_t)(first + i) + 1, want_ids, n_ids);
                assert_int_equal(records[i].id, want.id);
                assert_int_equal(records[i].parent, want.parent);
                assert_memory_equal(records[i].ids, want.ids, (size_t)n_ids * sizeof *ids);
                struct tutti_error err = { 0 };
                if (spill_file_read(file, first + i, &want, page, &err) != TUTTI_OK)
                    fail_msg("%d tokens: %s", n_ids, err.text);
                make_page(want.id, want_page);
                assert_memory_equal(page, want_page, PAGE_BYTES);
                want_ids[n_ids - 1]++;
                assert_int_equal(spill_file_read(file, first + i, &want, page, NULL), TUTTI_E_FORMAT);
            }
        }
        spill_file_close(file);
    }
}

static void a_damaged_page_or_record_is_refused_and_forgotten(void **state)
{
    struct folder *f = *state;
    /* a byte of: record 1's id, ids, checksum; page 1, first and last byte; and a byte of nothing */
    static const struct {
        int64_t at;
        bool is_seen_at_once, is_damage;
    } PLACES[] = { { 4096 + 128, true, true },
                   { 4096 + 128 + 20, true, true },
                   { 4096 + 255, true, true },
                   { 8192 + SLOT_BYTES, false, true },
                   { 8192 + SLOT_BYTES + PAGE_BYTES - 1, false, true },
                   { 8192 + SLOT_BYTES + PAGE_BYTES, false, false } };
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        int n_refused = 0;
        uint8_t bytes[2];
        struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
        for (int32_t slot = 0; slot < 3; slot++)
            write_page(file, slot, (uint64_t)slot + 1);
        int fd = open(f->file, O_RDONLY);
        assert_int_equal(pread(fd, bytes, 1, PLACES[i].at), 1);
        close(fd);
        bytes[0] ^= 1;
        overwrite(f, PLACES[i].at, bytes, 1);
        assert_int_equal(check_slot(file, 0, &n_refused), 1);
        assert_int_equal(check_slot(file, 1, &n_refused), PLACES[i].is_damage ? 0 : 2);
        assert_int_equal(check_slot(file, 2, &n_refused), 3);
        assert_int_equal(n_refused, PLACES[i].is_damage && !PLACES[i].is_seen_at_once);
        assert_int_equal(check_slot(file, 1, &n_refused), PLACES[i].is_damage ? 0 : 2);
        assert_int_equal(n_refused, PLACES[i].is_damage && !PLACES[i].is_seen_at_once); /* not again */
        spill_file_close(file);
        unlink(f->file);
    }
}

static void a_record_in_another_place_is_not_believed(void **state)
{
    struct folder *f = *state;
    int n_refused = 0;
    uint8_t block[128];
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    write_page(file, 0, 1);
    int fd = open(f->file, O_RDONLY);
    assert_int_equal(pread(fd, block, sizeof block, 4096), sizeof block);
    close(fd);
    overwrite(f, 4096 + 128, block, sizeof block);
    assert_int_equal(check_slot(file, 1, &n_refused), 0);
    spill_file_close(file);
    unlink(f->file); /* nor is it in another file */
    file = open_file(f, FILE_BYTES, &IDENTITY, "");
    write_page(file, 1, 2);
    overwrite(f, 4096, block, sizeof block);
    assert_int_equal(check_slot(file, 0, &n_refused), 0);
    assert_int_equal(check_slot(file, 1, &n_refused), 2);
    assert_int_equal(n_refused, 0);
    spill_file_close(file);
}

static void random_damage_is_never_believed(void **state)
{
    struct folder *f = *state;
    int n_refused = 0, n_lost = 0, n_anew = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        char why[128];
        struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
        for (int32_t slot = 0; slot < N_SLOTS; slot++)
            write_page(file, slot, (uint64_t)slot + 1);
        spill_file_close(file);
        uint64_t r = mix64(seed), end = 4096 + 2 * SEGMENT_BYTES;
        /* half of them into header and tables, where they hurt most */
        int64_t at = (int64_t)(mix64(r) % end);
        if (r % 4 == 1)
            at %= 128;
        if (r % 4 == 3)
            at = 4096 + at % 4096 + (r % 8 == 3 ? SEGMENT_BYTES : 0);
        uint8_t junk[5000];
        size_t n = r % 3 == 0 ? 1 : r % 3 == 1 ? 64 : sizeof junk;
        for (size_t i = 0; i < n; i++)
            junk[i] = r % 5 == 0 ? 0 : (uint8_t)mix64(r + i);
        if (r % 7 == 0)
            assert_int_equal(truncate(f->file, at), 0);
        else
            overwrite(f, at, junk, n);
        struct tutti_error err = { 0 };
        file = NULL;
        assert_int_equal(spill_file_open(&file, f->path, FILE_BYTES, &IDENTITY, why, sizeof why, &err),
                         TUTTI_OK);
        n_anew += why[0] != '\0';
        for (int32_t slot = 0; slot < N_SLOTS; slot++)
            n_lost += check_slot(file, slot, &n_refused) == 0;
        write_page(file, 5, 6); /* it goes on */
        assert_int_equal(check_slot(file, 5, &n_refused), 6);
        spill_file_close(file);
        unlink(f->file);
    }
    assert_true(n_refused > 0 && n_anew > 0 && n_lost > n_refused);
}

static void a_limit_of_the_file_is_an_error_and_costs_no_other_page(void **state)
{
    struct folder *f = *state;
    int n_refused = 0;
    sigset_t set, old;
    struct rlimit limit, small;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
    write_page(file, 0, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){ .rlim_cur = 8192 + 2 * SLOT_BYTES + 100, .rlim_max = limit.rlim_max };
    pthread_sigmask(SIG_BLOCK, &set, &old);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_page(file, 1, 2);
    uint8_t page[PAGE_BYTES];
    int32_t ids[T];
    struct spill_record r = record_of(3, ids, T);
    struct tutti_error err;
    make_page(3, page);
    assert_int_equal(spill_file_write(file, 2, &r, page, &err), TUTTI_E_IO);
    assert_non_null(strstr(err.text, "writing: File too large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    while (sigtimedwait(&set, NULL, &(struct timespec){ 0 }) > 0 || errno == EINTR) {}
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(check_slot(file, 0, &n_refused), 1);
    assert_int_equal(check_slot(file, 1, &n_refused), 2);
    assert_int_equal(check_slot(file, 2, &n_refused), 0);
    write_page(file, 2, 3);
    assert_int_equal(check_slot(file, 2, &n_refused), 3);
    spill_file_close(file);
}

/* Writes pages of ever higher ids round and round until it is killed. */
static void write_for_ever(const struct folder *f, uint64_t first_id)
{
    struct spill_file *file = NULL;
    char why[128];
    uint8_t page[PAGE_BYTES];
    if (spill_file_open(&file, f->path, FILE_BYTES, &IDENTITY, why, sizeof why, NULL) != TUTTI_OK || why[0])
        _exit(1);
    for (uint64_t id = first_id;; id++) {
        int32_t ids[T];
        struct spill_record r = record_of(id, ids, T);
        make_page(id, page);
        if (spill_file_write(file, (int32_t)(id % N_SLOTS), &r, page, NULL) != TUTTI_OK)
            _exit(1);
    }
}

static void killed_at_any_moment_it_holds_whole_pages_alone(void **state)
{
    struct folder *f = *state;
    uint64_t id = 1;
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (child == 0)
            write_for_ever(f, id);
        usleep((useconds_t)(5000 + mix64((uint64_t)round) % 9000));
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        int n_refused = 0, n_empty = 0;
        struct spill_file *file = open_file(f, FILE_BYTES, &IDENTITY, "");
        for (int32_t slot = 0; slot < N_SLOTS; slot++) {
            uint64_t found = check_slot(file, slot, &n_refused);
            id = found >= id ? found + 1 : id;
            n_empty += found == 0;
        }
        assert_int_equal(n_refused, 0); /* its records were written after their pages */
        if (id > N_SLOTS)
            assert_in_range(n_empty, 0, 1); /* the one that it was about to write */
        spill_file_close(file);
    }
    assert_true(id > 100);
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(what_was_written_comes_back_after_a_restart),
        WITH_FOLDER(another_size_keeps_what_fits),
        WITH_FOLDER(pages_of_another_model_are_given_up),
        WITH_FOLDER(one_process_at_a_time_has_it),
        WITH_FOLDER(links_and_strange_files_are_refused),
        WITH_FOLDER(what_others_could_write_to_is_not_believed),
        WITH_FOLDER(pages_of_any_number_of_tokens_come_back),
        WITH_FOLDER(a_damaged_page_or_record_is_refused_and_forgotten),
        WITH_FOLDER(a_record_in_another_place_is_not_believed),
        WITH_FOLDER(random_damage_is_never_believed),
        WITH_FOLDER(a_limit_of_the_file_is_an_error_and_costs_no_other_page),
        WITH_FOLDER(killed_at_any_moment_it_holds_whole_pages_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
