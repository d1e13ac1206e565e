/* From the tokens of one answer to the text that is shown: detokenizes, hides what the chat format hides, and ends at
 * the first stop string. Text thread only.
 *
 * A piece of text is certain once no later token can change or hide it: whole characters, no beginning of a stop
 * string, and no trailing blanks where the chat format trims a reply. A token becomes visible with its text, but where the
 * format rewrites a reply the text may follow a token later. */
#ifndef TUTTI_REPLY_H
#define TUTTI_REPLY_H

#include "engine/requests/rewrite.h"
#include "engine/sample/sampler.h"
#include "engine/sample/stops.h"
#include "tokenizer/tokenizer.h"

struct reply_format {
    const struct tokenizer *tok; /* NULL: no text, tokens alone */
    struct stops stops;          /* borrowed for the reply's life */
    bool continues_text; /* the prompt was a text: a blank before the first word is part of the answer */
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
    struct buf pending; /* the text behind n_certain */
    struct stop_state stop_state;
    size_t n_scanned; /* of pending, for stop strings */
    size_t n_certain; /* bytes of the reply's text that no stop string can hide any more */
    struct rewrite rewrite;
    struct buf rewritten; /* scratch */
    struct buf blanks;    /* certain, but shown only if something follows */
    struct buf piece;     /* scratch */

    struct buf text;            /* certain, and not sent */
    struct reply_token *tokens; /* not sent; the first n_visible of them may be */
    size_t n_tokens, n_visible, capacity;
    size_t n_generated; /* visible ones, those sent included */
};

void reply_init(struct reply *reply, const struct reply_format *format);
void reply_clear(struct reply *reply); /* a zeroed one is allowed */

/* Adds a token. *is_stopped: a stop string is complete, and this is the end. False: out of memory. */
MUST_CHECK bool reply_push(struct reply *reply, const struct sample *sample, bool *is_stopped);

/* No token follows: what was held back becomes certain. False: out of memory. */
MUST_CHECK bool reply_finish(struct reply *reply, bool *is_stopped);

/* text and the visible tokens were sent: forgets them. */
void reply_sent(struct reply *reply);

#endif
