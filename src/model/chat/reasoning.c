/* Splits an answer into its reasoning and the rest, while the model writes it or when it is complete.
 *
 * Linear time: a search for a mark goes on where it ended, but for the beginning of a mark. */
#include "model/chat/reasoning.h"

#include "base/buf.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static const struct reasoning_form FORMS[] = {
    { "harmony", "<|channel|>", NULL, "<|channel|>final<|message|>",
      "<|end|><|start|>assistant<|channel|>final<|message|>" },
    { "mistral", "[THINK]", "[THINK]", "[/THINK]", "[/THINK]" },
    { "gemma-4", "<|channel>", "<|channel>", "<channel|>", "<channel|>", .answer_ends = { "<channel|>" },
      .label = "thought", .again = "<|channel>" },
    { "muse",
      "<atem:function_calls>",
      "to=self<|message|>",
      "<|eom|><|start|>assistant",
      "<|eom|><|start|>assistant to=user<|message|>",
      "to=user<|message|>",
      { "<|eot|>", "<|eom|>", "<|start|>assistant", "to=user<|message|>", "to=commentary<|message|>" },
      .again = "to=self<|message|>" },
    { "inkling",
      "<|content_invoke_tool_json|>",
      "<|content_thinking|>",
      "<|end_message|>",
      "<|end_message|><|message_model|><|content_text|>",
      "<|message_model|><|content_text|>",
      { "<|end_message|>", "<|content_model_end_sampling|>", "<|message_model|><|content_text|>",
        "<|content_text|>" },
      .again = "<|message_model|><|content_thinking|>" },
    { "kimi-k3",
      "<|open|>",
      "<|open|>think<|sep|>",
      "<|close|>think<|sep|>",
      "<|close|>think<|sep|>",
      "<|open|>response<|sep|>",
      { "<|close|>response<|sep|>", "<|close|>message<|sep|>" } },
    { "minimax-m3", "</mm:think>", "<mm:think>", "</mm:think>", "</mm:think>" },
    { "solar-open-2", "<|think:end|>", "<|think:start|>", "<|think:end|>", "<|think:end|>" },
    { "hy-v3", ":opensource", "<think:opensource>", "</think:opensource>", "</think:opensource>" },
    { "granite-3.3", "<response>", "<think>", "</think>", "\n</think>\n", "<response>", { "</response>" } },
    { "granite-3.2", "Here is my thought process:", "Here is my thought process:", "Here is my response:",
      "\n\nHere is my response:\n\n" },
    { "hunyuan", "</answer>", "<think>", "</think>", "\n</think>\n", "<answer>", { "</answer>" } },
    { "apriel-1.6", "[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]",
      "\n[BEGIN FINAL RESPONSE]\n" },
    { "cohere-text",
      "<|START_TEXT|>",
      "<|START_THINKING|>",
      "<|END_THINKING|>",
      "<|END_THINKING|>",
      "<|START_TEXT|>",
      { "<|END_TEXT|>" },
      .has_citations = true },
    { "cohere",
      "<|START_THINKING|>",
      "<|START_THINKING|>",
      "<|END_THINKING|>",
      "<|END_THINKING|>",
      "<|START_RESPONSE|>",
      { "<|END_RESPONSE|>" },
      .has_citations = true },
    { "seed", "<seed:think>", "<seed:think>", "</seed:think>", "</seed:think>" },
    { "longcat", "<longcat_think>", "<longcat_think>", "</longcat_think>", "\n</longcat_think>\n" },
    { "apertus", "<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>" },
    { "pangu", "[unused17]", "[unused16]", "[unused17]", "[unused17]" },
    { "kimi-vl", "◁/think▷", "◁think▷", "◁/think▷", "◁/think▷" },
    { "exaone-deep", "<thought>", "<thought>", "</thought>", "\n</thought>\n\n" },
    { "think", "</think>", "<think>", "</think>", "\n</think>\n\n" },
    /* Olmo 3: of the marks the template has the first, at the end of the prompt. */
    { "think", "assistant\n<think>", "<think>", "</think>", "\n</think>\n\n" },
    /* No reasoning: text begins with its recipient. */
    { "functionary-v3.2", ">>>all", NULL, NULL, NULL, "all\n" },
    { "functionary-v2", "<|recipient|>", NULL, NULL, NULL, "all\n<|content|>" },
};
enum { N_FORMS = sizeof FORMS / sizeof *FORMS };

