#include "cli/terminal/terminal_text.h"

#include "base/utf8.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Adds the first character of text. Returns its length; 0: incomplete. */
static size_t add_character(const char *text, size_t n_bytes, struct buf *out, bool *ok)
{
    if (*text == '\r') {
        *ok = n_bytes < 2 || text[1] == '\n' || buf_add_string(out, REPLACEMENT);
        return n_bytes < 2 ? 0 : 1;
    }
    int n = utf8_char(text, n_bytes);
    if (n == 0 && utf8_is_start(text, n_bytes))
        return 0;
    size_t step = n > 0 ? (size_t)n : 1;
    bool shows = *text == '\n' || *text == '\t' || utf8_is_printable(text, step);
    *ok = shows ? buf_add(out, text, step) : buf_add_string(out, REPLACEMENT);
    return step;
}

bool terminal_text_add(struct terminal_text *t, const char *text, size_t n_bytes, struct buf *out)
{
    bool ok = true;
    while (ok && t->n_held > 0 && n_bytes > 0) { /* byte by byte until the held character is complete */
        t->held[t->n_held++] = *text++;
        n_bytes--;
        for (size_t n; ok && t->n_held > 0 && (n = add_character(t->held, t->n_held, out, &ok)) > 0;) {
            memmove(t->held, t->held + n, t->n_held - n);
            t->n_held -= n;
        }
    }
    while (ok && n_bytes > 0) {
        size_t n = add_character(text, n_bytes, out, &ok);
        if (n == 0) {
            memcpy(t->held, text, n_bytes);
            t->n_held = n_bytes;
            break;
        }
        text += n;
        n_bytes -= n;
    }
    return ok;
}
