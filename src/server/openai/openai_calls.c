#include "server/openai/openai_calls.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool calls_are_possible(const struct job *job)
{
    return job->req.tool_parser;
}

static bool has_form(const struct job *job, const char *name)
{
    return job->app->info.tool_form && strcmp(job->app->info.tool_form, name) == 0;
}

/* Nine letters and digits, as templates of Mistral require. */
static void make_short_id(const struct job *job, size_t choice, size_t index, char *out)
{
    static const char DIGITS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { N_DIGITS = sizeof DIGITS - 1, ID_LENGTH = 9 };
    uint64_t hash = hash64(choice * 1009 + index, job->id, strlen(job->id));
    for (int i = 0; i < ID_LENGTH; i++, hash /= N_DIGITS)
        out[i] = DIGITS[hash % N_DIGITS];
    out[ID_LENGTH] = '\0';
}

void calls_make_id(const struct job *job, const struct call_name *call, const char *prefix, char *out)
{
    if (call->own && *call->own && strlen(call->own) < CALL_ID_BYTES)
        snprintf(out, CALL_ID_BYTES, "%s", call->own);
    else if (has_form(job, "mistral"))
        make_short_id(job, call->choice, call->index, out);
    else if (has_form(job, "kimi-k2") && call->n_name < CALL_ID_BYTES - 40)
        snprintf(out, CALL_ID_BYTES, "functions.%.*s:%zu", (int)call->n_name, call->name, call->index);
    else
        snprintf(out, CALL_ID_BYTES, "%s_%s_%zu_%zu", prefix, job->id, call->choice, call->index);
}

/* ---- complete answers ---- */

/* Joins the deltas of each call. False: out of memory. */
static bool join_calls(tutti_tool_parser *parser, const char *text, size_t n_bytes, json_t *calls)
{
    struct tutti_tool_call_delta delta;
    struct buf arguments = { 0 };
    json_t *name = NULL;
    bool ok = calls;
    while (ok && tutti_tool_parser_next(parser, text, n_bytes, &delta)) {
        if (delta.name) {
            json_decref(name);
            name = json_stringn(delta.name, delta.n_name);
            buf_truncate(&arguments, 0);
        }
        ok = name && buf_add(&arguments, delta.arguments, delta.n_arguments);
        if (ok && delta.is_last)
            ok = json_array_append_new(calls, json_pack("{s:O, s:s%}", "name", name, "arguments",
                                                        arguments.bytes, arguments.n_bytes)) == 0;
    }
    for (size_t i = 0; ok && i < json_array_size(calls); i++) {
        const char *id = tutti_tool_parser_call_id(parser, i);
        ok = !id || json_object_set_new(json_array_get(calls, i), "id", json_string(id)) == 0;
    }
    buf_clear(&arguments);
    json_decref(name);
    return ok;
}

json_t *calls_find(const struct job *job, const struct reply_choice *choice, enum tutti_finish finish,
                   size_t *n_content)
{
    const char *text = choice->text.bytes;
    size_t n = choice->text.n_bytes;
    tutti_tool_parser *parser;
    *n_content = n;
    if (!calls_are_possible(job) || finish != TUTTI_FINISH_STOP || n == 0)
        return NULL;
    if (tutti_tool_parser_clone(&parser, job->req.tool_parser, NULL) != TUTTI_OK)
        return NULL;
    json_t *calls = json_array();
    if (!join_calls(parser, text, n, calls) || !tutti_tool_parser_is_complete(parser, text, n, n_content)) {
        json_decref(calls);
        calls = NULL;
    }
    tutti_tool_parser_free(parser);
    while (job->req.one_tool_call && json_array_size(calls) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
    return calls;
}

/* ---- streaming ---- */

bool calls_prepare(const struct job *job, struct reply_choice *choice)
{
    return choice->calls.parser ||
           tutti_tool_parser_clone(&choice->calls.parser, job->req.tool_parser, NULL) == TUTTI_OK;
}

size_t calls_sure_content(const struct job *job, struct reply_choice *choice, size_t n_bytes)
{
    if (job->req.forced != API_FORCED_NONE || choice->calls.n > 0)
        return 0;
    return tutti_tool_parser_content(choice->calls.parser, choice->text.bytes, n_bytes);
}

bool calls_next_delta(const struct job *job, struct reply_choice *choice, size_t n_bytes,
                      struct tutti_tool_call_delta *delta)
{
    struct sent_calls *sent = &choice->calls;
    bool has_delta;
    if (n_bytes == 0)
        return false;
    if (job->req.one_tool_call && sent->n == 1 && !sent->is_open)
        return false; /* parallel_tool_calls is false: the answer ends after the first call */
    else
        has_delta = tutti_tool_parser_next(sent->parser, choice->text.bytes, n_bytes, delta);
    if (has_delta) {
        sent->n = delta->index + 1;
        sent->is_open = !delta->is_last;
    }
    return has_delta;
}

bool calls_are_whole(const struct job *job, const struct reply_choice *choice)
{
    const struct sent_calls *sent = &choice->calls;
    size_t n_content;
    if (sent->n == 0 || job->req.forced == API_FORCED_NAMED)
        return sent->n > 0;
    return !sent->is_open &&
           (job->req.one_tool_call || tutti_tool_parser_is_complete(sent->parser, choice->text.bytes,
                                                                    choice->text.n_bytes, &n_content));
}
