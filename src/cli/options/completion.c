/* Generates completion for bash and zsh: every option, the choices of its value, and file names. */
#include "cli/options/manual.h"

#include <string.h>

static bool is_file(const struct option *o)
{
    return o->value && (strcmp(o->value, "FILE") == 0 || strcmp(o->value, "PATH") == 0);
}

static bool takes_files(const struct command *command)
{
    return strstr(command->options.operands, "MODEL") || strstr(command->options.operands, "FILE");
}

/* ---- bash ---- */

/* "--name" and "-n" of each option. */
static bool add_names(const struct option_group *groups, struct buf *out)
{
    bool ok = buf_add_string(out, "--help -h");
    for (const struct option_group *group = groups; ok && group->title; group++)
        for (const struct option *o = group->options; ok && o->name; o++)
            ok = buf_printf(out, " --%s", o->name) && (!o->letter || buf_printf(out, " -%c", o->letter));
    return ok;
}

/* The completion of an option's value. */
static bool add_bash_value(const struct option *o, struct buf *out)
{
    bool ok = buf_printf(out, "        --%s", o->name) &&
              (!o->letter || buf_printf(out, " | -%c", o->letter)) && buf_add_string(out, ") ");
    if (is_file(o))
        return ok && buf_add_string(out, "_tutti_files ;;\n");
    if (o->kind != OPTION_CHOICE)
        return ok && buf_add_string(out, ";;\n");
    ok = ok && buf_add_string(out, "_tutti_words \"");
    for (const char *const *choice = o->choices; ok && *choice; choice++)
        ok = buf_printf(out, "%s%s", choice == o->choices ? "" : " ", *choice);
    return ok && buf_add_string(out, "\" ;;\n");
}

static bool add_bash_command(const struct command *command, struct buf *out)
{
    bool ok = buf_printf(out, "    %s)\n        case $before in\n", command->name);
    for (const struct option_group *group = command->options.groups; ok && group->title; group++)
        for (const struct option *o = group->options; ok && o->name; o++)
            if (o->kind != OPTION_FLAG)
                ok = add_bash_value(o, out);
    return ok && buf_add_string(out, "        *) _tutti_rest \"") &&
           add_names(command->options.groups, out) &&
           buf_printf(out, "\" %s ;;\n        esac\n        ;;\n", takes_files(command) ? "files" : "''");
}

static bool add_command_names(const struct command_list *list, struct buf *out)
{
    bool ok = true;
    for (int i = 0; ok && i < list->n; i++)
        ok = buf_printf(out, "%s%s", i ? " " : "", list->commands[i]->name);
    return ok;
}

bool completion_bash(const struct command_list *list, struct buf *out)
{
    bool ok = buf_add_string(
                  out, "# bash completion for tutti. Made by: tutti help --completion bash\n\n"
                       "_tutti_words()\n{\n"
                       "    mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\")\n}\n\n"
                       "_tutti_files()\n{\n"
                       "    compopt -o filenames 2>/dev/null\n"
                       "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n}\n\n"
                       "# An option, or else an operand.\n"
                       "_tutti_rest()\n{\n"
                       "    if [[ $current == -* ]]; then\n        _tutti_words \"$1\"\n"
                       "    elif [[ $2 == files ]]; then\n        _tutti_files\n    fi\n}\n\n"
                       "_tutti()\n{\n"
                       "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
                       "    COMPREPLY=()\n"
                       "    # bash parts --name=VALUE at the sign.\n"
                       "    if [[ $current == = ]]; then\n        current=\n"
                       "    elif [[ $before == = && $COMP_CWORD -gt 2 ]]; then\n"
                       "        before=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
                       "    if [[ $COMP_CWORD -eq 1 ]]; then\n        _tutti_words \"") &&
              add_command_names(list, out) &&
              buf_add_string(out, " help version\"\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n"
                                  "    help) [[ $COMP_CWORD -eq 2 ]] && _tutti_words \"") &&
              add_command_names(list, out) && buf_add_string(out, "\" ;;\n");
    for (int i = 0; ok && i < list->n; i++)
        ok = add_bash_command(list->commands[i], out);
    return ok && buf_add_string(out, "    esac\n}\n\ncomplete -F _tutti tutti\n");
}

