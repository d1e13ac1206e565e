/* tutti: LLM inference with continuous batching, as a library. One engine serves many requests of
 * one model.
 *
 * Three objects:
 * - A *model* is a checkpoint, loaded and packed for this machine.
 * - An *engine* owns the KV cache, the scheduler and its threads. It serves any number of requests
 *   with one model.
 * - A *request* is a prompt with sampling parameters. Its output arrives through a callback, in
 *   events, until an event has a finish reason.
 *
 * The output of a request never depends on other requests: its logits have the same bits in a batch
 * of any size. So greedy and seeded outputs are byte-identical as well.
 *
 * Threads: every function may be called from any thread, unless its comment says otherwise. Strings
 * are UTF-8. Pointers inside options and requests are borrowed until the call returns. */
#ifndef TUTTI_H
#define TUTTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) || !defined(__GNUC__)
#define TUTTI_API
#else
#define TUTTI_API __attribute__((visibility("default")))
#endif

/* ---- errors ---- */

enum tutti_status {
    TUTTI_OK = 0,
    TUTTI_E_ARGUMENT,    /* a field of the request or an option is wrong; HTTP 400 */
    TUTTI_E_FORMAT,      /* a file violates its format */
    TUTTI_E_UNSUPPORTED, /* well-formed, but of a kind that tutti does not run */
    TUTTI_E_IO,          /* the system refused to open, read, write or listen */
    TUTTI_E_NOT_FOUND,   /* no such file, model, tensor or request; HTTP 404 */
    TUTTI_E_MEMORY,      /* the system has no more memory or threads */
    TUTTI_E_LIMIT,       /* exceeds the context length or KV memory; HTTP 400 with both figures */
    TUTTI_E_BUSY,        /* the queue is full, try later; HTTP 429 */
    TUTTI_E_CLOSED,      /* the engine is draining or closed; HTTP 503 */
    TUTTI_E_CANCELLED,   /* the caller cancelled the request */
    TUTTI_E_NUMERIC,     /* the model produced NaN or infinite logits; ends only this request */
    TUTTI_E_INTERNAL,    /* a defect of tutti itself */
    TUTTI_E_TIMEOUT,     /* a request had not started when its time in the queue ran out; HTTP 503 */
};

/* An error. Its text names the file, tensor or field, what was found and what was expected. Plain
 * memory that may be copied freely. Functions that take one accept NULL. */
struct tutti_error {
    enum tutti_status status;
    char param[64]; /* the request field at fault, for example "temperature"; "" where there is none */
    char text[512];
    /* Of TUTTI_E_BUSY: the engine's queue is full, which is no limit of the client. */
    bool is_overloaded;
    /* Of TUTTI_E_BUSY and TUTTI_E_TIMEOUT: retry after this time; 0: not known. */
    uint32_t retry_after_ms;
    /* Of TUTTI_E_LIMIT: the context length that prompt and answer exceed; 0: another limit was
     * exceeded. */
    uint32_t context_tokens;
};

/* A short name, "format" for TUTTI_E_FORMAT. Never NULL. */
TUTTI_API const char *tutti_status_name(enum tutti_status status);

/* Such as "0.1.0". */
TUTTI_API const char *tutti_version(void);

/* ---- ranks ---- */

/* Ranks are processes that run one model together; each holds a part of the weights (tensor
 * parallelism; docs/cluster.md). All call the same functions until the model and its adapters are
 * open. Then rank 0 uses the model, and the others call tutti_model_follow(). */

typedef struct tutti_ranks tutti_ranks;

/* Joins the processes that mpirun (or srun) started: n_ranks in each of n_groups groups. On success
 * *out belongs to the caller, who calls tutti_ranks_close() after closing the model.
 * TUTTI_E_UNSUPPORTED: this library was built without MPI. TUTTI_E_ARGUMENT: the number of started
 * processes is not n_ranks * n_groups. */
TUTTI_API enum tutti_status tutti_ranks_open(tutti_ranks **out, int n_ranks, int n_groups,
                                             struct tutti_error *err);
TUTTI_API void tutti_ranks_close(tutti_ranks *ranks); /* NULL is allowed */

/* This process' rank within its group, 0 to n_ranks - 1, and its group. NULL: 0. */
TUTTI_API int tutti_ranks_rank(const tutti_ranks *ranks);
TUTTI_API int tutti_ranks_group(const tutti_ranks *ranks);

/* Data parallelism: gathers n_bytes from rank 0 of every group. Each of them calls this after it
 * has closed its engine and before it closes its model; the groups need not arrive at the same
 * time. In group 0, take() is called once for each other group, in the order of the groups; bytes
 * are valid during that call. TUTTI_E_IO: a process was lost; the text names it. */
TUTTI_API enum tutti_status tutti_ranks_collect(tutti_ranks *ranks, const void *bytes, size_t n_bytes,
                                                void (*take)(void *user, int group, const void *bytes,
                                                             size_t n_bytes),
                                                void *user, struct tutti_error *err);

/* ---- model ---- */

typedef struct tutti_model tutti_model;

