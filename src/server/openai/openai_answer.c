#include "server/openai/openai_answer.h"

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
