/* The two halves of a low-rank update. */
#include "kernels/ref/ref.h"

void lora_down_ref(float *t, const float *a, const float *x, int rank, int n)
{
    for (int i = 0; i < rank; i++, a += n) {
        float sum[16] = { 0 };
        for (int k = 0; k < n; k++)
            sum[k % 16] = fmaf(a[k], x[k], sum[k % 16]);
        t[i] = fold16(sum);
    }
}

void lora_up_ref(float *y, const float *b, size_t stride, const float *t, int rank, int n)
{
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < rank; i++)
            sum = fmaf(t[i], b[(size_t)i * stride + (size_t)j], sum);
        y[j] += sum;
    }
}

void lora_down_half_ref(float *t, const uint16_t *a, const float *x, int rank, int n)
{
    for (int i = 0; i < rank; i++, a += n) {
        float sum[16] = { 0 };
        for (int k = 0; k < n; k++)
            sum[k % 16] = fmaf(half_to_float(a[k]), x[k], sum[k % 16]);
        t[i] = fold16(sum);
    }
}

void lora_up_half_ref(float *y, const uint16_t *b, size_t stride, const float *t, int rank, int n)
{
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < rank; i++)
            sum = fmaf(t[i], half_to_float(b[(size_t)i * stride + (size_t)j]), sum);
        y[j] += sum;
    }
}