/* Zero-initialise, then set what differs from the default. */
struct tutti_model_options {
    int n_threads;    /* compute threads; 0: one for each core that this process may use */
    bool pin_threads; /* bind each compute thread to a core */
    /* NULL or "auto": on a machine with several NUMA nodes, compute threads run on the node where the weights and
     * keys that they read lie; "off": as if it had one node. */
    const char *numa;
    const char *weight_type; /* NULL: as stored; "bf16", "q8_0", "q4_k_m", ...: converted while loading */
    /* NULL or "f16"; "bf16": with the range of f32; "f32"; "int8": a scale for each token and head, half the memory of f16. */
    const char *kv_type;
    /* NULL: from the checkpoint. Else a built-in format such as "chatglm3" or "llama2", "template"
     * (the checkpoint's own template), or the path of a file with a Jinja template. */
    const char *chat_format;
    /* The device that computes. NULL or "cpu"; "cuda": the NVIDIA card with the most memory; "cuda:1": the card of this
     * number; "auto": the card, if there is one and the model fits in its memory, else the CPU. */
    const char *device;
    /* With device cuda, for models that the card's memory cannot hold. gpu_layers: so many layers, the last ones, are on the
     * card, and the CPU computes the others; "auto": as many as fit; NULL: all. cpu_experts: the CPU computes the experts of
     * the first so many layers; "all": of all; NULL: of none. TUTTI_E_ARGUMENT with this param: out of range. */
    const char *gpu_layers, *cpu_experts;
    const char *
        cpu; /* NULL: the best this processor has; "ref", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm":
                             at most that, for tests */
    /* NULL: this process only. Else the ranks that run the model together. Borrowed while the model
     * is open. */
    tutti_ranks *ranks;
    /* Called from the calling thread while weights are packed; done and total in bytes. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    /* Tokens that a sequence may have at most; 0: any number. Only models with LongRoPE (Phi-3,
     * Phi-4-mini) use it: up to their original context they rotate by their short factors. Ranks
     * above 0 get it from rank 0. */
    int max_context;
    /* Memory of this machine for weights, keys and values of all its ranks; 0: what the machine, or this
     * process's control group, has left. A model whose weights need more is refused before they are read. */
    uint64_t memory_bytes;
    /* Also load the checkpoint's layer for multi-token prediction (MTP; GLM-4.5 and later, DeepSeek-V3):
     * engines on the model then use it as they use a draft model, see max_draft_tokens. TUTTI_E_UNSUPPORTED
     * with param draft: there is no such layer. Only in a single process. */
    bool mtp;
};

/* Loads the checkpoint at path: a Hugging Face folder, a GGUF file, or another that
 * docs/checkpoints.md names. On success *out is the caller's, for tutti_model_close() after every
 * engine on it is closed. */
TUTTI_API enum tutti_status tutti_model_open(tutti_model **out, const char *path,
                                             const struct tutti_model_options *options,
                                             struct tutti_error *err);
TUTTI_API void tutti_model_close(tutti_model *model); /* NULL is allowed */

/* Ranks above 0: takes part in every forward pass until rank 0 closes the model. TUTTI_E_IO: a rank
 * was lost; the text names it. */
TUTTI_API enum tutti_status tutti_model_follow(tutti_model *model, struct tutti_error *err);

/* Pooling of an embedding: the request returns one vector for its prompt instead of an answer. It
 * is made from the hidden states after the model's final norm, the input of the output head. */
enum tutti_embedding {
    TUTTI_EMBEDDING_NONE = 0,
    TUTTI_EMBEDDING_MEAN,  /* mean over all tokens of the prompt */
    TUTTI_EMBEDDING_LAST,  /* the last token's hidden state */
    TUTTI_EMBEDDING_FIRST, /* the first token's, [CLS] of BERT */
};

struct tutti_model_info {
    const char *name;        /* the folder's or file's name without extension; lives as long as the model */
    const char *family;      /* "chatglm", "llama" */
    const char *chat_format; /* "chatglm3", "template"; "" where the model has none */
    const char *weight_type; /* converted to, or of most of the weights as stored: "f16", "q4_k" */
    const char *kv_type;     /* "f16", "bf16", "f32" or "int8" */
    const char *device;      /* "cpu", "cuda", or "cuda+cpu" if both compute */
    /* How the model writes tool calls and marks its reasoning, for tutti_tool_parser_new() and
     * tutti_reasoning_parser_new(), by its chat template: "hermes", "think". NULL: the template does
     * not tell; there is no reasoning. has_reasoning: the form marks reasoning, and not only where
     * the answer's text begins. */
    const char *tool_form, *reasoning_form;
    const char *written_form; /* of a TUTTI_GRAMMAR_TOOL_CALLS: tool_form, or "list"; NULL: no chats */
    bool has_reasoning;
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab;
    int n_ctx;                   /* tokens of context the model was made for */
    uint64_t n_params;           /* weights, counted once */
    uint64_t weight_bytes;       /* resident size of the packed weights */
    uint64_t kv_bytes_per_token; /* over all layers, keys and values */
    bool uses_mtp;               /* its layer for multi-token prediction is loaded: it drafts tokens */
    bool has_tokenizer;
    bool has_chat;   /* tutti_apply_chat_template() can render messages */
    bool has_infill; /* tutti_apply_infill() can render a text with a gap */
    /* Attention over the prompt is bidirectional (ChatGLM-6B): a prompt's tokens have no
     * log-probabilities. */
    bool has_bidirectional_prompt;
    /* It generates no text, because it is an encoder (BERT) or was saved without its output matrix:
     * requests must have embedding set. With has_score it is a cross-encoder: the one element of an
     * embedding is the score of a pair of texts, see tutti_request.pair; a logit, of which users want
     * the sigmoid unless has_raw_score. */
    bool only_embeds, has_score, has_raw_score;
    /* How its files make embeddings; TUTTI_EMBEDDING_NONE: they do not say. keeps_length: vectors are
     * not normalized. */
    enum tutti_embedding embedding;
    bool keeps_length;
    /* Ids from 0 to n_usable_vocab - 1 can be generated; the others, up to n_vocab, only pad the
     * embedding. */
    int n_usable_vocab;
    int32_t bos_id, eos_id, pad_id; /* -1: none. eos_id: the first of the ids that end an answer */
};
TUTTI_API void tutti_model_info(const tutti_model *model, struct tutti_model_info *out);

