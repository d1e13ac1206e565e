/* The name of the model that a request is for.
 *
 * Finds the member "model" of a request's JSON object without parsing the rest, in slices, so that a large
 * body does not delay other connections. The process of the model parses the body; here a text that is
 * no JSON merely yields no name. */
#ifndef TUTTI_SERVER_MODELS_NAME_SCAN_H
#define TUTTI_SERVER_MODELS_NAME_SCAN_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise. */
struct name_scan {
    size_t at;   /* the next byte */
    int depth;   /* of arrays and objects */
    size_t text; /* where the current string began */
    bool in_text, is_escaped;
    bool is_value;     /* at depth 1: a value follows */
    bool is_model;     /* it is the model's */
    size_t begin, end; /* of the name, without its quotes; end 0: not found yet */
};

/* Scans up to n_slice further bytes. True: finished; end is 0 if there is no such string. */
bool name_scan(struct name_scan *scan, const char *bytes, size_t n_bytes, size_t n_slice);

/* The first parameter "model" of a query, with its percent escapes and '+' decoded, as requests without a body
 * have it. name: [size]; what does not fit is cut. Returns the length in bytes, without an end; 0: there is
 * none. */
size_t name_of_query(const char *query, char *name, size_t size);

#endif
