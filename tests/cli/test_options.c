/* The option table: what is read, what is refused and with which words, how it reads as help. */
#include "cli/options/options.h"
#include "cli/terminal/input.h"
#include "cli/terminal/numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static void reads_whole_numbers_to_the_ends_of_their_range(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } GOOD[] = {
        { "0", 0 },
        { "-0", 0 },
        { "007", 7 },
        { "-1", -1 },
        { "9223372036854775807", INT64_MAX },
        { "-9223372036854775808", INT64_MIN },
    };
    static const char *const BAD[] = { "",
                                       "-",
                                       "+1",
                                       " 1",
                                       "1 ",
                                       "1.0",
                                       "1e3",
                                       "0x10",
                                       "--1",
                                       "1,2",
                                       "9223372036854775808",
                                       "-9223372036854775809",
                                       "99999999999999999999999999" };
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        int64_t value = 42;
        assert_true(number_read_int(GOOD[i].text, &value));
        assert_int_equal(value, GOOD[i].value);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        int64_t value = 42;
        assert_false(number_read_int(BAD[i], &value));
        assert_int_equal(value, 42);
    }
}

static void reads_decimal_numbers_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } GOOD[] = { { "0", 0 }, { ".5", 0.5 }, { "5.", 5 }, { "-2", -2 }, { "1e-3", 0.001 }, { "2.5E+2", 250 } };
    static const char *const BAD[] = { "",    ".",     "-",   "1e", "e1",    "nan",
                                       "inf", "0x1p3", "1,5", " 1", "1e999", "1.2.3" };
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        double value = 42;
        assert_true(number_read_float(GOOD[i].text, &value));
        assert_true(value == GOOD[i].value);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        double value = 42;
        assert_false(number_read_float(BAD[i], &value));
        assert_true(value == 42);
    }
}

static void reads_sizes_with_binary_suffixes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } GOOD[] = {
        { "4096", 4096 },
        { "0", 0 },
        { "1K", 1024 },
        { "16m", 16 << 20 },
        { "4G", (int64_t)4 << 30 },
        { "4GiB", (int64_t)4 << 30 },
        { "4GB", (int64_t)4 << 30 },
        { "12B", 12 },
        { "1.5G", (int64_t)3 << 29 },
        { ".5K", 512 },
        { "8388607T", (int64_t)8388607 << 40 },
        { "9223372036854775807", INT64_MAX },
    };
    static const char *const BAD[] = { "",
                                       "K",
                                       "-1",
                                       "4X",
                                       "4Gi ",
                                       "4 G",
                                       "1e9",
                                       "4GG",
                                       "4iB",
                                       "1..5G",
                                       "0x10",
                                       "8388608T",
                                       "9223372036854775808",
                                       "8388608.0T" };
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        int64_t value = -1;
        assert_true(number_read_size(GOOD[i].text, &value));
        assert_int_equal(value, GOOD[i].value);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        int64_t value = 42;
        assert_false(number_read_size(BAD[i], &value));
        assert_int_equal(value, 42);
    }
}

static void writes_sizes_for_people(void **state)
{
    (void)state;
    char text[NUMBER_SIZE_BYTES];
    assert_string_equal(number_write_size(text, 0), "0 B");
    assert_string_equal(number_write_size(text, 1023), "1023 B");
    assert_string_equal(number_write_size(text, 1536), "1.5 KiB");
    assert_string_equal(number_write_size(text, (uint64_t)200 << 20), "200 MiB");
    assert_string_equal(number_write_size(text, UINT64_MAX), "16.0 EiB");
}

static void reads_lists_of_ids(void **state)
{
    (void)state;
    struct ids ids = { 0 };
    struct tutti_error err;
    static const char TEXT[] = " 5,17 3\n2147483647\t0,";
    assert_int_equal(input_parse_ids(&ids, "--ids", TEXT, sizeof TEXT - 1, &err), TUTTI_OK);
    assert_int_equal(ids.n, 5);
    assert_int_equal(ids.ids[1], 17);
    assert_int_equal(ids.ids[3], INT32_MAX);
    static const char *const BAD[] = {
        "1,x", "-1", "2147483648", "1.5", "1;2", "111111111111111111111111111"
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        ids.n = 0;
        assert_int_equal(input_parse_ids(&ids, "--ids", BAD[i], strlen(BAD[i]), &err), TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, "--ids: found '"));
        assert_non_null(strstr(err.text, "expected a token id"));
    }
    ids_clear(&ids);
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

