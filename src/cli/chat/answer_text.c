#include "cli/chat/answer_text.h"

static bool add_parts(struct answer_text *answer, const char *form, const struct tutti_event *event)
{
    struct tutti_reasoning_part part;
    bool is_end = event->finish != TUTTI_FINISH_NONE;
    if (!form)
        return buf_add(&answer->text, event->text, event->n_text_bytes);
    if (!answer->parser &&
        tutti_reasoning_parser_new(&answer->parser, form, event->begins_in_reasoning, NULL) != TUTTI_OK)
        return false;
    bool was_inside = tutti_reasoning_parser_is_inside(answer->parser);
    bool ok = buf_add(&answer->raw, event->text, event->n_text_bytes);
    while (ok &&
           tutti_reasoning_parser_next(answer->parser, answer->raw.bytes, answer->raw.n_bytes, is_end, &part))
        ok = buf_add(part.is_reasoning ? &answer->thinking : &answer->text, part.text, part.n_bytes);
    answer->is_thinking = tutti_reasoning_parser_is_inside(answer->parser);
    if (was_inside || answer->is_thinking)
        answer->n_thinking_tokens += event->n_tokens;
    return ok;
}

void answer_text_add(struct answer_text *answer, const char *form, const struct tutti_event *event)
{
    if (!answer->is_lost && !add_parts(answer, form, event))
        answer->is_lost = true;
}

void answer_text_clear(struct answer_text *answer)
{
    tutti_reasoning_parser_free(answer->parser);
    buf_clear(&answer->raw);
    buf_clear(&answer->thinking);
    buf_clear(&answer->text);
    *answer = (struct answer_text){ 0 };
}
