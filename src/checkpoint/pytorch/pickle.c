#include "checkpoint/pytorch/pickle.h"

#include "base/bytes.h"
#include "base/containers/arena.h"
#include "base/containers/array.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STACK = 1 << 16, /* picklers emit the items of a container in batches of 1000 */
    MAX_MEMORY = 512 << 20,
    MAX_GLOBAL_BYTES = 256,
};

enum opcode {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_BINFLOAT = 'G',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_TUPLE = ')',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8A,
    OP_SHORT_BINUNICODE = 0x8C, /* protocol 4 from here on */
    OP_BINUNICODE8 = 0x8D,
    OP_BINBYTES8 = 0x8E,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
};

struct pickle {
    const uint8_t *bytes, *at, *end;
    const struct pickle_global *globals;
    size_t n_globals;
    const char *file; /* while reading */
    struct arena arena;
    struct pickle_value *stack; /* while reading */
    size_t n_stack, stack_size;
    struct pickle_items memo, persistents;
    struct pickle_value result;
    bool is_memory_short;
};

static bool items_add(struct pickle *p, struct pickle_items *items, const struct pickle_value *values,
                      size_t n)
{
    if (n > items->capacity - items->n) {
        size_t capacity = items->n + n;
        if (items->capacity > 0 && capacity < 2 * items->capacity)
            capacity = 2 * items->capacity;
        struct pickle_value *more = arena_take_raw(&p->arena, capacity * sizeof *more);
        p->is_memory_short = !more;
        if (!more)
            return false;
        if (items->n > 0)
            memcpy(more, items->at, items->n * sizeof *more);
        items->at = more;
        items->capacity = capacity;
    }
    if (n > 0)
        memcpy(items->at + items->n, values, n * sizeof *values);
    items->n += n;
    return true;
}

/* ---- errors ---- */

static enum tutti_status broken(const struct pickle *p, const char *what, struct tutti_error *err)
{
    if (p->is_memory_short)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory, or a pickle that needs more than %d MiB",
                         p->file, MAX_MEMORY >> 20);
    return error_set(err, TUTTI_E_FORMAT, "%s: pickle: %s at byte %td", p->file, what, p->at - p->bytes);
}

/* ---- stack ---- */

static bool stack_push(struct pickle *p, struct pickle_value value)
{
    if (p->n_stack == MAX_STACK)
        return false;
    p->is_memory_short = !array_grow(&p->stack, p->n_stack, &p->stack_size, sizeof *p->stack);
    if (p->is_memory_short)
        return false;
    p->stack[p->n_stack++] = value;
    return true;
}

static bool push_int(struct pickle *p, int64_t value)
{
    return stack_push(p, (struct pickle_value){ .kind = PICKLE_INT, .integer = value });
}

static bool push_items(struct pickle *p, enum pickle_kind kind, const struct pickle_value *values, size_t n)
{
    struct pickle_items *items = arena_take(&p->arena, sizeof *items);
    p->is_memory_short = !items;
    return items && items_add(p, items, values, n) &&
           stack_push(p, (struct pickle_value){ .kind = kind, .items = items });
}

/* The top value; NULL: the stack is empty or its top is a mark. */
static struct pickle_value *top(const struct pickle *p)
{
    bool is_there = p->n_stack > 0 && p->stack[p->n_stack - 1].kind != PICKLE_MARK;
    return is_there ? &p->stack[p->n_stack - 1] : NULL;
}

/* The index after the topmost mark, or SIZE_MAX. The caller consumes the values above it, so the
 * total time is linear. */
static size_t find_mark(const struct pickle *p)
{
    for (size_t i = p->n_stack; i > 0; i--) {
        if (p->stack[i - 1].kind == PICKLE_MARK)
            return i;
    }
    return SIZE_MAX;
}

/* Whether the top n values are not marks. */
static bool has(const struct pickle *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i >= p->n_stack || p->stack[p->n_stack - 1 - i].kind == PICKLE_MARK)
            return false;
    }
    return true;
}

/* ---- opcodes: false means that the pickle is broken ---- */

static const uint8_t *read(struct pickle *p, uint64_t n_bytes)
{
    if (n_bytes > (uint64_t)(p->end - p->at))
        return NULL;
    const uint8_t *bytes = p->at;
    p->at += n_bytes;
    return bytes;
}

