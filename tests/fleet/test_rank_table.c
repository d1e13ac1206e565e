/* Rank tables: what is in them, what is wrong with them, and whether a process is where its table says. */
#include "fleet/rank_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/test_rank_table.XXXXXX";

static int make_file(void **state)
{
    (void)state;
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static enum tutti_status read_text(struct rank_table **out, const char *text, struct tutti_error *err)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    return rank_table_read(out, path, err);
}

static struct rank_table *table(const char *text)
{
    struct rank_table *t = NULL;
    struct tutti_error err = { 0 };
    if (read_text(&t, text, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return t;
}

#define DEVICE(id, ip, rank) "{\"device_id\":\"" id "\",\"device_ip\":\"" ip "\",\"rank_id\":\"" rank "\"}"
#define HEAD(count)                                                                                          \
    "{\"version\":\"1.0\",\"status\":\"completed\",\"server_count\":\"" count "\",\"server_list\":["
#define SERVER(id, devices) "{\"server_id\":\"" id "\",\"device\":[" devices "],\"host_nic_ip\":\"reserve\"}"

static const char TWO[] = HEAD("2")
    SERVER("10.0.0.1", DEVICE("4", "192.168.1.4", "1") "," DEVICE("0", "192.168.1.0", "0")) "," SERVER(
        "node-b", DEVICE("0", "192.168.2.0", "3") "," DEVICE("7", "192.168.2.7", "2")) "]}";

static void files_for_mpirun_follow_the_table(void **state)
{
    (void)state;
    struct rank_table *t = table(TWO);
    struct buf hosts = { 0 }, ranks = { 0 };
    struct tutti_error err = { 0 };
    assert_int_equal(rank_table_n_ranks(t), 4);
    assert_int_equal(rank_table_n_servers(t), 2);
    assert_true(rank_table_hostfile(t, &hosts));
    assert_string_equal(hosts.bytes, "10.0.0.1 slots=2\nnode-b slots=2\n");
    assert_int_equal(rank_table_rankfile(t, 5, &ranks, &err), TUTTI_OK);
    assert_string_equal(ranks.bytes, "rank 0=10.0.0.1 slot=0-1\nrank 1=10.0.0.1 slot=2-4\n"
                                     "rank 2=node-b slot=2-4\nrank 3=node-b slot=0-1\n");
    buf_truncate(&ranks, 0);
    assert_int_equal(rank_table_rankfile(t, 2, &ranks, &err), TUTTI_OK);
    assert_non_null(strstr(ranks.bytes, "rank 1=10.0.0.1 slot=1\n"));
    assert_int_equal(rank_table_rankfile(t, 1, &ranks, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "server_list[0]: 2 ranks on 10.0.0.1, but 1 cores"));
    buf_clear(&hosts);
    buf_clear(&ranks);
    rank_table_free(t);
}

/* Version 1.2 has the host's address next to its name; numbers need not be strings. */
static void the_hosts_address_comes_before_its_name(void **state)
{
    (void)state;
    struct rank_table *t = table(
        "{\"version\":\"1.2\",\"status\":\"completed\",\"server_count\":1,\"server_list\":["
        "{\"server_id\":\"node_0\",\"host_ip\":\"172.16.0.100\",\"device\":["
        "{\"device_id\":0,\"super_device_id\":\"0\",\"rank_id\":0}]}],"
        "\"super_pod_list\":[]}");
    struct buf hosts = { 0 };
    assert_true(rank_table_hostfile(t, &hosts));
    assert_string_equal(hosts.bytes, "172.16.0.100 slots=1\n");
    buf_clear(&hosts);
    rank_table_free(t);
}

static void a_process_must_be_where_its_table_says(void **state)
{
    (void)state;
    char own[256] = "", text[1024];
    struct tutti_error err = { 0 };
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    const char *const here[] = { "127.0.0.1", "localhost", own };
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) {
        snprintf(text, sizeof text, HEAD("1") SERVER("%s", DEVICE("0", "192.168.1.1", "0")) "]}", here[i]);
        struct rank_table *t = table(text);
        assert_int_equal(rank_table_check(t, 0, 1, &err), TUTTI_OK);
        assert_int_equal(rank_table_check(t, 0, 2, &err), TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, "it has 1 ranks, but 2 were started"));
        assert_string_equal(err.param, "rank_table");
        rank_table_free(t);
    }
    const char *const elsewhere[] = { "192.0.2.77", "no-such-host", "2001:db8::1" };
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        snprintf(text, sizeof text, HEAD("1") SERVER("%s", DEVICE("0", "192.168.1.1", "0")) "]}",
                 elsewhere[i]);
        struct rank_table *t = table(text);
        assert_int_equal(rank_table_check(t, 0, 1, &err), TUTTI_E_ARGUMENT);
        snprintf(text, sizeof text, "rank 0 belongs on %s, but runs on %s", elsewhere[i], own);
        assert_non_null(strstr(err.text, text));
        rank_table_free(t);
    }
}

