/* Fields of other servers' requests. A field that would change the answer in an unsupported way is
 * refused by name, unless its value has no effect: ignoring it would give a wrong answer. Unknown
 * names are logged and ignored, because clients add fields of their own; a likely misspelling of a
 * known name is refused. */
#include "server/requests/openai_fields.h"

#include "base/json/json_type.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHAT = API_CHAT,
    TEXT = API_COMPLETION,
    BOTH = CHAT | TEXT,
    EMBED = API_EMBEDDING,
    RESP = API_RESPONSES
};
enum { ALL = BOTH | EMBED | RESP };

/* neutral: values without effect, as JSON separated by '|'; "*": any; NULL: the field is read
 * elsewhere. */
struct field_rule {
    const char *name;
    unsigned apis;
    const char *neutral;
    const char *hint; /* what to use instead; NULL: nothing */
};

static const char IS_READ[] = "read elsewhere";

static const struct field_rule RULES[] = {
    /* OpenAI's, and tutti's own */
    { "model", ALL, IS_READ, NULL },
    { "stream", BOTH | RESP, IS_READ, NULL },
    { "stream_options", BOTH, IS_READ, NULL },
    { "stream_options", RESP, "*", NULL }, /* include_obfuscation: padding of events */
    { "temperature", BOTH | RESP, IS_READ, NULL },
    { "top_p", BOTH | RESP, IS_READ, NULL },
    { "top_k", BOTH | RESP, IS_READ, NULL },
    { "min_p", BOTH | RESP, IS_READ, NULL },
    { "typical_p", BOTH | RESP, IS_READ, NULL },
    { "repetition_penalty", BOTH | RESP, IS_READ, NULL },
    { "presence_penalty", BOTH | RESP, IS_READ, NULL },
    { "frequency_penalty", BOTH | RESP, IS_READ, NULL },
    { "seed", BOTH | RESP, IS_READ, NULL },
    { "stop", BOTH | RESP, IS_READ, NULL },
    { "stop_token_ids", BOTH, IS_READ, NULL },
    { "include_stop_str_in_output", BOTH, IS_READ, NULL },
    { "logit_bias", BOTH, IS_READ, NULL },
    { "logprobs", BOTH, IS_READ, NULL },
    { "top_logprobs", CHAT | RESP, IS_READ, NULL },
    { "n", BOTH, IS_READ, NULL },
    { "best_of", TEXT, IS_READ, NULL },
    { "best_of", CHAT, "1", "it is a field of /v1/completions" },
    { "num_beams", BOTH, IS_READ, NULL },
    { "length_penalty", BOTH, IS_READ, NULL },
    { "early_stopping", BOTH, IS_READ, NULL },
    { "max_tokens", BOTH, IS_READ, NULL },
    { "max_completion_tokens", CHAT, IS_READ, NULL },
    { "max_output_tokens", RESP, IS_READ, NULL },
    { "n_predict", BOTH, IS_READ, NULL },
    { "ignore_eos", BOTH, IS_READ, NULL },
    { "echo", TEXT, IS_READ, NULL },
    { "echo", CHAT, "false", "it is a field of /v1/completions" },
    { "suffix", TEXT, IS_READ, NULL },
    { "parse_special", TEXT | EMBED, IS_READ, NULL },
    { "prompt", TEXT, IS_READ, NULL },
    { "messages", CHAT, IS_READ, NULL },
    { "input", EMBED | RESP, IS_READ, NULL },
    { "instructions", RESP, IS_READ, NULL },
    { "include", RESP, IS_READ, NULL },
    { "text", RESP, IS_READ, NULL },
    { "background", RESP, IS_READ, NULL },
    { "truncation", RESP, IS_READ, NULL },
    { "previous_response_id", RESP, IS_READ, NULL },
    { "conversation", RESP, IS_READ, NULL },
    { "prompt", RESP, IS_READ, NULL },
    { "reasoning", RESP, IS_READ, NULL },
    { "max_tool_calls", RESP, "*", NULL }, /* of tools that a server runs itself; tutti runs none */
    { "tools", CHAT | RESP, IS_READ, NULL },
    { "tool_choice", CHAT | RESP, IS_READ, NULL },
    { "parallel_tool_calls", BOTH | RESP, IS_READ, NULL },
    { "functions", CHAT, IS_READ, NULL },
    { "function_call", CHAT, "\"none\"|\"auto\"", "use tool_choice" },
    { "response_format", BOTH, IS_READ, NULL },
    { "grammar", BOTH, IS_READ, NULL },
    { "json_schema", BOTH, IS_READ, NULL },
    { "guided_json", BOTH, IS_READ, NULL },
    { "guided_json_object", BOTH, IS_READ, NULL },
    { "guided_regex", BOTH, IS_READ, NULL },
    { "guided_choice", BOTH, IS_READ, NULL },
    { "guided_grammar", BOTH, IS_READ, NULL },
    { "structured_outputs", BOTH, IS_READ, NULL },
    { "chat_template_kwargs", CHAT | RESP, IS_READ, NULL },
    { "add_generation_prompt", CHAT, IS_READ, NULL },
    { "continue_final_message", CHAT, IS_READ, NULL },
    { "documents", CHAT, IS_READ, NULL },
    { "reasoning_effort", BOTH | RESP, IS_READ, NULL },
    { "modalities", CHAT, IS_READ, NULL },
    { "priority", BOTH | EMBED | RESP, IS_READ, NULL },
    { "max_queue_time", BOTH | EMBED | RESP, IS_READ, NULL },
    { "speculate", BOTH | RESP, IS_READ, NULL },
    { "encoding_format", EMBED, IS_READ, NULL },
    { "dimensions", EMBED, IS_READ, NULL },
    { "pooling", EMBED, IS_READ, NULL },
    { "user", ALL, IS_READ, NULL },
    { "metadata", ALL, IS_READ, NULL },
    { "store", ALL, IS_READ, NULL },
    { "safety_identifier", ALL, IS_READ, NULL },
    { "service_tier", ALL, IS_READ, NULL },
    { "prompt_cache_key", ALL, IS_READ, NULL },
    { "verbosity", BOTH | RESP, IS_READ, NULL },
    { "prompt_cache_retention", ALL, "*", NULL },
    { "prediction", CHAT, "*", NULL }, /* OpenAI's predicted output: only affects speed */
    { "audio", CHAT, "", "answers are text" },
    { "web_search_options", CHAT, "", "answers come from the model only" },
    { "moderation", ALL, "", NULL },
    /* vLLM */
    { "min_tokens", BOTH, "0", "ignore_eos goes on to max_tokens" },
    { "skip_special_tokens", BOTH, "true", "special tokens are never a part of the text" },
    { "spaces_between_special_tokens", BOTH, "*", NULL }, /* special tokens are not shown */
    { "truncate_prompt_tokens", BOTH | EMBED, "", "cut the prompt before it is sent" },
    { "truncation_side", BOTH | EMBED, "*", NULL }, /* of truncate_prompt_tokens */
    { "prompt_logprobs", BOTH, "", "echo with logprobs gives them for /v1/completions" },
    { "allowed_token_ids", BOTH, "[]", "use grammar or logit_bias" },
    { "bad_words", BOTH, "[]", "use logit_bias" },
    { "logits_processors", BOTH, "[]", NULL },
    { "use_beam_search", BOTH, "false", "use num_beams" },
    { "logprob_token_ids", BOTH, "[]", NULL },
    { "guided_decoding_backend", BOTH, "*", NULL },
    { "guided_whitespace_pattern", BOTH, "", NULL },
    { "structural_tag", BOTH, "", "use tools or a grammar" },
    { "add_special_tokens", TEXT | EMBED, "true", "send the prompt as token ids" },
    { "add_special_tokens", CHAT, "false", "the chat template writes them" },
    { "chat_template", CHAT, "", "the server chooses it with --chat-format" },
    { "include_reasoning", CHAT, "true", "reasoning is a part of the content" },
    { "return_token_ids", BOTH, "false", "use /tokenize" },
    { "return_tokens_as_token_ids", BOTH, "false", NULL },
    { "mm_processor_kwargs", CHAT | EMBED, "{}", "this model reads text only" },
    { "media_io_kwargs", CHAT, "{}", "this model reads text only" },
    { "kv_transfer_params", BOTH, "{}", NULL },
    { "vllm_xargs", BOTH, "{}", NULL },
    { "repetition_detection", BOTH, "", NULL },
    { "thinking_token_budget", BOTH, "", NULL },
    { "cache_salt", ALL, "*", NULL }, /* the prefix cache never changes an answer */
    { "request_id", ALL, "*", NULL },
    { "stream_interval", BOTH, "*", NULL },
    { "normalize", EMBED, "true", "vectors have the length 1" },
    { "embed_dtype", EMBED, "\"float32\"|\"auto\"", NULL },
    { "endianness", EMBED, "\"native\"|\"little\"", NULL },
    { "activation", EMBED, "false", NULL },
    /* llama-server */
    { "repeat_penalty", BOTH, "1", "use repetition_penalty, over prompt and answer" },
    { "repeat_last_n", BOTH, "*", NULL }, /* of repeat_penalty; see check_window() */
    { "penalize_nl", BOTH, "true|false", NULL },
    { "tfs_z", BOTH, "1", NULL },
    { "top_n_sigma", BOTH, "-1|0", NULL },
    { "xtc_probability", BOTH, "0", NULL },
    { "xtc_threshold", BOTH, "*", NULL },
    { "dry_multiplier", BOTH, "0", NULL },
    { "dry_base", BOTH, "*", NULL },
    { "dry_allowed_length", BOTH, "*", NULL },
    { "dry_penalty_last_n", BOTH, "*", NULL },
    { "dry_sequence_breakers", BOTH, "*", NULL },
    { "dynatemp_range", BOTH, "0", NULL },
    { "dynatemp_exponent", BOTH, "*", NULL },
    { "mirostat", BOTH, "0", NULL },
    { "mirostat_tau", BOTH, "*", NULL },
    { "mirostat_eta", BOTH, "*", NULL },
    { "mirostat_mode", BOTH, "0", NULL },
    { "typ_p", BOTH, "1", "use typical_p" },
    { "top_a", BOTH, "0", NULL },
    { "epsilon_cutoff", BOTH, "0", NULL },
    { "eta_cutoff", BOTH, "0", NULL },
    { "smoothing_factor", BOTH, "0", NULL },
    { "smoothing_curve", BOTH, "*", NULL },
    { "samplers", BOTH, "[]|\"\"", "their order is fixed" },
    { "sampler_seed", BOTH, "", "use seed" },
    { "min_keep", BOTH, "0|1", NULL },
    { "n_probs", BOTH, "0", "use logprobs" },
    { "post_sampling_probs", BOTH, "false", NULL },
    { "n_keep", BOTH, "*", NULL }, /* contexts are never shifted */
    { "n_discard", BOTH, "*", NULL },
    { "n_indent", BOTH, "0", NULL },
    { "t_max_predict_ms", BOTH, "0|-1", NULL },
    { "t_max_prompt_ms", BOTH, "0|-1", NULL },
    { "cache_prompt", BOTH, "*", NULL },
    { "n_cache_reuse", BOTH, "*", NULL },
    { "id_slot", BOTH, "*", NULL },
    { "slot_id", BOTH, "*", NULL },
    { "timings_per_token", BOTH, "*", NULL },
    { "return_progress", BOTH, "*", NULL },
    { "return_tokens", BOTH, "false", "use /tokenize" },
    { "response_fields", BOTH, "[]", NULL },
    { "grammar_lazy", BOTH, "false", NULL },
    { "grammar_triggers", BOTH, "[]", NULL },
    { "preserved_tokens", BOTH, "[]", NULL },
    { "lora", BOTH, "[]", "name the adapter in model: ID:NAME" },
    { "image_data", BOTH, "[]", "this model reads text only" },
    { "multimodal_data", BOTH, "[]", "this model reads text only" },
    { "input_prefix", BOTH, "\"\"", NULL },
    { "input_suffix", BOTH, "\"\"", NULL },
    { "input_extra", BOTH, "[]", NULL },
    { "reasoning_format", CHAT, "\"none\"|\"auto\"", "reasoning is a part of the content" },
    { "thinking_forced_open", CHAT, "false", NULL },
    { "parse_tool_calls", CHAT, "true", NULL },
    /* Ollama, Text Generation Inference, SGLang, TensorRT-LLM, OpenRouter */
    { "options", BOTH | EMBED, "{}", "give its settings as fields of the request" },
    { "keep_alive", ALL, "*", NULL },
    { "format", BOTH, "\"\"", "use response_format" },
    { "raw", TEXT, "true", NULL },
    { "template", BOTH, "\"\"", "the server chooses it with --chat-format" },
    { "system", BOTH, "\"\"", "send a message of the role system" },
    { "context", BOTH, "[]", "send the chat history" },
    { "images", BOTH, "[]", "this model reads text only" },
    { "think", BOTH, "", "use chat_template_kwargs" },
    { "guideline", BOTH, "", NULL },
    { "tool_prompt", CHAT, "\"\"", NULL },
    { "watermark", BOTH, "false", NULL },
    { "do_sample", BOTH, "true", "use temperature: 0 is greedy" },
    { "truncate", BOTH, "", "cut the prompt before it is sent" },
    { "max_new_tokens", BOTH, "", "use max_tokens" },
    { "regex", BOTH, "", "use guided_regex" },
    { "ebnf", BOTH, "", "use grammar" },
    { "no_stop_trim", BOTH, "false", "use include_stop_str_in_output" },
    { "stop_regex", BOTH, "", NULL },
    { "separate_reasoning", CHAT, "false", "reasoning is a part of the content" },
    { "stream_reasoning", CHAT, "*", NULL },
    { "enable_thinking", CHAT, "", "use chat_template_kwargs" },
    { "thinking", CHAT, "", "use chat_template_kwargs" },
    { "thinking_budget", CHAT, "", NULL },
    { "session_params", BOTH, "", NULL },
    { "lora_path", BOTH, "", "name the adapter in model: ID:NAME" },
    { "lora_request", BOTH, "", "name the adapter in model: ID:NAME" },
    { "beam_width", BOTH, "1", "use num_beams" },
    { "models", BOTH, "[]", "one model is served" },
    { "provider", BOTH, "*", NULL },
    { "route", BOTH, "*", NULL },
    { "transforms", BOTH, "[]", NULL },
    { "plugins", BOTH, "[]", NULL },
    { "safe_prompt", CHAT, "false", NULL },
    { "prefix", CHAT, "", "use continue_final_message" },
    { "random_seed", BOTH, "", "use seed" },
};

