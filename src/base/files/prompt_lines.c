#include "base/files/prompt_lines.h"

#include <string.h>

static bool is_blank_line(const char *line, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

bool prompt_lines_next(struct prompt_lines *lines)
{
    while (lines->start < lines->n_bytes) {
        const char *line = lines->bytes + lines->start;
        const char *end = memchr(line, '\n', lines->n_bytes - lines->start);
        size_t n = end ? (size_t)(end - line) : lines->n_bytes - lines->start;
        lines->start += n + 1;
        lines->number++;
        if (is_blank_line(line, n))
            continue;
        if (!lines->has_begun)
            lines->is_json = line[strspn(line, " \t")] == '{';
        lines->has_begun = true;
        lines->line = line;
        lines->n_line_bytes = line[n - 1] == '\r' ? n - 1 : n;
        return true;
    }
    return false;
}
