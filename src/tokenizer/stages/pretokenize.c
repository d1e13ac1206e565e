#include "tokenizer/stages/pretokenize.h"

#include "base/utf8.h"
#include "tokenizer/unicode/byte_map.h"
#include "tokenizer/unicode/substitutes.h"

#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

enum tutti_status pretokenizer_add(struct pretokenizer *pre, struct pre_step step, const char *source,
                                   size_t n_bytes, const char *name, struct tutti_error *err)
{
    if (pre->n_steps >= MAX_PRE_STEPS)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: pre_tokenizer: more than %d steps", name,
                         MAX_PRE_STEPS);
    struct pre_step *own = &pre->steps[pre->n_steps++];
    *own = step;
    if (step.kind != PRE_PATTERN)
        return TUTTI_OK;
    if (step.is_literal)
        return pattern_new_literal(&own->pattern, source, n_bytes, name, err);
    own->source = strndup(source, n_bytes);
    if (!own->source)
        return error_out_of_memory(name, err);
    enum pattern_kind kind = strlen(own->source) == n_bytes ? pre_pattern_kind(own->source) : PATTERN_UNKNOWN;
    return pattern_new(&own->pattern, source, n_bytes, kind, name, err);
}

enum tutti_status pretokenizer_add_named(struct pretokenizer *pre, const struct pre_name *named,
                                         const char *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct pre_step step = { .behavior = named->drops_blanks ? SPLIT_REMOVED : SPLIT_ISOLATED };
    for (int i = 0; st == TUTTI_OK && named->patterns[i]; i++)
        st = pretokenizer_add(pre, step, named->patterns[i], strlen(named->patterns[i]), name, err);
    return st;
}

void pretokenizer_clear(struct pretokenizer *pre)
{
    for (int i = 0; i < pre->n_steps; i++) {
        pattern_free(pre->steps[i].pattern);
        free(pre->steps[i].source);
    }
    *pre = (struct pretokenizer){ .n_steps = 0 };
}

/* ---- splitting ---- */

struct cutter {
    const struct pretokenizer *pre;
    struct pattern_matcher *m;
    word_fn *word;
    void *to;
    bool has_newer; /* characters that need substitutes, here or in a mark */
};

/* A part of the text. */
struct span {
    const char *text;
    size_t n_bytes; /* 0: none */
    bool is_first;  /* at the start of the text */
    bool is_match;  /* it is a match */
};

static bool cut_span(const struct cutter *c, int step, struct span part);

/* The steps that rewrite a part, which must be copied. */
static bool cut_copy(const struct cutter *c, int step, struct buf *copy, bool is_first)
{
    struct span part = { .text = copy->bytes, .n_bytes = copy->n_bytes, .is_first = is_first };
    bool ok = copy->n_bytes == 0 || cut_span(c, step + 1, part);
    buf_clear(copy);
    return ok;
}

static bool cut_with_prefix(const struct cutter *c, int step, struct span part)
{
    if (part.text[0] == ' ')
        return cut_span(c, step + 1, part);
    struct buf copy = { 0 };
    bool ok = buf_reserve(&copy, part.n_bytes + 2) && buf_add(&copy, " ", 1) &&
              buf_add(&copy, part.text, part.n_bytes);
    if (!ok) {
        buf_clear(&copy);
        return false;
    }
    return cut_copy(c, step, &copy, part.is_first);
}

static bool cut_into_bytes(const struct cutter *c, int step, struct span part)
{
    struct buf copy = { 0 };
    if (!buf_reserve(&copy, 2 * part.n_bytes) || !byte_map_write(part.text, part.n_bytes, &copy)) {
        buf_clear(&copy);
        return false;
    }
    return cut_copy(c, step, &copy, part.is_first);
}

static bool add_marks(const struct metaspace *m, struct span part, struct buf *out)
{
    const char *text = part.text;
    size_t n_bytes = part.n_bytes;
    bool has_mark = *text == ' ' || (n_bytes >= m->n_mark && memcmp(text, m->mark, m->n_mark) == 0);
    bool prepends = m->prepends == METASPACE_ALWAYS || (m->prepends == METASPACE_FIRST && part.is_first);
    bool ok = !prepends || has_mark || buf_add(out, m->mark, m->n_mark);
    while (ok && n_bytes > 0) {
        const char *space = memchr(text, ' ', n_bytes);
        size_t n = space ? (size_t)(space - text) : n_bytes;
        ok = buf_add(out, text, n) && (!space || buf_add(out, m->mark, m->n_mark));
        n += space != NULL;
        text += n;
        n_bytes -= n;
    }
    return ok;
}

/* Words that begin with marks. */
static bool split_at_marks(const struct cutter *c, int step, const struct metaspace *m,
                           const struct buf *marked, bool is_first)
{
    size_t begin = 0;
    while (begin < marked->n_bytes) {
        const char *text = marked->bytes + begin;
        size_t left = marked->n_bytes - begin;
        const char *mark = left > 1 ? memmem(text + 1, left - 1, m->mark, m->n_mark) : NULL;
        size_t n = mark ? (size_t)(mark - text) : left;
        if (!cut_span(c, step + 1,
                      (struct span){ .text = text, .n_bytes = n, .is_first = is_first && begin == 0 }))
            return false;
        begin += n;
    }
    return true;
}

