/* The states are those of the search for all openings at once, by Aho and Corasick, "Efficient String Matching",
 * 1975. Where calls are the whole answer, the beginning of the text is also compared with what may begin one. */
#include "engine/constraints/call_text.h"

#include "base/containers/array.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROOT = 0,
    NO_NODE = -1,
    MAX_TEXT_NODES = 1 << 16,
    MAX_LETTERS = 512, /* characters of openings and names */
};

/* A node of a trie: the beginning of one or more texts. */
struct text_node {
    uint32_t c;             /* that leads to it */
    int32_t child, sibling; /* NO_NODE: none */
    int32_t fail;           /* the longest other beginning that ends it */
    int32_t rule;           /* of the place; -1: not created yet */
    bool is_end;            /* ends with a whole text */
};

struct text_trie {
    struct text_node *nodes;
    size_t n, room;
};

/* Where a text is. */
struct text_place {
    int32_t begin; /* a node of begins; NO_NODE: the text cannot be a call that is the whole answer */
    int32_t mark;  /* a node of marks */
};

struct call_text {
    struct call_parts *parts;
    struct text_trie marks;  /* openings, anywhere */
    struct text_trie begins; /* of calls that are the whole answer */
    struct char_range letters[MAX_LETTERS],
        others[MAX_LETTERS + 1]; /* the characters of both tries; all others */
    size_t n_letters, n_others;
    int32_t call;
    struct text_place *open; /* places whose rules are to be defined */
    size_t n_open, open_room;
};

/* ---- tries ---- */

static int32_t find_child(const struct text_trie *t, int32_t node, uint32_t c)
{
    for (int32_t i = t->nodes[node].child; i != NO_NODE; i = t->nodes[i].sibling)
        if (t->nodes[i].c == c)
            return i;
    return NO_NODE;
}

/* A child of parent; NO_NODE: the root. */
static int32_t add_node(struct call_text *x, struct text_trie *t, int32_t parent, uint32_t c)
{
    struct syntax *s = x->parts->s;
    if (!syntax_spend(s, 1) || t->n == MAX_TEXT_NODES)
        return call_parts_fail(x->parts, "the names of the tools have more than %d letters", MAX_TEXT_NODES);
    if (!array_grow(&t->nodes, t->n, &t->room, sizeof *t->nodes))
        return syntax_no_memory(s);
    t->nodes[t->n] = (struct text_node){ .c = c, .child = NO_NODE, .sibling = NO_NODE, .rule = -1 };
    if (parent != NO_NODE) {
        t->nodes[t->n].sibling = t->nodes[parent].child;
        t->nodes[parent].child = (int32_t)t->n;
    }
    return (int32_t)t->n++;
}

static bool add_letter(struct call_text *x, uint32_t c)
{
    for (size_t i = 0; i < x->n_letters; i++)
        if (x->letters[i].low == c)
            return true;
    if (x->n_letters == MAX_LETTERS)
        return call_parts_fail(x->parts, "the names of the tools have more than %d different letters",
                               MAX_LETTERS) >= 0;
    x->letters[x->n_letters++] = (struct char_range){ c, c };
    return true;
}

static bool add_text(struct call_text *x, struct text_trie *t, const char *text)
{
    size_t n_bytes = strlen(text);
    int32_t node = ROOT;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t c = 0;
        int n = utf8_decode(text + i, n_bytes - i, &c);
        if (n <= 0)
            return call_parts_fail(x->parts, "the name of a tool is not valid UTF-8") >= 0;
        int32_t next = find_child(t, node, c);
        node = next != NO_NODE ? next : add_node(x, t, node, c);
        if (node == NO_NODE || !add_letter(x, c))
            return false;
        i += (size_t)n;
    }
    if (node != ROOT)
        t->nodes[node].is_end = true;
    return true;
}

/* Fail links lead to shorter beginnings, so this ends. */
static int32_t step_marks(const struct text_trie *t, int32_t node, uint32_t c)
{
    for (;; node = t->nodes[node].fail) {
        int32_t next = find_child(t, node, c);
        if (next != NO_NODE)
            return next;
        if (node == ROOT)
            return ROOT;
    }
}

