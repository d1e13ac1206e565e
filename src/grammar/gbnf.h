/* Reads GBNF, the grammar notation of llama.cpp:
 * https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
 *
 *   root  ::= item ("," item)*      # the first rule of every text is root
 *   item  ::= [a-z]+ | "\"" [^"\n]{1,20} "\"" | .
 *
 * A character is a Unicode code point; \xHH, \uHHHH and \UHHHHHHHH name one. */
#ifndef TUTTI_GRAMMAR_GBNF_H
#define TUTTI_GRAMMAR_GBNF_H

#include "grammar/syntax.h"

/* Fills *out, which was zeroed; the caller clears it in either case. TUTTI_E_ARGUMENT: the text has
 * an error; the message names line and column. */
MUST_CHECK enum tutti_status gbnf_read(struct syntax *out, const char *text, size_t n_bytes,
                                       struct tutti_error *err);

#endif
