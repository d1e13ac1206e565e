/* Validates and copies requests. Nothing in a request is trusted; comparisons are written so that a
 * NaN fails them. */
#include "engine/requests/request.h"

#include "base/limits.h"
#include "base/system/clock.h"
#include "model/adapters/adapter.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REQUEST_STOP_IDS = 256,
    MAX_LOGIT_BIAS = 1024,
    MAX_MESSAGES = 65536,
    BYTES_PER_TOKEN = 4, /* rough mean */
    MESSAGE_BYTES = 64,  /* bytes of text that take a chat template as long as an empty message */
    UNCOUNTED_PART =
        16384, /* so small a part of struct request_memory is not counted: requests are limited */
    SPARE_TOKENS =
        64, /* tokens beyond the context that are counted, because a repeated prefix may be removed later */
};

/* ---- checks ---- */

static enum tutti_status check_range(const char *param, double value, double low, bool low_is_in, double high,
                                     struct tutti_error *err)
{
    if ((low_is_in ? value >= low : value > low) && value <= high)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s is %g, expected %s %g and at most %g", param,
                           value, low_is_in ? "at least" : "more than", low, high);
}

static enum tutti_status check_sampling(const struct tutti_sampling *s, const struct model_desc *desc,
                                        struct tutti_error *err)
{
    const struct {
        const char *param;
        double value, low;
        bool low_is_in;
        double high;
    } ranges[] = {
        { "temperature", (double)s->temperature, 0, true, 100 },
        { "top_k", s->top_k, 0, true, INT32_MAX },
        { "top_p", (double)s->top_p, 0, false, 1 },
        { "min_p", (double)s->min_p, 0, true, 1 },
        { "typical_p", (double)s->typical_p, 0, true, 1 },
        { "repetition_penalty", (double)s->repetition_penalty, LIMIT_LEAST_PENALTY - 1e-9, true,
          LIMIT_PENALTY },
        { "presence_penalty", (double)s->presence_penalty, -2, true, 2 },
        { "frequency_penalty", (double)s->frequency_penalty, -2, true, 2 },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        enum tutti_status st = check_range(ranges[i].param, ranges[i].value, ranges[i].low,
                                           ranges[i].low_is_in, ranges[i].high, err);
        if (st != TUTTI_OK)
            return st;
    }
    if (s->n_logit_bias > MAX_LOGIT_BIAS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "logit_bias",
                               "logit_bias has %zu entries, at most %d are allowed", s->n_logit_bias,
                               MAX_LOGIT_BIAS);
    if (s->n_logit_bias > 0 && !s->logit_bias)
        return error_set_param(err, TUTTI_E_ARGUMENT, "logit_bias", "logit_bias is missing");
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        const struct tutti_logit_bias *b = &s->logit_bias[i];
        if (b->token < 0 || b->token >= desc->n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, "logit_bias",
                                   "logit_bias is for token %d, expected 0 to %d", b->token,
                                   desc->n_vocab - 1);
        enum tutti_status st = check_range("logit_bias", (double)b->bias, -100, true, 100, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static enum tutti_status check_ids(const char *param, const int32_t *ids, size_t n,
                                   const struct model_desc *desc, struct tutti_error *err)
{
    if (n > 0 && !ids)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: the ids are missing", param);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= desc->n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: id %d at index %zu, expected 0 to %d",
                                   param, ids[i], i, desc->n_vocab - 1);
    return TUTTI_OK;
}

/* Worded as OpenAI's API, so that clients recognize this error. is_more: tokens were not counted
 * beyond n. */
static enum tutti_status check_length(const char *param, const struct tutti_request *spec, size_t n,
                                      bool is_more, int max_context, struct tutti_error *err)
{
    bool has_answer = !spec->no_answer && spec->embedding == TUTTI_EMBEDDING_NONE;
    size_t n_answer = !has_answer ? 0 : spec->max_tokens > 0 ? (size_t)spec->max_tokens : 1;
    const char *more = is_more ? "more than " : "";
    if (spec->embedding != TUTTI_EMBEDDING_NONE)
        param = "input"; /* the name of the text in the API of embeddings */
    if (!is_more && n + has_answer <= (size_t)max_context)
        return TUTTI_OK;
    error_set_param(err, TUTTI_E_LIMIT, param,
                    "This model's maximum context length is %d tokens. However, you requested %s%zu tokens "
                    "(%s%zu in the %s, %zu in the completion). Please reduce the length of the %s.",
                    max_context, more, n + n_answer, more, n, param, n_answer, param);
    if (err)
        err->context_tokens = (uint32_t)max_context;
    return TUTTI_E_LIMIT;
}

enum tutti_status request_check_messages(const struct tutti_request *spec, const struct model *model,
                                         struct tutti_error *err)
{
    if (!model->chat || !model->tokenizer)
        return error_set_param(err, TUTTI_E_ARGUMENT, "messages", "model %s has no chat format", model->name);
    if (!spec->messages || spec->n_messages > MAX_MESSAGES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "messages", "%zu messages, expected 1 to %d",
                               spec->n_messages, MAX_MESSAGES);
    for (size_t i = 0; i < spec->n_messages; i++) {
        const struct tutti_message *m = &spec->messages[i];
        if (!m->role || (m->n_bytes > 0 && !m->content)) {
            char param[64];
            snprintf(param, sizeof param, "messages[%zu].%s", i, m->role ? "content" : "role");
            return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s is missing", param);
        }
        if (m->content_kind > TUTTI_CONTENT_ABSENT || (m->content_kind && m->n_bytes > 0))
            return error_set_param(err, TUTTI_E_ARGUMENT, "content_kind",
                                   "messages[%zu].content_kind: found %d, expected TUTTI_CONTENT_TEXT, or "
                                   "content that is empty",
                                   i, (int)m->content_kind);
    }
    return TUTTI_OK;
}

static enum tutti_status check_prompt(const struct tutti_request *spec, const struct model *model,
                                      int max_context, struct tutti_error *err)
{
    int n_kinds = (spec->ids || spec->n_ids > 0) + (spec->messages || spec->n_messages > 0) +
                  (spec->text || spec->n_text_bytes > 0);
    if (n_kinds != 1)
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt",
                               "%d prompts, expected exactly one of ids, messages and text", n_kinds);
    if (spec->messages || spec->n_messages > 0) {
        if (spec->n_messages == 0)
            return error_set_param(err, TUTTI_E_ARGUMENT, "messages", "messages is empty");
        return request_check_messages(spec, model, err);
    }
    if (spec->text || spec->n_text_bytes > 0) {
        if (!model->tokenizer)
            return error_set_param(err, TUTTI_E_ARGUMENT, "prompt", "model %s has no tokenizer", model->name);
        if (!spec->text)
            return error_set_param(err, TUTTI_E_ARGUMENT, "prompt", "the prompt's text is missing");
        return TUTTI_OK;
    }
    if (spec->n_ids == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt", "the prompt is empty");
    enum tutti_status st = check_length("prompt", spec, spec->n_ids, false, max_context, err);
    return st != TUTTI_OK ? st : check_ids("prompt", spec->ids, spec->n_ids, &model->desc, err);
}

static enum tutti_status check_stops(const struct tutti_request *spec, const struct model *model,
                                     struct tutti_error *err)
{
    if (spec->n_stop > LIMIT_STOPS || (spec->n_stop > 0 && !spec->stop))
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop", "%zu stop strings, expected at most %d",
                               spec->n_stop, LIMIT_STOPS);
    if (spec->n_stop > 0 && !model->tokenizer)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop", "model %s has no tokenizer", model->name);
    for (size_t i = 0; i < spec->n_stop; i++)
        if (spec->stop[i].n_bytes == 0 || spec->stop[i].n_bytes > LIMIT_STOP_BYTES || !spec->stop[i].text)
            return error_set_param(err, TUTTI_E_ARGUMENT, "stop",
                                   "stop string %zu has %zu bytes, expected 1 to %d", i,
                                   spec->stop[i].n_bytes, LIMIT_STOP_BYTES);
    if (spec->n_stop_ids > MAX_REQUEST_STOP_IDS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop_ids", "%zu stop ids, expected at most %d",
                               spec->n_stop_ids, MAX_REQUEST_STOP_IDS);
    return check_ids("stop_ids", spec->stop_ids, spec->n_stop_ids, &model->desc, err);
}

