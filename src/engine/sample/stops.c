#include "engine/sample/stops.h"

/* KMP step: from matched bytes of the stop string and the next byte to the new number of matched
 * bytes. */
static size_t step(const struct tutti_string *stop, const uint16_t *borders, size_t matched, char byte)
{
    while (matched > 0 && stop->text[matched] != byte)
        matched = borders[matched - 1];
    return matched + (stop->text[matched] == byte);
}

void stops_find_borders(uint16_t *borders, const char *text, size_t n_bytes)
{
    struct tutti_string stop = { text, n_bytes };
    borders[0] = 0;
    for (size_t i = 1; i < n_bytes; i++)
        borders[i] = (uint16_t)step(&stop, borders, borders[i - 1], text[i]);
}

size_t stops_feed(const struct stops *stops, struct stop_state *state, char byte, size_t *index)
{
    size_t longest = 0;
    for (size_t i = 0; i < stops->n; i++) {
        size_t matched = step(&stops->strings[i], stops->borders[i], state->matched[i], byte);
        if (matched == stops->strings[i].n_bytes) {
            if (matched > longest) {
                longest = matched;
                *index = i;
            }
            matched = stops->borders[i][matched - 1];
        }
        state->matched[i] = (uint16_t)matched;
    }
    return longest;
}

size_t stops_held(const struct stops *stops, const struct stop_state *state)
{
    size_t longest = 0;
    for (size_t i = 0; i < stops->n; i++)
        longest = state->matched[i] > longest ? state->matched[i] : longest;
    return longest;
}
