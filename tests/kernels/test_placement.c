/* Tests of the placement of the CPU backend's memory and threads on a machine with several NUMA nodes (tests/numa
 * emulates such machines and runs this program in them). On a machine with one node the test simulates two: then it
 * checks the division and the bits of results, but not the nodes of pages. */
#include "backend/cpu/cpu.h"
#include "base/log.h"
#include "device.h"
#include "support/folder.h"
#include "support/kv_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_IN = 512, N_OUT = 2000, N_FF = 96, N_EXPERTS = 7, N_ROWS = 3 };
enum { HEAD_DIM = 64, N_KV_HEADS = 5, N_PAGES = 40 };
enum { THREADS_PER_NODE = 2, PAGE = 4096, N_TABLE = 1 << 21 };

static bool is_real; /* the nodes */
static int n_checked;

static struct backend *open_backend(const char *numa)
{
    static const struct attention_shape shape = {
        .n_heads = 2 * N_KV_HEADS, .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .scale = 0.125f
    };
    struct nodes nodes;
    nodes_find(&nodes, NULL);
    struct backend_options options = { .n_threads = THREADS_PER_NODE * nodes.n,
                                       .numa = numa,
                                       .n_layers = 2,
                                       .n_kinds = 1,
                                       .attention = &shape };
    return device_open(&options);
}

/* The id of the page's node; negative: an error number of the kernel, such as -ENOENT. */
static int node_of(const void *address)
{
    void *page = (void *)((uintptr_t)address & ~(uintptr_t)(PAGE - 1));
    int status = -1;
    assert_int_equal(syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0), 0);
    return status;
}

static void assert_on(const struct backend *be, int node, const void *address)
{
    const struct nodes *nodes = team_nodes(((const struct cpu_backend *)be)->own_team);
    if (!is_real || nodes->n == 1)
        return;
    assert_int_equal(node_of(address), nodes->nodes[node].id);
    n_checked++;
}

/* Checks all whole pages within memory: others may be shared with other memory. */
static void assert_all_on(const struct backend *be, int node, const void *memory, size_t n_bytes)
{
    uintptr_t begin = ((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1),
              end = (uintptr_t)memory + n_bytes;
    for (uintptr_t at = begin; at + PAGE <= end; at += PAGE)
        assert_on(be, node, (const void *)at);
}

static float *some_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(i * 7919 % 2003) - 1001) / 1001;
    return x;
}

