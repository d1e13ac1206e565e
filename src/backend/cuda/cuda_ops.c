/* The table of the CUDA backend's operations, and the parts that have scratch memory. */
#include "backend/cuda/adapters/cuda_lora.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/experts/cuda_experts.h"
#include "backend/cuda/ranks/cuda_cluster.h"

#define TYPE(dtype) (UINT64_C(1) << (dtype))
const struct backend_caps CUDA_CAPS = {
    .page_tokens = CUDA_PAGE_TOKENS,
    .kv_types = TYPE(DTYPE_F16) | TYPE(DTYPE_BF16) | TYPE(DTYPE_F32) | TYPE(DTYPE_I8),
    .can_capture = true,
    .padded_rows = cuda_bucket,

    /* ---- matrices: cuda_matrix.c ---- */
    .weight_types = TYPE(DTYPE_F64) - 1, /* all types of weights */
    .packed_bytes = cuda_packed_bytes,
};

const struct backend_ops CUDA_OPS = {
    .name = "cuda",

    /* ---- memory and steps: cuda.c, cuda_memory.c, cuda_step.c ---- */
    .free = cuda_free,
    .alloc = cuda_alloc,
    .dealloc = cuda_dealloc,
    .alloc_constant = cuda_alloc_constant,
    .upload = cuda_upload,
    .fetch = cuda_fetch,
    .download = cuda_download,
    .reserve = cuda_reserve,
    .reserve_tables = cuda_reserve_tables,
    .memory_left = cuda_memory_left,
    .describe = cuda_describe,
    .step_begin = cuda_step_begin,
    .step_submit = cuda_step_submit,
    .step_wait = cuda_step_wait,
    .step_is_done = cuda_step_is_done,
    .check = cuda_check_operation,
    .measure = cuda_measure,
    .bind_caller = cuda_bind_caller,
    .run = cuda_run,
    .share_threads = cuda_share_threads,

    /* ---- several ranks: cuda_cluster.c ---- */
    .alloc_shared = cuda_alloc_shared,
    .dealloc_shared = cuda_dealloc_shared,
    .reduce = cuda_reduce,
    .reduce_rows = cuda_reduce_rows,
    .all_gather_rows = cuda_all_gather_rows,
    .collect = cuda_collect,

    /* ---- matrices and linear layers: cuda_matrix.c, cuda_linear.c ---- */
    .matrix_new = cuda_matrix_new,
    .matrix_free = cuda_matrix_free,
    .matrix_bytes = cuda_matrix_bytes,
    .matrix_type = cuda_matrix_type,
    .matrix_read = cuda_matrix_read,
    .matrix_lengths = cuda_matrix_lengths,
    .matrix_checksum = cuda_matrix_checksum,
    .embed = cuda_embed,
    .linear = cuda_linear,
    .linear_glu = cuda_linear_glu,
    .linear_heads = cuda_linear_heads,

    /* ---- experts, adapters, embeddings: cuda_experts.c, cuda_lora.c, cuda_embedding.c ---- */
    .lora_new = cuda_lora_new,
    .lora_free = cuda_lora_free,
    .lora_bytes = cuda_lora_bytes,
    .lora_checksum = cuda_lora_checksum,
    .linear_adapted = cuda_linear_adapted,
    .linear_glu_adapted = cuda_linear_glu_adapted,
    .embedding_new = cuda_embedding_new,
    .embedding_free = cuda_embedding_free,
    .embedding_bytes = cuda_embedding_bytes,
    .embedding_checksum = cuda_embedding_checksum,
    .embed_adapted = cuda_embed_adapted,
    .experts = cuda_experts,
    .expert_bytes = cuda_expert_bytes_read,

    /* ---- keys and values, attention: cuda_kv.c, cuda_kv_copies.c, cuda_attention.c ---- */
    .kv_new = cuda_kv_new,
    .kv_free = cuda_kv_free,
    .kv_page_bytes = cuda_kv_page_bytes,
    .kv_window_bytes = cuda_kv_window_bytes,
    .kv_copy_page = cuda_kv_copy_page,
    .kv_reserve_host = cuda_kv_reserve_host,
    .kv_read_begin = cuda_kv_read_begin,
    .kv_write_begin = cuda_kv_write_begin,
    .kv_is_copied = cuda_kv_is_copied,
    .kv_write_end = cuda_kv_write_end,
    .kv_store_rows = cuda_kv_store_rows,
    .previous_rows = cuda_previous_rows,
    .rope_store = cuda_rope_store,
    .prefix_store = cuda_prefix_store,
    .latent_store = cuda_latent_store,
    .attention = cuda_attention,

    /* ---- rows, sampling, checksums: cuda_rows.c, cuda_sample.c, cuda_checksum.c ---- */
    .rmsnorm = cuda_rmsnorm,
    .layernorm = cuda_layernorm,
    .norm_adapted = cuda_norm_adapted,
    .scale_add = cuda_scale_add,
    .scale = cuda_scale,
    .softcap = cuda_softcap,
    .activate = cuda_activate,
    .positions = cuda_positions,
    .concat = cuda_concat,
    .gather = cuda_gather,
    .checksum = cuda_checksum,
    .arithmetic_checksum = cuda_arithmetic_checksum,
    .reserve_sampling = cuda_reserve_sampling,
    .sample = cuda_sample,
    .feeds_tokens = cuda_feeds_tokens,
    .sample_submit = cuda_sample_submit,
    .sample_wait = cuda_sample_wait,
};

/* The parts whose operations need scratch memory. A reserve function frees what it had before; false: the card is out of
 * memory. A release function frees all, also what a reserve function could not finish. */
static const struct cuda_part {
    bool (*reserve)(struct cuda_backend *cuda, int max_rows);
    void (*release)(struct cuda_backend *cuda);
} PARTS[] = {
    { cuda_linear_reserve, cuda_linear_release },
    { NULL, cuda_checksum_release },
    { cuda_adapters_reserve, cuda_adapters_release },
    { cuda_lora_reserve, cuda_lora_release },
    { cuda_embedding_reserve, cuda_embedding_release },
    { cuda_experts_reserve, cuda_experts_release },
    { NULL, cuda_measure_release },
    { NULL, cuda_sampling_release },
    { cuda_attention_reserve, cuda_attention_release },
    { NULL, NULL }, /* the end; add lines before it */
};

bool cuda_parts_reserve(struct cuda_backend *cuda, int max_rows)
{
    for (const struct cuda_part *part = PARTS; part->release; part++)
        if (part->reserve && !part->reserve(cuda, max_rows))
            return false;
    return true;
}

void cuda_parts_release(struct cuda_backend *cuda)
{
    for (const struct cuda_part *part = PARTS; part->release; part++)
        part->release(cuda);
}
