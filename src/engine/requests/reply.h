/* Turns the tokens of one answer into its visible text: detokenizes, hides what the chat format
 * hides, and ends at the first stop string. Text thread only.
 *
 * Text is certain once no later token can change or hide it: whole characters, no beginning of a
 * stop string, and no trailing blanks where the chat format trims a reply. A token becomes visible
 * with its text. Where the format rewrites a reply, the text may follow a token later. */
#ifndef TUTTI_REPLY_H
#define TUTTI_REPLY_H

#include "backend/sample.h"
#include "engine/requests/rewrite.h"
#include "engine/sample/stops.h"
#include "model/marks.h"
#include "tokenizer/tokenizer.h"

struct reply_format {
    const struct tokenizer *tok;    /* NULL: no text, only tokens */
    const struct chat_marks *marks; /* special tokens that are part of the text; NULL: none are */
    struct stops stops;             /* borrowed for the reply's life */
    bool continues_text;            /* the prompt was a text: keep a blank before the first word */
    bool continues_answer;          /* the prompt has the reply's beginning: nothing is leading */
    bool hides_blank_first_line;
    bool keeps_stop;                  /* a stop string is shown before it ends the reply */
    bool trims;                       /* blanks at both ends are not shown */
    bool fills_in_time, widens_marks; /* engine/requests/rewrite.h */
};

struct reply_token {
    struct sample sample;
    size_t begin, end; /* of its text, in the reply's text */
};

struct reply {
    const struct reply_format *format;
    struct detokenizer detok;
    bool is_leading;    /* nothing but blanks so far */
    struct buf leading; /* blanks of a first line that may turn out not to be blank */
    struct buf pending; /* text after the first n_certain bytes */
    struct stop_state stop_state;
    size_t n_scanned; /* of pending, for stop strings */
    bool has_stop_string;
    size_t stop_string; /* the index of the one that ended the reply */
    size_t n_certain;   /* bytes of the text that no stop string can hide any more */
    struct rewrite rewrite;
    struct buf rewritten; /* scratch */
    struct buf blanks;    /* certain, but shown only if text follows */
    struct buf piece;     /* scratch */

    struct buf text;            /* certain, not sent yet */
    struct reply_token *tokens; /* not sent yet; the first n_visible of them may be */
    size_t n_tokens, n_visible, capacity;
    size_t n_generated; /* visible tokens, including those sent */
};

void reply_init(struct reply *reply, const struct reply_format *format);
void reply_clear(struct reply *reply); /* a zeroed one is allowed */

/* Adds a token. *is_stopped: a stop string is complete, so the reply ends here. False: out of
 * memory. */
MUST_CHECK bool reply_push(struct reply *reply, const struct sample *sample, bool *is_stopped);

/* Ends the reply: text that was held back becomes certain. False: out of memory. */
MUST_CHECK bool reply_finish(struct reply *reply, bool *is_stopped);

/* Drops text and visible tokens, which were sent. */
void reply_sent(struct reply *reply);

#endif
