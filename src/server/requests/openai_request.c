/* The settings of a request: one table of fields, and functions for fields that need more. */
#include "server/requests/openai_request.h"
#include "server/requests/openai_fields.h"

#include "base/json/json_field.h"
#include "base/limits.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum field_type { FIELD_BOOL, FIELD_INT, FIELD_FLOAT };

struct field {
    const char *name;
    enum field_type type;
    unsigned apis;
    size_t offset; /* in struct api_request; int, float or bool */
    double min, max;
};

#define REQUEST(member)  offsetof(struct api_request, member)
#define SAMPLING(member) offsetof(struct api_request, sampling.member)

static const struct field FIELDS[] = {
    { "stream", FIELD_BOOL, API_CHAT | API_COMPLETION, REQUEST(stream), 0, 0 },
    { "ignore_eos", FIELD_BOOL, API_CHAT | API_COMPLETION, REQUEST(ignore_eos), 0, 0 },
    { "include_stop_str_in_output", FIELD_BOOL, API_CHAT | API_COMPLETION, REQUEST(keeps_stop), 0, 0 },
    { "echo", FIELD_BOOL, API_COMPLETION, REQUEST(echo), 0, 0 },
    { "parse_special", FIELD_BOOL, API_COMPLETION | API_EMBEDDING, REQUEST(parse_special), 0, 0 },
    { "logprobs", FIELD_BOOL, API_CHAT, REQUEST(logprobs), 0, 0 },
    { "top_logprobs", FIELD_INT, API_CHAT, REQUEST(top_logprobs), 0, LIMIT_TOP_LOGPROBS },
    { "logprobs", FIELD_INT, API_COMPLETION, REQUEST(top_logprobs), 0, LIMIT_TOP_LOGPROBS },
    { "n", FIELD_INT, API_CHAT | API_COMPLETION, REQUEST(n), 1, LIMIT_CHOICES },
    { "best_of", FIELD_INT, API_COMPLETION, REQUEST(best_of), 1, LIMIT_CHOICES },
    { "num_beams", FIELD_INT, API_CHAT | API_COMPLETION, REQUEST(n_beams), 1, LIMIT_BEAMS },
    { "length_penalty", FIELD_FLOAT, API_CHAT | API_COMPLETION, REQUEST(length_penalty), -100, 100 },
    { "max_tokens", FIELD_INT, API_CHAT, REQUEST(max_tokens), 1, INT_MAX },
    { "max_tokens", FIELD_INT, API_COMPLETION, REQUEST(max_tokens), 0, INT_MAX },
    { "max_completion_tokens", FIELD_INT, API_CHAT, REQUEST(max_tokens), 1, INT_MAX },
    { "priority", FIELD_INT, API_CHAT | API_COMPLETION | API_EMBEDDING | API_RERANK, REQUEST(priority),
      TUTTI_PRIORITY_FIRST, TUTTI_PRIORITY_LAST },
    { "max_queue_time", FIELD_FLOAT, API_CHAT | API_COMPLETION | API_EMBEDDING | API_RERANK,
      REQUEST(max_queue_time_s), 0.001, 86400 },
    { "dimensions", FIELD_INT, API_EMBEDDING, REQUEST(dimensions), 1, INT_MAX },
    { "normalize", FIELD_BOOL, API_EMBEDDING, REQUEST(normalizes), 0, 0 },
    { "top_n", FIELD_INT, API_RERANK, REQUEST(top_n), 1, INT_MAX },
    { "return_documents", FIELD_BOOL, API_RERANK, REQUEST(returns_documents), 0, 0 },
    { "speculate", FIELD_INT, API_CHAT | API_COMPLETION, REQUEST(speculate), 0, 32 },
    { "temperature", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(temperature), 0, 2 },
    { "temperature", FIELD_FLOAT, API_STEP, SAMPLING(temperature), 0, 100 },
    { "top_p", FIELD_FLOAT, API_CHAT | API_COMPLETION | API_STEP, SAMPLING(top_p), 0, 1 },
    { "top_k", FIELD_INT, API_CHAT | API_COMPLETION, SAMPLING(top_k), -1, INT_MAX },
    { "min_p", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(min_p), 0, 1 },
    { "typical_p", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(typical_p), 0, 1 },
    { "repetition_penalty", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(repetition_penalty),
      LIMIT_LEAST_PENALTY, LIMIT_PENALTY },
    { "presence_penalty", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(presence_penalty), -2, 2 },
    { "frequency_penalty", FIELD_FLOAT, API_CHAT | API_COMPLETION, SAMPLING(frequency_penalty), -2, 2 },
};

