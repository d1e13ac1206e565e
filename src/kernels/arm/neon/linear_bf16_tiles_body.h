/* The tiles of bf16 weights with NEON: even and odd columns as floats. Included by a file that defines
 * dot_pair() and add_sums(). */
enum { MAX_ROWS = 2 }; /* 16 registers of sums, eight of weights at a time */
#define IS_WIDE          0
#define BF16_TILES       BF16_TILE(1) BF16_TILE(2)
#define BF16_TILES_TABLE tile_1, tile_2

#include "kernels/vector/linear_bf16_body.h"