/* Adds an adapter: a folder as PEFT saves it (LoRA, DoRA, trained tokens, prompts, prefixes;
 * docs/adapters.md), in any layout of the model's family. Several may be loaded; each request selects
 * one, or none. name: 1 to 127 bytes of printable UTF-8 without ':'. No engine may be open on the model.
 * Errors name file and tensor. TUTTI_E_UNSUPPORTED: a kind of adapter that docs/adapters.md does not list. */
TUTTI_API enum tutti_status tutti_model_add_adapter(tutti_model *model, const char *name, const char *path,
                                                    struct tutti_error *err);
TUTTI_API int tutti_model_n_adapters(const tutti_model *model);
/* In the order of loading; lives as long as the model. NULL: index is out of range. */
TUTTI_API const char *tutti_model_adapter_name(const tutti_model *model, int index);

/* Encodes text as token ids. add_special: with the special tokens that the model's format puts
 * around a prompt. Returns the number of ids of the whole text, which may exceed max_ids; ids then
 * has the first max_ids. -1: the model has no tokenizer, the text exceeds one of its limits
 * (docs/tokenizers.md), or out of memory. Special tokens that are spelled out in text are encoded as
 * ordinary text. */
TUTTI_API int64_t tutti_tokenize(const tutti_model *model, const char *text, size_t n_bytes, bool add_special,
                                 int32_t *ids, size_t max_ids);

/* As tutti_tokenize(), for text that the caller trusts, such as a prompt that already has the
 * special tokens of a chat format: special tokens that are spelled out in text are encoded as
 * themselves. Those that add_special would put in front are not repeated where the text begins with
 * them. */
TUTTI_API int64_t tutti_tokenize_trusted(const tutti_model *model, const char *text, size_t n_bytes,
                                         bool add_special, int32_t *ids, size_t max_ids);

/* Decodes token ids as the tokenizer's reference library does; ids that only pad the vocabulary
 * decode to nothing. Returns the number of bytes of the whole text, without terminator, which may
 * exceed max_bytes. -1: no tokenizer, out of memory, or an id outside the vocabulary. */
TUTTI_API int64_t tutti_detokenize(const tutti_model *model, const int32_t *ids, size_t n_ids, char *text,
                                   size_t max_bytes);

/* A token as the vocabulary defines it. */
struct tutti_token_info {
    const char *spelling; /* such as "<|im_end|>"; not terminated; lives as long as the model */
    size_t n_bytes;       /* of spelling */
    bool is_special;      /* a control token: decoded text does not contain it */
};
/* False: the model has no tokenizer, or the vocabulary has no such id; *out is then empty. */
TUTTI_API bool tutti_token_info(const tutti_model *model, int32_t id, struct tutti_token_info *out);

/* Copies the bytes that a token has inside a decoded text: they may be a part of a character.
 * Control tokens, and ids that only pad the vocabulary, have none. Returns the number of bytes,
 * which may exceed max_bytes; bytes then has the first max_bytes. -1: no tokenizer, out of memory,
 * or an id outside the vocabulary. */
TUTTI_API int64_t tutti_token_bytes(const tutti_model *model, int32_t id, char *bytes, size_t max_bytes);

/* Computes the float32 logits of every position of one sequence, to compare a model with a
 * reference: [n_ids][n_vocab]. No engine may be open on the model. */
TUTTI_API enum tutti_status tutti_model_logits(tutti_model *model, const int32_t *ids, size_t n_ids,
                                               float *logits, struct tutti_error *err);

/* ---- engine ---- */

typedef struct tutti_engine tutti_engine;

struct tutti_engine_options {
    uint64_t kv_bytes; /* KV cache; 0: from free memory, at most what max_seqs full contexts can use */
    /* Tokens of one sequence, at least 2; 0: the model's, or what the KV cache holds if that is less. */
    int max_context;
    /* Tokens (rows) in one step, of all sequences together; 0: 256. A model with bidirectional
     * attention over the prompt (ChatGLM-6B) gets at least max_context + max_seqs, because it
     * prefills any prompt in a single step. */
    int max_batch_tokens;
    int max_seqs;  /* sequences that run at the same time, at most 16384; 0: 256 */
    int max_queue; /* requests that may wait in the queue, each choice counted; 0: 1024 */
    /* Longest time in the queue, in milliseconds. A request that has not started by then is
     * refused, or earlier where the wait can be predicted. 0: no limit. */
    int max_queue_ms;
    bool no_prefix_cache;  /* do not reuse pages of earlier prompts */
    uint64_t default_seed; /* for requests without a seed: 0 takes one from the system */
    /* Chunked prefill: while prompts are prefilled, a step may take this many times as long as a
     * step that only decodes. Above 1 to 1000; 0: 2. A larger value lowers the time to first token,
     * a smaller one keeps inter-token latency even. */
    double max_slowdown;
    /* Speculative decoding by prompt lookup: draft tokens that a step may verify for one sequence,
     * 0 to 32; 0: off. Draft tokens are those that followed the same tokens earlier in the prompt
     * or the answer. How many are verified depends on their acceptance rate and on what a row
     * costs. The output does not change, with or without a seed. */
    int max_lookup_tokens;
    /* Folder of the KV spill file; NULL: none. Cached pages are written to the file before they are
     * evicted, and restored when a prompt begins with the same tokens. When the engine closes, the
     * remaining cached pages are written too, which may take ten seconds. The file outlives the
     * engine. It is started anew if another model or other arithmetic wrote it. Not with
     * no_prefix_cache, and not for models with bidirectional attention over the prompt. One engine
     * at a time can use a folder: else TUTTI_E_BUSY. */
    const char *kv_spill_dir;
    uint64_t kv_spill_bytes; /* largest size of that file; 0: 8 GiB */
    /* Host memory for cached pages that leave the memory of a card; 0: none. They are copied there before
     * they are evicted, while steps compute, and restored from there; with kv_spill_dir, those that leave
     * host memory are written to the file, and what is there when the engine closes. All of it is taken
     * at the start. With the same models as kv_spill_dir, and on a card only: the pages of device "cpu" are
     * in host memory already, of which kv_bytes is the size. */
    uint64_t kv_spill_host_bytes;
    /* A draft model for speculative decoding: a smaller model with the same vocabulary; NULL: none.
     * It proposes up to max_draft_tokens (1 to 32; 0: 8) per sequence. Its KV cache is a part of
     * kv_bytes and holds as many tokens as the target model's. It must outlive the engine, and no
     * other engine may use it. Where prompt lookup and the draft model both have draft tokens,
     * those with the higher acceptance rate are used. A model that was opened with mtp drafts by its own
     * layer: then draft must be NULL, and max_draft_tokens is the limit of that layer. */
    tutti_model *draft;
    int max_draft_tokens;
    /* Called once, on a thread of the engine, after another rank of the model was lost and nothing
     * can be computed any more: every request ends with this error (TUTTI_E_CLOSED), and new ones
     * are refused. May be NULL. */
    void (*failed)(void *user, const struct tutti_error *why);
    void *user;
};

