/* Formats the option table for --help, docs/cli.md and man pages. */
#include "cli/options/manual.h"
#include "cli/options/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 80, HELP_COLUMN = 30 };

bool options_wrap(struct buf *out, const char *text, int column, int indent)
{
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)n > WIDTH) {
            if (!buf_printf(out, "\n%*s", indent, ""))
                return false;
            column = indent;
        } else if (column > indent) {
            if (!buf_add_string(out, " "))
                return false;
            column++;
        }
        if (!buf_add(out, text, n))
            return false;
        column += (int)n;
        text += n;
        for (; *text == ' ' || *text == '\n'; text++)
            if (*text == '\n') {
                if (!buf_printf(out, "\n%*s", text[1] == '\n' ? 0 : indent, ""))
                    return false;
                column = indent;
            }
    }
    return true;
}

/* "-n, --max-tokens N" */
static bool add_spelling(const struct option *o, struct buf *out)
{
    bool ok = o->letter ? buf_printf(out, "-%c, --%s", o->letter, o->name) : buf_printf(out, "--%s", o->name);
    return ok && (!o->value || buf_printf(out, " %s", o->value));
}

/* The help phrase, its range or choices, and its initial value. */
static bool add_meaning(const struct option *o, struct buf *out)
{
    bool ok = buf_add_string(out, o->help);
    bool is_number = o->kind == OPTION_INT || o->kind == OPTION_FLOAT || o->kind == OPTION_INTS;
    if (o->kind == OPTION_CHOICE) {
        ok = ok && buf_add_string(out, ": ");
        for (const char *const *choice = o->choices; ok && *choice; choice++)
            ok = buf_printf(out, "%s%s", choice == o->choices ? "" : choice[1] ? ", " : " or ", *choice);
    }
    bool has_range = is_number && (o->min != 0 || o->max != 0);
    if (has_range && isinf(o->max))
        ok = ok && buf_printf(out, " (%s %.15g", o->above_min ? "above" : "at least", o->min);
    else if (has_range)
        ok = ok && buf_printf(out, " (%s%.15g to %.15g", o->above_min ? "above " : "", o->min, o->max);
    if (o->initial)
        ok = ok && buf_printf(out, "%sdefault %s", has_range ? "; " : " (", o->initial);
    if (has_range || o->initial)
        ok = ok && buf_add_string(out, ")");
    if (o->kind == OPTION_TEXTS)
        ok = ok && buf_add_string(out, "; may be repeated");
    return ok;
}

static bool add_help_line(const struct option *o, struct buf *out)
{
    struct buf meaning = { 0 };
    size_t start = out->n_bytes;
    bool ok = buf_add_string(out, o->letter ? "  " : "      ") && add_spelling(o, out);
    int column = (int)(out->n_bytes - start);
    if (ok && column + 2 > HELP_COLUMN)
        ok = buf_printf(out, "\n%*s", HELP_COLUMN, "");
    else
        ok = ok && buf_printf(out, "%*s", HELP_COLUMN - column, "");
    ok = ok && add_meaning(o, &meaning) && options_wrap(out, meaning.bytes, HELP_COLUMN, HELP_COLUMN) &&
         buf_add_string(out, "\n");
    buf_clear(&meaning);
    return ok;
}

static const struct option HELP_OPTION = { .name = "help", .letter = 'h', .help = "print this help" };

bool options_help(const struct option_set *set, struct buf *out)
{
    bool ok = true;
    for (const struct option_group *group = set->groups; ok && group->title; group++) {
        ok = buf_printf(out, "%s%s:\n", group == set->groups ? "" : "\n", group->title);
        for (const struct option *o = group->options; ok && o->name; o++)
            ok = add_help_line(o, out);
        if (ok && group == set->groups)
            ok = add_help_line(&HELP_OPTION, out);
    }
    return ok;
}

static bool add_escaped(struct buf *out, const char *text)
{
    bool ok = true;
    for (; ok && *text; text++)
        ok = *text == '|'                   ? buf_add_string(out, "\\|")
             : *text == '<'                 ? buf_add_string(out, "&lt;")
             : *text == '*' || *text == '_' ? buf_printf(out, "\\%c", *text)
                                            : buf_add(out, text, 1);
    return ok;
}

static bool add_markdown_row(const struct option *o, struct buf *out)
{
    struct buf meaning = { 0 };
    bool ok = buf_add_string(out, "| `") && add_spelling(o, out) && buf_add_string(out, "` | ") &&
              add_meaning(o, &meaning) && add_escaped(out, meaning.bytes) && buf_add_string(out, " |\n");
    buf_clear(&meaning);
    return ok;
}

bool options_markdown(const struct option_set *set, struct buf *out)
{
    bool ok = true;
    for (const struct option_group *group = set->groups; ok && group->title; group++) {
        ok = buf_printf(out, "\n%s:\n\n| option | meaning |\n| --- | --- |\n", group->title);
        for (const struct option *o = group->options; ok && o->name; o++)
            ok = add_markdown_row(o, out);
    }
    return ok;
}

static bool add_man_option(const struct option *o, struct buf *out)
{
    struct buf meaning = { 0 };
    bool ok = buf_add_string(out, ".TP\n") && (!o->letter || buf_printf(out, "\\fB\\-%c\\fR, ", o->letter)) &&
              buf_add_string(out, "\\fB\\-\\-") && manual_text(out, o->name) && buf_add_string(out, "\\fR") &&
              (!o->value ||
               (buf_add_string(out, " \\fI") && manual_text(out, o->value) && buf_add_string(out, "\\fR"))) &&
              buf_add_string(out, "\n") && add_meaning(o, &meaning) && manual_text(out, meaning.bytes) &&
              buf_add_string(out, "\n");
    buf_clear(&meaning);
    return ok;
}

bool options_man(const struct option_set *set, struct buf *out)
{
    bool ok = true;
    for (const struct option_group *group = set->groups; ok && group->title; group++) {
        ok = buf_add_string(out, ".SS ") && manual_text(out, group->title) && buf_add_string(out, "\n");
        for (const struct option *o = group->options; ok && o->name; o++)
            ok = add_man_option(o, out);
        if (ok && group == set->groups)
            ok = add_man_option(&HELP_OPTION, out);
    }
    return ok;
}
