/* Terms of regular languages, their derivatives, and the automata made of these. */
#include "grammar/schema/schema_regex.h"

#include "base/ids.h"
#include "base/utf8.h"
#include "grammar/schema/schema_reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct char_range ALL_CHARS = { 0, MAX_CODE_POINT };

void regexes_clear(struct regexes *x)
{
    free(x->terms);
    free(x->ranges);
    free(x->children);
    key_map_clear(&x->by_content);
    key_map_clear(&x->rules);
    key_map_clear(&x->derivatives);
    *x = (struct regexes){ 0 };
}

/* Bytes of an entry of a key_map, which is at most half full. */
enum { BYTES_OF_SLOT = 4 * sizeof(struct key_slot) };

static bool regex_note(struct schema_reader *r, struct key_map *map, uint64_t key, int32_t value)
{
    if (!schema_take_bytes(r, BYTES_OF_SLOT))
        return false;
    return key_map_add(map, key, value) || schema_no_memory(r) >= 0;
}

static const struct regex_term *term_at(const struct schema_reader *r, int32_t term)
{
    return &r->regexes.terms[term];
}

/* ---- lengths ---- */

static int32_t add_lengths(int32_t a, int32_t b)
{
    int32_t sum;
    if (a == REPEAT_FOREVER || b == REPEAT_FOREVER)
        return REPEAT_FOREVER;
    return __builtin_add_overflow(a, b, &sum) ? INT32_MAX : sum;
}

static int32_t times_length(int32_t a, int32_t n)
{
    int32_t product;
    if (a == 0 || n == 0)
        return 0;
    if (a == REPEAT_FOREVER || n == REPEAT_FOREVER)
        return REPEAT_FOREVER;
    return __builtin_mul_overflow(a, n, &product) ? INT32_MAX : product;
}

static bool is_longer(int32_t a, int32_t b)
{
    return b != REPEAT_FOREVER && (a == REPEAT_FOREVER || a > b);
}

/* ---- terms ---- */

static uint64_t hash_term(const struct regex_term *t, const void *content, size_t n_words)
{
    const uint32_t *words = content;
    uint64_t h = mix64((uint64_t)t->kind << 32 ^ (uint32_t)t->n);
    if (!content) {
        h = mix64(h ^ (uint32_t)t->first);
        h = mix64(h ^ (uint64_t)(uint32_t)t->min << 32 ^ (uint32_t)t->max);
    }
    for (size_t i = 0; i < n_words; i++)
        h = mix64(h ^ words[i]);
    return h;
}

/* Completes what a term's parts determine. */
static void describe_term(const struct schema_reader *r, struct regex_term *t, const int32_t *parts,
                          size_t n_parts)
{
    bool is_and = t->kind == REGEX_AND;
    t->is_plain = !is_and && t->kind != REGEX_NOT;
    t->depth = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const struct regex_term *part = term_at(r, parts[i]);
        /* The rest of a REGEX_CAT is not within it. */
        int depth = part->depth + !(t->kind == REGEX_CAT && i == 1);
        t->is_plain = t->is_plain && part->is_plain;
        t->depth = (int16_t)(depth > t->depth ? depth : t->depth);
        if (i == 0) {
            t->accepts_empty = part->accepts_empty;
            t->shortest = part->shortest;
            t->longest = part->longest;
        } else if (t->kind == REGEX_CAT) {
            t->accepts_empty = t->accepts_empty && part->accepts_empty;
            t->shortest = add_lengths(t->shortest, part->shortest);
            t->longest = add_lengths(t->longest, part->longest);
        } else {
            t->accepts_empty = is_and ? t->accepts_empty && part->accepts_empty
                                      : t->accepts_empty || part->accepts_empty;
            t->shortest = (part->shortest > t->shortest) == is_and ? part->shortest : t->shortest;
            t->longest = is_longer(part->longest, t->longest) != is_and ? part->longest : t->longest;
        }
    }
    if (t->kind == REGEX_NOT) {
        t->accepts_empty = !t->accepts_empty;
        t->shortest = 0;
        t->longest = REPEAT_FOREVER;
    } else if (t->kind == REGEX_REPEAT) {
        t->accepts_empty = t->accepts_empty || t->min == 0;
        t->shortest = times_length(t->shortest, t->min);
        t->longest = times_length(t->longest, t->max);
    } else if (t->kind == REGEX_EMPTY) {
        t->accepts_empty = true;
    } else if (t->kind == REGEX_CHARS) {
        t->shortest = t->longest = 1;
    } else if (t->kind == REGEX_OR && n_parts == 0) {
        t->shortest = INT32_MAX;
    }
}

