/* Command-line options: one table per command feeds the parser, --help and docs/cli.md.
 *
 * A command keeps its values in its own struct; each option names the member that it fills.
 * Options that several commands share form a group, which a command includes as a member of its
 * struct. A command gets only values that were checked for kind and range. An option that was not
 * given has the table's initial value, or else false, NULL, no elements, or a number that cannot be
 * given: 0 if that is out of range, or else -1, or NaN. */
#ifndef TUTTI_CLI_OPTIONS_OPTIONS_H
#define TUTTI_CLI_OPTIONS_OPTIONS_H

#include "base/buf.h"
#include "base/error.h"
#include "base/limits.h"

enum { OPTION_MAX_TEXTS = LIMIT_STOPS, OPTION_MAX_INTS = 64 };

struct option_texts {
    const char *texts[OPTION_MAX_TEXTS];
    int n;
};

struct option_ints {
    int64_t ints[OPTION_MAX_INTS];
    int n;
};

enum option_kind {
    OPTION_FLAG,   /* takes no value */
    OPTION_INT,    /* a whole number */
    OPTION_SIZE,   /* bytes, with an optional suffix K, M, G or T */
    OPTION_FLOAT,  /* a finite number */
    OPTION_TEXT,   /* anything but the empty text */
    OPTION_CHOICE, /* one of a list of words */
    OPTION_TEXTS,  /* the same, may be repeated */
    OPTION_INTS,   /* whole numbers separated by commas */
};

struct option {
    const char *name;           /* without the dashes */
    size_t field;               /* offset of the member it fills */
    size_t n_bytes;             /* size of that member */
    const char *value;          /* name of the value in help, "N"; NULL for flags */
    double min, max;            /* of numbers; both 0: not negative, no other bounds but the type's */
    const char *const *choices; /* ends with NULL; upper case is accepted */
    const char *const *aliases; /* of choices: pairs of an alias and a choice; ends with NULL. NULL: none */
    const char *initial;        /* value if not given; NULL: see above */
    const char *needs;          /* the option without which this one has no effect; NULL: none */
    const char *excludes;       /* the option with which this one has no effect; NULL: none */
    const char *help;           /* a phrase without a full stop */
    enum option_kind kind;
    char letter;       /* '\0': none */
    bool above_min;    /* min itself is not allowed */
    bool is_index;     /* of a choice: the member is an enum with the choices in their order */
    bool may_be_empty; /* of a text that may be repeated */
    bool may_number;   /* of a choice: it may be followed by a colon and a number */
};

/* A row of a table: the command's struct and the member that the option fills, its name, the name of its
 * value, its help, and then what else it has: .min = 1, .letter = 'p'. A member of another type does not
 * compile.
 * NOLINTBEGIN(bugprone-macro-parentheses): C_TYPE is a type */
#define OPTION_ROW(kind_, C_TYPE, type, member, name_, value_, ...)                                          \
    {                                                                                                        \
        .kind = (kind_), .field = offsetof(type, member) + _Generic(((type *)0)->member, C_TYPE : 0),        \
        .n_bytes = sizeof(((type *)0)->member), .name = (name_), .value = (value_), .help = __VA_ARGS__      \
    }
/* NOLINTEND(bugprone-macro-parentheses) */
#define FLAG_OPTION(type, member, name, ...)                                                                 \
    OPTION_ROW(OPTION_FLAG, bool, type, member, name, NULL, __VA_ARGS__)
