#include "server/openai/openai_answer.h"

#include "server/openai/openai_calls.h"
#include "server/openai/openai_reply.h"

#include <stdint.h>
#include <string.h>

static size_t n_turns(const struct reply_choice *choice)
{
    return choice->turns.n_bytes / sizeof(struct answer_turn);
}

/* Where a turn ends, so far if it is the last one. */
static struct answer_turn turn_end(const struct reply_choice *choice, size_t turn)
{
    struct answer_turn end = { choice->reasoning.n_bytes, choice->text.n_bytes };
    if (turn < n_turns(choice))
        memcpy(&end, choice->turns.bytes + turn * sizeof end, sizeof end);
    return end;
}

/* Reasoning follows: if there was text since the last one, a turn is over. False: out of memory. */
static bool note_turn(const struct job *job, struct reply_choice *choice)
{
    size_t n = n_turns(choice), n_before = n > 0 ? turn_end(choice, n - 1).n_text : 0;
    struct answer_turn end = { choice->reasoning.n_bytes, choice->text.n_bytes };
    if (job->req.reasoning != API_REASONING_APART || end.n_text == n_before)
        return true;
    return buf_add(&choice->turns, &end, sizeof end);
}

/* Some models call a tool without closing their reasoning. The end of an answer within its reasoning is
 * therefore parsed for calls: what follows their beginning is not reasoning, and a stream has sent it as
 * such before. False: out of memory. */
static bool take_unclosed_calls(const struct job *job, struct reply_choice *choice)
{
    const struct reply_choice reasoning = { .text = choice->reasoning };
    size_t n_content;
    json_t *calls = calls_find(job, &reasoning, TUTTI_FINISH_STOP, &n_content);
    if (!calls)
        return true;
    json_decref(calls);
    bool ok = buf_add(&choice->text, choice->reasoning.bytes + n_content,
                      choice->reasoning.n_bytes - n_content);
    if (!job->req.stream)
        buf_truncate(&choice->reasoning, n_content);
    return ok;
}

/* What the model wrote from begin to end is the end of choice->text, or (is_text false) no part of it. A token without
 * text of its own counts as the first byte of the text that follows it. */
static void place_tokens(struct reply_choice *choice, size_t begin, size_t end, bool is_text)
{
    struct answer_token *tokens = (struct answer_token *)(void *)choice->places.bytes;
    size_t n = choice->places.n_bytes / sizeof *tokens;
    for (; begin < end && choice->n_placed < n; choice->n_placed++) {
        struct answer_token *token = &tokens[choice->n_placed];
        size_t token_begin = choice->n_placed > 0 ? token[-1].raw_end : 0;
        if (token->raw_end <= begin && token_begin < begin) /* a mark, or blanks after one */
            continue;
        if (token_begin >= end || (!is_text && token->raw_end > end)) /* its end may be text */
            return;
        size_t last = token->raw_end <= begin ? begin + 1 : token->raw_end < end ? token->raw_end : end;
        if (is_text)
            token->text_end = choice->text.n_bytes - (end - last);
    }
}

static bool add_part(struct job *job, struct reply_choice *choice, const struct tutti_reasoning_part *part)
{
    /* The parser writes the header of a call in a channel: that part is not where the model wrote it. */
    uintptr_t begin = (uintptr_t)part->text - (uintptr_t)choice->raw.bytes;
    if (part->is_reasoning && !note_turn(job, choice))
        return false;
    if (!buf_add(part->is_reasoning ? &choice->reasoning : &choice->text, part->text, part->n_bytes))
        return false;
    if (begin < choice->raw.n_bytes)
        place_tokens(choice, begin, begin + part->n_bytes, !part->is_reasoning);
    return true;
}

/* Splits the first n_bytes of choice->raw. False: out of memory. */
static bool split_raw(struct job *job, struct reply_choice *choice, size_t n_bytes, bool is_end)
{
    struct tutti_reasoning_part part;
    bool ok = true;
    choice->n_split = n_bytes;
    while (ok && tutti_reasoning_parser_next(choice->splitter, choice->raw.bytes, n_bytes, is_end, &part))
        ok = add_part(job, choice, &part);
    return ok;
}

/* Splits up to the end of each token of the event, so that tokens of reasoning can be counted: with a stop string,
 * an event may have many. The marks around it count as reasoning. */
static bool split_tokens(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    bool ok = true;
    for (size_t i = 0; ok && i < event->n_tokens; i++) {
        size_t end = event->tokens[i].text_end;
        end = end < choice->raw.n_bytes ? end : choice->raw.n_bytes;
        if (end > choice->n_split)
            ok = split_raw(job, choice, end, false);
        bool was_inside = choice->is_inside;
        choice->is_inside = tutti_reasoning_parser_is_inside(choice->splitter);
        choice->n_reasoning_tokens += was_inside || choice->is_inside;
    }
    return ok;
}

