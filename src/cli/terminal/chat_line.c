#include "cli/terminal/chat_line.h"

#include "cli/terminal/interrupt.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum {
    HISTORY_LINES = 1000,
    CHUNK_BYTES = 4096,
    PASTE_WAIT_MS = 40, /* a paste arrives at once; typing a line takes longer */
};

struct chat_line {
    bool is_interactive;
    EditLine *editor; /* NULL: plain lines */
    History *history;
    char *history_path; /* NULL: no folder for it */
    bool is_continued;  /* for the prompt */
    bool was_quoted;    /* the last message */

    /* Without an editor: bytes of standard input; the first n_taken were already returned as
     * lines. */
    struct buf input;
    size_t n_taken;
};

/* ---- history file ---- */

/* Makes every folder of path before its last '/'. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* failures show when the file is saved */
        *slash = '/';
    }
}

/* $XDG_STATE_HOME/tutti/history, as the XDG Base Directory Specification says. NULL: no home, or
 * out of memory. */
static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n = -1;
    if (state && state[0] == '/')
        n = asprintf(&path, "%s/tutti/history", state);
    else if (home && home[0] == '/')
        n = asprintf(&path, "%s/.local/state/tutti/history", home);
    return n < 0 ? NULL : path;
}

static void open_history(struct chat_line *reader)
{
    HistEvent event;
    reader->history = history_init();
    if (!reader->history)
        return; /* lines can be edited without it */
    history(reader->history, &event, H_SETSIZE, HISTORY_LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->editor, EL_HIST, history, reader->history);
    reader->history_path = history_path();
    if (reader->history_path)
        history(reader->history, &event, H_LOAD, reader->history_path);
}

static void close_history(struct chat_line *reader)
{
    HistEvent event;
    if (!reader->history)
        return;
    if (reader->history_path) {
        make_folders(reader->history_path);
        if (history(reader->history, &event, H_SAVE, reader->history_path) < 0)
            fprintf(stderr, "tutti: cannot save the history in %s\n", reader->history_path);
    }
    history_end(reader->history);
}

/* ---- editing ---- */

static char *prompt(EditLine *editor)
{
    static char first[] = "> ", more[] = ". ";
    struct chat_line *reader = NULL;
    el_get(editor, EL_CLIENTDATA, &reader);
    return reader->is_continued ? more : first;
}

/* libedit reads characters through this: its own function would miss a Ctrl-C between two reads. */
static int read_character(EditLine *editor, wchar_t *out)
{
    mbstate_t state = { 0 };
    (void)editor;
    for (;;) {
        char byte;
        if (!interrupt_wait_input(STDIN_FILENO)) {
            errno = EINTR;
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        if (byte ==
            '\0') /* a Ctrl-D typed before the editor started; inside a line it would block further ones */
            continue;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2)
            continue; /* incomplete character */
        if (used == (size_t)-1) {
            memset(&state, 0, sizeof state);
            *out = L'?';
        }
        return 1;
    }
}

enum tutti_status chat_line_new(struct chat_line **out, struct tutti_error *err)
{
    const char *term = getenv("TERM");
    struct chat_line *reader = calloc(1, sizeof *reader);
    if (!reader)
        return error_set(err, TUTTI_E_MEMORY, "out of memory");
    reader->is_interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (reader->is_interactive && term && strcmp(term, "dumb") != 0) {
        setlocale(LC_CTYPE, "");
        if (MB_CUR_MAX == 1) /* "C": the input is UTF-8 nevertheless */
            setlocale(LC_CTYPE, "C.UTF-8");
        reader->editor = el_init("tutti", stdin, stdout, stderr);
    }
    if (reader->editor) {
        el_set(reader->editor, EL_CLIENTDATA, reader);
        el_set(reader->editor, EL_PROMPT, prompt);
        el_set(reader->editor, EL_EDITOR, "emacs");
        el_set(reader->editor, EL_SIGNAL, 0);
        /* Ctrl-C must not discard pending output, neither while editing nor between lines. */
        el_set(reader->editor, EL_SETTY, "-d", "+noflsh", NULL);
        el_set(reader->editor, EL_SETTY, "-x", "+noflsh", NULL);
        el_set(reader->editor, EL_GETCFN, read_character);
        open_history(reader);
        el_source(reader->editor, NULL); /* ~/.editrc, if it exists */
    }
    *out = reader;
    return TUTTI_OK;
}

void chat_line_free(struct chat_line *reader)
{
    if (!reader)
        return;
    close_history(reader);
    if (reader->editor)
        el_end(reader->editor);
    free(reader->history_path);
    buf_clear(&reader->input);
    free(reader);
}

bool chat_line_is_interactive(const struct chat_line *reader)
{
    return reader->is_interactive;
}

bool chat_line_was_quoted(const struct chat_line *reader)
{
    return reader->was_quoted;
}

/* ---- reading ---- */

/* Reads one line without an editor, or the rest before the end of the input; *n_bytes 0: the end,
 * or a signal. */