/* The number of a term: that of an equal one, or a new one. content: the ranges or children, which are
 * copied; NULL: the term has none. */
static int32_t add_term(struct schema_reader *r, struct regex_term t, const void *content)
{
    struct regexes *x = &r->regexes;
    bool has_ranges = t.kind == REGEX_CHARS;
    size_t n = content ? (size_t)t.n : 0, n_words = has_ranges ? 2 * n : n;
    int32_t parts[2] = { t.first, t.n }, i;
    if (r->status != TUTTI_OK || !schema_spend(r, 1 + n))
        return -1;
    uint64_t key = hash_term(&t, content, n_words), at = key;
    while ((i = key_map_next(&x->by_content, key, &at)) >= 0) {
        const struct regex_term *known = &x->terms[i];
        if (known->kind != t.kind || known->n != t.n)
            continue;
        if (!content ? known->first == t.first && known->min == t.min && known->max == t.max
                     : !memcmp(content,
                               has_ranges ? (const void *)(x->ranges + known->first)
                                          : (const void *)(x->children + known->first),
                               n_words * 4))
            return i;
    }
    if (content)
        describe_term(r, &t, has_ranges ? NULL : content, has_ranges ? 0 : n);
    else
        describe_term(r, &t, parts, t.kind == REGEX_CAT ? 2 : t.kind == REGEX_EMPTY ? 0 : 1);
    if (t.depth > MAX_REGEX_DEPTH)
        return schema_fail(r, "pattern: its parts nest deeper than %d", MAX_REGEX_DEPTH);
    if (has_ranges) {
        if (!schema_grow(r, &x->ranges, &x->ranges_room, x->n_ranges + n, sizeof *x->ranges))
            return -1;
        t.first = (int32_t)x->n_ranges;
        memcpy(x->ranges + x->n_ranges, content, n * sizeof *x->ranges);
        x->n_ranges += n;
    } else if (content) {
        if (!schema_grow(r, &x->children, &x->children_room, x->n_children + n + 1, sizeof *x->children))
            return -1;
        t.first = (int32_t)x->n_children;
        memcpy(x->children + x->n_children, content, n * sizeof *x->children);
        x->n_children += n;
    }
    if (!schema_grow(r, &x->terms, &x->terms_room, x->n_terms + 1, sizeof *x->terms) ||
        !regex_note(r, &x->by_content, key, (int32_t)x->n_terms))
        return -1;
    x->terms[x->n_terms] = t;
    return (int32_t)x->n_terms++;
}

int32_t regex_none(struct schema_reader *r)
{
    static const int32_t NOTHING = 0;
    return add_term(r, (struct regex_term){ .kind = REGEX_OR }, &NOTHING);
}

int32_t regex_empty(struct schema_reader *r)
{
    return add_term(r, (struct regex_term){ .kind = REGEX_EMPTY }, NULL);
}

int32_t regex_any(struct schema_reader *r)
{
    return regex_repeat(r, regex_chars(r, &ALL_CHARS, 1), 0, REPEAT_FOREVER);
}

