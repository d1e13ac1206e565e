/* Text around calls that an answer may have: what the parser takes for the beginning of a call does not occur in
 * it, other than by the opening after which the grammar of calls goes on. So an answer with text has no call that the
 * grammar does not know. */
#ifndef TUTTI_CALL_TEXT_H
#define TUTTI_CALL_TEXT_H

#include "engine/constraints/call_parts.h"

/* Nodes: the text and all that follows, at the beginning of an answer, and after a call. call: a call with its
 * opening; -1: calls are the whole answer, and begin is an answer without one. False: error. */
MUST_CHECK bool call_text_read(struct call_parts *parts, int32_t call, int32_t *begin, int32_t *later);

#endif
