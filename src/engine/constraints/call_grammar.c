/* Each state of writing a call becomes a rule: the step of the form's program, the tool, the way to fill its
 * parameters, and the next argument. A rule ends with the rule of the next state, so the grammar is
 * right-linear apart from values, and nothing here recurses. */
#include "engine/constraints/call_grammar.h"

#include "base/containers/array.h"
#include "base/limits.h"
#include "base/rng.h"
#include "engine/constraints/call_parts.h"
#include "engine/constraints/call_text.h"
#include "model/chat/reasoning.h"

#include <stdlib.h>
#include <string.h>

/* ---- states ---- */

enum {
    MAX_STEP = 1 << 6,
    MAX_WAY = 1 << 9,
    MAX_NEXT = 1 << 16,
    NO_TOOL = 0, /* tools and ways are numbered from 1 */
    NO_WAY = 0,
};

struct call_state {
    int step, tool, way, next;
    bool has_called; /* no further call is allowed */
    bool has_any;    /* in Python: an argument was written */
};

struct builder {
    struct call_parts parts;
    struct syntax *s;
    const struct call_form *form;
    struct key_map rules; /* by state */
    struct open_state {
        struct call_state state;
        int32_t rule;
    } * open; /* rules to be defined */
    size_t n_open, open_room;
    int32_t end; /* a node: the answer may end, or go on with the next call */
};

/* The rule of a state, as a node. */
static int32_t at_state(struct builder *b, struct call_state state)
{
    struct call_parts *p = &b->parts;
    if (state.next >= MAX_NEXT || state.way >= MAX_WAY || state.step >= MAX_STEP)
        return call_parts_fail(p, "a tool has more than %d arguments, or %d ways to fill them", MAX_NEXT,
                               MAX_WAY);
    uint64_t key = mix64((uint64_t)state.step | (uint64_t)state.way << 6 | (uint64_t)state.next << 15 |
                         (uint64_t)state.has_called << 31 | (uint64_t)state.has_any << 32 |
                         (uint64_t)state.tool << 33);
    int32_t rule = key_map_find(&b->rules, key);
    if (rule >= 0)
        return syntax_rule(b->s, rule);
    rule = syntax_add_rule(b->s, NULL, 0);
    if (rule < 0)
        return -1;
    if (!array_grow(&b->open, b->n_open, &b->open_room, sizeof *b->open) ||
        !key_map_add(&b->rules, key, rule))
        return syntax_no_memory(b->s);
    b->open[b->n_open++] = (struct open_state){ state, rule };
    return syntax_rule(b->s, rule);
}

static int32_t after(struct builder *b, struct call_state state)
{
    state.step++;
    return at_state(b, state);
}

static int32_t at_step(struct builder *b, struct call_state state, int step)
{
    state.step = step;
    return at_state(b, state);
}

static int32_t nothing(struct builder *b)
{
    return syntax_choice(b->s, NULL, 0);
}

static const struct call_step *step_at(const struct builder *b, int step)
{
    return &b->form->steps[step];
}

/* Whether blanks may be written before the mark of a step: not where they would change what was written
 * before it. */
static bool allows_blanks(const struct builder *b, int step)
{
    if (step == 0)
        return true;
    const struct call_step *before = step_at(b, step - 1);
    bool ends_name = before->op == CALL_NAME || before->op == CALL_NAME_ID || before->op == CALL_ID;
    if (ends_name && !strpbrk(before->text, " \n"))
        return false;
    return step_at(b, step)->text[0] != '(' && before->op != CALL_KEY;
}

static int32_t mark_of(struct builder *b, int step)
{
    const char *text = step_at(b, step)->text;
    int32_t mark = call_parts_mark(&b->parts, text);
    return allows_blanks(b, step) ? SYNTAX_SEQ(b->s, call_parts_blanks(&b->parts), mark) : mark;
}

/* ---- steps ---- */