int32_t regex_chars(struct schema_reader *r, const struct char_range *ranges, size_t n)
{
    if (n == 0)
        return regex_none(r);
    struct char_range *own = calloc(n, sizeof *own);
    if (!own)
        return schema_no_memory(r);
    memcpy(own, ranges, n * sizeof *own);
    n = ranges_normalize(own, n);
    int32_t term = add_term(r, (struct regex_term){ .kind = REGEX_CHARS, .n = (int32_t)n }, own);
    free(own);
    return term;
}

int32_t regex_text(struct schema_reader *r, const char *text, size_t n_bytes)
{
    struct ids codes = { 0 };
    bool ok = true;
    size_t n;
    for (size_t i = 0; i < n_bytes && ok; i += n)
        ok = ids_add(&codes, utf8_code_at(text + i, n_bytes - i, &n));
    int32_t term = ok ? regex_empty(r) : schema_no_memory(r);
    for (size_t i = codes.n; i-- > 0 && ok;) {
        uint32_t code = (uint32_t)codes.ids[i];
        term = regex_cat(r, regex_chars(r, &(struct char_range){ code, code }, 1), term);
    }
    ids_clear(&codes);
    return term;
}

int32_t regex_cat(struct schema_reader *r, int32_t a, int32_t b)
{
    struct ids parts = { 0 };
    int32_t none = regex_none(r), empty = regex_empty(r), any = regex_any(r);
    bool ok = true;
    if (a < 0 || b < 0 || r->status != TUTTI_OK)
        return -1;
    if (a == none || b == none)
        return none;
    for (; term_at(r, a)->kind == REGEX_CAT && ok; a = term_at(r, a)->n)
        ok = ids_add(&parts, term_at(r, a)->first);
    ok = ok && ids_add(&parts, a);
    for (size_t i = parts.n; i-- > 0 && ok && b >= 0;) {
        bool begins_with_any = b == any || (term_at(r, b)->kind == REGEX_CAT && term_at(r, b)->first == any);
        if (b == empty)
            b = parts.ids[i];
        else if (parts.ids[i] != empty && !(parts.ids[i] == any && begins_with_any))
            b = add_term(r, (struct regex_term){ .kind = REGEX_CAT, .first = parts.ids[i], .n = b }, NULL);
    }
    ids_clear(&parts);
    return ok ? b : schema_no_memory(r);
}

