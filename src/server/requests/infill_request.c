#include "server/requests/infill_request.h"

#include "base/json/json_field.h"
#include "server/requests/openai_fields.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- the prompt ---- */

/* Replaces the prompt's text by the ids of the text with its gap. */
static enum tutti_status render(struct api_request *req, struct api_prompt *prompt, const struct app *app,
                                struct tutti_infill infill, struct tutti_error *err)
{
    size_t max_context = (size_t)app_max_context(app), n_ids = 0;
    int32_t *ids = calloc(max_context, sizeof *ids);
    if (!ids)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    infill.n_reserved = req->max_tokens > 0 ? (size_t)req->max_tokens : 1;
    enum tutti_status st = tutti_apply_infill(app->model, &infill, ids, max_context, &n_ids,
                                              &req->infill.n_left_out, err);
    size_t first_id = req->ids.n;
    if (st == TUTTI_OK && !ids_add_all(&req->ids, ids, n_ids))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    if (st == TUTTI_OK)
        *prompt = (struct api_prompt){ .first_id = first_id, .n_ids = n_ids };
    free(ids);
    return st;
}

static enum tutti_status add_stops(struct api_request *req, const struct app *app, struct tutti_error *err)
{
    enum { MANY = 32 };
    int32_t ids[MANY];
    size_t n = req->ignore_eos ? 0 : tutti_infill_stops(app->model, ids, MANY);
    return ids_add_all(&req->stop_ids, ids, n < MANY ? n : MANY)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
}

/* Refuses a model without tokens for it. param: the field that wants it; "": the whole request. */
static enum tutti_status check_infill(const struct app *app, const char *param, struct tutti_error *err)
{
    if (app->info.has_infill)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, param,
                           "%s%smodel %s cannot fill a gap in a text: its vocabulary has no tokens for "
                           "fill-in-the-middle (FIM), such as <|fim_prefix|>, <|fim_suffix|> and "
                           "<|fim_middle|>",
                           param, *param ? ": " : "", app->info.name);
}

enum tutti_status infill_read_suffix(struct api_request *req, const struct app *app, struct tutti_error *err)
{
    const json_t *suffix = json_field(req->root, "suffix");
    enum tutti_status st = json_check(suffix, JSON_KIND_STRING, "suffix", err);
    if (st != TUTTI_OK || !suffix || json_string_length(suffix) == 0)
        return st;
    if (req->echo)
        return error_set_param(err, TUTTI_E_ARGUMENT, "suffix", "suffix cannot be combined with echo");
    if (req->parse_special)
        return error_set_param(err, TUTTI_E_ARGUMENT, "suffix",
                               "suffix cannot be combined with parse_special");
    if (req->n_prompts > INFILL_MAX_PROMPTS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "suffix",
                               "suffix is allowed with at most %d prompts, found %zu", INFILL_MAX_PROMPTS,
                               req->n_prompts);
    st = check_infill(app, "suffix", err);
    for (size_t i = 0; st == TUTTI_OK && i < req->n_prompts; i++) {
        struct api_prompt *prompt = &req->prompts[i];
        if (!prompt->text)
            return error_set_param(err, TUTTI_E_ARGUMENT, "suffix",
                                   "suffix is only allowed with a prompt that is text, not token ids");
        const struct tutti_infill infill = { .prefix = prompt->text,
                                             .n_prefix_bytes = prompt->n_text_bytes,
                                             .suffix = json_string_value(suffix),
                                             .n_suffix_bytes = json_string_length(suffix) };
        st = render(req, prompt, app, infill, err);
    }
    return st == TUTTI_OK ? add_stops(req, app, err) : st;
}

/* ---- llama-server's fields ---- */

/* Sets *bytes to a text that may be absent. */
static enum tutti_status read_text(const json_t *root, const char *name, const char **text, size_t *n_bytes,
                                   struct tutti_error *err)
{
    const json_t *value = json_field(root, name);
    *text = json_string_value(value);
    *n_bytes = json_string_length(value);
    return json_check(value, JSON_KIND_STRING, name, err);
}

