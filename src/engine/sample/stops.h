/* Finds the first stop string in a text that arrives byte by byte. The time is that of reading the text once for each
 * stop string, whatever stands in either. After Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", 1977. */
#ifndef TUTTI_STOPS_H
#define TUTTI_STOPS_H

#include "base/error.h"
#include "base/limits.h"

enum { LIMIT_STOP_BYTES = 4096 }; /* of one stop string */

struct stops {
    const struct tutti_string *strings; /* [n], none of them empty */
    size_t n;
    const uint16_t *const *borders; /* [n]: of each string, by stops_find_borders() */
};

/* borders [n_bytes]: of the first i + 1 bytes of text, the length of the longest proper end that is a beginning too. */
void stops_find_borders(uint16_t *borders, const char *text, size_t n_bytes);

/* How much of each stop string the text seen so far ends with. Zero-initialised: nothing was seen. */
struct stop_state {
    uint16_t matched[LIMIT_STOPS];
};

/* The next byte. Returns the length of the longest stop string that it completes; 0: none. */
size_t stops_feed(const struct stops *stops, struct stop_state *state, char byte);

/* The length of the longest end of the text that may be the beginning of a stop string. */
size_t stops_held(const struct stops *stops, const struct stop_state *state);

#endif
