/* The CUDA backend's internal types and functions, shared by its files.
 *
 * Memory of the card is addressed by ordinary pointers that the host never follows (a 64-bit address on both sides).
 * An operation of a step adds launches to a list; step_submit() hands the list to the card: as one graph if the same
 * list was seen before, else launch by launch. The list is compared byte by byte, so a graph is only used where it does
 * exactly what the operations asked for. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_H
#define TUTTI_BACKEND_CUDA_CUDA_H

#include "backend/backend.h"
#include "base/system/team.h"
#include "kernels/cuda/args.h"

#include <assert.h>

enum { CUDA_PAGE_TOKENS = 16 };

/* CUDA_KERNEL_<name> of each kernel of kernels/cuda/list.h. */
enum cuda_kernel {
#define CUDA_FILE(file)
#define CUDA_KERNEL(name) CUDA_KERNEL_##name,
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
    N_CUDA_KERNELS
};

/* Blocks of a launch, threads of a block (those of KERNEL()), bytes of dynamic shared memory. */
struct cuda_grid {
    int x, y, z, n_threads;
    size_t shared_bytes;
};

struct buffer {
    float *data; /* on the card */
    size_t n_floats;
};

/* One kind of attention; arrays on the card. */
struct cuda_kind {
    struct attention_shape shape;  /* rope_freqs and alibi_slopes: on the card */
    float *cos_sin;                /* [max_rows][rotary_dim]: cos, then sin, of each row's position; ROPE_2D: of both */
};

struct cuda_backend {
    struct backend backend; /* first: the two are cast to each other */
    const struct cuda_driver *driver;
    struct cuda_state *state; /* of cuda.c: context, stream, modules, list of launches, graphs */
    struct team *team;        /* host threads: they pack matrices */
    int level;                /* of the kernels: 75, 80 or 90 */
    int n_sms;                /* multiprocessors */
    size_t shared_bytes;      /* of a block, at most, dynamic */
    int n_layers, n_kinds, page_floats;
    struct cuda_kind *kinds; /* [n_kinds] */
    uint8_t *layer_kinds;    /* [n_layers] */
    int max_rows;            /* as reserved */

    const struct step *step; /* the caller's */
    struct step_rows rows;   /* of the running step, on the card */
    int n_padded_rows;       /* of the running step */
};

static inline struct cuda_backend *cuda_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

static inline struct cuda_kind *cuda_kind_of(const struct cuda_backend *cuda, int layer)
{
    return &cuda->kinds[cuda->layer_kinds[layer]];
}

/* The card's address of a handle. n: floats that are used, which must be in the buffer. NULL: none. */
static inline float *cuda_floats(struct floats floats, size_t n)
{
    if (!floats.buffer)
        return NULL;
    assert(floats.offset <= floats.buffer->n_floats && n <= floats.buffer->n_floats - floats.offset);
    return floats.buffer->data + floats.offset;
}

/* The rows that are computed for n rows of an operation: the bucket, at most max_rows. Buffers of rows have max_rows. */
int cuda_padded_rows(const struct cuda_backend *cuda, int n);

/* Adds a launch to the running step; between steps: launches at once and does not wait. args is copied; its bytes
 * decide whether a step is like an earlier one, so padding must be zero (initialize with { 0 }). A failure is kept
 * (cuda_check()). */
void cuda_launch(struct cuda_backend *cuda, enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                 size_t n_bytes);

/* ---- memory of the card, between steps. A failure of the copies is kept ---- */
void *cuda_memory_new(struct cuda_backend *cuda, size_t n_bytes); /* aligned to 256 bytes, zeroed; NULL: no memory */
void cuda_memory_free(struct cuda_backend *cuda, void *memory);   /* NULL is allowed */
void cuda_copy_in(struct cuda_backend *cuda, void *to, const void *host, size_t n_bytes);
void cuda_copy_out(struct cuda_backend *cuda, void *host, const void *from, size_t n_bytes); /* waits for what was launched */
void cuda_copy_within(struct cuda_backend *cuda, void *to, const void *from, size_t n_bytes); /* in the order of launches */

/* The first failure of the driver since the backend was opened, as a status with its text; TUTTI_OK: none. */
enum tutti_status cuda_check(const struct cuda_backend *cuda, struct tutti_error *err);

#endif
