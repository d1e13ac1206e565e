/* Any bytes as an importance matrix, of either form: an error, or entries of finite values. */
#include "offline/imatrix.h"

#include <assert.h>
#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct imatrix *m = NULL;
    struct tutti_error err = { 0 };
    if (imatrix_open_memory(&m, bytes, n_bytes, "fuzz", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !m);
        return 0;
    }
    const struct imatrix_entry *e = imatrix_find(m, "blk.0.attn_q.weight");
    for (int64_t i = 0; e && i < e->n; i++)
        assert(e->values[i] >= 0 && isfinite(e->values[i]));
    imatrix_close(m);
    return 0;
}
