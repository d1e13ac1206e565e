/* The lines of a file of prompts: one prompt a line, or JSON Lines where the first line that is not blank begins with {. */
#ifndef TUTTI_BASE_FILES_PROMPT_LINES_H
#define TUTTI_BASE_FILES_PROMPT_LINES_H

#include <stdbool.h>
#include <stddef.h>

/* Begins as { .bytes = , .n_bytes = }: borrowed. */
struct prompt_lines {
    const char *bytes;
    size_t n_bytes, start; /* start: where the next line begins */
    /* Of the line found last: */
    const char *line;            /* without its end, which may be \r\n */
    size_t n_line_bytes, number; /* number: from 1, blank lines counted */
    bool is_json, has_begun;
};

/* Goes to the next line that is not blank; false: there is none. */
bool prompt_lines_next(struct prompt_lines *lines);

#endif
