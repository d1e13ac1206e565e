#include "cli/chat/prompt.h"
#include "base/ids.h"

#include <string.h>

static const struct tutti_message QUESTION = { .role = "user", .content = "?", .n_bytes = 1 };

enum tutti_status prompt_length(size_t *out, const tutti_model *model, const struct tutti_message *messages,
                                size_t n_messages, const char *arguments, struct tutti_error *err)
{
    const struct tutti_request request = { .messages = messages,
                                           .n_messages = n_messages,
                                           .template_arguments = arguments };
    return tutti_apply_chat_template(model, &request, NULL, 0, out, err);
}

/* Puts the ids of the messages' prompt into *out, which is emptied first. */
static enum tutti_status prompt_render(struct ids *out, const tutti_model *model,
                                       const struct tutti_message *messages, size_t n_messages,
                                       const char *arguments, struct tutti_error *err)
{
    const struct tutti_request request = { .messages = messages,
                                           .n_messages = n_messages,
                                           .template_arguments = arguments };
    size_t n = 0;
    out->n = 0;
    enum tutti_status st = prompt_length(&n, model, messages, n_messages, arguments, err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++)
        if (!ids_add(out, 0))
            st = error_out_of_memory("the prompt", err);
    return st == TUTTI_OK ? tutti_apply_chat_template(model, &request, out->ids, out->n, &n, err) : st;
}

static bool ids_are_equal(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

enum tutti_status prompt_depends(bool *out, const tutti_model *model, const char *a, const char *b,
                                 struct tutti_error *err)
{
    struct ids with_a = { 0 }, with_b = { 0 };
    enum tutti_status st = prompt_render(&with_a, model, &QUESTION, 1, a, err);
    if (st == TUTTI_OK)
        st = prompt_render(&with_b, model, &QUESTION, 1, b, err);
    *out = st == TUTTI_OK && !ids_are_equal(&with_a, &with_b);
    ids_clear(&with_a);
    ids_clear(&with_b);
    return st;
}

enum tutti_status prompt_check_system(const tutti_model *model, const char *system, struct tutti_error *err)
{
    const struct tutti_message messages[] = {
        { .role = "system", .content = system, .n_bytes = strlen(system) }, QUESTION
    };
    struct tutti_model_info info;
    struct tutti_error why;
    struct ids with = { 0 }, without = { 0 };
    tutti_model_info(model, &info);
    enum tutti_status st = prompt_render(&without, model, &QUESTION, 1, NULL, err);
    if (st == TUTTI_OK && prompt_render(&with, model, messages, 2, NULL, &why) != TUTTI_OK)
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "the chat format of %s has no system message (%.300s); put the text into the first "
                       "question instead",
                       info.name, why.text);
    else if (st == TUTTI_OK && ids_are_equal(&with, &without))
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "the chat format of %s leaves out system messages; put the text into the first "
                       "question instead",
                       info.name);
    ids_clear(&with);
    ids_clear(&without);
    return st;
}
