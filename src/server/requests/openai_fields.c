/* Fields of other servers' requests. A field that would change the answer in an unsupported way is
 * refused by name, unless its value has no effect: ignoring it would give a wrong answer. Unknown
 * names are logged and ignored, because clients add fields of their own; a likely misspelling of a
 * known name is refused. */
#include "server/requests/openai_fields.h"

#include "base/json/json_type.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHAT = API_CHAT,
    TEXT = API_COMPLETION,
    BOTH = CHAT | TEXT,
    EMBED = API_EMBEDDING,
    RESP = API_RESPONSES,
    MSG = API_MESSAGES,
    INFILL = API_INFILL,
    COUNT = API_MESSAGES_COUNT,
    STRICT = MSG | COUNT, /* unknown names are refused, as in the original */
    RERANK = API_RERANK,
    IN_MESSAGE = API_IN_MESSAGE,
    IN_FUNCTION = API_IN_FUNCTION,
    IN_ITEM = API_IN_ITEM,
    TOKENIZE = API_TOKENIZE
};
enum { LLAMA = BOTH | INFILL, ALL = LLAMA | EMBED | RESP | RERANK };

struct field_rule {
    unsigned apis;
    /* Values without effect, as JSON separated by '|'; "*": any; IS_READ: the field is read elsewhere. */
    const char *neutral;
    const char *hint;      /* what to use instead; NULL: nothing */
    const char *names[32]; /* of the fields, ends with NULL */
};

static const char IS_READ[] = "read elsewhere";