static bool read_uint(struct pickle *p, int n_bytes, uint64_t *out)
{
    const uint8_t *bytes = read(p, (uint64_t)n_bytes);
    *out = bytes ? bytes_load_le(bytes, n_bytes) : 0;
    return bytes;
}

static bool push_string(struct pickle *p, int n_length_bytes)
{
    uint64_t n;
    const uint8_t *text = read_uint(p, n_length_bytes, &n) && n <= UINT32_MAX ? read(p, n) : NULL;
    return text && stack_push(p, (struct pickle_value){
                                     .kind = PICKLE_STRING, .n = (uint32_t)n, .text = (const char *)text });
}

static bool push_long(struct pickle *p)
{
    uint64_t n, value = 0;
    if (!read_uint(p, 1, &n) || n > 8 || !read_uint(p, (int)n, &value))
        return false;
    if (n > 0 && n < 8 && value >> (8 * n - 1)) /* the sign */
        value |= UINT64_MAX << (8 * n);
    return push_int(p, (int64_t)value);
}

static bool push_float(struct pickle *p)
{
    const uint8_t *bytes = read(p, 8);
    uint64_t bits = 0;
    double number;
    for (int i = 0; bytes && i < 8; i++)
        bits = bits << 8 | bytes[i];
    memcpy(&number, &bits, sizeof number);
    return bytes && stack_push(p, (struct pickle_value){ .kind = PICKLE_FLOAT, .number = number });
}

/* An unsigned number. */
static bool push_uint(struct pickle *p, int n_bytes)
{
    uint64_t value;
    return read_uint(p, n_bytes, &value) && push_int(p, (int64_t)value);
}

static bool push_int32(struct pickle *p)
{
    uint64_t value;
    return read_uint(p, 4, &value) && push_int(p, (int32_t)value);
}

static bool make_tuple(struct pickle *p, size_t first)
{
    if (first == SIZE_MAX)
        return false;
    assert(first == 0 || p->stack);
    size_t n = p->n_stack - first;
    size_t left = first > 0 && p->stack[first - 1].kind == PICKLE_MARK ? first - 1 : first;
    p->n_stack = left; /* the values above stay readable */
    return push_items(p, PICKLE_TUPLE, p->stack + first, n);
}

/* Moves the values from first on into the container below. */
static bool fill_container(struct pickle *p, size_t first, enum pickle_kind kind)
{
    if (first == SIZE_MAX)
        return false;
    assert(first == 0 || p->stack);
    bool has_mark = first > 0 && p->stack[first - 1].kind == PICKLE_MARK;
    if (first < (has_mark ? 2u : 1u))
        return false;
    size_t n = p->n_stack - first;
    p->n_stack = has_mark ? first - 1 : first;
    struct pickle_value *container = top(p);
    if (!container || container->kind != kind || (kind == PICKLE_DICT && n % 2 != 0))
        return false;
    return items_add(p, container->items, p->stack + first, n);
}

static bool memo_put(struct pickle *p, int n_index_bytes)
{
    static const struct pickle_value NOTHING = { .kind = PICKLE_MARK };
    uint64_t index;
    const struct pickle_value *value = top(p);
    /* Each PUT takes at least two bytes, so an index cannot exceed the pickle's length. */
    if (!value || !read_uint(p, n_index_bytes, &index) || index >= (uint64_t)(p->end - p->bytes))
        return false;
    while (p->memo.n <= index) {
        if (!items_add(p, &p->memo, &NOTHING, 1))
            return false;
    }
    p->memo.at[index] = *value;
    return true;
}

/* As PUT, at the next index. */
static bool memoize(struct pickle *p)
{
    const struct pickle_value *value = top(p);
    return value && items_add(p, &p->memo, value, 1);
}

static bool get(struct pickle *p, int n_index_bytes)
{
    uint64_t index;
    return read_uint(p, n_index_bytes, &index) && index < p->memo.n &&
           p->memo.at[index].kind != PICKLE_MARK && stack_push(p, p->memo.at[index]);
}

/* callable, arguments -> the call. */
static bool call(struct pickle *p)
{
    if (!has(p, 2))
        return false;
    struct pickle_value arguments = p->stack[p->n_stack - 1], callable = p->stack[p->n_stack - 2];
    if (arguments.kind != PICKLE_TUPLE || callable.kind != PICKLE_GLOBAL)
        return false;
    p->n_stack -= 2;
    if (p->globals[callable.n].is_dict && arguments.items->n == 0)
        return push_items(p, PICKLE_DICT, NULL, 0);
    callable.kind = PICKLE_CALL;
    callable.items = arguments.items;
    return stack_push(p, callable);
}

