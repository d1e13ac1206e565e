/* What emulator.c and emulated_warpgroup.c know of each other. */
#ifndef TUTTI_TESTS_CUDA_EMULATOR_PARTS_H
#define TUTTI_TESTS_CUDA_EMULATOR_PARTS_H

#include "cuda/emulator.h"

enum {
    EMULATED_THREADS = 1024,
    EMULATED_WARPS = EMULATED_THREADS / WARP,
    EMULATED_SHARED = 227 << 10, /* bytes of a block on level 90, static and dynamic */
};

/* Ends the program with a message that names kernel, block and thread. */
_Noreturn void emulated_fail(const char *what);
unsigned emulated_draw(unsigned n);
/* Whether the running lane is the first of its warp to go on after all lanes met. */
bool emulated_is_first_lane(void);
/* Whether the block has not called grid_wait() yet, of which a test is told. */
bool emulated_is_early(void);
/* Bytes of dynamic shared memory of this launch. */
size_t emulated_dynamic_bytes(void);
/* Goes on, after all lanes of the warp came here, when is_over(what, number). */
void emulated_wait(const char *name, bool (*is_over)(const void *what, uint32_t number), const void *what,
                   uint32_t number);

/* Of emulated_warpgroup.c: before a block, after it, and at the end of one of its threads. */
void emulated_asynchronous_begin(int n_threads);
void emulated_asynchronous_end(void);
void emulated_asynchronous_thread_end(void);
/* Carries out one of the copies that are on their way. False: there is none. */
bool emulated_asynchronous_go_on(void);

#endif