/* Largest number of ids that end an answer. */
static int n_stop_ids(const struct tutti_request *spec, const struct model_desc *desc)
{
    return (spec->ignore_eos ? 0 : model_desc_n_stops(desc, spec->n_messages > 0)) + (int)spec->n_stop_ids;
}

static enum tutti_status check_beams(const struct tutti_request *spec, const struct model *model,
                                     int max_seqs, struct tutti_error *err)
{
    int n_choices = spec->n_choices > 0 ? spec->n_choices : 1;
    enum tutti_status st = check_range("n_beams", spec->n_beams, 0, true, LIMIT_BEAMS, err);
    if (st != TUTTI_OK || spec->n_beams < 2)
        return st;
    st = check_range("length_penalty", spec->length_penalty, -100, true, 100, err);
    if (st == TUTTI_OK)
        st = check_range("early_stopping", (double)spec->early_stopping, 0, true, TUTTI_EARLY_STOPPING_NEVER,
                         err);
    if (st != TUTTI_OK)
        return st;
    if (n_choices > spec->n_beams)
        return error_set_param(err, TUTTI_E_ARGUMENT, "n", "n is %d, but only %d beams are searched",
                               n_choices, spec->n_beams);
    if (spec->n_stop > 0 || spec->top_logprobs > 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, spec->n_stop > 0 ? "stop" : "top_logprobs",
                               "%s cannot be combined with beam search",
                               spec->n_stop > 0 ? "stop strings" : "top_logprobs");
    if (spec->n_beams + n_stop_ids(spec, &model->desc) > model->desc.n_usable_vocab)
        return error_set_param(err, TUTTI_E_ARGUMENT, "n_beams", "%d beams exceed a vocabulary of %d tokens",
                               spec->n_beams, model->desc.n_usable_vocab);
    if (spec->n_beams > max_seqs)
        return error_set_param(err, TUTTI_E_LIMIT, "n_beams",
                               "n_beams is %d, but the engine runs %d sequences", spec->n_beams, max_seqs);
    int n_left = max_seqs - spec->n_beams;
    if (spec->owner != 0 && !request_leaves_enough(max_seqs, n_left, spec->n_beams - 1))
        return error_set_param(err, TUTTI_E_LIMIT, "n_beams",
                               "n_beams is %d of %d sequences, of which %d stay free for other clients",
                               spec->n_beams, max_seqs, max_seqs / KEPT_SLOTS);
    return TUTTI_OK;
}

