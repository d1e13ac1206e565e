#include "cli/chat/talk.h"

#include "base/containers/array.h"

#include <stdlib.h>
#include <string.h>

void talk_init(struct talk *talk)
{
    *talk = (struct talk){ 0 };
    for (const struct option *o = SAMPLING_OPTIONS; o->name; o++)
        option_reset(o, &talk->sampling);
    for (const struct option *o = THINKING_OPTIONS; o->name; o++)
        option_reset(o, &talk->thinking);
}

void talk_clear(struct talk *talk)
{
    talk_truncate(talk, 0);
    free(talk->messages);
    json_decref(talk->owner);
    *talk = (struct talk){ 0 };
}

/* NULL: out of memory. */
static char *copy_text(const char *text, size_t n_bytes)
{
    char *copy = malloc(n_bytes + 1);
    if (!copy)
        return NULL;
    if (n_bytes > 0)
        memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    return copy;
}

enum tutti_status talk_add(struct talk *talk, size_t index, const char *role, const char *text,
                           size_t n_bytes, struct tutti_error *err)
{
    char *content = NULL;
    if (array_grow(&talk->messages, talk->n, &talk->capacity, sizeof *talk->messages))
        content = copy_text(text, n_bytes);
    if (!content)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the conversation");
    memmove(&talk->messages[index + 1], &talk->messages[index], (talk->n - index) * sizeof *talk->messages);
    talk->messages[index] = (struct tutti_message){ .role = role, .content = content, .n_bytes = n_bytes };
    talk->n++;
    return TUTTI_OK;
}

enum tutti_status talk_set_thinking(struct talk *talk, const char *text, size_t n_bytes,
                                    struct tutti_error *err)
{
    char *copy = copy_text(text, n_bytes);
    if (!copy)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the conversation");
    talk->messages[talk->n - 1].reasoning = copy;
    return TUTTI_OK;
}

void talk_remove(struct talk *talk, size_t index)
{
    free((char *)(uintptr_t)talk->messages[index].content);
    free((char *)(uintptr_t)talk->messages[index].reasoning);
    talk->n--;
    memmove(&talk->messages[index], &talk->messages[index + 1], (talk->n - index) * sizeof *talk->messages);
}

void talk_truncate(struct talk *talk, size_t n)
{
    while (talk->n > n)
        talk_remove(talk, talk->n - 1);
}

bool talk_has_system(const struct talk *talk)
{
    return talk->n > 0 && strcmp(talk->messages[0].role, "system") == 0;
}

enum tutti_status talk_set_system(struct talk *talk, const char *text, struct tutti_error *err)
{
    if (talk_has_system(talk))
        talk_remove(talk, 0);
    return *text ? talk_add(talk, 0, "system", text, strlen(text), err) : TUTTI_OK;
}

bool talk_ends_with(const struct talk *talk, const char *role)
{
    return talk->n > 0 && strcmp(talk->messages[talk->n - 1].role, role) == 0;
}
