/* Python-like values of a rendering: they are in the rendering's arena and are passed by value. */
#ifndef TUTTI_TEMPLATE_VALUES_VALUE_H
#define TUTTI_TEMPLATE_VALUES_VALUE_H

#include "base/containers/arena.h"
#include "template/template.h"

#include <stdint.h>

enum value_kind {
    VALUE_UNDEFINED, /* Jinja's: bytes hold the name for messages */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST, /* every sequence that is not a string */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_BUILTIN, /* a function, or a method bound to its object */
    VALUE_MACRO,
    VALUE_LOOP,
    VALUE_ABSENT, /* an argument that was not given; never seen by templates */
};

/* The origin of a string: the template, the user, or both. */
enum origin { ORIGIN_TRUSTED, ORIGIN_USER, ORIGIN_MIXED };

struct value {
    enum value_kind kind;
    enum origin origin; /* of a string */
    bool is_markup;     /* a string from `safe` or `escape`: text added to it is escaped */
    union {
        bool is_true;
        int64_t i;
        double f;
        const char *bytes; /* not terminated; UTF-8, an invalid byte counts as one character */
        struct list *list;
        struct dict *dict;
        struct bound *bound;
        struct macro *macro;
        struct loop *loop;
    };
    size_t n_bytes;
    const uint8_t *marks; /* of ORIGIN_MIXED: one per byte, 1: user text */
};

enum list_kind { LIST_LIST, LIST_TUPLE, LIST_GENERATOR, LIST_RANGE, LIST_KEYS, LIST_VALUES, LIST_ITEMS };

struct list {
    enum list_kind kind;
    bool is_shared; /* its items are also a slice's, or the list's that it is a slice of */
    struct value *items;
    size_t n, capacity;
};

struct dict {
    struct pair {
        struct value key, value;
    } * pairs; /* in order of insertion */
    size_t n, capacity;
    uint32_t *slots; /* [n_slots] index + 1 of a pair, by hash; only for many pairs */
    size_t n_slots;
};

/* One rendering. The first error sticks: functions may still be called after it, without effect. */
struct render {
    struct arena arena;
    struct template_limits limits;
    uint64_t n_steps;
    int depth;
    int64_t now;
    const char *const *roles;
    const char *name; /* the template's */
    int line;         /* of what is being evaluated */
    enum tutti_status status;
    struct tutti_error *err;
    struct text *out;      /* the output: the rendered text, or a block's capture */
    struct frame *globals; /* the variables */
};

static inline bool failed(const struct render *r)
{
    return r->status != TUTTI_OK;
}

/* Sets the error unless one is set; returns an undefined value, for return statements. */
struct value fail(struct render *r, enum tutti_status status, const char *format, ...) PRINTF_LIKE(3, 4);
#define fail_type(r, ...) fail(r, TUTTI_E_ARGUMENT, __VA_ARGS__)

/* Counts n_bytes of processed text (and one step); false: the limit is reached. */
bool spend(struct render *r, size_t n_bytes);
/* The same for n_bytes that are processed character by character. */
static inline bool spend_chars(struct render *r, size_t n_bytes)
{
    return spend(r, 4 * n_bytes);
}
/* Enters a nested value, expression or call; false: too deep. Call leave() in either case. */
bool enter(struct render *r);
void leave(struct render *r);
/* Allocates from the arena; NULL: failed, the error is set. */
void *take(struct render *r, size_t n_items, size_t item_bytes);
/* arena_grow(); false: failed. */
bool take_room(struct render *r, void *array, size_t n, size_t *capacity, size_t item_bytes);

/* ---- constructors ---- */
struct value value_undefined(const char *name);
struct value value_none(void);
struct value value_absent(void);
struct value value_bool(bool is_true);
struct value value_int(int64_t i);
struct value value_float(double f);
struct value value_string(const char *bytes, size_t n_bytes); /* trusted, borrowed */
struct value value_cstring(const char *text);
struct value value_slice(struct value string, size_t begin, size_t end); /* bytes of a string */
struct value value_list(struct render *r, enum list_kind kind);
struct value value_dict(struct render *r);
struct value value_pair(struct render *r, struct value first, struct value second); /* a tuple */
struct value value_from_json(struct render *r, const json_t *json, enum origin origin, bool is_role);

