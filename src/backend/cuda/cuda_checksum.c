/* Checksums of the card's memory, computed where it is. */
#include "backend/cuda/cuda.h"
#include "base/hash.h"
#include "base/rng.h"
#include "kernels/cuda/rows_args.h"

#include <string.h>

/* To be raised when a kernel of kernels/cuda gives other bits than before, or the layout of pages changes. */
enum { CUDA_KERNELS_BITS = 2 };

enum { BLOCKS_PER_SM = 4 };

static uint64_t mix_word(uint64_t word, uint64_t index)
{
    return mix64(word ^ mix64(index));
}

/* The sum of the kernel, by the host. */
static uint64_t sum_on_host(struct cuda_backend *cuda, const uint8_t *bytes, size_t n_bytes)
{
    uint64_t words[512], sum = 0;
    for (size_t i = 0; i < n_bytes; i += sizeof words) {
        size_t n = n_bytes - i < sizeof words ? n_bytes - i : sizeof words;
        memset(words, 0, sizeof words);
        cuda_copy_out(cuda, words, bytes + i, n);
        for (size_t k = 0; k * sizeof *words < n; k++)
            sum += mix_word(words[k], i / sizeof *words + k);
    }
    return sum;
}

static uint64_t sum_on_card(struct cuda_backend *cuda, const uint64_t *words, size_t n_bytes)
{
    uint64_t sum = 0;
    struct checksum_args args = { .sum = cuda->checksum_word,
                                  .words = words,
                                  .n_words = n_bytes / sizeof sum,
                                  .n_tail = (int32_t)(n_bytes % sizeof sum) };
    uint64_t n_needed = args.n_words / ROWS_THREADS + 1, n_most = (uint64_t)cuda->n_sms * BLOCKS_PER_SM;
    struct cuda_grid grid = { (int)(n_needed < n_most ? n_needed : n_most), 1, 1, ROWS_THREADS, 0 };
    cuda_fill_zero(cuda, args.sum, sizeof sum);
    cuda_launch(cuda, CUDA_KERNEL_checksum, grid, &args, sizeof args);
    cuda_copy_out(cuda, &sum, args.sum, sizeof sum);
    return sum;
}

uint64_t cuda_checksum_bytes(struct cuda_backend *cuda, const void *bytes, size_t n_bytes)
{
    assert((uintptr_t)bytes % sizeof(uint64_t) == 0);
    if (!cuda->checksum_word)
        cuda->checksum_word = cuda_memory_new(cuda, sizeof *cuda->checksum_word);
    uint64_t sum = cuda->checksum_word ? sum_on_card(cuda, bytes, n_bytes)
                                       : sum_on_host(cuda, bytes, n_bytes);
    return mix64(mix64(sum) ^ n_bytes);
}

void cuda_checksum_release(struct cuda_backend *cuda)
{
    cuda_memory_free(cuda, cuda->checksum_word);
    cuda->checksum_word = NULL;
}

uint64_t cuda_checksum(struct backend *be, struct floats floats, size_t n_floats)
{
    return cuda_checksum_bytes(cuda_of(be), cuda_floats(floats, n_floats), n_floats * sizeof(float));
}

/* How a matrix instruction rounds its sums differs between generations of cards. */
uint64_t cuda_arithmetic_checksum(struct backend *be)
{
    const struct cuda_backend *cuda = cuda_of(be);
    const uint64_t numbers[] = { CUDA_KERNELS_BITS, CUDA_PAGE_TOKENS, (uint64_t)cuda->level,
                                 (uint64_t)cuda->capability };
    return hash64(0, "cuda", 4) ^ hash64(1, numbers, sizeof numbers);
}