struct inner {
    bool fast;
    double rate;
};

struct values {
    const char *name, *mode;
    enum pace { EARLY, LATE } pace;
    int count;
    int64_t port;
    uint64_t size;
    double share;
    bool json;
    struct option_texts stops;
    struct option_ints users;
    struct inner inner;
};

static const char *const MODES[] = { "slow", "quick", NULL };
static const char *const PACES[] = { "early", "late", NULL };

static const struct option OPTIONS[] = {
    TEXT_OPTION(struct values, name, "name", "TEXT", "a name", .letter = 'm'),
    CHOICE_OPTION(struct values, mode, "mode", "MODE", MODES, "how", .initial = "slow"),
    INT_OPTION(struct values, count, "count", "N", "how many", .letter = 'n', .needs = "name"),
    ENUM_OPTION(struct values, pace, "pace", "PACE", PACES, "when", .initial = "late"),
    INT64_OPTION(struct values, port, "port", "N", "where", .max = 65535, .initial = "8080"),
    SIZE_OPTION(struct values, size, "size", "SIZE", "how large", .min = 1024, .max = INFINITY),
    FLOAT_OPTION(struct values, share, "share", "X", "which part", .max = 1, .above_min = true,
                 .excludes = "stop"),
    FLAG_OPTION(struct values, json, "json", "as JSON"),
    TEXTS_OPTION(struct values, stops, "stop", "TEXT", "where to end"),
    INTS_OPTION(struct values, users, "users", "LIST", "how many at once", .min = 1, .max = 64,
                .initial = "1,8"),
    { .name = NULL },
};

static const struct option INNER[] = {
    FLAG_OPTION(struct inner, fast, "fast", "hurry"),
    FLOAT_OPTION(struct inner, rate, "rate", "R", "how fast", .min = -2, .max = 2),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "More", INNER, offsetof(struct values, inner) },
    { .title = NULL },
};

static const struct option_set SET = {
    .operands = "MODEL [TEXT]",
    .min_operands = 1,
    .max_operands = 2,
    .missing = "expected MODEL",
    .groups = GROUPS,
};

enum { MAX_WORDS = 64 };

struct parsed {
    struct values values;
    const char *operands[MAX_WORDS];
    bool wants_help;
    struct tutti_error err;
};

/* words are separated by blanks; '_' stands for an empty word. */
static enum tutti_status parse(struct parsed *parsed, const char *line)
{
    static char copy[1024]; /* what was parsed points into it */
    static char empty[] = "";
    char *words[MAX_WORDS], *save = NULL;
    int n = 0;
    assert_true(strlen(line) < sizeof copy);
    strcpy(copy, line);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        assert_true(n < MAX_WORDS);
        words[n++] = strcmp(word, "_") == 0 ? empty : word;
    }
    memset(parsed, 0, sizeof *parsed);
    return options_parse(&SET, n, words, &parsed->values, parsed->operands, &parsed->wants_help,
                         &parsed->err);
}

static void fills_what_was_not_given(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, "model"), TUTTI_OK);
    assert_null(p.values.name);
    assert_string_equal(p.values.mode, "slow");
    assert_int_equal(p.values.count, -1);
    assert_int_equal(p.values.port, 8080);
    assert_int_equal(p.values.pace, LATE);
    /* 0 cannot be given. */
    assert_int_equal(p.values.size, 0);
    assert_true(p.values.share == 0);
    assert_true(isnan(p.values.inner.rate));
    assert_false(p.values.json);
    assert_int_equal(p.values.stops.n, 0);
    assert_int_equal(p.values.users.n, 2);
    assert_int_equal(p.values.users.ints[1], 8);
    assert_string_equal(p.operands[0], "model");
    assert_null(p.operands[1]);
}

static void reads_every_spelling(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, "-n5 --name=a model --port 0 --size=2K --json --stop x --stop=y --users "
                               "1,8,17 --mode quick --pace EARLY --fast --rate -1.5 text"),
                     TUTTI_OK);
    assert_string_equal(p.values.name, "a");
    assert_int_equal(p.values.count, 5);
    assert_int_equal(p.values.port, 0);
    assert_int_equal(p.values.size, 2048);
    assert_true(p.values.json);
    assert_int_equal(p.values.stops.n, 2);
    assert_string_equal(p.values.stops.texts[1], "y");
    assert_int_equal(p.values.users.n, 3);
    assert_int_equal(p.values.users.ints[2], 17);
    assert_string_equal(p.values.mode, "quick");
    assert_int_equal(p.values.pace, EARLY);
    assert_true(p.values.inner.fast);
    assert_true(p.values.inner.rate == -1.5);
    assert_string_equal(p.operands[1], "text");
    assert_null(p.operands[2]);
    assert_int_equal(parse(&p, "m --share 1"), TUTTI_OK);
    assert_true(p.values.share == 1);
}