#define ONE(devices) HEAD("1") SERVER("a", devices) "]}"
static const struct {
    const char *text, *words;
} FAULTS[] = {
    { "", "expected" },
    { "[]", "expected an object" },
    { "{}", ": version: nothing, expected a string" },
    { "{\"version\":1.0}", ": version: a number, expected a string" },
    { "{\"version\":\"2.0\"}", ": version: \"2.0\", expected \"1.0\" or \"1.2\"" },
    { "{\"version\":\"1.0\"}", ": status: nothing, expected a string" },
    { "{\"version\":\"1.0\",\"status\":\"initializing\"}",
      ": status: \"initializing\", expected \"completed\"" },
    { "{\"version\":\"1.0\",\"status\":\"completed\"}",
      ": server_count: nothing, expected a number as a string" },
    { "{\"version\":\"1.0\",\"status\":\"completed\",\"server_count\":\"1\"}",
      ": server_list: nothing, expected a list" },
    { HEAD("x") "]}", ": server_count: \"x\", expected a number" },
    { HEAD("-1") "]}", ": server_count: \"-1\", expected a number" },
    { HEAD("99999999999999999999") "]}", ": server_count: \"99999999999999999999\", expected a number" },
    { HEAD("0") "]}", ": server_count: 0, but server_list has 0 servers" },
    { HEAD("2") SERVER("a", DEVICE("0", "1.2.3.4", "0")) "]}",
      ": server_count: 2, but server_list has 1 servers" },
    { HEAD("1") "7]}", ": server_list[0].server_id: an integer in the place of a server" },
    { HEAD("1") "{}]}", ": server_list[0].server_id: nothing, expected a string" },
    { HEAD("1") "{\"server_id\":\"\"}]}", ": server_list[0].server_id: an empty string" },
    { HEAD("1") SERVER("a b", "") "]}", ": server_list[0].server_id: \"a b\", expected the name" },
    { HEAD("1") SERVER("a\\nrank 0=b", "") "]}", ": server_list[0].server_id: " },
    { HEAD("1") SERVER("-x", "") "]}", ": server_list[0].server_id: \"-x\", expected the name" },
    { HEAD("1") "{\"server_id\":\"a\"}]}",
      ": server_list[0].device: nothing, expected a list of at least one device" },
    { HEAD("1") SERVER("a", "") "]}", ": server_list[0].device: an empty list" },
    { HEAD("1") "{\"server_id\":\"a\",\"host_ip\":\"reserve\"}]}",
      ": server_list[0].host_ip: \"reserve\", expected an IP" },
    { HEAD("2") SERVER("a", DEVICE("0", "1.2.3.4", "0")) "," SERVER("a", DEVICE("0", "1.2.3.5", "1")) "]}",
      ": server_list[1].server_id: \"a\" is server_list[0]'s too" },
    { ONE("[]"), ": server_list[0].device[0].device_id: a list in the place of a device" },
    { ONE("{}"), ": server_list[0].device[0].device_id: nothing" },
    { ONE(DEVICE("a", "1.2.3.4", "0")), ": server_list[0].device[0].device_id: \"a\", expected a number" },
    { ONE("{\"device_id\":\"0\",\"rank_id\":true}"),
      ": server_list[0].device[0].rank_id: true, expected a number" },
    { ONE("{\"device_id\":\"0\",\"rank_id\":-1}"),
      ": server_list[0].device[0].rank_id: -1, expected a number" },
    { ONE("{\"device_id\":0.5,\"rank_id\":0}"),
      ": server_list[0].device[0].device_id: a number, expected a number as" },
    { ONE(DEVICE("0", "1.2.3", "0")),
      ": server_list[0].device[0].device_ip: \"1.2.3\", expected an IP address" },
    { ONE(DEVICE("0", "1.2.3.4", "0") "," DEVICE("0", "1.2.3.5", "1")),
      ": server_list[0].device[1].device_id: 0 is device[0]'s too" },
    { ONE(DEVICE("0", "1.2.3.4", "0") "," DEVICE("1", "1.2.3.4", "1")),
      ": server_list[0].device[1].device_ip: 1.2.3.4 is server_list[0].device[0]'s too" },
    { ONE(DEVICE("0", "1.2.3.4", "0") "," DEVICE("1", "1.2.3.5", "0")),
      ": server_list[0].device[1].rank_id: 0 is server_list[0].device[0]'s too" },
    { ONE(DEVICE("0", "1.2.3.4", "0") "," DEVICE("1", "1.2.3.5", "2")),
      ": server_list[0].device[1].rank_id: 2, but there are 2 devices, so ranks are 0 to 1" },
    { ONE(DEVICE("0", "1.2.3.4", "65536")),
      ": server_list[0].device[0].rank_id: 65536, expected a number from 0" },
};

