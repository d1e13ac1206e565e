/* tutti: run one language model for many users at once.
 *
 * Three objects. A *model* is a checkpoint loaded and packed for this machine. An *engine* owns the KV cache, the
 * scheduler and three kinds of threads, and answers any number of requests from one model. A *request* is a prompt
 * with sampling settings; its answer arrives through a callback, piece by piece, until one event says finish.
 *
 * What a request is answered with never depends on the other requests: logits are bit-identical alone and among
 * many, so greedy and seeded answers are byte-identical too.
 *
 * Threads: every function may be called from any thread, except where its comment says otherwise.
 * Strings are UTF-8. Pointers inside options and requests are borrowed for the duration of the call alone. */
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

/* ---- errors ---------------------------------------------------------------------------------------------------- */

enum tutti_status {
    TUTTI_OK = 0,
    TUTTI_E_ARGUMENT,    /* a field of the request or an option is wrong; HTTP 400 */
    TUTTI_E_FORMAT,      /* a file is not what its format demands */
    TUTTI_E_UNSUPPORTED, /* well-formed, but of a kind that tutti does not run */
    TUTTI_E_IO,          /* the system refused to open, read, write or listen */
    TUTTI_E_NOT_FOUND,   /* no such file, model, tensor or request; HTTP 404 */
    TUTTI_E_MEMORY,      /* the system has no more memory or threads */
    TUTTI_E_LIMIT,       /* can never fit: context length, KV memory; HTTP 400 with both figures */
    TUTTI_E_BUSY,        /* the queue is full, try later; HTTP 429 */
    TUTTI_E_CLOSED,      /* the engine is draining or closed; HTTP 503 */
    TUTTI_E_CANCELLED,   /* the caller cancelled the request */
    TUTTI_E_NUMERIC,     /* the model produced NaN or infinite logits; this request alone ends */
    TUTTI_E_INTERNAL,    /* a defect of tutti itself */
    TUTTI_E_TIMEOUT,     /* a request had not begun when its time in the queue was over; HTTP 503 */
};

/* What went wrong, for a person: which file, tensor or field, what was found, what was expected. Plain memory that
 * may be copied freely. Functions that take one accept NULL. */
struct tutti_error {
    enum tutti_status status;
    char param[64]; /* the request field at fault, for example "temperature"; "" where there is none */
    char text[512];
    /* Of TUTTI_E_BUSY and TUTTI_E_TIMEOUT: when it is worth trying again; 0: not known. */
    uint32_t retry_after_ms;
    /* Of TUTTI_E_LIMIT: the tokens of context that prompt and answer exceed; 0: it is another limit. */
    uint32_t context_tokens;
};

/* A short name, "format" for TUTTI_E_FORMAT. Never NULL. */
TUTTI_API const char *tutti_status_name(enum tutti_status status);

/* "0.1.0". */
TUTTI_API const char *tutti_version(void);

/* ---- ranks ---------------------------------------------------------------------------------------------------------

 * Several processes that run one model together, each with its share of the weights (tensor parallelism; docs/cluster.md). Each calls
 * the same functions up to the opening of the model and its adapters; then rank 0 uses it, and the others follow. */

typedef struct tutti_ranks tutti_ranks;

/* Joins the processes that mpirun (or srun) started: n_ranks in each of n_groups groups. On success *out is the caller's, for
 * tutti_ranks_close() after the model is closed. TUTTI_E_UNSUPPORTED: this library was built without MPI. TUTTI_E_ARGUMENT:
 * another number of processes was started. */
TUTTI_API enum tutti_status tutti_ranks_open(tutti_ranks **out, int n_ranks, int n_groups,
                                             struct tutti_error *err);
TUTTI_API void tutti_ranks_close(tutti_ranks *ranks); /* NULL is allowed */

/* Which process this is, 0 to n_ranks - 1, in which group. NULL: 0. */
TUTTI_API int tutti_ranks_rank(const tutti_ranks *ranks);
TUTTI_API int tutti_ranks_group(const tutti_ranks *ranks);

