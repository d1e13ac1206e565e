/* Grammars of tool calls in the form in which a model writes them: a row of model/chat/calls/call_forms.h and the
 * tools of a request give a grammar, whose every text the parser of that form reads as calls with
 * arguments that their tools' schemas allow.
 *
 * A mark, or a part of one, that is a special token of the vocabulary is only written as that token. */
#ifndef TUTTI_CALL_GRAMMAR_H
#define TUTTI_CALL_GRAMMAR_H

#include "grammar/grammar.h"
#include "model/chat/calls/call_forms.h"
#include "model/marks.h"

/* How one model writes calls. */
struct call_writer {
    const struct call_form *form;
    uint64_t rows;     /* that the parser of the model's answers tries, as bits */
    bool has_channels; /* a call is a message in a channel, as in harmony */
    bool ends_answers; /* a mark may end an answer, also within a call */
    struct call_token {
        const char *text; /* borrowed from the tokenizer */
        size_t n_bytes;
        int32_t id;
        bool ends; /* is a stop token */
    } * tokens;    /* special ones that occur in marks */
    size_t n_tokens;
};

/* stop_ids: tokens that end answers in chats. tok must outlive the writer. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status call_writer_init(struct call_writer *w, const struct chat_marks *marks,
                                              const struct tokenizer *tok, const int32_t *stop_ids,
                                              size_t n_stop_ids, struct tutti_error *err);
void call_writer_clear(struct call_writer *w); /* a zeroed one is allowed */

/* Reads the text of a TUTTI_GRAMMAR_TOOL_CALLS, or with has_text a TUTTI_GRAMMAR_TEXT_OR_CALLS, and fills *out, which was zeroed but for its
 * budget. TUTTI_E_ARGUMENT with err->param "tools": what the form cannot express, or what a schema has
 * that is invalid or unsupported; TUTTI_E_LIMIT; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status call_grammar_read(const struct call_writer *w, const char *text, size_t n_bytes,
                                               bool has_text, struct syntax *out, struct tutti_error *err);

#endif
