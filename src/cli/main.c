/* tutti: the command line. Finds the command, reads its options, reports its error. */
#include "base/system/ending.h"
#include "cli/options/command.h"
#include "cli/options/manual.h"
#include "cli/options/model_path.h"
#include "cli/terminal/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 }; /* 128 + SIGINT, as shells say it */

static const struct command *const COMMANDS[] = {
    &COMMAND_SERVE,   &COMMAND_CHAT,       &COMMAND_GENERATE, &COMMAND_BENCH,    &COMMAND_LOAD,
    &COMMAND_CONVERT, &COMMAND_PERPLEXITY, &COMMAND_INSPECT,  &COMMAND_TOKENIZE, &COMMAND_LOGITS,
    &COMMAND_SHARD,   &COMMAND_RANKS,      &COMMAND_PLAN,     &COMMAND_DEVICES,  &COMMAND_PULL,
    &COMMAND_LIST,    &COMMAND_RM,
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof COMMANDS[0] };

static const char INTRODUCTION[] =
    "tutti serves language models to many users at once.\n"
    "\n"
    "MODEL is a Hugging Face folder (config.json and safetensors), a GGUF "
    "file, or a checkpoint of PyTorch or\n"
    "MindSpore with config.json in the same folder (docs/checkpoints.md). hf:ORG/NAME and\n"
    "ms:ORG/NAME, with :TYPE or :FILE, such as hf:Qwen/Qwen3-0.6B-GGUF:q8_0, are models of a hub, which are\n"
    "downloaded first (docs/hubs.md).\n";

static const char HELP[] =
    "tutti help COMMAND is the same as tutti COMMAND --help. tutti help also prints man pages (--man "
    "[COMMAND]), completion scripts for shells (--completion bash or zsh) and the page docs/cli.md "
    "(--markdown). tutti version is the same as tutti --version.";

static const struct command_list LIST = { COMMANDS, N_COMMANDS, INTRODUCTION, HELP };

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(COMMANDS[i]->name, name) == 0)
            return COMMANDS[i];
    return NULL;
}

static int usage_error(const char *text)
{
    fprintf(stderr, "tutti: %s\n", text);
    return EXIT_USAGE;
}

static int unknown_command(const char *name)
{
    static const char *const MORE[] = { "help", "version" };
    const char *words[N_COMMANDS + sizeof MORE / sizeof *MORE + 1] = { NULL };
    for (int i = 0; i < N_COMMANDS; i++)
        words[i] = COMMANDS[i]->name;
    memcpy(words + N_COMMANDS, MORE, sizeof MORE);
    const char *meant = options_nearest(name, words);
    if (meant && strcmp(meant, name) == 0)
        meant = NULL;
    char text[200];
    snprintf(text, sizeof text, "unknown %s '%.64s'%s%s%s", name[0] == '-' ? "option" : "command", name,
             meant ? "; did you mean '" : "; 'tutti help' lists the commands", meant ? meant : "",
             meant ? "'?" : "");
    return usage_error(text);
}

/* ---- help ---- */

/* Words that the overview explains: they have no help of their own. */
static bool is_in_overview(const char *name)
{
    static const char *const NAMES[] = { "help", "--help", "-h", "version", "--version" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(NAMES[i], name) == 0)
            return true;
    return false;
}

static bool add_overview(struct buf *out)
{
    bool ok = buf_add_string(out, "usage: tutti COMMAND [ARGUMENTS]\n\n") &&
              buf_add_string(out, INTRODUCTION) && buf_add_string(out, "\nCommands:\n");
    for (int i = 0; ok && i < N_COMMANDS; i++)
        ok = buf_printf(out, "  %-10s %s\n", COMMANDS[i]->name, COMMANDS[i]->summary);
    return ok &&
           buf_add_string(out, "  help       explain a command: tutti help COMMAND\n"
                               "  version    print the version\n"
                               "\n") &&
           options_wrap(out, HELP, 0, 0) &&
           buf_add_string(out, "\n\n"
                               "For example:\n"
                               "  tutti serve models/demo\n"
                               "  tutti generate models/demo --chat -p \"What is the capital of France?\"\n");
}

static bool add_usage(const struct command *command, struct buf *out)
{
    const char *operands = command->options.operands;
    return buf_printf(out, "tutti %s%s%s [OPTIONS]\n", command->name, *operands ? " " : "", operands);
}

/* Appends the lines of the example, each after a prefix. */
static bool add_example(const struct command *command, const char *prefix, struct buf *out)
{
    bool ok = true;
    for (const char *line = command->example; ok && *line;) {
        size_t n = strcspn(line, "\n");
        ok = buf_printf(out, "%s%.*s\n", prefix, (int)n, line);
        line += n + (line[n] == '\n');
    }
    return ok;
}

