#include "load/work.h"

#include "base/array.h"
#include "base/files/prompt_lines.h"
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/json/json_type.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const LOAD_API_NAMES[] = {
    [LOAD_API_OPENAI] = "openai", [LOAD_API_LLM_SERVING] = "llm-serving", [LOAD_API_TGI] = "tgi", NULL
};

/* Short common words: nearly every vocabulary has each of them, with a leading space, as one
 * token. */
static const char *const WORDS[] = {
    "the",    "of",    "and",   "to",     "in",      "is",    "that",    "for",     "it",    "was",
    "on",     "are",   "as",    "with",   "they",    "at",    "be",      "this",    "from",  "have",
    "or",     "by",    "one",   "had",    "not",     "but",   "what",    "all",     "were",  "when",
    "we",     "there", "can",   "an",     "your",    "which", "their",   "said",    "if",    "do",
    "will",   "each",  "about", "how",    "up",      "out",   "them",    "then",    "she",   "many",
    "some",   "so",    "these", "would",  "other",   "into",  "has",     "more",    "her",   "two",
    "like",   "him",   "see",   "time",   "could",   "no",    "make",    "than",    "first", "been",
    "its",    "who",   "now",   "people", "my",      "made",  "over",    "did",     "down",  "only",
    "way",    "find",  "use",   "may",    "water",   "long",  "little",  "very",    "after", "words",
    "called", "just",  "where", "most",   "know",    "get",   "through", "back",    "much",  "before",
    "go",     "good",  "new",   "write",  "our",     "used",  "me",      "man",     "too",   "any",
    "day",    "same",  "right", "look",   "think",   "also",  "around",  "another", "came",  "come",
    "work",   "three", "word",  "must",   "because", "does",  "part",
};
enum { N_WORDS = sizeof WORDS / sizeof *WORDS };

enum { STREAM_SHARED = 3, STREAM_LENGTHS = 4, STREAM_WORDS = 5 }; /* in addition to those of arrivals.c */

/* ---- prompt files ---- */

static struct load_item *work_add_item(struct work *work)
{
    if (!array_grow(&work->items, work->n, &work->capacity, sizeof *work->items))
        return NULL;
    struct load_item *item = &work->items[work->n++];
    *item = (struct load_item){ 0 };
    return item;
}