const struct reasoning_form *reasoning_form_find(const char *name)
{
    for (size_t i = 0; i < N_FORMS; i++)
        if (strcmp(FORMS[i].name, name) == 0)
            return &FORMS[i];
    return NULL;
}

const struct reasoning_form *reasoning_form_of_template(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < N_FORMS; i++)
        if (memmem(text, n_bytes, FORMS[i].trait, strlen(FORMS[i].trait)))
            return &FORMS[i];
    return NULL;
}

static const char CITED[] = "<co>", SOURCES[] = "</co:"; /* before a cited text, and after it */

const char *reasoning_form_mark(const struct reasoning_form *form, size_t i)
{
    /* The last one has the marks of channels, of which the others have some. */
    const char *marks[] = { form->open,
                            form->close,
                            form->forced,
                            form->answer_open,
                            form->again,
                            form->has_citations ? CITED : NULL,
                            form->has_citations ? SOURCES : NULL,
                            form->close && !form->open ? "<|start|><|constrain|><|call|><|return|>" : NULL };
    enum { N_MARKS = sizeof marks / sizeof *marks };
    for (size_t k = 0; k < N_MARKS + REASONING_MAX_ENDS; k++) {
        const char *mark = k < N_MARKS ? marks[k] : form->answer_ends[k - N_MARKS];
        if (mark && i-- == 0)
            return mark;
    }
    return NULL;
}

enum { MAX_HEADER = 512 }; /* bytes of a channel's header, or of a list of sources */

static const char MESSAGE[] = "<|message|>";
/* What ends a message. The last two begin the next header. */
static const char *const ENDS[] = { "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>" };
enum { N_ENDS = 5, N_TAKEN_ENDS = 3, CALL_END = 1 };

