/* Publishing a model in the cache, and its lock, on file systems that lack an operation. The linker replaces the calls
 * (--wrap). */
#include "hub/cache.h"
#include "support/folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Of each call: 0, or the error that it fails with. */
static int atomic_rename_error, publish_error, put_back_error, lock_error;

int __real_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __real_rename(const char *from, const char *to);
int __real_flock(int fd, int operation);
int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __wrap_rename(const char *from, const char *to);
int __wrap_flock(int fd, int operation);

static int with_errno(int error)
{
    errno = error;
    return -1;
}

static void (*after_exchange)(void);

int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (atomic_rename_error)
        return with_errno(atomic_rename_error);
    int result = __real_renameat2(from_fd, from, to_fd, to, flags);
    if (result == 0 && flags == RENAME_EXCHANGE && after_exchange)
        after_exchange();
    return result;
}

/* Only those of the incomplete folder, and of a model that is put back. */
int __wrap_rename(const char *from, const char *to)
{
    bool is_record = strstr(to, HUB_RECORD_FILE);
    int error = is_record                   ? 0
                : strstr(from, "/partial/") ? publish_error
                : strstr(from, "/.")        ? put_back_error
                                            : 0;
    return error ? with_errno(error) : __real_rename(from, to);
}

int __wrap_flock(int fd, int operation)
{
    return lock_error ? with_errno(lock_error) : __real_flock(fd, operation);
}

/* ---- a model ---- */

static const struct hub_name tiny = { .hub = "https://huggingface.co", .model = "org/tiny" };
static struct hub_places places;

static void write_file(const char *parent, const char *name, const char *text)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", parent, name);
    assert_int_equal(hub_make_folders(path, true, NULL), TUTTI_OK);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static bool is_there(const char *parent, const char *name)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", parent, name);
    return access(path, F_OK) == 0;
}

/* The text of the model's file. */
static const char *file_text(const char *parent)
{
    static char text[100];
    char path[500];
    snprintf(path, sizeof path, "%s/config.json", parent);
    FILE *file = fopen(path, "r");
    if (!file)
        return "none";
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* An incomplete folder whose downloads have ended. */
static void make_partial(const char *text)
{
    write_file(places.partial, "config.json", text);
    write_file(places.partial, HUB_STATE_FOLDER "/config.json", "state");
}

static enum tutti_status publish(struct tutti_error *err)
{
    struct hub_file file = { .path = (char[]){ "config.json" }, .n_bytes = 3 };
    const struct hub_file *chosen = &file;
    assert_true(hub_checksum_read(&file.checksum, "0123456789012345678901234567890123456789"));
    const struct hub_listing listing = { .files = &file, .n_files = 1 };
    const struct hub_choice choice = { .files = &chosen, .n_files = 1, .n_bytes = 3 };
    assert_int_equal(hub_record_write(places.partial, &listing, &choice, NULL), TUTTI_OK);
    return hub_publish(&places, err);
}

static int set_up(void **state)
{
    atomic_rename_error = publish_error = put_back_error = lock_error = 0;
    after_exchange = NULL;
    if (make_folder(state) != 0 || setenv("TUTTI_CACHE", folder, 1) != 0 ||
        hub_places_of(&places, &tiny, NULL) != TUTTI_OK)
        return -1;
    make_partial("old");
    return publish(NULL) == TUTTI_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    hub_places_clear(&places);
    return remove_folder(state);
}

/* Whether the model is the only one in its folder: nothing was left there. */
static void assert_complete(const char *text)
{
    struct hub_cached *list;
    size_t n;
    assert_string_equal(file_text(places.complete), text);
    assert_true(is_there(places.complete, HUB_RECORD_FILE));
    assert_false(is_there(places.complete, HUB_STATE_FOLDER));
    assert_int_equal(hub_list(&list, &n, NULL), TUTTI_OK);
    assert_int_equal(n, 1);
    assert_true(list->is_complete);
    free(list);
}

/* ---- tests ---- */

static void a_failed_publish_keeps_the_state_of_the_download(void **state)
{
    (void)state;
    make_partial("new");
    atomic_rename_error = publish_error = EIO;
    assert_int_equal(publish(NULL), TUTTI_E_IO);
    assert_string_equal(file_text(places.partial), "new");
    assert_true(is_there(places.partial, HUB_STATE_FOLDER "/config.json"));
}

static void an_update_takes_the_place_of_the_model(void **state)
{
    (void)state;
    make_partial("new");
    assert_int_equal(publish(NULL), TUTTI_OK);
    assert_complete("new");
    assert_false(is_there(places.partial, ""));
}

static int n_exchanges;

static void assert_locked(void)
{
    int fd = -1;
    assert_string_equal(file_text(places.partial), "old");
    assert_int_equal(hub_lock(&places, NULL, NULL, &fd, NULL), TUTTI_E_BUSY);
    n_exchanges++;
}

/* Between the exchange and the end of its removal, the old model is where another pull looks for files of an
 * incomplete one. */
static void another_pull_waits_until_the_old_model_is_removed(void **state)
{
    int fd = -1;
    (void)state;
    make_partial("new");
    after_exchange = assert_locked;
    assert_int_equal(publish(NULL), TUTTI_OK);
    assert_int_equal(n_exchanges, 1);
    assert_int_equal(hub_lock(&places, NULL, NULL, &fd, NULL), TUTTI_OK);
    assert_false(is_there(places.partial, "config.json"));
    close(fd);
}

/* What file systems and kernels without RENAME_NOREPLACE and RENAME_EXCHANGE answer. */
static const int UNSUPPORTED[] = { ENOSYS, EINVAL, ENOTSUP };
enum { N_UNSUPPORTED = sizeof UNSUPPORTED / sizeof *UNSUPPORTED };

static void an_update_needs_no_exchange(void **state)
{
    (void)state;
    for (int i = 0; i < N_UNSUPPORTED; i++) {
        char text[20];
        snprintf(text, sizeof text, "new %d", i);
        make_partial(text);
        atomic_rename_error = UNSUPPORTED[i];
        assert_int_equal(publish(NULL), TUTTI_OK);
        assert_complete(text);
        assert_false(is_there(places.partial, ""));
        assert_false(is_there(places.aside, ""));
    }
}

static void a_failed_update_keeps_the_model(void **state)
{
    static const struct {
        int atomic_rename, publish;
        const char *said;
    } CASES[] = {
        { EXDEV, 0, "put the whole cache (TUTTI_CACHE) on one file system, and run the command again" },
        { EXDEV, EXDEV, "put the whole cache (TUTTI_CACHE) on one file system" },
        { EACCES, 0, "Permission denied" },
        { EIO, 0, "Input/output error" },
        { ENOSYS, EXDEV, "put the whole cache (TUTTI_CACHE) on one file system" },
        { EINVAL, EIO, "Input/output error" },
    };
    (void)state;
    make_partial("new");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        atomic_rename_error = CASES[i].atomic_rename;
        publish_error = CASES[i].publish;
        assert_int_equal(publish(&err), TUTTI_E_IO);
        assert_non_null(strstr(err.text, CASES[i].said));
        assert_non_null(strstr(err.text, places.partial));
        assert_non_null(strstr(err.text, places.complete));
        assert_complete("old");
        assert_false(is_there(places.aside, ""));
        assert_string_equal(file_text(places.partial), "new");
        assert_true(is_there(places.partial, HUB_STATE_FOLDER "/config.json"));
    }
    atomic_rename_error = publish_error = 0;
    assert_int_equal(publish(NULL), TUTTI_OK);
    assert_complete("new");
}