static enum tutti_status read_file(struct tutti_infill_file *out, const json_t *value, size_t i,
                                   struct tutti_error *err)
{
    char param[48];
    const json_t *text = json_field(value, "text"), *name = json_field(value, "filename");
    snprintf(param, sizeof param, "input_extra[%zu]", i);
    if (!json_is_object(value) || !json_is_string(text) || (name && !json_is_string(name)))
        return json_wrong_type(param, "an object with a text, and a filename if it has one", value, err);
    *out = (struct tutti_infill_file){ .name = name ? json_string_value(name) : "tmp",
                                       .n_name_bytes = name ? json_string_length(name) : 3,
                                       .text = json_string_value(text),
                                       .n_text_bytes = json_string_length(text) };
    return TUTTI_OK;
}

/* *files: for the caller to free. */
static enum tutti_status read_files(const json_t *root, struct tutti_infill_file **files, size_t *n,
                                    struct tutti_error *err)
{
    const json_t *list = json_field(root, "input_extra");
    enum tutti_status st = json_check(list, JSON_KIND_LIST, "input_extra", err);
    *n = json_array_size(list);
    if (st != TUTTI_OK || *n == 0)
        return st;
    if (*n > INFILL_MAX_FILES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "input_extra",
                               "input_extra has %zu entries, at most %d are allowed", *n, INFILL_MAX_FILES);
    *files = calloc(*n, sizeof **files);
    if (!*files)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    for (size_t i = 0; st == TUTTI_OK && i < *n; i++)
        st = read_file(&(*files)[i], json_array_get(list, i), i, err);
    return st;
}

/* [[id, bias], ...] becomes OpenAI's {"id": bias}; false is a bias that forbids the token. */
static enum tutti_status convert_bias(json_t *root, struct tutti_error *err)
{
    enum { FORBIDDEN = -100 };
    const json_t *list = json_object_get(root, "logit_bias"), *pair;
    size_t i;
    if (!json_is_array(list))
        return TUTTI_OK;
    json_t *map = json_object();
    json_array_foreach(list, i, pair)
    {
        const json_t *id = json_array_get(pair, 0), *bias = json_array_get(pair, 1);
        char key[32], param[48];
        snprintf(param, sizeof param, "logit_bias[%zu]", i);
        if (json_array_size(pair) != 2 || !json_is_integer(id) ||
            (!json_is_number(bias) && !json_is_false(bias))) {
            json_decref(map);
            return json_wrong_type(param, "a list of a token id and a number, or false", pair, err);
        }
        snprintf(key, sizeof key, "%lld", (long long)json_integer_value(id));
        json_object_set_new(map, key, json_is_false(bias) ? json_integer(FORBIDDEN) : json_deep_copy(bias));
    }
    if (json_object_set_new(root, "logit_bias", map) != 0)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for logit_bias");
    return TUTTI_OK;
}

/* Whether a list of samplers names one by either of two names. */
static bool has_sampler(const json_t *list, const char *name, const char *other)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(list, i, entry)
    {
        const char *own = json_string_value(entry);
        if (own && (!strcmp(own, name) || (other && !strcmp(own, other))))
            return true;
    }
    return false;
}

