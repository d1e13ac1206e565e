/* Generates man pages in man(7) format. */
#include "cli/options/manual.h"

#include <string.h>

/* Text at the start of a line: requests and escapes are quoted, and hyphens can be copied into a
 * shell. */
bool manual_text(struct buf *out, const char *text)
{
    bool ok = true, begins = true;
    for (; ok && *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            ok = buf_add_string(out, "\\&");
        begins = *text == '\n';
        ok = ok && (*text == '\\'  ? buf_add_string(out, "\\e")
                    : *text == '-' ? buf_add_string(out, "\\-")
                    : *text == '^' ? buf_add_string(out, "\\(ha")
                    : *text == '~' ? buf_add_string(out, "\\(ti")
                    : *text == '`' ? buf_add_string(out, "\\(ga")
                                   : buf_add(out, text, 1));
    }
    return ok;
}

/* name: "tutti", or "tutti-" before the suffix, a command. */
static bool add_title(const char *name, const char *suffix, const char *summary, struct buf *out)
{
    bool ok = buf_printf(out, ".\\\" Made by: tutti help --man\n.TH TUTTI%s", *suffix ? "\\-" : "");
    for (const char *c = suffix; ok && *c; c++)
        ok = buf_printf(out, "%c", *c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    return ok && buf_printf(out, " 1 \"\" \"tutti %s\" \"User Commands\"\n.SH NAME\n", tutti_version()) &&
           manual_text(out, name) && manual_text(out, suffix) && buf_add_string(out, " \\- ") &&
           manual_text(out, summary) && buf_add_string(out, "\n");
}

/* An empty line begins a paragraph. */
static bool add_paragraphs(const char *text, struct buf *out)
{
    bool ok = true;
    while (ok && *text) {
        const char *end = strstr(text, "\n\n");
        size_t n = end ? (size_t)(end - text) : strlen(text);
        struct buf paragraph = { 0 };
        ok = buf_add(&paragraph, text, n) && manual_text(out, paragraph.bytes) && buf_add_string(out, "\n");
        buf_clear(&paragraph);
        text += n;
        text += strspn(text, "\n");
        if (ok && *text)
            ok = buf_add_string(out, ".PP\n");
    }
    return ok;
}

static const char EXIT_STATUS[] = ".SH EXIT STATUS\n"
                                  "0 success, 1 failure, 2 wrong arguments, 130 interrupted.\n";

bool manual_overview(const struct command_list *list, struct buf *out)
{
    bool ok = add_title("tutti", "", "language models for many users at once", out) &&
              buf_add_string(out,
                             ".SH SYNOPSIS\n.B tutti\n.I COMMAND\n.RI [ ARGUMENTS ]\n.SH DESCRIPTION\n") &&
              add_paragraphs(list->introduction, out) && buf_add_string(out, ".SH COMMANDS\n");
    for (int i = 0; ok && i < list->n; i++)
        ok = buf_printf(out, ".TP\n.BR tutti\\-%s (1)\n", list->commands[i]->name) &&
             manual_text(out, list->commands[i]->summary) && buf_add_string(out, "\n");
    return ok && buf_add_string(out, ".PP\n") && add_paragraphs(list->help, out) &&
           buf_add_string(out,
                          ".PP\n"
                          "Options and operands may be in any order; \\fB\\-\\-name\\fR \\fIVALUE\\fR and "
                          "\\fB\\-\\-name=\\fIVALUE\\fR are the same, and \\fB\\-\\-\\fR ends the options. "
                          "Sizes take the binary suffixes K, M, G and T.\n") &&
           buf_add_string(out, EXIT_STATUS);
}

bool manual_command(const struct command *command, struct buf *out)
{
    bool ok = add_title("tutti-", command->name, command->summary, out) &&
              buf_printf(out, ".SH SYNOPSIS\n.B tutti %s\n", command->name);
    if (*command->options.operands)
        ok = ok && buf_add_string(out, ".I ") && manual_text(out, command->options.operands) &&
             buf_add_string(out, "\n");
    ok = ok && buf_add_string(out, ".RI [ OPTIONS ]\n.SH DESCRIPTION\n") &&
         add_paragraphs(command->about, out) && buf_add_string(out, ".SH OPTIONS\n") &&
         options_man(&command->options, out);
    if (command->example)
        ok = ok && buf_add_string(out, ".SH EXAMPLES\n.EX\n") && manual_text(out, command->example) &&
             buf_add_string(out, "\n.EE\n");
    return ok && buf_add_string(out, EXIT_STATUS) && buf_add_string(out, ".SH SEE ALSO\n.BR tutti (1)\n");
}