static enum tutti_status read_field(struct api_request *req, const struct field *field,
                                    struct tutti_error *err)
{
    const json_t *value = json_field(req->root, field->name);
    char *place = (char *)req + field->offset;
    if (!value)
        return TUTTI_OK;
    static const enum json_kind KINDS[] = { JSON_KIND_BOOL, JSON_KIND_INT, JSON_KIND_NUMBER };
    enum tutti_status st = json_require(value, KINDS[field->type], field->name, err);
    if (st != TUTTI_OK)
        return st;
    if (field->type == FIELD_BOOL) {
        *(bool *)(void *)place = json_is_true(value);
        return TUTTI_OK;
    }
    double number = json_number_value(value);
    st = json_check_range(number, field->min, field->max, field->name, err);
    if (st != TUTTI_OK)
        return st;
    if (field->type == FIELD_INT)
        *(int *)(void *)place = (int)json_integer_value(value);
    else
        *(float *)(void *)place = (float)number;
    return TUTTI_OK;
}

enum tutti_status api_read_fields(struct api_request *req, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS && st == TUTTI_OK; i++)
        if (FIELDS[i].apis & req->kind)
            st = read_field(req, &FIELDS[i], err);
    if (req->sampling.top_k < 0)
        req->sampling.top_k = 0; /* -1 commonly means off */
    /* Only the most probable token, and the most typical one: the engine's 0 would be off. */
    if (req->sampling.top_p <= 0.0f)
        req->sampling.top_p = FLT_MIN;
    if (req->sampling.typical_p <= 0.0f && json_field(req->root, "typical_p"))
        req->sampling.typical_p = FLT_MIN;
    return st;
}

