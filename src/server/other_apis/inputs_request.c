/* One table of parameters. They are checked in the order of the table; the prompt comes last. */
#include "server/other_apis/inputs_request.h"

#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/limits.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { TRUNCATE_MAX_BYTES = 1024 * 1024 }; /* it runs on an intake worker */

enum parameter_type { PARAMETER_BOOL, PARAMETER_INT, PARAMETER_FLOAT };

/* The parameters as parsed, before they are checked against each other. */
struct parameters {
    bool do_sample, return_full_text, details, decoder_input_details, watermark;
    int top_k, max_new_tokens, top_n_tokens, truncate, best_of;
    float temperature, top_p, typical_p, repetition_penalty, frequency_penalty;
    bool has_temperature, has_seed, has_full_text;
    uint64_t seed;
};

struct parameter {
    const char *name;
    enum parameter_type type;
    size_t offset;
    double min, max;
    double usual; /* default of a lenient API if the value is below min */
};

#define PLACE(member) offsetof(struct parameters, member)

static const struct parameter PARAMETERS[] = {
    { "do_sample", PARAMETER_BOOL, PLACE(do_sample), 0, 0, 0 },
    { "return_full_text", PARAMETER_BOOL, PLACE(return_full_text), 0, 0, 0 },
    { "details", PARAMETER_BOOL, PLACE(details), 0, 0, 0 },
    { "decoder_input_details", PARAMETER_BOOL, PLACE(decoder_input_details), 0, 0, 0 },
    { "watermark", PARAMETER_BOOL, PLACE(watermark), 0, 0, 0 },
    { "max_new_tokens", PARAMETER_INT, PLACE(max_new_tokens), 1, INT_MAX, 1 },
    { "best_of", PARAMETER_INT, PLACE(best_of), 1, LIMIT_CHOICES, 1 },
    { "top_n_tokens", PARAMETER_INT, PLACE(top_n_tokens), 1, LIMIT_TOP_LOGPROBS, 0 },
    { "truncate", PARAMETER_INT, PLACE(truncate), 1, LIMIT_CONTEXT, 0 },
    { "temperature", PARAMETER_FLOAT, PLACE(temperature), (double)FLT_MIN, 100, 0 },
    { "top_k", PARAMETER_INT, PLACE(top_k), 1, INT_MAX, 1 },
    { "top_p", PARAMETER_FLOAT, PLACE(top_p), (double)FLT_MIN, 1, 0.01 },
    { "typical_p", PARAMETER_FLOAT, PLACE(typical_p), (double)FLT_MIN, 1, 0 },
    { "repetition_penalty", PARAMETER_FLOAT, PLACE(repetition_penalty), LIMIT_LEAST_PENALTY, LIMIT_PENALTY,
      1 },
    { "frequency_penalty", PARAMETER_FLOAT, PLACE(frequency_penalty), -2, 2, 0 },
};

static enum tutti_status read_bool(const char *name, const json_t *value, bool is_lenient, bool *out,
                                   struct tutti_error *err)
{
    const char *word = json_string_value(value);
    if (json_is_boolean(value)) {
        *out = json_is_true(value);
        return TUTTI_OK;
    }
    if (is_lenient && word) {
        static const struct {
            const char *word;
            bool value;
        } WORDS[] = { { "true", true },   { "1", true },  { "yes", true }, { "on", true },
                      { "false", false }, { "0", false }, { "no", false }, { "off", false },
                      { "none", false },  { "", false } };
        for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
            if (!strcasecmp(word, WORDS[i].word)) {
                *out = WORDS[i].value;
                return TUTTI_OK;
            }
    }
    if (is_lenient && json_is_integer(value)) {
        *out = json_integer_value(value) != 0;
        return TUTTI_OK;
    }
    return json_wrong_type(name, "true or false", value, err);
}

/* False: not a number, nor a string with one where that is allowed. In a lenient API false means
 * none. */
static bool number_of(const json_t *value, bool is_lenient, double *out)
{
    const char *word = json_string_value(value);
    char *end;
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return true;
    }
    if (is_lenient && json_is_false(value)) {
        *out = 0;
        return true;
    }
    if (!is_lenient || !word || !*word)
        return false;
    *out = strtod(word, &end);
    return !*end && isfinite(*out);
}