/* Opens an engine and starts its threads. A model has at most one engine at a time.
 * All memory that serving needs is reserved here, so running requests cannot run out of it. */
TUTTI_API enum tutti_status tutti_engine_open(tutti_engine **out, tutti_model *model,
                                              const struct tutti_engine_options *options,
                                              struct tutti_error *err);

/* Cancels running requests; waits until every callback has returned and every thread has ended.
 * NULL is allowed. */
TUTTI_API void tutti_engine_close(tutti_engine *engine);

/* Refuses new requests with TUTTI_E_CLOSED from now on; requests in the queue and running ones
 * complete. */
TUTTI_API void tutti_engine_drain(tutti_engine *engine);

/* ---- requests ---- */

/* The form of a message's content. A chat template may treat null or absent content differently
 * from an empty text. */
enum tutti_content {
    TUTTI_CONTENT_TEXT = 0,
    TUTTI_CONTENT_NULL,   /* JSON's null; content is empty */
    TUTTI_CONTENT_ABSENT, /* the message has no such field; content is empty */
};

struct tutti_message {
    const char *role; /* "system", "user", "assistant", "tool" (or "observation") */
    const char *content;
    size_t n_bytes;   /* of content */
    const char *name; /* tool call's or author's name; may be NULL */

    /* Each may be NULL. */
    const char *tool_calls;   /* of the assistant: a JSON list as in OpenAI's API */
    const char *tool_call_id; /* of a tool's answer */
    const char *reasoning;    /* of the assistant: its reasoning before the content */
    enum tutti_content content_kind;
};

struct tutti_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -100 bans, 100 forces, as in OpenAI's API */
};

struct tutti_string {
    const char *text;
    size_t n_bytes;
};

/* Sampling parameters. Fill with tutti_sampling_init() first. Order of application: logit bias,
 * repetition penalty, presence and frequency penalties, temperature, top-k, top-p, min-p,
 * typical-p, draw. */
struct tutti_sampling {
    float temperature; /* 0: greedy; [0, 100] */
    int top_k;         /* 0: off */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off; relative to the most probable token */
    /* [0, 1]; 0 and 1: off. Probability mass to keep, of the tokens whose information content is
     * nearest to the entropy (Meister et al., 2022, "Locally Typical Sampling"). */
    float typical_p;
    /* [0.01, 100]; 1: off; over prompt and answer, as in transformers (Keskar et al., 2019). */
    float repetition_penalty;
    float presence_penalty;  /* [-2, 2]; over the answer, as in OpenAI's API */
    float frequency_penalty; /* [-2, 2] */
    bool has_seed;
    uint64_t seed;
    const struct tutti_logit_bias *logit_bias;
    size_t n_logit_bias;
};

/* Sets the model's defaults (generation_config.json, else config.json; of GGUF general.sampling.*), else its
 * family's. model NULL: temperature 1, all else off. */
TUTTI_API void tutti_sampling_init(struct tutti_sampling *out, const tutti_model *model);

/* When a beam search ends that has n_beams finished answers, as transformers' early_stopping. */
enum tutti_early_stopping {
    TUTTI_EARLY_STOPPING_FALSE = 0, /* when no beam is likely to become better than the finished answers */
    TUTTI_EARLY_STOPPING_TRUE,      /* at once */
    TUTTI_EARLY_STOPPING_NEVER,     /* when no beam can become better than the finished answers */
};

/* The kind of grammar that constrains an answer. */
enum tutti_grammar_kind {
    TUTTI_GRAMMAR_NONE = 0,
    TUTTI_GRAMMAR_GBNF,        /* llama.cpp's grammar notation; the whole text matches rule "root" */
    TUTTI_GRAMMAR_JSON_SCHEMA, /* JSON that is valid by a schema, with properties in the schema's order */
    TUTTI_GRAMMAR_JSON_OBJECT, /* any JSON object; grammar is empty */
    TUTTI_GRAMMAR_PATTERN,     /* a regular expression that the whole answer matches */
    /* Calls of tools, written in the model's own form if it has a grammar (tutti_model_info.written_form),
     * with arguments that are valid by the tools' schemas. With messages and shows_marks, for
     * tutti_tool_parser_new(). grammar: a JSON object with
     *   tools      a list as in tutti_request.tools
     *   name       the only tool that may be called; absent: any
     *   parallel   true: several calls, where the form has a way to write them; else one
     *   reasoning  false: no reasoning before the call, where it is part of the form (harmony) */
    TUTTI_GRAMMAR_TOOL_CALLS,
    /* The same, but the answer may have text as well, and need not have a call; only tools with "strict": true
     * have their arguments constrained. */
    TUTTI_GRAMMAR_TEXT_OR_CALLS,
};