static enum tutti_status add_stop(struct api_request *req, const json_t *value, struct tutti_error *err)
{
    if (!json_is_string(value))
        return json_wrong_type("stop", "a string or a list of strings", value, err);
    if (json_string_length(value) == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop", "stop must not have an empty string");
    if (req->n_stop == LIMIT_STOPS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop", "stop has more than %d strings", LIMIT_STOPS);
    req->stop[req->n_stop++] = (struct tutti_string){ json_string_value(value), json_string_length(value) };
    return TUTTI_OK;
}

static enum tutti_status read_stop(struct api_request *req, int n_vocab, struct tutti_error *err)
{
    const json_t *value = json_field(req->root, "stop"), *ids = json_field(req->root, "stop_token_ids"),
                 *entry;
    size_t i;
    enum tutti_status st = TUTTI_OK;
    if (value && !json_is_array(value))
        st = add_stop(req, value, err);
    json_array_foreach(value, i, entry) if (st == TUTTI_OK) st = add_stop(req, entry, err);
    if (st != TUTTI_OK || !ids)
        return st;
    if (!json_is_array(ids))
        return json_wrong_type("stop_token_ids", "a list of token ids", ids, err);
    return api_read_ids(&req->stop_ids, ids, "stop_token_ids", n_vocab, err);
}

static enum tutti_status read_seed(struct api_request *req, struct tutti_error *err)
{
    const json_t *seed = json_field(req->root, "seed");
    if (!seed)
        return TUTTI_OK;
    if (!json_is_integer(seed))
        return json_wrong_type("seed", "an integer", seed, err);
    req->sampling.has_seed = json_integer_value(seed) != -1; /* random, as in vLLM and llama-server */
    req->sampling.seed = (uint64_t)json_integer_value(seed);
    return TUTTI_OK;
}

static enum tutti_status read_logit_bias(struct api_request *req, int n_vocab, struct tutti_error *err)
{
    const json_t *map = json_field(req->root, "logit_bias");
    if (!map)
        return TUTTI_OK;
    if (!json_is_object(map))
        return json_wrong_type("logit_bias", "an object that maps token ids to numbers", map, err);
    req->logit_bias = calloc(json_object_size(map) + 1, sizeof *req->logit_bias);
    if (!req->logit_bias)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for logit_bias");
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        enum { MAX_DIGITS = 9 };
        size_t n_digits = strspn(key, "0123456789");
        bool is_id = n_digits > 0 && n_digits <= MAX_DIGITS && !key[n_digits] &&
                     (*key != '0' || n_digits == 1);
        long id = is_id ? strtol(key, NULL, 10) : -1;
        double bias = json_number_value(value);
        if (id < 0 || id >= n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, "logit_bias",
                                   "logit_bias: \"%.32s\" is not a token id, expected 0 to %d", key,
                                   n_vocab - 1);
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return error_set_param(err, TUTTI_E_ARGUMENT, "logit_bias",
                                   "logit_bias: the bias of %ld must be a number between -100 and 100", id);
        req->logit_bias[n++] = (struct tutti_logit_bias){ (int32_t)id, (float)bias };
    }
    req->sampling.logit_bias = req->logit_bias;
    req->sampling.n_logit_bias = n;
    return TUTTI_OK;
}

/* llama-server's max_tokens: -1 and -2 mean as many as the context holds. */
static enum tutti_status read_n_predict(struct api_request *req, struct tutti_error *err)
{
    const json_t *value = json_field(req->root, "n_predict");
    json_int_t n = json_integer_value(value);
    if (!value)
        return TUTTI_OK;
    if (!json_is_integer(value))
        return json_wrong_type("n_predict", "an integer", value, err);
    if (json_field(req->root, "max_tokens") || json_field(req->root, "max_completion_tokens"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "n_predict",
                               "n_predict cannot be combined with max_tokens");
    if (n < -2 || n == 0 || n > INT_MAX)
        return error_set_param(err, TUTTI_E_ARGUMENT, "n_predict",
                               "n_predict must be between 1 and %d, or -1 for as many as the context "
                               "holds; found %lld",
                               INT_MAX, (long long)n);
    req->max_tokens = n < 0 ? 0 : (int)n;
    req->is_unlimited = n < 0;
    return TUTTI_OK;
}

/* As in transformers, with num_beams and length_penalty: true, false or "never". */
static enum tutti_status read_early_stopping(struct api_request *req, struct tutti_error *err)
{
    const json_t *value = json_field(req->root, "early_stopping");
    bool is_never = json_is_string(value) && strcmp(json_string_value(value), "never") == 0;
    if (value && !json_is_boolean(value) && !is_never)
        return json_wrong_type("early_stopping", "true, false or \"never\"", value, err);
    req->early_stopping = is_never              ? TUTTI_EARLY_STOPPING_NEVER
                          : json_is_true(value) ? TUTTI_EARLY_STOPPING_TRUE
                                                : TUTTI_EARLY_STOPPING_FALSE;
    if (req->n_beams > 1 && req->best_of > req->n)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of", "best_of cannot be combined with num_beams");
    return TUTTI_OK;
}

/* A beam search draws no tokens: values that change only the draws are refused. */
static enum tutti_status check_draws(const struct api_request *req, struct tutti_error *err)
{
    static const struct {
        const char *name;
        double neutral, other;
    } DRAWS[] = { { "temperature", 0, 1 },
                  { "top_p", 1, 1 },
                  { "top_k", 0, -1 },
                  { "min_p", 0, 0 },
                  { "typical_p", 1, 1 } };
    for (size_t i = 0; i < sizeof DRAWS / sizeof *DRAWS && req->n_beams > 1; i++) {
        const json_t *value = json_field(req->root, DRAWS[i].name);
        double number = json_number_value(value);
        bool is_other = fabs(number - DRAWS[i].neutral) > 0 && fabs(number - DRAWS[i].other) > 0;
        if (value && is_other)
            return error_set_param(err, TUTTI_E_ARGUMENT, DRAWS[i].name,
                                   "%s cannot be combined with num_beams: a beam search draws no tokens",
                                   DRAWS[i].name);
    }
    return TUTTI_OK;
}

static enum tutti_status read_stream_options(struct api_request *req, struct tutti_error *err)
{
    const json_t *options = json_field(req->root, "stream_options");
    if (!options)
        return TUTTI_OK;
    if (!json_is_object(options))
        return json_wrong_type("stream_options", "an object", options, err);
    if (!req->stream)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stream_options",
                               "stream_options is only allowed where stream is true");
    /* include_obfuscation: padding against guesses of tokens by their lengths, which tutti does not send. */
    static const char *const KNOWN[] = { "include_usage", "include_obfuscation", NULL };
    enum tutti_status st = json_check_names("stream_options", "stream_options", options, KNOWN, err);
    if (st != TUTTI_OK)
        return st;
    const json_t *usage = json_object_get(options, "include_usage");
    req->include_usage = json_is_true(usage);
    return json_check(usage, JSON_KIND_BOOL, "stream_options.include_usage", err);
}

/* The two APIs request log-probabilities differently. */
static enum tutti_status read_logprobs(struct api_request *req, struct tutti_error *err)
{
    if (req->kind == API_COMPLETION)
        req->logprobs = json_field(req->root, "logprobs") != NULL;
    if (req->top_logprobs > 0 && !req->logprobs)
        return error_set_param(err, TUTTI_E_ARGUMENT, "top_logprobs",
                               "top_logprobs is only allowed where logprobs is true");
    return TUTTI_OK;
}

/* With echo log-probabilities include those of the prompt, and max_tokens may be 0. */
static enum tutti_status read_echo(struct api_request *req, struct tutti_error *err)
{
    req->prompt_logprobs = req->echo && req->logprobs;
    req->no_answer = req->max_tokens == 0 && !req->is_unlimited;
    if (req->prompt_logprobs && req->n_beams > 1)
        return error_set_param(err, TUTTI_E_ARGUMENT, "echo",
                               "echo with logprobs cannot be combined with num_beams");
    if (req->no_answer && !req->echo)
        return error_set_param(err, TUTTI_E_ARGUMENT, "max_tokens",
                               "max_tokens must be at least 1, or 0 where echo is true");
    return TUTTI_OK;
}

/* "modalities" may only request text. */
static enum tutti_status check_modalities(const struct api_request *req, struct tutti_error *err)
{
    const json_t *list = json_field(req->root, "modalities"), *kind;
    size_t i;
    if (list && !json_is_array(list))
        return json_wrong_type("modalities", "a list", list, err);
    json_array_foreach(list, i, kind)
    {
        const char *word = json_string_value(kind);
        if (!word || strcmp(word, "text"))
            return error_set_param(err, TUTTI_E_ARGUMENT, "modalities",
                                   "modalities: this model generates text only");
    }
    return TUTTI_OK;
}

/* Refuses fields that would change the answer in an unsupported way: ignoring them would give a
 * wrong answer. */
static enum tutti_status refuse_unsupported(const struct api_request *req, struct tutti_error *err)
{
    const json_t *functions = json_field(req->root, "functions");
    if (req->kind == API_CHAT && functions && !(json_is_array(functions) && json_array_size(functions) == 0))
        return error_set_param(err, TUTTI_E_ARGUMENT, "functions", "functions are not supported, only tools");
    if (req->kind != API_COMPLETION)
        return check_modalities(req, err);
    if (req->best_of && req->best_of < req->n)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of", "best_of must be at least n: %d, found %d",
                               req->n, req->best_of);
    if (req->best_of > req->n && req->stream)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of",
                               "best_of above n is not allowed where stream is true");
    return TUTTI_OK;
}