static bool has_grammar_text(enum tutti_grammar_kind kind)
{
    return kind != TUTTI_GRAMMAR_NONE && kind != TUTTI_GRAMMAR_JSON_OBJECT;
}

static enum tutti_status check_grammar(const struct tutti_request *spec, const struct model *model,
                                       struct tutti_error *err)
{
    bool has_text = has_grammar_text(spec->grammar_kind);
    bool is_own = spec->grammar_kind == TUTTI_GRAMMAR_GBNF || spec->grammar_kind == TUTTI_GRAMMAR_PATTERN;
    enum tutti_status st = check_range("grammar_kind", (double)spec->grammar_kind, 0, true,
                                       TUTTI_GRAMMAR_TEXT_OR_CALLS, err);
    if (st != TUTTI_OK || spec->grammar_kind == TUTTI_GRAMMAR_NONE)
        return st;
    bool is_calls = spec->grammar_kind >= TUTTI_GRAMMAR_TOOL_CALLS;
    const char *param = is_own ? "grammar" : is_calls ? "tools" : "response_format";
    if (!model->tokenizer)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "model %s has no tokenizer", model->name);
    if (has_text && (!spec->grammar || spec->n_grammar_bytes == 0))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "the grammar is empty");
    if (spec->n_grammar_bytes > LIMIT_GRAMMAR_BYTES)
        return error_set_param(err, TUTTI_E_LIMIT, param, "the grammar has %zu bytes, at most %d are allowed",
                               spec->n_grammar_bytes, LIMIT_GRAMMAR_BYTES);
    if (spec->n_beams > 1)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "a grammar cannot be combined with beam search");
    if (is_calls && (!spec->shows_marks || spec->n_messages == 0))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "calls of tools need messages and shows_marks");
    return TUTTI_OK;
}

enum tutti_status request_check_place(const struct tutti_request *spec, struct tutti_error *err)
{
    enum tutti_status st = check_range("priority", spec->priority, TUTTI_PRIORITY_FIRST, true,
                                       TUTTI_PRIORITY_LAST, err);
    if (st == TUTTI_OK && spec->weight != 0)
        st = check_range("weight", spec->weight, 0.001, true, 1000, err);
    return st == TUTTI_OK ? check_range("max_queue_ms", spec->max_queue_ms, -1, true, INT32_MAX, err) : st;
}

/* A cross-encoder's head was trained with the first token of pairs. */
static enum tutti_status check_pair(const struct tutti_request *spec, const struct model *model,
                                    struct tutti_error *err)
{
    if (spec->pair && (!spec->text || !model->desc.is_encoder))
        return error_set_param(err, TUTTI_E_ARGUMENT, "pair", "a pair of texts needs a text and an encoder");
    if (model->desc.has_score && (spec->embedding != TUTTI_EMBEDDING_FIRST || (spec->text && !spec->pair)))
        return error_set_param(err, TUTTI_E_ARGUMENT, "model",
                               "model %s scores pairs of texts; it makes no embeddings", model->name);
    return TUTTI_OK;
}