#define INT_OPTION(...)   OPTION_ROW(OPTION_INT, int, __VA_ARGS__)
#define INT64_OPTION(...) OPTION_ROW(OPTION_INT, int64_t, __VA_ARGS__)
#define SIZE_OPTION(...)  OPTION_ROW(OPTION_SIZE, uint64_t, __VA_ARGS__)
#define FLOAT_OPTION(...) OPTION_ROW(OPTION_FLOAT, double, __VA_ARGS__)
#define TEXT_OPTION(...)  OPTION_ROW(OPTION_TEXT, const char *, __VA_ARGS__)
#define TEXTS_OPTION(...) OPTION_ROW(OPTION_TEXTS, struct option_texts, __VA_ARGS__)
#define INTS_OPTION(...)  OPTION_ROW(OPTION_INTS, struct option_ints, __VA_ARGS__)
#define CHOICE_OPTION(type, member, name, value, choices_, ...)                                              \
    OPTION_ROW(OPTION_CHOICE, const char *, type, member, name, value, __VA_ARGS__, .choices = (choices_))
/* The choices are in the order of the enum. */
#define ENUM_OPTION(type, member, name, value, choices_, ...)                                                \
    OPTION_ROW(OPTION_CHOICE, unsigned, type, member, name, value, __VA_ARGS__, .choices = (choices_),       \
               .is_index = true)

struct option_group {
    const char *title;            /* in help */
    const struct option *options; /* ends with a name of NULL */
    size_t base;                  /* offset of the member that holds the group's values */
};

struct option_set {
    const char *operands; /* for help: "MODEL [TEXT]" */
    int min_operands, max_operands;
    const char *missing;               /* what to say when operands are missing */
    const struct option_group *groups; /* ends with a title of NULL */
};

/* Fills values (all of the command's struct) from argv[0..argc-1], the arguments after the
 * command. operands: argc + 1 pointers, all NULL before. Options and operands may be mixed; "--"
 * ends the options. *wants_help: --help or -h was given; nothing else was then checked.
 * TUTTI_E_ARGUMENT: the text names the option, what was found and what was expected, or suggests
 * the nearest option; param is the name of an unknown option. */
MUST_CHECK enum tutti_status options_parse(const struct option_set *set, int argc, char *const *argv,
                                           void *values, const char **operands, bool *wants_help,
                                           struct tutti_error *err);

/* Whether there is an option of this name. */
bool options_has(const struct option_set *set, const char *name);

/* ---- single options; values: the struct of the option's table ---- */

/* By the name, in which '_' counts as '-'. NULL: there is none. options ends with a name of NULL. */
const struct option *options_find(const struct option *options, const char *name);

/* Whether the value differs from its default. */
bool option_is_given(const struct option *o, const void *values);
void option_reset(const struct option *o, void *values); /* sets the default */

/* Sets the value that text says, which must live as long as values where the option is a text. A flag takes
 * true or false. shown: the option in messages. TUTTI_E_ARGUMENT: the value is unchanged. */
MUST_CHECK enum tutti_status option_set_text(const struct option *o, void *values, const char *shown,
                                             const char *text, struct tutti_error *err);

/* Copies all values that are given. */
void options_copy_given(const struct option *options, void *to, const void *from);

/* ---- the command line ---- */

/* The first option of the list whose value differs from its default, except those named in
 * allowed (which ends with NULL). NULL: none. values: the struct that options_parse() filled;
 * base: of the group. */
const struct option *options_first_given(const struct option *options, const void *values, size_t base,
                                         const char *const *allowed);

/* The word of the list (which ends with NULL) that is nearest to word, which was probably
 * misspelled. NULL: none is near. */
const char *options_nearest(const char *word, const char *const *words);

/* Appends the options as help text, as Markdown tables, or as man(7) source. False: out of
 * memory. */
MUST_CHECK bool options_help(const struct option_set *set, struct buf *out);
MUST_CHECK bool options_markdown(const struct option_set *set, struct buf *out);
MUST_CHECK bool options_man(const struct option_set *set, struct buf *out);

/* Appends text with lines broken at blanks, so that none is wider than 80 columns. Lines after
 * the first begin with indent blanks. column: where the first line starts. False: out of memory. */
MUST_CHECK bool options_wrap(struct buf *out, const char *text, int column, int indent);

#endif