/* By length. A node that ends with an opening is an end too. */
static bool link_fails(struct call_text *x)
{
    struct text_trie *t = &x->marks;
    int32_t *queue = malloc((t->n + 1) * sizeof *queue);
    size_t n = 0;
    if (!queue)
        return syntax_no_memory(x->parts->s) >= 0;
    queue[n++] = ROOT;
    for (size_t i = 0; i < n; i++)
        for (int32_t child = t->nodes[queue[i]].child; child != NO_NODE; child = t->nodes[child].sibling) {
            struct text_node *node = &t->nodes[child];
            node->fail = queue[i] == ROOT ? ROOT : step_marks(t, t->nodes[queue[i]].fail, node->c);
            node->is_end |= t->nodes[node->fail].is_end;
            queue[n++] = child;
        }
    free(queue);
    return true;
}

/* ---- what begins a call ---- */

/* A name, and each byte that can end it. */
static bool add_names(struct call_text *x, const struct call_step *step)
{
    static const char BLANKS[] = " \t\r\n";
    bool ok = true;
    for (int i = 0; i < x->parts->n_tools; i++)
        for (const char *list = step->text; ok && list; list = list == step->text ? BLANKS : NULL)
            for (const char *end = list; *end && ok; end++) {
                struct buf text = { 0 };
                ok = (buf_add_string(&text, x->parts->tools[i].name) && buf_add(&text, end, 1)) ||
                     syntax_no_memory(x->parts->s) >= 0;
                ok = ok && add_text(x, &x->begins, text.bytes);
                buf_clear(&text);
            }
    return ok;
}

/* What the first bytes of an answer are that a row without an opening takes. */
static bool add_begins(struct call_text *x, const struct call_form *form)
{
    for (size_t i = 0; i < form->n_steps; i++) {
        const struct call_step *step = &form->steps[i];
        if (step->op == CALL_NAME)
            return add_names(x, step);
        if (step->op == CALL_OBJECT)
            return add_text(x, &x->begins, "{");
        if (!add_text(x, &x->begins, step->text))
            return false;
        if (step->op == CALL_MARK)
            return true;
    }
    return true;
}

static bool add_forms(struct call_text *x)
{
    static const char *const BLANKS[] = { " ", "\t", "\n", "\r" };
    const struct call_writer *w = x->parts->writer;
    bool ok = add_node(x, &x->marks, NO_NODE, 0) == ROOT && add_node(x, &x->begins, NO_NODE, 0) == ROOT;
    for (size_t i = 0; i < call_forms_count() && ok; i++) {
        const struct call_form *form = call_form_at(i);
        if (!(w->rows >> i & 1))
            continue;
        if (!form->openings[0])
            ok = add_begins(x, form);
        for (size_t k = 0; k < CALL_MAX_OPENINGS && form->openings[k] && ok; k++)
            ok = add_text(x, &x->marks, form->openings[k]);
    }
    if (ok && w->has_channels) /* in a header of any order */
        ok = add_text(x, &x->marks, "to=functions.");
    for (size_t i = 0; i < sizeof BLANKS / sizeof *BLANKS && ok; i++)
        ok = add_letter(x, (uint8_t)BLANKS[i][0]);
    if (!ok || !link_fails(x))
        return false;
    x->n_letters = ranges_normalize(x->letters, x->n_letters);
    x->n_others = ranges_invert(x->letters, x->n_letters, x->others);
    return true;
}

/* ---- places ---- */

/* False: a call would begin. */
static bool take_letter(const struct call_text *x, struct text_place *at, uint32_t c)
{
    bool is_blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    at->mark = step_marks(&x->marks, at->mark, c);
    if (at->begin != NO_NODE && !(is_blank && at->begin == ROOT))
        at->begin = find_child(&x->begins, at->begin, c);
    return !x->marks.nodes[at->mark].is_end && (at->begin == NO_NODE || !x->begins.nodes[at->begin].is_end);
}

/* Returns the bytes taken up to where a call would begin, or all. */
static size_t take_text(const struct call_text *x, struct text_place *at, const char *text, size_t n_bytes,
                        bool *ok)
{
    size_t n = 0;
    *ok = true;
    while (n < n_bytes && *ok) {
        uint32_t c = 0;
        int n_char = utf8_decode(text + n, n_bytes - n, &c);
        n += n_char > 0 ? (size_t)n_char : 1;
        *ok = take_letter(x, at, c);
    }
    return n;
}

