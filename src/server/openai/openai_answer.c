#include "server/openai/openai_answer.h"

#include "server/openai/openai_calls.h"

#include <string.h>

/* Whether the answer of this request is split: only chats are, of models that mark reasoning. */
static bool is_split(const struct job *job)
{
    return job->req.kind == API_CHAT && job->app->info.reasoning_form &&
           job->req.reasoning != API_REASONING_IN_CONTENT;
}

bool answer_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    struct tutti_reasoning_part part;
    bool is_end = event->finish != TUTTI_FINISH_NONE;
    if (!is_split(job))
        return buf_add(&choice->text, event->text, event->n_text_bytes);
    if (!choice->splitter && tutti_reasoning_parser_new(&choice->splitter, job->app->info.reasoning_form,
                                                        event->begins_in_reasoning, NULL) != TUTTI_OK)
        return false;
    bool was_inside = tutti_reasoning_parser_is_inside(choice->splitter);
    bool ok = buf_add(&choice->raw, event->text, event->n_text_bytes);
    while (ok && tutti_reasoning_parser_next(choice->splitter, choice->raw.bytes, choice->raw.n_bytes, is_end,
                                             &part))
        ok = buf_add(part.is_reasoning ? &choice->reasoning : &choice->text, part.text, part.n_bytes);
    if (was_inside || tutti_reasoning_parser_is_inside(choice->splitter))
        choice->n_reasoning_tokens += event->n_tokens;
    return ok;
}

const struct buf *answer_reasoning(const struct job *job, const struct reply_choice *choice)
{
    bool is_wanted = job->req.reasoning == API_REASONING_APART && choice->reasoning.n_bytes > 0;
    return is_wanted ? &choice->reasoning : NULL;
}

size_t answer_n_reasoning_tokens(const struct job *job)
{
    size_t n = 0;
    for (size_t i = 0; i < job->n_choices; i++)
        n += job->choices[i].n_reasoning_tokens;
    return n;
}

/* ---- parts, one after the other ---- */

static bool is_cut(const struct reply_choice *choice)
{
    return choice->finish == TUTTI_FINISH_LENGTH;
}

static void pass_reasoning(struct job *job, struct reply_choice *choice, bool is_end, answer_event_fn *emit)
{
    const struct buf *reasoning = answer_reasoning(job, choice);
    size_t n_sent = choice->n_reasoning_sent;
    if (!reasoning || choice->reasoning_is_over)
        return;
    if (n_sent == 0)
        emit(job, choice, &(struct answer_event){ .part = ANSWER_REASONING, .moment = ANSWER_BEGIN });
    if (reasoning->n_bytes > n_sent)
        emit(job, choice,
             &(struct answer_event){ .part = ANSWER_REASONING,
                                     .moment = ANSWER_DELTA,
                                     .text = reasoning->bytes + n_sent,
                                     .n_bytes = reasoning->n_bytes - n_sent });
    choice->n_reasoning_sent = reasoning->n_bytes;
    if (!is_end)
        return;
    choice->reasoning_is_over = true;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_REASONING,
                                 .moment = ANSWER_END,
                                 .text = reasoning->bytes,
                                 .n_bytes = reasoning->n_bytes,
                                 .is_cut = choice->text.n_bytes == 0 && is_cut(choice) });
}

static void begin_text(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    if (!choice->has_begun)
        emit(job, choice, &(struct answer_event){ .part = ANSWER_TEXT, .moment = ANSWER_BEGIN });
    choice->has_begun = true;
}

/* The first n_sure bytes of the text are certain. */
static void pass_text(struct job *job, struct reply_choice *choice, size_t n_sure,
                      const struct tutti_event *from, answer_event_fn *emit)
{
    size_t n_sent = choice->n_sent, n_new = n_sure > n_sent ? n_sure - n_sent : 0;
    bool is_reasoning = answer_reasoning(job, choice) && !choice->reasoning_is_over;
    bool has_logprobs = from && job->req.logprobs && from->n_tokens > 0 && !is_reasoning;
    if (n_new == 0 && !has_logprobs)
        return;
    begin_text(job, choice, emit);
    choice->n_sent += n_new;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_TEXT,
                                 .moment = ANSWER_DELTA,
                                 .text = n_new > 0 ? choice->text.bytes + n_sent : "",
                                 .n_bytes = n_new,
                                 .from = from });
}

static void end_text(struct job *job, struct reply_choice *choice, size_t n_bytes, bool is_text_cut,
                     answer_event_fn *emit)
{
    begin_text(job, choice, emit);
    choice->message_is_over = true;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_TEXT,
                                 .moment = ANSWER_END,
                                 .text = n_bytes > 0 ? choice->text.bytes : "",
                                 .n_bytes = n_bytes,
                                 .is_cut = is_text_cut });
}

