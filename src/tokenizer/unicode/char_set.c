#include "tokenizer/unicode/char_set.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets ---- */

static bool add(struct char_set *set, uint32_t c)
{
    if (set->n == set->capacity) {
        size_t capacity = 2 * set->capacity + 64;
        uint32_t *toggles = realloc(set->toggles, capacity * sizeof *toggles);
        if (!toggles)
            return false;
        set->toggles = toggles;
        set->capacity = capacity;
    }
    set->toggles[set->n++] = c;
    return true;
}

bool char_set_append(struct char_set *set, uint32_t from, uint32_t to)
{
    assert(set->n % 2 == 0 && from <= to && (set->n == 0 || set->toggles[set->n - 1] <= from));
    if (set->n > 0 && set->toggles[set->n - 1] == from) {
        set->toggles[set->n - 1] = to + 1;
        return true;
    }
    return add(set, from) && add(set, to + 1);
}

void char_set_clear(struct char_set *set)
{
    free(set->toggles);
    *set = (struct char_set){ .n = 0 };
}

static bool is_member(enum set_operation operation, bool in_first, bool in_second)
{
    switch (operation) {
    case SET_OR:
        return in_first || in_second;
    case SET_AND:
        return in_first && in_second;
    case SET_AND_NOT:
        return in_first && !in_second;
    case SET_XOR:
        break;
    }
    return in_first != in_second;
}

bool char_set_join(struct char_set *set, enum set_operation operation, const uint32_t *toggles, size_t n)
{
    struct char_set out = { .n = 0 };
    size_t i = 0, k = 0;
    bool is_in = false;
    while (i < set->n || k < n) {
        uint32_t c = i == set->n || (k < n && toggles[k] < set->toggles[i]) ? toggles[k] : set->toggles[i];
        i += i < set->n && set->toggles[i] == c;
        k += k < n && toggles[k] == c;
        if (is_member(operation, i % 2, k % 2) == is_in)
            continue;
        is_in = !is_in;
        if (!add(&out, c)) {
            char_set_clear(&out);
            return false;
        }
    }
    char_set_clear(set);
    *set = out;
    return true;
}

/* ---- properties ---- */

enum { MAX_NAME = 40 };

/* Keeps only letters, lowercased; false: none, or too many. */
static bool simplify(char out[MAX_NAME + 1], const char *name, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (n == MAX_NAME)
            return false;
        out[n++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    out[n] = 0;
    return n > 0;
}

bool property_find(struct property *out, const char *name, size_t n_bytes)
{
    const struct unicode_tables *t = &UNICODE_TABLES;
    char simple[MAX_NAME + 1];
    if (!simplify(simple, name, n_bytes))
        return false;
    for (size_t i = 0; i < t->n_categories; i++) {
        if (strcmp(t->categories[i].name, simple) == 0) {
            *out = (struct property){ .mask = t->categories[i].mask };
            return true;
        }
    }
    for (size_t i = 0; i < t->n_sets; i++) {
        if (strcmp(t->sets[i].name, simple) == 0) {
            *out = (struct property){ .mask = t->sets[i].mask, .set = &t->sets[i] };
            return true;
        }
    }
    for (size_t i = 0; i < t->n_scripts; i++) {
        if (strcmp(t->scripts[i].name, simple) == 0) {
            *out = (struct property){ .script = t->scripts[i].name, .script_id = t->scripts[i].script };
            return true;
        }
    }
    return false;
}

static bool run_is_in(const struct property *p, uint32_t run)
{
    return p->script ? (int)(run & 0xFF) == p->script_id : p->mask >> (run & 0xFF) & 1;
}

static const uint32_t *runs_of(const struct property *p, size_t *n)
{
    *n = p->script ? UNICODE_TABLES.n_script_runs : UNICODE_TABLES.n_category_runs;
    return p->script ? UNICODE_TABLES.script_runs : UNICODE_TABLES.category_runs;
}

bool property_set(const struct property *p, struct char_set *set)
{
    size_t n;
    const uint32_t *runs = runs_of(p, &n);
    for (size_t i = 0; i < n; i++) {
        uint32_t end = i + 1 < n ? runs[i + 1] >> 8 : CODE_POINTS;
        if (run_is_in(p, runs[i]) && !char_set_append(set, runs[i] >> 8, end - 1))
            return false;
    }
    return !p->set || char_set_join(set, SET_XOR, p->set->toggles, p->set->n_toggles);
}

/* How many of n ascending numbers are at most c. */
static size_t count_up_to(const uint32_t *numbers, size_t n, int shift, uint32_t c)
{
    size_t low = 0;
    while (low < n) {
        size_t middle = low + (n - low) / 2;
        if (numbers[middle] >> shift <= c)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

bool toggles_have(const uint32_t *toggles, size_t n, uint32_t c)
{
    return count_up_to(toggles, n, 0, c) % 2;
}

bool property_has(const struct property *p, uint32_t c)
{
    size_t n;
    const uint32_t *runs = runs_of(p, &n);
    bool is_in = run_is_in(p, runs[count_up_to(runs, n, 8, c) - 1]); /* the first run begins at 0 */
    bool is_toggled = p->set && toggles_have(p->set->toggles, p->set->n_toggles, c);
    return is_in != is_toggled;
}