static int compare_terms(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds a term to those of a REGEX_OR or REGEX_AND, whose neutral and deciding terms are given. */
static bool gather_terms(struct schema_reader *r, enum regex_kind kind, struct ids *to, int32_t term,
                         int32_t neutral)
{
    const struct regex_term *t = term_at(r, term);
    if (term == neutral)
        return true;
    if (t->kind != kind || t->n == 0)
        return ids_add(to, term) || schema_no_memory(r) >= 0;
    return schema_spend(r, (size_t)t->n / 8) &&
           (ids_add_all(to, r->regexes.children + t->first, (size_t)t->n) || schema_no_memory(r) >= 0);
}

static int32_t regex_combine(struct schema_reader *r, enum regex_kind kind, const int32_t *terms, size_t n)
{
    struct ids all = { 0 };
    int32_t neutral = kind == REGEX_OR ? regex_none(r) : regex_any(r);
    int32_t deciding = kind == REGEX_OR ? regex_any(r) : regex_none(r), term = -1;
    bool ok = r->status == TUTTI_OK, is_decided = false;
    for (size_t i = 0; i < n && ok; i++)
        ok = terms[i] >= 0 && gather_terms(r, kind, &all, terms[i], neutral);
    ok = ok && schema_spend(r, 4 * all.n);
    if (ok && all.n > 1)
        qsort(all.ids, all.n, sizeof *all.ids, compare_terms);
    size_t n_kept = 0;
    for (size_t i = 0; i < all.n && ok; i++) {
        is_decided = is_decided || all.ids[i] == deciding;
        if (n_kept == 0 || all.ids[n_kept - 1] != all.ids[i])
            all.ids[n_kept++] = all.ids[i];
    }
    if (ok)
        term = is_decided   ? deciding
               : n_kept < 2 ? (n_kept == 1 ? all.ids[0] : neutral)
                            : add_term(r, (struct regex_term){ .kind = kind, .n = (int32_t)n_kept }, all.ids);
    ids_clear(&all);
    return term;
}

int32_t regex_or(struct schema_reader *r, const int32_t *terms, size_t n)
{
    return regex_combine(r, REGEX_OR, terms, n);
}

int32_t regex_and(struct schema_reader *r, const int32_t *terms, size_t n)
{
    return regex_combine(r, REGEX_AND, terms, n);
}

int32_t regex_not(struct schema_reader *r, int32_t term)
{
    int32_t none = regex_none(r), any = regex_any(r);
    if (term < 0 || r->status != TUTTI_OK)
        return -1;
    if (term_at(r, term)->kind == REGEX_NOT)
        return term_at(r, term)->first;
    return term == none  ? any
           : term == any ? none
                         : add_term(r, (struct regex_term){ .kind = REGEX_NOT, .first = term }, NULL);
}

int32_t regex_repeat(struct schema_reader *r, int32_t term, int32_t min, int32_t max)
{
    int32_t none = regex_none(r), empty = regex_empty(r);
    if (term < 0 || r->status != TUTTI_OK)
        return -1;
    const struct regex_term *t = term_at(r, term);
    if (t->accepts_empty)
        min = 0;
    if (term == empty || max == 0 || (term == none && min == 0))
        return empty;
    if (term == none || (min == 1 && max == 1))
        return term;
    if (t->kind == REGEX_REPEAT && t->min == 0 && t->max == REPEAT_FOREVER && min == 0)
        return term;
    return add_term(r, (struct regex_term){ .kind = REGEX_REPEAT, .first = term, .min = min, .max = max },
                    NULL);
}

void regex_lengths(const struct schema_reader *r, int32_t term, int32_t *min, int32_t *max)
{
    *min = term < 0 ? 0 : term_at(r, term)->shortest;
    *max = term < 0 ? 0 : term_at(r, term)->longest;
}

/* ---- derivatives ---- */

static bool has_char(const struct schema_reader *r, const struct regex_term *t, uint32_t code)
{
    const struct char_range *ranges = r->regexes.ranges + t->first;
    size_t low = 0, high = (size_t)t->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].high < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < (size_t)t->n && ranges[low].low <= code;
}

static int32_t derive(struct schema_reader *r, int32_t term, uint32_t code, int class);

static int32_t derive_cat(struct schema_reader *r, int32_t term, uint32_t code, int class)
{
    struct ids ways = { 0 };
    bool ok = true, goes_on = true;
    while (goes_on && ok) {
        struct regex_term t = *term_at(r, term);
        bool is_cat = t.kind == REGEX_CAT;
        int32_t head = derive(r, is_cat ? t.first : term, code, class);
        int32_t way = is_cat ? regex_cat(r, head, t.n) : head;
        ok = way >= 0 && (ids_add(&ways, way) || schema_no_memory(r) >= 0);
        goes_on = ok && is_cat && term_at(r, t.first)->accepts_empty;
        term = t.n;
    }
    int32_t out = ok ? regex_or(r, ways.ids, ways.n) : -1;
    ids_clear(&ways);
    return out;
}

static int32_t derive_list(struct schema_reader *r, struct regex_term t, uint32_t code, int class)
{
    struct ids parts = { 0 };
    bool ok = schema_spend(r, 2 * (size_t)t.n);
    for (int32_t i = 0; i < t.n && ok; i++) {
        int32_t part = derive(r, r->regexes.children[t.first + i], code, class);
        ok = part >= 0 && (ids_add(&parts, part) || schema_no_memory(r) >= 0);
    }
    int32_t out = ok ? regex_combine(r, t.kind, parts.ids, parts.n) : -1;
    ids_clear(&parts);
    return out;
}

/* The texts that, after the character, are in the language. Recurses to the depth of terms. class: the
 * character's, of the derivatives that are kept. */