#define FIELDS(apis, neutral, hint, ...)                                                                     \
    {                                                                                                        \
        apis, neutral, hint,                                                                                 \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
static const struct field_rule RULES[] = {
    /* OpenAI's, and tutti's own */
    FIELDS(ALL, IS_READ, NULL, "model", "user", "metadata", "store", "safety_identifier", "service_tier",
           "prompt_cache_key"),
    FIELDS(LLAMA | RESP, IS_READ, NULL, "stream", "temperature", "top_p", "top_k", "min_p", "typical_p",
           "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop", "speculate",
           "verbosity"),
    FIELDS(LLAMA, IS_READ, NULL, "stop_token_ids", "include_stop_str_in_output", "logit_bias", "max_tokens",
           "n_predict", "ignore_eos", "grammar", "json_schema"),
    FIELDS(INFILL, IS_READ, NULL, "input_prefix", "input_suffix", "input_extra", "prompt", "repo_name",
           "filename", "n_indent", "t_max_predict_ms", "samplers", "response_fields", "timings_per_token",
           "return_tokens"),
    /* llama-server itself has no limit of the prompt's time. */
    FIELDS(INFILL, "*", NULL, "t_max_prompt_ms", "sse_ping_interval"),
    FIELDS(INFILL, "1", "send the request several times", "n_cmpl"),
    FIELDS(BOTH, IS_READ, NULL, "stream_options", "logprobs", "n", "num_beams", "length_penalty",
           "early_stopping", "response_format", "guided_json", "guided_json_object", "guided_regex",
           "guided_choice", "guided_grammar", "structured_outputs"),
    /* stream_options has include_obfuscation: padding of events. max_tool_calls counts tools that a server
     * runs itself; tutti runs none. */
    FIELDS(RESP, "*", NULL, "stream_options", "max_tool_calls"),
    FIELDS(CHAT | RESP, IS_READ, NULL, "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
           "chat_template_kwargs", "reasoning_effort", "enable_thinking", "thinking_budget",
           "thinking_token_budget", "thinking_budget_tokens"),
    FIELDS(TEXT, IS_READ, NULL, "best_of", "echo", "suffix", "prompt"),
    FIELDS(CHAT, "1", "it is a field of /v1/completions", "best_of"),
    FIELDS(CHAT, IS_READ, NULL, "max_completion_tokens", "messages", "functions", "add_generation_prompt",
           "include_reasoning", "separate_reasoning", "reasoning_format", "reasoning_budget",
           "continue_final_message", "documents", "modalities"),
    FIELDS(RESP, IS_READ, NULL, "max_output_tokens", "instructions", "include", "text", "background",
           "truncation", "previous_response_id", "conversation", "prompt", "reasoning"),
    FIELDS(RESP, "[]", "send the conversation as the model is to read it", "context_management"),
    FIELDS(CHAT, "false", "it is a field of /v1/completions", "echo"),
    FIELDS(TEXT | EMBED, IS_READ, NULL, "parse_special"),
    FIELDS(EMBED | RESP, IS_READ, NULL, "input"),
    FIELDS(CHAT, "\"none\"|\"auto\"", "use tool_choice", "function_call"),
    FIELDS(ALL, IS_READ, NULL, "priority", "max_queue_time"),
    FIELDS(EMBED, IS_READ, NULL, "encoding_format", "dimensions", "pooling", "normalize"),
    FIELDS(RERANK, IS_READ, NULL, "query", "documents", "top_n", "return_documents"),
    /* Jina, Cohere */
    FIELDS(RERANK, "[\"text\"]", "documents are strings or objects with text", "rank_fields"),
    FIELDS(RERANK, "false", "cut the documents before they are sent", "truncation"),
    FIELDS(RERANK, "", "cut the documents before they are sent", "max_tokens_per_doc", "max_chunks_per_doc"),
    FIELDS(RERANK, "false", "return_documents returns their text", "return_text"),
    FIELDS(RERANK, "false", "/v1/embeddings returns them", "return_embeddings"),
    FIELDS(ALL, "*", NULL, "prompt_cache_retention"),
    /* OpenAI's predicted output: only affects speed */
    FIELDS(CHAT, "*", NULL, "prediction"),
    FIELDS(CHAT, "", "answers are text", "audio"),
    FIELDS(CHAT, "", "answers come from the model only", "web_search_options"),
    FIELDS(ALL, "", NULL, "moderation"),
    /* vLLM */
    FIELDS(BOTH, IS_READ, NULL, "min_tokens"),
    FIELDS(BOTH, "true", "special tokens are never a part of the text", "skip_special_tokens"),
    /* Special tokens are not shown. */
    FIELDS(BOTH, "*", NULL, "spaces_between_special_tokens", "guided_decoding_backend", "stream_interval"),
    FIELDS(BOTH | EMBED | RERANK, "", "cut the prompt before it is sent", "truncate_prompt_tokens"),
    /* Of truncate_prompt_tokens. */
    FIELDS(BOTH | EMBED | RERANK, "*", NULL, "truncation_side"),
    FIELDS(BOTH, "", "echo with logprobs gives them for /v1/completions", "prompt_logprobs"),
    FIELDS(BOTH, "[]", "use grammar or logit_bias", "allowed_token_ids"),
    FIELDS(BOTH, "[]", "use logit_bias", "bad_words"),
    FIELDS(BOTH, "[]", NULL, "logits_processors", "logprob_token_ids"),
    FIELDS(BOTH, "false", "use num_beams", "use_beam_search"),
    FIELDS(BOTH, "", NULL, "guided_whitespace_pattern", "repetition_detection"),
    FIELDS(BOTH, "", "use tools or a grammar", "structural_tag"),
    FIELDS(TEXT, "[]|\"\"", "send the prompt as text or token ids", "prompt_embeds"),
    FIELDS(BOTH, "0", NULL, "max_repetition_pattern_size", "min_repetition_pattern_size",
           "repetition_min_count"),
    FIELDS(BOTH, "false", NULL, "watermarking"),
    FIELDS(CHAT, "false", "use /tokenize", "return_prompt_text"),
    FIELDS(RESP, "[]", "send the whole conversation as input: nothing is stored", "previous_input_messages"),
    FIELDS(RESP, "false", NULL, "enable_response_messages"),
    FIELDS(TEXT | EMBED, "true", "send the prompt as token ids", "add_special_tokens"),
    FIELDS(CHAT, "false", "the chat template writes them", "add_special_tokens"),
    FIELDS(CHAT | TOKENIZE, "", "the server chooses it with --chat-format", "chat_template"),
    FIELDS(BOTH, "false", "use /tokenize", "return_token_ids"),
    FIELDS(BOTH, "false", NULL, "return_tokens_as_token_ids"),
    FIELDS(CHAT | EMBED | TOKENIZE, "{}", "this model reads text only", "mm_processor_kwargs"),
    FIELDS(CHAT, "{}", "this model reads text only", "media_io_kwargs"),
    FIELDS(BOTH | RESP, "{}", NULL, "kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
    FIELDS(ALL, IS_READ, NULL, "cache_salt"),
    FIELDS(ALL, "*", NULL, "request_id", "session_id"),
    FIELDS(EMBED, "\"float32\"|\"auto\"", NULL, "embed_dtype"),
    FIELDS(EMBED, "\"native\"|\"little\"", NULL, "endianness"),
    FIELDS(EMBED, "false", NULL, "activation"),
    /* llama-server */
    FIELDS(LLAMA, "1", "use repetition_penalty, over prompt and answer", "repeat_penalty"),
    /* repeat_last_n is of repeat_penalty; see check_window(). Contexts are never shifted. */
    FIELDS(LLAMA, "*", NULL, "repeat_last_n", "xtc_threshold", "dry_base", "dry_allowed_length",
           "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "mirostat_tau", "mirostat_eta",
           "smoothing_curve", "n_keep", "n_discard", "cache_prompt", "n_cache_reuse", "id_slot", "slot_id",
           "timings_per_token", "return_progress"),
    FIELDS(LLAMA, "true|false", NULL, "penalize_nl"),
    FIELDS(LLAMA, "1", NULL, "tfs_z"),
    FIELDS(LLAMA, "-1|0", NULL, "top_n_sigma"),
    FIELDS(LLAMA, "-1", NULL, "adaptive_target"), /* adaptive_decay acts only together with it */
    FIELDS(LLAMA, "*", NULL, "adaptive_decay", "backend_sampling"),
    FIELDS(CHAT, "-1", "use thinking_budget", "reasoning_budget_tokens"),
    FIELDS(CHAT, "\"\"", NULL, "reasoning_budget_message"),
    FIELDS(LLAMA, "0", NULL, "xtc_probability", "dry_multiplier", "dynatemp_range", "mirostat",
           "mirostat_mode", "top_a", "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "n_indent"),
    FIELDS(LLAMA, "1", "use typical_p", "typ_p"),
    FIELDS(LLAMA, "[]|\"\"", "their order is fixed", "samplers"),
    FIELDS(LLAMA, "", "use seed", "sampler_seed"),
    FIELDS(LLAMA, "0|1", NULL, "min_keep"),
    FIELDS(LLAMA, "0", "use logprobs", "n_probs"),
    FIELDS(LLAMA, "false", NULL, "post_sampling_probs", "grammar_lazy"),
    FIELDS(LLAMA, "0|-1", NULL, "t_max_predict_ms", "t_max_prompt_ms"),
    FIELDS(LLAMA, "false", "use /tokenize", "return_tokens"),
    FIELDS(LLAMA, "[]", NULL, "response_fields", "grammar_triggers", "preserved_tokens", "input_extra"),
    FIELDS(LLAMA, "[]", "name the adapter in model: ID:NAME", "lora"),
    FIELDS(LLAMA, "[]", "this model reads text only", "image_data", "multimodal_data"),
    FIELDS(LLAMA, "\"\"", NULL, "input_prefix", "input_suffix"),
    FIELDS(CHAT, "false", NULL, "thinking_forced_open"),
    FIELDS(CHAT, "true", NULL, "parse_tool_calls"),
    /* Ollama, Text Generation Inference, SGLang, TensorRT-LLM, OpenRouter */
    FIELDS(BOTH | EMBED, "{}", "give its settings as fields of the request", "options"),
    FIELDS(ALL, "*", NULL, "keep_alive"),
    FIELDS(BOTH, "\"\"", "use response_format", "format"),
    FIELDS(TEXT, "true", NULL, "raw"),
    FIELDS(BOTH, "\"\"", "the server chooses it with --chat-format", "template"),
    FIELDS(BOTH, "\"\"", "send a message of the role system", "system"),
    FIELDS(BOTH, "[]", "send the chat history", "context"),
    FIELDS(BOTH, "[]", "this model reads text only", "images"),
    FIELDS(BOTH, "", "use chat_template_kwargs", "think"),
    FIELDS(BOTH, "", NULL, "guideline", "stop_regex", "session_params"),
    FIELDS(CHAT, "\"\"", NULL, "tool_prompt"),
    FIELDS(BOTH, "false", NULL, "watermark"),
    FIELDS(BOTH, "true", "use temperature: 0 is greedy", "do_sample"),
    FIELDS(BOTH, "", "cut the prompt before it is sent", "truncate"),
    FIELDS(BOTH, "", "use max_tokens", "max_new_tokens"),
    FIELDS(BOTH, "", "use guided_regex", "regex"),
    FIELDS(BOTH, "", "use grammar", "ebnf"),
    FIELDS(BOTH, "false", "use include_stop_str_in_output", "no_stop_trim"),
    FIELDS(CHAT, "*", NULL, "stream_reasoning"),
    FIELDS(CHAT, "", "use enable_thinking", "thinking"),
    FIELDS(BOTH, "", "name the adapter in model: ID:NAME", "lora_path", "lora_request"),
    FIELDS(BOTH, "1", "use num_beams", "beam_width"),
    FIELDS(BOTH, "[]", "one model is served", "models"),
    FIELDS(BOTH, "*", NULL, "provider", "route"),
    FIELDS(BOTH, "[]", NULL, "transforms", "plugins"),
    FIELDS(CHAT, "false", NULL, "safe_prompt"),
    FIELDS(CHAT, "", "use continue_final_message", "prefix"),
    FIELDS(BOTH, "", "use seed", "random_seed"),
    /* Anthropic's, and tutti's own */
    FIELDS(MSG | COUNT, IS_READ, NULL, "model", "messages", "system", "tools", "tool_choice", "thinking",
           "output_config", "output_format", "cache_control", "chat_template_kwargs"),
    FIELDS(MSG, IS_READ, NULL, "max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k",
           "metadata", "service_tier", "seed", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
           "frequency_penalty", "priority", "max_queue_time", "speculate", "cache_salt"),
    FIELDS(MSG | COUNT, "\"standard\"", NULL, "speed"),
    FIELDS(MSG | COUNT, "", "send the whole conversation: nothing is stored", "thread"),
    FIELDS(MSG | COUNT, "[]", "this server connects to no other one", "mcp_servers"),
    FIELDS(MSG | COUNT,
           "{}|{\"edits\":[]}|{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}",
           "send the conversation as the model is to read it", "context_management"),
    FIELDS(MSG, "", "this server runs no code", "container"),
    FIELDS(MSG, "", NULL, "compaction", "diagnostics", "inference_geo", "billing_policy",
           "fallback_credit_token"),
    FIELDS(MSG, "[]", "one model is served", "fallbacks"),
    /* transformers, text-generation-webui and what is built on them */
    FIELDS(BOTH, "0", NULL, "no_repeat_ngram_size", "penalty_alpha", "min_new_tokens"),
    FIELDS(BOTH, "1|0", NULL, "guidance_scale"),
    FIELDS(BOTH, "1", NULL, "encoder_repetition_penalty"),
    FIELDS(BOTH, "1", "use n", "num_return_sequences"),
    FIELDS(BOTH, "[]", "use logit_bias", "bad_words_ids", "suppress_tokens"),
    FIELDS(BOTH, "\"\"", "use logit_bias", "custom_token_bans", "banned_tokens"),
    FIELDS(BOTH, "\"\"", NULL, "negative_prompt"),
    FIELDS(BOTH, "false", "use ignore_eos", "ban_eos_token"),
    FIELDS(BOTH, "false", "use echo", "return_full_text"),
    FIELDS(BOTH, "0", "use repetition_penalty, over prompt and answer", "repetition_penalty_range"),
    /* SGLang, mlx-lm, Text Generation Inference, DashScope */
    FIELDS(BOTH, "", "use logit_bias or a grammar", "custom_logit_processor"),
    FIELDS(BOTH, "{}", NULL, "custom_params"),
    FIELDS(BOTH, "false", NULL, "return_hidden_states"),
    FIELDS(BOTH, "", "name the adapter in model: ID:NAME", "adapters"),
    FIELDS(BOTH, "", "the server chooses it with --draft", "draft_model"),
    FIELDS(BOTH, "0", "use top_logprobs", "top_n_tokens"),
    FIELDS(BOTH, "false", "answers come from the model only", "enable_search"),
    /* Of a message of /v1/chat/completions, and of the function of a tool */
    FIELDS(IN_MESSAGE, IS_READ, NULL, "role", "content", "name", "tool_calls", "tool_call_id", "reasoning",
           "reasoning_content", "thinking", "prefix", "partial"),
    FIELDS(IN_MESSAGE, "", "use tool_calls", "function_call"),
    FIELDS(IN_MESSAGE, "\"\"", "send its text as content", "refusal"),
    FIELDS(IN_MESSAGE, "", "this model reads text only", "audio"),
    FIELDS(IN_MESSAGE, "[]", "this model reads text only", "images"),
    /* Parts of answers, which clients send back; nothing of them is shown to the model. */
    FIELDS(IN_MESSAGE, "*", NULL, "id", "annotations", "reasoning_details", "cache_control"),
    FIELDS(IN_FUNCTION, IS_READ, NULL, "name", "description", "parameters", "strict"),
    FIELDS(IN_ITEM, IS_READ, NULL, "type", "role", "content", "call_id", "name", "namespace", "arguments",
           "output", "summary"),
    FIELDS(IN_ITEM, "*", NULL, "id", "status", "phase", "encrypted_content"),
    /* /tokenize, /detokenize */
    FIELDS(TOKENIZE | API_DETOKENIZE, IS_READ, NULL, "model"),
    FIELDS(API_DETOKENIZE, IS_READ, NULL, "tokens"),
    FIELDS(TOKENIZE, IS_READ, NULL, "prompt", "content", "messages", "add_special_tokens", "add_special",
           "parse_special", "with_pieces", "return_token_strs", "tools", "tool_choice",
           "add_generation_prompt", "continue_final_message", "documents", "chat_template_kwargs",
           "enable_thinking", "reasoning_effort"),
};

enum { N_RULES = sizeof RULES / sizeof *RULES };

static const struct field_rule *rule_of(const char *name, unsigned api)
{
    for (size_t i = 0; i < N_RULES; i++)
        for (const char *const *known = RULES[i].names; (RULES[i].apis & api) && *known; known++)
            if (!strcmp(*known, name))
                return &RULES[i];
    return NULL;
}

/* ---- values without effect ---- */

static bool is_same(const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b))
        return json_equal(a, b);
    double x = json_number_value(a), y = json_number_value(b);
    return !(x < y) && !(x > y);
}

static bool is_neutral(const char *neutral, const json_t *value)
{
    bool is_found = !strcmp(neutral, "*");
    while (*neutral && !is_found) {
        size_t n = strcspn(neutral, "|");
        json_t *one = json_loadb(neutral, n, JSON_DECODE_ANY, NULL);
        is_found = one && is_same(one, value);
        json_decref(one);
        neutral += n + (neutral[n] == '|');
    }
    return is_found;
}

/* A field's name and where it is. path: of its object; "": the request itself. */
struct field_name {
    char text[192];
};

static struct field_name full_name(const char *path, const char *name)
{
    struct field_name full;
    snprintf(full.text, sizeof full.text, "%.96s%s%.64s", path, *path ? "." : "", name);
    return full;
}

static enum tutti_status refuse_field(const struct field_rule *rule, const char *path, const char *name,
                                      struct tutti_error *err)
{
    const char *or_value = *rule->neutral ? ", only the value " : "";
    const struct field_name full = full_name(path, name);
    char values[128];
    snprintf(values, sizeof values, "%s", rule->neutral);
    for (char *bar = values; (bar = strchr(bar, '|'));)
        *bar = '/';
    return error_set_param(err, TUTTI_E_ARGUMENT, full.text, "%s is not supported%s%s%s%s", full.text,
                           or_value, values, rule->hint ? ": " : "", rule->hint ? rule->hint : "");
}

/* ---- unknown names ---- */

/* Ignores case and word breaks: maxTokens is max_tokens. */
static void fold_name(char *out, size_t size, const char *name)
{
    size_t n = 0;
    for (; *name && n + 1 < size; name++) {
        if (*name != '_' && *name != '-' && *name != ' ')
            out[n++] = (char)(*name >= 'A' && *name <= 'Z' ? *name + ('a' - 'A') : *name);
    }
    out[n] = '\0';
}

/* True: one letter inserted, deleted or replaced, or two adjacent letters swapped. */
static bool is_one_letter_off(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b), i = 0;
    while (a[i] && a[i] == b[i])
        i++;
    if (na == nb)
        return !strcmp(a + i + (a[i] != 0), b + i + (b[i] != 0)) ||
               (a[i] && a[i + 1] && a[i] == b[i + 1] && a[i + 1] == b[i] && !strcmp(a + i + 2, b + i + 2));
    if (na + 1 == nb)
        return !strcmp(a + i, b + i + 1);
    return nb + 1 == na && !strcmp(a + i + 1, b + i);
}