static bool cut_at_blanks(const struct cutter *c, int step, struct span part)
{
    const struct metaspace *m = &c->pre->steps[step].metaspace;
    struct buf marked = { 0 };
    bool ok = add_marks(m, part, &marked);
    if (ok && !m->splits)
        return cut_copy(c, step, &marked, part.is_first);
    ok = ok && split_at_marks(c, step, m, &marked, part.is_first);
    buf_clear(&marked);
    return ok;
}

static bool flush(const struct cutter *c, int step, struct span *held)
{
    struct span part = *held;
    bool is_dropped = c->pre->steps[step].behavior == SPLIT_REMOVED && held->is_match;
    held->n_bytes = 0;
    return part.n_bytes == 0 || is_dropped || cut_span(c, step + 1, part);
}

/* held: a span that may still be joined with the next one. */
static bool add_span(const struct cutter *c, int step, struct span *held, struct span next)
{
    const struct pre_step *s = &c->pre->steps[step];
    next.is_match ^= s->is_inverted;
    if (next.n_bytes == 0)
        return true;
    bool joins = held->n_bytes > 0 &&
                 ((s->behavior == SPLIT_CONTIGUOUS && held->is_match == next.is_match) ||
                  (s->behavior == SPLIT_WITH_PREVIOUS && !held->is_match && next.is_match) ||
                  (s->behavior == SPLIT_WITH_NEXT && held->is_match && !next.is_match));
    if (joins) {
        held->n_bytes += next.n_bytes;
        held->is_match = next.is_match;
        return true;
    }
    if (!flush(c, step, held))
        return false;
    *held = next;
    return true;
}

static size_t char_length(const char *text, size_t n_bytes)
{
    int n = utf8_char(text, n_bytes);
    return n > 0 ? (size_t)n : 1;
}

/* searched: the text of the part, possibly with substitutes. */
static bool cut_at_matches(const struct cutter *c, int step, struct span part, const char *searched)
{
    const struct pattern *pattern = c->pre->steps[step].pattern;
    const char *text = part.text;
    struct span held = { .n_bytes = 0 };
    size_t n_bytes = part.n_bytes, done = 0, from = 0, begin, end;
    while (from <= n_bytes) {
        int found = pattern_find(pattern, c->m, searched, n_bytes, from, &begin, &end);
        if (found < 0)
            return false;
        if (found == 0)
            break;
        if (!add_span(c, step, &held,
                      (struct span){ text + done, begin - done, part.is_first && done == 0, false }) ||
            !add_span(c, step, &held,
                      (struct span){ text + begin, end - begin, part.is_first && begin == 0, true }))
            return false;
        done = end;
        from = end > begin ? end : end < n_bytes ? end + char_length(text + end, n_bytes - end) : n_bytes + 1;
    }
    return add_span(c, step, &held,
                    (struct span){ text + done, n_bytes - done, part.is_first && done == 0, false }) &&
           flush(c, step, &held);
}

static bool cut_by_pattern(const struct cutter *c, int step, struct span part)
{
    struct buf copy = { 0 };
    if (!c->has_newer)
        return cut_at_matches(c, step, part, part.text);
    bool ok = pattern_prepare(c->pre->steps[step].pattern, part.text, part.n_bytes, &copy) &&
              cut_at_matches(c, step, part, copy.bytes);
    buf_clear(&copy);
    return ok;
}

/* Never more than MAX_PRE_STEPS deep. */
static bool cut_span(const struct cutter *c, int step, struct span part)
{
    if (step == c->pre->n_steps)
        return c->word(c->to, part.text, part.n_bytes);
    switch (c->pre->steps[step].kind) {
    case PRE_PATTERN:
        return cut_by_pattern(c, step, part);
    case PRE_PREFIX:
        return cut_with_prefix(c, step, part);
    case PRE_METASPACE:
        return cut_at_blanks(c, step, part);
    case PRE_BYTES:
        break;
    }
    return cut_into_bytes(c, step, part);
}

bool pretokenize(const struct pretokenizer *pre, struct pattern_matcher *m, const char *text, size_t n_bytes,
                 bool is_first, word_fn *word, void *to)
{
    struct cutter c = {
        .pre = pre, .m = m, .word = word, .to = to, .has_newer = substitutes_needed(text, n_bytes)
    };
    for (int i = 0; i < pre->n_steps; i++) {
        const struct pre_step *s = &pre->steps[i];
        if (s->kind == PRE_METASPACE)
            c.has_newer |= substitutes_needed(s->metaspace.mark, s->metaspace.n_mark);
    }
    return n_bytes == 0 ||
           cut_span(&c, 0, (struct span){ .text = text, .n_bytes = n_bytes, .is_first = is_first });
}
