/* The memory of experts' weights, compared with the bytes that a file has for them: by the formula of the backend for every type and
 * the shapes of published models, and by what a loaded model holds and this process has resident. */
#include "backend/backend.h"
#include "base/log.h"
#include "base/system/memory_left.h"
#include "checkpoint/gguf/gguf.h"
#include "model/load/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double MOST = 1.03; /* packed bytes for each byte of the file */

/* Types that take more, and the bytes of 256 weights in the file and packed. */
static const struct {
    enum dtype dtype;
    int stored, packed;
} LARGER[] = {
    { DTYPE_Q3_K, 110, 114 }, /* 16 scales: of 6 bits in 12 bytes; packed, a byte each */
    /* Grids: an index selects 4 or 8 numbers. Packed, each number has 4 bits of its own (128 bytes), and there are 2 bytes of
     * scale, and 8 or 16 bytes of scales of 32 or 16 columns. */
    { DTYPE_IQ2_XXS, 66, 138 },
    { DTYPE_IQ2_XS, 74, 146 },
    { DTYPE_IQ2_S, 82, 146 },
    { DTYPE_IQ3_XXS, 98, 138 },
    { DTYPE_IQ3_S, 110, 138 },
    { DTYPE_IQ1_S, 50, 138 },
    { DTYPE_IQ1_M, 56, 146 },
};

static double expected_ratio(enum dtype dtype)
{
    for (size_t i = 0; i < sizeof LARGER / sizeof *LARGER; i++)
        if (LARGER[i].dtype == dtype)
            return (double)LARGER[i].packed / LARGER[i].stored;
    return MOST;
}

static void experts_take_the_bytes_of_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int d_model, d_ff;
    } SHAPES[] = { { "qwen3-30b-a3b", 2048, 768 },     { "gpt-oss-20b", 2880, 2880 },
                   { "deepseek-v2-lite", 2048, 1408 }, { "glm-4.5-air", 4096, 1408 },
                   { "deepseek-v3", 7168, 2048 },      { "mixtral-8x7b", 4096, 14336 } };
    const struct backend_caps *caps = backend_caps_of(NULL);
    int n_types = 0;
    for (enum dtype dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        double most = 0;
        if (!dtype_is_weight(dtype) || !(caps->weight_types >> dtype & 1))
            continue;
        n_types++;
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
            int d = SHAPES[i].d_model, ff = SHAPES[i].d_ff;
            size_t gate_up, down;
            if (!dtype_bytes(dtype, (int64_t)2 * ff * d, &gate_up) || d % dtype_block_elems(dtype) != 0 ||
                ff % dtype_block_elems(dtype) != 0)
                continue;
            assert_true(dtype_bytes(dtype, (int64_t)ff * d, &down));
            uint64_t packed = caps->packed_bytes(dtype, d, 2 * ff, true) +
                              caps->packed_bytes(dtype, ff, d, false);
            double ratio = (double)packed / (double)(gate_up + down);
            most = ratio > most ? ratio : most;
            if (ratio > expected_ratio(dtype) + 1e-9)
                fail_msg("%s as %s: %.4f bytes for each byte of the file", SHAPES[i].name, dtype_name(dtype),
                         ratio);
        }
        print_message("# %s: %.4f\n", dtype_name(dtype), most);
    }
    assert_true(n_types > 20);
}

/* ---- what a process holds ---- */

enum { D_MODEL = 2048, D_FF = 768, N_EXPERTS = 24, N_VOCAB = 64, N_HEADS = 4, N_KV_HEADS = 1, HEAD_DIM = 64 };

struct stored {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t shape[3];
};

