#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/stages/pattern_class.h"

#include "base/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* The ranges to probe. Other characters (private use, and empty planes) have had fixed properties
 * since Unicode 2.0 and 3.1. Texts contain no surrogates. */
static const uint32_t ASKED[] = { 0, 0xD800, 0xE000, 0x40000, 0xE0000, 0xE1000 };
enum { N_ASKED = sizeof ASKED / sizeof *ASKED };

/* ---- what PCRE2 has ---- */

static bool write_text(struct buf *text)
{
    if (text->n_bytes > 0)
        return true;
    if (!buf_reserve(text, 1 << 21))
        return false;
    for (int i = 0; i < N_ASKED; i += 2) {
        for (uint32_t c = ASKED[i]; c < ASKED[i + 1]; c++) {
            uint8_t bytes[4];
            if (!buf_add(text, bytes, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, bytes)))
                return false;
        }
    }
    return true;
}

static bool find_all(const pcre2_code *code, const struct buf *text, struct char_set *set)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    bool ok = data != NULL;
    uint32_t next = ASKED[0];
    int range = 0;
    size_t at = 0;
    while (ok && pcre2_match(code, (PCRE2_SPTR)text->bytes, text->n_bytes, at, PCRE2_NO_UTF_CHECK, data,
                             NULL) > 0) {
        const size_t *found = pcre2_get_ovector_pointer(data);
        while (ok && at < found[1]) {
            ok = at < found[0] || char_set_append(set, next, next);
            at += (size_t)utf8_char(text->bytes + at, text->n_bytes - at);
            if (++next == ASKED[range + 1] && range + 2 < N_ASKED)
                next = ASKED[range += 2];
        }
    }
    pcre2_match_data_free(data);
    return ok;
}

/* Adds the characters that PCRE2 matches for a property; none if it does not know the property. */
static bool probe(struct class_prober *prober, const char *property, struct char_set *set)
{
    int error;
    size_t at;
    char text[80];
    snprintf(text, sizeof text, "%s+", property);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
    if (!code)
        return error != PCRE2_ERROR_NOMEMORY;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* slower without it */
    bool ok = write_text(&prober->text) && find_all(code, &prober->text, set);
    pcre2_code_free(code);
    return ok;
}

void class_prober_clear(struct class_prober *prober)
{
    buf_clear(&prober->text);
    for (int i = 0; i < N_SHORT_NAMES; i++)
        char_set_clear(&prober->known[i]);
    *prober = (struct class_prober){ .is_known = { false } };
}

/* ---- classes ---- */

static bool join(struct char_set *set, enum set_operation operation, const struct char_set *other)
{
    return char_set_join(set, operation, other->toggles, other->n);
}

/* Adds a property of PCRE2 to the text. known: cache of its characters; NULL: none. */
static bool add_given(struct char_class *class, struct class_prober *prober, const char *property, int known,
                      bool is_negated)
{
    struct char_set own = { .n = 0 }, *set = known < 0 ? &own : &prober->known[known];
    struct char_set all = { .n = 0 };
    bool ok = true;
    if (known < 0 || !prober->is_known[known])
        ok = probe(prober, property, set);
    if (ok && known >= 0)
        prober->is_known[known] = true;
    if (ok && set->n > 0) { /* otherwise the property is unknown or empty */
        char text[80];
        snprintf(text, sizeof text, "\\%c%s", is_negated ? 'P' : 'p', property + 2);
        ok = join(&all, SET_OR, set) && (!is_negated || char_set_join(&all, SET_XOR, ASKED, N_ASKED)) &&
             join(&class->given, SET_OR, &all) && buf_add_string(&class->text, text);
    }
    char_set_clear(&all);
    char_set_clear(&own);
    return ok;
}

/* The index of PCRE2's short name for these categories; -1: none. */
static int name_of_categories(uint32_t mask)
{
    for (size_t i = 0; i < N_SHORT_NAMES; i++) {
        if (UNICODE_TABLES.categories[i].mask == mask)
            return (int)i;
    }
    return -1;
}

static bool add_named(struct char_class *class, struct class_prober *prober, int known, bool is_negated)
{
    const char *name = UNICODE_TABLES.categories[known].name;
    char property[16];
    snprintf(property, sizeof property, "\\p{%c%s}", name[0] - 32, name + 1);
    return add_given(class, prober, property, known, is_negated);
}