/* ---- lists and dicts; false: failed ---- */
bool list_add(struct render *r, struct list *list, struct value item);
bool list_add_all(struct render *r, struct list *to, const struct list *from); /* from may be to, or NULL */
bool list_unshare(struct render *r, struct list *list); /* before its items change: gives it its own ones */
bool value_is_key(struct render *r, struct value key);  /* false: failed, the type cannot be a key */
bool dict_set(struct render *r, struct dict *dict, struct value key, struct value value);
bool dict_update(struct render *r, struct dict *to, const struct dict *from);
struct value *dict_find(struct render *r, const struct dict *dict, struct value key); /* NULL: none */
struct value *dict_find_name(struct render *r, const struct dict *dict, const char *name);
bool dict_remove(struct render *r, struct dict *dict, struct value key, struct value *out);

/* Sorts pairs by their keys, stably, also in reverse order; n log n for any input. */
void pairs_sort(struct render *r, struct pair *pairs, size_t n, bool is_reversed);

/* The items to iterate over: items of a list, keys of a dict, characters of a string, none for
 * undefined. A generator is empty afterwards. NULL: failed. */
struct list *value_iterate(struct render *r, struct value value);

/* ---- queries ---- */
bool value_is_true(struct value value);
bool value_is_number(struct value value);  /* bool, int, float, as in Python */
bool value_is_integer(struct value value); /* bool, int */
int64_t value_integer(struct value value); /* of an integer */
double value_number(struct value value);   /* of a number */
bool value_is_string(struct value value, const char *text);
bool value_equals(struct render *r, struct value a, struct value b);
/* -1, 0, 1; fails if the two cannot be ordered. */
int value_compare(struct render *r, struct value a, struct value b);
const char *value_type_name(struct value value); /* as in Python's messages */
/* A string with a terminating zero, for messages and name tables. */
const char *value_name(struct render *r, struct value string);

/* ---- text ---- */
struct text {
    char *bytes;
    uint8_t *marks; /* only with ORIGIN_MIXED */
    size_t n, capacity;
    enum origin origin;
};

/* Append. No effect if the rendering has failed. */
void text_add(struct render *r, struct text *text, const char *bytes, size_t n_bytes, enum origin origin);
void text_add_string(struct render *r, struct text *text, struct value string);
void text_add_cstring(struct render *r, struct text *text, const char *trusted);
/* As printed by str(). */
void text_add_value(struct render *r, struct text *text, struct value value);
/* As `+` of a Markup: escaped unless it is a Markup itself. */
void text_add_escaped(struct render *r, struct text *text, struct value string);
struct value text_value(const struct text *text);

struct value value_to_string(struct render *r, struct value value); /* str() */
struct value value_repr(struct render *r, struct value value);

struct json_style {
    bool ensure_ascii, sort_keys;
    struct value indent;      /* none, a number or a string */
    struct value item, colon; /* separators; absent: Python's */
};
struct value value_to_json(struct render *r, struct value value, const struct json_style *style);

/* *code: the code point at bytes. Returns its length; an invalid byte is its own code, length 1.
 * n_bytes >= 1. */
int text_char(const char *bytes, size_t n_bytes, uint32_t *code);
size_t text_length(const char *bytes, size_t n_bytes);                 /* in characters */
size_t text_offset(const char *bytes, size_t n_bytes, size_t n_chars); /* of a character, in bytes */
/* Offset of the first needle in bytes from offset from on; SIZE_MAX: none. */
size_t text_find(const char *bytes, size_t n_bytes, size_t from, const char *needle, size_t n_needle);
bool text_is_blank(uint32_t code); /* as str.isspace() */
bool text_is_line_end(uint32_t code);
bool text_is_printable(uint32_t code);
uint32_t text_upper(uint32_t code);
uint32_t text_lower(uint32_t code);
bool text_is_letter(uint32_t code); /* as str.isalpha() */
bool text_is_alnum(uint32_t code);  /* as str.isalnum() */

#endif
