#include "server/openai/generated.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static bool is_special(const struct app *app, int32_t id)
{
    struct tutti_token_info info;
    return tutti_token_info(app->model, id, &info) && info.is_special;
}

static json_t *token_value(const struct app *app, int32_t id, json_t *text, float logprob)
{
    return json_pack("{s:i, s:o, s:o, s:b}", "id", (int)id, "text", text, "logprob", json_logprob(logprob),
                     "special", is_special(app, id));
}

/* The last character boundary at or before at. */
static size_t char_border(const char *text, size_t n_bytes, size_t at)
{
    if (at >= n_bytes)
        return n_bytes;
    while (at > 0 && utf8_is_continuation(text[at]))
        at--;
    return at;
}

static bool add_tops(struct job *job, struct reply_choice *choice, const struct tutti_token *token)
{
    json_t *list = json_array();
    for (int k = 0; k < token->n_top; k++) {
        const struct tutti_top_token *top = &token->top[k];
        if (json_array_append_new(list, token_value(job->app, top->id, json_text(top->bytes, top->n_bytes),
                                                    top->logprob)) != 0) {
            json_decref(list);
            return false;
        }
    }
    return json_array_append_new(choice->tops, list) == 0;
}

json_t *generated_special(const struct app *app, int32_t id)
{
    struct tutti_token_info info;
    (void)tutti_token_info(app->model, id, &info); /* empty, if there is no such token */
    return json_text(info.spelling, info.n_bytes);
}

static bool add_stop_token(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    json_t *value = json_pack("{s:i, s:o, s:o, s:b}", "id", (int)event->stop_token, "text",
                              generated_special(job->app, event->stop_token), "logprob",
                              json_logprob(event->stop_logprob), "special", 1);
    return json_array_append_new(choice->tokens, value) == 0 &&
           json_array_append_new(choice->tops, json_array()) == 0;
}

bool generated_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event,
                   bool with_stop)
{
    if (!choice->tokens)
        choice->tokens = json_array();
    if (!choice->tops)
        choice->tops = json_array();
    if (!buf_add(&choice->text, event->text, event->n_text_bytes) ||
        !buf_add(&choice->held, event->text, event->n_text_bytes))
        return false;
    const char *text = choice->held.bytes;
    size_t n_text = choice->held.n_bytes, at = 0, n_own = n_text - event->n_text_bytes;
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct tutti_token *token = &event->tokens[i];
        n_own += token->n_bytes;
        size_t end = i + 1 == event->n_tokens ? n_text : char_border(text, n_text, n_own);
        end = end < at ? at : end;
        if (json_array_append_new(
                choice->tokens,
                token_value(job->app, token->id, json_text(text + at, end - at), token->logprob)) != 0 ||
            !add_tops(job, choice, token))
            return false;
        at = end;
        choice->n_json_bytes += json_tree_bytes(
                                    json_array_get(choice->tokens, json_array_size(choice->tokens) - 1)) +
                                json_tree_bytes(
                                    json_array_get(choice->tops, json_array_size(choice->tops) - 1));
    }
    if (event->n_tokens > 0)
        buf_truncate(&choice->held, 0);
    bool has_stop = event->has_stop_token && event->finish != TUTTI_FINISH_NONE;
    return !(has_stop && with_stop) || add_stop_token(job, choice, event);
}

const char *generated_finish(const struct reply_choice *choice)
{
    if (choice->finish == TUTTI_FINISH_LENGTH)
        return "length";
    return choice->has_stop_token ? "eos_token" : "stop_sequence";
}

bool generated_add_prompt(const struct job *job, struct buf *out)
{
    const json_t *inputs = json_object_get(job->req.root, "inputs"); /* even if a part of it was the prompt */
    return buf_add(out, json_string_value(inputs), json_string_length(inputs));
}

/* The first n_room ids of the prompt; *n: their number. NULL: out of memory. */
static int32_t *prompt_ids(const struct job *job, size_t n_room, size_t *n)
{
    const struct api_prompt *prompt = &job->req.prompts[0];
    int32_t *ids = calloc(n_room + 1, sizeof *ids);
    *n = n_room;
    if (ids && prompt->text) {
        int64_t n_all = tutti_tokenize(job->app->model, prompt->text, prompt->n_text_bytes, true, ids,
                                       n_room);
        *n = n_all < 0 ? 0 : (size_t)n_all < n_room ? (size_t)n_all : n_room;
    } else if (ids) {
        *n = prompt->n_ids < n_room ? prompt->n_ids : n_room;
        memcpy(ids, job->req.ids.ids + prompt->first_id, *n * sizeof *ids);
    }
    return ids;
}

static json_t *prefill_entry(const struct job *job, int32_t id, json_t *logprob)
{
    struct buf bytes = { 0 };
    json_t *text = NULL;
    if (is_special(job->app, id))
        text = generated_special(job->app, id);
    else if (app_token_bytes(job->app, id, &bytes))
        text = json_text(bytes.bytes, bytes.n_bytes);
    buf_clear(&bytes);
    return json_pack("{s:i, s:o, s:o}", "id", (int)id, "text", text, "logprob", logprob);
}

json_t *generated_prefill(const struct job *job, const struct tutti_event *event)
{
    const struct tutti_token *scored = event->prompt_tokens;
    size_t n = event->n_prompt_tokens;
    int32_t *ids = scored ? NULL : prompt_ids(job, n, &n);
    json_t *list = scored || ids ? json_array() : NULL;
    for (size_t i = 0; list && i < n; i++) {
        json_t *logprob = scored && i > 0 ? json_logprob(scored[i].logprob) : json_null();
        if (json_array_append_new(list, prefill_entry(job, scored ? scored[i].id : ids[i], logprob)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    free(ids);
    return list;
}