struct tutti_reasoning_parser {
    const struct reasoning_form *form;
    enum {
        AT_BEGINNING, /* of the answer */
        BEFORE_TEXT,  /* blanks before the reasoning */
        IN_REASONING,
        BEFORE_ANSWER,  /* blanks, and the mark that may open the answer */
        BEFORE_CONTENT, /* blanks after that mark */
        IN_ANSWER,
        IN_SOURCES, /* of a citation */
        IN_HEADER,  /* of a channel */
        IN_MESSAGE, /* of one */
    } state;
    bool is_labelled;        /* the label of the reasoning that begins was read */
    bool is_reasoning;       /* the message, or the text with the citation, is */
    bool is_call;            /* the message has arguments of a call */
    size_t at;               /* bytes of the answer that are split */
    size_t searched;         /* offset where the search for a mark goes on */
    size_t scanned, n_solid; /* of the text: bytes seen, and bytes without the blanks at their end */
    struct buf header;       /* of a call, as it is passed on */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_blanks(const char *text, size_t at, size_t n_bytes)
{
    while (at < n_bytes && is_blank(text[at]))
        at++;
    return at;
}

/* How many bytes at the end of text may be the beginning of a mark. */
static size_t n_begun(const char *text, size_t n_bytes, const char *mark)
{
    size_t n = strlen(mark) - 1;
    for (n = n < n_bytes ? n : n_bytes; n > 0; n--)
        if (memcmp(text + n_bytes - n, mark, n) == 0)
            break;
    return n;
}

static bool give_part(struct tutti_reasoning_part *part, const char *text, size_t n_bytes, bool is_reasoning)
{
    *part = (struct tutti_reasoning_part){ text, n_bytes, is_reasoning };
    return n_bytes > 0;
}

static void enter_state(struct tutti_reasoning_parser *p, int state, size_t at)
{
    p->state = (unsigned)state;
    p->at = p->searched = p->scanned = p->n_solid = at;
}

/* Finds the first of n marks from p->searched on. NULL: none; *n_sure: bytes of text before what
 * may be the beginning of one. */
static const char *find_mark(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes,
                             const char *const *marks, size_t n, size_t *which, size_t *n_sure)
{
    const char *first = NULL;
    size_t n_held = 0;
    for (size_t i = 0; i < n; i++) {
        const char *found = memmem(text + p->searched, n_bytes - p->searched, marks[i], strlen(marks[i]));
        if (found && (!first || found < first)) {
            first = found;
            *which = i;
        }
        size_t begun = n_begun(text + p->searched, n_bytes - p->searched, marks[i]);
        n_held = begun > n_held ? begun : n_held;
    }
    *n_sure = n_bytes - n_held;
    if (!first)
        p->searched = *n_sure;
    return first;
}

/* Whether text begins with mark; may_become: it is the beginning of it. A missing mark never matches. */
static bool has_mark(const char *mark, const char *text, size_t n_bytes, bool *may_become)
{
    size_t n = mark ? strlen(mark) : 0, n_same = n < n_bytes ? n : n_bytes;
    if (n == 0 || memcmp(text, mark, n_same) != 0)
        return false;
    *may_become = *may_become || n_same < n;
    return n_same == n;
}

/* The answer begins: with an opening mark, or with one that follows reasoning, after any blanks, or with anything
 * else. False: more text is needed. */
static bool match_begin(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end)
{
    size_t at = skip_blanks(text, p->searched, n_bytes), n_left = n_bytes - at;
    const struct reasoning_form *form = p->form;
    bool may_become = n_left == 0;
    p->searched = at;
    if (!form->open) {
        enter_state(p, form->close ? IN_HEADER : BEFORE_ANSWER, p->at);
        return true;
    }
    if (has_mark(form->open, text + at, n_left, &may_become))
        enter_state(p, BEFORE_TEXT, at + strlen(form->open));
    else if (has_mark(form->close, text + at, n_left, &may_become))
        enter_state(p, BEFORE_ANSWER, at + strlen(form->close));
    else if (has_mark(form->answer_open, text + at, n_left, &may_become))
        enter_state(p, BEFORE_CONTENT, at + strlen(form->answer_open));
    else if (may_become && !is_end)
        return false;
    else
        enter_state(p, IN_ANSWER, p->at);
    return true;
}

/* Skips blanks, the label of reasoning, and further opening marks. False: more text is needed. */
static bool match_label(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end)
{
    size_t at = skip_blanks(text, p->at, n_bytes), n_left = n_bytes - at;
    const struct reasoning_form *form = p->form;
    bool may_become = n_left == 0;
    p->at = at;
    if (!p->is_labelled && has_mark(form->again, text + at, n_left, &may_become)) {
        enter_state(p, BEFORE_TEXT, at + strlen(form->again));
    } else if (!p->is_labelled && has_mark(form->label, text + at, n_left, &may_become)) {
        enter_state(p, BEFORE_TEXT, at + strlen(form->label));
        p->is_labelled = true;
    } else if (may_become && !is_end) {
        return false;
    } else {
        enter_state(p, IN_REASONING, at);
        p->is_labelled = false;
    }
    return true;
}

/* The end of the text up to `end` without the blanks at its end; p->at: there is none. */
static size_t skip_solid(struct tutti_reasoning_parser *p, const char *text, size_t end)
{
    for (; p->scanned < end; p->scanned++)
        if (!is_blank(text[p->scanned]))
            p->n_solid = p->scanned + 1;
    return p->n_solid > p->at ? p->n_solid : p->at;
}

/* A text ends at a mark of a citation. */
static void take_citation(struct tutti_reasoning_parser *p, bool is_over, bool is_reasoning, size_t end)
{
    p->is_reasoning = is_reasoning;
    enter_state(p,
                is_over        ? IN_SOURCES
                : is_reasoning ? IN_REASONING
                               : IN_ANSWER,
                end + strlen(is_over ? SOURCES : CITED));
}

/* Skips the sources of a citation: " 0:[1,2]>". Without an end they are text. False: more text is needed. */
static bool skip_sources(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end)
{
    const char *close = memchr(text + p->searched, '>', n_bytes - p->searched);
    p->searched = n_bytes;
    if (!close && !is_end && n_bytes - p->at <= MAX_HEADER)
        return false;
    enter_state(p, p->is_reasoning ? IN_REASONING : IN_ANSWER, close ? (size_t)(close - text) + 1 : p->at);
    return true;
}

/* Reasoning, without the blanks at its end. */
static bool split_reasoning(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end,
                            struct tutti_reasoning_part *part)
{
    const char *marks[] = { p->form->close, CITED, SOURCES };
    size_t which, n_sure, begin = p->at;
    const char *close = find_mark(p, text, n_bytes, marks, p->form->has_citations ? 3 : 1, &which, &n_sure);
    size_t end = close ? (size_t)(close - text) : is_end ? n_bytes : n_sure;
    if (close && which > 0) {
        take_citation(p, which == 2, true, end);
        return give_part(part, text + begin, end - begin, true);
    }
    size_t n = skip_solid(p, text, end);
    if (close)
        enter_state(p, BEFORE_ANSWER, end + strlen(p->form->close));
    else
        p->at = is_end ? end : n;
    return give_part(part, text + begin, n - begin, true);
}

static bool match_answer(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end)
{
    size_t at = skip_blanks(text, p->at, n_bytes), n_left = n_bytes - at;
    bool may_become = n_left == 0;
    p->at = at;
    if (has_mark(p->form->answer_open, text + at, n_left, &may_become))
        enter_state(p, BEFORE_CONTENT, at + strlen(p->form->answer_open));
    else if (may_become && (!is_end || n_left == 0))
        return false;
    else
        enter_state(p, IN_ANSWER, at);
    return true;
}

/* The rest of the answer, without the marks in it and the blanks before them. */
static bool split_answer(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end,
                         struct tutti_reasoning_part *part)
{
    const char *marks[REASONING_MAX_ENDS + 3], *mark = NULL;
    size_t begin = p->at, which = 0, n_sure = n_bytes, n = 0;
    while (n < REASONING_MAX_ENDS && p->form->answer_ends[n]) {
        marks[n] = p->form->answer_ends[n];
        n++;
    }
    size_t n_ends = n;
    if (p->form->again)
        marks[n++] = p->form->again;
    size_t n_own = n;
    if (p->form->has_citations) {
        marks[n++] = CITED;
        marks[n++] = SOURCES;
    }
    if (n > 0)
        mark = find_mark(p, text, n_bytes, marks, n, &which, &n_sure);
    size_t end = mark ? (size_t)(mark - text) : is_end ? n_bytes : n_sure, last = end;
    if (mark && which >= n_own) {
        take_citation(p, which > n_own, false, end);
        return give_part(part, text + begin, end - begin, false);
    }
    if (n > 0 && (mark || !is_end))
        last = skip_solid(p, text, end);
    if (mark)
        enter_state(p, which < n_ends ? BEFORE_CONTENT : BEFORE_TEXT, end + strlen(marks[which]));
    else
        p->at = last;
    return give_part(part, text + begin, last - begin, false);
}

/* ---- channels ---- */

static bool has_word(const char *text, size_t n_bytes, const char *word)
{
    return memmem(text, n_bytes, word, strlen(word)) != NULL;
}

/* A header is complete: <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json. A
 * call is passed on with a header that always has the same form. */
static bool take_header(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes,
                        struct tutti_reasoning_part *part)
{
    static const char TO[] = "to=functions.";
    const char *to = memmem(text, n_bytes, TO, sizeof TO - 1);
    p->is_call = to;
    p->is_reasoning = !to && has_word(text, n_bytes, "<|channel|>analysis");
    if (!to)
        return false;
    const char *name = to + sizeof TO - 1;
    size_t n = 0, n_left = n_bytes - (size_t)(name - text);
    while (n < n_left && !is_blank(name[n]) && name[n] != '<')
        n++;
    buf_truncate(&p->header, 0);
    return buf_printf(&p->header, "<|channel|>commentary to=functions.%.*s%s", (int)n, name, MESSAGE) &&
           give_part(part, p->header.bytes, p->header.n_bytes, false);
}

static bool split_header(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end,
                         struct tutti_reasoning_part *part, bool *waits)
{
    size_t begin = p->at;
    const char *message = memmem(text + p->searched, n_bytes - p->searched, MESSAGE, sizeof MESSAGE - 1);
    size_t first = skip_blanks(text, begin, n_bytes), n_left = n_bytes - first;
    bool is_header = (n_left > 0 && text[first] == '<') ||
                     memcmp(text + first, "to=", n_left < 3 ? n_left : 3) == 0;
    if (message && is_header && (size_t)(message - text) - begin <= MAX_HEADER) {
        enter_state(p, IN_MESSAGE, (size_t)(message - text) + sizeof MESSAGE - 1);
        return take_header(p, text + begin, (size_t)(message - text) - begin, part);
    }
    if (!is_header || n_bytes - begin > MAX_HEADER) { /* text without a header is the answer */
        p->is_reasoning = p->is_call = false;
        enter_state(p, IN_MESSAGE, begin);
        return false;
    }
    *waits = !is_end;
    if (is_end) /* a header that is cut off */
        enter_state(p, IN_ANSWER, n_bytes);
    return false;
}

static bool split_message(struct tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end,
                          struct tutti_reasoning_part *part)
{
    size_t begin = p->at, which = 0, n_sure;
    const char *mark = find_mark(p, text, n_bytes, ENDS, N_ENDS, &which, &n_sure);
    size_t end = mark ? (size_t)(mark - text) : is_end ? n_bytes : n_sure;
    if (!mark)
        p->at = end;
    else if (p->is_call && which == CALL_END)
        enter_state(p, IN_HEADER, end + strlen(ENDS[which]));
    else
        enter_state(p, IN_HEADER, end + (which < N_TAKEN_ENDS ? strlen(ENDS[which]) : 0));
    return give_part(part, text + begin, end - begin, p->is_reasoning);
}

/* ---- the interface ---- */

enum tutti_status tutti_reasoning_parser_new(tutti_reasoning_parser **out, const char *form, bool is_open,
                                             struct tutti_error *err)
{
    const struct reasoning_form *found = form ? reasoning_form_find(form) : NULL;
    if (!out || !found)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "tutti_reasoning_parser_new: no form of reasoning is named %.64s",
                         form ? form : "NULL");
    tutti_reasoning_parser *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for a parser of reasoning");
    p->form = found;
    p->state = is_open && found->open ? BEFORE_TEXT : AT_BEGINNING;
    *out = p;
    return TUTTI_OK;
}

