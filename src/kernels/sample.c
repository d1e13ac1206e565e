/* What sampling asks of a row of logits, over the kernels of the table. */
#include "kernels/kernels.h"

#include <math.h>

struct logits_scan logits_scan(const struct kernels *k, const float *x, int n)
{
    struct logits_scan scan = { 0 };
    scan.is_finite = k->scan_max(x, n, &scan.max);
    if (!scan.is_finite)
        return scan;
    while (x[scan.argmax] != scan.max)
        scan.argmax++;
    scan.log_sum_exp = (float)((double)scan.max + log((double)k->sum_exp(x, n, scan.max)));
    return scan;
}

/* A heap whose root is the worst of those kept: the smallest value, of equal ones the highest index. */
struct heap {
    int32_t *ids;
    float *values;
    int n;
};

static bool is_worse(const struct heap *heap, int a, int b)
{
    return heap->values[a] < heap->values[b] ||
           (heap->values[a] == heap->values[b] && heap->ids[a] > heap->ids[b]);
}

static void swap(struct heap *heap, int a, int b)
{
    int32_t id = heap->ids[a];
    float value = heap->values[a];
    heap->ids[a] = heap->ids[b];
    heap->values[a] = heap->values[b];
    heap->ids[b] = id;
    heap->values[b] = value;
}

static void sift_up(struct heap *heap, int i)
{
    for (; i > 0 && is_worse(heap, i, (i - 1) / 2); i = (i - 1) / 2)
        swap(heap, i, (i - 1) / 2);
}

static void sift_down(struct heap *heap, int n)
{
    for (int i = 0;;) {
        int worst = i, left = 2 * i + 1;
        if (left < n && is_worse(heap, left, worst))
            worst = left;
        if (left + 1 < n && is_worse(heap, left + 1, worst))
            worst = left + 1;
        if (worst == i)
            return;
        swap(heap, i, worst);
        i = worst;
    }
}

int top_k(const struct kernels *k, int32_t *ids, float *values, const float *x, int n, int n_best)
{
    struct heap heap = { .ids = ids, .values = values };
    int i = 0;
    for (; i < n && heap.n < n_best; i++) {
        if (isnan(x[i]))
            continue;
        ids[heap.n] = i;
        values[heap.n] = x[i];
        sift_up(&heap, heap.n++);
    }
    /* An equal value with a higher index never replaces, so strictly above is enough. */
    while (i < n && (i = k->find_above(x, i, n, values[0])) < n) {
        ids[0] = i;
        values[0] = x[i++];
        sift_down(&heap, heap.n);
    }
    for (int end = heap.n - 1; end > 0; end--) {
        swap(&heap, 0, end);
        sift_down(&heap, end);
    }
    return heap.n;
}