static bool add_categories(struct char_class *class, struct class_prober *prober, uint32_t mask)
{
    int known = name_of_categories(~mask & ALL_CATEGORIES);
    if (known >= 0)
        return add_named(class, prober, known, true);
    for (size_t i = 0; mask != 0 && i < N_SHORT_NAMES; i++) { /* letters, marks, ... come first */
        uint32_t part = UNICODE_TABLES.categories[i].mask;
        if ((mask & part) != part)
            continue;
        if (!add_named(class, prober, (int)i, false))
            return false;
        mask &= ~part;
    }
    return true;
}

static bool put_range(uint32_t from, uint32_t to, struct buf *out)
{
    return buf_printf(out, from < to ? "\\x{%x}-\\x{%x}" : "\\x{%x}", from, to);
}

static bool put_set(const struct char_set *set, struct buf *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < set->n; i += 2)
        ok = put_range(set->toggles[i], set->toggles[i + 1] - 1, out);
    return ok;
}

/* A few ranges are faster than a property. */
enum { FEW_TOGGLES = 32 };

static bool add_own(struct char_class *class, struct class_prober *prober, const struct property *property,
                    bool is_negated, const struct char_set *want)
{
    if (want->n <= FEW_TOGGLES)
        return join(&class->given, SET_OR, want) && put_set(want, &class->text);
    if (!property->script)
        return add_categories(class, prober, is_negated ? ~property->mask & ALL_CATEGORIES : property->mask);
    char text[64];
    snprintf(text, sizeof text, "\\p{sc:%s}", property->script);
    return add_given(class, prober, text, -1, is_negated);
}

bool char_class_add_property(struct char_class *class, struct class_prober *prober,
                             const struct property *property, bool is_negated)
{
    static const uint32_t ALL[] = { 0, CODE_POINTS }, SURROGATES[] = { 0xD800, 0xE000 };
    struct char_set want = { .n = 0 };
    bool ok = property_set(property, &want) && (!is_negated || char_set_join(&want, SET_XOR, ALL, 2)) &&
              char_set_join(&want, SET_AND_NOT, SURROGATES, 2) && join(&class->want, SET_OR, &want) &&
              add_own(class, prober, property, is_negated, &want);
    char_set_clear(&want);
    return ok;
}

bool char_class_add_range(struct char_class *class, uint32_t from, uint32_t to)
{
    const uint32_t toggles[] = { from, to + 1 };
    return char_set_join(&class->want, SET_OR, toggles, 2) &&
           char_set_join(&class->given, SET_OR, toggles, 2) && put_range(from, to, &class->text);
}

bool char_class_intersect(struct char_class *class, const struct char_class *other, bool is_negated)
{
    if (!join(&class->want, is_negated ? SET_AND_NOT : SET_AND, &other->want))
        return false;
    char_set_clear(&class->given);
    buf_truncate(&class->text, 0);
    return join(&class->given, SET_OR, &class->want) && put_set(&class->want, &class->text);
}

static bool write_one(const struct char_set *ranges, const struct buf *text, bool is_negated, struct buf *out)
{
    size_t n_bytes = text ? text->n_bytes : 0;
    if (n_bytes + ranges->n == 0) /* no character, or any */
        return buf_add_string(out, is_negated ? "(?s:.)" : "(?!)");
    return buf_add_string(out, is_negated ? "[^" : "[") &&
           (n_bytes == 0 || buf_add(out, text->bytes, n_bytes)) && put_set(ranges, out) &&
           buf_add_string(out, "]");
}

/* A class cannot exclude characters: if PCRE2's property has surplus ones, all wanted characters
 * are listed. */
bool char_class_write(struct char_class *class, bool is_negated, struct buf *exact, struct buf *plain,
                      struct char_set *differing)
{
    static const struct char_set NONE = { .n = 0 };
    struct char_set missing = { .n = 0 }, surplus = { .n = 0 };
    bool ok = join(&missing, SET_OR, &class->want) && join(&missing, SET_AND_NOT, &class->given) &&
              char_set_join(&missing, SET_AND, ASKED, N_ASKED) && join(&surplus, SET_OR, &class->given) &&
              join(&surplus, SET_AND_NOT, &class->want) && char_set_join(&surplus, SET_AND, ASKED, N_ASKED) &&
              join(differing, SET_OR, &missing) && join(differing, SET_OR, &surplus) &&
              write_one(&NONE, &class->text, is_negated, plain) &&
              (surplus.n > 0 ? write_one(&class->want, NULL, is_negated, exact)
                             : write_one(&missing, &class->text, is_negated, exact));
    char_set_clear(&missing);
    char_set_clear(&surplus);
    return ok;
}

void char_class_clear(struct char_class *class)
{
    char_set_clear(&class->want);
    char_set_clear(&class->given);
    buf_clear(&class->text);
}