static int32_t derive(struct schema_reader *r, int32_t term, uint32_t code, int class)
{
    uint64_t key = mix64((uint64_t)term << 8 | (uint64_t) class);
    int32_t known = key_map_find(&r->regexes.derivatives, key), out;
    if (known >= 0)
        return known;
    if (!schema_spend(r, 1))
        return -1;
    struct regex_term t = *term_at(r, term);
    switch (t.kind) {
    case REGEX_CHARS:
        out = has_char(r, &t, code) ? regex_empty(r) : regex_none(r);
        break;
    case REGEX_EMPTY:
        out = regex_none(r);
        break;
    case REGEX_CAT:
        out = derive_cat(r, term, code, class);
        break;
    case REGEX_NOT:
        out = regex_not(r, derive(r, t.first, code, class));
        break;
    case REGEX_REPEAT:
        out = derive(r, t.first, code, class);
        out = regex_cat(
            r, out,
            regex_repeat(r, t.first, t.min > 0 ? t.min - 1 : 0, t.max == REPEAT_FOREVER ? t.max : t.max - 1));
        break;
    default:
        out = derive_list(r, t, code, class);
        break;
    }
    return out >= 0 && regex_note(r, &r->regexes.derivatives, key, out) ? out : -1;
}

static void forget_derivatives(struct schema_reader *r)
{
    size_t n_bytes = r->regexes.derivatives.n * BYTES_OF_SLOT;
    budget_return_bytes(r->out->budget, n_bytes);
    r->bytes_taken -= n_bytes;
    key_map_clear(&r->regexes.derivatives);
}

bool regex_accepts(struct schema_reader *r, int32_t term, const char *text, size_t n_bytes)
{
    size_t n;
    for (size_t i = 0; i < n_bytes && term >= 0; i += n) {
        forget_derivatives(r);
        term = derive(r, term, (uint32_t)utf8_code_at(text + i, n_bytes - i, &n), 0);
    }
    forget_derivatives(r);
    return term >= 0 && term_at(r, term)->accepts_empty;
}

/* ---- automata ---- */

struct regex_automaton {
    uint32_t *cuts; /* the first characters of intervals that the term does not divide */
    uint64_t *signs;
    int *classes; /* of the intervals */
    size_t n_cuts, cuts_room, signs_room, classes_room;
    uint32_t samples[MAX_REGEX_CLASSES]; /* a character of each class */
    int n_classes;
    int32_t *terms, *targets; /* of the states; targets [n_states][n_classes], -1: none */
    bool *is_live;            /* the state leads to an end */
    size_t n_states, terms_room, targets_room, live_room;
    struct key_map by_term;
};

static void regex_automaton_clear(struct regex_automaton *a)
{
    free(a->cuts);
    free(a->signs);
    free(a->classes);
    free(a->terms);
    free(a->targets);
    free(a->is_live);
    key_map_clear(&a->by_term);
}