/* A mark that an answer may lack. */
static int32_t optional_mark(struct builder *b, struct call_state state, const struct call_step *step)
{
    int to = step->op == CALL_OPTION ? state.step + 1 : step->to;
    int32_t with = step->writing == WRITE_NEVER ? -1 : at_step(b, state, to);
    if (with >= 0 && step->op != CALL_PEEK)
        with = SYNTAX_SEQ(b->s, mark_of(b, state.step), with);
    bool is_missing = step->writing == WRITE_TOKEN && call_parts_lacks_token(&b->parts, step->text);
    if (step->writing == WRITE_ALWAYS)
        return with;
    int32_t without = after(b, state);
    return step->writing == WRITE_NEVER || is_missing ? without : SYNTAX_CHOICE(b->s, with, without);
}

/* What must follow a name where the next step does not begin with a byte that ends it. */
static int32_t end_of_name(struct builder *b, int step)
{
    const char *ends = step_at(b, step)->text;
    const struct call_step *next = step_at(b, step + 1);
    char first = next->op == CALL_JSON ? '{' : next->text ? next->text[0] : '\0';
    return first && strchr(ends, first) ? syntax_empty(b->s) : syntax_text(b->s, "\n");
}

static bool may_name(const struct builder *b, const struct call_state *state, int tool)
{
    if (state->tool != NO_TOOL)
        return tool == state->tool;
    return !state->has_called && call_parts_may_call(&b->parts, tool);
}

static struct call_state calling(const struct builder *b, struct call_state state, int tool)
{
    state.tool = tool;
    state.has_called = !b->parts.is_parallel;
    return state;
}

/* A name: the tool is chosen, or named again. */
static int32_t any_name(struct builder *b, struct call_state state, const struct call_step *step)
{
    struct call_parts *p = &b->parts;
    struct ids ways = { 0 };
    bool is_python = strchr(step->text, '('), ok = true;
    for (int tool = 1; tool <= p->n_tools && ok; tool++) {
        if (!may_name(b, &state, tool))
            continue;
        int32_t name = call_parts_name(p, tool, step);
        int32_t next = after(b, calling(b, state, tool));
        ok = ids_add(&ways, SYNTAX_SEQ(b->s, name, end_of_name(b, state.step), next));
    }
    int32_t node = ok ? syntax_choice(b->s, ways.ids, ways.n) : syntax_no_memory(b->s);
    ids_clear(&ways);
    /* Functions in Python are in a list or a line each. */
    return is_python ? SYNTAX_SEQ(b->s, call_parts_blanks(p), node) : node;
}

static int32_t any_object(struct builder *b, struct call_state state, const struct call_step *step)
{
    struct call_parts *p = &b->parts;
    struct ids ways = { 0 };
    bool ok = true;
    for (int tool = 1; tool <= p->n_tools && ok; tool++)
        if (may_name(b, &state, tool)) {
            struct call_state next = calling(b, state, NO_TOOL);
            ok = ids_add(&ways, SYNTAX_SEQ(b->s, call_parts_object(p, tool, step->text), after(b, next)));
        }
    int32_t node = ok ? syntax_choice(b->s, ways.ids, ways.n) : syntax_no_memory(b->s);
    ids_clear(&ways);
    return SYNTAX_SEQ(b->s, call_parts_blanks(p), node);
}

/* ---- arguments one by one ---- */

static int32_t any_way(struct builder *b, struct call_state state, int step)
{
    struct ids ways = { 0 };
    size_t n = call_parts_n_ways(&b->parts, state.tool);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        state.way = (int)i + 1;
        state.next = 0;
        ok = ids_add(&ways, at_step(b, state, step));
    }
    int32_t node = ok ? syntax_choice(b->s, ways.ids, ways.n) : syntax_no_memory(b->s);
    ids_clear(&ways);
    return node;
}

static const struct schema_arguments *way_of(struct builder *b, const struct call_state *state)
{
    return call_parts_way(&b->parts, state->tool, state->way);
}

/* The state with the next argument skipped. -1: it is required. */
static int32_t skip_argument(struct builder *b, struct call_state state)
{
    const struct schema_arguments *way = way_of(b, &state);
    if (!way || way->list[state.next].is_required)
        return -1;
    state.next++;
    return at_state(b, state);
}

static int32_t either(struct builder *b, int32_t one, int32_t other)
{
    return other < 0 ? one : SYNTAX_CHOICE(b->s, one, other);
}

