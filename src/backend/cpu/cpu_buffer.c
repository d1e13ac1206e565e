/* Buffers of floats of the CPU backend. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/memory.h"
#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

float *cpu_memory_new(size_t n_floats)
{
    size_t n_bytes;
    if (__builtin_mul_overflow(n_floats > 0 ? n_floats : 1, sizeof(float), &n_bytes) ||
        n_bytes > SIZE_MAX - 63)
        return NULL;
    n_bytes = (n_bytes + 63) / 64 * 64;
    float *memory = aligned_alloc(64, n_bytes);
    if (memory)
        memset(memory, 0, n_bytes);
    return memory;
}

struct floats cpu_alloc(struct backend *be, size_t n_floats)
{
    size_t n_bytes = 0;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    bool fits = !__builtin_mul_overflow(n_floats > 0 ? n_floats : 1, sizeof(float), &n_bytes);
    float *data = fits ? cpu_memory_shared(cpu_of(be), n_bytes) : NULL;
    if (!buffer || !data) {
        free(buffer);
        memory_free(data, n_bytes);
        return NO_FLOATS;
    }
    *buffer = (struct buffer){ .data = data, .n_floats = n_floats };
    return (struct floats){ .buffer = buffer };
}

void cpu_dealloc(struct backend *be, struct floats floats)
{
    (void)be;
    struct buffer *buffer = floats.buffer;
    if (!buffer)
        return;
    assert(floats.offset == 0);
    for (int node = 0; node < NODES_MAX; node++)
        free(buffer->copies[node]);
    memory_free(buffer->data, (buffer->n_floats > 0 ? buffer->n_floats : 1) * sizeof(float));
    free(buffer);
}

/* cluster_alloc() is called even if this rank is out of memory: all ranks call it together. */
struct floats cpu_alloc_shared(struct backend *be, size_t n_floats)
{
    struct cluster *cluster = cpu_of(be)->cluster;
    if (!cluster)
        return cpu_alloc(be, n_floats);
    struct buffer *buffer = malloc(sizeof *buffer);
    float *data = cluster_alloc(cluster, n_floats);
    if (!buffer || !data) {
        free(buffer);
        cluster_dealloc(cluster, data);
        return NO_FLOATS;
    }
    *buffer = (struct buffer){ .data = data, .n_floats = n_floats };
    return (struct floats){ .buffer = buffer };
}

void cpu_dealloc_shared(struct backend *be, struct floats floats)
{
    struct cluster *cluster = cpu_of(be)->cluster;
    if (!cluster || !floats.buffer) {
        cpu_dealloc(be, floats);
        return;
    }
    cluster_dealloc(cluster, floats.buffer->data);
    free(floats.buffer);
}

float *cpu_host_floats(struct floats floats, size_t n)
{
    return cpu_floats(floats, n);
}

void cpu_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats)
{
    (void)be;
    memcpy(cpu_floats(dst, n_floats), src, n_floats * sizeof *src);
}

void cpu_download(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    (void)be;
    memcpy(host, cpu_floats(src, n_floats), n_floats * sizeof *host);
}
