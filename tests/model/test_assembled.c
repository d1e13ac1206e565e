/* Weights that are assembled from several tensors (MXFP4, float8): a conversion, and a load, assemble each element of each expert a
 * fixed number of times. Otherwise the memory that they allocate would grow as the square of the number of experts. */
#include "base/log.h"
#include "model/load/load.h"
#include "offline/convert.h"
#include "support/fault.h"
#include "support/made_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WIDTH = 64, D_FF = 32, FEW = 16, MANY = 128 };

enum kind { MERGED_MXFP4, MERGED_BF16, FP8_BY_EXPERT };
static const char *const METHODS[] = {
    [MERGED_MXFP4] = "{\"quant_method\": \"mxfp4\"}",
    [MERGED_BF16] = "null",
    [FP8_BY_EXPERT] = "{\"quant_method\": \"fp8\", \"weight_block_size\": [32, 32]}",
};

static char folder[] = "/tmp/tutti-assembled-XXXXXX";

static void add(struct made_file *f, const char *name, int64_t rows, int64_t columns)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.0.%s.weight", name);
    made_add(f, full, DTYPE_BF16, columns > 0 ? 2 : 1, MADE_SHAPE(rows, columns));
}

static void add_merged(struct made_file *f, const char *name, enum kind kind, int64_t n_experts, int64_t rows,
                       int64_t columns)
{
    char full[128];
    const char *end = kind == MERGED_MXFP4 ? "_blocks" : "";
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%s%s", name, end);
    if (kind == MERGED_BF16) {
        made_add(f, full, DTYPE_BF16, 3, MADE_SHAPE(n_experts, rows, columns));
        return;
    }
    made_add(f, full, DTYPE_U8, 4, MADE_SHAPE(n_experts, rows, columns / 32, 16));
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%s_scales", name);
    made_add(f, full, DTYPE_U8, 3, MADE_SHAPE(n_experts, rows, columns / 32));
}

static void add_fp8(struct made_file *f, int expert, const char *name, int64_t rows, int64_t columns)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%d.%s.weight", expert, name);
    made_add(f, full, DTYPE_F8_E4M3, 2, MADE_SHAPE(rows, columns));
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%d.%s.weight_scale_inv", expert, name);
    made_add(f, full, DTYPE_BF16, 2, MADE_SHAPE(rows / 32, columns / 32));
}

static void write_model(enum kind kind, int n_experts)
{
    struct made_file f = { 0 };
    char config[1024];
    snprintf(config, sizeof config,
             "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": "
             "96, \"hidden_size\": %d, "
             "\"moe_intermediate_size\": %d, \"intermediate_size\": 64, \"num_hidden_layers\": 1, "
             "\"num_attention_heads\": 2, "
             "\"num_key_value_heads\": 1, \"head_dim\": 32, \"num_experts\": %d, \"num_experts_per_tok\": 2, "
             "\"norm_topk_prob\": true, \"norm_topk_prob\": true, "
             "\"tie_word_embeddings\": true, \"max_position_embeddings\": 64, \"quantization_config\": %s}",
             WIDTH, D_FF, n_experts, METHODS[kind]);
    made_text(folder, "config.json", config);
    made_add(&f, "model.embed_tokens.weight", DTYPE_BF16, 2, MADE_SHAPE(96, WIDTH));
    made_add(&f, "model.norm.weight", DTYPE_BF16, 1, MADE_SHAPE(WIDTH));
    add(&f, "input_layernorm", WIDTH, 0);
    add(&f, "post_attention_layernorm", WIDTH, 0);
    add(&f, "self_attn.q_proj", 64, WIDTH);
    add(&f, "self_attn.k_proj", 32, WIDTH);
    add(&f, "self_attn.v_proj", 32, WIDTH);
    add(&f, "self_attn.o_proj", WIDTH, 64);
    add(&f, "self_attn.q_norm", 32, 0);
    add(&f, "self_attn.k_norm", 32, 0);
    add(&f, "mlp.gate", n_experts, WIDTH);
    if (kind != FP8_BY_EXPERT) {
        add_merged(&f, "gate_up_proj", kind, n_experts, 2 * D_FF, WIDTH);
        add_merged(&f, "down_proj", kind, n_experts, WIDTH, D_FF);
    }
    for (int e = 0; kind == FP8_BY_EXPERT && e < n_experts; e++) {
        add_fp8(&f, e, "gate_proj", D_FF, WIDTH);
        add_fp8(&f, e, "up_proj", D_FF, WIDTH);
        add_fp8(&f, e, "down_proj", WIDTH, D_FF);
    }
    made_write(&f, folder, "model.safetensors", false);
}

static size_t bytes_of_conversion(enum kind kind, int n_experts)
{
    struct convert_options options = { .type = weight_type_find("q8_0"), .n_threads = 1 };
    struct tutti_error err;
    char to[64];
    write_model(kind, n_experts);
    snprintf(to, sizeof to, "%s/to.gguf", folder);
    fault_arm(0);
    if (convert_to_gguf(folder, to, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    size_t n = fault_n_bytes();
    unlink(to);
    return n;
}

static size_t bytes_of_load(enum kind kind, int n_experts)
{
    struct tutti_model_options options = { .n_threads = 1 };
    struct model *model = NULL;
    struct tutti_error err;
    write_model(kind, n_experts);
    fault_arm(0);
    if (model_load(&model, folder, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    size_t n = fault_n_bytes();
    model_free(model);
    return n;
}

static void check(const char *what, enum kind kind, size_t (*n_bytes)(enum kind, int))
{
    size_t few = n_bytes(kind, FEW), many = n_bytes(kind, MANY);
    print_message("# %s, %s: %zu bytes for %d experts, %zu for %d\n", what, METHODS[kind], few, FEW, many,
                  MANY);
    assert_true(many < few * (MANY / FEW));
}

static void the_cost_of_experts_is_linear(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    for (enum kind kind = MERGED_MXFP4; kind <= FP8_BY_EXPERT; kind++) {
        check("conversion", kind, bytes_of_conversion);
        check("load", kind, bytes_of_load);
    }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const FILES[] = { "config.json", "model.safetensors" };
    char path[64];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_cost_of_experts_is_linear, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