static enum tutti_status read_parameter(const struct parameter *p, const json_t *value, bool is_lenient,
                                        struct parameters *out, struct tutti_error *err)
{
    char *place = (char *)out + p->offset;
    double number;
    if (p->type == PARAMETER_BOOL)
        return read_bool(p->name, value, is_lenient, (bool *)(void *)place, err);
    if (!number_of(value, is_lenient, &number))
        return json_wrong_type(p->name, p->type == PARAMETER_INT ? "an integer" : "a number", value, err);
    if (p->type == PARAMETER_INT && number != floor(number))
        return json_wrong_type(p->name, "an integer", value, err);
    if (!(number >= p->min && number <= p->max)) {
        if (!is_lenient)
            return error_set_param(err, TUTTI_E_ARGUMENT, p->name,
                                   p->min == (double)FLT_MIN
                                       ? "`%s` must be above %g and at most %g, found %g"
                                       : "`%s` must be between %.10g and %.10g, found %.10g",
                                   p->name, p->min == (double)FLT_MIN ? 0 : p->min, p->max, number);
        number = number > p->max ? p->max : p->usual;
    }
    if (p->type == PARAMETER_INT)
        *(int *)(void *)place = (int)number;
    else
        *(float *)(void *)place = (float)number;
    return TUTTI_OK;
}

static enum tutti_status read_stops(struct api_request *req, const json_t *value, bool is_lenient,
                                    struct tutti_error *err)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    bool is_list = json_is_array(value) || (is_lenient && json_is_string(value));
    if (!is_list)
        return json_wrong_type("stop", "a list of strings", value, err);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(entry))
            return json_wrong_type("stop", "a list of strings", entry, err);
        if (json_string_length(entry) == 0)
            continue;
        if (req->n_stop == LIMIT_STOPS)
            return error_set_param(err, TUTTI_E_ARGUMENT, "stop", "`stop` has more than %d strings",
                                   LIMIT_STOPS);
        req->stop[req->n_stop++] = (struct tutti_string){ json_string_value(entry),
                                                          json_string_length(entry) };
    }
    return TUTTI_OK;
}

static enum tutti_status read_seed(const json_t *value, bool is_lenient, struct parameters *p,
                                   struct tutti_error *err)
{
    double number;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        p->seed = (uint64_t)json_integer_value(value);
    else if (is_lenient && number_of(value, true, &number))
        p->seed = number >= 0 && number < 0x1p63 ? (uint64_t)number : 0;
    else
        return json_wrong_type("seed", "an integer of at least 0", value, err);
    p->has_seed = true;
    return TUTTI_OK;
}

/* {"type": "json", "value": a schema, or its text}, {"type": "json_schema", "value": {"schema"}},
 * {"type": "regex", "value": a regular expression}. */
static enum tutti_status read_grammar(struct api_request *req, const json_t *grammar, struct tutti_error *err)
{
    const char *type = json_string_value(json_object_get(grammar, "type"));
    const json_t *schema = json_object_get(grammar, "value");
    bool is_named = type && !strcmp(type, "json_schema");
    bool is_pattern = type && !strcmp(type, "regex");
    if (!type || (strcmp(type, "json") && !is_named && !is_pattern))
        return error_set_param(err, TUTTI_E_ARGUMENT, "grammar",
                               "`grammar` must be of type json, json_schema or regex, found %.64s",
                               type ? type : "none");
    if (is_pattern && !json_is_string(schema))
        return json_wrong_type("grammar.value", "a string", schema, err);
    if (is_named)
        schema = json_object_get(schema, "schema");
    if (!json_is_object(schema) && !json_is_string(schema))
        return json_wrong_type("grammar.value", "a schema", schema, err);
    req->grammar_kind = is_pattern ? TUTTI_GRAMMAR_PATTERN : TUTTI_GRAMMAR_JSON_SCHEMA;
    req->grammar = json_string_value(schema); /* may have zero bytes */
    req->n_grammar_bytes = json_string_length(schema);
    if (req->grammar)
        return TUTTI_OK;
    req->grammar = req->schema = json_print(schema, JSON_COMPACT);
    if (!req->schema)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the grammar");
    req->n_grammar_bytes = strlen(req->schema);
    return TUTTI_OK;
}