/* A process was killed after it had moved the old model aside. */
static void a_model_that_was_left_aside_is_not_lost(void **state)
{
    (void)state;
    make_partial("new");
    assert_int_equal(rename(places.complete, places.aside), 0);
    atomic_rename_error = ENOSYS;
    publish_error = EIO;
    assert_int_equal(publish(NULL), TUTTI_E_IO);
    assert_complete("old");
    /* Nor when it cannot be put back. */
    struct tutti_error err = { 0 };
    put_back_error = EIO;
    assert_int_equal(publish(&err), TUTTI_E_IO);
    assert_non_null(strstr(err.text, places.aside));
    assert_non_null(strstr(err.text, "it cannot be renamed back to"));
    assert_string_equal(file_text(places.aside), "old");
    publish_error = put_back_error = 0;
    assert_int_equal(publish(NULL), TUTTI_OK);
    assert_complete("new");
    assert_false(is_there(places.aside, ""));
    /* One that is older than the complete model goes with the next download, or with the model. */
    write_file(places.aside, "config.json", "older");
    assert_int_equal(hub_remove_leftovers(&places, NULL), TUTTI_OK);
    assert_complete("new");
    assert_false(is_there(places.aside, ""));
    write_file(places.aside, "config.json", "older");
    uint64_t n_bytes;
    assert_int_equal(hub_remove(&tiny, &n_bytes, NULL), TUTTI_OK);
    assert_false(is_there(folder, "models"));
}

static void a_folder_without_locks_is_explained(void **state)
{
    static const int ERRORS[] = { ENOSYS, ENOLCK, EOPNOTSUPP, ENOTSUP };
    (void)state;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) {
        struct tutti_error err = { 0 };
        int fd = -1;
        lock_error = ERRORS[i];
        assert_int_equal(hub_lock(&places, NULL, NULL, &fd, &err), TUTTI_E_IO);
        assert_int_equal(fd, -1);
        assert_non_null(strstr(err.text, places.partial));
        assert_non_null(strstr(err.text, strerror(ERRORS[i])));
        assert_non_null(strstr(err.text, "set TUTTI_CACHE to a folder on a local disk"));
        /* An empty folder would be listed as an incomplete model. */
        assert_false(is_there(folder, "partial"));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_failed_publish_keeps_the_state_of_the_download),
        TEST(an_update_takes_the_place_of_the_model),
        TEST(another_pull_waits_until_the_old_model_is_removed),
        TEST(an_update_needs_no_exchange),
        TEST(a_failed_update_keeps_the_model),
        TEST(a_model_that_was_left_aside_is_not_lost),
        TEST(a_folder_without_locks_is_explained),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
