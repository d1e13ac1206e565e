#include "load/answer.h"

#include "base/limits.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Of one line. The last line of llm-serving's stream lists all tokens: about 100 bytes each. */
enum { MAX_EVENT_BYTES = 1 << 20, MAX_LINE_BYTES = LIMIT_ANSWER_LINE_BYTES };

static size_t line_limit(const struct answer *a)
{
    return a->api == LOAD_API_LLM_SERVING ? MAX_LINE_BYTES : MAX_EVENT_BYTES;
}

static void end_badly(struct answer *a, enum answer_state state, const char *format, ...) PRINTF_LIKE(3, 4);
static void end_badly(struct answer *a, enum answer_state state, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->text, sizeof a->text, format, args);
    va_end(args);
    a->state = state;
}

/* ---- members of an event ---- */

/* Reads a token count; anything else is ignored. */
static bool take_count(const json_t *value, uint32_t *out)
{
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > LIMIT_CONTEXT)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool has_text(const json_t *value)
{
    return json_string_length(value) > 0;
}

const char *answer_error_message(const json_t *value)
{
    const json_t *error = json_object_get(value, "error");
    return json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
}

static bool take_error(struct answer *a, const json_t *event)
{
    const json_t *error = json_object_get(event, "error");
    if (!error || json_is_null(error))
        return false;
    const char *text = answer_error_message(event);
    end_badly(a, ANSWER_ERROR, "%s", text ? text : "an error without a message");
    return true;
}

