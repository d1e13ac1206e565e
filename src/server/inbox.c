#include "server/inbox.h"

#include <stdlib.h>
#include <string.h>

/* First pass, block NULL: counts bytes. Second pass: copies. */
static size_t block_place(char *block, size_t *at, const void *bytes, size_t n_bytes, size_t align)
{
    *at = (*at + align - 1) / align * align;
    size_t here = *at;
    if (block && n_bytes)
        memcpy(block + here, bytes, n_bytes);
    *at += n_bytes;
    return here;
}

/* *out: the copy. */
static size_t copy_tokens(char *block, size_t at, const struct tutti_token *from, size_t n,
                          const struct tutti_token **out)
{
    size_t first = block_place(block, &at, from, n * sizeof *from, _Alignof(struct tutti_token));
    struct tutti_token *tokens = block ? (struct tutti_token *)(void *)(block + first) : NULL;
    for (size_t i = 0; i < n; i++) {
        const struct tutti_token *token = &from[i];
        size_t n_top = (size_t)token->n_top;
        size_t top_at = block_place(block, &at, token->top, n_top * sizeof *token->top,
                                    _Alignof(struct tutti_top_token));
        struct tutti_top_token *top = block ? (struct tutti_top_token *)(void *)(block + top_at) : NULL;
        for (size_t k = 0; k < n_top; k++) {
            size_t text_at = block_place(block, &at, token->top[k].bytes, token->top[k].n_bytes, 1);
            if (block)
                top[k].bytes = block + text_at;
        }
        size_t text_at = block_place(block, &at, token->bytes, token->n_bytes, 1);
        if (block) {
            tokens[i].bytes = block + text_at;
            tokens[i].top = top;
        }
    }
    if (block)
        *out = tokens;
    return at;
}

/* Copies everything that source points to; out: the event in the block. */
static size_t copy_all(char *block, size_t at, const struct tutti_event *source, struct tutti_event *out)
{
    at = copy_tokens(block, at, source->tokens, source->n_tokens, &out->tokens);
    if (source->prompt_tokens)
        at = copy_tokens(block, at, source->prompt_tokens, source->n_prompt_tokens, &out->prompt_tokens);
    size_t text_at = block_place(block, &at, source->text, source->n_text_bytes, 1);
    size_t embedding_at = block_place(block, &at, source->embedding, source->n_embedding * sizeof(float),
                                      _Alignof(float));
    if (block) {
        out->text = block + text_at;
        out->embedding = source->embedding ? (const float *)(const void *)(block + embedding_at) : NULL;
    }
    return at;
}

static struct inbox_event *inbox_event_new(const struct tutti_event *event, bool copies_tokens)
{
    struct tutti_event source = *event;
    if (!copies_tokens)
        source.n_tokens = 0;
    struct inbox_event *item = malloc(copy_all(NULL, sizeof(struct inbox_event), &source, &source));
    if (!item)
        return NULL;
    item->event = source;
    copy_all((char *)item, sizeof *item, &source, &item->event);
    return item;
}

void inbox_callback(void *user, const struct tutti_event *event)
{
    struct submission *submission = user;
    struct inbox_event *item = inbox_event_new(event, submission->copies_tokens);
    if (!item || (submission->lost && event->is_last)) {
        submission->lost = true;
        if (!event->is_last)
            return;
        /* The last event must arrive; it reports that an earlier one was lost. */
        free(item);
        item = submission->spare;
        submission->spare = NULL;
        item->event = *event;
        item->event.n_text_bytes = item->event.n_tokens = item->event.n_embedding = 0;
        item->event.prompt_tokens = NULL;
        item->event.embedding = NULL;
        item->event.finish = TUTTI_FINISH_ERROR;
        error_set(&item->event.error, TUTTI_E_MEMORY, "out of memory: a part of the answer was lost");
    }
    item->submission = submission;
    mailbox_send(submission->inbox, &item->mail);
}