static enum tutti_status check_results(const struct tutti_request *spec, const struct model *model,
                                       struct tutti_error *err)
{
    enum tutti_status st = check_range("embedding", (double)spec->embedding, 0, true, TUTTI_EMBEDDING_FIRST,
                                       err);
    if (st == TUTTI_OK && spec->embedding == TUTTI_EMBEDDING_NONE)
        st = model_check_generates(model, err);
    if (st == TUTTI_OK)
        st = check_pair(spec, model, err);
    if (st != TUTTI_OK)
        return st;
    if (spec->embedding != TUTTI_EMBEDDING_NONE && (spec->n_choices > 1 || spec->prompt_logprobs))
        return error_set_param(err, TUTTI_E_ARGUMENT, spec->n_choices > 1 ? "n" : "prompt_logprobs",
                               "an embedding request cannot have several choices or log-probabilities");
    if (!spec->prompt_logprobs)
        return TUTTI_OK;
    if (model->desc.has_prefix)
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt_logprobs",
                               "model %s has bidirectional attention over the prompt: its tokens have no "
                               "log-probabilities",
                               model->name);
    if (spec->n_beams > 1)
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt_logprobs",
                               "log-probabilities of the prompt cannot be combined with beam search");
    return TUTTI_OK;
}

static enum tutti_status check_spec(const struct tutti_request *spec, const struct model *model,
                                    const struct request_limits *limits, struct tutti_error *err)
{
    const struct {
        const char *param;
        int value, high;
    } ranges[] = {
        { "n", spec->n_choices, LIMIT_CHOICES },
        { "max_tokens", spec->max_tokens, INT32_MAX },
        { "top_logprobs", spec->top_logprobs, LIMIT_TOP_LOGPROBS },
    };
    int adapter = spec->adapter ? model_find_adapter(model, spec->adapter) : -1;
    int n_virtual = model_adapter_virtual(model, adapter).n;
    if (n_virtual >= limits->max_context)
        return error_set_param(err, TUTTI_E_LIMIT, "model",
                               "adapter %s has %d virtual tokens, but the context ends at %d tokens",
                               spec->adapter, n_virtual, limits->max_context);
    enum tutti_status st = check_prompt(spec, model, limits->max_context - n_virtual, err);
    if (st == TUTTI_OK && spec->adapter && adapter < 0)
        st = error_set_param(err, TUTTI_E_NOT_FOUND, "model", "model %s has no adapter %s", model->name,
                             spec->adapter);
    if (st == TUTTI_OK)
        st = check_sampling(&spec->sampling, &model->desc, err);
    if (st == TUTTI_OK)
        st = check_stops(spec, model, err);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && st == TUTTI_OK; i++)
        st = check_range(ranges[i].param, ranges[i].value, 0, true, ranges[i].high, err);
    if (st == TUTTI_OK)
        st = request_check_place(spec, err);
    if (st == TUTTI_OK)
        st = check_grammar(spec, model, err);
    if (st == TUTTI_OK)
        st = check_range("max_reasoning_tokens", (double)spec->max_reasoning_tokens, TUTTI_NO_REASONING, true,
                         INT32_MAX, err);
    if (st == TUTTI_OK && spec->max_reasoning_tokens != 0 && spec->n_beams > 1)
        st = error_set_param(err, TUTTI_E_ARGUMENT, "max_reasoning_tokens",
                             "a budget of reasoning cannot be combined with beam search");
    if (st == TUTTI_OK)
        st = check_results(spec, model, err);
    return st == TUTTI_OK ? check_beams(spec, model, limits->max_seqs, err) : st;
}

/* ---- the copy ---- */

/* Divides one allocation: the same walk over the request first measures (out is NULL), then copies. */
struct carver {
    uint8_t *out;
    size_t n_bytes;
    bool is_too_large;
};

static void *carve(struct carver *c, const void *bytes, size_t n_items, size_t item_bytes)
{
    size_t n, begin = (c->n_bytes + 15) & ~(size_t)15;
    if (__builtin_mul_overflow(n_items, item_bytes, &n) || begin < c->n_bytes ||
        __builtin_add_overflow(begin, n, &c->n_bytes)) {
        c->is_too_large = true;
        return NULL;
    }
    if (!c->out)
        return NULL;
    if (bytes && n > 0)
        memcpy(c->out + begin, bytes, n);
    return c->out + begin;
}

static char *carve_text(struct carver *c, const char *text, size_t n_bytes)
{
    if (n_bytes == SIZE_MAX) {
        c->is_too_large = true;
        return NULL;
    }
    char *copy = carve(c, NULL, n_bytes + 1, 1);
    if (copy) {
        if (n_bytes > 0)
            memcpy(copy, text, n_bytes);
        copy[n_bytes] = '\0';
    }
    return copy;
}

