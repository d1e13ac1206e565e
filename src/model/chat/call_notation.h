/* Values of arguments in notations other than JSON and Python: Gemma's, with marks around texts and names without quotes
 * ({a:<|"|>text<|"|>,b:[1,true]}), and MiniMax-M3's nested elements (<a>text</a>, with a mark before each tag).
 *
 * A value is scanned as it comes, each byte once, and parsed when it is complete. */
#ifndef TUTTI_MODEL_CHAT_CALL_NOTATION_H
#define TUTTI_MODEL_CHAT_CALL_NOTATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum notation_state { NOTATION_MORE, NOTATION_END, NOTATION_WRONG };

struct notation_scan {
    size_t at; /* bytes that are scanned */
    int depth; /* open brackets, or elements */
    bool is_text;
};

/* Finds the end of a value in Gemma's notation: a comma or a bracket that does not belong to it, at scan->at. mark: what is
 * around texts. */
enum notation_state notation_scan_dict(struct notation_scan *scan, const char *mark, const char *text, size_t n_bytes);

/* Finds the end of an element's value: the tag that closes it, at scan->at. mark: what is before each tag. */
enum notation_state notation_scan_element(struct notation_scan *scan, const char *mark, const char *text, size_t n_bytes);

/* A complete value. NULL: it is not valid, or too deep, or out of memory. */
json_t *notation_parse_dict(const char *mark, const char *text, size_t n_bytes);

/* The same; parameters: the JSON Schema of the tool's arguments, of which the value has this name. */
json_t *notation_parse_element(const char *mark, const char *text, size_t n_bytes, const json_t *parameters,
                               const char *name);

#endif