static void takes_options_literally_after_two_dashes(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, "-m b -- --json --help"), TUTTI_OK);
    assert_string_equal(p.values.name, "b");
    assert_false(p.values.json);
    assert_false(p.wants_help);
    assert_string_equal(p.operands[0], "--json");
    assert_string_equal(p.operands[1], "--help");
    assert_int_equal(parse(&p, "model -"), TUTTI_OK); /* standard input is an operand */
    assert_string_equal(p.operands[1], "-");
    assert_int_equal(parse(&p, "model --name=--json"), TUTTI_OK);
    assert_string_equal(p.values.name, "--json");
}

static void asks_for_help_whatever_else_is_wrong(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, "--prot --help"), TUTTI_OK);
    assert_true(p.wants_help);
    assert_int_equal(parse(&p, "-h"), TUTTI_OK);
    assert_true(p.wants_help);
}

static void names_option_found_and_expected(void **state)
{
    (void)state;
    static const struct {
        const char *line, *text;
    } BROKEN[] = {
        { "", "expected MODEL" },
        { "a b c", "unexpected 'c'; expected MODEL [TEXT]" },
        { "m --prot 1", "unknown option --prot; did you mean --port?" },
        { "m --port=x", "--port: found 'x', expected a whole number from 0 to 65535" },
        { "m --port 65536", "--port: found '65536', expected a whole number from 0 to 65535" },
        { "m --port -1", "--port: found '-1', expected a whole number from 0 to 65535" },
        { "m --port", "--port: needs a value N" },
        { "m --port --json", "--port: needs a value N, found the option --json" },
        { "m -n -m x", "-n: needs a value N, found the option -m" },
        { "m -n 1.5", "-n: found '1.5', expected a whole number from 0 to 2147483647" },
        { "m -n 2147483648", "-n: found '2147483648', expected a whole number from 0 to 2147483647" },
        { "m --pace soon", "--pace: found 'soon', expected early or late" },
        { "m --size 12", "--size: found '12', expected a size such as 512M or 4G of at least 1.0 KiB" },
        { "m --size 9Q", "--size: found '9Q', expected a size such as 512M or 4G of at least 1.0 KiB" },
        { "m --share 0", "--share: found '0', expected a number above 0, up to 1" },
        { "m --share nan", "--share: found 'nan', expected a number above 0, up to 1" },
        { "m --rate 3", "--rate: found '3', expected a number from -2 to 2" },
        { "m --mode quik", "--mode: found 'quik', expected slow or quick; did you mean quick?" },
        { "m --mode zebra", "--mode: found 'zebra', expected slow or quick" },
        { "m --json=1", "--json: takes no value, found '1'" },
        { "m --name _", "--name: found an empty text, expected TEXT" },
        { "m --users 1,,2",
          "--users: found '1,,2', expected whole numbers with commas between them, each from 1 to 64" },
        { "m --users 1,65",
          "--users: found '1,65', expected whole numbers with commas between them, each from 1 to 64" },
        { "m --jsno", "unknown option --jsno; did you mean --json?" },
        { "m --zebra", "unknown option --zebra" },
        { "m -json", "unknown option -json; did you mean --json?" },
        { "m -x", "unknown option -x" },
        { "m --hlep", "unknown option --hlep; did you mean --help?" },
        { "m --cou 3", "unknown option --cou; did you mean --count?" },
        { "m -n 3", "--count has no effect without --name" },
        { "m --stop x --share 1", "--share has no effect with --stop" },
        { "m --count=0 --share 1", "--count has no effect without --name" },
    };
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        struct parsed p;
        assert_int_equal(parse(&p, BROKEN[i].line), TUTTI_E_ARGUMENT);
        assert_string_equal(p.err.text, BROKEN[i].text);
    }
}

