#include "tokenizer/pretokenize.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- steps by name ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BEHIND_WORDS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ends)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ends "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ends "|"
#define BEHIND_CASED "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3       CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" BEHIND_WORDS

#define DIGITS      "\\p{\\digits}"
#define PUNCTUATION "\\p{\\punctuation}"

const char PATTERN_GPT2[] = GPT2, PATTERN_DIGITS[] = DIGITS, PATTERN_PUNCTUATION[] = PUNCTUATION;

/* As the models' tokenizer.json files spell the patterns, for names that llama.cpp knows. */
static const struct pre_name NAMES[] = {
    { .name = "gpt-2",
      .same = " gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
              "roberta-bpe jina-v1-en jina-v2-code mpt olmo jais trillion granite-docling exaone4 ",
      .patterns = { GPT2 } },
    { .name = "llama-bpe",
      .same = " llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
      .ignores_merges = true,
      .adds_bos = true,
      .patterns = { LLAMA3 } },
    { .name = "glm4", .same = " glm5 ", .ignores_merges = true, .patterns = { LLAMA3 } },
    { .name = "chatglm-bpe", .same = " smaug-bpe dbrx ", .patterns = { LLAMA3 } },
    { .name = "qwen2",
      .same = " deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ",
      .is_composed = true,
      .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" BEHIND_WORDS } },
    { .name = "qwen35",
      .same = " ",
      .patterns = { CONTRACTIONS
                    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "bloom",
      .same = " poro-chat gpt3-finnish ",
      .patterns = { " ?[^(\\s|[.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C])]+" } },
    { .name = "tekken",
      .same = " ",
      .ignores_merges = true,
      .patterns = { CASED("") "\\p{N}" BEHIND_CASED } },
    { .name = "gpt-4o",
      .same = " llama4 kanana2 ",
      .patterns = { CASED(CONTRACTIONS "?") "\\p{N}{1,3}" BEHIND_CASED } },
    { .name = "starcoder",
      .same = " refact command-r smollm codeshell exaone minerva-7b ",
      .patterns = { DIGITS, GPT2 } },
    { .name = "deepseek-coder",
      .same = " ",
      .patterns = { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+",
                    DIGITS } },
    { .name = "deepseek-v3",
      .same = " hunyuan-dense ",
      .patterns = { "\\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
                    "[!\"#$%&'()*+,\\-./"
                    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "falcon", .same = " ", .patterns = { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" } },
    { .name = "default",
      .same = " ",
      .patterns = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
};

enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static bool is_among(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = n > 0 ? strstr(words, name) : NULL; at; at = strstr(at + 1, name)) {
        if (at > words && at[-1] == ' ' && at[n] == ' ')
            return true;
    }
    return false;
}

const struct pre_name *pre_name_find(const char *name)
{
    for (int i = 0; i < N_NAMES; i++) {
        if (strcmp(NAMES[i].name, name) == 0 || is_among(NAMES[i].same, name))
            return &NAMES[i];
    }
    return NULL;
}

static bool has_steps(const struct pretokenizer *pre, const struct pre_name *named)
{
    int n = 0;
    for (; named->patterns[n]; n++) {
        const struct pre_step *s = &pre->steps[n];
        if (n >= pre->n_steps || !s->source || strcmp(s->source, named->patterns[n]) != 0 ||
            s->behavior != SPLIT_ISOLATED || s->is_inverted)
            return false;
    }
    return n == pre->n_steps;
}

const struct pre_name *pre_name_of(const struct pretokenizer *pre, bool is_composed, bool ignores_merges)
{
    for (int i = 0; i < N_NAMES; i++) {
        const struct pre_name *named = &NAMES[i];
        if (named->is_composed == is_composed && named->ignores_merges == ignores_merges &&
            has_steps(pre, named))
            return named;
    }
    return NULL;
}

static bool is_known(const char *source)
{
    for (int i = 0; i < N_NAMES; i++) {
        for (int k = 0; NAMES[i].patterns[k]; k++) {
            if (strcmp(NAMES[i].patterns[k], source) == 0)
                return true;
        }
    }
    return strcmp(source, DIGITS) == 0 || strcmp(source, PUNCTUATION) == 0;
}

/* ---- making ---- */

static enum tutti_status new_step(struct pretokenizer *pre, struct pre_step **out, const char *name,
                                  struct tutti_error *err)
{
    if (pre->n_steps >= MAX_PRE_STEPS)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: pre_tokenizer: more than %d steps", name,
                         MAX_PRE_STEPS);
    *out = &pre->steps[pre->n_steps++];
    **out = (struct pre_step){ .pattern = NULL };
    return TUTTI_OK;
}

enum tutti_status pretokenizer_add(struct pretokenizer *pre, const char *source, size_t n_bytes,
                                   enum split_behavior behavior, bool is_inverted, const char *name,
                                   struct tutti_error *err)
{
    struct pre_step *step = NULL;
    char *own = strndup(source, n_bytes);
    if (!own)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    enum tutti_status st = new_step(pre, &step, name, err);
    if (st != TUTTI_OK) {
        free(own);
        return st;
    }
    step->source = own;
    step->behavior = behavior;
    step->is_inverted = is_inverted;
    return pattern_new(&step->pattern, source, n_bytes, is_known(own), name, err);
}

enum tutti_status pretokenizer_add_literal(struct pretokenizer *pre, const char *text, size_t n_bytes,
                                           enum split_behavior behavior, bool is_inverted, const char *name,
                                           struct tutti_error *err)
{
    struct pre_step *step = NULL;
    enum tutti_status st = new_step(pre, &step, name, err);
    if (st != TUTTI_OK)
        return st;
    step->behavior = behavior;
    step->is_inverted = is_inverted;
    return pattern_new_literal(&step->pattern, text, n_bytes, name, err);
}

enum tutti_status pretokenizer_add_prefix(struct pretokenizer *pre, const char *name, struct tutti_error *err)
{
    struct pre_step *step = NULL;
    return new_step(pre, &step, name, err);
}

enum tutti_status pretokenizer_add_named(struct pretokenizer *pre, const struct pre_name *named,
                                         const char *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; st == TUTTI_OK && named->patterns[i]; i++)
        st = pretokenizer_add(pre, named->patterns[i], strlen(named->patterns[i]), SPLIT_ISOLATED, false,
                              name, err);
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

/* ---- cutting ---- */

struct cutter {
    const struct pretokenizer *pre;
    struct pattern_matcher *m;
    word_fn *word;
    void *to;
    bool differs[MAX_PRE_STEPS]; /* for the pattern of each step: pattern_differs() */
};

/* A part of the text, and whether a match made it. n_bytes 0: none. */
struct span {
    const char *text;
    size_t n_bytes;
    bool is_match;
};

static bool cut(const struct cutter *c, int step, const char *text, size_t n_bytes);

static bool cut_with_prefix(const struct cutter *c, int step, const char *text, size_t n_bytes)
{
    if (text[0] == ' ')
        return cut(c, step + 1, text, n_bytes);
    struct buf prefixed = { 0 };
    bool ok = buf_reserve(&prefixed, n_bytes + 2) && buf_add(&prefixed, " ", 1) &&
              buf_add(&prefixed, text, n_bytes) && cut(c, step + 1, prefixed.bytes, prefixed.n_bytes);
    buf_clear(&prefixed);
    return ok;
}

static bool flush(const struct cutter *c, int step, struct span *held)
{
    size_t n = held->n_bytes;
    bool is_dropped = c->pre->steps[step].behavior == SPLIT_REMOVED && held->is_match;
    held->n_bytes = 0;
    return n == 0 || is_dropped || cut(c, step + 1, held->text, n);
}

/* held: what may still be joined with the next span. */
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

static bool cut_by_pattern(const struct cutter *c, int step, const char *text, size_t n_bytes)
{
    const struct pattern *pattern = c->pre->steps[step].pattern;
    struct span held = { .n_bytes = 0 };
    size_t done = 0, from = 0, begin, end;
    while (from <= n_bytes) {
        int found = pattern_find(pattern, c->m, c->differs[step], text, n_bytes, from, &begin, &end);
        if (found < 0)
            return false;
        if (found == 0)
            break;
        if (!add_span(c, step, &held, (struct span){ text + done, begin - done, false }) ||
            !add_span(c, step, &held, (struct span){ text + begin, end - begin, true }))
            return false;
        done = end;
        from = end > begin ? end : end < n_bytes ? end + char_length(text + end, n_bytes - end) : n_bytes + 1;
    }
    return add_span(c, step, &held, (struct span){ text + done, n_bytes - done, false }) &&
           flush(c, step, &held);
}

/* Never more than MAX_PRE_STEPS deep. */
static bool cut(const struct cutter *c, int step, const char *text, size_t n_bytes)
{
    if (step == c->pre->n_steps)
        return c->word(c->to, text, n_bytes);
    return (c->pre->steps[step].pattern ? cut_by_pattern : cut_with_prefix)(c, step, text, n_bytes);
}

bool pretokenize(const struct pretokenizer *pre, struct pattern_matcher *m, const char *text, size_t n_bytes,
                 word_fn *word, void *to)
{
    struct cutter c = { .pre = pre, .m = m, .word = word, .to = to };
    for (int i = 0; i < pre->n_steps; i++)
        c.differs[i] = pre->steps[i].pattern && pattern_differs(pre->steps[i].pattern, text, n_bytes);
    return n_bytes == 0 || cut(&c, 0, text, n_bytes);
}
