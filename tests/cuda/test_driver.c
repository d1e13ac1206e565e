/* Opening the CUDA backend where something is missing: the error says what, and what to do. The arguments say which driver it
 * finds (none that can be loaded, an old one, or the stand-in), and the folder that has it. */
#include "backend/backend.h"
#include "cuda/standin.h"
#include "cuda/standin_find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const struct attention_shape SHAPE = { .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .scale = 1 };

static enum tutti_status open_device(struct backend **out, const char *device, struct tutti_error *err)
{
    const struct backend_options options = {
        .n_threads = 1, .n_layers = 1, .n_kinds = 1, .attention = &SHAPE
    };
    return backend_open(out, device, &options, err);
}

static void expect(const char *device, enum tutti_status status, const char *text)
{
    struct backend *be = NULL;
    struct tutti_error err = { 0 };
    assert_int_equal(open_device(&be, device, &err), status);
    assert_null(be);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not contain \"%s\"", err.text, text);
    if (status == TUTTI_E_UNSUPPORTED)
        assert_string_equal(err.param, "device");
}

/* Runs fn in a process of its own, since a process opens the driver once. setting: "NAME=VALUE" of the stand-in. */
static void in_process(const char *setting, void (*fn)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *copy = strdup(setting);
        if (copy && *copy)
            putenv(copy);
        fn();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0)
        fail_msg("with %s: the process ended with %d", setting, status);
}

/* ---- no driver ---- */

