/* Any bytes as a safetensors file: an error, or tensors that all lie within the bytes. */
#include "checkpoint/safetensors.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct safetensors *file = NULL;
    struct tutti_error err = { 0 };
    if (safetensors_open_memory(&file, bytes, n_bytes, "fuzz", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !file);
        return 0;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < safetensors_n_tensors(file); i++) {
        const struct tensor *t = safetensors_tensor(file, i);
        const uint8_t *data = t->data;
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += data[k]; /* the sanitizer watches */
    }
    safetensors_close(file);
    return sum == 1 ? 0 : 0;
}