/* Checks the types of known fields that do not change the answer. */
static enum tutti_status check_unused(const struct api_request *req, struct tutti_error *err)
{
    static const struct {
        const char *name;
        enum json_kind kind;
    } UNUSED[] = {
        { "metadata", JSON_KIND_OBJECT },
        { "store", JSON_KIND_BOOL },
        { "user", JSON_KIND_STRING },
        { "safety_identifier", JSON_KIND_STRING },
        { "prompt_cache_key", JSON_KIND_STRING },
        { "service_tier", JSON_KIND_STRING },
        { "verbosity", JSON_KIND_STRING },
    };
    for (size_t i = 0; i < sizeof UNUSED / sizeof *UNUSED; i++) {
        const char *name = UNUSED[i].name;
        enum tutti_status st = json_check(json_object_get(req->root, name), UNUSED[i].kind, name, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* A budget of reasoning: OpenAI's API has none; vLLM, SGLang, Qwen's API and llama-server name it
 * differently. 0 is no reasoning, -1 no limit. */
static enum tutti_status read_reasoning_budget(struct api_request *req, struct tutti_error *err)
{
    static const char *const NAMES[] = { "thinking_budget", "thinking_token_budget", "reasoning_budget",
                                         "thinking_budget_tokens" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const json_t *value = json_field(req->root, NAMES[i]);
        json_int_t n = json_integer_value(value);
        if (!value)
            continue;
        enum tutti_status st = json_require(value, JSON_KIND_INT, NAMES[i], err);
        if (st == TUTTI_OK)
            st = json_check_range((double)n, -1, INT_MAX, NAMES[i], err);
        if (st != TUTTI_OK)
            return st;
        if (n >= 0 && req->n_beams > 1)
            return error_set_param(err, TUTTI_E_ARGUMENT, NAMES[i], "%s cannot be combined with num_beams",
                                   NAMES[i]);
        req->budget_field = NAMES[i];
        req->max_reasoning_tokens = n < 0 ? 0 : n == 0 ? TUTTI_NO_REASONING : (int)n;
    }
    return TUTTI_OK;
}

/* Whether reasoning is a field of its own, a part of the content, or dropped. */
static enum tutti_status read_reasoning(struct api_request *req, struct tutti_error *err)
{
    const json_t *include = json_field(req->root, "include_reasoning");
    const json_t *apart = json_field(req->root, "separate_reasoning");
    const json_t *format = json_field(req->root, "reasoning_format");
    const char *word = json_string_value(format);
    enum tutti_status st = json_check(include, JSON_KIND_BOOL, "include_reasoning", err);
    if (st == TUTTI_OK)
        st = json_check(apart, JSON_KIND_BOOL, "separate_reasoning", err);
    if (st != TUTTI_OK)
        return st;
    if (format && (!word || (strcmp(word, "none") && strcmp(word, "auto") && strcmp(word, "deepseek"))))
        return error_set_param(err, TUTTI_E_ARGUMENT, "reasoning_format",
                               "reasoning_format must be \"auto\", \"deepseek\" or \"none\"");
    if (json_is_false(apart) || (word && !strcmp(word, "none")))
        req->reasoning = API_REASONING_IN_CONTENT;
    if (json_is_false(include))
        req->reasoning = API_REASONING_DROPPED;
    return read_reasoning_budget(req, err);
}

/* vLLM's: cached pages are found by requests with the same salt only. */
static enum tutti_status read_cache_salt(struct api_request *req, struct tutti_error *err)
{
    const json_t *salt = json_field(req->root, "cache_salt");
    enum tutti_status st = json_check(salt, JSON_KIND_STRING, "cache_salt", err);
    size_t n_bytes = json_string_length(salt);
    if (st == TUTTI_OK && salt && (n_bytes < 1 || n_bytes > API_MAX_SALT_BYTES))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "cache_salt",
                             "cache_salt has %zu bytes, expected 1 to %d", n_bytes, API_MAX_SALT_BYTES);
    if (st == TUTTI_OK && salt)
        req->cache_salt = (struct tutti_string){ json_string_value(salt), n_bytes };
    return st;
}

static enum tutti_status read_settings(struct api_request *req, int n_vocab, struct tutti_error *err)
{
    const json_t *model = json_field(req->root, "model");
    const json_t *parallel = json_field(req->root, "parallel_tool_calls");
    req->model = json_string_value(model);
    req->one_tool_call = json_is_false(parallel);
    enum tutti_status st = json_check(model, JSON_KIND_STRING, "model", err);
    if (st == TUTTI_OK)
        st = check_unused(req, err);
    if (st == TUTTI_OK)
        st = read_cache_salt(req, err);
    if (st == TUTTI_OK)
        st = json_check(parallel, JSON_KIND_BOOL, "parallel_tool_calls", err);
    if (st != TUTTI_OK)
        return st;
    st = api_read_fields(req, err);
    if (st != TUTTI_OK)
        return st;
    req->has_priority = json_field(req->root, "priority");
    if (req->kind == API_EMBEDDING || req->kind == API_RERANK)
        return TUTTI_OK;
    st = read_n_predict(req, err);
    if (st == TUTTI_OK)
        st = read_stop(req, n_vocab, err);
    if (st == TUTTI_OK)
        st = read_seed(req, err);
    if (st == TUTTI_OK)
        st = read_logit_bias(req, n_vocab, err);
    if (st == TUTTI_OK)
        st = read_early_stopping(req, err);
    if (st == TUTTI_OK)
        st = check_draws(req, err);
    if (st == TUTTI_OK)
        st = read_stream_options(req, err);
    if (st == TUTTI_OK)
        st = read_logprobs(req, err);
    if (st == TUTTI_OK)
        st = api_read_format(req, err);
    if (st == TUTTI_OK && req->kind == API_CHAT)
        st = read_reasoning(req, err);
    if (st == TUTTI_OK)
        st = refuse_unsupported(req, err);
    return st == TUTTI_OK && req->kind == API_COMPLETION ? read_echo(req, err) : st;
}

/* With ignore_eos an answer that nothing else ends has max_tokens tokens, so a smaller min_tokens holds. */
static enum tutti_status check_min_tokens(const struct api_request *req, struct tutti_error *err)
{
    const json_t *value = json_field(req->root, "min_tokens");
    json_int_t n = json_integer_value(value);
    enum tutti_status st = json_check(value, JSON_KIND_INT, "min_tokens", err);
    bool has_end = !req->ignore_eos || req->n_stop > 0 || req->stop_ids.n > 0 ||
                   req->grammar_kind != TUTTI_GRAMMAR_NONE;
    if (st != TUTTI_OK || n == 0 || (n > 0 && !has_end && n <= req->max_tokens))
        return st;
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "min_tokens",
        "min_tokens is not supported, only the value 0: ignore_eos goes on to max_tokens, which "
        "must be at least min_tokens, if no stop string or grammar ends the answer");
}

/* A model for embeddings generates no text, and a cross-encoder makes no embeddings. */
static enum tutti_status check_kind(enum api_kind kind, const struct tutti_model_info *info,
                                    struct tutti_error *err)
{
    if (info->has_score && kind != API_RERANK)
        return error_set_param(err, TUTTI_E_ARGUMENT, "model",
                               "model %s is a cross-encoder: it only scores pairs of texts (POST /v1/rerank)",
                               info->name);
    if (info->only_embeds && kind != API_EMBEDDING && kind != API_RERANK)
        return error_set_param(err, TUTTI_E_ARGUMENT, "model",
                               "model %s only makes embeddings (POST /v1/embeddings): it is an encoder, or "
                               "was saved without the matrix that generates text",
                               info->name);
    return TUTTI_OK;
}

static enum tutti_status check_answers(const struct api_request *req, struct tutti_error *err)
{
    if (req->n_prompts * (size_t)req->n <= API_MAX_ANSWERS)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, req->n_best > 0 ? "best_of" : "n",
                           "%zu prompts with %d answers each are %zu answers, at most %d are allowed in one "
                           "request: send fewer prompts",
                           req->n_prompts, req->n, req->n_prompts * (size_t)req->n, API_MAX_ANSWERS);
}