static bool name_persistent(struct pickle *p)
{
    struct pickle_value *value = top(p);
    if (!value || value->kind != PICKLE_TUPLE)
        return false;
    value->kind = PICKLE_PERSISTENT;
    return items_add(p, &p->persistents, value, 1);
}

/* Drops the attributes of a dict. The state of any other object could change its meaning. */
static bool drop_state(struct pickle *p)
{
    if (!has(p, 2) || p->stack[p->n_stack - 2].kind != PICKLE_DICT)
        return false;
    p->n_stack--;
    return true;
}

static enum tutti_status push_global(struct pickle *p, const char *module, size_t n_module, const char *name,
                                     size_t n_name, struct tutti_error *err)
{
    for (size_t i = 0; i < p->n_globals; i++) {
        const struct pickle_global *g = &p->globals[i];
        if (strlen(g->module) == n_module && memcmp(g->module, module, n_module) == 0 &&
            strlen(g->name) == n_name && memcmp(g->name, name, n_name) == 0)
            return stack_push(p, (struct pickle_value){ .kind = PICKLE_GLOBAL, .n = (uint32_t)i })
                       ? TUTTI_OK
                       : broken(p, "too deep a stack", err);
    }
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: pickle: it calls %.*s.%.*s, which no tensor needs; tutti runs no "
                     "code of a checkpoint",
                     p->file, (int)n_module, module, (int)n_name, name);
}

/* Module and name are in the pickle, each followed by a line feed. */
static enum tutti_status read_global(struct pickle *p, struct tutti_error *err)
{
    const char *text = (const char *)p->at;
    size_t n = (size_t)(p->end - p->at) < MAX_GLOBAL_BYTES ? (size_t)(p->end - p->at) : MAX_GLOBAL_BYTES;
    const char *middle = memchr(text, '\n', n);
    const char *last = middle ? memchr(middle + 1, '\n', n - (size_t)(middle + 1 - text)) : NULL;
    if (!last)
        return broken(p, "a global without an end", err);
    p->at = (const uint8_t *)last + 1;
    return push_global(p, text, (size_t)(middle - text), middle + 1, (size_t)(last - middle - 1), err);
}

/* Module and name are two strings on the stack. */
static enum tutti_status take_global(struct pickle *p, struct tutti_error *err)
{
    if (!has(p, 2))
        return broken(p, "a global without a name", err);
    p->n_stack -= 2;
    const struct pickle_value *v = &p->stack[p->n_stack];
    if (v[0].kind != PICKLE_STRING || v[1].kind != PICKLE_STRING || v[0].n > MAX_GLOBAL_BYTES ||
        v[1].n > MAX_GLOBAL_BYTES)
        return broken(p, "a global without a name", err);
    return push_global(p, v[0].text, v[0].n, v[1].text, v[1].n, err);
}

/* The top n values become a tuple. */
static bool make_short_tuple(struct pickle *p, size_t n)
{
    if (!has(p, n))
        return false;
    p->n_stack -= n;
    return push_items(p, PICKLE_TUPLE, p->stack + p->n_stack, n);
}

