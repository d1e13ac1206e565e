/* Limits on input from outside: each is defined once, here, and quoted in error messages. */
#ifndef TUTTI_BASE_LIMITS_H
#define TUTTI_BASE_LIMITS_H

enum {
    LIMIT_JSON_FILE_BYTES = 128 * 1024 * 1024, /* config.json, index, tokenizer_config.json */
    LIMIT_JSON_DEPTH = 64,
    LIMIT_TENSORS = 1 << 20,
    LIMIT_TENSOR_NAME_BYTES = 512,
    LIMIT_TENSOR_DIMS = 5, /* kernels of convolutions over images and time */
    LIMIT_LAYERS = 4096,
    LIMIT_DIMENSION = 1 << 24, /* d_model, d_ff, heads * head_dim */
    LIMIT_EXPERTS = 1024,      /* of a layer */
    LIMIT_VOCAB = 1 << 24,
    LIMIT_CONTEXT = 1 << 24,
    LIMIT_LEAST_CONTEXT = 2, /* a token of the prompt and one of the answer */
    LIMIT_SEQS = 16384,      /* that one engine runs at the same time */
    LIMIT_SHARDS = 10000,
    LIMIT_RANKS = 64,         /* of all replicas together; the same for planning, sharding and running */
    LIMIT_ADAPTERS = 256,     /* of a model */
    LIMIT_ADAPTER_NAME = 128, /* bytes, with the 0 at the end */
    LIMIT_CHOICES = 128,
    LIMIT_BEAMS = 64, /* at most LIMIT_CHOICES */
    LIMIT_STOPS = 16,
    LIMIT_TOP_LOGPROBS = 20,
    LIMIT_PROMPT_LOGPROBS =
        262144, /* of a prompt's tokens and their alternatives: the text of all is made at once */
    LIMIT_ANSWER_LINE_BYTES = 16 * 1024 * 1024, /* of one line of an HTTP response */
    LIMIT_JSON_TREE_BYTES = 64 << 20, /* of the parsed values of one body, without the bytes of strings */
};

/* Of the repetition penalty. */
#define LIMIT_LEAST_PENALTY 0.01
#define LIMIT_PENALTY       100

#endif