enum { N_RULES = sizeof RULES / sizeof *RULES };

static const struct field_rule *rule_of(const char *name, unsigned api)
{
    for (size_t i = 0; i < N_RULES; i++) {
        if ((RULES[i].apis & api) && !strcmp(RULES[i].name, name))
            return &RULES[i];
    }
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

static enum tutti_status refuse_field(const struct field_rule *rule, struct tutti_error *err)
{
    const char *or_value = *rule->neutral ? ", only the value " : "";
    char values[64];
    snprintf(values, sizeof values, "%s", rule->neutral);
    for (char *bar = values; (bar = strchr(bar, '|'));)
        *bar = '/';
    return error_set_param(err, TUTTI_E_ARGUMENT, rule->name, "%s is not supported%s%s%s%s", rule->name,
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
    enum { MIN_LETTERS = 4 }; /* shorter names are too similar to each other */
    char own[64], other[64];
    fold_name(own, sizeof own, name);
    for (size_t i = 0; i < N_RULES; i++) {
        if (!(RULES[i].apis & api))
            continue;
        fold_name(other, sizeof other, RULES[i].name);
        if (!strcmp(own, other) || (strlen(other) >= MIN_LETTERS && is_one_letter_off(own, other)))
            return RULES[i].name;
    }
    return NULL;
}

/* Logs each name once, and at most MAX_NAMES of them. */
static void log_unknown(const char *name)
{
    enum { MAX_NAMES = 32, NAME_BYTES = 48 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char names[MAX_NAMES][NAME_BYTES];
    static size_t n;
    bool is_new = true;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++)
        is_new &= strncmp(names[i], name, NAME_BYTES - 1) != 0;
    is_new &= n < MAX_NAMES;
    if (is_new)
        snprintf(names[n++], NAME_BYTES, "%s", name);
    pthread_mutex_unlock(&lock);
    if (is_new)
        log_warn("a request has the unknown field \"%.48s\", which was ignored", name);
}

/* ---- the check ---- */

/* True: a value with which a field of another endpoint is accepted. */
static bool is_disabled(const json_t *value)
{
    return json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
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

/* True: with ignore_eos and without stop strings an answer has max_tokens tokens, so any min_tokens
 * is satisfied. */
static bool has_enough_tokens(const json_t *root)
{
    const json_t *stop = json_object_get(root, "stop"), *ids = json_object_get(root, "stop_token_ids");
    bool has_stop = (stop && !json_is_null(stop) && !(json_is_array(stop) && json_array_size(stop) == 0)) ||
                    json_array_size(ids) > 0;
    return json_is_true(json_object_get(root, "ignore_eos")) && !has_stop;
}

enum tutti_status api_check_fields(const json_t *root, unsigned api, struct tutti_error *err)
{
    enum { MAX_FIELDS = 1024 }; /* each unknown name is compared with all known ones */
    const char *name;
    json_t *value;
    if (json_object_size(root) > MAX_FIELDS)
        return error_set(err, TUTTI_E_ARGUMENT, "the body has %zu fields, at most %d are allowed",
                         json_object_size(root), MAX_FIELDS);
    json_object_foreach((json_t *)(uintptr_t)root, name, value)
    {
        const struct field_rule *rule = rule_of(name, api);
        if (json_is_null(value) || (rule && rule->neutral == IS_READ))
            continue;
        if (!rule && rule_of(name, ALL) && !is_disabled(value))
            return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s is not a field of this endpoint", name);
        if (!rule && !rule_of(name, ALL)) {
            const char *meant = meant_name(name, api);
            if (meant)
                return error_set_param(err, TUTTI_E_ARGUMENT, name,
                                       "Unrecognized request argument supplied: %.64s; did you mean %s?",
                                       name, meant);
            log_unknown(name);
        } else if (rule && !is_neutral(rule->neutral, value) &&
                   !(!strcmp(name, "min_tokens") && has_enough_tokens(root))) {
            return refuse_field(rule, err);
        }
    }
    return check_window(root, err);
}