/* Data parallelism: called by rank 0 of every group when its engine is closed and its model is not. Each brings n_bytes, in its own time;
 * group 0 has take() called for each of the others, in the order of the groups. bytes are valid during the call.
 * TUTTI_E_IO: a process was lost, which the text names. */
TUTTI_API enum tutti_status tutti_ranks_collect(tutti_ranks *ranks, const void *bytes, size_t n_bytes,
                                                void (*take)(void *user, int group, const void *bytes,
                                                             size_t n_bytes),
                                                void *user, struct tutti_error *err);

/* ---- model ----------------------------------------------------------------------------------------------------- */

typedef struct tutti_model tutti_model;

/* Zero-initialise, then set what differs from the default. */
struct tutti_model_options {
    int n_threads;           /* compute threads; 0: one for each core that this process may use */
    bool pin_threads;        /* bind each compute thread to a core */
    const char *weight_type; /* NULL: as stored; "bf16", "q8_0", "q4_k_m", ...: converted while loading */
    /* NULL or "f16"; "f32"; "int8": a scale for each token and head, half the memory of f16. */
    const char *kv_type;
    /* NULL: from the checkpoint; else a name such as "chatglm3" or "llama2", "template" (the one that the checkpoint carries), or
     * the path of a file with a Jinja template. */
    const char *chat_format;
    const char *cpu; /* NULL: the best this processor has; "ref", "avx2", "avx512": at most that, for tests */
    /* NULL: this process alone; else those that run the model together. Borrowed while the model is open. */
    tutti_ranks *ranks;
    /* Called from the calling thread while weights are packed; done and total in bytes. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

/* Loads the checkpoint at path: a Hugging Face folder, a GGUF file, or another that docs/checkpoints.md names.
 * On success *out is the caller's, for tutti_model_close() after every engine on it is closed. */
TUTTI_API enum tutti_status tutti_model_open(tutti_model **out, const char *path,
                                             const struct tutti_model_options *options,
                                             struct tutti_error *err);
TUTTI_API void tutti_model_close(tutti_model *model); /* NULL is allowed */

/* Ranks above 0: does what rank 0 does with the model, until that closes it. TUTTI_E_IO: a rank was lost, which the text
 * names. */
TUTTI_API enum tutti_status tutti_model_follow(tutti_model *model, struct tutti_error *err);

struct tutti_model_info {
    const char *name;        /* the folder's or file's name without extension; lives as long as the model */
    const char *family;      /* "chatglm", "llama" */
    const char *chat_format; /* "chatglm3", "template"; "" where the model has none */
    const char *weight_type; /* converted to, or of most of the weights as stored: "f16", "q4_k" */
    const char *kv_type;     /* "f16", "f32" or "int8" */
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab;
    int n_ctx;                   /* tokens of context the model was made for */
    uint64_t n_params;           /* weights, counted once */
    uint64_t weight_bytes;       /* resident size of the packed weights */
    uint64_t kv_bytes_per_token; /* over all layers, keys and values */
    bool has_tokenizer;
};
TUTTI_API void tutti_model_info(const tutti_model *model, struct tutti_model_info *out);

/* Adds an adapter: a folder with low-rank updates (LoRA) as PEFT saves them, of any layout of the model's family. Several
 * may be loaded; each request chooses one, or none. name: 1 to 127 bytes without ':'. Must not run while an engine is open
 * on the model. Errors name file and tensor. TUTTI_E_UNSUPPORTED: the folder holds more than low-rank updates of
 * linear layers. */
TUTTI_API enum tutti_status tutti_model_add_adapter(tutti_model *model, const char *name, const char *path,
                                                    struct tutti_error *err);
TUTTI_API int tutti_model_n_adapters(const tutti_model *model);
/* In the order of loading; lives as long as the model. NULL: index is out of range. */
TUTTI_API const char *tutti_model_adapter_name(const tutti_model *model, int index);

/* Text to ids, without the ids that the model's format puts around a prompt unless add_special.
 * Returns the number of ids of the whole text (may exceed max_ids; ids then holds the first max_ids). -1: the model
 * has no tokenizer, or there is no memory. Text never yields special tokens by spelling them. */
TUTTI_API int64_t tutti_tokenize(const tutti_model *model, const char *text, size_t n_bytes, bool add_special,
                                 int32_t *ids, size_t max_ids);

/* The same of a text that the caller trusts, such as a prompt that is written out with the marks of a chat format: special
 * tokens that it spells become them, and what add_special would put in front is not put there twice. */
TUTTI_API int64_t tutti_tokenize_trusted(const tutti_model *model, const char *text, size_t n_bytes,
                                         bool add_special, int32_t *ids, size_t max_ids);

/* Ids to text as the tokenizer's reference library decodes them; ids that only pad the vocabulary have no text. Returns the number of bytes of the whole text
 * (without terminator; may exceed max_bytes), or -1: no tokenizer, no memory, or an id outside the vocabulary. */
TUTTI_API int64_t tutti_detokenize(const tutti_model *model, const int32_t *ids, size_t n_ids, char *text,
                                   size_t max_bytes);

/* float32 logits of every position of one sequence, for checking a model: [n_ids][n_vocab].
 * Must not run while an engine is open on the model. */
TUTTI_API enum tutti_status tutti_model_logits(tutti_model *model, const int32_t *ids, size_t n_ids,
                                               float *logits, struct tutti_error *err);

/* ---- engine ---------------------------------------------------------------------------------------------------- */

typedef struct tutti_engine tutti_engine;

struct tutti_engine_options {
    uint64_t kv_bytes; /* KV cache; 0: from free memory, at most what max_seqs full contexts can use */
    int max_context; /* tokens of one sequence; 0: the model's, or what the KV cache holds if that is less */
    /* Rows of a step; 0: 256. A model that reads prompts in both directions (ChatGLM-6B) gets at least max_context +
     * max_seqs, so that any prompt fits into one step. */
    int max_batch_tokens;
    int max_seqs;  /* sequences that run at the same time; 0: 256 */
    int max_queue; /* requests that wait beyond those, each choice counted; 0: 1024 */
    int max_queue_ms; /* a request that has not begun by then is refused, sooner if it can be foreseen; 0: never */
    bool no_prefix_cache;  /* do not reuse pages of earlier prompts */
    uint64_t default_seed; /* for requests without a seed: 0 takes one from the system */
    /* While prompts are read, a step may take this many times as long as one that only decodes, above 1 to 1000; 0: 2.
     * More reads prompts sooner, less keeps the tokens of the others coming evenly. */
    double max_slowdown;
    /* Speculative decoding: tokens of a sequence that are guessed and verified in one step, 0 to 32; 0: none. What comes
     * out is the same, the seeds' texts too. Guesses are what stood behind the same tokens before, in prompt or answer; how
     * many are verified follows from how often they are right, and from what rows cost. */
    int max_guesses;
    /* Pages of the prefix cache that are about to be given away go to a file in this folder, and come back when a prompt begins
     * as they do; those that are left when the engine closes go there too, which may take ten seconds. The file outlives the
     * engine, and is started anew where another model or other arithmetic has written it. NULL: none. Not with
     * no_prefix_cache, and not for models that read prompts in both directions. One engine at a time can use a folder: else
     * TUTTI_E_BUSY. */
    const char *kv_spill_dir;
    uint64_t kv_spill_bytes; /* size of that file at most; 0: 8 GiB */
    /* A second, smaller model with the same vocabulary, which guesses too, up to max_draft_tokens (1 to 32; 0: 8) of a sequence;
     * NULL: none. It gets a share of kv_bytes that holds as many tokens. Not closed before the engine, nor used by another.
     * Where both kinds have a guess, the one that was right more often is taken. */
    tutti_model *draft;
    int max_draft_tokens;
    /* Called once, on a thread of the engine, where it can compute nothing any more, since another rank of the model was lost: every
     * request ends with that error (TUTTI_E_CLOSED), and further ones are refused. May be NULL. */
    void (*failed)(void *user, const struct tutti_error *why);
    void *user;
};

/* Starts the engine's threads. One engine for each model at a time.
 * Everything that serving needs is reserved here; later requests cannot run out of memory half-way. */
TUTTI_API enum tutti_status tutti_engine_open(tutti_engine **out, tutti_model *model,
                                              const struct tutti_engine_options *options,
                                              struct tutti_error *err);

/* Cancels what still runs, waits until every callback has returned and every thread has ended. NULL is allowed. */
TUTTI_API void tutti_engine_close(tutti_engine *engine);

/* From now on submissions are refused with TUTTI_E_CLOSED; what runs goes on to its end. */
TUTTI_API void tutti_engine_drain(tutti_engine *engine);

/* ---- requests -------------------------------------------------------------------------------------------------- */

/* The form of a message's content. A chat template may treat null or absent content differently from an empty text. */
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
    const char *reasoning;    /* of the assistant: what it thought before the content */
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

/* How tokens are chosen. Fill with tutti_sampling_init() first.
 * Order of application: logit bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p,
 * min-p, typical-p, draw. */
struct tutti_sampling {
    float temperature; /* 0: greedy; [0, 100] */
    int top_k;         /* 0: off */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off; relative to the most probable token */
    /* [0, 1]; 0 and 1: off. Of the tokens whose information is nearest to the entropy, the share that is kept (Meister et
     * al., 2022, "Locally Typical Sampling"). */
    float typical_p;
    /* > 0; 1: off; over prompt and answer, as in transformers (Keskar et al., 2019). */
    float repetition_penalty;
    float presence_penalty;  /* [-2, 2]; over the answer, as in OpenAI's API */
    float frequency_penalty; /* [-2, 2] */
    bool has_seed;
    uint64_t seed;
    const struct tutti_logit_bias *logit_bias;
    size_t n_logit_bias;
};

/* Defaults: the model's own (generation_config.json), else the family's. model NULL: temperature 1, all else off. */
TUTTI_API void tutti_sampling_init(struct tutti_sampling *out, const tutti_model *model);

/* When a beam search with as many ended answers as beams is over, as transformers' early_stopping. */
enum tutti_early_stopping {
    TUTTI_EARLY_STOPPING_FALSE = 0, /* when no beam is likely to become better than they are */
    TUTTI_EARLY_STOPPING_TRUE,      /* at once */
    TUTTI_EARLY_STOPPING_NEVER,     /* when no beam can become better than they are */
};

/* What the text of an answer must be. */
enum tutti_grammar_kind {
    TUTTI_GRAMMAR_NONE = 0,
    TUTTI_GRAMMAR_GBNF,        /* llama.cpp's notation of grammars; the whole text is a "root" */
    TUTTI_GRAMMAR_JSON_SCHEMA, /* JSON that is valid by a schema, with properties in its order */
    TUTTI_GRAMMAR_JSON_OBJECT, /* any JSON object; there is no text to it */
    TUTTI_GRAMMAR_PATTERN,     /* a regular expression, which the whole answer matches */
};

/* Requests with a lower number begin sooner, as in vLLM. */
enum { TUTTI_PRIORITY_FIRST = -10, TUTTI_PRIORITY_LAST = 10 };
enum { TUTTI_PRIORITIES = TUTTI_PRIORITY_LAST - TUTTI_PRIORITY_FIRST + 1 };

/* What a request wants instead of an answer: one vector for its prompt, made of the hidden states behind the model's last
 * norm, which are what logits are made of. */
enum tutti_embedding {
    TUTTI_EMBEDDING_NONE = 0,
    TUTTI_EMBEDDING_MEAN, /* their mean over all tokens of the prompt */
    TUTTI_EMBEDDING_LAST, /* that of the last token */
};

struct tutti_request {
    /* Exactly one kind of prompt: ids, messages, or text. */
    const int32_t *ids; /* used as they are */
    size_t n_ids;
    const struct tutti_message *messages; /* rendered by the model's chat format */
    size_t n_messages;
    const char *tools; /* with messages: a JSON list of tools as in OpenAI's API; NULL: none */
    /* With messages: a JSON object of further variables for the model's chat template, such as {"enable_thinking": false}; NULL:
     * none. add_generation_prompt and continue_final_message are as in apply_chat_template() of transformers. */
    const char *template_arguments;
    const char *text; /* tokenized with the ids that the model puts in front of a text */
    size_t n_text_bytes;
    bool parse_special; /* of text: as tutti_tokenize_trusted(). Without it no text becomes a special token */

