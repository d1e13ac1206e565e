#include "cli/terminal/output.h"

#include "cli/terminal/terminal_text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int first_errno;  /* global, like standard output */
static struct buf *kept; /* NULL: output is not redirected */

static void note_failure(void)
{
    if (first_errno == 0)
        first_errno = errno ? errno : EIO;
}

static void write_bytes(const void *bytes, size_t n_bytes)
{
    if (first_errno == 0 && n_bytes > 0 && fwrite(bytes, 1, n_bytes, stdout) != n_bytes)
        note_failure();
}

/* Files and pipes get every byte as it is. */
void output_write(const void *bytes, size_t n_bytes)
{
    static int is_terminal = -1; /* not known yet */
    static struct terminal_text text;
    if (kept) {
        if (!buf_add(kept, bytes, n_bytes)) {
            errno = ENOMEM;
            note_failure();
        }
        return;
    }
    if (is_terminal < 0)
        is_terminal = isatty(STDOUT_FILENO);
    if (!is_terminal) {
        write_bytes(bytes, n_bytes);
        return;
    }
    struct buf shown = { 0 };
    if (terminal_text_add(&text, bytes, n_bytes, &shown)) {
        write_bytes(shown.bytes, shown.n_bytes);
    } else {
        errno = ENOMEM;
        note_failure();
    }
    buf_clear(&shown);
}

void output_dim(bool is_dim)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    if (!kept && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0 && !(no_color && *no_color))
        write_bytes(is_dim ? "\033[2m" : "\033[22m", is_dim ? 4 : 5);
}

void output_keep(struct buf *into)
{
    kept = into;
}

void output_printf(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) {
        errno = ENOMEM;
        note_failure();
        return;
    }
    output_write(text, (size_t)n);
    free(text);
}

static int write_chunk(const char *bytes, size_t n_bytes, void *user)
{
    (void)user;
    output_write(bytes, n_bytes);
    return 0;
}

void output_json(const json_t *value, bool indented)
{
    size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | (indented ? JSON_INDENT(2) : 0);
    if (!value || json_dump_callback(value, write_chunk, NULL, flags) != 0) {
        errno = ENOMEM; /* the callback never fails, so it is out of memory */
        note_failure();
    }
    output_write("\n", 1);
}

enum tutti_status output_flush(struct tutti_error *err)
{
    if (first_errno == 0 && fflush(stdout) != 0)
        note_failure();
    if (first_errno == 0)
        return TUTTI_OK;
    if (first_errno == EPIPE)
        return error_set(err, TUTTI_E_IO, "%s", "");
    return error_set(err, TUTTI_E_IO, "standard output: %s", strerror(first_errno));
}