static char *carve_string(struct carver *c, const char *text)
{
    return text ? carve_text(c, text, strlen(text)) : NULL;
}

static void copy_messages(struct carver *c, const struct tutti_request *spec, struct tutti_request *to)
{
    struct tutti_message *messages = carve(c, spec->messages, spec->n_messages, sizeof *messages);
    to->messages = messages;
    for (size_t i = 0; i < spec->n_messages; i++) {
        const struct tutti_message *m = &spec->messages[i];
        struct tutti_message copy = *m;
        copy.role = carve_text(c, m->role, strlen(m->role));
        copy.content = carve_text(c, m->content, m->n_bytes);
        copy.name = carve_string(c, m->name);
        copy.tool_calls = carve_string(c, m->tool_calls);
        copy.tool_call_id = carve_string(c, m->tool_call_id);
        copy.reasoning = carve_string(c, m->reasoning);
        if (messages)
            messages[i] = copy;
    }
}

/* Copies the stop strings, and makes room for the search for them, which a prompt thread prepares. */
static void copy_stops(struct carver *c, const struct tutti_request *spec, struct tutti_request *to,
                       uint16_t ***stop_borders)
{
    struct tutti_string *stops = carve(c, spec->stop, spec->n_stop, sizeof *stops);
    uint16_t **borders = carve(c, NULL, spec->n_stop, sizeof *borders);
    for (size_t i = 0; i < spec->n_stop; i++) {
        size_t n_bytes = spec->stop[i].n_bytes;
        char *text = carve_text(c, spec->stop[i].text, n_bytes);
        uint16_t *own = carve(c, NULL, n_bytes, sizeof *own);
        if (!own)
            continue; /* measuring */
        stops[i].text = text;
        borders[i] = own;
    }
    to->stop = stops;
    *stop_borders = borders;
}

static void copy_spec(struct carver *c, const struct tutti_request *spec, struct tutti_request *to,
                      uint16_t ***stop_borders)
{
    *to = *spec;
    to->n_choices = spec->n_choices > 0 ? spec->n_choices : 1;
    if (spec->embedding != TUTTI_EMBEDDING_NONE)
        to->no_answer = true;
    if (to->no_answer) {
        to->n_beams = 0;
        to->grammar_kind = TUTTI_GRAMMAR_NONE;
    }
    if (spec->n_ids > 0)
        to->ids = carve(c, spec->ids, spec->n_ids, sizeof *spec->ids);
    if (spec->n_messages > 0)
        copy_messages(c, spec, to);
    to->tools = carve_string(c, spec->tools);
    to->template_arguments = carve_string(c, spec->template_arguments);
    if (spec->text)
        to->text = carve_text(c, spec->text, spec->n_text_bytes);
    if (spec->pair)
        to->pair = carve_text(c, spec->pair, spec->n_pair_bytes);
    to->sampling.logit_bias = carve(c, spec->sampling.logit_bias, spec->sampling.n_logit_bias,
                                    sizeof *spec->sampling.logit_bias);
    copy_stops(c, spec, to, stop_borders);
    if (has_grammar_text(to->grammar_kind)) {
        to->grammar = carve_text(c, spec->grammar, spec->n_grammar_bytes);
    } else {
        to->grammar = NULL;
        to->n_grammar_bytes = 0;
    }
    to->stop_ids = carve(c, spec->stop_ids, spec->n_stop_ids, sizeof *spec->stop_ids);
}

enum tutti_status request_new(struct request **out, const struct tutti_request *spec,
                              const struct model *model, const struct request_limits *limits,
                              struct tutti_error *err)
{
    enum tutti_status st = check_spec(spec, model, limits, err);
    if (st != TUTTI_OK)
        return st;
    size_t n_choices = spec->n_choices > 0 ? (size_t)spec->n_choices : 1;
    size_t head_bytes = sizeof(struct request) + n_choices * sizeof(struct choice);
    struct carver measure = { .n_bytes = head_bytes };
    struct tutti_request scratch;
    uint16_t **no_borders;
    copy_spec(&measure, spec, &scratch, &no_borders);
    struct request *r = measure.is_too_large ? NULL : malloc(measure.n_bytes);
    if (!r)
        return error_set(err, TUTTI_E_MEMORY, "request of %zu bytes: out of memory", measure.n_bytes);
    memset(r, 0, head_bytes);
    struct carver copy = { .out = (uint8_t *)r, .n_bytes = head_bytes };
    copy_spec(&copy, spec, &r->spec, &r->stop_borders);
    r->adapter = spec->adapter ? model_find_adapter(model, spec->adapter) : -1;
    r->virtual = model_adapter_virtual(model, r->adapter);
    r->n_seen = r->virtual.n;
    r->spec.adapter = NULL; /* r->adapter replaces it */
    r->n_unreported = r->n_unfinished = r->spec.n_choices;
    r->submit_us = clock_now_us();
    r->spec.weight = spec->weight != 0 ? spec->weight : 1;
    int wait_ms = spec->max_queue_ms, limit_ms = limits->max_queue_ms;
    if (limit_ms > 0 && (wait_ms == 0 || wait_ms > limit_ms))
        wait_ms = limit_ms;
    if (wait_ms < 0)
        wait_ms = 0;
    r->spec.max_queue_ms = wait_ms;
    r->deadline_us = wait_ms > 0 ? r->submit_us + (uint64_t)wait_ms * 1000 : 0;
    *out = r;
    return TUTTI_OK;
}

