/* Work and memory by NUMA node. The threads of a node compute the panels and the attention of the KV heads that are
 * in its memory. On one node this costs nothing. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/memory.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void note(bool is_placed)
{
    static atomic_bool is_told;
    if (!is_placed && !atomic_exchange(&is_told, true))
        log_warn(
            "the system refuses to place memory on NUMA nodes (mbind): weights lie where the threads pack "
            "them, keys and values anywhere; a container needs the capability SYS_NICE for it");
}

void cpu_place(const struct cpu_backend *cpu, int node, void *memory, size_t n_bytes)
{
    if (cpu->n_nodes > 1)
        note(node_place(&team_nodes(cpu->own_team)->nodes[node], memory, n_bytes));
}

void cpu_spread(const struct cpu_backend *cpu, void *memory, size_t n_bytes)
{
    if (cpu->n_nodes > 1)
        note(nodes_interleave(team_nodes(cpu->own_team), memory, n_bytes));
}

void cpu_place_panels(const struct cpu_backend *cpu, struct matrix *m)
{
    m->n_nodes = cpu->n_nodes;
    for (int node = 0; node <= m->n_nodes; node++)
        m->node_begin[node] = (int)team_node_begin(cpu->own_team, m->n_panels, node);
    for (int node = 0; node < m->n_nodes; node++)
        if (cpu_node_panels(m, node) > 0)
            cpu_place(cpu, node, cpu_panel(m, 0, m->node_begin[node]),
                      (size_t)m->n_experts * (size_t)cpu_node_panels(m, node) * m->panel_bytes);
}

void *cpu_memory_shared(const struct cpu_backend *cpu, size_t n_bytes)
{
    void *memory = memory_new(n_bytes);
    if (memory && memory_is_mapped(n_bytes)) {
        cpu_spread(cpu, memory, n_bytes);
        memset(memory, 0, n_bytes); /* backs it */
    }
    return memory;
}

float *cpu_memory_of_thread(const struct cpu_backend *cpu, int thread, size_t n_floats)
{
    size_t page = os_page_bytes();
    if (cpu->n_nodes == 1)
        return cpu_memory_new(n_floats);
    size_t n_bytes;
    if (__builtin_mul_overflow(n_floats, sizeof(float), &n_bytes) || n_bytes > SIZE_MAX - page)
        return NULL;
    n_bytes = (n_bytes + page) / page * page;
    float *memory = aligned_alloc(page, n_bytes);
    if (!memory)
        return NULL;
    cpu_place(cpu, team_node_of(cpu->own_team, thread), memory, n_bytes);
    memset(memory, 0, n_bytes);
    return memory;
}

enum { COPY_FLOATS = 1 << 18 }; /* larger constants are tables, of which a thread reads single rows */

struct floats cpu_alloc_constant(struct backend *be, const float *values, size_t n_floats)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct floats floats = cpu_alloc(be, n_floats);
    if (!floats.buffer)
        return NO_FLOATS;
    memcpy(floats.buffer->data, values, n_floats * sizeof *values);
    for (int node = 0; cpu->n_nodes > 1 && n_floats <= COPY_FLOATS && node < cpu->n_nodes; node++) {
        float *copy = cpu_memory_of_thread(cpu, team_first_thread(cpu->own_team, node), n_floats);
        if (!copy) {
            cpu_dealloc(be, floats);
            return NO_FLOATS;
        }
        memcpy(copy, values, n_floats * sizeof *values);
        floats.buffer->copies[node] = copy;
    }
    return floats;
}

/* ---- work ---- */

static void set_share(struct cpu_share *share, int64_t begin, int64_t end)
{
    atomic_store_explicit(&share->next, (int)begin, memory_order_relaxed);
    share->end = (int)end;
}

void cpu_share_out(struct cpu_backend *cpu, int n)
{
    int n_threads = team_n_threads(cpu->team);
    for (int t = 0; t < n_threads; t++) {
        int64_t begin, end;
        team_range(n, 1, t, n_threads, &begin, &end);
        set_share(&cpu->shares[t], begin, end);
    }
}

void cpu_share_panels(struct cpu_backend *cpu, const struct matrix *m, int n_experts)
{
    for (int node = 0; node < m->n_nodes; node++) {
        int first = team_first_thread(cpu->team, node), last = team_first_thread(cpu->team, node + 1);
        for (int t = first; t < last; t++) {
            int64_t begin, end;
            team_range((int64_t)n_experts * cpu_node_panels(m, node), 1, t - first, last - first, &begin,
                       &end);
            set_share(&cpu->shares[t], begin, end);
        }
    }
}

/* Pieces become smaller towards the end of a share, so that all threads end together. */
bool cpu_share_take(struct cpu_share *share, int most, int *begin, int *end)
{
    int left = share->end - atomic_load_explicit(&share->next, memory_order_relaxed);
    int piece = left / 4;
    piece = piece < 1 ? 1 : piece > most ? most : piece;
    if (left <= 0)
        return false;
    *begin = atomic_fetch_add_explicit(&share->next, piece, memory_order_relaxed);
    *end = *begin + piece < share->end ? *begin + piece : share->end;
    return *begin < *end;
}

int cpu_share_of(const struct cpu_backend *cpu, int thread, int i)
{
    int node = team_node_of(cpu->team, thread), n_threads = team_n_threads(cpu->team);
    int first = team_first_thread(cpu->team, node), last = team_first_thread(cpu->team, node + 1);
    return i < last - first ? first + (thread - first + i) % (last - first)
                            : (last + i - (last - first)) % n_threads;
}