enum tutti_status api_request_read_value(struct api_request *out, enum api_kind kind,
                                         const tutti_model *model, json_t *root, struct tutti_error *err)
{
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    *out = (struct api_request){ .kind = kind, .root = root, .n = 1, .n_beams = 1, .length_penalty = 1 };
    out->normalizes = !info.keeps_length;
    tutti_sampling_init(&out->sampling, model);
    if (kind == API_COMPLETION)
        out->max_tokens = API_DEFAULT_COMPLETION_TOKENS;
    if (!json_is_object(out->root))
        return json_wrong_part("", "the body", "a JSON object", root, err);
    enum tutti_status st = check_kind(kind, &info, err);
    if (st == TUTTI_OK)
        st = read_settings(out, info.n_vocab, err);
    if (st != TUTTI_OK)
        return st;
    if (out->best_of > out->n) {
        out->n_best = out->n;
        out->n = out->best_of;
        out->scores = true;
    }
    if (kind == API_COMPLETION && (st = check_min_tokens(out, err)) != TUTTI_OK)
        return st;
    if (kind == API_COMPLETION || kind == API_EMBEDDING) {
        st = api_read_prompts(out, kind == API_COMPLETION ? "prompt" : "input", info.n_vocab, err);
        return st == TUTTI_OK ? check_answers(out, err) : st;
    }
    if (kind == API_RERANK)
        return api_read_documents(out, info.has_score, err);
    out->n_prompts = 1;
    st = api_read_messages(out, err);
    if (st == TUTTI_OK)
        st = api_read_tools(out, err);
    if (st == TUTTI_OK)
        st = api_prepare_calls(out, &info, err);
    return st == TUTTI_OK ? check_min_tokens(out, err) : st;
}

