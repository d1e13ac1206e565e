/* Parses a command's arguments by its option table. Help text: options_help.c. */
#include "cli/options/options.h"

#include "cli/terminal/numbers.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_WORD = 64,   /* longer words are not compared for suggestions */
    MAX_GIVEN = 160, /* more than a command has options */
};

/* ---- suggestions ---- */

/* Damerau-Levenshtein distance with adjacent swaps (optimal string alignment). Words of up to
 * MAX_WORD bytes. */
static int edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int rows[3][MAX_WORD + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[n_b];
}

/* The distance of word from candidate: 0: equal; negative: not near. */
static int distance(const char *word, const char *candidate)
{
    size_t n = strlen(word), m = strlen(candidate);
    if (n == 0 || n > MAX_WORD || m > MAX_WORD)
        return -1;
    if (n >= 2 && n < m && memcmp(word, candidate, n) == 0)
        return 1; /* an abbreviation */
    int d = edit_distance(word, n, candidate, m);
    int allowed = n < 4 ? 1 : n < 8 ? 2 : 3;
    return d <= allowed ? d : -1;
}

/* The nearest word so far. */
struct nearest {
    const char *word; /* NULL: none is near */
    int distance;
};

static void options_consider(struct nearest *nearest, const char *word, const char *candidate)
{
    int d = distance(word, candidate);
    if (d >= 0 && (!nearest->word || d < nearest->distance))
        *nearest = (struct nearest){ candidate, d };
}

const char *options_nearest(const char *word, const char *const *words)
{
    struct nearest nearest = { NULL };
    for (; *words; words++)
        options_consider(&nearest, word, *words);
    return nearest.word;
}

/* Options of vLLM and llama-server that have other names here. */
static const struct {
    const char *theirs, *ours;
} EQUIVALENTS[] = {
    { "max-model-len", "context" },
    { "ctx-size", "context" },
    { "max-num-seqs", "max-seqs" },
    { "parallel", "max-seqs" },
    { "max-num-batched-tokens", "max-batch-tokens" },
    { "batch-size", "max-batch-tokens" },
    { "gpu-memory-utilization", "kv-memory" },
    { "kv-cache-dtype", "kv-type" },
    { "cache-type-k", "kv-type" },
    { "dtype", "type" },
    { "quantization", "type" },
    { "tensor-parallel-size", "tp" },
    { "n-gpu-layers", "gpu-layers" },
    { "n-cpu-moe", "cpu-experts" },
    { "served-model-name", "name" },
    { "alias", "name" },
    { "chat-template", "chat-format" },
    { "chat-template-file", "chat-format" },
    { "api-key", "api-key-file" },
    { "lora-modules", "lora" },
    { "model-draft", "draft" },
    { "speculative-model", "draft" },
    { "ssl-certfile", "tls-cert" },
    { "ssl-cert-file", "tls-cert" },
    { "ssl-keyfile", "tls-key" },
    { "ssl-key-file", "tls-key" },
    { "allowed-origins", "cors-origin" },
};

static const char *nearest_option(const struct option_set *set, const char *name)
{
    struct nearest nearest = { NULL };
    for (size_t i = 0; i < sizeof EQUIVALENTS / sizeof *EQUIVALENTS; i++)
        if (strcmp(EQUIVALENTS[i].theirs, name) == 0 && options_has(set, EQUIVALENTS[i].ours))
            return EQUIVALENTS[i].ours;
    options_consider(&nearest, name, "help");
    for (const struct option_group *group = set->groups; group->title; group++)
        for (const struct option *o = group->options; o->name; o++)
            options_consider(&nearest, name, o->name);
    return nearest.word;
}

/* ---- values ---- */

static bool has_bounds(const struct option *o)
{
    return o->min != 0 || o->max != 0;
}

static bool in_range(const struct option *o, double value)
{
    if (!has_bounds(o))
        return value >= 0;
    return value <= o->max && (o->above_min ? value > o->min : value >= o->min);
}

/* "expected a whole number from 0 to 65535" without "expected". */
static void describe_expected(const struct option *o, char *text, size_t size)
{
    char from[NUMBER_SIZE_BYTES], to[NUMBER_SIZE_BYTES];
    const char *what = o->kind == OPTION_SIZE   ? "a size such as 512M or 4G"
                       : o->kind == OPTION_INT  ? "a whole number"
                       : o->kind == OPTION_INTS ? "whole numbers with commas between them, each"
                                                : "a number";
    if (o->kind == OPTION_SIZE) {
        number_write_size(from, (uint64_t)o->min);
        number_write_size(to, isfinite(o->max) ? (uint64_t)o->max : 0);
    } else {
        snprintf(from, sizeof from, "%.15g", o->min);
        snprintf(to, sizeof to, "%.15g", o->max);
    }
    if (!has_bounds(o) && o->kind == OPTION_INT && o->n_bytes == sizeof(int))
        snprintf(text, size, "%s from 0 to %d", what, INT_MAX);
    else if (!has_bounds(o))
        snprintf(text, size, "%s, 0 or more", what);
    else if (isinf(o->max))
        snprintf(text, size, "%s %s %s", what, o->above_min ? "above" : "of at least", from);
    else
        snprintf(text, size, "%s %s %s%s to %s", what, o->above_min ? "above" : "from", from,
                 o->above_min ? ", up" : "", to);
}

