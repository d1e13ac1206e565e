/* The special tokens and texts that mark reasoning and tool calls, for one model. */
#include "model/chat/calls/call_forms.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"
#include "model/marks.h"

#include <stdlib.h>
#include <string.h>

/* Formats that are code, and so have no text with marks. */
static const struct call_form *tool_form_of_name(const char *name)
{
    static const char *const FORMS[][2] = { { "glm4", "glm-4" }, { "chatglm3", "chatglm3" } };
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        if (strcmp(FORMS[i][0], name) == 0)
            return call_form_find(FORMS[i][1]);
    return NULL;
}

/* Special tokens that occur in what the forms match. */
static bool add_shown(struct chat_marks *marks, const struct tokenizer *tok)
{
    const struct reasoning_form *r = marks->reasoning;
    const char *mark;
    uint64_t rows = call_forms_find(marks->tool_form);
    for (int32_t id = 0; id < tokenizer_n_pieces(tok); id++) {
        struct piece piece = tokenizer_piece(tok, id);
        if (piece.type != PIECE_CONTROL || piece.n_bytes < 2)
            continue;
        bool is_shown = call_form_mentions(rows, piece.bytes, piece.n_bytes);
        for (size_t i = 0; r && !is_shown && (mark = reasoning_form_mark(r, i)); i++)
            is_shown = memmem(mark, strlen(mark), piece.bytes, piece.n_bytes);
        if (is_shown && !ids_add(&marks->shown, id))
            return false;
    }
    return true;
}

static enum tutti_status encode_mark(struct ids *out, const struct tokenizer *tok, const char *text,
                                     struct tutti_error *err)
{
    return text ? chat_encode_trusted(tok, text, strlen(text), out, err) : TUTTI_OK;
}

enum tutti_status chat_marks_init(struct chat_marks *out, const struct chat_format *format,
                                  const struct chat_template *tpl, const struct tokenizer *tok,
                                  struct tutti_error *err)
{
    const struct call_form *form = NULL;
    *out = (struct chat_marks){ .tool_form = NULL };
    if (!format || !tok)
        return TUTTI_OK;
    const struct chat_format *builtin = tpl ? chat_template_builtin(tpl) : format;
    if (tpl)
        chat_template_forms(tpl, &form, &out->reasoning);
    out->is_opened_by_prompt = tpl && chat_template_opens_reasoning(tpl);
    if (!form && builtin)
        form = tool_form_of_name(builtin->name);
    out->tool_form = form ? form->name : NULL;
    out->written = call_form_written(form);
    if (!add_shown(out, tok))
        return chat_out_of_memory(err);
    const struct reasoning_form *r = out->reasoning;
    enum tutti_status st = r ? encode_mark(&out->open, tok, r->open, err) : TUTTI_OK;
    if (st == TUTTI_OK && r)
        st = encode_mark(&out->close, tok, r->close, err);
    if (st == TUTTI_OK && r)
        st = encode_mark(&out->forced, tok, r->forced, err);
    if (st == TUTTI_OK && r && r->close && !r->open)
        st = encode_mark(&out->turn, tok, REASONING_TURN, err);
    return st;
}

void chat_marks_clear(struct chat_marks *marks)
{
    ids_clear(&marks->shown);
    ids_clear(&marks->open);
    ids_clear(&marks->close);
    ids_clear(&marks->forced);
    ids_clear(&marks->turn);
}

bool chat_marks_end(const struct ids *marks, const int32_t *ids, size_t n_ids)
{
    return marks->n > 0 && n_ids >= marks->n &&
           memcmp(ids + n_ids - marks->n, marks->ids, marks->n * sizeof *ids) == 0;
}

/* The start without a mark at the end of the prompt. */
static enum reasoning_start unmarked_start(const struct chat_marks *marks)
{
    if (marks->is_opened_by_prompt)
        return REASONING_NEVER;
    return marks->reasoning->open ? REASONING_AT_ONE : REASONING_OPEN;
}

static enum reasoning_start start_by_tokens(const struct chat_marks *marks, const int32_t *prompt,
                                            size_t n_prompt)
{
    enum { MAX_AFTER = 8 }; /* tokens of the prompt after a mark, such as line breaks */
    for (size_t n = n_prompt; n > 0 && n + MAX_AFTER > n_prompt; n--) {
        if (chat_marks_end(&marks->close, prompt, n))
            return REASONING_NEVER;
        if (chat_marks_end(&marks->open, prompt, n))
            return REASONING_OPEN;
    }
    return unmarked_start(marks);
}

/* Whether the text ends with the mark, apart from the white space at the end of both. */
static bool ends_with_mark(const struct buf *text, const char *mark)
{
    static const char BLANKS[] = " \t\r\n";
    size_t n = text->n_bytes, n_mark = strlen(mark);
    while (n > 0 && strchr(BLANKS, text->bytes[n - 1]))
        n--;
    while (n_mark > 0 && strchr(BLANKS, mark[n_mark - 1]))
        n_mark--;
    return n_mark > 0 && n >= n_mark && memcmp(text->bytes + n - n_mark, mark, n_mark) == 0;
}

static bool add_piece(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    struct piece piece = tokenizer_piece(tok, id);
    return piece.type == PIECE_CONTROL ? buf_add(out, piece.bytes, piece.n_bytes)
                                       : tokenizer_token_bytes(tok, id, out);
}

bool chat_marks_start(const struct chat_marks *marks, const struct tokenizer *tok, const int32_t *prompt,
                      size_t n_prompt, enum reasoning_start *out)
{
    enum { TAIL_TOKENS = 64 }; /* more than any mark and the white space after it have */
    const struct reasoning_form *form = marks->reasoning;
    *out = REASONING_NEVER;
    if (!form || !form->close)
        return true;
    if (marks->open.n < 2 && marks->close.n < 2) {
        *out = start_by_tokens(marks, prompt, n_prompt);
        return true;
    }
    struct buf text = { 0 };
    bool ok = true;
    for (size_t i = n_prompt > TAIL_TOKENS ? n_prompt - TAIL_TOKENS : 0; ok && i < n_prompt; i++)
        ok = add_piece(tok, prompt[i], &text);
    if (ok && form->open && ends_with_mark(&text, form->open))
        *out = REASONING_OPEN;
    else if (ok && !ends_with_mark(&text, form->close))
        *out = unmarked_start(marks);
    buf_clear(&text);
    return ok;
}

bool chat_marks_show(const struct chat_marks *marks, int32_t token)
{
    size_t low = 0, high = marks->shown.n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (marks->shown.ids[middle] == token)
            return true;
        if (marks->shown.ids[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}
