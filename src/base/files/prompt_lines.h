/* Splits a file of prompts into lines: one prompt per line, or JSON Lines if the first line that
 * is not blank begins with {. */
#ifndef TUTTI_BASE_FILES_PROMPT_LINES_H
#define TUTTI_BASE_FILES_PROMPT_LINES_H

#include <stdbool.h>
#include <stddef.h>

/* Initialise as { .bytes = , .n_bytes = }; bytes is borrowed. */
struct prompt_lines {
    const char *bytes;
    size_t n_bytes, start; /* start: offset of the next line */
    /* Of the line found last: */
    const char *line;            /* without its end, which may be \r\n */
    size_t n_line_bytes, number; /* number: from 1, blank lines counted */
    bool is_json, has_begun;
};

/* Advances to the next line that is not blank. False: no more lines. */
bool prompt_lines_next(struct prompt_lines *lines);

#endif