static struct matrix *new_matrix(struct backend *be, const float *values, int n_out, int n_in, int n_experts,
                                 bool is_gate_up)
{
    struct matrix_part parts[N_EXPERTS];
    int n_parts = n_experts > 0 ? n_experts : 1;
    for (int i = 0; i < n_parts; i++)
        parts[i] = (struct matrix_part){ values + (size_t)i * (size_t)n_out * (size_t)n_in, DTYPE_F32, n_out,
                                         0 };
    struct matrix_source source = { .name = "m",
                                    .parts = parts,
                                    .n_parts = n_parts,
                                    .n_in = n_in,
                                    .type = DTYPE_Q8_0,
                                    .is_gate_up = is_gate_up,
                                    .n_experts = n_experts,
                                    .n_chosen = n_experts > 0 ? 2 : 0 };
    struct matrix *m = NULL;
    struct tutti_error err;
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

static void check_panels(const struct backend *be, const struct matrix *m)
{
    const struct team *team = ((const struct cpu_backend *)be)->own_team;
    int n_threads = team_n_threads(team), n_left = 0;
    assert_int_equal(m->n_nodes, team_nodes(team)->n);
    for (int node = 0; node < m->n_nodes; node++) {
        int n_near = team_first_thread(team, node + 1) - team_first_thread(team, node);
        assert_in_range(cpu_node_panels(m, node), m->n_panels * n_near / n_threads,
                        m->n_panels * n_near / n_threads + 1);
        assert_all_on(be, node, cpu_panel(m, 0, m->node_begin[node]),
                      (size_t)m->n_experts * (size_t)cpu_node_panels(m, node) * m->panel_bytes);
    }
    /* no two panels have the same address */
    uint8_t *is_seen = calloc((size_t)m->n_experts * (size_t)m->n_panels, 1);
    for (int e = 0; e < m->n_experts; e++)
        for (int p = 0; p < m->n_panels; p++)
            is_seen[(size_t)(cpu_panel(m, e, p) - m->panels) / m->panel_bytes]++;
    for (int i = 0; i < m->n_experts * m->n_panels; i++)
        n_left += is_seen[i] != 1;
    assert_int_equal(n_left, 0);
    free(is_seen);
}

struct results {
    float plain[N_ROWS][N_OUT], experts[N_ROWS][N_IN], attention[N_ROWS][2 * N_KV_HEADS * HEAD_DIM];
    uint64_t checksums[3];
    uint8_t *page;
};

/* Computes products, experts and attention, and checks the nodes of all their memory. */
static void compute(struct results *out, const char *numa)
{
    enum { QKV = (2 + 2) * N_KV_HEADS * HEAD_DIM, Y = 2 * N_KV_HEADS * HEAD_DIM };
    struct backend *be = open_backend(numa);
    const struct cpu_backend *cpu = cpu_of(be);
    struct tutti_error err;
    float *values = some_floats((size_t)N_EXPERTS * 2 * N_FF * N_IN + (size_t)N_OUT * N_IN);
    struct matrix *plain = new_matrix(be, values, N_OUT, N_IN, 0, false),
                  *up = new_matrix(be, values + 11, 2 * N_FF, N_IN, N_EXPERTS, true),
                  *down = new_matrix(be, values + 5, N_IN, N_FF, N_EXPERTS, false);
    const struct matrix *all[] = { plain, up, down };
    for (int i = 0; i < 3; i++) {
        check_panels(be, all[i]);
        out->checksums[i] = be->ops->matrix_checksum(be, all[i]);
    }
    assert_int_equal(be->ops->reserve(be, N_ROWS, &err), TUTTI_OK);
    for (int t = 0; t < team_n_threads(cpu->own_team); t++) {
        assert_on(be, team_node_of(cpu->own_team, t), cpu->scratch[t].out);
        assert_on(be, team_node_of(cpu->own_team, t), cpu->attention_scratch[t].q);
    }
    struct kv_memory *kv = NULL;
    assert_int_equal(be->ops->kv_new(be, &kv, N_PAGES, N_PAGES, DTYPE_F16, &err), TUTTI_OK);
    for (int layer = 0; layer < 2; layer++) {
        int n_heads = 0;
        assert_int_equal(kv->layers[layer].n_parts, cpu->n_nodes);
        for (int i = 0; i < kv->layers[layer].n_parts; i++) {
            const struct kv_part *part = &kv->layers[layer].parts[i];
            assert_int_equal(part->first_head, n_heads);
            n_heads += part->n_heads;
            assert_all_on(be, i, part->base, (size_t)N_PAGES * part->page_bytes);
        }
        assert_int_equal(n_heads, N_KV_HEADS);
    }

    struct floats x = device_new(be, values, N_ROWS * N_IN), y = device_new(be, values, N_ROWS * N_OUT),
                  scores = device_new(be, values + 3, N_ROWS * N_EXPERTS),
                  qkv = device_new(be, values + 9, N_ROWS * QKV),
                  attended = device_new(be, values, N_ROWS * Y);
    struct routing routing = { .n_experts = N_EXPERTS, .n_chosen = 2, .scale = 1 };
    struct expert_layer layer = { .routing = &routing, .gate_up = up, .down = down, .activation = ACT_SILU };
    const int32_t table[] = { 7, 3 }, *tables[] = { table };
    const int32_t positions[N_ROWS] = { 14, 15, 16 }, seqs[N_ROWS] = { 0, 0, 0 };
    struct step step = {
        .n_rows = N_ROWS, .n_seqs = 1, .positions = positions, .seqs = seqs, .page_tables = tables
    };
    be->ops->step_begin(be, &step);
    be->ops->linear(be, y, plain, x, N_ROWS);
    be->ops->rope_store(be, qkv, NO_FLOATS, NO_FLOATS, kv, 1);
    be->ops->attention(be, attended, qkv, NO_FLOATS, kv, 1);
    be->ops->step_submit(be);
    be->ops->step_wait(be);
    be->ops->download(be, out->plain[0], y, N_ROWS * N_OUT);
    be->ops->download(be, out->attention[0], attended, N_ROWS * Y);
    be->ops->step_begin(be, &step);
    be->ops->experts(be, y, &layer, x, scores, N_ROWS);
    be->ops->step_submit(be);
    be->ops->step_wait(be);
    be->ops->download(be, out->experts[0], y, N_ROWS * N_IN);
    out->page = malloc(be->ops->kv_page_bytes(be, DTYPE_F16));
    be->ops->kv_copy_page(be, kv, &(struct page_copy){ .src = 7, .dst = 11 });
    kv_read_now(be, kv, 11, out->page);

    be->ops->dealloc(be, x);
    be->ops->dealloc(be, y);
    be->ops->dealloc(be, scores);
    be->ops->dealloc(be, qkv);
    be->ops->dealloc(be, attended);
    be->ops->kv_free(be, kv);
    be->ops->matrix_free(be, plain);
    be->ops->matrix_free(be, up);
    be->ops->matrix_free(be, down);
    be->ops->free(be);
    free(values);
}

static void memory_is_divided_by_node_and_bits_are_those_of_one_node(void **state)
{
    (void)state;
    static struct results off, by_node;
    compute(&off, "off");
    compute(&by_node, "auto");
    assert_memory_equal(off.plain, by_node.plain, sizeof off.plain);
    assert_memory_equal(off.experts, by_node.experts, sizeof off.experts);
    assert_memory_equal(off.attention, by_node.attention, sizeof off.attention);
    assert_memory_equal(off.checksums, by_node.checksums, sizeof off.checksums);
    struct backend *be = open_backend(NULL);
    assert_memory_equal(off.page, by_node.page, be->ops->kv_page_bytes(be, DTYPE_F16));
    be->ops->free(be);
    free(off.page);
    free(by_node.page);
}

static void small_weights_are_copied_to_each_node(void **state)
{
    (void)state;
    struct backend *be = open_backend("auto");
    const struct cpu_backend *cpu = cpu_of(be);
    float *values = some_floats(N_TABLE);
    struct floats small = be->ops->alloc_constant(be, values, 3000),
                  table = be->ops->alloc_constant(be, values, N_TABLE);
    for (int node = 0; node < cpu->n_nodes; node++) {
        const float *copy = cpu_constants(small, 3000, node);
        assert_memory_equal(copy, values, 3000 * sizeof *copy);
        assert_on(be, node, copy);
        assert_on(be, node, copy + 2999);
        for (int other = 0; other < node; other++)
            assert_true(copy != cpu_constants(small, 3000, other));
        assert_ptr_equal(cpu_constants(table, N_TABLE, node), table.buffer->data);
    }
    int n_on[NODES_MAX] = { 0 }; /* pages of the table, which are interleaved, by page or huge page */
    for (size_t i = 0; is_real && i < N_TABLE; i += PAGE / sizeof *values)
        for (int node = 0; node < cpu->n_nodes; node++)
            n_on[node] += node_of(table.buffer->data + i) == team_nodes(cpu->own_team)->nodes[node].id;
    for (int node = 0; is_real && node < cpu->n_nodes; node++)
        assert_true(n_on[node] >= (int)(N_TABLE * sizeof *values / PAGE) / (2 * cpu->n_nodes));
    be->ops->dealloc(be, small);
    be->ops->dealloc(be, table);
    be->ops->free(be);
    free(values);
}

static void look_where(void *arg, int thread, int n_threads)
{
    int *core = arg;
    (void)n_threads;
    core[thread] = sched_getcpu();
}

static void threads_run_on_the_cores_of_their_node(void **state)
{
    (void)state;
    struct backend *be = open_backend("auto");
    const struct team *team = cpu_of(be)->own_team;
    cpu_set_t before;
    nodes_bound(&before);
    be->ops->bind_caller(be);
    for (int i = 0; i < 50; i++) {
        int cores[64];
        be->ops->run(be, look_where, cores);
        assert_true(CPU_ISSET((size_t)cores[0], &team_nodes(team)->nodes[0].cores));
        for (int t = 1; t < team_n_threads(team); t++) { /* the caller may have taken a share */
            int node = team_node_of(team, t);
            assert_true(CPU_ISSET((size_t)cores[t], &team_nodes(team)->nodes[node].cores) ||
                        cores[t] == cores[0]);
        }
    }
    nodes_bind(&before);
    be->ops->free(be);
}

static void another_mode_is_refused(void **state)
{
    (void)state;
    struct backend *be = NULL;
    struct attention_shape shape = { .n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .scale = 1 };
    struct tutti_error err;
    struct backend_options options = { .numa = "on", .n_layers = 1, .n_kinds = 1, .attention = &shape };
    assert_int_equal(backend_open(&be, NULL, &options, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.text, "numa \"on\": expected \"auto\" or \"off\"");
}

/* Simulates two nodes if there is one. */
static int begin_nodes(void **state)
{
    struct nodes nodes;
    char path[128], list[32];
    int last = 0;
    nodes_find(&nodes, NULL);
    is_real = nodes.n > 1;
    if (is_real)
        return 0;
    if (make_folder(state) != 0)
        return -1;
    for (int core = 0; core < CPU_SETSIZE; core++)
        last = CPU_ISSET((size_t)core, &nodes.nodes[0].cores) ? core : last;
    for (int id = -1; id < 2; id++) {
        snprintf(path, sizeof path, "%s/node%d", folder, id);
        if (id >= 0)
            mkdir(path, 0700);
        snprintf(path, sizeof path, id < 0 ? "%s/online" : "%s/node%d/cpulist", folder, id);
        snprintf(list, sizeof list, id < 0 ? "0-1\n" : "0-%d\n", last);
        FILE *out = fopen(path, "w");
        if (!out)
            return -1;
        fputs(list, out);
        fclose(out);
    }
    return setenv("TUTTI_NODES", folder, 1);
}

static int end_nodes(void **state)
{
    print_message("# %d pages checked on %s nodes\n", n_checked, is_real ? "real" : "pretended");
    return is_real ? 0 : remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_divided_by_node_and_bits_are_those_of_one_node),
        cmocka_unit_test(small_weights_are_copied_to_each_node),
        cmocka_unit_test(threads_run_on_the_cores_of_their_node),
        cmocka_unit_test(another_mode_is_refused),
    };
    return cmocka_run_group_tests(tests, begin_nodes, end_nodes);
}