static const char *meant_name(const char *name, unsigned api)
{
    enum {
        MIN_LETTERS = 4, /* shorter names are too similar to each other */
        MAX_BREAKS = 5,  /* between words of a known name */
    };
    char own[64], other[64];
    fold_name(own, sizeof own, name);
    size_t n = strlen(own);
    for (size_t i = 0; i < N_RULES; i++)
        for (const char *const *known = RULES[i].names; (RULES[i].apis & api) && *known; known++) {
            size_t n_known = strlen(*known);
            if (n_known + 1 < n || n_known > n + 1 + MAX_BREAKS) /* a body may have very many unknown names */
                continue;
            fold_name(other, sizeof other, *known);
            if (!strcmp(own, other) || (strlen(other) >= MIN_LETTERS && is_one_letter_off(own, other)))
                return *known;
        }
    return NULL;
}

void api_warn_ignored(const char *what, const char *name, const char *why)
{
    enum { MAX_NAMES = 32 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct field_name names[MAX_NAMES];
    static size_t n;
    static atomic_bool is_full;
    if (atomic_load(&is_full))
        return;
    struct field_name full;
    snprintf(full.text, sizeof full.text, "%s \"%.160s\"", what, name);
    bool is_new = true;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++)
        is_new &= strcmp(names[i].text, full.text) != 0;
    is_new &= n < MAX_NAMES;
    if (is_new)
        names[n++] = full;
    atomic_store(&is_full, n == MAX_NAMES);
    pthread_mutex_unlock(&lock);
    if (is_new)
        log_warn("a request has %s, which was ignored%s", full.text, why);
}