static enum tutti_status check_messages(const json_t *messages, struct tutti_error *err)
{
    size_t i;
    json_t *message;
    struct json_place at = { .err = err };
    if (json_array_size(messages) == 0)
        return json_unexpected(&at, "messages", messages, "a list of messages");
    json_array_foreach(messages, i, message)
    {
        const char *role;
        snprintf(at.prefix, sizeof at.prefix, "messages[%zu].", i);
        if (!json_is_object(message))
            return json_unexpected(&at, "", message, "an object");
        enum tutti_status st = json_get_string(&at, message, "role", &role);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static enum tutti_status set_length(struct load_item *item, const char *key, const json_t *line,
                                    struct tutti_error *err)
{
    struct json_place at = { .err = err };
    int64_t n = 0;
    if (item->max_tokens)
        return error_set(err, TUTTI_E_FORMAT, "expected either \"max_tokens\" or \"output_len\"");
    enum tutti_status st = json_get_int(&at, line, key, 1, LIMIT_CONTEXT, &n);
    item->max_tokens = (int)n;
    return st;
}

static enum tutti_status set_member(struct load_item *item, const json_t *line, const char *key,
                                    json_t *value, struct tutti_error *err)
{
    struct json_place at = { .err = err };
    if (strcmp(key, "prompt") == 0) {
        item->n_bytes = json_string_length(value);
        return json_get_string(&at, line, key, &item->text);
    }
    if (strcmp(key, "messages") == 0) {
        item->messages = value;
        return check_messages(value, err);
    }
    if (strcmp(key, "max_tokens") == 0 || strcmp(key, "output_len") == 0)
        return set_length(item, key, line, err);
    return error_set(err, TUTTI_E_FORMAT,
                     "found the key \"%.64s\", expected \"prompt\", \"messages\", \"max_tokens\" or "
                     "\"output_len\"",
                     key);
}

static enum tutti_status add_json(struct work *work, const char *line, size_t n_bytes,
                                  struct tutti_error *err)
{
    json_error_t json_err;
    json_t *value = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_err), *member;
    const char *key;
    if (!value)
        return error_set(err, TUTTI_E_FORMAT, "column %d: %s", json_err.column, json_err.text);
    if (json_array_append_new(work->values, value) != 0)
        return error_out_of_memory("the prompts", err);
    if (!json_is_object(value))
        return error_set(err, TUTTI_E_FORMAT, "found %s, expected an object", json_type_name(value));
    struct load_item *item = work_add_item(work);
    if (!item)
        return error_out_of_memory("the prompts", err);
    json_object_foreach(value, key, member)
    {
        enum tutti_status st = set_member(item, value, key, member, err);
        if (st != TUTTI_OK)
            return st;
    }
    if (!item->text == !item->messages)
        return error_set(err, TUTTI_E_FORMAT, "expected either \"prompt\" or \"messages\"");
    return TUTTI_OK;
}

static enum tutti_status add_text_line(struct work *work, const struct prompt_lines *lines,
                                       struct tutti_error *err)
{
    if (lines->is_json)
        return add_json(work, lines->line, lines->n_line_bytes, err);
    if (!utf8_is_valid(lines->line, lines->n_line_bytes))
        return error_set(err, TUTTI_E_FORMAT, "it is no valid UTF-8");
    struct load_item *item = work_add_item(work);
    if (!item)
        return error_out_of_memory("the prompts", err);
    item->text = lines->line;
    item->n_bytes = lines->n_line_bytes;
    return TUTTI_OK;
}

enum tutti_status work_read(struct work *out, const char *name, struct buf *bytes, struct tutti_error *err)
{
    *out = (struct work){ .bytes = *bytes, .values = json_array() };
    *bytes = (struct buf){ 0 };
    if (!out->values)
        return error_out_of_memory("the prompts", err);
    enum tutti_status st = TUTTI_OK;
    struct prompt_lines lines = { .bytes = out->bytes.bytes, .n_bytes = out->bytes.n_bytes };
    while (st == TUTTI_OK && prompt_lines_next(&lines)) {
        st = add_text_line(out, &lines, err);
        if (st != TUTTI_OK)
            error_prefix(err, "%s, line %zu", name, lines.number);
    }
    if (st == TUTTI_OK && out->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there is no prompt in it", name);
    if (st == TUTTI_OK && out->n > UINT32_MAX)
        st = error_set(err, TUTTI_E_LIMIT, "%s: found %zu prompts, expected %u at most", name, out->n,
                       UINT32_MAX);
    return st;
}

void work_make(struct work *out, const struct made_prompts *made)
{
    *out = (struct work){ .made = *made };
}

void work_clear(struct work *work)
{
    free(work->items);
    json_decref(work->values);
    buf_clear(&work->bytes);
    *work = (struct work){ 0 };
}

/* ---- synthetic prompts ---- */

/* A random integer from n (1 - spread) to n (1 + spread), at least 1. */
static int spread_number(const struct made_prompts *made, uint64_t index, unsigned which, int n)
{
    double u = rng_uniform(made->seed, STREAM_LENGTHS, 2 * index + which);
    double drawn = round(n * (1 + made->spread * (2 * u - 1)));
    return drawn < 1 ? 1 : (int)drawn;
}

static bool make_text(const struct made_prompts *made, uint64_t index, struct buf *out)
{
    int n_words = spread_number(made, index, 0, made->n_words);
    uint64_t own = mix64(index) ^ STREAM_WORDS;
    bool ok = true;
    for (int i = 0; ok && i < n_words; i++) {
        double u = rng_uniform(made->seed, i < made->n_shared ? STREAM_SHARED : own, (uint64_t)i);
        ok = (i == 0 || buf_add(out, " ", 1)) && buf_add_string(out, WORDS[(int)(u * N_WORDS)]);
    }
    return ok;
}

/* ---- request bodies ---- */

bool work_is_chat(const struct work *work, const struct work_style *style, uint64_t index)
{
    return style->api == LOAD_API_OPENAI &&
           (style->as_chat || (work->items && work->items[index].messages != NULL));
}

enum tutti_status work_check(const struct work *work, const struct work_style *style, struct tutti_error *err)
{
    if (style->api == LOAD_API_OPENAI)
        return TUTTI_OK;
    if (style->as_chat)
        return error_set(err, TUTTI_E_ARGUMENT, "messages can only be sent with --api openai");
    if (style->ignore_eos)
        return error_set(err, TUTTI_E_ARGUMENT, "--ignore-eos: only --api openai has a field for it");
    for (size_t i = 0; work->items && i < work->n; i++)
        if (work->items[i].messages)
            return error_set(err, TUTTI_E_ARGUMENT,
                             "prompt %zu of the file has messages, which can only be sent with --api openai",
                             i + 1);
    return TUTTI_OK;
}

/* Each builder takes over prompt, a string or (of chats) a list; NULL: out of memory. */
static json_t *openai_body(const struct work_style *style, json_t *prompt, int max_tokens)
{
    json_t *body = json_pack("{s:o, s:i, s:b, s:{s:b}}", json_is_array(prompt) ? "messages" : "prompt",
                             prompt, "max_tokens", max_tokens, "stream", 1, "stream_options", "include_usage",
                             1);
    bool ok = body != NULL;
    if (ok && style->model)
        ok = json_object_set_new(body, "model", json_string(style->model)) == 0;
    if (ok && !isnan(style->temperature))
        ok = json_object_set_new(body, "temperature", json_real(style->temperature)) == 0;
    if (ok && style->ignore_eos)
        ok = json_object_set_new(body, "ignore_eos", json_true()) == 0;
    if (ok)
        return body;
    json_decref(body);
    return NULL;
}

/* llm-serving and TGI. Without a temperature, greedy decoding is requested, which is their
 * default. */
static json_t *inputs_body(const struct work_style *style, json_t *prompt, int max_tokens)
{
    bool samples = style->temperature > 0; /* false of NaN */
    json_t *parameters = json_pack("{s:i, s:b}", "max_new_tokens", max_tokens, "do_sample", (int)samples);
    bool ok = parameters != NULL;
    if (ok && samples)
        ok = json_object_set_new(parameters, "temperature", json_real(style->temperature)) == 0;
    /* The last line of llm-serving's stream, with the number of tokens, is only sent if the full
     * text is requested. */
    if (ok)
        ok = json_object_set_new(parameters, style->api == LOAD_API_TGI ? "details" : "return_full_text",
                                 json_true()) == 0;
    if (!ok) {
        json_decref(parameters);
        json_decref(prompt);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:b}", "inputs", prompt, "parameters", parameters, "stream", 1);
}

/* The prompt as a value of the body. */
static json_t *prompt_value(const struct work *work, const struct work_style *style, uint64_t index)
{
    struct buf made = { 0 };
    json_t *text = NULL;
    if (work->items && work->items[index].messages)
        return json_incref(work->items[index].messages);
    if (work->items)
        text = json_stringn(work->items[index].text, work->items[index].n_bytes);
    else if (make_text(&work->made, index, &made))
        text = json_stringn(made.bytes, made.n_bytes);
    buf_clear(&made);
    if (!text || !work_is_chat(work, style, index))
        return text;
    return json_pack("[{s:s, s:o}]", "role", "user", "content", text);
}

enum tutti_status work_body(const struct work *work, const struct work_style *style, uint64_t index,
                            struct buf *out, struct tutti_error *err)
{
    int max_tokens = style->max_tokens;
    if (work->items && work->items[index].max_tokens)
        max_tokens = work->items[index].max_tokens;
    else if (!work->items)
        max_tokens = spread_number(&work->made, index, 1, max_tokens);
    json_t *prompt = prompt_value(work, style, index), *body = NULL;
    if (prompt)
        body = style->api == LOAD_API_OPENAI ? openai_body(style, prompt, max_tokens)
                                             : inputs_body(style, prompt, max_tokens);
    bool ok = body && (!style->more || json_object_update_recursive(body, (json_t *)style->more) == 0);
    buf_truncate(out, 0);
    ok = ok && json_print_to(out, body, JSON_COMPACT);
    json_decref(body);
    return ok ? TUTTI_OK : error_out_of_memory("the prompts", err);
}