    const char *adapter; /* the name of one of the model's adapters; NULL: none */

    struct tutti_sampling sampling;
    int n_choices;                   /* 1..128; 0 is 1; choices share the prompt's KV pages */
    int max_tokens;                  /* of the answer, each choice; 0: as many as the context holds */
    const struct tutti_string *stop; /* the text before the first of these is the answer; up to 16 */
    size_t n_stop;
    const int32_t *stop_ids; /* beyond the model's own */
    size_t n_stop_ids;
    /* Every token is computed from position 0 again instead of from stored keys and values: slow, with the same bits. For
     * checking. */
    bool no_kv_cache;
    /* Beam search: 2..64; 0 or 1: none. The n_choices best answers come as a whole at the end, choice 0 the best. Log-probabilities
     * are taken of the logits; logit bias and penalties change those, as in transformers; nothing is drawn, so the other
     * fields of sampling have no meaning. stop and top_logprobs must be empty. Needs n_beams free sequences of the
     * engine, and that the KV cache holds n_beams whole answers with their prompt: else TUTTI_E_LIMIT. */
    int n_beams;
    /* An answer counts as its sum of log-probabilities / length ^ this; transformers' usual value is 1. */
    double length_penalty;
    enum tutti_early_stopping early_stopping;
    /* Constrained decoding: only tokens are drawn whose text goes on as the grammar demands, and the answer may end exactly where
     * the grammar has been read. The text is shown as it is, without what a chat format would hide or replace. Not with
     * n_beams. Faults of the grammar come as an event with TUTTI_E_ARGUMENT, which names line and column or the place in
     * the schema. docs/grammars.md says what is supported. */
    enum tutti_grammar_kind grammar_kind;
    const char *grammar;
    size_t n_grammar_bytes; /* up to 1 MiB */