static enum tutti_status read_parameters(struct api_request *req, const json_t *object, bool is_lenient,
                                         struct parameters *p, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof PARAMETERS / sizeof *PARAMETERS; i++) {
        const json_t *value = json_field(object, PARAMETERS[i].name);
        if (value)
            st = read_parameter(&PARAMETERS[i], value, is_lenient, p, err);
    }
    const json_t *stop = json_field(object, "stop"), *seed = json_field(object, "seed");
    const json_t *adapter = json_field(object, "adapter_id");
    if (st == TUTTI_OK && stop)
        st = read_stops(req, stop, is_lenient, err);
    if (st == TUTTI_OK && seed)
        st = read_seed(seed, is_lenient, p, err);
    if (st == TUTTI_OK && adapter && !json_is_string(adapter))
        st = json_wrong_type("adapter_id", "a string", adapter, err);
    if (st == TUTTI_OK && json_field(object, "grammar") && !is_lenient)
        st = read_grammar(req, json_field(object, "grammar"), err);
    p->has_temperature = json_field(object, "temperature") && p->temperature > 0;
    p->has_full_text = json_field(object, "return_full_text") != NULL;
    return st;
}

/* ---- combinations ---- */

static enum tutti_status check(const struct parameters *p, bool is_sampled, bool is_stream, bool is_lenient,
                               struct tutti_error *err)
{
    if (is_lenient)
        return TUTTI_OK;
    if (p->watermark)
        return error_set_param(err, TUTTI_E_ARGUMENT, "watermark", "`watermark` is not supported");
    if (p->best_of > 1 && p->has_seed)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of", "`seed` must not be set when `best_of` > 1");
    if (p->best_of > 1 && !is_sampled)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of",
                               "you must use sampling when `best_of` is > 1");
    if (p->best_of > 1 && is_stream)
        return error_set_param(err, TUTTI_E_ARGUMENT, "best_of",
                               "`best_of` != 1 is not supported when streaming tokens");
    if (p->decoder_input_details && is_stream)
        return error_set_param(err, TUTTI_E_ARGUMENT, "decoder_input_details",
                               "`decoder_input_details` == true is not supported when streaming tokens");
    return TUTTI_OK;
}

static void apply(struct api_request *req, const struct inputs_rules *rules, const struct parameters *p)
{
    struct inputs_wants *wants = &req->inputs;
    wants->details = p->details;
    wants->input_details = p->decoder_input_details;
    wants->full_text = p->return_full_text;
    wants->has_full_text = p->has_full_text;
    wants->truncate = p->truncate;
    wants->is_sampled = p->do_sample;
    if (!rules->is_lenient)
        wants->is_sampled = p->do_sample || (p->has_temperature && p->temperature != 1.0f) || p->top_k > 0 ||
                            p->top_p < 1.0f || (p->typical_p > 0.0f && p->typical_p < 1.0f);
    req->sampling = (struct tutti_sampling){
        .temperature = wants->is_sampled ? p->temperature : 0,
        .top_k = p->top_k > 0 ? p->top_k : rules->top_k,
        .top_p = p->top_p,
        .typical_p = p->typical_p,
        .repetition_penalty = p->repetition_penalty,
        .frequency_penalty = p->frequency_penalty,
        .has_seed = true,
        .seed = p->seed,
    };
    if (rules->is_lenient && !p->has_temperature) { /* absent, or invalid */
        req->sampling.temperature = wants->is_sampled && p->temperature != 0.0f ? 1 : 0;
    }
    if (!p->has_seed) {
        uint64_t seed = 0;
        if (getentropy(&seed, sizeof seed) != 0)
            req->sampling.has_seed = false;
        req->sampling.seed = seed >> 1; /* so that it fits a JSON integer */
    }
    req->max_tokens = p->max_new_tokens ? p->max_new_tokens : rules->max_new_tokens;
    req->n = p->best_of > 1 ? p->best_of : 1;
    req->top_logprobs = p->top_n_tokens;
    req->logprobs = true;
    req->keeps_stop = true;
}