/* Ends what hold_memory() has counted. */
static void release_memory(struct request *r)
{
    if (r->held_bytes == 0)
        return;
    atomic_fetch_sub(&r->memory->n_bytes, r->held_bytes);
    atomic_fetch_sub(r->own_bytes, r->held_bytes);
    r->held_bytes = 0;
}

void request_free(struct request *r)
{
    if (!r)
        return;
    release_memory(r);
    for (int i = 0; i < r->spec.n_choices; i++)
        reply_clear(&r->choices[i].reply);
    beam_search_free(r->beams);
    prompt_results_free(r->results);
    grammar_drop(r->grammar);
    ids_clear(&r->rendered);
    free(r);
}

int64_t request_estimate_prompt(const struct request *r)
{
    if (r->n_prompt > 0)
        return r->n_prompt;
    if (r->spec.n_ids > 0)
        return (int64_t)r->spec.n_ids;
    size_t n_bytes = r->spec.n_text_bytes + r->spec.n_pair_bytes;
    for (size_t i = 0; i < r->spec.n_messages; i++)
        n_bytes += r->spec.messages[i].n_bytes;
    return (int64_t)(n_bytes / BYTES_PER_TOKEN) + 1;
}

int64_t request_prompt_bytes(const struct request *r)
{
    const struct tutti_request *spec = &r->spec;
    size_t n_bytes = spec->n_text_bytes + spec->n_pair_bytes + spec->n_ids * sizeof *spec->ids;
    for (size_t i = 0; i < spec->n_messages; i++)
        n_bytes += MESSAGE_BYTES + spec->messages[i].n_bytes;
    n_bytes += spec->tools ? strlen(spec->tools) : 0;
    for (size_t i = 0; i < spec->n_stop; i++)
        n_bytes += spec->stop[i].n_bytes;
    return (int64_t)n_bytes + 1;
}

/* ---- on a prompt thread ---- */

int64_t request_most_memory(const struct request_limits *limits)
{
    int64_t n_pool = (int64_t)limits->n_pages * limits->page_tokens; /* tokens of all beams together */
    int64_t results = (int64_t)prompt_results_bytes(limits->max_context);
    return results + (int64_t)beam_search_bytes(LIMIT_BEAMS, LIMIT_BEAMS + MAX_REQUEST_STOP_IDS, 1) +
           n_pool * (int64_t)(2 * sizeof(float) + sizeof(int32_t));
}

/* Counts n_bytes as held until the request is freed. Others' requests never wait for memory: what does not fit is refused. */
static enum tutti_status hold_memory(struct request *r, const struct request_limits *limits, size_t n_bytes,
                                     struct tutti_error *err)
{
    struct request_memory *m = limits->memory;
    if (!m || !r->own_bytes || n_bytes < (size_t)(m->limit / UNCOUNTED_PART))
        return TUTTI_OK;
    int64_t n = n_bytes < INT64_MAX / 4 ? (int64_t)n_bytes : INT64_MAX / 4;
    r->memory = m;
    r->held_bytes = n;
    int64_t own = atomic_fetch_add(r->own_bytes, n) + n, all = atomic_fetch_add(&m->n_bytes, n) + n;
    if ((own <= m->limit / 4 || r->spec.owner == 0) && all <= m->limit)
        return TUTTI_OK;
    release_memory(r);
    return error_set(
        err, TUTTI_E_BUSY,
        "log-probabilities of prompts and beams of your running and waiting requests hold %lld MiB, of all "
        "clients %lld of %lld MiB; try again when some of these requests have ended",
        (long long)(own - n) >> 20, (long long)(all - n) >> 20, (long long)m->limit >> 20);
}

/* Checks that the pool is large enough: preempted beams may have to be prefilled separately, and
 * each running sequence needs a page to grow into. */