static int compare_cuts(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds the terms that are parts of term, each once. */
static bool list_terms(struct schema_reader *r, int32_t term, struct ids *list, struct key_map *known)
{
    bool ok = ids_add(list, term) && key_map_add(known, mix64((uint64_t)term), 0);
    for (size_t i = 0; i < list->n && ok; i++) {
        const struct regex_term *t = term_at(r, list->ids[i]);
        int32_t two[2] = { t->first, t->n };
        const int32_t *parts = t->kind == REGEX_OR || t->kind == REGEX_AND ? r->regexes.children + t->first
                                                                           : two;
        int32_t n = t->kind == REGEX_CHARS || t->kind == REGEX_EMPTY ? 0
                    : parts != two                                   ? t->n
                                                                     : 1 + (t->kind == REGEX_CAT);
        if (!schema_spend(r, 1 + (size_t)n / 8))
            return false;
        for (int32_t k = 0; k < n && ok; k++)
            if (key_map_find(known, mix64((uint64_t)parts[k])) < 0)
                ok = ids_add(list, parts[k]) && key_map_add(known, mix64((uint64_t)parts[k]), 0);
    }
    return ok || schema_no_memory(r) >= 0;
}

static bool add_cut(struct schema_reader *r, struct regex_automaton *a, uint32_t code)
{
    if (!schema_grow(r, &a->cuts, &a->cuts_room, a->n_cuts + 1, sizeof *a->cuts))
        return false;
    a->cuts[a->n_cuts++] = code;
    return true;
}

/* Divides the characters into classes that the listed terms do not tell apart. */
static bool find_classes(struct schema_reader *r, struct regex_automaton *a, const struct ids *list)
{
    const struct regexes *x = &r->regexes;
    bool ok = add_cut(r, a, 0);
    for (size_t i = 0; i < list->n && ok; i++) {
        const struct regex_term *t = term_at(r, list->ids[i]);
        for (int32_t k = 0; t->kind == REGEX_CHARS && k < t->n && ok; k++) {
            struct char_range range = x->ranges[t->first + k];
            ok = add_cut(r, a, range.low) && (range.high == MAX_CODE_POINT || add_cut(r, a, range.high + 1));
        }
    }
    if (!ok || !schema_spend(r, 2 * a->n_cuts))
        return false;
    qsort(a->cuts, a->n_cuts, sizeof *a->cuts, compare_cuts);
    size_t n = 0;
    for (size_t i = 0; i < a->n_cuts; i++)
        if (n == 0 || a->cuts[n - 1] != a->cuts[i])
            a->cuts[n++] = a->cuts[i];
    a->n_cuts = n;
    if (!schema_grow(r, &a->signs, &a->signs_room, n, sizeof *a->signs) ||
        !schema_grow(r, &a->classes, &a->classes_room, n, sizeof *a->classes))
        return false;
    memset(a->signs, 0, n * sizeof *a->signs);
    for (size_t i = 0; i < list->n; i++) {
        const struct regex_term *t = term_at(r, list->ids[i]);
        if (t->kind != REGEX_CHARS)
            continue;
        if (!schema_spend(r, n / 4))
            return false;
        for (size_t k = 0; k < n; k++)
            if (has_char(r, t, a->cuts[k]))
                a->signs[k] += mix64((uint64_t)list->ids[i]) | 1;
    }
    for (size_t k = 0; k < n; k++) {
        size_t i = 0;
        while (a->signs[i] != a->signs[k])
            i++;
        if (i == k && a->n_classes == MAX_REGEX_CLASSES)
            return schema_fail(r, "pattern: it tells apart more than %d sets of characters",
                               MAX_REGEX_CLASSES) >= 0;
        if (i == k)
            a->samples[a->n_classes] = a->cuts[k];
        a->classes[k] = i == k ? a->n_classes++ : a->classes[i];
        if (!schema_spend(r, i / 8))
            return false;
    }
    return true;
}

/* The number of a term's state. */
static int32_t state_of(struct schema_reader *r, struct regex_automaton *a, int32_t term)
{
    int32_t known = key_map_find(&a->by_term, mix64((uint64_t)term));
    if (known >= 0)
        return known;
    if (a->n_states == MAX_REGEX_STATES)
        return schema_fail(r,
                           "the pattern and the lengths, or names, together need more than %d states; use "
                           "smaller lengths or a simpler pattern",
                           MAX_REGEX_STATES);
    if (!schema_grow(r, &a->terms, &a->terms_room, a->n_states + 1, sizeof *a->terms) ||
        !regex_note(r, &a->by_term, mix64((uint64_t)term), (int32_t)a->n_states))
        return -1;
    a->terms[a->n_states] = term;
    return (int32_t)a->n_states++;
}

static bool find_states(struct schema_reader *r, struct regex_automaton *a, int32_t term)
{
    int32_t none = regex_none(r);
    size_t n_classes = (size_t)a->n_classes;
    if (state_of(r, a, term) < 0)
        return false;
    for (size_t i = 0; i < a->n_states; i++) {
        if (!schema_grow(r, &a->targets, &a->targets_room, (i + 1) * n_classes, sizeof *a->targets) ||
            !schema_spend(r, n_classes / 4))
            return false;
        for (size_t k = 0; k < n_classes; k++) {
            int32_t next = derive(r, a->terms[i], a->samples[k], (int)k);
            int32_t target = next < 0 || next == none ? -1 : state_of(r, a, next);
            if (r->status != TUTTI_OK)
                return false;
            a->targets[i * n_classes + k] = target;
        }
    }
    return true;
}

/* Finds the states that lead to an end, by passes from the last state to the first. */
static bool find_live(struct schema_reader *r, struct regex_automaton *a)
{
    size_t n_classes = (size_t)a->n_classes;
    if (!schema_grow(r, &a->is_live, &a->live_room, a->n_states, sizeof *a->is_live))
        return false;
    for (size_t i = 0; i < a->n_states; i++)
        a->is_live[i] = term_at(r, a->terms[i])->accepts_empty;
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (size_t i = a->n_states; i-- > 0;) {
            if (!schema_spend(r, 1 + n_classes / 32))
                return false;
            for (size_t k = 0; k < n_classes && !a->is_live[i]; k++) {
                int32_t target = a->targets[i * n_classes + k];
                a->is_live[i] = target >= 0 && a->is_live[target];
                has_changed = has_changed || a->is_live[i];
            }
        }
    }
    return true;
}