    /* Who begins when more is asked than can run. Owners whose requests of one priority wait share the machine by their
     * weights, counted in tokens, however many requests each of them has; the requests of an owner begin in the order in which
     * they came. Requests that wait behind better priorities gain one every ten seconds, so none waits for ever. */
    uint64_t owner; /* 0: nobody's; those count as one owner's */
    double weight;  /* of the owner, from 0.001 to 1000; 0: 1 */
    int priority;   /* TUTTI_PRIORITY_FIRST..TUTTI_PRIORITY_LAST */
    /* As the engine's, where that is more; 0: the engine's; -1: none, for a further request of a job
     * whose first request was admitted: the job needs all of them. */
    int max_queue_ms;
    /* The prefix cache is divided by tenant: cached pages are reused only for requests of the tenant that they were computed
     * for, in memory and in kv_spill_dir. A reused prefix shows in n_cached_tokens and in the time to the first token, so
     * without this a client could find out how the prompts of others begin. Keep the number of a tenant across restarts if its
     * pages in kv_spill_dir are to be found again. Requests with 0 are one tenant. */
    uint64_t tenant;

    int max_guesses;   /* > 0: at most so many of the engine's, of either kind; -1: none; 0: the engine's */
    bool keeps_stop;   /* the stop string that ends the answer is a part of it */
    bool reports_held; /* an event for each token, also while its text is not certain yet */
    bool ignore_eos;   /* go on to max_tokens; for benchmarks */
    bool logprobs;     /* report the log-probability of each token */
    int top_logprobs;  /* and of the most probable ones: 0..20 */
    /* The same of the tokens of the prompt, in the first event. Not with n_beams, nor for a model that reads prompts in both
     * directions (ChatGLM-6B), whose tokens have no such probability. */
    bool prompt_logprobs;
    /* The request is over when its prompt has been read, with TUTTI_FINISH_LENGTH; the prompt may fill the whole context. What is
     * said about answers has no meaning then, and choices end together. */
    bool no_answer;
    enum tutti_embedding embedding; /* not NONE: implies no_answer; n_choices must be 1 */
};

enum tutti_finish {
    TUTTI_FINISH_NONE = 0, /* more will come */
    TUTTI_FINISH_STOP,     /* a stop token or stop string */
    TUTTI_FINISH_LENGTH,   /* max_tokens or the context's end */
    TUTTI_FINISH_CANCELLED,
    TUTTI_FINISH_ERROR, /* event.error says why */
};

struct tutti_top_token {
    int32_t id;
    float logprob;     /* natural logarithm, of the distribution before temperature and truncation */
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
};

/* One piece of one choice's answer. Everything it points to is valid during the callback alone. */
struct tutti_event {
    uint64_t request_id;
    int choice; /* 0..n_choices-1 */