/* Requests with a lower number start sooner, as in vLLM. */
enum { TUTTI_PRIORITY_FIRST = -10, TUTTI_PRIORITY_LAST = 10 };
enum { TUTTI_PRIORITIES = TUTTI_PRIORITY_LAST - TUTTI_PRIORITY_FIRST + 1 };

enum { TUTTI_NO_REASONING = -1 };

struct tutti_request {
    /* Exactly one kind of prompt: ids, messages, or text. */
    const int32_t *ids; /* used as they are */
    size_t n_ids;
    const struct tutti_message *messages; /* rendered by the model's chat format */
    size_t n_messages;
    const char *tools; /* with messages: a JSON list of tools as in OpenAI's API; NULL: none */
    /* With messages: a JSON object of further variables for the chat template, such as
     * {"enable_thinking": false}; NULL: none. add_generation_prompt and continue_final_message work
     * as in apply_chat_template() of transformers. */
    const char *template_arguments;
    const char *text; /* tokenized with add_special, see tutti_tokenize() */
    size_t n_text_bytes;
    bool parse_special; /* text is tokenized as by tutti_tokenize_trusted() */
    /* With text, of encoders: the second text of a pair, joined as the model's tokenizer says; never
     * parsed for special tokens. NULL: none. */
    const char *pair;
    size_t n_pair_bytes;

    const char *adapter; /* the name of one of the model's adapters; NULL: none */

    struct tutti_sampling sampling;
    int n_choices;                   /* 1..128; 0 is 1; choices share the prompt's KV pages */
    int max_tokens;                  /* of each choice's answer; 0: as many as the context holds */
    const struct tutti_string *stop; /* the answer ends before the first of these strings; up to 16 */
    size_t n_stop;
    const int32_t *stop_ids; /* in addition to the model's stop tokens */
    size_t n_stop_ids;
    /* Recompute every token from position 0 instead of using the KV cache: slow, with identical
     * bits. For tests. */
    bool no_kv_cache;
    /* Beam search: number of beams, 2..64; 0 or 1: off. The n_choices best answers are reported at
     * the end, complete, choice 0 being the best. Log-probabilities are taken before logit bias and
     * penalties, scores after, as in transformers. Beam search draws nothing, so the other fields
     * of sampling are ignored. stop and top_logprobs must be empty. Needs n_beams free sequences,
     * and a KV cache that holds n_beams answers of full length with their prompt: else
     * TUTTI_E_LIMIT. */
    int n_beams;
    /* Score of a finished answer: its sum of log-probabilities / length ^ length_penalty;
     * transformers' default is 1. */
    double length_penalty;
    enum tutti_early_stopping early_stopping;
    /* Constrained decoding: only tokens that the grammar allows are drawn. The answer may end only
     * where the grammar is complete. Its text is reported unchanged, without the chat format's
     * hiding and rewriting. Not with n_beams. An error in the grammar is reported in an event with
     * TUTTI_E_ARGUMENT and names line and column, or the location in the schema. docs/grammars.md
     * says what is supported. */
    enum tutti_grammar_kind grammar_kind;
    const char *grammar;
    size_t n_grammar_bytes; /* up to 1 MiB */

    /* With messages: special tokens that mark reasoning and tool calls are part of the text, for
     * tutti_reasoning_parser_new() and tutti_tool_parser_new(), and a grammar applies to the answer
     * after the reasoning. */
    bool shows_marks;
    /* With shows_marks: most tokens of the reasoning, after which the model is made to answer; 0: no
     * limit; TUTTI_NO_REASONING: none. No effect on models without reasoning. */
    int max_reasoning_tokens;

    /* Fair queueing: which requests start first while the engine is full. Among requests of equal
     * priority, owners share the machine by weight, measured in tokens, no matter how many requests
     * each owner has. Requests of one owner start in order of arrival. A waiting request gains one
     * priority every ten seconds, so none waits for ever. */
    uint64_t owner; /* 0: unknown; all requests with 0 count as one owner */
    double weight;  /* of the owner, from 0.001 to 1000; 0: 1 */
    int priority;   /* TUTTI_PRIORITY_FIRST..TUTTI_PRIORITY_LAST */
    /* Longest time in the queue, where it is shorter than the engine's max_queue_ms; 0: the
     * engine's; -1: no limit, for further requests of a job whose first request was admitted,
     * because the job needs all of them. */
    int max_queue_ms;
    /* The prefix cache is divided by tenant: a cached page is reused only by requests of the tenant
     * that computed it, in memory and in kv_spill_dir. Otherwise n_cached_tokens and the time to
     * first token would reveal to a client how the prompts of other clients begin. To reuse pages
     * in kv_spill_dir after a restart, a tenant must keep its number. All requests with 0 are one
     * tenant. */
    uint64_t tenant;

    /* Maximum draft tokens per step, from any source; -1: none; 0: the engine's limits. */
    int max_draft_tokens;
    bool keeps_stop;   /* include the stop string that ends the answer */
    bool reports_held; /* send an event for each token, even while its text is held back */
    bool ignore_eos;   /* go on to max_tokens; for benchmarks */
    bool logprobs;     /* report the log-probability of each token */
    int top_logprobs;  /* and of the 0..20 most probable tokens */
    /* Report log-probabilities of the prompt's tokens, in the first event: at most 262,144 of them and of
     * their top_logprobs alternatives. Not with n_beams, and
     * not for models with bidirectional attention over the prompt (ChatGLM-6B), whose prompt tokens
     * have no such probability. */
    bool prompt_logprobs;
    /* Prefill only: the request ends after the prefill with TUTTI_FINISH_LENGTH. The prompt may
     * fill the whole context. Settings of the answer are ignored; all choices end together. */
    bool no_answer;
    enum tutti_embedding embedding; /* not NONE: implies no_answer; n_choices must be 1 */
};

