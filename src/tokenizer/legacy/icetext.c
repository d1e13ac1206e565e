#include "tokenizer/legacy/icetext.h"

#include <stdio.h>
#include <string.h>

enum { MIN_BLANKS = 2, MAX_BLANKS = 80 };

static const char *const SPECIALS[] = { "[MASK]", "[gMASK]", "[sMASK]", "<unused_0>",
                                        "<sop>",  "<eop>",   "<ENC>",   "<dBLOCK>" };

static bool add_piece(struct tokenizer *tok, const char *text, enum piece_type type)
{
    return vocab_add(tok, text, strlen(text), 0, type);
}

enum tutti_status icetext_add_images(struct tokenizer *tok, int32_t n, const char *name,
                                     struct tutti_error *err)
{
    char text[32];
    for (int32_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "<image_%d>", i);
        if (!add_piece(tok, text, PIECE_CONTROL))
            return error_out_of_memory(name, err);
    }
    tok->n_images = n;
    return TUTTI_OK;
}

static bool has_piece(const struct tokenizer *tok, const char *text)
{
    for (int32_t id = tok->n_pieces - 1; id >= 0; id--) {
        if (tok->pieces[id].n_bytes == strlen(text) && memcmp(vocab_bytes(tok, id), text, strlen(text)) == 0)
            return true;
    }
    return false;
}

enum tutti_status icetext_add_specials(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    char text[32];
    bool ok = true;
    if (has_piece(tok, "[gMASK]"))
        return TUTTI_OK;
    for (size_t i = 0; ok && i < sizeof SPECIALS / sizeof *SPECIALS; i++)
        ok = add_piece(tok, SPECIALS[i], PIECE_CONTROL);
    ok = ok && add_piece(tok, "<|tab|>", PIECE_USER_DEFINED);
    for (int n = MIN_BLANKS; ok && n <= MAX_BLANKS; n++) {
        snprintf(text, sizeof text, "<|blank_%d|>", n);
        ok = add_piece(tok, text, PIECE_USER_DEFINED);
    }
    for (int byte = 0; ok && byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", byte);
        ok = add_piece(tok, text, PIECE_BYTE);
    }
    tok->byte_fallback = true;
    return ok ? TUTTI_OK : error_out_of_memory(name, err);
}

static int32_t find_user_defined(const struct tokenizer *tok, const char *text)
{
    int32_t id = tokenizer_find(tok, text, strlen(text));
    return id >= 0 && tok->pieces[id].type == PIECE_USER_DEFINED ? id : -1;
}

enum tutti_status icetext_finish(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    char text[32] = "<n>";
    tok->newline_id = find_user_defined(tok, text);
    bool ok = tok->newline_id >= 0;
    if (ok) {
        snprintf(text, sizeof text, "<|tab|>");
        tok->tab_id = find_user_defined(tok, text);
        ok = tok->tab_id >= 0;
    }
    for (int n = MIN_BLANKS; ok && n <= MAX_BLANKS; n++) {
        snprintf(text, sizeof text, "<|blank_%d|>", n);
        int32_t id = find_user_defined(tok, text);
        if (n == MIN_BLANKS)
            tok->blanks_id = id;
        ok = id >= 0 && id == tok->blanks_id + n - MIN_BLANKS;
    }
    tok->is_icetext = ok;
    return ok ? TUTTI_OK
              : error_set(err, TUTTI_E_FORMAT,
                          "%s: %s is missing, or does not stand where ChatGLM-6B's vocabulary has it", name,
                          text);
}

bool icetext_rewrite(const char *text, size_t n_bytes, struct buf *out)
{
    for (size_t at = 0; at < n_bytes;) {
        size_t n = 0;
        while (at + n < n_bytes && text[at + n] != '\n' && text[at + n] != '\t' && text[at + n] != ' ')
            n++;
        if (!buf_add(out, text + at, n))
            return false;
        at += n;
        for (n = 0; at + n < n_bytes && n < MAX_BLANKS && text[at + n] == ' '; n++)
            ;
        if (n >= MIN_BLANKS ? !buf_printf(out, "<|blank_%zu|>", n) : n > 0 && !buf_add(out, " ", 1))
            return false;
        at += n;
        if (n > 0 || at == n_bytes)
            continue;
        if (!buf_add_string(out, text[at] == '\n' ? "<n>" : "<|tab|>"))
            return false;
        at++;
    }
    return true;
}

bool icetext_surface(const struct tokenizer *tok, int32_t id, char *c, int *n)
{
    *n = 1;
    *c = id == tok->newline_id ? '\n' : '\t';
    if (!tok->is_icetext || id == tok->newline_id || id == tok->tab_id)
        return tok->is_icetext;
    *c = ' ';
    *n = id - tok->blanks_id + MIN_BLANKS;
    return *n >= MIN_BLANKS && *n <= MAX_BLANKS;
}
