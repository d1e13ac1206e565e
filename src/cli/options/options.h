/* The options of a command, from one table that feeds parsing, --help and docs/cli.md.
 *
 * A command keeps its values in a struct of its own; each option names the member that it fills. Options that several
 * commands share stand in a group, which a command includes as a member of its struct. Every value that reaches a
 * command was checked against its kind and range; what was not given holds the initial value of the table, or where
 * it has none: false, -1, NaN, NULL, no elements. */
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
    OPTION_SIZE,   /* bytes, with K, M, G or T behind them */
    OPTION_FLOAT,  /* a finite number */
    OPTION_TEXT,   /* anything but the empty text */
    OPTION_CHOICE, /* one of a list of words */
    OPTION_TEXTS,  /* may be repeated */
    OPTION_INTS,   /* whole numbers with commas between them */
};

struct option {
    const char *name;           /* without the dashes */
    size_t field;               /* offset of the member it fills */
    const char *value;          /* how help calls the value, "N"; NULL for flags */
    double min, max;            /* of numbers; both 0: no bounds but those of the type, and not negative */
    const char *const *choices; /* ends with NULL; upper case is as good */
    const char *const
        *aliases;        /* of choices: pairs of a word and what it stands for; ends with NULL. NULL: none */
    const char *initial; /* value where it is not given; NULL: see above */
    const char *help;    /* a phrase without a full stop */
    enum option_kind kind;
    char letter;    /* '\0': none */
    bool above_min; /* min itself is not allowed */
};

/* The kind and the member in one; a member of another type does not compile.
 * NOLINTBEGIN(bugprone-macro-parentheses): C_TYPE is a type */
#define OPTION_MEMBER(KIND, C_TYPE, type, member)                                                            \
    .kind = (KIND), .field = offsetof(type, member) + _Generic(((type *)0)->member, C_TYPE : 0)
/* NOLINTEND(bugprone-macro-parentheses) */
#define FLAG_IN(type, member)   OPTION_MEMBER(OPTION_FLAG, bool, type, member)
#define INT_IN(type, member)    OPTION_MEMBER(OPTION_INT, int64_t, type, member)
#define SIZE_IN(type, member)   OPTION_MEMBER(OPTION_SIZE, int64_t, type, member)
#define FLOAT_IN(type, member)  OPTION_MEMBER(OPTION_FLOAT, double, type, member)
#define TEXT_IN(type, member)   OPTION_MEMBER(OPTION_TEXT, const char *, type, member)
#define CHOICE_IN(type, member) OPTION_MEMBER(OPTION_CHOICE, const char *, type, member)
#define TEXTS_IN(type, member)  OPTION_MEMBER(OPTION_TEXTS, struct option_texts, type, member)
#define INTS_IN(type, member)   OPTION_MEMBER(OPTION_INTS, struct option_ints, type, member)

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

/* Fills values (all of the command's struct) from argv[0..argc-1], the words behind the command. operands: room for
 * argc pointers; options and operands may be mixed, and "--" ends the options. *wants_help: --help or -h was among
 * them; nothing else was then checked. TUTTI_E_ARGUMENT: the text names the option, what was found and what was
 * expected, or suggests the option that was meant. */
MUST_CHECK enum tutti_status options_parse(const struct option_set *set, int argc, char *const *argv,
                                           void *values, const char **operands, int *n_operands,
                                           bool *wants_help, struct tutti_error *err);

/* Is there an option of this name? */
bool options_has(const struct option_set *set, const char *name);

/* The first option of the list with another value than it has where it is not given, but for those named in allowed (which ends
 * with NULL); NULL: there is none. values: the struct that options_parse() filled; base: of the group. */
const struct option *options_first_given(const struct option *options, const void *values, size_t base,
                                         const char *const *allowed);

/* The word of the list (which ends with NULL) that word was probably meant to be; NULL: none is near. */
const char *options_nearest(const char *word, const char *const *words);

/* Adds the options as help shows them, as Markdown tables, or in the language of man(7). False: out of memory. */
MUST_CHECK bool options_help(const struct option_set *set, struct buf *out);
MUST_CHECK bool options_markdown(const struct option_set *set, struct buf *out);
MUST_CHECK bool options_man(const struct option_set *set, struct buf *out);

/* Adds text with lines broken at blanks so that none is wider than 80 columns; each line but the first begins with
 * indent blanks; column: where the first one starts. False: out of memory. */
MUST_CHECK bool options_wrap(struct buf *out, const char *text, int column, int indent);

#endif