static enum tutti_status wrong_value(const struct option *o, const char *shown, const char *found,
                                     struct tutti_error *err)
{
    char expected[256];
    if (o->kind == OPTION_CHOICE) {
        const char *meant = options_nearest(found, o->choices);
        size_t n = 0;
        for (const char *const *choice = o->choices; *choice && n < sizeof expected; choice++)
            n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%s",
                                  choice == o->choices ? ""
                                  : choice[1]          ? ", "
                                                       : " or ",
                                  *choice);
        return error_set_param(err, TUTTI_E_ARGUMENT, o->name, "%s: found '%s', expected %s%s%s%s", shown,
                               found, expected, meant ? "; did you mean " : "", meant ? meant : "",
                               meant ? "?" : "");
    }
    describe_expected(o, expected, sizeof expected);
    return error_set_param(err, TUTTI_E_ARGUMENT, o->name, "%s: found '%s', expected %s", shown, found,
                           expected);
}

/* Whether text is the choice, or the choice followed by a colon and a number. */
static bool is_numbered(const char *text, const char *choice)
{
    size_t n = strlen(choice);
    return strncmp(text, choice, n) == 0 && text[n] == ':' && text[n + 1] != '\0' &&
           strspn(text + n + 1, "0123456789") == strlen(text + n + 1);
}

static bool read_int(const struct option *o, const char *text, int64_t *out)
{
    return (o->kind == OPTION_SIZE ? number_read_size(text, out) : number_read_int(text, out)) &&
           in_range(o, (double)*out) && (o->n_bytes != sizeof(int) || *out <= INT_MAX);
}

static void store_int(const struct option *o, char *member, int64_t value)
{
    if (o->n_bytes == sizeof(int))
        *(int *)(void *)member = (int)value;
    else
        *(int64_t *)(void *)member = value;
}

static bool read_ints(const struct option *o, const char *text, struct option_ints *out)
{
    struct option_ints list = { .n = 0 };
    for (;;) {
        char word[32];
        size_t n = strcspn(text, ",");
        if (n >= sizeof word || list.n == OPTION_MAX_INTS)
            return false;
        memcpy(word, text, n);
        word[n] = '\0';
        if (!read_int(o, word, &list.ints[list.n++]))
            return false;
        if (text[n] == '\0')
            break;
        text += n + 1;
    }
    *out = list;
    return true;
}

/* shown: the option as written, for messages. */
static enum tutti_status set_value(const struct option *o, char *member, const char *shown, const char *text,
                                   struct tutti_error *err)
{
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)(void *)member = true;
        return TUTTI_OK;
    case OPTION_INT:
    case OPTION_SIZE: {
        int64_t value;
        if (!read_int(o, text, &value))
            return wrong_value(o, shown, text, err);
        store_int(o, member, value);
        return TUTTI_OK;
    }
    case OPTION_FLOAT: {
        double value;
        if (!number_read_float(text, &value) || !in_range(o, value))
            return wrong_value(o, shown, text, err);
        *(double *)(void *)member = value;
        return TUTTI_OK;
    }
    case OPTION_CHOICE:
        for (const char *const *alias = o->aliases; alias && *alias; alias += 2)
            if (strcasecmp(*alias, text) == 0)
                text = alias[1];
        for (const char *const *choice = o->choices; *choice; choice++)
            if (strcasecmp(*choice, text) == 0) {
                if (o->is_index)
                    *(unsigned *)(void *)member = (unsigned)(choice - o->choices);
                else
                    *(const char **)(void *)member = *choice;
                return TUTTI_OK;
            }
        for (const char *const *choice = o->choices; o->may_number && *choice; choice++)
            if (is_numbered(text, *choice)) {
                *(const char **)(void *)member = text;
                return TUTTI_OK;
            }
        return wrong_value(o, shown, text, err);
    case OPTION_INTS:
        return read_ints(o, text, (struct option_ints *)(void *)member) ? TUTTI_OK
                                                                        : wrong_value(o, shown, text, err);
    case OPTION_TEXTS: {
        struct option_texts *list = (struct option_texts *)(void *)member;
        if (list->n == OPTION_MAX_TEXTS)
            return error_set_param(err, TUTTI_E_ARGUMENT, o->name, "%s: given more than %d times", shown,
                                   OPTION_MAX_TEXTS);
        list->texts[list->n++] = text;
        return TUTTI_OK;
    }
    case OPTION_TEXT:
        break;
    }
    *(const char **)(void *)member = text;
    return TUTTI_OK;
}

