/* What adapters change of the rows of the embedding, by the CPU's operations in their order. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/experts/lora_args.h"

enum { THREADS = 256 };

/* The replaced row of an id; NULL: none. */
DEVICE const float *find_row(const struct embedding_change *change, int32_t id, int n)
{
    int first = 0, last = change->n_ids;
    while (first < last) {
        int middle = first + (last - first) / 2;
        if (change->ids[middle] < id)
            first = middle + 1;
        else
            last = middle;
    }
    bool is_there = first < change->n_ids && change->ids[first] == id;
    return is_there ? change->rows + (int64_t)first * n : NULL;
}

/* Grid x: a row; y: 256 columns. */
KERNEL(embed_change, struct embed_change_args, THREADS)
{
    int row = block_id(), i = block_id_y() * THREADS + thread_id(), adapter = a.adapters[row];
    const struct embedding_change *change = adapter >= 0 ? a.changes[adapter] : NULL;
    if (!change || change->table != a.table || i >= a.n)
        return;
    int64_t at = (int64_t)row * a.n + i;
    if (a.positions[row] < change->n_virtual) {
        a.x[at] = change->virtual_rows[(int64_t)a.positions[row] * a.n + i];
        return;
    }
    int32_t id = a.token_ids[row];
    const float *replaced = find_row(change, id, a.n);
    float x = replaced ? replaced[i] : a.from[at];
    for (int k = 0; k < change->rank; k++)
        x += change->a[(int64_t)id * change->rank + k] * change->b[(int64_t)k * a.n + i];
    a.x[at] = x;
}
