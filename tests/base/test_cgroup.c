/* Limits of control groups, in a machine made of files. */
#include "base/system/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/tutti-cgroup-%d", (int)getpid());
    return mkdir(root, 0700);
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* path: from the root on; its folders are made. */
static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *out = fopen(full, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    fclose(out);
}

static void without_groups_there_is_no_limit(void **state)
{
    (void)state;
    assert_true(cgroup_memory_left(root) == UINT64_MAX);
    assert_int_equal(cgroup_cores(root), 0);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.current", "12345\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_true(cgroup_memory_left(root) == UINT64_MAX);
    assert_int_equal(cgroup_cores(root), 0);
}

/* A unit of systemd with MemoryMax= and CPUQuota=, in a slice with less of both left. */
static void the_tightest_group_counts(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/tutti.slice/tutti.service\n");
    put("/sys/fs/cgroup/tutti.slice/tutti.service/memory.max", "8000000\n");
    put("/sys/fs/cgroup/tutti.slice/tutti.service/memory.current", "1000000\n");
    put("/sys/fs/cgroup/tutti.slice/tutti.service/memory.stat",
        "anon 5\ninactive_file 300000\nactive_file 200000\n");
    put("/sys/fs/cgroup/tutti.slice/tutti.service/cpu.max", "250000 100000\n");
    assert_true(cgroup_memory_left(root) == 7500000);
    assert_int_equal(cgroup_cores(root), 3);
    put("/sys/fs/cgroup/tutti.slice/memory.max", "9000000\n");
    put("/sys/fs/cgroup/tutti.slice/memory.current", "8500000\n");
    put("/sys/fs/cgroup/tutti.slice/cpu.max", "100000 100000\n");
    assert_true(cgroup_memory_left(root) == 500000);
    assert_int_equal(cgroup_cores(root), 1);
    put("/sys/fs/cgroup/tutti.slice/memory.current", "9500000\n");
    assert_true(cgroup_memory_left(root) == 0);
}

static void version_1_has_a_hierarchy_for_each_controller(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/batch/job\n0::/\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "96\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "96\n");
    put("/sys/fs/cgroup/cpu/batch/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/batch/job/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "400000\n");
    put("/sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_memory_left(root) == 4000);
    assert_int_equal(cgroup_cores(root), 4);
}

/* In a container the group's path is often the host's: what is mounted is the container's group. */
static void a_path_that_is_not_there_is_the_mounted_group(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods/pod7/c1\n");
    put("/sys/fs/cgroup/memory.max", "1000\n");
    put("/sys/fs/cgroup/memory.current", "400\n");
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_true(cgroup_memory_left(root) == 600);
    assert_int_equal(cgroup_cores(root), 1);
}

static void odd_files_are_no_limits(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "nonsense\n0::/../../etc\n");
    put("/sys/fs/cgroup/memory.max", "-\n");
    put("/sys/fs/cgroup/cpu.max", "5 0\n");
    assert_true(cgroup_memory_left(root) == UINT64_MAX);
    assert_int_equal(cgroup_cores(root), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define GROUP_TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
        GROUP_TEST(without_groups_there_is_no_limit),
        GROUP_TEST(the_tightest_group_counts),
        GROUP_TEST(version_1_has_a_hierarchy_for_each_controller),
        GROUP_TEST(a_path_that_is_not_there_is_the_mounted_group),
        GROUP_TEST(odd_files_are_no_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