static bool add_split(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    if (!choice->splitter) {
        if (tutti_reasoning_parser_new(&choice->splitter, job->app->info.reasoning_form,
                                       event->begins_in_reasoning, NULL) != TUTTI_OK)
            return false;
        choice->is_inside = tutti_reasoning_parser_is_inside(choice->splitter);
    }
    bool ok = buf_add(&choice->raw, event->text, event->n_text_bytes) && split_tokens(job, choice, event) &&
              split_raw(job, choice, choice->raw.n_bytes, event->finish != TUTTI_FINISH_NONE);
    if (ok && choice->text.n_bytes == 0 && job->req.forced == API_FORCED_NONE &&
        event->finish == TUTTI_FINISH_STOP && tutti_reasoning_parser_is_inside(choice->splitter))
        ok = take_unclosed_calls(job, choice);
    return ok;
}

bool answer_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    size_t n_before = choice->text.n_bytes;
    if (job->splits)
        return add_split(job, choice, event);
    if (!buf_add(&choice->text, event->text, event->n_text_bytes))
        return false;
    place_tokens(choice, n_before, choice->text.n_bytes, true);
    return true;
}

bool answer_add_logprobs(struct reply_choice *choice, const struct tutti_event *event)
{
    bool ok = true;
    for (size_t i = 0; ok && i < event->n_tokens; i++)
        ok = buf_add(&choice->places, &(struct answer_token){ .raw_end = event->tokens[i].text_end },
                     sizeof(struct answer_token));
    if (!choice->logprobs)
        choice->logprobs = json_array();
    openai_add_logprobs(choice->logprobs, event);
    return ok && json_array_size(choice->logprobs) * sizeof(struct answer_token) == choice->places.n_bytes;
}

json_t *answer_logprobs(const struct reply_choice *choice, const char *text, size_t n_bytes)
{
    const struct answer_token *tokens = (const struct answer_token *)(const void *)choice->places.bytes;
    size_t begin = n_bytes > 0 ? (size_t)(text - choice->text.bytes) : 0, first = choice->n_placed;
    json_t *list = json_array();
    while (first > 0 && (tokens[first - 1].text_end == 0 || tokens[first - 1].text_end > begin))
        first--;
    for (size_t i = first; i < choice->n_placed; i++)
        if (tokens[i].text_end > begin && tokens[i].text_end <= begin + n_bytes)
            json_array_append(list, json_array_get(choice->logprobs, i));
    return list;
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

static bool is_last_turn(const struct reply_choice *choice)
{
    return choice->turn == n_turns(choice);
}

/* Whether the answer was cut within this turn. */
static bool is_cut(const struct reply_choice *choice)
{
    return choice->finish == TUTTI_FINISH_LENGTH && is_last_turn(choice);
}

/* Whether the turn has text, or calls, up to this offset. */
static bool has_text(const struct reply_choice *choice, size_t n_text)
{
    return n_text > (choice->turn > 0 ? turn_end(choice, choice->turn - 1).n_text : 0);
}

/* Passes on the turn's reasoning up to offset end. */
static void pass_reasoning(struct job *job, struct reply_choice *choice, size_t end, bool is_end,
                           answer_event_fn *emit)
{
    const struct buf *reasoning = answer_reasoning(job, choice);
    size_t n_sent = choice->n_reasoning_sent, begin = choice->reasoning_begin;
    if (!reasoning || choice->reasoning_is_over || end == begin)
        return;
    if (n_sent == begin)
        emit(job, choice, &(struct answer_event){ .part = ANSWER_REASONING, .moment = ANSWER_BEGIN });
    if (end > n_sent)
        emit(job, choice,
             &(struct answer_event){ .part = ANSWER_REASONING,
                                     .moment = ANSWER_DELTA,
                                     .text = reasoning->bytes + n_sent,
                                     .n_bytes = end - n_sent });
    choice->n_reasoning_sent = end;
    if (!is_end)
        return;
    choice->reasoning_is_over = true;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_REASONING,
                                 .moment = ANSWER_END,
                                 .text = reasoning->bytes + begin,
                                 .n_bytes = end - begin,
                                 .is_cut = is_cut(choice) && !has_text(choice, choice->text.n_bytes) });
}

static void begin_text(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    if (!choice->has_begun)
        emit(job, choice, &(struct answer_event){ .part = ANSWER_TEXT, .moment = ANSWER_BEGIN });
    choice->has_begun = true;
}

/* The first n_sure bytes of the text are certain. */
static void pass_text(struct job *job, struct reply_choice *choice, size_t n_sure, answer_event_fn *emit)
{
    size_t n_sent = choice->n_sent;
    if (n_sure <= n_sent)
        return;
    begin_text(job, choice, emit);
    choice->n_sent = n_sure;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_TEXT,
                                 .moment = ANSWER_DELTA,
                                 .text = choice->text.bytes + n_sent,
                                 .n_bytes = n_sure - n_sent });
}