void tutti_reasoning_parser_free(tutti_reasoning_parser *p)
{
    if (!p)
        return;
    buf_clear(&p->header);
    free(p);
}

bool tutti_reasoning_parser_is_inside(const tutti_reasoning_parser *p)
{
    return p->state == BEFORE_TEXT || p->state == IN_REASONING ||
           ((p->state == IN_MESSAGE || p->state == IN_SOURCES) && p->is_reasoning);
}

bool tutti_reasoning_parser_next(tutti_reasoning_parser *p, const char *text, size_t n_bytes, bool is_end,
                                 struct tutti_reasoning_part *part)
{
    bool waits = false;
    while (p->at < n_bytes && !waits) {
        size_t at = p->at;
        unsigned state = p->state;
        bool has_part = false;
        switch (p->state) {
        case AT_BEGINNING:
            waits = !match_begin(p, text, n_bytes, is_end);
            break;
        case BEFORE_TEXT:
            waits = !match_label(p, text, n_bytes, is_end);
            break;
        case IN_REASONING:
            has_part = split_reasoning(p, text, n_bytes, is_end, part);
            break;
        case BEFORE_ANSWER:
            waits = !match_answer(p, text, n_bytes, is_end);
            break;
        case BEFORE_CONTENT:
            at = skip_blanks(text, p->at, n_bytes);
            enter_state(p, at < n_bytes ? IN_ANSWER : BEFORE_CONTENT, at);
            break;
        case IN_ANSWER:
            has_part = split_answer(p, text, n_bytes, is_end, part);
            break;
        case IN_SOURCES:
            waits = !skip_sources(p, text, n_bytes, is_end);
            break;
        case IN_HEADER:
            has_part = split_header(p, text, n_bytes, is_end, part, &waits);
            break;
        case IN_MESSAGE:
            has_part = split_message(p, text, n_bytes, is_end, part);
            break;
        }
        if (has_part)
            return true;
        waits = waits || (p->at == at && p->state == state);
    }
    return false;
}
