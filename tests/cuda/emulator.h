/* Runs kernels of kernels/cuda on the host, block after block, each thread of a block as a fiber. */
#ifndef TUTTI_TESTS_CUDA_EMULATOR_H
#define TUTTI_TESTS_CUDA_EMULATOR_H

#include "kernels/cuda/device.h"

struct emulated_grid {
    int x, y, z;         /* blocks */
    int n_threads;       /* of a block */
    size_t shared_bytes; /* dynamic */
};

/* The kernel of this name as it is on a level, and as it is on level 80; NULL: not found. */
const struct emulated_kernel *emulated_find_level(const char *name, int level);
const struct emulated_kernel *emulated_find(const char *name);

/* Runs all blocks, in random order. A mistake of the kernel ends the program, with a message that names kernel, block and
 * thread: lanes that meet at different operations, a barrier that not all threads reach, too much shared memory, shared
 * memory written past its end. */
void emulate(const struct emulated_kernel *kernel, const struct emulated_grid *grid, const void *args);

/* From now on, tell(true) is called before each block, and tell(false) when its first thread calls grid_wait(), or ends without. So
 * a test can hide until then what the launch before stores. NULL: neither. */
void emulated_before_wait(void (*tell)(bool is_before));

/* Of the order of blocks and warps: the same seed gives the same order. */
void emulated_seed(uint64_t seed);

#endif