static bool add_help(const struct command *command, struct buf *out)
{
    bool ok = buf_add_string(out, "usage: ") && add_usage(command, out) && buf_add_string(out, "\n") &&
              options_wrap(out, command->about, 0, 0) && buf_add_string(out, "\n\n");
    if (command->example)
        ok = ok && buf_add_string(out, "For example:\n") && add_example(command, "  ", out) &&
             buf_add_string(out, "\n");
    return ok && options_help(&command->options, out);
}

static bool add_markdown(struct buf *out)
{
    bool ok =
        buf_add_string(out, "# The command line\n\n"
                            "This page is what `tutti help --markdown` prints.\n\n") &&
        buf_add_string(out, INTRODUCTION) &&
        buf_add_string(
            out,
            "\nOptions and operands may be in any order; `--name VALUE` and `--name=VALUE` are the same, "
            "and `--` ends the\noptions. Sizes take the binary suffixes K, M, G and T. A byte order mark at "
            "the start of "
            "a text file is\nskipped.\n\n"
            "Standard output has only the result; everything else goes to standard error. Exit status: "
            "0 "
            "success,\n1 failure, 2 wrong arguments, 130 interrupted.\n\n"
            "| command | |\n| --- | --- |\n");
    for (int i = 0; ok && i < N_COMMANDS; i++)
        ok = buf_printf(out, "| [`%s`](#tutti-%s) | %s |\n", COMMANDS[i]->name, COMMANDS[i]->name,
                        COMMANDS[i]->summary);
    ok = ok &&
         buf_add_string(out, "| [`help`](#help-and-version) | explain a command |\n"
                             "| [`version`](#help-and-version) | print the version |\n"
                             "\n## Help and version\n\n```\n"
                             "tutti help [COMMAND]\n"
                             "tutti help --man [COMMAND]\n"
                             "tutti help --completion bash|zsh\n"
                             "tutti help --markdown\n"
                             "tutti version\n```\n\n") &&
         buf_printf(out, "%s\n", HELP);
    for (int i = 0; ok && i < N_COMMANDS; i++) {
        ok = buf_printf(out, "\n## tutti %s\n\n```\n", COMMANDS[i]->name) && add_usage(COMMANDS[i], out) &&
             buf_printf(out, "```\n\n%s\n", COMMANDS[i]->about);
        if (COMMANDS[i]->example)
            ok = ok && buf_add_string(out, "\n```sh\n") && add_example(COMMANDS[i], "", out) &&
                 buf_add_string(out, "```\n");
        ok = ok && options_markdown(&COMMANDS[i]->options, out);
    }
    return ok;
}

/* Prints and frees text; ok: false: out of memory. */
static int print(struct buf *text, bool ok)
{
    struct tutti_error err = { 0 };
    if (!ok) {
        buf_clear(text);
        usage_error("out of memory");
        return EXIT_FAILURE;
    }
    output_write(text->bytes, text->n_bytes);
    buf_clear(text);
    if (output_flush(&err) == TUTTI_OK)
        return EXIT_SUCCESS;
    if (err.text[0] != '\0')
        usage_error(err.text);
    return EXIT_FAILURE;
}

/* help --man [COMMAND]: for the system's man pages. */
static int help_man(int argc, char **argv)
{
    const struct command *command = argc > 0 ? find_command(argv[0]) : NULL;
    struct buf text = { 0 };
    if (argc > 0 && !command && !is_in_overview(argv[0]))
        return unknown_command(argv[0]);
    return print(&text, command ? manual_command(command, &text) : manual_overview(&LIST, &text));
}

/* help --completion SHELL */
static int help_completion(int argc, char **argv)
{
    struct buf text = { 0 };
    if (argc > 0 && strcmp(argv[0], "bash") == 0)
        return print(&text, completion_bash(&LIST, &text));
    if (argc > 0 && strcmp(argv[0], "zsh") == 0)
        return print(&text, completion_zsh(&LIST, &text));
    return usage_error("help --completion: expected bash or zsh");
}

static int help(int argc, char **argv)
{
    struct buf text = { 0 };
    bool is_man = argc > 0 && strcmp(argv[0], "--man") == 0;
    bool is_completion = argc > 0 && strcmp(argv[0], "--completion") == 0;
    if (argc > 1 + (is_man || is_completion))
        return usage_error("help: expected one command at most");
    if (is_man)
        return help_man(argc - 1, argv + 1);
    if (is_completion)
        return help_completion(argc - 1, argv + 1);
    if (argc == 0 || is_in_overview(argv[0]))
        return print(&text, add_overview(&text));
    if (strcmp(argv[0], "--markdown") == 0)
        return print(&text, add_markdown(&text));
    const struct command *command = find_command(argv[0]);
    return command ? print(&text, add_help(command, &text)) : unknown_command(argv[0]);
}

static int version(void)
{
    struct buf text = { 0 };
    return print(&text, buf_printf(&text, "tutti %s\n", tutti_version()));
}