/* ---- zsh ---- */

/* Adds text in quotes; characters special to _arguments and _describe are escaped. */
static bool add_quoted(struct buf *out, const char *text)
{
    bool ok = true;
    for (; ok && *text; text++)
        ok = *text == '\''            ? buf_add_string(out, "'\\''")
             : strchr("\\[]:", *text) ? buf_printf(out, "\\%c", *text)
             : *text == '\n'          ? buf_add_string(out, " ")
                                      : buf_add(out, text, 1);
    return ok;
}

static bool add_zsh_action(const struct option *o, struct buf *out)
{
    bool ok = buf_add_string(out, ":") && add_quoted(out, o->value) && buf_add_string(out, ":");
    if (is_file(o))
        return ok && buf_add_string(out, "_files");
    if (o->kind != OPTION_CHOICE)
        return ok && buf_add_string(out, " ");
    ok = ok && buf_add_string(out, "(");
    for (const char *const *choice = o->choices; ok && *choice; choice++)
        ok = buf_printf(out, "%s%s", choice == o->choices ? "" : " ", *choice);
    return ok && buf_add_string(out, ")");
}

/* '(-n --name)'{-n,--name=}'[help]:VALUE:action', the part in braces is omitted without a letter. */
static bool add_zsh_option(const struct option *o, struct buf *out)
{
    bool repeats = o->kind == OPTION_TEXTS;
    const char *takes = o->kind == OPTION_FLAG ? "" : "=", *letter_takes = o->kind == OPTION_FLAG ? "" : "+";
    bool ok = buf_add_string(out, " \\\n            ");
    if (o->letter && repeats)
        ok = ok && buf_printf(out, "'*'{-%c%s,--%s%s}'", o->letter, letter_takes, o->name, takes);
    else if (o->letter)
        ok = ok && buf_printf(out, "'(-%c --%s)'{-%c%s,--%s%s}'", o->letter, o->name, o->letter, letter_takes,
                              o->name, takes);
    else
        ok = ok && buf_printf(out, "'%s--%s%s", repeats ? "*" : "", o->name, takes);
    ok = ok && buf_add_string(out, "[") && add_quoted(out, o->help) && buf_add_string(out, "]");
    if (o->value)
        ok = ok && add_zsh_action(o, out);
    return ok && buf_add_string(out, "'");
}

static bool add_zsh_command(const struct command *command, struct buf *out)
{
    bool ok = buf_printf(out, "    %s)\n        _arguments -s -S '(- *)'{-h,--help}'[print help and end]'",
                         command->name);
    for (const struct option_group *group = command->options.groups; ok && group->title; group++)
        for (const struct option *o = group->options; ok && o->name; o++)
            ok = add_zsh_option(o, out);
    if (*command->options.operands)
        ok = ok && buf_add_string(out, " \\\n            '*:") &&
             add_quoted(out, command->options.operands) &&
             buf_printf(out, ":%s'", takes_files(command) ? "_files" : " ");
    return ok && buf_add_string(out, "\n        ;;\n");
}

bool completion_zsh(const struct command_list *list, struct buf *out)
{
    bool ok = buf_add_string(out, "#compdef tutti\n# Made by: tutti help --completion zsh\n\n_tutti()\n{\n"
                                  "    local -a commands\n    commands=(\n");
    for (int i = 0; ok && i < list->n; i++)
        ok = buf_printf(out, "        '%s:", list->commands[i]->name) &&
             add_quoted(out, list->commands[i]->summary) && buf_add_string(out, "'\n");
    ok = ok &&
         buf_add_string(out, "        'help:explain a command'\n        'version:print the version'\n    )\n"
                             "    if (( CURRENT == 2 )); then\n"
                             "        _describe -t commands command commands\n        return\n    fi\n"
                             "    shift words\n    (( CURRENT-- ))\n"
                             "    case $words[1] in\n"
                             "    help)\n"
                             "        (( CURRENT == 2 )) && _describe -t commands command commands\n"
                             "        ;;\n");
    for (int i = 0; ok && i < list->n; i++)
        ok = add_zsh_command(list->commands[i], out);
    return ok && buf_add_string(out, "    esac\n}\n\n_tutti \"$@\"\n");
}