static bool regex_automaton_make(struct schema_reader *r, struct regex_automaton *a, int32_t term)
{
    struct ids list = { 0 };
    struct key_map known = { 0 };
    if (term < 0 || r->status != TUTTI_OK)
        return false;
    forget_derivatives(r);
    bool ok = list_terms(r, term, &list, &known) && find_classes(r, a, &list) && find_states(r, a, term) &&
              find_live(r, a);
    forget_derivatives(r);
    key_map_clear(&known);
    ids_clear(&list);
    return ok;
}

bool regex_check_none(struct schema_reader *r, int32_t term, bool *is_none)
{
    struct regex_automaton a = { 0 };
    bool ok = regex_automaton_make(r, &a, term);
    *is_none = ok && !a.is_live[0];
    regex_automaton_clear(&a);
    return ok;
}

/* ---- into the grammar ---- */

/* The rule of a state; *is_new: it must be defined. */
static int32_t rule_of_state(struct schema_reader *r, int32_t term, bool *is_new)
{
    uint64_t key = mix64((uint64_t)term);
    int32_t rule = key_map_find(&r->regexes.rules, key);
    *is_new = rule < 0;
    if (rule < 0)
        rule = syntax_add_rule(r->out, NULL, 0);
    return rule < 0 || (*is_new && !regex_note(r, &r->regexes.rules, key, rule)) ? -1 : rule;
}

/* The characters that lead from a state to a target. */
static int32_t chars_between(struct schema_reader *r, const struct regex_automaton *a, size_t state,
                             int32_t target)
{
    struct char_range *ranges = calloc(a->n_cuts, sizeof *ranges);
    size_t n = 0;
    if (!ranges)
        return schema_no_memory(r);
    for (size_t i = 0; i < a->n_cuts; i++) {
        uint32_t low = a->cuts[i], high = i + 1 < a->n_cuts ? a->cuts[i + 1] - 1 : MAX_CODE_POINT;
        if (a->targets[state * (size_t)a->n_classes + (size_t)a->classes[i]] != target)
            continue;
        if (n > 0 && ranges[n - 1].high + 1 == low)
            ranges[n - 1].high = high;
        else
            ranges[n++] = (struct char_range){ low, high };
    }
    int32_t node = schema_spend(r, a->n_cuts / 8) ? schema_chars(r, ranges, n) : -1;
    free(ranges);
    return node;
}

