/* The kernels for NVIDIA cards, by the file of this folder that has them: CUDA_FILE(file), then its CUDA_KERNEL(name).
 * Whoever includes this list defines the two. A file is a module of its own for the driver. */
