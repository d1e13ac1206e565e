#include "grammar/sets.h"

#include "base/containers/array.h"
#include "base/hash.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

enum { SEEN_SLOTS = 4 * MAX_PLACES };

static uint64_t hash_pair(int32_t a, int32_t b)
{
    return mix64((uint64_t)(uint32_t)a << 32 | (uint32_t)b);
}

static void give_up(struct sets *s, enum tutti_status status)
{
    if (s->status == TUTTI_OK)
        s->status = status;
}

static bool grow_or_give_up(struct sets *s, void *array, size_t *capacity, size_t n, size_t item_bytes)
{
    bool ok = array_grow(array, n, capacity, item_bytes);
    if (!ok)
        give_up(s, TUTTI_E_MEMORY);
    return ok;
}

static bool sets_add_key(struct sets *s, struct key_map *map, uint64_t key, size_t number)
{
    bool ok = key_map_add(map, key, (int32_t)number);
    if (!ok)
        give_up(s, TUTTI_E_MEMORY);
    return ok;
}

/* ---- stacks ---- */

int32_t sets_push(struct sets *s, int32_t below, int32_t state)
{
    int32_t depth = s->frames[below].depth + 1;
    if (depth > MAX_STACK_DEPTH)
        return -1;
    uint64_t key = hash_pair(below, state); /* of no other pair */
    int32_t known = key_map_find(&s->frames_by_pair, key);
    if (known >= 0)
        return known;
    if (!grow_or_give_up(s, &s->frames, &s->frames_room, s->n_frames, sizeof *s->frames) ||
        !sets_add_key(s, &s->frames_by_pair, key, s->n_frames))
        return -1;
    s->frames[s->n_frames] = (struct grammar_frame){ state, below, depth };
    return (int32_t)s->n_frames++;
}

/* ---- sets ---- */

static uint64_t hash_set(const struct grammar_position *places, size_t n, bool can_end, bool escapes)
{
    return hash64(can_end * 2u + escapes, places, n * sizeof *places);
}