/* Renders messages to the token ids of a prompt by the model's chat format, exactly as
 * tutti_engine_submit() does. Of request, only messages, n_messages, tools and template_arguments
 * are used. *n_ids: number of ids of the whole prompt, which may exceed max_ids; ids then has the
 * first max_ids. TUTTI_E_ARGUMENT with err->param: the model has no chat format, or the format
 * cannot express a message. */
TUTTI_API enum tutti_status tutti_apply_chat_template(const tutti_model *model,
                                                      const struct tutti_request *request, int32_t *ids,
                                                      size_t max_ids, size_t *n_ids, struct tutti_error *err);

/* Another file of the project that a text with a gap belongs to. */
struct tutti_infill_file {
    const char *name, *text;
    size_t n_name_bytes, n_text_bytes;
};

/* A text with a gap that the model is to fill ("fill in the middle", FIM). */
struct tutti_infill {
    const char *prefix, *suffix; /* before and after the gap */
    size_t n_prefix_bytes, n_suffix_bytes;
    const struct tutti_infill_file *files; /* the most important one last */
    size_t n_files;
    const char *project, *name; /* of the text; NULL: "myproject" and "filename", as in llama-server */
    size_t n_project_bytes, n_name_bytes;
    size_t n_reserved; /* of max_ids, which files must leave to the answer */
};

/* Renders a text with a gap to the token ids of a prompt, in the order and with the special tokens that
 * the model's authors trained. The text's own bytes never become special tokens. Files that do not fit are
 * left out, the first ones first: *n_left_out. TUTTI_E_ARGUMENT: the model's vocabulary has no tokens for
 * it. TUTTI_E_LIMIT: prefix and suffix have more than max_ids tokens. */
TUTTI_API enum tutti_status tutti_apply_infill(const tutti_model *model, const struct tutti_infill *infill,
                                               int32_t *ids, size_t max_ids, size_t *n_ids,
                                               size_t *n_left_out, struct tutti_error *err);

/* The tokens that end such an answer in addition to the model's: tutti_request.stop_ids should have them.
 * Returns their number, which may exceed max_ids; ids then has the first max_ids. */
TUTTI_API size_t tutti_infill_stops(const tutti_model *model, int32_t *ids, size_t max_ids);

enum tutti_finish {
    TUTTI_FINISH_NONE = 0, /* more will come */
    TUTTI_FINISH_STOP,     /* a stop token or stop string */
    TUTTI_FINISH_LENGTH,   /* max_tokens or the context's end */
    TUTTI_FINISH_CANCELLED,
    TUTTI_FINISH_ERROR, /* event.error says why */
};

struct tutti_top_token {
    int32_t id;
    float logprob;     /* natural logarithm; of the distribution before temperature and truncation */
    const char *bytes; /* the token's own bytes: may be part of a character */
    size_t n_bytes;
};

struct tutti_token {
    int32_t id;
    float logprob;
    const char *bytes;
    size_t n_bytes;
    const struct tutti_top_token *top; /* [n_top], most probable first */
    int n_top;
    /* Bytes of the choice's text up to the end of this token's; of a token of the prompt 0. A stop string may cut the
     * text before. Where the chat format rewrites an answer, as that of ChatGLM2 does, before that. */
    size_t text_end;
};

/* A part of one choice's answer. All pointers are valid during the callback only. */
struct tutti_event {
    uint64_t request_id;
    int choice; /* 0..n_choices-1 */

    const char *text; /* new text that no later token can change: whole UTF-8 characters; may be empty */
    size_t n_text_bytes;
    const struct tutti_token *tokens; /* the tokens since the last event, without stop tokens */
    size_t n_tokens;

    /* With prompt_logprobs, in the first event that reports neither an error nor a cancel:
     * [n_prompt_tokens]. The first token has no log-probability: its logprob is 0, and it has no
     * top. Else NULL. */
    const struct tutti_token *prompt_tokens;
    const float *embedding; /* [n_embedding], not normalized, in the only event; else NULL */
    size_t n_embedding;     /* the model's d_model; 1 with has_score */

    bool begins_in_reasoning; /* the prompt ends with the mark that opens the answer's reasoning */

    char held[4]; /* bytes of a character that is not complete yet */
    size_t n_held;

    enum tutti_finish finish; /* not NONE: the choice's last event */
    /* The model's stop token that ended the choice; it is not part of the text. */
    bool has_stop_token;
    int32_t stop_token;
    float stop_logprob;       /* with logprobs */
    bool has_stop_string;     /* a stop string ended the choice */
    size_t stop_string;       /* its index in tutti_request.stop; of several, the longest */
    bool is_last;             /* the request's last event: its id is forgotten */
    struct tutti_error error; /* where finish is TUTTI_FINISH_ERROR */

    /* So far: */
    size_t n_prompt_tokens;                      /* tokens of the prompt */
    size_t n_cached_tokens;                      /* of those, from the prefix cache */
    size_t n_generated_tokens;                   /* of this choice */
    size_t n_accepted_drafts, n_rejected_drafts; /* accepted and rejected draft tokens of this choice */
    float beam_score;                            /* of a beam search, this choice's score; else 0 */
    size_t
        n_searched_tokens; /* of a beam search, in the last event of its first choice: tokens computed by all beams; else 0 */
    uint64_t queue_us, ttft_us, total_us; /* since submission: to first row, to first token, until now */
};

/* Called on the engine's text thread, one call at a time, in order. It must not block: all streams
 * wait for it. It may call tutti_engine_cancel(), and must not call tutti_engine_close(). */
typedef void (*tutti_callback)(void *user, const struct tutti_event *event);

/* Queues a request. What it points to is copied. On success there will be exactly one event with
 * is_last, even after a cancel or when the engine closes. Errors that are found later, such as a
 * prompt longer than the context, are reported in an event with TUTTI_FINISH_ERROR. On failure
 * there is no event. TUTTI_E_BUSY: the queue is full. */