static bool define_state(struct schema_reader *r, const struct regex_automaton *a, size_t state, int32_t rule,
                         const int32_t *rules)
{
    struct syntax *s = r->out;
    int32_t ways[MAX_REGEX_CLASSES + 1], targets[MAX_REGEX_CLASSES];
    size_t n = 0, n_targets = 0;
    for (int k = 0; k < a->n_classes; k++) {
        int32_t target = a->targets[state * (size_t)a->n_classes + (size_t)k];
        bool is_new = target >= 0 && a->is_live[target];
        for (size_t i = 0; i < n_targets && is_new; i++)
            is_new = targets[i] != target;
        if (!is_new)
            continue;
        targets[n_targets++] = target;
        ways[n++] = SYNTAX_SEQ(s, chars_between(r, a, state, target), syntax_rule(s, rules[target]));
    }
    if (term_at(r, a->terms[state])->accepts_empty)
        ways[n++] = syntax_empty(s);
    if (r->status == TUTTI_OK)
        syntax_define(s, rule, syntax_choice(s, ways, n));
    return r->status == TUTTI_OK;
}

static int32_t automaton_node(struct schema_reader *r, int32_t term)
{
    struct regex_automaton a = { 0 };
    int32_t node = -1;
    bool ok = regex_automaton_make(r, &a, term);
    if (ok && !a.is_live[0]) {
        node = syntax_choice(r->out, NULL, 0);
    } else if (ok) {
        int32_t *rules = calloc(a.n_states, sizeof *rules);
        bool *is_new = calloc(a.n_states, sizeof *is_new);
        ok = (rules && is_new) || schema_no_memory(r) >= 0;
        assert(!ok || (rules && is_new));
        for (size_t i = 0; i < a.n_states && ok; i++)
            if (a.is_live[i])
                ok = (rules[i] = rule_of_state(r, a.terms[i], &is_new[i])) >= 0;
        for (size_t i = 0; i < a.n_states && ok; i++)
            ok = !is_new[i] || define_state(r, &a, i, rules[i], rules);
        node = ok ? syntax_rule(r->out, rules[0]) : -1;
        free(rules);
        free(is_new);
    }
    regex_automaton_clear(&a);
    return node;
}

/* Recurses to the depth of terms. */
static int32_t plain_node(struct schema_reader *r, int32_t term)
{
    struct ids nodes = { 0 };
    struct syntax *s = r->out;
    bool ok = schema_spend(r, 1);
    int32_t node = -1;
    struct regex_term t = *term_at(r, term);
    switch (t.kind) {
    case REGEX_CHARS:
        return schema_chars(r, r->regexes.ranges + t.first, (size_t)t.n);
    case REGEX_EMPTY:
        return syntax_empty(s);
    case REGEX_REPEAT:
        return syntax_repeat(s, plain_node(r, t.first), t.min, t.max);
    case REGEX_CAT:
        for (; t.kind == REGEX_CAT && ok; t = *term_at(r, term)) {
            ok = schema_spend(r, 1) && ids_add(&nodes, plain_node(r, t.first));
            term = t.n;
        }
        ok = ok && ids_add(&nodes, plain_node(r, term));
        node = ok ? syntax_seq(s, nodes.ids, nodes.n) : -1;
        break;
    default:
        for (int32_t i = 0; i < t.n && ok; i++)
            ok = schema_spend(r, 1) && ids_add(&nodes, plain_node(r, r->regexes.children[t.first + i]));
        node = ok ? syntax_choice(s, nodes.ids, nodes.n) : -1;
        break;
    }
    ids_clear(&nodes);
    return ok ? node : r->status != TUTTI_OK ? -1 : schema_no_memory(r);
}

int32_t regex_node(struct schema_reader *r, int32_t term)
{
    if (term < 0 || r->status != TUTTI_OK)
        return -1;
    return term_at(r, term)->is_plain ? plain_node(r, term) : automaton_node(r, term);
}
