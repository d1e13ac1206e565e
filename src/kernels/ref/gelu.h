/* The constants of GELU's two approximations. 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), so the slope
 * is 2 sqrt(2 / pi). */
#ifndef TUTTI_KERNELS_REF_GELU_H
#define TUTTI_KERNELS_REF_GELU_H

#define GELU_TANH_SLOPE    1.5957691216f
#define GELU_TANH_CUBE     0.044715f
#define GELU_SIGMOID_SLOPE 1.702f

#endif
