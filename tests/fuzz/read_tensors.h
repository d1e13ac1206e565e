/* Looks at the ends of each tensor of a checkpoint: the sanitizer watches whether they lie within its files. */
#ifndef TUTTI_FUZZ_READ_TENSORS_H
#define TUTTI_FUZZ_READ_TENSORS_H

#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <stdlib.h>

static inline void read_tensors(const struct checkpoint *ck)
{
    for (size_t i = 0; i < checkpoint_n_tensors(ck); i++) {
        const struct tensor *t = checkpoint_tensor(ck, i);
        void *owned;
        const uint8_t *data = tensor_bytes(t, &owned);
        assert(data && t->n_bytes > 0);
        assert(data[0] + data[t->n_bytes - 1] >= 0);
        free(owned);
    }
}

#endif