/* Zeroed memory is what the other kinds have if they are not given. */
static void set_initial(const struct option *o, char *member)
{
    memset(member, 0, o->n_bytes);
    if (o->initial) {
        enum tutti_status st = set_value(o, member, o->name, o->initial, NULL);
        assert(st == TUTTI_OK);
        (void)st;
    } else if ((o->kind == OPTION_INT || o->kind == OPTION_SIZE) && in_range(o, 0)) {
        store_int(o, member, -1);
    } else if (o->kind == OPTION_FLOAT && in_range(o, 0)) {
        *(double *)(void *)member = NAN;
    }
}

bool option_is_given(const struct option *o, const void *values)
{
    const char *member = (const char *)values + o->field;
    _Alignas(max_align_t) char initial[sizeof(struct option_ints)];
    _Static_assert(sizeof(struct option_ints) >= sizeof(struct option_texts), "the largest kind");
    set_initial(o, initial);
    return memcmp(member, initial, o->n_bytes) != 0;
}

const struct option *options_first_given(const struct option *options, const void *values, size_t base,
                                         const char *const *allowed)
{
    for (const struct option *o = options; o->name; o++) {
        const char *const *name = allowed;
        while (*name && strcmp(*name, o->name) != 0)
            name++;
        if (!*name && option_is_given(o, (const char *)values + base))
            return o;
    }
    return NULL;
}

void option_reset(const struct option *o, void *values)
{
    set_initial(o, (char *)values + o->field);
}

const struct option *options_find(const struct option *options, const char *name)
{
    for (const struct option *o = options; o->name; o++) {
        size_t i = 0;
        while (o->name[i] && (o->name[i] == name[i] || (o->name[i] == '-' && name[i] == '_')))
            i++;
        if (!o->name[i] && !name[i])
            return o;
    }
    return NULL;
}

enum tutti_status option_set_text(const struct option *o, void *values, const char *shown, const char *text,
                                  struct tutti_error *err)
{
    char *member = (char *)values + o->field;
    if (o->kind != OPTION_FLAG)
        return set_value(o, member, shown, text, err);
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, o->name, "%s: found '%s', expected true or false",
                               shown, text);
    *(bool *)(void *)member = *text == 't';
    return TUTTI_OK;
}

void options_copy_given(const struct option *options, void *to, const void *from)
{
    for (const struct option *o = options; o->name; o++)
        if (option_is_given(o, from))
            memcpy((char *)to + o->field, (const char *)from + o->field, o->n_bytes);
}

/* ---- command-line arguments ---- */

struct option_parser {
    const struct option_set *set;
    int argc;
    char *const *argv;
    int next; /* word to read next */
    void *values;
    const struct option *given[MAX_GIVEN]; /* each once */
    int n_given;
    struct tutti_error *err;
};

static bool was_given(const struct option_parser *p, const char *name)
{
    for (int i = 0; i < p->n_given; i++)
        if (strcmp(p->given[i]->name, name) == 0)
            return true;
    return false;
}

/* Refuses an option that has no effect, because another one is missing or given. */
static enum tutti_status check_given(const struct option_parser *p)
{
    for (int i = 0; i < p->n_given; i++) {
        const struct option *o = p->given[i];
        bool is_alone = o->needs && !was_given(p, o->needs);
        if (is_alone || (o->excludes && was_given(p, o->excludes)))
            return error_set_param(p->err, TUTTI_E_ARGUMENT, o->name, "--%s has no effect with%s --%s",
                                   o->name, is_alone ? "out" : "", is_alone ? o->needs : o->excludes);
    }
    return TUTTI_OK;
}

/* By name (n bytes), or by letter if n is 0. */
static const struct option *find_option(const struct option_set *set, const char *name, size_t n, char letter,
                                        size_t *base)
{
    for (const struct option_group *group = set->groups; group->title; group++)
        for (const struct option *o = group->options; o->name; o++)
            if (n ? strlen(o->name) == n && memcmp(o->name, name, n) == 0 : o->letter == letter) {
                *base = group->base;
                return o;
            }
    return NULL;
}

bool options_has(const struct option_set *set, const char *name)
{
    size_t base;
    return find_option(set, name, strlen(name), '\0', &base) != NULL;
}