/* A list switches off the samplers that it does not name; their order is fixed. */
static enum tutti_status read_samplers(struct api_request *req, struct tutti_error *err)
{
    static const char *const KNOWN[] = { "top_k",     "top_p",       "min_p",     "typ_p",
                                         "typical_p", "temperature", "penalties", "dry",
                                         "xtc",       "top_n_sigma", "infill" };
    const json_t *list = json_field(req->root, "samplers"), *entry;
    size_t i;
    if (json_is_string(list) && json_string_length(list) == 0)
        return TUTTI_OK;
    enum tutti_status st = json_check(list, JSON_KIND_LIST, "samplers", err);
    if (st != TUTTI_OK || json_array_size(list) == 0)
        return st;
    json_array_foreach(list, i, entry)
    {
        bool is_known = false;
        for (size_t k = 0; k < sizeof KNOWN / sizeof *KNOWN; k++)
            is_known = is_known || (json_is_string(entry) && !strcmp(json_string_value(entry), KNOWN[k]));
        if (!is_known)
            return error_set_param(err, TUTTI_E_ARGUMENT, "samplers",
                                   "samplers[%zu]: expected \"top_k\", \"top_p\", \"min_p\", \"typ_p\", "
                                   "\"temperature\", \"penalties\" or \"infill\"",
                                   i);
    }
    struct tutti_sampling *s = &req->sampling;
    s->top_k = has_sampler(list, "top_k", NULL) ? s->top_k : 0;
    s->top_p = has_sampler(list, "top_p", NULL) ? s->top_p : 1;
    s->min_p = has_sampler(list, "min_p", NULL) ? s->min_p : 0;
    s->typical_p = has_sampler(list, "typ_p", "typical_p") ? s->typical_p : 0;
    s->temperature = has_sampler(list, "temperature", NULL) ? s->temperature : 1;
    if (!has_sampler(list, "penalties", NULL)) {
        s->presence_penalty = s->frequency_penalty = 0;
        s->repetition_penalty = 1;
    }
    return TUTTI_OK;
}

static enum tutti_status read_count(const json_t *root, const char *name, int *out, struct tutti_error *err)
{
    const json_t *value = json_field(root, name);
    enum tutti_status st = json_check(value, JSON_KIND_INT, name, err);
    if (st == TUTTI_OK && value)
        st = json_check_range((double)json_integer_value(value), INT_MIN, INT_MAX, name, err);
    if (st == TUTTI_OK && value && json_integer_value(value) > 0)
        *out = (int)json_integer_value(value);
    return st;
}

static enum tutti_status read_flag(const json_t *root, const char *name, bool *out, struct tutti_error *err)
{
    *out = json_is_on(root, name);
    return json_check(json_object_get(root, name), JSON_KIND_BOOL, name, err);
}

/* What only /infill has. */
static enum tutti_status read_wants(struct infill_wants *out, const json_t *root, struct tutti_error *err)
{
    const json_t *fields = json_field(root, "response_fields"), *field;
    size_t i;
    enum tutti_status st = read_count(root, "n_indent", &out->n_indent, err);
    if (st == TUTTI_OK)
        st = read_count(root, "t_max_predict_ms", &out->max_predict_ms, err);
    if (st == TUTTI_OK)
        st = read_flag(root, "return_tokens", &out->returns_tokens, err);
    if (st == TUTTI_OK)
        st = read_flag(root, "timings_per_token", &out->timings_per_token, err);
    if (st == TUTTI_OK)
        st = json_check(fields, JSON_KIND_LIST, "response_fields", err);
    if (st == TUTTI_OK && json_array_size(fields) > INFILL_MAX_RESPONSE_FIELDS)
        st = error_set_param(err, TUTTI_E_ARGUMENT, "response_fields",
                             "response_fields has %zu entries, at most %d are allowed",
                             json_array_size(fields), INFILL_MAX_RESPONSE_FIELDS);
    json_array_foreach(fields, i, field) if (st == TUTTI_OK && !json_is_string(field))
        st = json_wrong_type("response_fields", "a list of strings", field, err);
    return st;
}

