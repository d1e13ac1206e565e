/* The down and up projection of a low-rank update (LoRA). */
#include "kernels/ref/ref.h"

void lora_down_ref(float *const *t, const float *a, const float *const *x, int n_rows, int rank, int n)
{
    for (int r = 0; r < n_rows; r++) {
        for (int i = 0; i < rank; i++) {
            float sum[16] = { 0 };
            for (int k = 0; k < n; k++)
                sum[k % 16] = fmaf(a[(size_t)i * (size_t)n + (size_t)k], x[r][k], sum[k % 16]);
            t[r][i] = fold16(sum);
        }
    }
}

void lora_up_ref(float *const *y, const float *b, size_t stride, const float *const *t, int n_rows, int rank,
                 int n)
{
    for (int r = 0; r < n_rows; r++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int i = 0; i < rank; i++)
                sum = fmaf(t[r][i], b[(size_t)i * stride + (size_t)j], sum);
            y[r][j] += sum;
        }
    }
}

void lora_down_half_ref(float *const *t, const uint16_t *a, const float *const *x, int n_rows, int rank,
                        int n)
{
    for (int r = 0; r < n_rows; r++) {
        for (int i = 0; i < rank; i++) {
            float sum[16] = { 0 };
            for (int k = 0; k < n; k++)
                sum[k % 16] = fmaf(half_to_float(a[(size_t)i * (size_t)n + (size_t)k]), x[r][k], sum[k % 16]);
            t[r][i] = fold16(sum);
        }
    }
}

void lora_up_half_ref(float *const *y, const uint16_t *b, size_t stride, const float *const *t, int n_rows,
                      int rank, int n)
{
    for (int r = 0; r < n_rows; r++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int i = 0; i < rank; i++)
                sum = fmaf(t[r][i], half_to_float(b[(size_t)i * stride + (size_t)j]), sum);
            y[r][j] += sum;
        }
    }
}
