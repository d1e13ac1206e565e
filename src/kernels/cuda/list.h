/* The kernels for NVIDIA cards, by the file of this folder that has them: CUDA_FILE(file), then its CUDA_KERNEL(name).
 * Whoever includes this list defines the two. A file is a module of its own for the driver. */

CUDA_FILE(cluster)
CUDA_KERNEL(sum_parts)
CUDA_KERNEL(place_columns)

CUDA_FILE(embed)
CUDA_KERNEL(embed_change)

CUDA_FILE(lora)
CUDA_KERNEL(lora_down_1)
CUDA_KERNEL(lora_down_8)
CUDA_KERNEL(lora_up_1)
CUDA_KERNEL(lora_up_8)
CUDA_KERNEL(lora_up_glu_1)
CUDA_KERNEL(lora_up_glu_8)
CUDA_KERNEL(lora_rows)

CUDA_FILE(route)
CUDA_KERNEL(route_rows)
CUDA_KERNEL(group_rows)
CUDA_KERNEL(sum_experts)

CUDA_FILE(measure)
CUDA_KERNEL(measure_read)
CUDA_KERNEL(measure_half)
CUDA_KERNEL(measure_float)

CUDA_FILE(step)
CUDA_KERNEL(set_pages)

CUDA_FILE(norm)
CUDA_KERNEL(norm_2048)
CUDA_KERNEL(norm_4096)
CUDA_KERNEL(norm_8192)
CUDA_KERNEL(norm_any)

CUDA_FILE(rows)
CUDA_KERNEL(scale_add)
CUDA_KERNEL(scale_add_vectors)
CUDA_KERNEL(scale)
CUDA_KERNEL(scale_vectors)
CUDA_KERNEL(softcap)
CUDA_KERNEL(softcap_vectors)
CUDA_KERNEL(activate)
CUDA_KERNEL(activate_vectors)
CUDA_KERNEL(positions)
CUDA_KERNEL(concat)
CUDA_KERNEL(gather)
CUDA_KERNEL(rope_tables)
CUDA_KERNEL(checksum)

CUDA_FILE(sample)
CUDA_KERNEL(sample_prepare)
CUDA_KERNEL(sample_scan)
CUDA_KERNEL(sample_sums)
CUDA_KERNEL(sample_draw)
