/* Tests of base/system/nodes.h and of teams by node, with folders in the form of the kernel's. tests/numa has the
 * tests that need several nodes. */
#include "base/system/nodes.h"

#include "base/system/team.h"
#include "support/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

/* NULL: the node has no list. */
static void write_node(int id, const char *cores)
{
    char name[32], path[128];
    snprintf(path, sizeof path, "%s/node%d", folder, id);
    mkdir(path, 0700);
    snprintf(name, sizeof name, "node%d/cpulist", id);
    if (cores)
        write_file(name, cores);
}

static int end_test(void **state)
{
    unsetenv("TUTTI_NODES");
    return remove_folder(state);
}

/* Cores that this process may run on, as numbers. */
static int own_cores(int *cores, int most)
{
    cpu_set_t set;
    int n = 0;
    nodes_bound(&set);
    for (int i = 0; i < CPU_SETSIZE && n < most; i++)
        if (CPU_ISSET((size_t)i, &set))
            cores[n++] = i;
    return n;
}

static void nodes_have_the_cores_of_this_process(void **state)
{
    (void)state;
    struct nodes nodes;
    char list[64];
    int cores[2] = { 0, 0 };
    int n = own_cores(cores, 2);
    write_file("online", "0,2-3\n");
    snprintf(list, sizeof list, "%d\n", cores[0]);
    write_node(0, list);
    write_node(2, "1020-1023\n"); /* cores that this process may not run on */
    snprintf(list, sizeof list, "1019,%d-%d\n", cores[n - 1], cores[n - 1]);
    write_node(3, list);
    nodes_find(&nodes, folder);
    assert_int_equal(nodes.n, 2);
    assert_int_equal(nodes.nodes[0].id, 0);
    assert_int_equal(nodes.nodes[1].id, 3);
    assert_int_equal(nodes.nodes[0].n_cores, 1);
    assert_true(CPU_ISSET((size_t)cores[n - 1], &nodes.nodes[1].cores));
}

static void assert_one_node(void)
{
    struct nodes nodes;
    cpu_set_t own;
    nodes_bound(&own);
    nodes_find(&nodes, folder);
    assert_int_equal(nodes.n, 1);
    assert_int_equal(nodes.nodes[0].n_cores, CPU_COUNT(&own));
    assert_true(CPU_EQUAL(&nodes.nodes[0].cores, &own));
}

static void all_cores_are_one_node_where_the_system_does_not_tell(void **state)
{
    (void)state;
    assert_one_node();
    write_file("online", "0-1\n");
    write_node(0, "0\n");
    assert_one_node(); /* node 1 has no list */
    write_node(1, "0-\n");
    assert_one_node();
    write_node(1, "0 1\n");
    assert_one_node();
    write_file("online", "all\n");
    assert_one_node();
    write_file("online", "0-16\n");
    for (int id = 0; id <= NODES_MAX; id++)
        write_node(id, "0-1023\n");
    assert_one_node(); /* more than NODES_MAX */
}

static void write_two_nodes(void)
{
    char list[32];
    int cores[2] = { 0, 0 };
    int n = own_cores(cores, 2);
    write_file("online", "0-1\n");
    for (int id = 0; id < 2; id++) {
        snprintf(list, sizeof list, "%d\n", cores[id < n ? id : n - 1]);
        write_node(id, list);
    }
    setenv("TUTTI_NODES", folder, 1);
}

struct seen {
    cpu_set_t cores[64];
    int n[64];
};

static void look(void *arg, int thread, int n_threads)
{
    struct seen *seen = arg;
    (void)n_threads;
    nodes_bound(&seen->cores[thread]);
    seen->n[thread]++;
}

static struct team *new_team(int n_threads, bool pin, bool by_node)
{
    struct team *team = NULL;
    struct tutti_error err;
    struct team_options options = { .n_threads = n_threads, .pin = pin, .by_node = by_node };
    if (team_new(&team, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return team;
}

static void threads_are_divided_and_bound_by_node(void **state)
{
    (void)state;
    write_two_nodes();
    for (int n_threads = 2; n_threads <= 40; n_threads++) {
        struct team *team = new_team(n_threads, n_threads % 3 == 0, true);
        cpu_set_t before, after;
        struct seen seen = { .n = { 0 } };
        assert_int_equal(team_nodes(team)->n, 2);
        assert_int_equal(team_first_thread(team, 0), 0);
        assert_int_equal(team_first_thread(team, 1), n_threads / 2);
        assert_int_equal(team_first_thread(team, 2), n_threads);
        assert_int_equal(team_node_begin(team, 1000, 1), 1000 * (n_threads / 2) / n_threads);
        assert_int_equal(team_node_begin(team, 1000, 2), 1000);
        nodes_bound(&before);
        for (int i = 0; i < 20; i++)
            team_run_bound(team, look, &seen);
        nodes_bound(&after);
        assert_true(CPU_EQUAL(&before, &after));
        for (int t = 0; t < n_threads; t++) {
            assert_int_equal(team_node_of(team, t), t >= n_threads / 2);
            assert_int_equal(seen.n[t], 20);
        }
        assert_true(CPU_EQUAL(&seen.cores[0], &team_nodes(team)->nodes[0].cores));
        team_free(team);
    }
}

static void a_node_without_threads_is_left_out(void **state)
{
    (void)state;
    write_two_nodes();
    struct team *team = new_team(1, false, true);
    assert_int_equal(team_nodes(team)->n, 1);
    assert_int_equal(team_first_thread(team, 1), 1);
    team_free(team);
    team = new_team(6, false, false); /* not by node */
    assert_int_equal(team_nodes(team)->n, 1);
    assert_int_equal(team_node_of(team, 5), 0);
    team_free(team);
}

static void a_place_outside_of_the_machine_is_refused(void **state)
{
    (void)state;
    struct node far = { .id = 1000 };
    char *memory = aligned_alloc(65536, 65536);
    assert_false(node_place(&far, memory, 65536));
    assert_true(node_place(&far, memory + 1, 4)); /* no whole page: nothing to place */
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nodes_have_the_cores_of_this_process, make_folder, end_test),
        cmocka_unit_test_setup_teardown(all_cores_are_one_node_where_the_system_does_not_tell, make_folder,
                                        end_test),
        cmocka_unit_test_setup_teardown(threads_are_divided_and_bound_by_node, make_folder, end_test),
        cmocka_unit_test_setup_teardown(a_node_without_threads_is_left_out, make_folder, end_test),
        cmocka_unit_test(a_place_outside_of_the_machine_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
