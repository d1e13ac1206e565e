#include "cli/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int first_errno; /* one for the process, as standard output is */

static void note_failure(void)
{
    if (first_errno == 0)
        first_errno = errno ? errno : EIO;
}

void output_write(const void *bytes, size_t n_bytes)
{
    if (first_errno == 0 && n_bytes > 0 && fwrite(bytes, 1, n_bytes, stdout) != n_bytes)
        note_failure();
}

void output_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (first_errno == 0 && vprintf(format, args) < 0)
        note_failure();
    va_end(args);
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
        errno = ENOMEM; /* the callback never fails, so only memory can */
        note_failure();
    }
    output_write("\n", 1);
}

bool output_failed(void)
{
    return first_errno != 0;
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
