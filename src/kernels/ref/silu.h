/* The constants of gpt-oss' clamped SwiGLU. */
#ifndef TUTTI_KERNELS_REF_SILU_H
#define TUTTI_KERNELS_REF_SILU_H

#define SILU_CLAMPED_SLOPE 1.702f
#define SILU_CLAMPED_LIMIT 7.0f

#endif