/* The turn's text ends at offset end. */
static void end_text(struct job *job, struct reply_choice *choice, size_t end, answer_event_fn *emit)
{
    size_t n_bytes = end - choice->text_begin;
    begin_text(job, choice, emit);
    choice->message_is_over = true;
    emit(job, choice,
         &(struct answer_event){ .part = ANSWER_TEXT,
                                 .moment = ANSWER_END,
                                 .text = n_bytes > 0 ? choice->text.bytes + choice->text_begin : "",
                                 .n_bytes = n_bytes,
                                 .is_cut = choice->calls.n == 0 && is_cut(choice) });
}

/* The parts that follow belong to the next turn. */
static void begin_turn(struct reply_choice *choice)
{
    struct answer_turn end = turn_end(choice, choice->turn++);
    choice->n_reasoning_sent = choice->reasoning_begin = end.n_reasoning;
    choice->text_begin = choice->n_sent;
    choice->reasoning_is_over = choice->has_begun = choice->message_is_over = false;
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

/* Passes on what is certain of the turn, of which bytes up to end have come. */
static void pass_turn(struct job *job, struct reply_choice *choice, struct answer_turn end,
                      answer_event_fn *emit)
{
    struct tutti_tool_call_delta delta;
    pass_reasoning(job, choice, end.n_reasoning, has_text(choice, end.n_text), emit);
    if (!calls_are_possible(job)) {
        pass_text(job, choice, end.n_text, emit);
        return;
    }
    size_t n_sure = calls_sure_content(job, choice, end.n_text);
    bool has_delta = calls_next_delta(job, choice, end.n_text, &delta);
    pass_text(job, choice, n_sure, emit);
    if (has_delta && choice->has_begun && !choice->message_is_over)
        end_text(job, choice, choice->n_sent, emit);
    for (; has_delta; has_delta = calls_next_delta(job, choice, end.n_text, &delta))
        pass_call(job, choice, &delta, emit);
}

static bool is_blank_text(const struct reply_choice *choice, size_t begin, size_t end)
{
    while (begin < end && strchr(" \t\r\n", choice->text.bytes[begin]))
        begin++;
    return begin >= end;
}

/* A turn is over. Text that may still be the beginning of a call follows in the next one. */
static void end_turn(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    struct answer_turn end = turn_end(choice, choice->turn);
    if (choice->has_begun && !choice->message_is_over) {
        if (is_blank_text(choice, choice->n_sent, end.n_text))
            pass_text(job, choice, end.n_text, emit);
        end_text(job, choice, choice->n_sent, emit);
    }
    begin_turn(choice);
}

void answer_pass_new(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    if (calls_are_possible(job) && !calls_prepare(job, choice)) {
        job_fail_memory(job);
        return;
    }
    pass_turn(job, choice, turn_end(choice, choice->turn), emit);
    while (!is_last_turn(choice) && !choice->calls.is_open) {
        end_turn(job, choice, emit);
        pass_turn(job, choice, turn_end(choice, choice->turn), emit);
    }
}

/* Passes on the turn's text up to offset end. */
static void pass_whole_text(struct job *job, struct reply_choice *choice, size_t end, answer_event_fn *emit)
{
    if (end <= choice->text_begin && (choice->turn > 0 || !is_last_turn(choice)))
        return;
    pass_text(job, choice, end, emit);
    end_text(job, choice, end, emit);
}

void answer_pass_rest(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    if (choice->calls.n > 0)
        end_call(job, choice, true, emit);
    for (;; begin_turn(choice)) {
        struct answer_turn end = turn_end(choice, choice->turn);
        pass_reasoning(job, choice, end.n_reasoning, true, emit);
        if (choice->calls.n == 0)
            pass_whole_text(job, choice, end.n_text, emit);
        if (is_last_turn(choice))
            break;
    }
}

static void pass_whole_calls(struct job *job, struct reply_choice *choice, const json_t *calls,
                             answer_event_fn *emit)
{
    const json_t *call;
    size_t i;
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
}

void answer_pass_whole(struct job *job, struct reply_choice *choice, answer_event_fn *emit)
{
    size_t n_content;
    json_t *calls = calls_find(job, choice, choice->finish, &n_content);
    for (;; begin_turn(choice)) {
        struct answer_turn end = turn_end(choice, choice->turn);
        size_t n_text = end.n_text < n_content ? end.n_text : n_content;
        pass_reasoning(job, choice, end.n_reasoning, true, emit);
        if (n_text > choice->text_begin || (!calls && is_last_turn(choice)))
            pass_whole_text(job, choice, n_text, emit);
        bool has_calls = calls && (is_last_turn(choice) || !is_blank_text(choice, n_content, end.n_text));
        if (has_calls && choice->calls.n == 0)
            pass_whole_calls(job, choice, calls, emit);
        if (is_last_turn(choice))
            break;
    }
    json_decref(calls);
}
