/* The memory of experts' weights, compared with the bytes that a file has for them: by the formula of the backend for every type and
 * the shapes of published models, and by what a loaded model holds in this process. */
#include "../support/folder.h"
#include "backend/backend.h"
#include "base/log.h"
#include "checkpoint/gguf/gguf.h"
#include "model/load/load.h"
#include "support/made_file.h"

#include <malloc.h>
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
    /* Grids: an index selects 4 or 8 numbers. Packed, each number has 4 bits of its own (128 bytes), and there are 2 bytes of
     * scale, and 8 or 16 bytes of scales of 32 or 16 columns. */
    { DTYPE_IQ2_XXS, 66, 138 }, { DTYPE_IQ2_XS, 74, 146 }, { DTYPE_IQ2_S, 82, 146 },
    { DTYPE_IQ3_XXS, 98, 138 }, { DTYPE_IQ3_S, 110, 138 }, { DTYPE_IQ1_S, 50, 138 },
    { DTYPE_IQ1_M, 56, 146 },
};

/* Bytes of a matrix in a file. One of 8-bit floats has a scale for 128 rows and columns, or for a row. */
static uint64_t stored_bytes(enum dtype dtype, int n_in, int n_out)
{
    uint64_t n = (uint64_t)n_in * (uint64_t)n_out;
    size_t n_bytes = 0;
    if (dtype == DTYPE_F8_BLOCK)
        return n + n / (128 * 128) * sizeof(float);
    if (dtype == DTYPE_F8_ROW)
        return n + (uint64_t)n_out * sizeof(uint16_t);
    assert_true(dtype_bytes(dtype, (int64_t)n, &n_bytes));
    if (dtype == DTYPE_G4Z_32 || dtype == DTYPE_G4Z_64 || dtype == DTYPE_G4Z_128)
        n_bytes -= n / (uint64_t)dtype_block_elems(dtype) / 2; /* a zero point has 4 bits */
    return n_bytes;
}

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
            if (d % dtype_block_elems(dtype) != 0 || ff % dtype_block_elems(dtype) != 0)
                continue;
            uint64_t gate_up = stored_bytes(dtype, d, 2 * ff), down = stored_bytes(dtype, ff, d);
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

/* How experts are stored: quantization_config, and what a matrix has. */
struct upload {
    const char *name, *method;
    void (*add)(struct made_file *f, const struct upload *u, const char *stem, int64_t rows, int64_t columns);
    int n_bits, group; /* of integers */
    bool is_ordered, is_symmetric;
};

static void add_float8(struct made_file *f, const struct upload *u, const char *stem, int64_t rows,
                       int64_t columns)
{
    bool has_blocks = strstr(u->method, "128");
    char name[128];
    snprintf(name, sizeof name, "%s.weight", stem);
    made_add(f, name, DTYPE_F8_E4M3, 2, MADE_SHAPE(rows, columns));
    snprintf(name, sizeof name, "%s.weight_scale%s", stem, has_blocks ? "_inv" : "");
    made_add(f, name, has_blocks ? DTYPE_F32 : DTYPE_BF16, 2,
             has_blocks ? MADE_SHAPE(rows / 128, columns / 128) : MADE_SHAPE(rows, 1));
}

/* GPTQ or AWQ. */
static void add_integers(struct made_file *f, const struct upload *u, const char *stem, int64_t rows,
                         int64_t columns)
{
    int64_t per_word = 32 / u->n_bits, n_groups = columns / u->group;
    size_t n_words = (size_t)(n_groups * rows / per_word);
    bool is_awq = strstr(u->method, "awq");
    int32_t groups[D_MODEL], *zeros = malloc(n_words * sizeof *zeros);
    char name[128];
    assert_true(zeros && columns <= D_MODEL);
    snprintf(name, sizeof name, "%s.qweight", stem);
    made_add(f, name, DTYPE_I32, 2,
             is_awq ? MADE_SHAPE(columns, rows / per_word) : MADE_SHAPE(columns / per_word, rows));
    snprintf(name, sizeof name, "%s.scales", stem);
    made_add(f, name, DTYPE_F16, 2, MADE_SHAPE(n_groups, rows));
    /* The middle is stored less 1: 7, or 127. */
    memset(zeros, u->is_symmetric ? u->n_bits == 4 ? 0x77 : 0x7F : 0, n_words * sizeof *zeros);
    snprintf(name, sizeof name, "%s.qzeros", stem);
    made_add_values(f, name, DTYPE_I32, 2, MADE_SHAPE(n_groups, rows / per_word), zeros);
    free(zeros);
    for (int64_t c = 0; c < columns; c++) /* 5 divides no number of columns */
        groups[c] = (int32_t)((u->is_ordered ? c * 5 % columns : c) / u->group);
    snprintf(name, sizeof name, "%s.g_idx", stem);
    if (!is_awq)
        made_add_values(f, name, DTYPE_I32, 1, &columns, groups);
}

