#include "model/infill.h"

#include "base/limits.h"
#include "model/model.h"

#include <string.h>

/* ---- the tokens of a vocabulary ---- */

/* How a family marks the parts of a text. */
static const struct infill_form {
    const char *prefix, *suffix, *middle; /* middle NULL: nothing is before it */
    bool suffix_first;
} FORMS[] = {
    { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false }, /* Qwen2.5-Coder, CodeGemma, Granite 4 */
    { "<fim_prefix>", "<fim_suffix>", "<fim_middle>", false },       /* StarCoder, StarCoder2, Granite */
    { "<fim-prefix>", "<fim-suffix>", "<fim-middle>", false },       /* SantaCoder */
    { "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false }, /* DeepSeek */
    { "▁<PRE>", "▁<SUF>", "▁<MID>", false },                         /* Code Llama */
    { "<PRE>", "<SUF>", "<MID>", false },                            /* the same, from some converters */
    { "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false }, /* GLM-4.5 */
    { "<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", true },     /* Seed-Coder */
    { "[PREFIX]", "[SUFFIX]", NULL, true },                             /* Codestral */
};

/* How it marks the files of a project. project NULL: only files. */
static const struct infill_files_form {
    const char *project, *file;
    bool project_is_line, name_is_inside;
} FILES[] = {
    { "<|repo_name|>", "<|file_sep|>", true, false }, /* Qwen2.5-Coder */
    { "<repo_name>", "<file_sep>", false, true },     /* StarCoder2 */
    { "<reponame>", "<filename>", false, false },     /* StarCoder, Granite */
    { "<|reponame|>", "<|filename|>", false, false }, /* Granite 4 */
    { NULL, "<|file_separator|>", false, false },     /* CodeGemma */
};

/* What else ends an answer: the next file, or the end of the text. */
static const char *const ENDS[] = { "<|endoftext|>", "<|end_of_text|>", "▁<EOT>",    "<EOT>",
                                    "<|fim_pad|>",   "<fim_pad>",       "<fim-pad>", "<|file_separator|>" };

static int32_t find_token(const struct tokenizer *tok, const char *name, int32_t n_rows)
{
    int32_t id = name ? tokenizer_find_control(tok, name) : -1;
    if (name && id < 0) /* added tokens of Qwen2.5-Coder and DeepSeek-Coder are not special */
        id = tokenizer_find_added(tok, name);
    if (name && id < 0)
        id = tokenizer_find(tok, name, strlen(name));
    return id < n_rows ? id : -1;
}

static void find_by_name(struct infill_tokens *out, const struct tokenizer *tok, int32_t n_rows)
{
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS && !out->is_known; i++) {
        out->prefix = find_token(tok, FORMS[i].prefix, n_rows);
        out->suffix = find_token(tok, FORMS[i].suffix, n_rows);
        out->middle = find_token(tok, FORMS[i].middle, n_rows);
        out->is_known = out->prefix >= 0 && out->suffix >= 0 && (out->middle >= 0 || !FORMS[i].middle);
        out->suffix_first = out->is_known && FORMS[i].suffix_first;
    }
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES && out->file < 0; i++) {
        out->file = find_token(tok, FILES[i].file, n_rows);
        out->project = find_token(tok, FILES[i].project, n_rows);
        out->project_is_line = FILES[i].project_is_line;
        out->name_is_inside = FILES[i].name_is_inside;
    }
}

/* The id of the first of two keys, which the file has; else otherwise. */
static int32_t gguf_id(const json_t *config, const char *key, const char *older_key, int32_t n_rows,
                       int32_t otherwise)
{
    const json_t *value = json_object_get(config, key);
    if (!value && older_key)
        value = json_object_get(config, older_key);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return id >= 0 && id < n_rows ? (int32_t)id : otherwise;
}

