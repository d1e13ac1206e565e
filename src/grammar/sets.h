/* Where a text may stand in a grammar: a set of places, each a state and a stack of states to go on from. Sets, stacks and the
 * ways between sets are found once and kept, so that a byte mostly costs one look into a table.
 *
 * A set is closed: its places are those that read a byte next. Thompson, "Regular Expression Search Algorithm", 1968; the
 * tables are filled on demand, as in Cox, "Regular Expression Matching in the Wild", 2010.
 *
 * One thread at a time. */
#ifndef TUTTI_GRAMMAR_SETS_H
#define TUTTI_GRAMMAR_SETS_H

#include "grammar/automaton.h"

enum {
    MAX_PLACES = 2048, /* of one set: more means that the grammar says the same in too many ways */
};

/* Stacks: the number of the topmost frame. Equal stacks have equal numbers. */
enum { STACK_EMPTY = 0, STACK_UNKNOWN = 1 };

struct frame {
    int32_t state, below, depth;
};

struct place {
    int32_t state, stack;
};

enum { SET_NOT_KNOWN = 0, SET_DEAD = 1 };

struct set {
    int32_t first, n; /* in the places */
    bool can_end;     /* a whole text ends here */
    bool escapes;     /* the end of STACK_UNKNOWN's rule */
    int32_t reach;    /* frames above its places' lowest one that the ways to it need at most */
};

struct sets {
    const struct automaton *a;
    struct frame *frames;
    struct place *places;
    struct set *sets;
    int32_t *next; /* [sets_room][n_classes] SET_NOT_KNOWN: not looked for yet */
    size_t n_frames, frames_room, n_places, places_room, n_sets, sets_room;
    int32_t *frame_slots, *set_slots; /* open addressing, number + 1; 0: free */
    size_t n_frame_slots, n_set_slots;
    /* Scratch of one closure */
    struct place *work, *found; /* [MAX_PLACES] */
    uint64_t *seen;             /* [4 * MAX_PLACES] */
    uint32_t *seen_mark;
    uint32_t mark;
    size_t n_work, n_found, n_seen;
    int32_t reach;
    struct budget
        *budget; /* is spent from, and not looked at: one way costs 2,048 places with their edges at most */
    enum tutti_status status; /* of the first failure: from then on every way is SET_DEAD, and not kept */
};

MUST_CHECK enum tutti_status sets_init(struct sets *s, const struct automaton *a, struct budget *budget,
                                       struct tutti_error *err);
void sets_clear(struct sets *s); /* a zeroed one is allowed */
size_t sets_bytes(const struct sets *s);

/* The set that one place leads to without a byte. SET_DEAD: none, or status is set. */
int32_t sets_close(struct sets *s, int32_t state, int32_t stack);

/* One more frame; -1: too deep, or no memory. */
int32_t sets_push(struct sets *s, int32_t below, int32_t state);

/* The set for exactly these closed places, in any order. */
int32_t sets_intern(struct sets *s, struct place *places, size_t n, bool can_end, bool escapes);

int32_t sets_find_next(struct sets *s, int32_t set, int byte_class);

static inline int32_t sets_step(struct sets *s, int32_t set, uint8_t byte)
{
    int byte_class = s->a->class_of[byte];
    int32_t next = s->next[(size_t)set * (size_t)s->a->n_classes + (size_t)byte_class];
    return next != SET_NOT_KNOWN ? next : sets_find_next(s, set, byte_class);
}

#endif