enum tutti_status api_request_read_client(struct api_request *out, enum api_kind kind,
                                          const tutti_model *model, json_t *root, struct tutti_error *err)
{
    *out = (struct api_request){ .kind = kind, .root = root };
    enum tutti_status st = api_check_fields(root, kind, "", err);
    return st == TUTTI_OK ? api_request_read_value(out, kind, model, root, err) : st;
}

void api_request_clear(struct api_request *req)
{
    for (size_t i = 0; i < req->n_joined; i++)
        buf_clear(&req->joined[i]);
    for (size_t i = 0; i < req->n_dumped; i++)
        free(req->dumped[i]);
    free(req->dumped);
    free(req->joined);
    free(req->messages);
    free(req->prompts);
    free(req->logit_bias);
    free(req->schema);
    ids_clear(&req->ids);
    ids_clear(&req->stop_ids);
    tutti_tool_parser_free(req->tool_parser);
    json_decref(req->root);
    *req = (struct api_request){ 0 };
}

struct tutti_request api_request_make(const struct api_request *req, size_t i)
{
    struct tutti_request out = {
        .messages = req->messages,
        .n_messages = req->n_messages,
        .tools = req->tools,
        .template_arguments = req->template_arguments,
        .adapter = req->adapter,
        .grammar_kind = req->grammar_kind,
        .grammar = req->grammar,
        .n_grammar_bytes = req->n_grammar_bytes,
        .sampling = req->sampling,
        .n_choices = req->n,
        .n_beams = req->n_beams,
        .length_penalty = (double)req->length_penalty,
        .early_stopping = req->early_stopping,
        .max_tokens = req->max_tokens,
        .stop = req->n_stop ? req->stop : NULL,
        .n_stop = req->n_stop,
        .stop_ids = req->stop_ids.ids,
        .n_stop_ids = req->stop_ids.n,
        .keeps_stop = req->keeps_stop,
        .reports_held = req->reports_held,
        .ignore_eos = req->ignore_eos,
        .parse_special = req->parse_special,
        .priority = req->priority,
        .max_queue_ms = (int)ceilf(req->max_queue_time_s * 1e3f),
        .max_draft_tokens = req->speculate == 0 && json_field(req->root, "speculate") ? -1 : req->speculate,
        .logprobs = req->logprobs || req->scores,
        .top_logprobs = req->top_logprobs,
        .prompt_logprobs = req->prompt_logprobs,
        .no_answer = req->no_answer,
        .embedding = req->embedding,
        .shows_marks = req->kind == API_CHAT,
        .max_reasoning_tokens = req->max_reasoning_tokens,
    };
    if (req->prompts) {
        const struct api_prompt *prompt = &req->prompts[i];
        out.text = prompt->text;
        out.n_text_bytes = prompt->n_text_bytes;
        out.ids = prompt->text ? NULL : req->ids.ids + prompt->first_id;
        out.n_ids = prompt->text ? 0 : prompt->n_ids;
        out.pair = prompt->pair;
        out.n_pair_bytes = prompt->n_pair_bytes;
    }
    return out;
}