/* Whether a chat's delta has tokens: text, reasoning or tool calls. */
static bool delta_has_text(const json_t *delta)
{
    return has_text(json_object_get(delta, "content")) ||
           has_text(json_object_get(delta, "reasoning_content")) ||
           has_text(json_object_get(delta, "reasoning")) ||
           json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static void read_openai(struct answer *a, const json_t *event)
{
    const json_t *choices = json_object_get(event, "choices"), *usage = json_object_get(event, "usage");
    if (!json_is_array(choices)) {
        end_badly(a, ANSWER_BAD, "an event without the array \"choices\"");
        return;
    }
    const json_t *choice = json_array_get(choices, 0);
    const json_t *delta = json_object_get(choice, "delta");
    if (delta ? delta_has_text(delta) : has_text(json_object_get(choice, "text"))) {
        a->n_pieces++;
        a->n_tokens++;
    }
    if (json_is_string(json_object_get(choice, "finish_reason")))
        a->is_finished = true;
    if (!json_is_object(usage))
        return;
    a->has_usage |= take_count(json_object_get(usage, "completion_tokens"), &a->output_tokens);
    a->has_prompt_tokens |= take_count(json_object_get(usage, "prompt_tokens"), &a->prompt_tokens);
    take_count(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"),
               &a->cached_tokens);
}

static void read_tgi(struct answer *a, const json_t *event)
{
    const json_t *token = json_object_get(event, "token"), *details = json_object_get(event, "details");
    if (!json_is_object(token)) {
        end_badly(a, ANSWER_BAD, "an event without the object \"token\"");
        return;
    }
    a->n_tokens++;
    if (has_text(json_object_get(token, "text")) && !json_is_true(json_object_get(token, "special")))
        a->n_pieces++;
    a->has_usage |= take_count(json_object_get(details, "generated_tokens"), &a->output_tokens);
    a->has_prompt_tokens |= take_count(json_object_get(details, "input_length"), &a->prompt_tokens);
    if (json_is_string(json_object_get(event, "generated_text")))
        a->state = ANSWER_COMPLETE;
}

static void read_llm_serving(struct answer *a, const json_t *event)
{
    const json_t *data = json_array_get(json_object_get(event, "data"), 0);
    if (!json_is_object(data)) {
        end_badly(a, ANSWER_BAD, "a line without an object in the array \"data\"");
        return;
    }
    if (json_is_string(json_object_get(data, "finish_reason"))) { /* the whole text once more */
        a->has_usage |= take_count(json_object_get(data, "generated_tokens"), &a->output_tokens);
        a->state = ANSWER_COMPLETE;
        return;
    }
    const json_t *token = json_object_get(data, "tokens");
    a->n_tokens++;
    if (has_text(json_object_get(data, "generated_text")) && !json_is_true(json_object_get(token, "special")))
        a->n_pieces++;
}

static void read_event(struct answer *a, const char *text, size_t n_bytes)
{
    json_error_t err;
    a->n_events++;
    if (a->api == LOAD_API_OPENAI && n_bytes == 6 && memcmp(text, "[DONE]", 6) == 0) {
        a->state = ANSWER_COMPLETE;
        return;
    }
    json_t *event = json_loadb(text, n_bytes, JSON_ALLOW_NUL, &err);
    if (!event)
        end_badly(a, ANSWER_BAD, "an event that is no JSON object: column %d: %.160s", err.column, err.text);
    else if (!take_error(a, event)) {
        if (a->api == LOAD_API_OPENAI)
            read_openai(a, event);
        else if (a->api == LOAD_API_TGI)
            read_tgi(a, event);
        else
            read_llm_serving(a, event);
    }
    json_decref(event);
}

/* ---- lines ---- */

static void end_event(struct answer *a)
{
    if (a->has_data)
        read_event(a, a->data.bytes ? a->data.bytes : "", a->data.n_bytes);
    buf_truncate(&a->data, 0);
    a->has_data = false;
}

/* Reads one field of a server-sent event. Only "data" matters; comments and unknown fields are
 * ignored. */
static void read_field(struct answer *a, const char *line, size_t n_bytes)
{
    static const char FIELD[] = "data";
    const size_t n_name = sizeof FIELD - 1;
    if (n_bytes == 0) {
        end_event(a);
        return;
    }
    if (n_bytes < n_name || memcmp(line, FIELD, n_name) != 0 || (n_bytes > n_name && line[n_name] != ':'))
        return;
    size_t start = n_name + (n_bytes > n_name);
    start += start < n_bytes && line[start] == ' ';
    if (a->data.n_bytes + (n_bytes - start) > line_limit(a))
        end_badly(a, ANSWER_BAD, "an event of more than %zu bytes", line_limit(a));
    else if ((a->has_data && !buf_add(&a->data, "\n", 1)) ||
             !buf_add(&a->data, line + start, n_bytes - start))
        end_badly(a, ANSWER_BAD, "out of memory for an event");
    a->has_data = true;
}

static void read_line(struct answer *a, const char *line, size_t n_bytes)
{
    if (a->api != LOAD_API_LLM_SERVING)
        read_field(a, line, n_bytes);
    else if (n_bytes > strspn(line, " \t")) /* a terminator follows every line */
        read_event(a, line, n_bytes);
}

void answer_feed(struct answer *a, const char *bytes, size_t n_bytes)
{
    while (a->state == ANSWER_RUNNING && n_bytes > 0) {
        if (a->after_cr && *bytes == '\n') { /* the second half of one line end */
            a->after_cr = false;
            bytes++;
            n_bytes--;
            continue;
        }
        a->after_cr = false;
        const char *end = memchr(bytes, '\n', n_bytes);
        size_t n = end ? (size_t)(end - bytes) : n_bytes;
        const char *cr = memchr(bytes, '\r', n);
        if (cr) {
            end = cr;
            n = (size_t)(cr - bytes);
            a->after_cr = true;
        }
        if (a->line.n_bytes + n > line_limit(a)) {
            end_badly(a, ANSWER_BAD, "a line of more than %zu bytes", line_limit(a));
            return;
        }
        if (!buf_add(&a->line, bytes, n)) {
            end_badly(a, ANSWER_BAD, "out of memory for a line");
            return;
        }
        if (!end)
            return;
        read_line(a, a->line.bytes, a->line.n_bytes);
        buf_truncate(&a->line, 0);
        bytes += n + 1;
        n_bytes -= n + 1;
    }
}

bool answer_end(struct answer *a)
{
    if (a->state == ANSWER_RUNNING && a->line.n_bytes > 0) /* some servers do not terminate the last line */
        read_line(a, a->line.bytes, a->line.n_bytes);
    if (a->state == ANSWER_RUNNING && a->api != LOAD_API_LLM_SERVING)
        end_event(a);
    if (a->state == ANSWER_RUNNING && a->n_events == 0)
        end_badly(a, ANSWER_BAD, "no event in the whole answer");
    /* llm-serving has no end marker unless the full text was requested, which not all versions
     * support. */
    if (a->state == ANSWER_RUNNING && (a->is_finished || a->api == LOAD_API_LLM_SERVING))
        a->state = ANSWER_COMPLETE;
    return a->state == ANSWER_COMPLETE;
}

void answer_reset(struct answer *a, enum load_api api)
{
    struct buf line = a->line, data = a->data;
    buf_truncate(&line, 0);
    buf_truncate(&data, 0);
    *a = (struct answer){ .api = api, .line = line, .data = data };
}

void answer_clear(struct answer *a)
{
    buf_clear(&a->line);
    buf_clear(&a->data);
}
