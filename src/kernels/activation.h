/* The activation functions of feed-forward layers, which backends give to their kernels by number. */
#ifndef TUTTI_KERNELS_ACTIVATION_H
#define TUTTI_KERNELS_ACTIVATION_H

enum activation {
    ACT_SILU,         /* with a gate */
    ACT_GELU_TANH,    /* with or without a gate: GELU's approximation by tanh */
    ACT_GELU_SIGMOID, /* without a gate: x * sigmoid(1.702 x) */
    ACT_GELU_ERF,     /* without a gate: exact GELU */
    ACT_RELU,         /* without a gate */
    ACT_SILU_CLAMPED, /* with a gate: silu_clamped_mul of kernels.h */
};

#endif