    const char *text; /* text that became certain, whole UTF-8 characters; may be empty */
    size_t n_text_bytes;
    const struct tutti_token *tokens; /* the tokens since the last event, the visible ones (no stop token) */
    size_t n_tokens;

    /* With prompt_logprobs, in the first event that does not tell of an error or a cancel: [n_prompt_tokens]. The first
     * token has no log-probability: it says 0, and has no top. Else NULL. */
    const struct tutti_token *prompt_tokens;
    const float *embedding; /* [n_embedding], not normalized, in the only event; else NULL */
    size_t n_embedding;     /* the model's d_model */

    char held[4]; /* bytes of a character that is not complete yet */
    size_t n_held;

    enum tutti_finish finish; /* not NONE: the choice's last event */
    /* The choice ended with this token of the model, which is none of its text. */
    bool has_stop_token;
    int32_t stop_token;
    float stop_logprob;       /* with logprobs */
    bool is_last;             /* the request's last event: its id is forgotten */
    struct tutti_error error; /* where finish is TUTTI_FINISH_ERROR */

    /* So far: */
    size_t n_prompt_tokens;                        /* of the prompt, */
    size_t n_cached_tokens;                        /* and how many of them came from the prefix cache */
    size_t n_generated_tokens;                     /* of this choice */
    size_t n_accepted_guesses, n_rejected_guesses; /* of this choice: tokens that speculation guessed */
    float beam_score;                              /* of a beam search, this choice's; else 0 */
    uint64_t queue_us, ttft_us, total_us; /* since the submission: to first row, to first token, until now */
};

/* Called on the engine's text thread, one call at a time, in order. It must not block: all streams wait for it.
 * It may call tutti_engine_cancel(), and must not call tutti_engine_close(). */
typedef void (*tutti_callback)(void *user, const struct tutti_event *event);

/* Queues a request. What it points to is copied. On success exactly one event with is_last will come (also after a
 * cancel, also when the engine closes); faults that show later (a prompt beyond the context) come as an event with
 * TUTTI_FINISH_ERROR. On failure there is no event. TUTTI_E_BUSY: the queue is full. */
TUTTI_API enum tutti_status tutti_engine_submit(tutti_engine *engine, const struct tutti_request *request,
                                                tutti_callback callback, void *user, uint64_t *request_id,
                                                struct tutti_error *err);

/* Is it worth the while to read a request of this owner, with this weight and at best this priority? TUTTI_E_BUSY and
 * TUTTI_E_CLOSED: tutti_engine_submit() would refuse it now, whatever it asks for, with these words; it counts as refused. */
TUTTI_API enum tutti_status tutti_engine_check_queue(tutti_engine *engine, uint64_t owner, double weight,
                                                     int priority, struct tutti_error *err);

/* Charges an owner's share for work outside of the engine, such as parsing a request that was refused, as if n_tokens had been
 * computed. An owner without recent requests is not charged. */
TUTTI_API void tutti_engine_charge(tutti_engine *engine, uint64_t owner, int64_t n_tokens);

/* Ends a request soon: its KV pages are free within two steps. Unknown or ended ids are ignored. */
TUTTI_API void tutti_engine_cancel(tutti_engine *engine, uint64_t request_id);

/* ---- figures --------------------------------------------------------------------------------------------------- */

enum { TUTTI_HISTOGRAM_BUCKETS = 20 };

/* Seconds, cumulative counts as in Prometheus: count[i] values were <= bound[i]; count of all in n. */
struct tutti_histogram {
    double bound[TUTTI_HISTOGRAM_BUCKETS];
    uint64_t count[TUTTI_HISTOGRAM_BUCKETS];
    uint64_t n;
    double sum;
};

/* Requests of one priority that wait for their first step. */
struct tutti_waiting {
    uint64_t n, oldest_us; /* oldest_us: how long the one that came first has waited */
};

struct tutti_stats {
    uint64_t n_waiting, n_running; /* requests in the queue, sequences in the batch */
    uint64_t kv_pages_total, kv_pages_used, kv_pages_cached, kv_pages_free;
    uint64_t kv_page_tokens;
    uint64_t n_requests, n_finished, n_cancelled, n_failed, n_refused;
    uint64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens;
    uint64_t n_steps, n_preemptions, n_evictions;
    uint64_t n_accepted_guesses, n_rejected_guesses; /* of speculation; accepted ones are generated tokens */
    /* Of kv_spill_dir: */
    uint64_t kv_spill_slots, kv_spill_pages;     /* pages that the file can hold, and holds */
    uint64_t n_spilled_pages, n_spilled_bytes;   /* written */
    uint64_t n_returned_pages, n_returned_bytes; /* read, and put back into the pool */
    uint64_t n_spill_asked_pages; /* full pages of prompts that the pool did not have, and were looked for */
    uint64_t n_spill_found_pages; /* those of them that the file had */
    uint64_t n_spill_evictions;   /* pages of the file that made room for others */
    uint64_t n_spill_lost_pages;  /* pages of the pool given away before they could be written */
    uint64_t n_spill_write_errors, n_spill_read_errors; /* each costs a page */
    /* Of a draft model: its guesses among those, its passes and the rows of them all, and its KV cache, which has as many pages. */
    uint64_t n_accepted_drafts, n_rejected_drafts, n_draft_passes, n_draft_rows;
    uint64_t draft_pages_used, draft_pages_cached;
    uint64_t n_late_masks; /* rows that were computed in vain, since the mask of a grammar came too late */
    uint64_t n_text_waits; /* steps that had to wait for the text thread */
    /* Refused: the queue was full; it could not be worked off in time; their time in it was over. */
    uint64_t n_refused_full, n_refused_early, n_timed_out;
    struct tutti_waiting waiting[TUTTI_PRIORITIES]; /* of TUTTI_PRIORITY_FIRST first */
    double waiting_tokens, waiting_tokens_per_s; /* work in the queue, and how fast it begins; 0: not known */
    int max_context;                             /* tokens that one sequence may hold */
    struct tutti_histogram ttft, inter_token, step, queue;
};
TUTTI_API void tutti_engine_stats(tutti_engine *engine, struct tutti_stats *out);

#ifdef __cplusplus
}
#endif
#endif