static void warn_unknown(const char *path, const char *name)
{
    char list[48] = "";
    if (*path)
        snprintf(list, sizeof list, "%.*s[]", (int)strcspn(path, "["), path);
    api_warn_ignored("the unknown field", full_name(list, name).text, "");
}

/* ---- the check ---- */

/* True: the value turns the field off, so that a field of another endpoint is accepted with it. */
static bool is_disabled(const char *name, const json_t *value)
{
    /* On by default: false would change the answer. */
    static const char *const ON[] = { "add_generation_prompt", "do_sample",           "enable_thinking",
                                      "include_reasoning",     "parallel_tool_calls", "parse_tool_calls",
                                      "separate_reasoning",    "skip_special_tokens" };
    bool is_off = json_is_false(value);
    for (size_t i = 0; i < sizeof ON / sizeof *ON; i++)
        is_off &= strcmp(name, ON[i]) != 0;
    return is_off || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static bool field_is_zero(const json_t *root, const char *name)
{
    double value = json_number_value(json_object_get(root, name));
    return !(value < 0) && !(value > 0);
}

/* llama-server's penalties apply to the last tokens only, and can exempt the newline; tutti's apply
 * to the whole answer. */
static enum tutti_status check_window(const json_t *root, struct tutti_error *err)
{
    const json_t *window = json_object_get(root, "repeat_last_n");
    const json_t *lines = json_object_get(root, "penalize_nl");
    if (field_is_zero(root, "presence_penalty") && field_is_zero(root, "frequency_penalty"))
        return TUTTI_OK;
    if (window && !json_is_null(window) && json_integer_value(window) != -1)
        return error_set_param(err, TUTTI_E_ARGUMENT, "repeat_last_n",
                               "repeat_last_n is not supported, only the value -1: penalties apply to the "
                               "whole answer");
    if (json_is_false(lines))
        return error_set_param(err, TUTTI_E_ARGUMENT, "penalize_nl",
                               "penalize_nl is not supported, only the value true");
    return TUTTI_OK;
}

enum { MAX_FIELDS = 1024 }; /* each unknown name is compared with all known ones */

static enum tutti_status refuse_unknown(const char *path, const char *name, const char *meant,
                                        struct tutti_error *err)
{
    const struct field_name full = full_name(path, name);
    return error_set_param(err, TUTTI_E_ARGUMENT, full.text,
                           "Unrecognized request argument supplied: %s%s%s%s", full.text,
                           meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
}

enum tutti_status api_check_fields(const json_t *object, unsigned api, const char *path,
                                   struct tutti_error *err)
{
    const char *name;
    json_t *value;
    bool is_strict = api & STRICT, is_inner = *path != '\0';
    if (json_object_size(object) > MAX_FIELDS)
        return error_set_param(err, TUTTI_E_ARGUMENT, path, "%s has %zu fields, at most %d are allowed",
                               is_inner ? path : "the body", json_object_size(object), MAX_FIELDS);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        const struct field_rule *rule = rule_of(name, api);
        if (json_is_null(value) || (rule && rule->neutral == IS_READ))
            continue;
        bool is_elsewhere = !rule && !is_strict && !is_inner && rule_of(name, ALL);
        if (is_elsewhere && !is_disabled(name, value))
            return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s is not a field of this endpoint", name);
        if (!rule && !is_elsewhere) {
            const char *meant = meant_name(name, api);
            if (meant || is_strict)
                return refuse_unknown(path, name, meant, err);
            if (api != IN_FUNCTION) /* chat templates read a tool as it is */
                warn_unknown(path, name);
        } else if (rule && !is_neutral(rule->neutral, value)) {
            return refuse_field(rule, path, name, err);
        }
    }
    return check_window(object, err);
}