/* The name of the argument number next, or of any that is not listed. */
static int32_t key_step(struct builder *b, struct call_state state, const struct call_step *step)
{
    struct call_parts *p = &b->parts;
    const struct schema_arguments *way = way_of(b, &state);
    if (!way)
        return -1;
    bool is_listed = (size_t)state.next < way->n;
    if (!is_listed && !way->further)
        return nothing(b);
    int32_t key = is_listed ? call_parts_key(p, state.tool, state.way, state.next, step->text)
                            : call_parts_further_key(p, state.tool, state.way, false);
    int32_t mark = call_parts_mark(p, step->text);
    int32_t other = is_listed ? skip_argument(b, state) : -1;
    return either(b, SYNTAX_SEQ(b->s, key, mark, after(b, state)), other);
}

/* Its value, and the mark after it. */
static int32_t value_step(struct builder *b, struct call_state state, const struct call_step *step)
{
    int32_t value = call_parts_value(&b->parts, state.tool, state.way, state.next, step);
    if (value == CALL_PARTS_NO_VALUE)
        return nothing(b);
    const struct schema_arguments *way = way_of(b, &state);
    if (!way)
        return -1;
    state.next += (size_t)state.next < way->n;
    return SYNTAX_SEQ(b->s, value, after(b, state));
}

static int32_t pairs_over(struct builder *b, struct call_state state)
{
    const struct schema_arguments *way = way_of(b, &state);
    if (!way)
        return -1;
    for (size_t i = (size_t)state.next; i < way->n; i++)
        if (way->list[i].is_required)
            return nothing(b);
    state.tool = NO_TOOL;
    state.way = state.next = 0;
    return after(b, state);
}

/* name=value, with commas between them and ) after the last. The way is chosen first. */
static int32_t python_step(struct builder *b, struct call_state state)
{
    struct call_parts *p = &b->parts;
    struct syntax *s = b->s;
    if (state.way == NO_WAY)
        return any_way(b, state, state.step);
    const struct schema_arguments *way = way_of(b, &state);
    if (!way)
        return -1;
    bool is_listed = (size_t)state.next < way->n;
    struct call_state next = state, over = state;
    over.tool = NO_TOOL;
    over.way = over.next = 0;
    over.has_any = false;
    int32_t end = SYNTAX_SEQ(s, syntax_text(s, ")"), after(b, over));
    if (!is_listed && !way->further)
        return end;
    next.next += is_listed;
    next.has_any = true;
    int32_t key = is_listed ? call_parts_key(p, state.tool, state.way, state.next, "=")
                            : call_parts_further_key(p, state.tool, state.way, true);
    int32_t value = call_parts_python_value(p, state.tool, state.way, state.next);
    int32_t before = state.has_any ? SYNTAX_SEQ(s, syntax_text(s, ","), call_parts_blanks(p))
                                   : syntax_empty(s);
    int32_t one = SYNTAX_SEQ(s, before, key, syntax_text(s, "="), value, at_state(b, next));
    return either(b, one, is_listed ? skip_argument(b, state) : end);
}

/* ---- the program ---- */

/* After a call that ends: the end, or what may follow. */
static int32_t done_step(struct builder *b, const struct call_state *state)
{
    return state->has_called || !b->form->openings[0] ? syntax_empty(b->s) : b->end;
}