/* The names of the tokens tell the order; with unknown names it is the usual one. */
static void find_in_gguf(struct infill_tokens *out, const json_t *config, int32_t n_rows)
{
    struct infill_tokens own = *out;
    own.prefix = gguf_id(config, "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id", n_rows,
                         out->prefix);
    own.suffix = gguf_id(config, "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id", n_rows,
                         out->suffix);
    own.middle = gguf_id(config, "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id", n_rows,
                         out->middle);
    own.project = gguf_id(config, "tokenizer.ggml.fim_rep_token_id", NULL, n_rows, out->project);
    own.file = gguf_id(config, "tokenizer.ggml.fim_sep_token_id", NULL, n_rows, out->file);
    if (own.prefix < 0 || own.suffix < 0 || (own.middle < 0 && !out->is_known))
        return;
    own.is_known = true;
    *out = own;
}

static void add_infill_stop(struct infill_tokens *out, int32_t id)
{
    for (int i = 0; i < out->n_stops; i++)
        if (out->stops[i] == id)
            return;
    if (id >= 0 && out->n_stops < INFILL_MAX_STOPS)
        out->stops[out->n_stops++] = id;
}

/* Sets has_blank: the first token of a text without a blank has one. */
static bool find_blank(struct infill_tokens *out, const struct tokenizer *tok)
{
    struct ids ids = { 0 };
    struct buf bytes = { 0 };
    bool ok = tokenizer_encode(tok, "a", 1, &ids) &&
              (ids.n == 0 || tokenizer_token_bytes(tok, ids.ids[0], &bytes));
    out->has_blank = ok && bytes.n_bytes > 0 && bytes.bytes[0] == ' ';
    ids_clear(&ids);
    buf_clear(&bytes);
    return ok;
}

bool infill_find(struct infill_tokens *out, const struct tokenizer *tok, const json_t *config, int32_t n_rows)
{
    *out = (struct infill_tokens){ .prefix = -1, .suffix = -1, .middle = -1, .project = -1, .file = -1 };
    if (!tok)
        return true;
    if (n_rows > tokenizer_n_pieces(tok))
        n_rows = tokenizer_n_pieces(tok);
    find_by_name(out, tok, n_rows);
    if (config)
        find_in_gguf(out, config, n_rows);
    if (!out->is_known)
        return true;
    const int32_t marks[] = { out->prefix, out->suffix, out->middle, out->project, out->file };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        add_infill_stop(out, marks[i]);
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        add_infill_stop(out, find_token(tok, ENDS[i], n_rows));
    return find_blank(out, tok);
}

/* ---- the prompt ---- */

static enum tutti_status infill_encode(const struct model *model, const char *text, size_t n_bytes,
                                       struct ids *out, struct tutti_error *err)
{
    if (n_bytes > 0 && !tokenizer_encode(model->tokenizer, text, n_bytes, out))
        return tokenizer_encode_error(out, err);
    return TUTTI_OK;
}

/* The suffix goes on where the gap ends, so it begins without the blank that a tokenizer puts before a text.
 * As in the authors' code of Code Llama and Codestral: a character with tokens of its own comes before it,
 * and its tokens are dropped. */
static enum tutti_status encode_suffix(const struct model *model, const char *text, size_t n_bytes,
                                       struct ids *out, struct tutti_error *err)
{
    static const char MARK[] = "☺";
    struct ids mark = { 0 }, all = { .max = out->max };
    struct buf whole = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (!model->infill.has_blank || n_bytes == 0)
        return infill_encode(model, text, n_bytes, out, err);
    if (!buf_add_string(&whole, MARK) || !buf_add(&whole, text, n_bytes))
        st = error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
    if (st == TUTTI_OK)
        st = infill_encode(model, MARK, sizeof MARK - 1, &mark, err);
    all.max += mark.n;
    if (st == TUTTI_OK)
        st = infill_encode(model, whole.bytes, whole.n_bytes, &all, err);
    bool is_apart = st == TUTTI_OK && all.n >= mark.n &&
                    (mark.n == 0 || memcmp(all.ids, mark.ids, mark.n * sizeof *all.ids) == 0);
    if (st == TUTTI_OK && !is_apart)
        st = infill_encode(model, text, n_bytes, out, err);
    else if (st == TUTTI_OK && !ids_add_all(out, all.ids + mark.n, all.n - mark.n))
        st = error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
    out->is_full = out->is_full || all.is_full;
    ids_clear(&mark);
    ids_clear(&all);
    buf_clear(&whole);
    return st;
}