static int compare_places(const void *a, const void *b)
{
    const struct grammar_position *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

static void sort_places(struct grammar_position *places, size_t n)
{
    if (n > 16) {
        qsort(places, n, sizeof *places, compare_places);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        struct grammar_position moved = places[i];
        size_t k = i;
        for (; k > 0 && compare_places(&places[k - 1], &moved) > 0; k--)
            places[k] = places[k - 1];
        places[k] = moved;
    }
}

/* Grows the sets for one more, with a row of the table. */
static bool grow_sets(struct sets *s)
{
    size_t before = s->sets_room, row = (size_t)s->a->n_classes;
    if (s->n_sets < before)
        return true;
    if (!grow_or_give_up(s, &s->sets, &s->sets_room, s->n_sets, sizeof *s->sets))
        return false;
    int32_t *next = realloc(s->next, s->sets_room * row * sizeof *next);
    if (!next) {
        s->sets_room = before;
        give_up(s, TUTTI_E_MEMORY);
        return false;
    }
    memset(next + before * row, 0, (s->sets_room - before) * row * sizeof *next);
    s->next = next;
    return true;
}

static bool make_room_for_places(struct sets *s, size_t n)
{
    while (s->n_places + n > s->places_room)
        if (!grow_or_give_up(s, &s->places, &s->places_room, s->places_room, sizeof *s->places))
            return false;
    return true;
}

int32_t sets_intern(struct sets *s, struct grammar_position *places, size_t n, bool can_end, bool escapes)
{
    if (s->status != TUTTI_OK)
        return SET_DEAD;
    sort_places(places, n);
    uint64_t key = hash_set(places, n, can_end, escapes), at = key;
    int32_t known;
    while ((known = key_map_next(&s->sets_by_places, key, &at)) >= 0) {
        const struct set *set = &s->sets[known];
        if ((size_t)set->n == n && set->can_end == can_end && set->escapes == escapes &&
            (n == 0 || memcmp(s->places + set->first, places, n * sizeof *places) == 0))
            return known;
    }
    budget_spend(s->budget, 1 + s->a->n_classes / 16);
    if (!grow_sets(s) || !make_room_for_places(s, n) || !sets_add_key(s, &s->sets_by_places, key, s->n_sets))
        return SET_DEAD;
    if (n > 0)
        memcpy(s->places + s->n_places, places, n * sizeof *places);
    s->sets[s->n_sets] = (struct set){
        .first = (int32_t)s->n_places, .n = (int32_t)n, .can_end = can_end, .escapes = escapes
    };
    s->n_places += n;
    return (int32_t)s->n_sets++;
}

/* ---- closure ---- */

static void begin_closure(struct sets *s)
{
    s->n_work = s->n_found = s->n_seen = 0;
    s->reach = 0;
    if (++s->mark == 0) {
        memset(s->seen_mark, 0, SEEN_SLOTS * sizeof *s->seen_mark);
        s->mark = 1;
    }
}

/* Whether the stack has room for the frames that the state needs until the end of its rule. So
 * every accepted text can be completed. */
static bool sets_have_room(struct sets *s, int32_t state, int32_t stack)
{
    int32_t reach = s->frames[stack].depth + s->a->needs[state];
    if (reach > MAX_STACK_DEPTH)
        return false;
    if (reach > s->reach)
        s->reach = reach;
    return true;
}

static void look_at(struct sets *s, int32_t state, int32_t stack)
{
    if (!sets_have_room(s, state, stack))
        return;
    uint64_t key = (uint64_t)(uint32_t)state << 32 | (uint32_t)stack;
    size_t k = hash_pair(state, stack) & (SEEN_SLOTS - 1);
    for (; s->seen_mark[k] == s->mark; k = (k + 1) & (SEEN_SLOTS - 1))
        if (s->seen[k] == key)
            return;
    budget_spend(s->budget, 1 + (s->a->first_edge[state + 1] - s->a->first_edge[state]) / 8);
    if (s->n_seen == MAX_PLACES) {
        give_up(s, TUTTI_E_LIMIT);
        return;
    }
    s->n_seen++;
    s->seen_mark[k] = s->mark;
    s->seen[k] = key;
    s->work[s->n_work++] = (struct grammar_position){ state, stack };
}

/* Follows all edges that read no byte, and interns the closure. */
static int32_t end_closure(struct sets *s)
{
    const struct automaton *a = s->a;
    bool can_end = false, escapes = false;
    while (s->n_work > 0 && s->status == TUTTI_OK) {
        struct grammar_position at = s->work[--s->n_work];
        bool reads = false;
        if (a->is_end[at.state]) {
            can_end |= at.stack == STACK_EMPTY;
            escapes |= at.stack == STACK_UNKNOWN;
            if (at.stack > STACK_UNKNOWN)
                look_at(s, s->frames[at.stack].state, s->frames[at.stack].below);
        }
        for (int32_t k = a->first_edge[at.state]; k < a->first_edge[at.state + 1]; k++) {
            const struct edge *e = &a->edges[k];
            int32_t stack = at.stack;
            reads |= e->kind == EDGE_BYTE;
            if (e->kind == EDGE_NOTHING)
                look_at(s, e->to, stack);
            if (e->kind != EDGE_CALL)
                continue;
            if (!a->is_end[e->to])
                stack = sets_have_room(s, e->to, stack) ? sets_push(s, stack, e->to) : -1;
            if (stack >= 0)
                look_at(s, e->call, stack);
        }
        if (reads)
            s->found[s->n_found++] = at;
    }
    if (s->status != TUTTI_OK || (s->n_found == 0 && !can_end && !escapes))
        return SET_DEAD;
    int32_t set = sets_intern(s, s->found, s->n_found, can_end, escapes);
    if (set != SET_DEAD && s->sets[set].reach < s->reach)
        s->sets[set].reach = s->reach;
    return set;
}

int32_t sets_close(struct sets *s, int32_t state, int32_t stack)
{
    begin_closure(s);
    look_at(s, state, stack);
    return end_closure(s);
}

int32_t sets_find_next(struct sets *s, int32_t set, int byte_class)
{
    const struct automaton *a = s->a;
    uint8_t byte = a->a_byte_of[byte_class];
    begin_closure(s);
    for (int32_t i = 0; i < s->sets[set].n && s->status == TUTTI_OK; i++) {
        struct grammar_position at = s->places[s->sets[set].first + i];
        budget_spend(s->budget, 1 + (a->first_edge[at.state + 1] - a->first_edge[at.state]) / 8);
        for (int32_t k = a->first_edge[at.state]; k < a->first_edge[at.state + 1]; k++) {
            const struct edge *e = &a->edges[k];
            if (e->kind == EDGE_BYTE && byte >= e->low && byte <= e->high)
                look_at(s, e->to, at.stack);
        }
    }
    int32_t next = end_closure(s);
    if (s->status == TUTTI_OK)
        s->next[(size_t)set * (size_t)a->n_classes + (size_t)byte_class] = next;
    return next;
}

/* ---- all together ---- */

enum tutti_status sets_init(struct sets *s, const struct automaton *a, struct budget *budget,
                            struct tutti_error *err)
{
    *s = (struct sets){ .a = a, .budget = budget };
    s->work = calloc(MAX_PLACES, sizeof *s->work);
    s->found = calloc(MAX_PLACES, sizeof *s->found);
    s->seen = calloc(SEEN_SLOTS, sizeof *s->seen);
    s->seen_mark = calloc(SEEN_SLOTS, sizeof *s->seen_mark);
    bool ok = s->work && s->found && s->seen && s->seen_mark &&
              grow_or_give_up(s, &s->frames, &s->frames_room, 0, sizeof *s->frames) && grow_sets(s) &&
              make_room_for_places(s, 1);
    if (!ok) {
        sets_clear(s);
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    }
    s->frames[STACK_EMPTY] = s->frames[STACK_UNKNOWN] = (struct grammar_frame){ -1, -1, 0 };
    s->n_frames = 2;
    s->sets[SET_NOT_KNOWN] = (struct set){ 0 };
    s->n_sets = 1;
    int32_t dead = sets_intern(s, s->found, 0, false, false);
    if (dead == SET_DEAD && s->n_sets == 2)
        for (int c = 0; c < a->n_classes; c++)
            s->next[a->n_classes + c] = SET_DEAD;
    return TUTTI_OK;
}

void sets_clear(struct sets *s)
{
    free(s->frames);
    free(s->places);
    free(s->sets);
    free(s->next);
    key_map_clear(&s->frames_by_pair);
    key_map_clear(&s->sets_by_places);
    free(s->work);
    free(s->found);
    free(s->seen);
    free(s->seen_mark);
    *s = (struct sets){ 0 };
}

size_t sets_bytes(const struct sets *s)
{
    return s->frames_room * sizeof *s->frames + s->places_room * sizeof *s->places +
           s->sets_room * (sizeof *s->sets + (size_t)s->a->n_classes * sizeof *s->next) +
           (s->frames_by_pair.n_slots + s->sets_by_places.n_slots) * sizeof(struct key_slot) +
           MAX_PLACES * 2 * sizeof(struct grammar_position) +
           SEEN_SLOTS * (sizeof *s->seen + sizeof *s->seen_mark);
}