static int32_t build_state(struct builder *b, struct call_state state)
{
    struct call_parts *p = &b->parts;
    const struct call_step *step = step_at(b, state.step);
    switch (step->op) {
    case CALL_MARK:
        return SYNTAX_SEQ(b->s, mark_of(b, state.step), after(b, state));
    case CALL_CLOSE: {
        int32_t with = SYNTAX_SEQ(b->s, mark_of(b, state.step), after(b, state));
        /* A stop token ends the answer instead of becoming a part of it. */
        return call_parts_is_stop(p, step->text) ? SYNTAX_CHOICE(b->s, syntax_empty(b->s), with) : with;
    }
    case CALL_OPTION:
    case CALL_IF:
    case CALL_PEEK:
        return optional_mark(b, state, step);
    case CALL_GOTO:
        return at_step(b, state, step->to);
    case CALL_SKIP:
        return SYNTAX_SEQ(b->s, call_parts_mark(p, step->text), after(b, state));
    case CALL_NAME:
    case CALL_NAME_ID:
        return any_name(b, state, step);
    case CALL_ID:
        return SYNTAX_SEQ(b->s, call_parts_id(p), after(b, state));
    case CALL_OBJECT:
        return any_object(b, state, step);
    case CALL_JSON: {
        struct call_state next = state;
        next.tool = NO_TOOL;
        return SYNTAX_SEQ(b->s, call_parts_blanks(p), call_parts_json(p, state.tool), after(b, next));
    }
    case CALL_PYTHON:
        return python_step(b, state);
    case CALL_PAIRS:
        return any_way(b, state, state.step + 1);
    case CALL_KEY:
        return key_step(b, state, step);
    case CALL_VALUE:
    case CALL_LINES:
    case CALL_TEXT:
        return value_step(b, state, step);
    case CALL_ATTRIBUTE: /* forms with these cannot be written */
    case CALL_QUOTED:
    case CALL_DICT:
    case CALL_ELEMENT:
        return -1;
    case CALL_PAIRS_OVER:
        return pairs_over(b, state);
    case CALL_DONE:
        return done_step(b, &state);
    case CALL_LAST:
        return syntax_empty(b->s);
    }
    return -1;
}

static void define_states(struct builder *b)
{
    while (b->n_open > 0 && call_parts_are_ok(&b->parts)) {
        struct open_state next = b->open[--b->n_open];
        syntax_define(b->s, next.rule, build_state(b, next.state));
    }
}

/* ---- all together ---- */

static int32_t opening(struct builder *b)
{
    const char *text = b->form->openings[0];
    int32_t first = at_state(b, (struct call_state){ 0 });
    return text ? SYNTAX_SEQ(b->s, call_parts_mark(&b->parts, text), first) : first;
}

/* A message of reasoning before the first call. */
static int32_t after_reasoning(struct builder *b, int32_t call)
{
    struct call_parts *p = &b->parts;
    int32_t begin = call_parts_mark(p, "<|channel|>analysis<|message|>");
    int32_t end = call_parts_mark(p, REASONING_TURN);
    return SYNTAX_CHOICE(b->s, call, SYNTAX_SEQ(b->s, begin, call_parts_message(p), end, call));
}

/* The whole answer is calls. */
static int32_t required(struct builder *b)
{
    struct syntax *s = b->s;
    struct call_parts *p = &b->parts;
    int32_t first = schema_share(p->values, opening(b));
    b->end = SYNTAX_CHOICE(s, syntax_empty(s), SYNTAX_SEQ(s, call_parts_blanks(p), first));
    if (p->writer->has_channels)
        return p->has_reasoning ? after_reasoning(b, first) : first;
    int32_t blanks = SYNTAX_CHOICE(s, syntax_empty(s), syntax_text(s, " "),
                                   syntax_repeat(s, syntax_text(s, "\n"), 1, 2));
    return SYNTAX_SEQ(s, blanks, first);
}

/* Text, with calls in it or after it, or instead of it. */
static int32_t text_or_calls(struct builder *b)
{
    struct call_parts *p = &b->parts;
    bool has_opening = b->form->openings[0];
    int32_t call = schema_share(p->values, opening(b)), begin = -1;
    if (!call_text_read(p, has_opening ? call : -1, &begin, &b->end))
        return -1;
    return has_opening ? begin : SYNTAX_CHOICE(b->s, SYNTAX_SEQ(b->s, call_parts_blanks(p), call), begin);
}

enum tutti_status call_grammar_read(const struct call_writer *w, const char *text, size_t n_bytes,
                                    bool has_text, struct syntax *out, struct tutti_error *err)
{
    struct builder b = { .s = out, .form = w->form };
    if (call_parts_init(&b.parts, w, text, n_bytes, has_text, out, err)) {
        int32_t root = has_text ? text_or_calls(&b) : required(&b);
        define_states(&b);
        out->root = syntax_add_rule(out, NULL, 0);
        syntax_define(out, out->root, root);
    }
    key_map_clear(&b.rules);
    free(b.open);
    return call_parts_finish(&b.parts);
}
