/* What marks the reasoning and the tool calls in a model's answers, as tokens. */
#ifndef TUTTI_MODEL_MARKS_H
#define TUTTI_MODEL_MARKS_H

#include "base/ids.h"

struct reasoning_form; /* model/chat/reasoning.h */
struct call_form;      /* model/chat/calls/call_forms.h */
struct tokenizer;
struct chat_format;
struct chat_template;

/* What a model's answers consist of, besides text. */
struct chat_marks {
    const char *tool_form;           /* call_forms.h; NULL: any */
    const struct call_form *written; /* the row by which a grammar makes it write calls */
    const struct reasoning_form *reasoning;
    struct ids shown; /* special tokens that belong to the text if the request wants marks; ascending */
    bool is_opened_by_prompt;       /* an answer whose prompt does not open its reasoning has none */
    struct ids open, close, forced; /* the texts of the form as tokens; open is empty where it is NULL */
    struct ids turn; /* ends a message of reasoning before a call, where both are channels; else empty */
};

/* Where the reasoning of an answer begins. */
enum reasoning_start {
    REASONING_NEVER,      /* the prompt ends it, or the model has none */
    REASONING_OPEN,       /* it has begun with the prompt */
    REASONING_AT_ONE,     /* if the first token is the opening mark */
    REASONING_IN_GRAMMAR, /* the answer's grammar has it */
};

/* format NULL: no marks. TUTTI_E_MEMORY. chat_marks_clear() is for the caller in any case. */
MUST_CHECK enum tutti_status chat_marks_init(struct chat_marks *out, const struct chat_format *format,
                                             const struct chat_template *tpl, const struct tokenizer *tok,
                                             struct tutti_error *err);
void chat_marks_clear(struct chat_marks *marks); /* a zeroed one is allowed */

/* How a prompt begins an answer. A mark of several tokens is compared as text, since a prompt may have other
 * tokens for it, joined with the text around it. False: out of memory. */
MUST_CHECK bool chat_marks_start(const struct chat_marks *marks, const struct tokenizer *tok,
                                 const int32_t *prompt, size_t n_prompt, enum reasoning_start *out);

/* Whether ids end with these marks. */
bool chat_marks_end(const struct ids *marks, const int32_t *ids, size_t n_ids);

bool chat_marks_show(const struct chat_marks *marks, int32_t token);

#endif