TUTTI_API enum tutti_status tutti_engine_submit(tutti_engine *engine, const struct tutti_request *request,
                                                tutti_callback callback, void *user, uint64_t *request_id,
                                                struct tutti_error *err);

/* Checks, before a request is parsed, whether the queue would admit one of this owner and weight
 * whose priority is at best this one. TUTTI_E_BUSY and TUTTI_E_CLOSED: tutti_engine_submit() would
 * refuse any such request now, with the same text; it is counted as refused. TUTTI_E_ARGUMENT:
 * weight or priority is out of range, as in struct tutti_request. */
TUTTI_API enum tutti_status tutti_engine_check_queue(tutti_engine *engine, uint64_t owner, double weight,
                                                     int priority, struct tutti_error *err);

/* Charges an owner's share for work outside the engine, such as parsing a request that was refused,
 * as if n_tokens had been computed. An owner without recent requests is not charged. */
TUTTI_API void tutti_engine_charge(tutti_engine *engine, uint64_t owner, int64_t n_tokens);

/* Cancels a request: its KV pages are free within two steps. Unknown and ended ids are ignored. */
TUTTI_API void tutti_engine_cancel(tutti_engine *engine, uint64_t request_id);

enum tutti_phase {
    TUTTI_PHASE_WAITING = 0, /* in the queue */
    TUTTI_PHASE_PREFILL,
    TUTTI_PHASE_DECODE,
    TUTTI_PHASE_PREEMPTED, /* it waits to run again, for want of KV cache */
};

/* How far a request is. Of several choices, the one that was computed last. */
struct tutti_progress {
    enum tutti_phase phase;
    int n_prompt_tokens;   /* 0: not tokenized yet */
    int n_cached_tokens;   /* of the prompt, from the prefix cache */
    int n_computed_tokens; /* of prompt and answer, the cached ones included */
};

/* False: unknown and ended ids. The engine's thread does not wait for this. */
TUTTI_API bool tutti_engine_progress(tutti_engine *engine, uint64_t request_id, struct tutti_progress *out);

/* ---- reasoning ---- */

/* Splits one answer of a request with shows_marks into its reasoning and the rest, while it grows or
 * when it is complete. The caller keeps the text. One thread at a time may use a parser. */
typedef struct tutti_reasoning_parser tutti_reasoning_parser;

/* form: tutti_model_info.reasoning_form. is_open: tutti_event.begins_in_reasoning. TUTTI_E_ARGUMENT:
 * an unknown form; TUTTI_E_MEMORY. */
TUTTI_API enum tutti_status tutti_reasoning_parser_new(tutti_reasoning_parser **out, const char *form,
                                                       bool is_open, struct tutti_error *err);
TUTTI_API void tutti_reasoning_parser_free(tutti_reasoning_parser *parser); /* NULL is allowed */

/* A part of an answer; the parts of either kind, joined, are that kind's text without marks. text is
 * valid until the answer moves or tutti_reasoning_parser_next() is called again. */
struct tutti_reasoning_part {
    const char *text;
    size_t n_bytes;
    bool is_reasoning;
};

/* Gets the next part of text, the whole answer so far, which must begin with the same bytes as
 * before. is_end: nothing follows. False: no further part until the answer grows. */
TUTTI_API bool tutti_reasoning_parser_next(tutti_reasoning_parser *parser, const char *text, size_t n_bytes,
                                           bool is_end, struct tutti_reasoning_part *part);

/* Whether the text so far ends within reasoning. */
TUTTI_API bool tutti_reasoning_parser_is_inside(const tutti_reasoning_parser *parser);

/* ---- tool calls ---- */

/* Parses the tool calls of one answer: as deltas while the answer grows, or of the complete answer.
 * The caller keeps the text. One thread at a time may use a parser. */
typedef struct tutti_tool_parser tutti_tool_parser;

/* form: how the model writes calls, tutti_model_info.tool_form; NULL: any form that is known. tools:
 * those that the answer may call, a JSON list as in OpenAI's API. A call of any other tool is
 * content. any_arguments: arguments may be any JSON value; false: an object, or a string that
 * contains one. TUTTI_E_ARGUMENT: an unknown form, or tools that are no list; TUTTI_E_MEMORY. */
TUTTI_API enum tutti_status tutti_tool_parser_new(tutti_tool_parser **out, const char *form,
                                                  const char *tools, bool any_arguments,
                                                  struct tutti_error *err);
/* Another parser with the form and the tools of parser, for another answer. It shares the parsed tools, which may be
 * large: one thread at a time may use parsers that share them. Either may be freed first. TUTTI_E_MEMORY. */
TUTTI_API enum tutti_status tutti_tool_parser_clone(tutti_tool_parser **out, const tutti_tool_parser *parser,
                                                    struct tutti_error *err);
TUTTI_API void tutti_tool_parser_free(tutti_tool_parser *parser); /* NULL is allowed */

/* A part of one call. The arguments of all deltas of an index, joined, are JSON. Pointers are valid
 * until the text moves or tutti_tool_parser_next() is called again. */
struct tutti_tool_call_delta {
    size_t index;     /* of the call, from 0 */
    const char *name; /* not terminated; NULL: not the call's first delta */
    size_t n_name;
    const char *arguments; /* not terminated; may be empty */
    size_t n_arguments;
    bool is_last; /* the call's arguments are complete */
};

/* Gets the next delta of text, the whole answer so far. text may have moved since the last call,
 * but must begin with the same bytes. A delta is never taken back: an answer that ends within a
 * call leaves arguments that end early. False: no further delta until the answer grows. */
TUTTI_API bool tutti_tool_parser_next(tutti_tool_parser *parser, const char *text, size_t n_bytes,
                                      struct tutti_tool_call_delta *delta);

/* The id that the model gave a call that has begun; NULL: none so far. */
TUTTI_API const char *tutti_tool_parser_call_id(const tutti_tool_parser *parser, size_t index);