/* ---- running ---- */

/* The library's fields, under the names of the options that fill them. */
static const struct {
    const char *field, *option;
} FIELDS[] = {
    { "max_context", "context" },
    { "kv_bytes", "kv-memory" },
    { "kv_spill_dir", "kv-spill" },
    { "kv_spill_bytes", "kv-spill-size" },
    { "kv_spill_host_bytes", "kv-spill-host" },
    { "chat_format", "chat-format" },
    { "shape", "shape" },
};

/* The option that caused the error, with the words around it, if the error's text does not name
 * it; "": none. */
static void name_option(char *out, size_t size, const struct command *command, const struct tutti_error *err)
{
    *out = '\0';
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (strcmp(FIELDS[i].field, err->param) == 0 && !strstr(err->text, "--") &&
            options_has(&command->options, FIELDS[i].option))
            snprintf(out, size, "--%s: ", FIELDS[i].option);
}

/* Of an unknown option that other commands have: says which. */
static void name_commands(const struct command *command, struct tutti_error *err)
{
    char name[sizeof err->param], others[200] = "";
    size_t n = 0;
    snprintf(name, sizeof name, "%s", err->param);
    if (strncmp(err->text, "unknown option", 14) != 0 || !*name || options_has(&command->options, name))
        return;
    for (int i = 0; i < N_COMMANDS && n < sizeof others; i++)
        if (options_has(&COMMANDS[i]->options, name))
            n += (size_t)snprintf(others + n, sizeof others - n, "%s%s", n > 0 ? ", " : "",
                                  COMMANDS[i]->name);
    if (n > 0)
        error_set_param(err, TUTTI_E_ARGUMENT, name,
                        "--%s: tutti %s has no such option; commands that have it: %s", name, command->name,
                        others);
}

static int report_status(const struct command *command, enum tutti_status st, const struct tutti_error *err)
{
    char option[64];
    name_option(option, sizeof option, command, err);
    if (st == TUTTI_OK)
        return EXIT_SUCCESS;
    if (st == TUTTI_E_CANCELLED)
        return EXIT_INTERRUPTED;
    if (err->text[0] != '\0')
        fprintf(stderr, "tutti: %s%s\n", option, err->text);
    if (st != TUTTI_E_ARGUMENT)
        return EXIT_FAILURE;
    fprintf(stderr, "See: tutti help %s\n", command->name);
    return EXIT_USAGE;
}

/* Puts a path in the place of each MODEL that is the name of one on a hub. paths: the caller's, to be freed. */
static enum tutti_status find_models(const struct command *command, const char **operands, char **paths,
                                     struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < command->n_models && operands[i] && st == TUTTI_OK; i++) {
        st = model_path_find(operands[i], &paths[i], err);
        if (paths[i])
            operands[i] = paths[i];
    }
    return st;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct tutti_error err = { 0 };
    struct buf text = { 0 };
    bool wants_help;
    void *values = calloc(1, command->values_bytes);
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    enum tutti_status st = TUTTI_E_MEMORY;
    int exit_status = EXIT_FAILURE;
    char **paths = calloc((size_t)argc + 1, sizeof *paths);
    if (!values || !operands || !paths) {
        error_set(&err, st, "out of memory");
        exit_status = report_status(command, st, &err);
        goto done;
    }
    st = options_parse(&command->options, argc, argv, values, operands, &wants_help, &err);
    if (st != TUTTI_OK)
        name_commands(command, &err);
    if (st == TUTTI_OK && wants_help) {
        exit_status = print(&text, add_help(command, &text));
        goto done;
    }
    if (st == TUTTI_OK)
        st = find_models(command, operands, paths, &err);
    if (st == TUTTI_OK)
        st = command->run(values, operands, &err);
    if (st == TUTTI_OK)
        st = output_flush(&err);
    exit_status = report_status(command, st, &err);
done:
    for (int i = 0; paths && i < argc; i++)
        free(paths[i]);
    free((void *)paths);
    free((void *)operands);
    free(values);
    return exit_status;
}

/* If a standard stream is closed, the next opened file would get its number and receive output.
 * So such a stream is replaced by one that cannot be used either. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            abort(); /* the lowest free number is this one */
}

int main(int argc, char **argv)
{
    keep_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes a write error, and so does the file size limit */
    signal(SIGXFSZ, SIG_IGN);
    ending_replace(SIG_DFL, ending_default());
    if (argc < 2) {
        struct buf text = { 0 };
        if (add_overview(&text))
            fputs(text.bytes, stderr);
        buf_clear(&text);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0)
        return argc == 2 ? version() : usage_error("version: expected no arguments");
    if (strcmp(name, "--list-devices") == 0) /* as of llama-server */
        name = COMMAND_DEVICES.name;
    const struct command *command = find_command(name);
    return command ? run_command(command, argc - 2, argv + 2) : unknown_command(name);
}