/* The call being passed on is in choice->held: its name, a zero byte, its arguments. */
static void end_call(struct job *job, struct reply_choice *choice, bool is_call_cut, answer_event_fn *emit)
{
    const struct buf *held = &choice->held;
    if (held->n_bytes == 0)
        return;
    size_t n_name = strlen(held->bytes);
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_CALL,
                                 .moment = ANSWER_END,
                                 .call = choice->calls.n - 1,
                                 .name = held->bytes,
                                 .n_name = n_name,
                                 .id = choice->own_id,
                                 .text = held->bytes + n_name + 1,
                                 .n_bytes = held->n_bytes - n_name - 1,
                                 .is_cut = is_call_cut });
    buf_truncate(&choice->held, 0);
}

static void pass_call(struct job *job, struct reply_choice *choice, const struct tutti_tool_call_delta *delta,
                      answer_event_fn *emit)
{
    bool ok = true;
    if (delta->name) {
        const tutti_tool_parser *parser = choice->calls.parser;
        choice->own_id = parser ? tutti_tool_parser_call_id(parser, delta->index) : NULL;
        ok = buf_add(&choice->held, delta->name, delta->n_name) && buf_add(&choice->held, "", 1);
        emit(job, choice,
             &(struct answer_event){ .part = ANSWER_CALL,
                                     .moment = ANSWER_BEGIN,
                                     .call = delta->index,
                                     .name = delta->name,
                                     .n_name = delta->n_name,
                                     .id = choice->own_id });
    }
    if (delta->n_arguments > 0)
        emit(job, choice,
             &(struct answer_event){ .part = ANSWER_CALL,
                                     .moment = ANSWER_DELTA,
                                     .call = delta->index,
                                     .text = delta->arguments,
                                     .n_bytes = delta->n_arguments });
    if (!ok || !buf_add(&choice->held, delta->arguments, delta->n_arguments))
        job_fail_memory(job);
    else if (delta->is_last)
        end_call(job, choice, false, emit);
}

void answer_pass_new(struct job *job, struct reply_choice *choice, const struct tutti_event *event,
                     answer_event_fn *emit)
{
    struct tutti_tool_call_delta delta;
    pass_reasoning(job, choice, choice->text.n_bytes > 0, emit);
    if (!calls_are_possible(job)) {
        pass_text(job, choice, choice->text.n_bytes, event, emit);
        return;
    }
    if (!calls_prepare(job, choice)) {
        job_fail_memory(job);
        return;
    }
    size_t n_sure = calls_sure_content(job, choice);
    bool has_delta = calls_next_delta(job, choice, &delta);
    if (n_sure > choice->n_sent) /* log-probabilities of text that may be a call have no delta */
        pass_text(job, choice, n_sure, event, emit);
    if (has_delta && choice->has_begun && !choice->message_is_over)
        end_text(job, choice, choice->n_sent, false, emit);
    for (; has_delta; has_delta = calls_next_delta(job, choice, &delta))
        pass_call(job, choice, &delta, emit);
}

void answer_pass_rest(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    pass_reasoning(job, choice, true, emit);
    if (choice->calls.n > 0) {
        /* The end of a forced call is known only from the end of the answer. */
        bool is_whole = job->req.forced == API_FORCED_NAMED && choice->finish == TUTTI_FINISH_STOP;
        choice->calls.is_open &= !is_whole;
        end_call(job, choice, !is_whole, emit);
    } else {
        pass_text(job, choice, choice->text.n_bytes, NULL, emit);
        end_text(job, choice, choice->text.n_bytes, is_cut(choice), emit);
    }
}

void answer_pass_whole(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    size_t n_content, i;
    const json_t *call;
    json_t *calls = calls_find(job, choice, choice->finish, &n_content);
    pass_reasoning(job, choice, true, emit);
    if (!calls || n_content > 0) {
        pass_text(job, choice, n_content, NULL, emit);
        end_text(job, choice, n_content, is_cut(choice), emit);
    }
    json_array_foreach(calls, i, call)
    {
        const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
        struct answer_event event = { .part = ANSWER_CALL,
                                      .moment = ANSWER_BEGIN,
                                      .call = i,
                                      .name = json_string_value(name),
                                      .n_name = json_string_length(name),
                                      .id = json_string_value(json_object_get(call, "id")) };
        emit(job, choice, &event);
        event.text = json_string_value(arguments);
        event.n_bytes = json_string_length(arguments);
        event.moment = ANSWER_DELTA;
        emit(job, choice, &event);
        event.moment = ANSWER_END;
        emit(job, choice, &event);
        choice->calls.n = i + 1;
    }
    json_decref(calls);
}