/* qwen3moe of one layer with the experts of Qwen3-30B-A3B. Returns the bytes of the experts. */
static uint64_t write_gguf(const char *path, enum dtype dtype)
{
    const struct stored all[] = {
        { "token_embd.weight", DTYPE_F16, 2, { N_VOCAB, D_MODEL } },
        { "output_norm.weight", DTYPE_F32, 1, { D_MODEL } },
        { "blk.0.attn_norm.weight", DTYPE_F32, 1, { D_MODEL } },
        { "blk.0.attn_q.weight", DTYPE_F16, 2, { N_HEADS * HEAD_DIM, D_MODEL } },
        { "blk.0.attn_k.weight", DTYPE_F16, 2, { N_KV_HEADS * HEAD_DIM, D_MODEL } },
        { "blk.0.attn_v.weight", DTYPE_F16, 2, { N_KV_HEADS * HEAD_DIM, D_MODEL } },
        { "blk.0.attn_output.weight", DTYPE_F16, 2, { D_MODEL, N_HEADS * HEAD_DIM } },
        { "blk.0.attn_q_norm.weight", DTYPE_F32, 1, { HEAD_DIM } },
        { "blk.0.attn_k_norm.weight", DTYPE_F32, 1, { HEAD_DIM } },
        { "blk.0.ffn_norm.weight", DTYPE_F32, 1, { D_MODEL } },
        { "blk.0.ffn_gate_inp.weight", DTYPE_F32, 2, { N_EXPERTS, D_MODEL } },
        { "blk.0.ffn_gate_exps.weight", dtype, 3, { N_EXPERTS, D_FF, D_MODEL } },
        { "blk.0.ffn_up_exps.weight", dtype, 3, { N_EXPERTS, D_FF, D_MODEL } },
        { "blk.0.ffn_down_exps.weight", dtype, 3, { N_EXPERTS, D_MODEL, D_FF } },
    };
    static const uint8_t ZEROS[1 << 16];
    struct gguf_writer *w = NULL;
    uint64_t n_expert_bytes = 0;
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_string(w, "general.architecture", "qwen3moe", 8);
    gguf_writer_u32(w, "qwen3moe.block_count", 1);
    gguf_writer_u32(w, "qwen3moe.context_length", 64);
    gguf_writer_u32(w, "qwen3moe.embedding_length", D_MODEL);
    gguf_writer_u32(w, "qwen3moe.feed_forward_length", D_FF);
    gguf_writer_u32(w, "qwen3moe.expert_feed_forward_length", D_FF);
    gguf_writer_u32(w, "qwen3moe.expert_count", N_EXPERTS);
    gguf_writer_u32(w, "qwen3moe.expert_used_count", 2);
    gguf_writer_u32(w, "qwen3moe.attention.head_count", N_HEADS);
    gguf_writer_u32(w, "qwen3moe.attention.head_count_kv", N_KV_HEADS);
    gguf_writer_u32(w, "qwen3moe.attention.key_length", HEAD_DIM);
    gguf_writer_u32(w, "qwen3moe.attention.value_length", HEAD_DIM);
    gguf_writer_f32(w, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_writer_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gguf_writer_tensor(w, all[i].name, all[i].dtype, all[i].n_dims, all[i].shape);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t n = 1;
        size_t n_bytes, at = 0;
        for (int k = 0; k < all[i].n_dims; k++)
            n *= all[i].shape[k];
        assert_true(dtype_bytes(all[i].dtype, n, &n_bytes));
        n_expert_bytes += strstr(all[i].name, "exps") ? n_bytes : 0;
        for (size_t piece; at < n_bytes; at += piece) {
            piece = n_bytes - at < sizeof ZEROS ? n_bytes - at : sizeof ZEROS;
            assert_int_equal(gguf_writer_data(w, ZEROS, piece, NULL), TUTTI_OK);
        }
    }
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
    return n_expert_bytes;
}

static void loaded_experts_take_the_bytes_of_the_file(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_MXFP4, DTYPE_Q4_K };
    char folder[] = "/tmp/tutti-packed-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        uint64_t stored = write_gguf(path, TYPES[i]), packed = 0, before = memory_resident();
        struct tutti_model_options options = { .n_threads = 1 };
        struct model *model = NULL;
        struct tutti_error err;
        if (model_load(&model, path, &options, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++)
            if (slot_info(slot)->is_of_experts)
                packed += model->backend->ops->matrix_bytes(model_weight(model, slot, 0)->matrix);
        uint64_t others = model->weight_bytes - packed, resident = memory_resident() - before;
        print_message("# %s: file %llu, packed %llu (%.4f), resident %llu, other weights %llu\n",
                      dtype_name(TYPES[i]), (unsigned long long)stored, (unsigned long long)packed,
                      (double)packed / (double)stored, (unsigned long long)resident,
                      (unsigned long long)others);
        assert_true((double)packed <= MOST * (double)stored);
#ifndef __SANITIZE_ADDRESS__ /* whose allocator keeps what was freed */
        /* Threads, the vocabulary and the backend's buffers take less than 8 MiB. */
        assert_true((double)resident <= MOST * (double)stored + (double)others + (8 << 20));
        assert_true(resident >= packed);
#endif
        model_free(model);
    }
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_take_the_bytes_of_the_file),
        cmocka_unit_test(loaded_experts_take_the_bytes_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
