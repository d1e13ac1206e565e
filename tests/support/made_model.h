/* Writes models with one layer of experts, as every format stores their weights. Their numbers are arbitrary. */
#ifndef TEST_MADE_MODEL_H
#define TEST_MADE_MODEL_H

enum made_kind {
    MADE_BF16, /* one tensor for all experts */
    MADE_MXFP4,
    MADE_FP8_BLOCKS, /* and from here on tensors for each expert */
    MADE_FP8_ROWS,   /* compressed-tensors */
    MADE_GPTQ,
    MADE_GPTQ_ORDER, /* columns in an order of their own (act-order) */
    MADE_AWQ,
    MADE_PACKED, /* compressed-tensors of 4 bits */
    MADE_KINDS
};

extern const char *const MADE_NAMES[MADE_KINDS];

/* Writes folder/config.json and folder/model.safetensors: qwen3_moe, of which only experts are quantized. */
void made_experts(const char *folder, enum made_kind kind, int n_experts);

/* Writes a GGUF file of the architecture llama whose matrices have all types that are only read: IQ1 to IQ4, and MXFP4. */
void made_tables(const char *path);

#endif