/* Replaces each name of a field in an error's text. */
static void rename_in_text(struct tutti_error *err, const char *name, const char *field)
{
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char text[sizeof err->text];
    size_t n = 0;
    for (const char *at = err->text; *at && n + 1 < sizeof text;) {
        size_t n_word = strspn(at, LETTERS);
        bool is_name = n_word == strlen(name) && !strncmp(at, name, n_word);
        int n_part = is_name ? (int)strlen(field) : n_word > 0 ? (int)n_word : 1;
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", n_part, is_name ? field : at);
        at += n_word > 0 ? n_word : 1;
    }
    if (n > 0)
        snprintf(err->text, sizeof err->text, "%s", text);
}

void api_name_field(const struct api_request *req, struct tutti_error *err)
{
    const struct {
        const char *name; /* the engine's */
        unsigned apis;    /* enum api_kind; 0: all */
        const char *field;
    } FIELD_NAMES[] = {
        { "grammar", 0, req->grammar_field },
        { "response_format", 0, req->grammar_field },
        { "response_format", API_INPUTS, "grammar" },
        { "max_reasoning_tokens", 0, req->budget_field },
        { "n_beams", 0, "num_beams" },
        { "stop_ids", 0, "stop_token_ids" },
        { "max_queue_ms", 0, "max_queue_time" },
        { "top_logprobs", API_COMPLETION, "logprobs" },
        { "prompt_logprobs", API_COMPLETION, "echo" },
        { "prompt", API_EMBEDDING, "input" },
        { "prompt", API_RERANK, "documents" },
        { "input", API_RERANK, "documents" },
        { "prompt", API_INPUTS, "inputs" },
        { "n", API_INPUTS, "best_of" },
        { "max_tokens", API_INPUTS, "max_new_tokens" },
        { "top_logprobs", API_INPUTS, "top_n_tokens" },
        { "prompt_logprobs", API_INPUTS, "decoder_input_details" },
        { "max_tokens", API_STEP, "max_length" },
    };
    for (size_t i = 0; i < sizeof FIELD_NAMES / sizeof *FIELD_NAMES; i++) {
        const char *name = FIELD_NAMES[i].name, *field = FIELD_NAMES[i].field;
        bool is_api = FIELD_NAMES[i].apis == 0 || (FIELD_NAMES[i].apis & req->kind);
        if (!field || !is_api || strcmp(err->param, name) != 0)
            continue;
        snprintf(err->param, sizeof err->param, "%s", field);
        if (strchr(name, '_') && strcmp(name, "response_format") != 0) /* other names are words of the text */
            rename_in_text(err, name, field);
        return;
    }
}

