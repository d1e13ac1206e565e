#include "base/system/nodes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses a list of the kernel's, such as "0-3,8". False: malformed. */
static bool read_list(FILE *in, cpu_set_t *set)
{
    unsigned first, last;
    CPU_ZERO(set);
    while (fscanf(in, "%u", &first) == 1) {
        int next = fgetc(in);
        last = first;
        if (next == '-') {
            if (fscanf(in, "%u", &last) != 1)
                return false;
            next = fgetc(in);
        }
        for (unsigned i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, set);
        if (next != ',')
            return next == '\n' || next == EOF;
    }
    return feof(in);
}

static bool read_list_file(const char *folder, const char *name, cpu_set_t *set)
{
    char path[512];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    bool ok = in && read_list(in, set);
    if (in)
        fclose(in);
    return ok;
}

/* False: the folder has no valid lists, or too many nodes. */
static bool find_all(struct nodes *out, const cpu_set_t *allowed, const char *folder)
{
    cpu_set_t online; /* ids of nodes have the form of a list of cores */
    out->n = 0;
    if (!read_list_file(folder, "online", &online))
        return false;
    for (int id = 0; id < CPU_SETSIZE; id++) {
        char name[32];
        struct node node = { .id = id };
        if (!CPU_ISSET((size_t)id, &online))
            continue;
        snprintf(name, sizeof name, "node%d/cpulist", id);
        if (!read_list_file(folder, name, &node.cores))
            return false;
        CPU_AND(&node.cores, &node.cores, allowed);
        node.n_cores = CPU_COUNT(&node.cores);
        if (node.n_cores == 0)
            continue;
        if (out->n == NODES_MAX)
            return false;
        out->nodes[out->n++] = node;
    }
    return out->n > 0;
}

void nodes_find(struct nodes *out, const char *folder)
{
    cpu_set_t allowed;
    if (!folder)
        folder = getenv("TUTTI_NODES");
    nodes_bound(&allowed);
    if (find_all(out, &allowed, folder ? folder : "/sys/devices/system/node"))
        return;
    out->n = 1;
    out->nodes[0] = (struct node){ .n_cores = CPU_COUNT(&allowed), .cores = allowed };
}

void nodes_bound(cpu_set_t *cores)
{
    os_thread_cores(cores);
}

void nodes_bind(const cpu_set_t *cores)
{
    if (CPU_COUNT(cores) > 0)
        os_bind_thread(cores);
}

void nodes_bind_one(const cpu_set_t *cores, int i)
{
    int n = CPU_COUNT(cores), want = n > 0 ? i % n : 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        cpu_set_t one;
        if (!CPU_ISSET(core, cores) || want-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        nodes_bind(&one);
        return;
    }
}

enum { MASK_WORDS = 16, WORD_BITS = 8 * (int)sizeof(unsigned long) }; /* nodes up to number 1023 */

static bool set_policy(bool in_turn, const unsigned long *mask, void *memory, size_t n_bytes)
{
    uintptr_t page = os_page_bytes();
    uintptr_t begin = (uintptr_t)memory & ~(page - 1), end = ((uintptr_t)memory + n_bytes) & ~(page - 1);
    return begin >= end || os_place_memory((void *)begin, end - begin, mask, MASK_WORDS * WORD_BITS, in_turn);
}

static void add_to(unsigned long *mask, int id)
{
    if (id < MASK_WORDS * WORD_BITS)
        mask[id / WORD_BITS] |= 1UL << (id % WORD_BITS);
}

bool node_place(const struct node *node, void *memory, size_t n_bytes)
{
    unsigned long mask[MASK_WORDS] = { 0 };
    add_to(mask, node->id);
    return set_policy(false, mask, memory, n_bytes);
}

bool nodes_interleave(const struct nodes *nodes, void *memory, size_t n_bytes)
{
    unsigned long mask[MASK_WORDS] = { 0 };
    for (int i = 0; i < nodes->n; i++)
        add_to(mask, nodes->nodes[i].id);
    return set_policy(true, mask, memory, n_bytes);
}
