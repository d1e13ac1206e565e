/* The values of enum activation (backend.h), which kernels get as an int. */
#ifndef TUTTI_KERNELS_CUDA_ACTIVATIONS_H
#define TUTTI_KERNELS_CUDA_ACTIVATIONS_H

enum {
    CUDA_ACT_SILU,
    CUDA_ACT_GELU_TANH,
    CUDA_ACT_GELU_SIGMOID,
    CUDA_ACT_GELU_ERF,
    CUDA_ACT_RELU,
    CUDA_ACT_SILU_CLAMPED,
};

#endif