static enum tutti_status prepare_beams(struct request *r, const struct model *model,
                                       const struct request_limits *limits, struct tutti_error *err)
{
    if (r->spec.n_beams < 2)
        return TUTTI_OK;
    int room = limits->max_context - r->n_prompt, n_beams = r->spec.n_beams;
    int max_new = r->spec.max_tokens > 0 && r->spec.max_tokens < room ? r->spec.max_tokens : room;
    int64_t n_pages = kv_pages_of(r->n_prompt + max_new, limits->page_tokens) + 1;
    if (n_pages * n_beams > limits->n_pages)
        return error_set_param(err, TUTTI_E_LIMIT, "n_beams",
                               "%d beams of %d tokens each need %lld KV pages, but the KV cache has %d",
                               n_beams, r->n_prompt + max_new, (long long)n_pages * n_beams, limits->n_pages);
    int64_t n_seen = n_pages < limits->window_slots ? n_pages : limits->window_slots;
    if (limits->n_slots > 0 && n_seen * n_beams + limits->step_slots > limits->n_slots)
        return error_set_param(
            err, TUTTI_E_LIMIT, "n_beams",
            "%d beams of %d tokens each need %lld KV pages in layers with a window, but the "
            "KV cache has %d",
            n_beams, r->n_prompt + max_new, (long long)n_seen * n_beams + limits->step_slots,
            limits->n_slots);
    int n_candidates = n_beams + n_stop_ids(&r->spec, &model->desc);
    enum tutti_status st = hold_memory(r, limits, beam_search_bytes(n_beams, n_candidates, max_new), err);
    if (st == TUTTI_OK)
        st = beam_search_new(&r->beams, n_beams, n_candidates, max_new, err);
    if (st != TUTTI_OK)
        return st;
    r->beams->length_penalty = r->spec.length_penalty;
    r->beams->early_stopping = r->spec.early_stopping;
    return TUTTI_OK;
}

/* Reasoning and calls are channels, and the grammar of calls has both. */
static enum tutti_status prepare_channels(struct request *r, const struct model *model,
                                          struct tutti_error *err)
{
    int32_t end = model->marks.turn.ids[0];
    bool has_text = r->spec.grammar_kind == TUTTI_GRAMMAR_TEXT_OR_CALLS;
    if (r->spec.max_reasoning_tokens != 0 && has_text)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "max_reasoning_tokens",
            "a budget of reasoning cannot be combined with strict tools where reasoning and "
            "calls are channels");
    if (r->spec.max_reasoning_tokens > 0 && !token_trie_has_code(tokenizer_piece(model->tokenizer, end)))
        return error_set_param(err, TUTTI_E_ARGUMENT, "max_reasoning_tokens",
                               "a budget of reasoning before a required call needs a model whose vocabulary "
                               "has the marks of channels as tokens");
    r->reasoning = has_text ? REASONING_NEVER : REASONING_IN_GRAMMAR;
    return TUTTI_OK;
}

/* Where reasoning begins, and whether its tokens are tracked. */
static enum tutti_status prepare_reasoning(struct request *r, const struct model *model,
                                           struct tutti_error *err)
{
    const struct tutti_request *spec = &r->spec;
    if (!spec->shows_marks || spec->n_messages == 0)
        return TUTTI_OK;
    const struct chat_marks *marks = &model->marks;
    enum reasoning_start start;
    if (!chat_marks_start(marks, model->tokenizer, r->prompt, (size_t)r->n_prompt, &start))
        return error_set(err, TUTTI_E_MEMORY, "prompt: out of memory");
    r->begins_in_reasoning = start == REASONING_OPEN && marks->open.n > 0;
    bool has_tokens = marks->open.n < 2; /* else it is not certain which tokens the model writes */
    if (request_has_calls_grammar(r) && marks->turn.n > 0)
        return prepare_channels(r, model, err);
    if (start != REASONING_NEVER && spec->max_reasoning_tokens != 0 && !has_tokens)
        return error_set_param(err, TUTTI_E_ARGUMENT, "max_reasoning_tokens",
                               "a budget of reasoning needs a model whose vocabulary has the mark %s as "
                               "one token",
                               marks->reasoning->open);
    if (has_tokens && (spec->max_reasoning_tokens != 0 || r->grammar))
        r->reasoning = start;
    return TUTTI_OK;
}