/* The same model in the folder with experts of an upload. */
static uint64_t write_upload(const struct upload *u)
{
    static const struct {
        const char *name;
        int64_t rows, columns; /* columns 0: a vector */
    } OTHERS[] = { { "embed_tokens", N_VOCAB, D_MODEL },
                   { "norm", D_MODEL, 0 },
                   { "layers.0.input_layernorm", D_MODEL, 0 },
                   { "layers.0.post_attention_layernorm", D_MODEL, 0 },
                   { "layers.0.self_attn.q_proj", N_HEADS * HEAD_DIM, D_MODEL },
                   { "layers.0.self_attn.k_proj", N_KV_HEADS * HEAD_DIM, D_MODEL },
                   { "layers.0.self_attn.v_proj", N_KV_HEADS * HEAD_DIM, D_MODEL },
                   { "layers.0.self_attn.o_proj", D_MODEL, N_HEADS * HEAD_DIM },
                   { "layers.0.self_attn.q_norm", HEAD_DIM, 0 },
                   { "layers.0.self_attn.k_norm", HEAD_DIM, 0 },
                   { "layers.0.mlp.gate", N_EXPERTS, D_MODEL } };
    static const char *const PARTS[] = { "gate_proj", "up_proj", "down_proj" };
    struct made_file f = { 0 };
    char name[128], config[1024];
    size_t n_before;
    snprintf(
        config, sizeof config,
        "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"moe_intermediate_size\": %d, \"num_hidden_layers\": 1, "
        "\"intermediate_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"head_dim\": %d, \"num_experts\": %d, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
        "\"tie_word_embeddings\": true, \"max_position_embeddings\": 64, \"quantization_config\": "
        "{%s, \"bits\": %d, \"group_size\": %d}}",
        N_VOCAB, D_MODEL, D_FF, D_FF, N_HEADS, N_KV_HEADS, HEAD_DIM, N_EXPERTS, u->method, u->n_bits,
        u->group);
    made_text(folder, "config.json", config);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        snprintf(name, sizeof name, "model.%s.weight", OTHERS[i].name);
        made_add(&f, name, DTYPE_F16, OTHERS[i].columns > 0 ? 2 : 1,
                 MADE_SHAPE(OTHERS[i].rows, OTHERS[i].columns));
    }
    n_before = f.n_bytes;
    for (int i = 0; i < 3 * N_EXPERTS; i++) {
        int64_t rows = i % 3 == 2 ? D_MODEL : D_FF, columns = i % 3 == 2 ? D_FF : D_MODEL;
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s", i / 3, PARTS[i % 3]);
        u->add(&f, u, name, rows, columns);
    }
    uint64_t n_expert_bytes = f.n_bytes - n_before;
    made_write(&f, folder, "model.safetensors", true);
    return n_expert_bytes;
}

/* Bytes of this process's anonymous memory, in RAM or swapped out. Pages of files are left out: other processes that start, end or
 * need memory change how many of them count for this one. */
static uint64_t anonymous_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    unsigned long long kib, sum = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Anonymous: %llu kB", &kib) == 1 || sscanf(line, "Swap: %llu kB", &kib) == 1)
            sum += kib;
    fclose(file);
    return sum * 1024;
}

static void check_loaded(const char *path, const char *type, uint64_t stored)
{
    malloc_trim(0); /* freed memory of the previous model's heap must not count */
    uint64_t packed = 0, before = anonymous_bytes();
    struct tutti_model_options options = { .n_threads = 1 };
    struct model *model = NULL;
    struct tutti_error err;
    if (model_load(&model, path, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++)
        if (slot_info(slot)->is_of_experts)
            packed += model->backend->ops->matrix_bytes(model_weight(model, slot, 0)->matrix);
    uint64_t others = model->weight_bytes - packed, held = anonymous_bytes() - before;
    print_message("# %s: file %llu, packed %llu (%.4f), held %llu, other weights %llu\n", type,
                  (unsigned long long)stored, (unsigned long long)packed, (double)packed / (double)stored,
                  (unsigned long long)held, (unsigned long long)others);
    assert_true((double)packed <= MOST * (double)stored);
#ifndef __SANITIZE_ADDRESS__ /* whose allocator keeps what was freed */
    /* Threads, the vocabulary and the backend's buffers take less than 8 MiB. */
    assert_true((double)held <= MOST * (double)stored + (double)others + (8 << 20));
    assert_true(held >= packed);
#endif
    model_free(model);
}

static void loaded_experts_take_the_bytes_of_the_file(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_MXFP4, DTYPE_Q4_K };
    static const char GPTQ[] = "\"quant_method\": \"gptq\"", AWQ[] = "\"quant_method\": \"awq\"";
    static const struct upload UPLOADS[] = {
        { "f8_block", "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]", add_float8 },
        { "f8_row", "\"quant_method\": \"fp8\", \"weight_block_size\": null", add_float8 },
        { "gptq, 4 bits", GPTQ, add_integers, 4, 128, false, true },
        { "gptq, 4 bits, act-order", GPTQ, add_integers, 4, 128, true, true },
        { "gptq, 4 bits, zero points, act-order", GPTQ, add_integers, 4, 128, true, false },
        { "gptq, 4 bits, groups of 64, act-order", GPTQ, add_integers, 4, 64, true, true },
        { "gptq, 4 bits, groups of 32, zero points, act-order", GPTQ, add_integers, 4, 32, true, false },
        { "gptq, 8 bits, act-order", GPTQ, add_integers, 8, 128, true, true },
        { "gptq, 8 bits, groups of 32", GPTQ, add_integers, 8, 32, false, true },
        { "awq", AWQ, add_integers, 4, 128, false, false },
        { "awq, groups of 64", AWQ, add_integers, 4, 64, false, false },
    };
    char path[64];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        check_loaded(path, dtype_name(TYPES[i]), write_gguf(path, TYPES[i]));
    unlink(path);
    for (size_t i = 0; i < sizeof UPLOADS / sizeof *UPLOADS; i++)
        check_loaded(folder, UPLOADS[i].name, write_upload(&UPLOADS[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_take_the_bytes_of_the_file),
        cmocka_unit_test_setup_teardown(loaded_experts_take_the_bytes_of_the_file, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
