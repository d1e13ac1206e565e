typedef int kernels_empty;