enum tutti_status api_render_messages(const struct api_request *req, const tutti_model *model,
                                      struct ids *out, struct tutti_error *err)
{
    enum { MIN_ROOM = 4096 };
    struct tutti_request request = api_request_make(req, 0);
    size_t n_room = (size_t)api_request_estimate(req, 0) * 2 + MIN_ROOM, n = 0;
    enum tutti_status st = TUTTI_OK;
    int32_t *ids = NULL;
    /* Once, if the estimate was enough. */
    for (bool is_whole = false; st == TUTTI_OK && !is_whole; n_room = n) {
        free(ids);
        ids = calloc(n_room, sizeof *ids);
        st = ids ? tutti_apply_chat_template(model, &request, ids, n_room, &n, err)
                 : error_set(err, TUTTI_E_MEMORY, "out of memory for the tokens");
        is_whole = n <= n_room;
    }
    if (st == TUTTI_OK && !ids_add_all(out, ids, n))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the tokens");
    free(ids);
    return st;
}

int64_t api_request_estimate(const struct api_request *req, size_t i)
{
    enum { BYTES_PER_TOKEN = 4 }; /* rough mean */
    size_t n_bytes = 0;
    if (req->prompts && !req->prompts[i].text)
        return (int64_t)req->prompts[i].n_ids;
    if (req->prompts)
        n_bytes = req->prompts[i].n_text_bytes + req->prompts[i].n_pair_bytes;
    for (size_t k = 0; k < req->n_messages; k++)
        n_bytes += req->messages[k].n_bytes;
    return (int64_t)(n_bytes / BYTES_PER_TOKEN) + 1;
}

int64_t api_request_read_cost(const struct api_request *req, size_t i)
{
    enum {
        PARSING_DISCOUNT = 64
    }; /* parsing a token's text costs this much less than computing it (intake.c) */
    return api_request_estimate(req, i) / PARSING_DISCOUNT;
}

static bool has_strings(const json_t *value)
{
    size_t i;
    const char *key;
    const json_t *entry;
    json_t *member;
    if (json_is_string(value))
        return true;
    json_array_foreach(value, i, entry) if (has_strings(entry)) return true;
    json_object_foreach((json_t *)(uintptr_t)value, key, member) if (has_strings(member)) return true;
    return false;
}

void api_request_trim(struct api_request *req)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(req->root, next, key, value)
    {
        if ((json_is_array(value) || json_is_object(value)) && !has_strings(value))
            json_object_del(req->root, key);
    }
    req->n_bytes = 2 * ((req->root ? json_tree_bytes(req->root) : 0) + req->ids.n * sizeof *req->ids.ids);
    if (req->tool_parser)
        req->n_bytes += json_tree_bytes(json_object_get(req->root, "tools"));
}
