/* The files of a model, a file or a folder: whether they have changed, and how large they are. */
#ifndef TUTTI_SERVER_MODELS_FILES_H
#define TUTTI_SERVER_MODELS_FILES_H

#include <stdbool.h>
#include <stdint.h>

/* Differs if a file was replaced, added, removed or written. */
uint64_t files_identity(const char *path);

/* Bytes of the files of weights; 0: there are none. */
uint64_t files_weight_bytes(const char *path);

#endif