/* A name, a line feed and a text, which are tokenized together. */
static enum tutti_status encode_named(const struct model *model, const char *name, size_t n_name,
                                      const char *text, size_t n_text, struct ids *out,
                                      struct tutti_error *err)
{
    const struct infill_tokens *tokens = &model->infill;
    struct buf whole = { 0 };
    bool is_marked = tokens->file >= 0;
    bool ok = (is_marked || buf_add_string(&whole, "# ")) && buf_add(&whole, name, n_name) &&
              buf_add_string(&whole, "\n") && buf_add(&whole, text, n_text) &&
              (is_marked || buf_add_string(&whole, "\n"));
    enum tutti_status st = ok ? infill_encode(model, whole.bytes, whole.n_bytes, out, err)
                              : error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
    buf_clear(&whole);
    return st;
}

static bool add_mark(struct ids *out, int32_t id)
{
    return id < 0 || ids_add(out, id);
}

/* The parts of a prompt. */
struct infill_parts {
    struct ids text;  /* prefix, suffix and their marks */
    struct ids head;  /* before the files: the model's own first ids, and the project's name */
    struct ids files; /* those that fit, backwards: each with its last id first */
    struct ids own;   /* the file that the text belongs to, if others come before it */
};

static void clear_parts(struct infill_parts *parts)
{
    ids_clear(&parts->text);
    ids_clear(&parts->head);
    ids_clear(&parts->files);
    ids_clear(&parts->own);
}

static const char OWN_NAME[] = "filename", PROJECT[] = "myproject";

/* prefix, with the file's name in front if that is where its authors put it */
static enum tutti_status encode_prefix(const struct model *model, const struct tutti_infill *infill,
                                       struct ids *out, struct tutti_error *err)
{
    if (infill->n_files == 0 || !model->infill.name_is_inside)
        return infill_encode(model, infill->prefix, infill->n_prefix_bytes, out, err);
    const char *name = infill->name ? infill->name : OWN_NAME;
    return encode_named(model, name, infill->name ? infill->n_name_bytes : sizeof OWN_NAME - 1,
                        infill->prefix, infill->n_prefix_bytes, out, err);
}

static enum tutti_status encode_gap(const struct model *model, const struct tutti_infill *infill,
                                    struct ids *out, struct tutti_error *err)
{
    const struct infill_tokens *tokens = &model->infill;
    bool suffix_first = tokens->suffix_first, ok = true;
    enum tutti_status st = TUTTI_OK;
    for (int part = 0; ok && st == TUTTI_OK && part < 2; part++) {
        bool is_suffix = (part == 0) == suffix_first;
        ok = add_mark(out, is_suffix ? tokens->suffix : tokens->prefix);
        if (ok)
            st = is_suffix ? encode_suffix(model, infill->suffix, infill->n_suffix_bytes, out, err)
                           : encode_prefix(model, infill, out, err);
    }
    ok = ok && (st != TUTTI_OK || add_mark(out, tokens->middle));
    return ok ? st : error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
}

static enum tutti_status encode_project(const struct model *model, const struct tutti_infill *infill,
                                        struct ids *out, struct tutti_error *err)
{
    struct buf line = { 0 };
    bool is_given = infill->project != NULL;
    bool ok = add_mark(out, model->infill.project) &&
              buf_add(&line, is_given ? infill->project : PROJECT,
                      is_given ? infill->n_project_bytes : sizeof PROJECT - 1) &&
              (!model->infill.project_is_line || buf_add_string(&line, "\n"));
    enum tutti_status st = ok ? infill_encode(model, line.bytes, line.n_bytes, out, err)
                              : error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
    buf_clear(&line);
    return st;
}

