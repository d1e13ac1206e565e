/* Any bytes as the weights of a quantized upload: an error, or tensors whose bytes can all be computed. The first byte
 * chooses the configuration, the rest is the safetensors file. */
#include "checkpoint/checkpoint.h"
#include "scratch.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

#define CONFIG(text) "{\"quantization_config\": {" text "}}"
#define WEIGHTS(text)                                                                                        \
    "\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\", \"config_groups\": {\"a\": " \
    "{\"weights\": {" text "}}}"
static const char *const CONFIGS[] = {
    CONFIG("\"quant_method\": \"fp8\", \"weight_block_size\": [2, 3]"),
    CONFIG("\"quant_method\": \"fbgemm_fp8\""),
    CONFIG("\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32"),
    CONFIG("\"quant_method\": \"gptq\", \"bits\": 2, \"group_size\": 3, \"checkpoint_format\": \"gptq_v2\""),
    CONFIG("\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": -1"),
    CONFIG("\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32"),
    CONFIG(WEIGHTS("\"num_bits\": 4, \"group_size\": 32")),
    CONFIG(WEIGHTS("\"num_bits\": 8, \"group_size\": 5")),
    CONFIG("\"quant_method\": \"mxfp4\""),
    CONFIG(WEIGHTS("\"num_bits\": 8, \"type\": \"float\", \"block_structure\": [3, 2]")),
    CONFIG("\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]"),
    CONFIG("\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true"),
};
enum { N_CONFIGS = sizeof CONFIGS / sizeof *CONFIGS };

static void read_whole(const struct tensor *t)
{
    void *owned;
    const uint8_t *data = tensor_bytes(t, &owned);
    unsigned sum = 0;
    assert(data || t->n_bytes == 0);
    for (size_t k = 0; k < t->n_bytes; k++)
        sum += data[k]; /* reads each byte, for the sanitizer */
    for (int64_t c = 0; t->order && c < t->shape[1]; c++)
        assert(t->order[c] < t->shape[1]);
    free(owned);
    assert(sum < UINT32_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct checkpoint *ck = NULL;
    struct tutti_error err = { 0 };
    if (n_bytes == 0)
        return 0;
    const char *config = CONFIGS[bytes[0] % N_CONFIGS];
    scratch_write("config.json", config, strlen(config));
    scratch_write("model.safetensors", bytes + 1, n_bytes - 1);
    if (checkpoint_open(&ck, scratch_folder(), &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !ck);
        return 0;
    }
    for (size_t i = 0; i < checkpoint_n_tensors(ck); i++) {
        read_whole(checkpoint_tensor(ck, i));
        if (checkpoint_tensor(ck, i)->compact)
            read_whole(checkpoint_tensor(ck, i)->compact);
    }
    checkpoint_close(ck);
    return 0;
}