static void a_wrong_table_is_told_its_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
        struct rank_table *t = NULL;
        struct tutti_error err = { 0 };
        enum tutti_status st = read_text(&t, FAULTS[i].text, &err);
        if (st != TUTTI_E_FORMAT || !strstr(err.text, FAULTS[i].words) ||
            strncmp(err.text, path, strlen(path)) != 0)
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", FAULTS[i].text, st, err.text, FAULTS[i].words);
        assert_null(t);
    }
}

static void a_table_that_is_cut_off_is_an_error(void **state)
{
    (void)state;
    char text[sizeof TWO];
    for (size_t n = 0; n < sizeof TWO - 1; n++) {
        struct rank_table *t = NULL;
        struct tutti_error err = { 0 };
        memcpy(text, TWO, n);
        text[n] = '\0';
        assert_int_equal(read_text(&t, text, &err), TUTTI_E_FORMAT);
    }
}

/* Every byte of a table replaced in turn: an error, or a table that holds what it promises. */
static void a_changed_table_is_an_error_or_consistent(void **state)
{
    (void)state;
    static const char BYTES[] = "0129\",:[]{}-.ax";
    char text[sizeof TWO];
    for (size_t n = 0; n < sizeof TWO - 1; n++) {
        for (size_t b = 0; b < sizeof BYTES - 1; b += 1 + n % 3) {
            struct rank_table *t = NULL;
            struct buf ranks = { 0 };
            strcpy(text, TWO);
            text[n] = BYTES[b];
            if (read_text(&t, text, NULL) == TUTTI_OK) {
                assert_int_equal(rank_table_n_ranks(t), 4);
                assert_int_equal(rank_table_rankfile(t, 8, &ranks, NULL), TUTTI_OK);
            }
            buf_clear(&ranks);
            rank_table_free(t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_for_mpirun_follow_the_table),
        cmocka_unit_test(the_hosts_address_comes_before_its_name),
        cmocka_unit_test(a_process_must_be_where_its_table_says),
        cmocka_unit_test(a_wrong_table_is_told_its_field),
        cmocka_unit_test(a_table_that_is_cut_off_is_an_error),
        cmocka_unit_test(a_changed_table_is_an_error_or_consistent),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
