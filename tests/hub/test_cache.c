/* Publishing a model in the cache, and its lock, on file systems that lack an operation. The linker replaces the calls
 * (--wrap). */
#include "hub/cache.h"
#include "support/folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Of each call: 0, or the error that it fails with. */
static int atomic_rename_error, publish_error, lock_error;

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

int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return atomic_rename_error ? with_errno(atomic_rename_error)
                               : __real_renameat2(from_fd, from, to_fd, to, flags);
}

/* Only that of the incomplete folder fails. */
int __wrap_rename(const char *from, const char *to)
{
    return publish_error && strstr(from, "/partial/") && !strstr(from, HUB_RECORD_FILE)
               ? with_errno(publish_error)
               : __real_rename(from, to);
}

int __wrap_flock(int fd, int operation)
{
    return lock_error ? with_errno(lock_error) : __real_flock(fd, operation);
}

/* ---- a model ---- */

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
    struct hub_name name = { .hub = "https://huggingface.co", .model = "org/tiny" };
    atomic_rename_error = publish_error = lock_error = 0;
    if (make_folder(state) != 0 || setenv("TUTTI_CACHE", folder, 1) != 0 ||
        hub_places_of(&places, &name, NULL) != TUTTI_OK)
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_failed_publish_keeps_the_state_of_the_download),
        TEST(an_update_takes_the_place_of_the_model),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
