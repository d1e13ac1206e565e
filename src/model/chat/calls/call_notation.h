/* Values of arguments in notations other than JSON and Python: Gemma's, with marks around texts and names
 * without quotes ({a:<|"|>text<|"|>,b:[1,true]}), and MiniMax-M3's nested elements (<a>text</a>, with a
 * mark before each tag).
 *
 * A value is scanned as it comes, each byte a bounded number of times, and parsed when it is complete. */
#ifndef TUTTI_MODEL_CHAT_CALLS_CALL_NOTATION_H
#define TUTTI_MODEL_CHAT_CALLS_CALL_NOTATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct notation_scan {
    size_t at; /* bytes that are scanned; where the value ends, once it is found */
    int depth; /* brackets or elements that are open */
    bool is_text;
};

enum notation_found { NOTATION_MORE, NOTATION_END, NOTATION_WRONG };

/* Finds the end of a value in Gemma's notation: a comma or a bracket that does not belong to it. mark: what
 * is around texts. */
enum notation_found notation_scan_dict(struct notation_scan *scan, const char *mark, const char *text,
                                       size_t n_bytes);

/* Finds the end of the value of an element: the tag that closes it. mark: what is before each tag. */
enum notation_found notation_scan_element(struct notation_scan *scan, const char *mark, const char *text,
                                          size_t n_bytes);

/* Bytes of the tag that closes an element of this name, at the beginning of text; 0: it is another tag. */
size_t notation_close_bytes(const char *mark, const char *text, size_t n_bytes, const char *name);

/* A complete value. NULL: it is not valid, or out of memory. */
json_t *notation_parse_dict(const char *mark, const char *text, size_t n_bytes);

/* The same; parameters: the JSON Schema of the tool's arguments, among which the value has this name. NULL
 * also if more than 32 elements are nested. */
json_t *notation_parse_element(const char *mark, const char *text, size_t n_bytes, const json_t *parameters,
                               const char *name);

#endif