/* The rule of a place, as a node. Within a beginning, its node decides both. */
static int32_t place_node(struct call_text *x, struct text_place at)
{
    struct syntax *s = x->parts->s;
    struct text_node *node = at.begin != NO_NODE ? &x->begins.nodes[at.begin] : &x->marks.nodes[at.mark];
    if (node->rule < 0) {
        node->rule = syntax_add_rule(s, NULL, 0);
        if (node->rule < 0)
            return -1;
        if (!array_grow(&x->open, x->n_open, &x->open_room, sizeof *x->open))
            return syntax_no_memory(s);
        x->open[x->n_open++] = at;
    }
    return syntax_rule(s, node->rule);
}

/* Characters that lead from a place to the same place, as one way. */
static bool add_letters(struct call_text *x, struct text_place at, struct ids *ways)
{
    struct text_place to[MAX_LETTERS];
    struct char_range same[MAX_LETTERS];
    bool is_used[MAX_LETTERS] = { false };
    size_t n = 0;
    struct char_range all[MAX_LETTERS];
    for (size_t i = 0; i < x->n_letters; i++) /* normalized: neighbours are one range */
        for (uint32_t c = x->letters[i].low; c <= x->letters[i].high && n < MAX_LETTERS; c++) {
            to[n] = at;
            all[n] = (struct char_range){ c, c };
            is_used[n] = !take_letter(x, &to[n], c);
            n++;
        }
    for (size_t i = 0; i < n; i++) {
        size_t n_same = 0;
        for (size_t k = i; k < n && !is_used[i]; k++)
            if (!is_used[k] && to[k].mark == to[i].mark && to[k].begin == to[i].begin) {
                same[n_same++] = all[k];
                is_used[k] = k != i;
            }
        if (n_same > 0 && !ids_add(ways, SYNTAX_SEQ(x->parts->s, syntax_chars(x->parts->s, same, n_same),
                                                    place_node(x, to[i]))))
            return false;
    }
    return syntax_spend(x->parts->s, n);
}

static bool add_tokens(struct call_text *x, struct text_place at, struct ids *ways)
{
    const struct call_writer *w = x->parts->writer;
    for (size_t i = 0; i < w->n_tokens; i++) {
        struct text_place to = at;
        char code[TOKEN_CODE_BYTES];
        bool ok;
        (void)take_text(x, &to, w->tokens[i].text, w->tokens[i].n_bytes, &ok);
        if (!ok || w->tokens[i].ends)
            continue;
        token_trie_code(w->tokens[i].id, code);
        if (!ids_add(ways, SYNTAX_SEQ(x->parts->s, syntax_bytes(x->parts->s, code, sizeof code),
                                      place_node(x, to))))
            return false;
    }
    return true;
}

static void define_place(struct call_text *x, struct text_place at)
{
    struct syntax *s = x->parts->s;
    const char *opening = x->parts->writer->form->openings[0];
    struct ids ways = { 0 };
    struct text_place to = at, other = { NO_NODE, ROOT };
    bool is_text;
    bool ok = ids_add(&ways, syntax_empty(s)) && add_letters(x, at, &ways) && add_tokens(x, at, &ways) &&
              ids_add(&ways, SYNTAX_SEQ(s, syntax_chars(s, x->others, x->n_others), place_node(x, other)));
    /* The opening is found where it is written, not earlier. */
    if (ok && x->call >= 0 && take_text(x, &to, opening, strlen(opening), &is_text) == strlen(opening) &&
        !is_text)
        ok = ids_add(&ways, x->call);
    int32_t rule = at.begin != NO_NODE ? x->begins.nodes[at.begin].rule : x->marks.nodes[at.mark].rule;
    syntax_define(s, rule, ok ? syntax_choice(s, ways.ids, ways.n) : syntax_no_memory(s));
    ids_clear(&ways);
}

bool call_text_read(struct call_parts *parts, int32_t call, int32_t *begin, int32_t *later)
{
    struct call_text *x = calloc(1, sizeof *x);
    if (!x)
        return syntax_no_memory(parts->s) >= 0;
    x->parts = parts;
    x->call = call;
    bool ok = add_forms(x);
    if (ok) {
        bool has_begins = x->begins.nodes[ROOT].child != NO_NODE;
        *begin = place_node(x, (struct text_place){ has_begins ? ROOT : NO_NODE, ROOT });
        *later = place_node(x, (struct text_place){ NO_NODE, ROOT });
    }
    while (ok && x->n_open > 0 && call_parts_are_ok(parts))
        define_place(x, x->open[--x->n_open]);
    free(x->marks.nodes);
    free(x->begins.nodes);
    free(x->open);
    free(x);
    return ok && call_parts_are_ok(parts);
}