/* Opcodes that are neither PROTO, a global nor STOP. *is_known: false for those that no tensor needs. */
static bool run(struct pickle *p, int op, bool *is_known)
{
    switch (op) {
    case OP_MARK:
        return stack_push(p, (struct pickle_value){ .kind = PICKLE_MARK });
    case OP_POP:
        return p->n_stack-- > 0;
    case OP_NONE:
        return stack_push(p, (struct pickle_value){ .kind = PICKLE_NONE });
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return stack_push(p, (struct pickle_value){ .kind = PICKLE_BOOL, .integer = op == OP_NEWTRUE });
    case OP_BININT:
        return push_int32(p);
    case OP_BININT1:
        return push_uint(p, 1);
    case OP_BININT2:
        return push_uint(p, 2);
    case OP_LONG1:
        return push_long(p);
    case OP_BINFLOAT:
        return push_float(p);
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINBYTES:
    case OP_SHORT_BINUNICODE:
        return push_string(p, 1);
    case OP_BINSTRING:
    case OP_BINBYTES:
    case OP_BINUNICODE:
        return push_string(p, 4);
    case OP_BINBYTES8:
    case OP_BINUNICODE8:
        return push_string(p, 8);
    case OP_FRAME: /* only a hint for buffering */
        return read(p, 8);
    case OP_MEMOIZE:
        return memoize(p);
    case OP_BINPUT:
        return memo_put(p, 1);
    case OP_LONG_BINPUT:
        return memo_put(p, 4);
    case OP_BINGET:
        return get(p, 1);
    case OP_LONG_BINGET:
        return get(p, 4);
    case OP_REDUCE:
    case OP_NEWOBJ:
        return call(p);
    case OP_BUILD:
        return drop_state(p);
    case OP_BINPERSID:
        return name_persistent(p);
    case OP_EMPTY_TUPLE:
        return push_items(p, PICKLE_TUPLE, NULL, 0);
    case OP_EMPTY_LIST:
        return push_items(p, PICKLE_LIST, NULL, 0);
    case OP_EMPTY_DICT:
        return push_items(p, PICKLE_DICT, NULL, 0);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return make_short_tuple(p, (size_t)op - OP_TUPLE1 + 1);
    case OP_TUPLE:
        return make_tuple(p, find_mark(p));
    case OP_APPEND:
        return has(p, 2) && fill_container(p, p->n_stack - 1, PICKLE_LIST);
    case OP_APPENDS:
        return fill_container(p, find_mark(p), PICKLE_LIST);
    case OP_SETITEM:
        return has(p, 3) && fill_container(p, p->n_stack - 2, PICKLE_DICT);
    case OP_SETITEMS:
        return fill_container(p, find_mark(p), PICKLE_DICT);
    default:
        *is_known = false;
        return false;
    }
}

static enum tutti_status run_opcodes(struct pickle *p, struct tutti_error *err)
{
    uint64_t version;
    if (p->end - p->at < 2 || *p->at++ != OP_PROTO || !read_uint(p, 1, &version))
        return broken(p, "it does not begin with its protocol's version", err);
    if (version < 2 || version > 5)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: pickle of protocol %d, expected 2 to 5", p->file,
                         (int)version);
    while (p->at < p->end) {
        int op = *p->at++;
        bool is_known = true;
        if (op == OP_STOP) {
            if (p->n_stack != 1 || !top(p))
                return broken(p, "STOP where not one value is left", err);
            p->result = *top(p);
            return TUTTI_OK;
        }
        if (op == OP_GLOBAL || op == OP_STACK_GLOBAL) {
            enum tutti_status st = op == OP_GLOBAL ? read_global(p, err) : take_global(p, err);
            if (st != TUTTI_OK)
                return st;
        } else if (!run(p, op, &is_known)) {
            char what[64];
            snprintf(what, sizeof what, "opcode %02x with wrong operands", (unsigned)op);
            return is_known ? broken(p, what, err)
                            : error_set(err, TUTTI_E_UNSUPPORTED,
                                        "%s: pickle: opcode %02x at byte %td, which no tensor needs", p->file,
                                        (unsigned)op, p->at - p->bytes - 1);
        }
    }
    return broken(p, "no STOP", err);
}

enum tutti_status pickle_open(struct pickle **out, const void *bytes, size_t n_bytes,
                              const struct pickle_global *globals, size_t n_globals, const char *file,
                              struct tutti_error *err)
{
    struct pickle *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file);
    p->bytes = p->at = bytes;
    p->end = p->bytes + n_bytes;
    p->globals = globals;
    p->n_globals = n_globals;
    p->file = file;
    p->arena.limit = MAX_MEMORY;
    enum tutti_status st = run_opcodes(p, err);
    free(p->stack);
    p->stack = NULL;
    if (st == TUTTI_OK)
        *out = p;
    else
        pickle_close(p);
    return st;
}

void pickle_close(struct pickle *p)
{
    if (!p)
        return;
    arena_clear(&p->arena);
    free(p->stack);
    free(p);
}

const struct pickle_value *pickle_result(const struct pickle *p)
{
    return &p->result;
}

const struct pickle_value *pickle_persistents(const struct pickle *p, size_t *n)
{
    *n = p->persistents.n;
    return p->persistents.at;
}

size_t pickle_n_bytes(const struct pickle *p)
{
    return (size_t)(p->at - p->bytes);
}
