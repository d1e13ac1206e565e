#include "server/openai/openai_calls.h"

#include "model/chat/call_reader.h"

#include <stdio.h>
#include <string.h>

const json_t *calls_tools(const struct job *job)
{
    const json_t *tools = json_object_get(job->req.root, "tools");
    if (job->req.forced != API_FORCED_NONE)
        return tools;
    /* With a grammar the whole answer is content, whatever it looks like. */
    return job->req.tools && job->req.grammar_kind == TUTTI_GRAMMAR_NONE ? tools : NULL;
}

void calls_make_id(const struct job *job, size_t choice, size_t call, char *out, size_t n_bytes)
{
    snprintf(out, n_bytes, "call_%s_%zu_%zu", job->id, choice, call);
}

json_t *calls_find(const struct job *job, const struct choice *choice, enum tutti_finish finish,
                   size_t *n_content)
{
    const json_t *tools = calls_tools(job);
    const char *text = choice->text.bytes;
    size_t n = choice->text.n_bytes;
    *n_content = n;
    if (!tools || finish != TUTTI_FINISH_STOP || n == 0)
        return NULL;
    if (job->req.forced == API_FORCED_NAMED) { /* the whole answer is its arguments */
        json_t *call = json_pack("[{s:s, s:s%}]", "name", job->req.forced_name, "arguments", text, n);
        *n_content = call ? 0 : n;
        return call;
    }
    json_t *calls = chat_find_calls(text, n, tools, job->req.forced == API_FORCED_ANY, n_content);
    while (job->req.one_tool_call && json_array_size(calls) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
    return calls;
}

/* ---- streaming ---- */

size_t calls_sure_content(const struct job *job, const struct choice *choice)
{
    if (job->req.forced != API_FORCED_NONE)
        return 0;
    return chat_sure_content(choice->text.bytes, choice->text.n_bytes, choice->n_sent, calls_tools(job));
}

/* With a forced function the whole answer is its arguments. */
static bool next_named(const struct job *job, struct choice *choice, struct call_piece *piece)
{
    struct call_reader *reader = &choice->calls;
    *piece = (struct call_piece){ .arguments = choice->text.bytes + reader->at };
    if (reader->n_calls == 0) {
        reader->n_calls = 1;
        piece->name = job->req.forced_name;
        piece->n_name = strlen(piece->name);
        return true;
    }
    piece->n_bytes = choice->text.n_bytes - reader->at;
    piece->is_last = choice->finish == TUTTI_FINISH_STOP;
    reader->at = choice->text.n_bytes;
    return piece->n_bytes > 0;
}

bool calls_next_piece(const struct job *job, struct choice *choice, struct call_piece *piece)
{
    if (choice->text.n_bytes == 0)
        return false;
    if (job->req.forced == API_FORCED_NAMED)
        return next_named(job, choice, piece);
    /* With parallel_tool_calls false, the answer ends after the first call. */
    if (job->req.one_tool_call && choice->calls.n_calls == 1 && !choice->calls.is_open)
        return false;
    choice->calls.takes_any = job->req.forced == API_FORCED_ANY;
    return call_reader_next(&choice->calls, choice->text.bytes, choice->text.n_bytes, calls_tools(job),
                            piece);
}
