#include "load/work.h"

#include "base/json/json_print.h"
#include "base/rng.h"

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
           (style->as_chat || (work->prompts.list && work->prompts.list[index].messages != NULL));
}

enum tutti_status work_check(const struct work *work, const struct work_style *style, struct tutti_error *err)
{
    if (work->prompts.n > UINT32_MAX)
        return error_set(err, TUTTI_E_LIMIT, "found %zu prompts, expected %u at most", work->prompts.n,
                         UINT32_MAX);
    if (style->api == LOAD_API_OPENAI)
        return TUTTI_OK;
    if (style->as_chat)
        return error_set(err, TUTTI_E_ARGUMENT, "messages can only be sent with --api openai");
    if (style->ignore_eos)
        return error_set(err, TUTTI_E_ARGUMENT, "--ignore-eos: only --api openai has a field for it");
    for (size_t i = 0; work->prompts.list && i < work->prompts.n; i++)
        if (work->prompts.list[i].messages)
            return error_set(err, TUTTI_E_ARGUMENT,
                             "prompt %zu of the file has messages, which can only be sent with --api openai",
                             i + 1);
    return TUTTI_OK;
}

/* Each builder takes over prompt, a string or (of chats) a list; NULL: out of memory. */
static json_t *openai_body(const struct work_style *style, json_t *prompt, int max_tokens)
{
    json_t *temperature = isnan(style->temperature) ? NULL : json_real(style->temperature);
    return json_pack("{s:o, s:i, s:b, s:{s:b}, s:s*, s:o*, s:o*}",
                     json_is_array(prompt) ? "messages" : "prompt", prompt, "max_tokens", max_tokens,
                     "stream", 1, "stream_options", "include_usage", 1, "model", style->model, "temperature",
                     temperature, "ignore_eos", style->ignore_eos ? json_true() : NULL);
}

/* llm-serving and TGI. Without a temperature, greedy decoding is requested, which is their
 * default. */
static json_t *inputs_body(const struct work_style *style, json_t *prompt, int max_tokens)
{
    bool samples = style->temperature > 0; /* false of NaN */
    /* The last line of llm-serving's stream, with the number of tokens, is only sent if the full
     * text is requested. */
    const char *wanted = style->api == LOAD_API_TGI ? "details" : "return_full_text";
    return json_pack("{s:o, s:{s:i, s:b, s:o*, s:b}, s:b}", "inputs", prompt, "parameters", "max_new_tokens",
                     max_tokens, "do_sample", (int)samples, "temperature",
                     samples ? json_real(style->temperature) : NULL, wanted, 1, "stream", 1);
}

/* The prompt as a value of the body. */
static json_t *prompt_value(const struct work *work, const struct work_style *style, uint64_t index)
{
    struct buf made = { 0 };
    json_t *text = NULL;
    if (work->prompts.list && work->prompts.list[index].messages)
        return json_incref(work->prompts.list[index].messages);
    if (work->prompts.list)
        text = json_stringn(work->prompts.list[index].text, work->prompts.list[index].n_bytes);
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
    if (work->prompts.list && work->prompts.list[index].max_tokens)
        max_tokens = work->prompts.list[index].max_tokens;
    else if (!work->prompts.list)
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
