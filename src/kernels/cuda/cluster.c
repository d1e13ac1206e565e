/* What ranks on cards compute between transfers. */
#include "kernels/cuda/cluster_args.h"
#include "kernels/cuda/device.h"

enum { THREADS = 256 };

/* Grid x: 256 elements. */
KERNEL(sum_parts, struct sum_parts_args, THREADS)
{
    int64_t i = (int64_t)block_id() * THREADS + thread_id();
    if (i >= a.n)
        return;
    float own = a.y[i], sum = a.rank == 0 ? own : a.parts[i];
    for (int r = 1; r < a.n_ranks; r++)
        sum += r == a.rank ? own : a.parts[r * a.n + i];
    a.y[i] = sum;
}

/* Grid x: rows; y: 256 columns. */
KERNEL(place_columns, struct place_columns_args, THREADS)
{
    int i = block_id_y() * THREADS + thread_id();
    if (i < a.n_part)
        a.whole[(int64_t)block_id() * a.n_whole + a.begin + i] = a.part[(int64_t)block_id() * a.n_part + i];
}
