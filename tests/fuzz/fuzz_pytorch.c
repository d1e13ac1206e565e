/* Any bytes as a file of torch.save(), an archive or of the old kind: an error, or tensors that can all be read. */
#include "checkpoint/pytorch/pytorch.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    if (tensor_set_open_memory(&file, &PYTORCH_FORMAT, bytes, n_bytes, "fuzz", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !file);
        return 0;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < file->n; i++) {
        const struct tensor *t = &file->tensors[i];
        void *owned;
        const uint8_t *data = tensor_bytes(t, &owned);
        assert(data && t->n_bytes <= n_bytes); /* a view shows no element twice */
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += data[k]; /* the sanitizer watches */
        free(owned);
    }
    tensor_set_close(file);
    return sum == 1 ? 0 : 0;
}
