/* The kernels of this folder in PTX, as this build has them. */
#ifndef TUTTI_KERNELS_CUDA_TEXTS_H
#define TUTTI_KERNELS_CUDA_TEXTS_H

#include <stdbool.h>

/* The text of a file of list.h for a level: 75, 80 or 90. NULL: not found. */
const char *cuda_text(const char *file, int level);

/* Whether this build has kernels for cards: whether a clang that makes PTX was found. */
bool cuda_text_has_any(void);

/* The error message if it has none. */
#define CUDA_NO_TEXTS                                                                                        \
    "this build has no kernels for cards; install clang 19 (apt-get install clang-19) and build again: "     \
    "./run build"

#endif