/* Keeps the last tokens of the prompt, after those that the model puts in front. */
static enum tutti_status truncate_prompt(struct api_request *req, const tutti_model *model, int max,
                                         struct tutti_error *err)
{
    struct api_prompt *prompt = req->prompts;
    size_t n_max = (size_t)max, n_kept = 0;
    struct ids ids = { 0 };
    int32_t prefix[32];
    if (prompt->n_text_bytes > TRUNCATE_MAX_BYTES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "truncate",
                               "`truncate`: inputs has %zu bytes, at most %d are allowed with it",
                               prompt->n_text_bytes, TRUNCATE_MAX_BYTES);
    enum tutti_status st = api_tokenize(&ids, model, tutti_tokenize, prompt->text, prompt->n_text_bytes, true,
                                        err);
    int64_t n_prefix = tutti_tokenize(model, "", 0, true, prefix, 32);
    if (st == TUTTI_OK && ids.n > n_max) {
        while (n_kept < n_max && (int64_t)n_kept < n_prefix && n_kept < 32 &&
               ids.ids[n_kept] == prefix[n_kept])
            n_kept++;
        bool ok = ids_add_all(&req->ids, ids.ids, n_kept) &&
                  ids_add_all(&req->ids, ids.ids + (ids.n - (n_max - n_kept)), n_max - n_kept);
        *prompt = (struct api_prompt){ .n_ids = req->ids.n };
        if (!ok)
            st = error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    }
    ids_clear(&ids);
    return st;
}

static enum tutti_status read_inputs(struct api_request *req, const tutti_model *model, int truncate,
                                     struct tutti_error *err)
{
    const json_t *inputs = json_object_get(req->root, "inputs");
    if (!json_is_string(inputs))
        return json_wrong_type("inputs", "a string", inputs, err);
    if (json_string_length(inputs) == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "inputs", "`inputs` cannot be empty");
    req->prompts = calloc(1, sizeof *req->prompts);
    if (!req->prompts)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    req->n_prompts = 1;
    req->prompts->text = json_string_value(inputs);
    req->prompts->n_text_bytes = json_string_length(inputs);
    return truncate > 0 ? truncate_prompt(req, model, truncate, err) : TUTTI_OK;
}

enum tutti_status inputs_request_read(struct api_request *out, const struct inputs_rules *rules,
                                      const tutti_model *model, const char *text, size_t n_bytes,
                                      struct tutti_error *err)
{
    struct parameters p = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    *out = (struct api_request){ .kind = API_INPUTS, .n = 1 };
    struct inputs_wants *wants = &out->inputs;
    enum tutti_status st = json_read_object(&out->root, text, n_bytes, err);
    if (st != TUTTI_OK)
        return st;
    const json_t *parameters = json_field(out->root, "parameters"), *stream = json_field(out->root, "stream");
    const json_t *protocol = json_field(parameters, "return_protocol");
    if (parameters && !json_is_object(parameters))
        return json_wrong_type("parameters", "an object", parameters, err);
    if (stream)
        st = read_bool("stream", stream, rules->is_lenient, &out->stream, err);
    if (rules->stream != INPUTS_STREAM_BY_BODY)
        out->stream = rules->stream == INPUTS_STREAM;
    if (st == TUTTI_OK)
        st = read_parameters(out, parameters, rules->is_lenient, &p, err);
    if (st != TUTTI_OK)
        return st;
    apply(out, rules, &p);
    wants->has_other_protocol = json_is_string(protocol) && strcmp(json_string_value(protocol), "sse") != 0;
    st = check(&p, wants->is_sampled, out->stream, rules->is_lenient, err);
    return st == TUTTI_OK ? read_inputs(out, model, wants->truncate, err) : st;
}

enum tutti_status inputs_set_model(struct api_request *out, json_t *name, struct tutti_error *err)
{
    out->model = json_string_value(name);
    return json_object_set_new(out->root, "model", name) == 0 ? TUTTI_OK
                                                              : error_out_of_memory("request", err);
}