static void names_the_library_and_says_what_to_install(void **state)
{
    (void)state;
    expect("cuda", TUTTI_E_UNSUPPORTED, "libcuda.so.1");
    expect("cuda:0", TUTTI_E_UNSUPPORTED, "install NVIDIA's driver");
    expect("cuda", TUTTI_E_UNSUPPORTED, "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    expect("cuda", TUTTI_E_UNSUPPORTED, "DeviceAllow=/dev/nvidia*");
}

static void auto_is_the_cpu(void **state)
{
    (void)state;
    struct backend *be = NULL;
    struct tutti_error err;
    assert_int_equal(open_device(&be, "auto", &err), TUTTI_OK);
    assert_string_equal(be->ops->name, "cpu");
    be->ops->free(be);
}

static void unknown_devices_are_wrong_arguments(void **state)
{
    (void)state;
    expect("abacus", TUTTI_E_ARGUMENT, "expected cpu, cuda, auto");
    expect("cuda:", TUTTI_E_ARGUMENT, "expected cpu, cuda, auto");
    expect("cuda:x", TUTTI_E_ARGUMENT, "expected cpu, cuda, auto");
    expect("cuda:1x", TUTTI_E_ARGUMENT, "expected cpu, cuda, auto");
    expect("cuda:99999999999", TUTTI_E_ARGUMENT, "expected cpu, cuda, auto");
    expect("cpu:1", TUTTI_E_ARGUMENT, "cpu:1");
    expect("auto:1", TUTTI_E_ARGUMENT, "auto:1");
}

/* ---- an old driver ---- */

static void names_the_missing_function(void **state)
{
    (void)state;
    expect("cuda", TUTTI_E_UNSUPPORTED, "has no cuDriverGetVersion: the driver is too old");
    expect("cuda", TUTTI_E_UNSUPPORTED, "11.4 or later");
}

/* ---- the stand-in ---- */

static void expect_no_card(void)
{
    expect("cuda", TUTTI_E_UNSUPPORTED, "the driver finds no card");
}

static void expect_old_version(void)
{
    expect("cuda", TUTTI_E_UNSUPPORTED, "the driver is for CUDA 11.3, expected 11.4 or later");
}

static void expect_old_card(void)
{
    expect("cuda", TUTTI_E_UNSUPPORTED, "Emulator 0 has compute capability 7.0, expected 7.5 or higher");
}

static void expect_no_such_card(void)
{
    expect("cuda:2", TUTTI_E_UNSUPPORTED, "cuda:2: the driver finds 2 cards");
}

static void expect_invalid_ptx(void)
{
    standin_functions()->fail_call("cuModuleLoadDataEx", 1, 218);
    expect("cuda", TUTTI_E_UNSUPPORTED, "(218): the driver is too old for the kernels of this build");
}

static void expect_no_compiler(void)
{
    standin_functions()->fail_call("cuModuleLoadDataEx", 1, 221);
    expect("cuda", TUTTI_E_UNSUPPORTED, "(221): the driver's libnvidia-ptxjitcompiler.so.1 is missing");
}

static void expect_failed_start(void)
{
    standin_functions()->fail_call("cuInit", 1, 999);
    expect("cuda", TUTTI_E_UNSUPPORTED,
           "starting the driver: CUDA_ERROR_999 (999): an error of the stand-in; check nvidia-smi");
    struct backend *be = NULL; /* a failure is not remembered */
    struct tutti_error err;
    assert_int_equal(open_device(&be, "cuda", &err), TUTTI_OK);
    be->ops->free(be);
}

static void opens(void)
{
    struct backend *be = NULL;
    struct tutti_error err = { 0 };
    if (open_device(&be, getenv("TEST_DEVICE_NAME") ? getenv("TEST_DEVICE_NAME") : "cuda", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_string_equal(be->ops->name, "cuda");
    be->ops->free(be);
    assert_int_equal(standin_functions()->bytes(), 0);
}

/* Launches a kernel. Returns whether it may begin before the one before it ends. */
static bool overlaps(void)
{
    struct backend *be = NULL;
    struct tutti_error err = { 0 };
    if (open_device(&be, "cuda", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    struct floats x = be->ops->alloc(be, 4);
    (void)be->ops->checksum(be, x, 4);
    be->ops->dealloc(be, x);
    be->ops->free(be);
    long n_plain = standin_functions()->calls("cuLaunchKernel"),
         n_with = standin_functions()->calls("cuLaunchKernelEx");
    assert_int_equal(n_plain + n_with, 1);
    return n_with == 1;
}

static void overlap(void)
{
    assert_true(overlaps());
}

static void follow_one_another(void)
{
    assert_false(overlaps());
}

static void says_what_the_card_lacks(void **state)
{
    (void)state;
    in_process("TUTTI_STANDIN_CARDS=0", expect_no_card);
    in_process("TUTTI_STANDIN_VERSION=11030", expect_old_version);
    in_process("TUTTI_STANDIN_LEVEL=70", expect_old_card);
    in_process("TUTTI_STANDIN_CARDS=2", expect_no_such_card);
    in_process("", expect_invalid_ptx);
    in_process("", expect_no_compiler);
    in_process("", expect_failed_start);
}

static void opens_cards_of_every_level(void **state)
{
    (void)state;
    in_process("TUTTI_STANDIN_LEVEL=75", opens);
    in_process("TUTTI_STANDIN_LEVEL=80", opens);
    in_process("TUTTI_STANDIN_LEVEL=86", opens);
    in_process("TUTTI_STANDIN_LEVEL=90", opens);
    in_process("TUTTI_STANDIN_LEVEL=120", opens);
    in_process("TUTTI_STANDIN_CARDS=3", opens);
    in_process("TEST_DEVICE_NAME=cuda:0", opens);
    in_process("TEST_DEVICE_NAME=auto", opens);
}

static void opens_with_the_oldest_driver(void **state)
{
    (void)state;
    in_process("TUTTI_STANDIN_VERSION=11040", opens);
    setenv("TUTTI_STANDIN_LEVEL", "90", 1);
    in_process("TUTTI_STANDIN_VERSION=11080", opens); /* with the kernels of level 80 */
    unsetenv("TUTTI_STANDIN_LEVEL");
}

static void launches_overlap_where_cards_and_graphs_can(void **state)
{
    (void)state;
    in_process("TUTTI_STANDIN_LEVEL=80", follow_one_another);
    in_process("TUTTI_STANDIN_LEVEL=90", overlap);
    setenv("TUTTI_STANDIN_LEVEL", "90", 1);
    in_process("TUTTI_STANDIN_VERSION=12020", follow_one_another);
    unsetenv("TUTTI_STANDIN_LEVEL");
}

static bool set_home(const char *home)
{
    return home ? setenv("HOME", home, 1) == 0 : unsetenv("HOME") == 0;
}

static void keeps_compiled_kernels_without_a_home(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_driver.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/cuda", folder);
    assert_true(set_home(NULL));
    unsetenv("CUDA_CACHE_PATH");
    setenv("CACHE_DIRECTORY", folder, 1);
    opens();
    assert_non_null(getenv("CUDA_CACHE_PATH"));
    assert_string_equal(getenv("CUDA_CACHE_PATH"), path);
    rmdir(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest broken[] = {
        cmocka_unit_test(names_the_library_and_says_what_to_install),
        cmocka_unit_test(auto_is_the_cpu),
        cmocka_unit_test(unknown_devices_are_wrong_arguments),
    };
    const struct CMUnitTest old[] = { cmocka_unit_test(names_the_missing_function) };
    const struct CMUnitTest standin[] = {
        cmocka_unit_test(says_what_the_card_lacks),
        cmocka_unit_test(opens_cards_of_every_level),
        cmocka_unit_test(opens_with_the_oldest_driver),
        cmocka_unit_test(launches_overlap_where_cards_and_graphs_can),
        cmocka_unit_test(keeps_compiled_kernels_without_a_home),
    };
    const char *which = argc > 1 ? argv[1] : "standin", *path = getenv("LD_LIBRARY_PATH");
    /* The loader reads the path when a program starts; meson adds folders to it. */
    if (argc > 2 && (!path || strcmp(path, argv[2]) != 0)) {
        setenv("LD_LIBRARY_PATH", argv[2], 1);
        execv("/proc/self/exe", argv);
    }
    if (strcmp(which, "broken") == 0)
        return cmocka_run_group_tests(broken, NULL, NULL);
    if (strcmp(which, "old") == 0)
        return cmocka_run_group_tests(old, NULL, NULL);
    return cmocka_run_group_tests(standin, NULL, NULL);
}