/* Allocates what the request needs in addition to its prompt. */
static enum tutti_status prepare_rest(struct request *r, const struct model *model,
                                      const struct request_limits *limits, struct tutti_error *err)
{
    enum tutti_status st = prepare_reasoning(r, model, err);
    for (size_t i = 0; i < r->spec.n_stop; i++)
        stops_find_borders(r->stop_borders[i], r->spec.stop[i].text, r->spec.stop[i].n_bytes);
    if (st == TUTTI_OK)
        st = prepare_beams(r, model, limits, err);
    int n_scores = r->spec.prompt_logprobs ? r->n_prompt : 0;
    int n_embedding = r->spec.embedding != TUTTI_EMBEDDING_NONE ? model_hidden_width(&model->desc) : 0;
    if (st != TUTTI_OK || n_scores + n_embedding == 0)
        return st;
    int64_t n_values = (int64_t)n_scores * (1 + r->spec.top_logprobs);
    if (n_values > LIMIT_PROMPT_LOGPROBS)
        return error_set_param(
            err, TUTTI_E_LIMIT, "logprobs",
            "log-probabilities of %d prompt tokens with %d alternatives each are %lld values, "
            "at most %d are possible: send a shorter prompt or request fewer alternatives",
            n_scores, r->spec.top_logprobs, (long long)n_values, LIMIT_PROMPT_LOGPROBS);
    if (n_scores > 0)
        st = hold_memory(r, limits, prompt_results_bytes(n_scores), err);
    if (st == TUTTI_OK)
        st = prompt_results_new(&r->results, n_scores, n_embedding, err);
    for (int i = 0; st == TUTTI_OK && i < n_scores; i++)
        r->results->scores[i].token = r->prompt[i];
    return st;
}

/* Sets the prompt: the virtual tokens, whose ids have no meaning, then own [n], which may be those of
 * rendered. */
static enum tutti_status set_prompt(struct request *r, const int32_t *own, size_t n, struct tutti_error *err)
{
    size_t n_virtual = (size_t)r->virtual.n;
    r->n_prompt = (int)(n + n_virtual);
    r->prompt = own;
    atomic_store_explicit(&r->progress.n_prompt, (int)n, memory_order_relaxed);
    if (n_virtual == 0)
        return TUTTI_OK;
    struct ids whole = { 0 };
    bool fits = true;
    for (size_t i = 0; fits && i < n_virtual; i++)
        fits = ids_add(&whole, 0);
    fits = fits && ids_add_all(&whole, own, n);
    ids_clear(&r->rendered);
    r->rendered = whole;
    r->prompt = whole.ids;
    return fits ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "prompt: out of memory");
}

enum tutti_status request_prepare(struct request *r, const struct model *model,
                                  const struct request_limits *limits, struct tutti_error *err)
{
    int max_context = limits->max_context - r->virtual.n;
    enum tutti_status st;
    if (r->spec.n_ids > 0) { /* validated at submission */
        st = set_prompt(r, r->spec.ids, r->spec.n_ids, err);
        return st == TUTTI_OK ? prepare_rest(r, model, limits, err) : st;
    }
    bool is_chat = r->spec.n_messages > 0;
    struct model_text text = { .bytes = r->spec.text,
                               .n_bytes = r->spec.n_text_bytes,
                               .add_special = true,
                               .parse_special = r->spec.parse_special };
    const char *param = is_chat ? "messages" : "prompt";
    r->continues_answer = is_chat && chat_continues(&r->spec);
    r->rendered.max = (size_t)max_context + SPARE_TOKENS; /* tokens beyond this are not counted */
    if (r->spec.pair)
        st = model_encode_pair(model, &text, r->spec.pair, r->spec.n_pair_bytes, &r->rendered, &r->second,
                               err);
    else
        st = is_chat ? chat_render(model, &r->spec, &r->rendered, err)
                     : model_encode_text(model, &text, &r->rendered, err);
    if (st != TUTTI_OK && r->rendered.is_full)
        return check_length(param, &r->spec, (size_t)max_context, true, max_context, err);
    if (st != TUTTI_OK)
        return st;
    if (r->rendered.n == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "the prompt is empty");
    st = check_length(param, &r->spec, r->rendered.n, false, max_context, err);
    if (st == TUTTI_OK)
        st = model_check_rows(model, &r->rendered, param, err);
    if (st != TUTTI_OK)
        return st;
    st = set_prompt(r, r->rendered.ids, r->rendered.n, err);
    return st == TUTTI_OK ? prepare_rest(r, model, limits, err) : st;
}

bool request_is_stop_id(const struct request *r, const struct model_desc *desc, int32_t id)
{
    int n_stops = r->spec.ignore_eos ? 0 : model_desc_n_stops(desc, r->spec.n_messages > 0);
    for (int i = 0; i < n_stops; i++)
        if (desc->stop_ids[i] == id)
            return true;
    for (size_t i = 0; i < r->spec.n_stop_ids; i++)
        if (r->spec.stop_ids[i] == id)
            return true;
    return false;
}