static enum tutti_status read_without_terminal(struct chat_line *reader, const char **line, size_t *n_bytes,
                                               struct tutti_error *err)
{
    struct buf *input = &reader->input;
    *n_bytes = 0;
    if (!buf_reserve(input, CHUNK_BYTES))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for a line");
    memmove(input->bytes, input->bytes + reader->n_taken, input->n_bytes - reader->n_taken);
    buf_truncate(input, input->n_bytes - reader->n_taken);
    reader->n_taken = 0;
    for (size_t n_seen = 0;;) {
        const char *end = memchr(input->bytes + n_seen, '\n', input->n_bytes - n_seen);
        if (end)
            reader->n_taken = (size_t)(end + 1 - input->bytes);
        if (end)
            break;
        n_seen = input->n_bytes;
        if (!interrupt_wait_input(STDIN_FILENO))
            return TUTTI_OK;
        if (!buf_reserve(input, CHUNK_BYTES))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for a line of %zu bytes", n_seen);
        ssize_t n = read(STDIN_FILENO, input->bytes + n_seen, CHUNK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, TUTTI_E_IO, "standard input: %s", strerror(errno));
        if (n == 0) {
            reader->n_taken = n_seen;
            break;
        }
        input->n_bytes += (size_t)n;
    }
    *line = input->bytes;
    *n_bytes = reader->n_taken;
    return TUTTI_OK;
}

/* One line; *line is valid until the next one is read. */
static enum tutti_status read_line(struct chat_line *reader, const char **line, size_t *n_bytes,
                                   enum chat_line_end *end, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (reader->editor) {
        int n = 0;
        el_resize(reader->editor);
        *line = el_gets(reader->editor, &n);
        *n_bytes = *line && n > 0 ? (size_t)n : 0;
    } else {
        if (reader->is_interactive) {
            fputs(reader->is_continued ? ". " : "> ", stdout);
            fflush(stdout);
        }
        st = read_without_terminal(reader, line, n_bytes, err);
    }
    *end = interrupt_is_pending() ? CHAT_LINE_INTERRUPTED : *n_bytes == 0 ? CHAT_LINE_EOF : CHAT_LINE_READ;
    return st;
}

static bool has_more(const struct chat_line *reader)
{
    struct pollfd fd = { .fd = STDIN_FILENO, .events = POLLIN };
    return reader->editor && poll(&fd, 1, PASTE_WAIT_MS) == 1 && (fd.revents & POLLIN) != 0;
}

static void remember(struct chat_line *reader, const struct buf *text)
{
    HistEvent event;
    if (reader->history && text->n_bytes > 0 && text->bytes[strspn(text->bytes, " \t\n")] != '\0')
        history(reader->history, &event, H_ENTER, text->bytes);
}

/* Takes the quotes off a line of a quoted message. *is_open: whether its last quotes are to come, before and after
 * the line. */
static void unquote(struct chat_line *reader, const char **line, size_t *n_bytes, bool *is_open)
{
    static const char QUOTES[] = "\"\"\"";
    enum { N_QUOTES = sizeof QUOTES - 1 };
    if (!reader->is_continued && *n_bytes >= N_QUOTES && memcmp(*line, QUOTES, N_QUOTES) == 0) {
        *is_open = reader->was_quoted = true;
        *line += N_QUOTES;
        *n_bytes -= N_QUOTES;
    }
    if (*is_open && *n_bytes >= N_QUOTES && memcmp(*line + *n_bytes - N_QUOTES, QUOTES, N_QUOTES) == 0) {
        *is_open = false;
        *n_bytes -= N_QUOTES;
    }
}

enum tutti_status chat_line_read(struct chat_line *reader, struct buf *out, enum chat_line_end *end,
                                 struct tutti_error *err)
{
    bool is_open = false;
    buf_truncate(out, 0);
    reader->is_continued = reader->was_quoted = false;
    for (;;) {
        const char *line = NULL;
        size_t n_bytes = 0;
        enum tutti_status st = read_line(reader, &line, &n_bytes, end, err);
        if (st != TUTTI_OK)
            return st;
        if (*end == CHAT_LINE_EOF && out->n_bytes > 0)
            *end = CHAT_LINE_READ; /* the end of the input ends the message too */
        else if (*end != CHAT_LINE_READ)
            return TUTTI_OK;
        bool is_whole = n_bytes > 0 && line[n_bytes - 1] == '\n';
        n_bytes -= is_whole;
        n_bytes -= n_bytes > 0 && line[n_bytes - 1] == '\r';
        unquote(reader, &line, &n_bytes, &is_open);
        bool goes_on = is_whole && !reader->was_quoted && n_bytes > 0 && line[n_bytes - 1] == '\\';
        if (!buf_add(out, line, n_bytes - goes_on))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for a line of %zu bytes", n_bytes);
        bool is_end = reader->was_quoted ? !is_open : !goes_on && !has_more(reader);
        if (!is_whole || is_end)
            break;
        bool opens = reader->was_quoted && !reader->is_continued &&
                     n_bytes == 0; /* nothing after the first quotes */
        if (!opens && !buf_add(out, "\n", 1))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for a line of %zu bytes", n_bytes);
        reader->is_continued = true;
    }
    if (reader->was_quoted && out->n_bytes > 0 && out->bytes[out->n_bytes - 1] == '\n')
        buf_truncate(out, out->n_bytes - 1); /* the last quotes were on a line of their own */
    remember(reader, out);
    return TUTTI_OK;
}