/* Whether word is itself an option: then the value before it is missing. */
static bool is_option(const struct option_set *set, const char *word)
{
    size_t base;
    if (word[0] != '-' || word[1] == '\0')
        return false;
    if (word[1] == '-')
        return word[2] != '\0' && find_option(set, word + 2, strcspn(word + 2, "="), '\0', &base) != NULL;
    return word[2] == '\0' && find_option(set, NULL, 0, word[1], &base) != NULL;
}

/* given: the value in the same word; NULL: it is the next word. */
static enum tutti_status take_option(struct option_parser *p, const struct option *o, size_t base,
                                     const char *shown, const char *given)
{
    if (o->kind == OPTION_FLAG && given)
        return error_set_param(p->err, TUTTI_E_ARGUMENT, o->name, "%s: takes no value, found '%s'", shown,
                               given);
    if (o->kind != OPTION_FLAG && !given) {
        if (p->next == p->argc || is_option(p->set, p->argv[p->next]))
            return error_set_param(p->err, TUTTI_E_ARGUMENT, o->name, "%s: needs a value %s%s%s", shown,
                                   o->value, p->next == p->argc ? "" : ", found the option ",
                                   p->next == p->argc ? "" : p->argv[p->next]);
        given = p->argv[p->next++];
    }
    if ((o->kind == OPTION_TEXT || o->kind == OPTION_TEXTS) && *given == '\0' && !o->may_be_empty)
        return error_set_param(p->err, TUTTI_E_ARGUMENT, o->name, "%s: found an empty text, expected %s",
                               shown, o->value);
    if (!was_given(p, o->name)) {
        assert(p->n_given < MAX_GIVEN);
        p->given[p->n_given++] = o;
    }
    return set_value(o, (char *)p->values + base + o->field, shown, given, p->err);
}

/* name: NULL: too long to be compared with others. */
static enum tutti_status unknown_option(const struct option_parser *p, const char *shown, const char *name)
{
    const char *meant = name ? nearest_option(p->set, name) : NULL;
    return error_set_param(p->err, TUTTI_E_ARGUMENT, name ? name : "", "unknown option %.*s%s%s%s",
                           MAX_WORD + 2, shown, meant ? "; did you mean --" : "", meant ? meant : "",
                           meant ? "?" : "");
}

static enum tutti_status take_long(struct option_parser *p, const char *word)
{
    size_t n = strcspn(word + 2, "="), base;
    const struct option *o = find_option(p->set, word + 2, n, '\0', &base);
    char shown[MAX_WORD + 8];
    snprintf(shown, sizeof shown, "--%.*s", (int)(n > MAX_WORD ? MAX_WORD : n), word + 2);
    if (!o)
        return unknown_option(p, shown, n <= MAX_WORD ? shown + 2 : NULL);
    return take_option(p, o, base, shown, word[2 + n] == '=' ? word + 2 + n + 1 : NULL);
}

static enum tutti_status take_short(struct option_parser *p, const char *word)
{
    size_t base;
    const struct option *o = find_option(p->set, NULL, 0, word[1], &base);
    char shown[3] = { '-', word[1], '\0' };
    if (!o) /* maybe one dash is missing */
        return unknown_option(p, word, word[2] != '\0' ? word + 1 : NULL);
    return take_option(p, o, base, shown, word[2] != '\0' ? word + 2 : NULL);
}

static bool asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

enum tutti_status options_parse(const struct option_set *set, int argc, char *const *argv, void *values,
                                const char **operands, bool *wants_help, struct tutti_error *err)
{
    struct option_parser p = { .set = set, .argc = argc, .argv = argv, .values = values, .err = err };
    bool options_over = false;
    int n = 0;
    *wants_help = asks_for_help(argc, argv);
    if (*wants_help)
        return TUTTI_OK;
    for (const struct option_group *group = set->groups; group->title; group++)
        for (const struct option *o = group->options; o->name; o++)
            set_initial(o, (char *)values + group->base + o->field);
    enum tutti_status st = TUTTI_OK;
    while (st == TUTTI_OK && p.next < argc) {
        const char *word = argv[p.next++];
        if (options_over || word[0] != '-' || word[1] == '\0') {
            if (n == set->max_operands)
                return error_set(err, TUTTI_E_ARGUMENT, "unexpected '%.*s'; expected %s", MAX_WORD, word,
                                 *set->operands ? set->operands : "options only");
            if (*word == '\0' && n < set->min_operands)
                return error_set(err, TUTTI_E_ARGUMENT, "found an empty text; expected %s", set->operands);
            operands[n++] = word;
        } else if (strcmp(word, "--") == 0) {
            options_over = true;
        } else {
            st = word[1] == '-' ? take_long(&p, word) : take_short(&p, word);
        }
    }
    if (st != TUTTI_OK)
        return st;
    if (n < set->min_operands)
        return error_set(err, TUTTI_E_ARGUMENT, "%s", set->missing);
    return check_given(&p);
}