/* How many bytes of the answer so far are content, whatever follows: the client can have them. Of
 * an answer with calls, what is before the first one. */
TUTTI_API size_t tutti_tool_parser_content(tutti_tool_parser *parser, const char *text, size_t n_bytes);

/* For a complete answer, after tutti_tool_parser_next() returned false: whether the answer ends
 * with complete calls. *n_content: bytes of content before the calls. False: there are no calls, or
 * the answer ends within one; *n_content is n_bytes. */
TUTTI_API bool tutti_tool_parser_is_complete(const tutti_tool_parser *parser, const char *text,
                                             size_t n_bytes, size_t *n_content);

/* ---- statistics ---- */

enum { TUTTI_HISTOGRAM_BUCKETS = 20 };

/* Values in seconds, cumulative counts as in Prometheus: count[i] values were <= bound[i]; n counts
 * all values. */
struct tutti_histogram {
    double bound[TUTTI_HISTOGRAM_BUCKETS];
    uint64_t count[TUTTI_HISTOGRAM_BUCKETS];
    uint64_t n;
    double sum;
};

/* Requests of one priority that wait for their first step. */
struct tutti_waiting {
    uint64_t n, oldest_us; /* oldest_us: how long the oldest of them has waited */
};

struct tutti_stats {
    uint64_t n_waiting, n_running; /* requests in the queue, sequences in the batch */
    uint64_t kv_pages_total, kv_pages_used, kv_pages_cached, kv_pages_free;
    uint64_t kv_page_tokens;
    uint64_t n_requests, n_finished, n_cancelled, n_failed, n_refused;
    uint64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens;
    uint64_t n_steps, n_preemptions, n_evictions;
    uint64_t n_accepted_drafts, n_rejected_drafts; /* draft tokens; accepted ones are generated tokens too */
    /* Of kv_spill_dir and kv_spill_host_bytes: */
    uint64_t kv_spill_slots, kv_spill_pages;            /* capacity of the file, and pages in it */
    uint64_t kv_spill_host_slots, kv_spill_host_pages;  /* of host memory */
    uint64_t kv_spill_host_bytes;                       /* of its pages */
    uint64_t n_spilled_pages, n_spilled_bytes;          /* written to the file */
    uint64_t n_restored_pages, n_restored_bytes;        /* restored from host memory and from the file */
    uint64_t n_host_restored_pages;                     /* of those, from host memory, without the file */
    uint64_t n_spill_looked_up_pages;                   /* full pages of prompts that were not in the pool */
    uint64_t n_spill_found_pages;                       /* of those, found in host memory or in the file */
    uint64_t n_spill_evictions, n_spill_host_evictions; /* pages evicted from the file, from host memory */
    uint64_t n_spill_lost_pages; /* pages evicted from the pool before they could be copied */
    uint64_t n_spill_write_errors, n_spill_read_errors; /* each loses a page */
    /* Of the draft model, or the model's MTP layer: its draft tokens, also counted in n_accepted_drafts and
     * n_rejected_drafts; its forward passes and their rows; and its KV cache, which has as many
     * pages as the target's. */
    uint64_t n_accepted_model_drafts, n_rejected_model_drafts, n_draft_passes, n_draft_rows;
    uint64_t draft_pages_used, draft_pages_cached;
    uint64_t n_late_masks;  /* rows whose results were dropped because the token mask was late */
    uint64_t n_text_waits;  /* steps that waited for the text thread */
    uint64_t n_ahead_steps; /* steps submitted before the tokens of the step before were known */
    /* Refused requests: the queue was full; the predicted wait was too long; the time in the queue
     * ran out. */
    uint64_t n_refused_full, n_refused_early, n_timed_out;
    struct tutti_waiting waiting[TUTTI_PRIORITIES]; /* index 0: TUTTI_PRIORITY_FIRST */
    /* Work in the queue, and the rate at which it starts; 0: not known. */
    double waiting_tokens, waiting_tokens_per_s;
    int max_context;       /* largest number of tokens of one sequence */
    bool is_full;          /* the queue has no room for a request now */
    bool has_prefix_cache; /* full pages of prompts are kept for prompts that begin with the same tokens */
    struct tutti_histogram ttft, inter_token, step, queue;
};
TUTTI_API void tutti_engine_stats(tutti_engine *engine, struct tutti_stats *out);

/* A device that computes and has memory of its own, such as a card. Zero: the driver does not say. */
struct tutti_device {
    char id[16];      /* as tutti_model_options.device takes it: "cuda:0" */
    char name[64];    /* the driver's; "": there is no such device, the CPU computes */
    int capability;   /* 10 * major + minor */
    int kernel_level; /* of the kernels that it runs, likewise; 0: none */
    int driver;       /* the CUDA version that the driver is for: 1000 * major + 10 * minor */
    int n_multiprocessors;
    int clock_mhz;      /* at most */
    double memory_gbps; /* of its memory, at most, by clock and width: 1 G = 1e9 bytes */
    uint64_t memory_bytes;
    uint64_t free_bytes;    /* of all processes together */
    double busy_seconds;    /* in which it worked on steps, since the model was opened */
    double loading_seconds; /* that the driver took to compile and load kernels */
};

/* The device of this process. Seconds are with the draft model's. Asks the driver, which takes microseconds: not for every
 * request. */
TUTTI_API void tutti_engine_device(tutti_engine *engine, struct tutti_device *out);

/* The devices of this machine other than the CPU, at most max. *n: their number. Opens each for a moment.
 * TUTTI_E_UNSUPPORTED with param device: there is no driver, or no device. */
TUTTI_API enum tutti_status tutti_devices(struct tutti_device *out, int max, int *n, struct tutti_error *err);

#ifdef __cplusplus
}
#endif
#endif