/* Gives the fields of a plain completion the values that mean the same there. *is_prefill: n_predict is 0. */
static enum tutti_status convert_fields(json_t *root, bool *is_prefill, struct tutti_error *err)
{
    const json_t *n_predict = json_field(root, "n_predict"), *max = json_field(root, "max_tokens");
    const json_t *n = n_predict ? n_predict : max, *temperature = json_field(root, "temperature");
    *is_prefill = json_is_integer(n) && json_integer_value(n) == 0;
    if (json_is_number(temperature) && json_number_value(temperature) < 0) /* greedy */
        json_object_set_new(root, "temperature", json_integer(0));
    if (*is_prefill || !n) {
        json_object_del(root, "max_tokens");
        json_object_set_new(root, "n_predict", json_integer(-1));
    } else if (n_predict && max) {
        json_object_del(root, "max_tokens");
    }
    return convert_bias(root, err);
}

/* Tokenizes the text around the gap. prompt is the part of the line in front of it. */
static enum tutti_status read_gap(struct api_request *req, struct app *app, const char *prompt,
                                  size_t n_prompt, struct tutti_error *err)
{
    struct tutti_infill infill = { 0 };
    struct tutti_infill_file *files = NULL;
    struct buf prefix = { 0 };
    const json_t *root = req->root;
    enum tutti_status st = read_text(root, "input_prefix", &infill.prefix, &infill.n_prefix_bytes, err);
    if (st == TUTTI_OK)
        st = read_text(root, "input_suffix", &infill.suffix, &infill.n_suffix_bytes, err);
    if (st == TUTTI_OK)
        st = read_text(root, "repo_name", &infill.project, &infill.n_project_bytes, err);
    if (st == TUTTI_OK)
        st = read_text(root, "filename", &infill.name, &infill.n_name_bytes, err);
    if (st == TUTTI_OK)
        st = read_files(root, &files, &infill.n_files, err);
    if (st == TUTTI_OK &&
        (!buf_add(&prefix, infill.prefix, infill.n_prefix_bytes) || !buf_add(&prefix, prompt, n_prompt)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    if (st == TUTTI_OK) {
        infill.prefix = prefix.bytes;
        infill.n_prefix_bytes = prefix.n_bytes;
        infill.files = files;
        st = render(req, &req->prompts[0], app, infill, err);
    }
    free(files);
    buf_clear(&prefix);
    return st;
}

enum tutti_status infill_read_body(struct api_request *req, struct app *app, json_t *body,
                                   struct tutti_error *err)
{
    *req = (struct api_request){ .kind = API_INFILL, .root = body };
    enum tutti_status st = api_check_fields(body, API_INFILL, "", err);
    const json_t *value = json_object_get(body, "prompt");
    bool is_prefill = false;
    if (st == TUTTI_OK && json_is_object(body))
        st = json_check(value, JSON_KIND_STRING, "prompt", err);
    if (st == TUTTI_OK && json_is_object(body))
        st = convert_fields(body, &is_prefill, err);
    if (st != TUTTI_OK)
        return st;
    /* The text in front of the gap is no prompt of its own. */
    json_t *prompt = json_is_object(body) ? json_incref(json_object_get(body, "prompt")) : NULL;
    if (json_is_object(body) && json_object_set_new(body, "prompt", json_string("")) != 0)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the prompt");
    if (st == TUTTI_OK)
        st = api_request_read_value(req, API_COMPLETION, app->model, body, err);
    if (st == TUTTI_OK)
        st = check_infill(app, "", err);
    if (st == TUTTI_OK)
        st = read_wants(&req->infill, req->root, err);
    if (st == TUTTI_OK)
        st = read_samplers(req, err);
    if (st == TUTTI_OK)
        st = read_gap(req, app, json_string_value(prompt), json_string_length(prompt), err);
    if (st == TUTTI_OK)
        st = add_stops(req, app, err);
    for (size_t i = 0; i < req->n_stop; i++)
        req->n_repeated_bytes += req->stop[i].n_bytes;
    req->no_answer = is_prefill;
    req->scores = req->infill.returns_tokens || req->stream; /* the reply has the ids of tokens */
    json_decref(prompt);
    return st;
}