/* Adds files from the last one on, while they fit into room. */
static enum tutti_status encode_files(const struct model *model, const struct tutti_infill *infill,
                                      size_t room, struct ids *out, size_t *n_left_out,
                                      struct tutti_error *err)
{
    size_t n = infill->n_files;
    struct ids one = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (; n > 0 && out->n < room; n--) {
        const struct tutti_infill_file *file = &infill->files[n - 1];
        one.n = 0;
        one.is_full = false;
        one.max = room - out->n;
        bool fits = add_mark(&one, model->infill.file);
        if (fits)
            st = encode_named(model, file->name, file->n_name_bytes, file->text, file->n_text_bytes, &one,
                              err);
        if (one.is_full) { /* it is left out, and those before it */
            st = TUTTI_OK;
            break;
        }
        for (size_t i = one.n; fits && st == TUTTI_OK && i > 0; i--)
            fits = ids_add(out, one.ids[i - 1]);
        if (!fits)
            st = error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
        if (st != TUTTI_OK)
            break;
    }
    *n_left_out = n;
    ids_clear(&one);
    return st;
}

static enum tutti_status set_too_long(const struct ids *out, struct tutti_error *err)
{
    error_set_param(err, TUTTI_E_LIMIT, "prompt",
                    "This model's maximum context length is %zu tokens. However, you requested more than %zu "
                    "tokens (in the prefix and the suffix). Please reduce the length of the prefix or the "
                    "suffix.",
                    out->max, out->max);
    if (err)
        err->context_tokens = (uint32_t)out->max;
    return TUTTI_E_LIMIT;
}

/* The files, and what comes around them; nothing if none fits. */
static enum tutti_status encode_project_files(const struct model *model, const struct tutti_infill *infill,
                                              size_t max, struct infill_parts *parts, size_t *n_left_out,
                                              struct tutti_error *err)
{
    const struct infill_tokens *tokens = &model->infill;
    const char *name = infill->name ? infill->name : OWN_NAME;
    size_t n_before = parts->head.n;
    enum tutti_status st = tokens->project >= 0 ? encode_project(model, infill, &parts->head, err) : TUTTI_OK;
    if (st == TUTTI_OK && tokens->file >= 0 && !ids_add(&parts->own, tokens->file))
        st = error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
    if (st == TUTTI_OK && tokens->file >= 0 && !tokens->name_is_inside)
        st = encode_named(model, name, infill->name ? infill->n_name_bytes : sizeof OWN_NAME - 1, "", 0,
                          &parts->own, err);
    size_t n_rest = parts->head.n + parts->own.n + parts->text.n + infill->n_reserved;
    *n_left_out = infill->n_files;
    if (st == TUTTI_OK && n_rest < max)
        st = encode_files(model, infill, max - n_rest, &parts->files, n_left_out, err);
    if (*n_left_out == infill->n_files) {
        parts->head.n = n_before;
        parts->own.n = 0;
    }
    return st;
}

enum tutti_status infill_render(const struct model *model, const struct tutti_infill *infill, struct ids *out,
                                size_t *n_left_out, struct tutti_error *err)
{
    struct infill_parts parts = { .text.max = out->max };
    *n_left_out = 0;
    enum tutti_status st = model_text_prefix(model, &parts.head, err);
    if (st == TUTTI_OK)
        st = encode_gap(model, infill, &parts.text, err);
    if (st != TUTTI_OK && parts.text.is_full)
        st = set_too_long(out, err);
    if (st == TUTTI_OK && infill->n_files > 0)
        st = encode_project_files(model, infill, out->max, &parts, n_left_out, err);
    if (st == TUTTI_OK && parts.head.n + parts.files.n + parts.own.n + parts.text.n > out->max)
        st = set_too_long(out, err);
    bool ok = st != TUTTI_OK || ids_add_all(out, parts.head.ids, parts.head.n);
    for (size_t i = parts.files.n; ok && st == TUTTI_OK && i > 0; i--)
        ok = ids_add(out, parts.files.ids[i - 1]);
    ok = ok && (st != TUTTI_OK || (ids_add_all(out, parts.own.ids, parts.own.n) &&
                                   ids_add_all(out, parts.text.ids, parts.text.n)));
    clear_parts(&parts);
    return ok ? st : error_set(err, TUTTI_E_MEMORY, "infill: out of memory");
}
