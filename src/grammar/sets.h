/* The possible positions of a text in a grammar: sets of places, each a state and a stack of
 * return states. Sets, stacks and transitions between sets are cached, so a byte usually costs
 * one table look-up.
 *
 * A set is closed: it contains only places that read a byte next. Thompson, "Regular Expression
 * Search Algorithm", 1968; the tables are filled lazily, as in Cox, "Regular Expression
 * Matching in the Wild", 2010.
 *
 * One thread at a time. */
#ifndef TUTTI_GRAMMAR_SETS_H
#define TUTTI_GRAMMAR_SETS_H

#include "base/containers/key_map.h"
#include "grammar/automaton.h"

enum {
    MAX_PLACES = 2048, /* of one set: with more the grammar is too ambiguous */
};

/* A stack is the number of its top frame. Equal stacks have equal numbers. */
enum { STACK_EMPTY = 0, STACK_UNKNOWN = 1 };

struct grammar_frame {
    int32_t state, below, depth;
};

struct grammar_position {
    int32_t state, stack;
};

enum { SET_NOT_KNOWN = 0, SET_DEAD = 1 };

struct set {
    int32_t first, n; /* range in places */
    bool can_end;     /* a whole text ends here */
    bool escapes;     /* the end of STACK_UNKNOWN's rule */
    int32_t reach;    /* maximum stack frames, above the lowest of its places, needed on the way to it */
};

struct sets {
    const struct automaton *a;
    struct grammar_frame *frames;
    struct grammar_position *places;
    struct set *sets;
    int32_t *next; /* [sets_room][n_classes] transitions; SET_NOT_KNOWN: not computed yet */
    size_t n_frames, frames_room, n_places, places_room, n_sets, sets_room;
    struct key_map frames_by_pair, sets_by_places; /* by the hash of (below, state), of the set's content */
    /* Scratch of one closure */
    struct grammar_position *work, *found; /* [MAX_PLACES] */
    uint64_t *seen;                        /* [4 * MAX_PLACES] */
    uint32_t *seen_mark;
    uint32_t mark;
    size_t n_work, n_found, n_seen;
    int32_t reach;
    /* Steps are spent but not checked here: one transition costs at most 2,048 places with their
     * edges. */
    struct budget *budget;
    enum tutti_status status; /* of the first failure: then every transition is SET_DEAD, and is not cached */
};

MUST_CHECK enum tutti_status sets_init(struct sets *s, const struct automaton *a, struct budget *budget,
                                       struct tutti_error *err);
void sets_clear(struct sets *s); /* a zeroed one is allowed */
size_t sets_bytes(const struct sets *s);

/* The closure of one place: the set reached without reading a byte. SET_DEAD: empty, or status is
 * set. */
int32_t sets_close(struct sets *s, int32_t state, int32_t stack);

/* Pushes a frame; -1: too deep, or out of memory. */
int32_t sets_push(struct sets *s, int32_t below, int32_t state);

/* The set for exactly these closed places, in any order. */
int32_t sets_intern(struct sets *s, struct grammar_position *places, size_t n, bool can_end, bool escapes);

int32_t sets_find_next(struct sets *s, int32_t set, int byte_class);

static inline int32_t sets_step(struct sets *s, int32_t set, uint8_t byte)
{
    int byte_class = s->a->class_of[byte];
    int32_t next = s->next[(size_t)set * (size_t)s->a->n_classes + (size_t)byte_class];
    return next != SET_NOT_KNOWN ? next : sets_find_next(s, set, byte_class);
}

#endif
