/* Finds the first stop string in a text that arrives byte by byte. Time is linear in the text for
 * each stop string, whatever either contains. After Knuth, Morris and Pratt, "Fast Pattern Matching
 * in Strings", 1977. */
#ifndef TUTTI_STOPS_H
#define TUTTI_STOPS_H

#include "base/error.h"
#include "base/limits.h"

enum { LIMIT_STOP_BYTES = 4096 }; /* of one stop string */

struct stops {
    const struct tutti_string *strings; /* [n], none of them empty */
    size_t n;
    const uint16_t *const *borders; /* [n]: of each string, from stops_find_borders() */
};

/* borders [n_bytes]: for the first i + 1 bytes of text, the length of the longest proper suffix
 * that is also a prefix. */
void stops_find_borders(uint16_t *borders, const char *text, size_t n_bytes);

/* For each stop string, the length of its prefix that the text seen so far ends with.
 * Zero-initialised: no text yet. */
struct stop_state {
    uint16_t matched[LIMIT_STOPS];
};

/* Adds a byte. Returns the length of the longest stop string that it completes, and sets *index to it;
 * 0: none, *index is unchanged. */
size_t stops_feed(const struct stops *stops, struct stop_state *state, char byte, size_t *index);

/* The length of the longest suffix of the text that may be the beginning of a stop string. */
size_t stops_held(const struct stops *stops, const struct stop_state *state);

#endif