static void sets_single_options_by_name(void **state)
{
    (void)state;
    struct parsed p;
    struct values other;
    struct tutti_error err;
    assert_int_equal(parse(&p, "m"), TUTTI_OK);
    other = p.values;
    const struct option *share = options_find(OPTIONS, "share"), *json = options_find(OPTIONS, "json");
    assert_null(options_find(OPTIONS, "shar"));
    assert_null(options_find(OPTIONS, "share_"));
    assert_false(option_is_given(share, &other));
    assert_int_equal(option_set_text(share, &other, "/set share", "0.5", &err), TUTTI_OK);
    assert_int_equal(option_set_text(json, &other, "/set json", "true", &err), TUTTI_OK);
    assert_true(other.share == 0.5 && other.json && option_is_given(share, &other));
    options_copy_given(OPTIONS, &p.values, &other);
    assert_true(p.values.share == 0.5 && p.values.json && p.values.port == 8080);
    assert_int_equal(option_set_text(share, &other, "/set share", "2", &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.text, "/set share: found '2', expected a number above 0, up to 1");
    assert_int_equal(option_set_text(json, &other, "/set json", "yes", &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.text, "/set json: found 'yes', expected true or false");
    assert_true(other.share == 0.5 && other.json);
    option_reset(share, &other);
    assert_true(other.share == 0);
}

static void refuses_more_texts_than_there_is_room_for(void **state)
{
    (void)state;
    struct parsed p;
    char line[512] = "m";
    for (int i = 0; i < OPTION_MAX_TEXTS; i++)
        strcat(line, " --stop x");
    assert_int_equal(parse(&p, line), TUTTI_OK);
    strcat(line, " --stop x");
    assert_int_equal(parse(&p, line), TUTTI_E_ARGUMENT);
    assert_string_equal(p.err.text, "--stop: given more than 16 times");
}

static void suggests_the_nearest_word_alone(void **state)
{
    (void)state;
    static const char *const WORDS[] = { "serve", "chat", "generate", "tokenize", NULL };
    assert_string_equal(options_nearest("sevre", WORDS), "serve");
    assert_string_equal(options_nearest("gen", WORDS), "generate");
    assert_string_equal(options_nearest("cht", WORDS), "chat");
    assert_null(options_nearest("bench", WORDS));
    assert_null(options_nearest("", WORDS));
    char word[2000];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_null(options_nearest(word, WORDS));
}

/* ---- help ------------------------------------------------------------------------------------------------------ */

static void help_names_every_option_within_80_columns(void **state)
{
    (void)state;
    struct buf help = { 0 };
    assert_true(options_help(&SET, &help));
    for (const struct option_group *group = GROUPS; group->title; group++)
        for (const struct option *o = group->options; o->name; o++) {
            char spelled[64];
            snprintf(spelled, sizeof spelled, "--%s", o->name);
            assert_non_null(strstr(help.bytes, spelled));
        }
    for (const char *line = help.bytes; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 80);
    assert_non_null(strstr(help.bytes, "  -n, --count N "));
    assert_non_null(strstr(help.bytes, "(0 to 65535; default 8080)"));
    buf_clear(&help);
}

static void markdown_escapes_what_means_something_there(void **state)
{
    (void)state;
    static const struct option SPECIAL[] = {
        { .name = "a", .kind = OPTION_FLAG, .help = "one | two <b> *c*" },
        { .name = NULL },
    };
    static const struct option_group SPECIAL_GROUPS[] = { { "Options", SPECIAL, 0 }, { .title = NULL } };
    const struct option_set set = { .groups = SPECIAL_GROUPS };
    struct buf text = { 0 };
    assert_true(options_markdown(&set, &text));
    assert_non_null(strstr(text.bytes, "| `--a` | one \\| two &lt;b> \\*c\\* |\n"));
    buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_whole_numbers_to_the_ends_of_their_range),
        cmocka_unit_test(reads_decimal_numbers_and_nothing_else),
        cmocka_unit_test(reads_sizes_with_binary_suffixes),
        cmocka_unit_test(writes_sizes_for_people),
        cmocka_unit_test(reads_lists_of_ids),
        cmocka_unit_test(fills_what_was_not_given),
        cmocka_unit_test(reads_every_spelling),
        cmocka_unit_test(takes_options_literally_after_two_dashes),
        cmocka_unit_test(asks_for_help_whatever_else_is_wrong),
        cmocka_unit_test(names_option_found_and_expected),
        cmocka_unit_test(sets_single_options_by_name),
        cmocka_unit_test(refuses_more_texts_than_there_is_room_for),
        cmocka_unit_test(suggests_the_nearest_word_alone),
        cmocka_unit_test(help_names_every_option_within_80_columns),
        cmocka_unit_test(markdown_escapes_what_means_something_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
