/* tutti tokenize: converts text to token ids, and back. */
#include "base/utf8.h"
#include "cli/options/command.h"
#include "cli/terminal/input.h"
#include "cli/terminal/output.h"
#include "model/description/family.h"

#include <stdio.h>
#include <string.h>

struct tokenize_values {
    bool ids, decode, special, parse_special, json;
};

static const struct option OPTIONS[] = {
    FLAG_OPTION(struct tokenize_values, ids, "ids", "print only the ids, on one line", .excludes = "decode"),
    FLAG_OPTION(struct tokenize_values, decode, "decode", "TEXT is a list of ids: print their text",
                .letter = 'd'),
    FLAG_OPTION(struct tokenize_values, special, "special",
                "add the special tokens that the model expects around a text", .excludes = "decode"),
    FLAG_OPTION(struct tokenize_values, parse_special, "parse-special",
                "parse special tokens in TEXT; without it they are plain text", .excludes = "decode"),
    FLAG_OPTION(struct tokenize_values, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

struct tokenize_vocabulary {
    const struct family *family;
    struct tokenizer *tok;
    struct model_desc desc;
};

/* Loads only the tokenizer, no weights. */
static enum tutti_status vocabulary_load(struct tokenize_vocabulary *out, const char *path,
                                         struct tutti_error *err)
{
    struct checkpoint *ck = NULL;
    char why[256] = "";
    enum tutti_status st = checkpoint_open(&ck, path, err);
    if (st == TUTTI_OK)
        st = model_desc_read(&out->desc, &out->family, ck, err);
    if (st == TUTTI_OK)
        st = model_tokenizer_load(&out->tok, out->family, &out->desc, ck, why, sizeof why, err);
    if (st == TUTTI_OK && !out->tok)
        st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: the model has no tokenizer: %s", path, why);
    checkpoint_close(ck);
    return st;
}

/* The bytes of a token in readable form: bytes that are not printable, or not a whole character,
 * as \xNN. */
static bool add_readable(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    struct piece piece = tokenizer_piece(tok, id);
    bool ok = true;
    for (size_t i = 0, n; ok && i < piece.n_bytes; i += n) {
        unsigned char c = (unsigned char)piece.bytes[i];
        int length = utf8_char(piece.bytes + i, piece.n_bytes - i);
        n = length > 0 ? (size_t)length : 1;
        if (c == '\\')
            ok = buf_add_string(out, "\\\\");
        else if (length == 0 || c < 0x20 || c == 0x7F)
            ok = buf_printf(out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\x%02X", c);
        else
            ok = buf_add(out, piece.bytes + i, n);
    }
    return ok;
}

static bool print_pieces(const struct tokenizer *tok, const struct ids *list)
{
    struct buf line = { 0 };
    bool ok = true;
    for (size_t i = 0; ok && i < list->n; i++) {
        buf_truncate(&line, 0);
        ok = buf_printf(&line, "%7d  ", list->ids[i]) && add_readable(tok, list->ids[i], &line) &&
             buf_add_string(&line, "\n");
        if (ok)
            output_write(line.bytes, line.n_bytes);
    }
    buf_clear(&line);
    return ok;
}

static bool print_ids_json(const struct tokenizer *tok, const struct ids *list, const struct buf *text)
{
    json_t *ids = json_array(), *pieces = json_array();
    struct buf piece = { 0 };
    bool ok = true;
    for (size_t i = 0; ok && i < list->n; i++) {
        buf_truncate(&piece, 0);
        ok = json_array_append_new(ids, json_integer(list->ids[i])) == 0 &&
             add_readable(tok, list->ids[i], &piece) && buf_add_string(&piece, "") &&
             json_array_append_new(pieces, json_stringn(piece.bytes, piece.n_bytes)) == 0;
    }
    json_t *object = json_pack("{s:o, s:o, s:o*}", "ids", ids, "pieces", pieces, "text",
                               text ? json_stringn(text->bytes ? text->bytes : "", text->n_bytes) : NULL);
    ok = ok && object;
    if (ok)
        output_json(object, false);
    json_decref(object);
    buf_clear(&piece);
    return ok;
}

static enum tutti_status encode(const struct tokenize_values *values,
                                const struct tokenize_vocabulary *vocabulary, const struct buf *text,
                                struct tutti_error *err)
{
    /* A model without weights, sufficient for text. */
    struct model bare = { .family = vocabulary->family,
                          .desc = vocabulary->desc,
                          .tokenizer = vocabulary->tok };
    struct model_text whole = { .bytes = text->bytes,
                                .n_bytes = text->n_bytes,
                                .add_special = values->special,
                                .parse_special = values->parse_special };
    struct ids list = { 0 };
    bool ok = true;
    enum tutti_status st = model_encode_text(&bare, &whole, &list, err);
    if (st != TUTTI_OK)
        goto done;
    if (values->json) {
        ok = print_ids_json(vocabulary->tok, &list, NULL);
    } else if (values->ids) {
        for (size_t i = 0; i < list.n; i++)
            output_printf("%s%d", i ? "," : "", list.ids[i]);
        output_write("\n", 1);
    } else {
        ok = print_pieces(vocabulary->tok, &list);
    }
    if (!ok)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the ids of %zu bytes of text", text->n_bytes);
done:
    ids_clear(&list);
    return st;
}

static enum tutti_status decode(const struct tokenize_values *values, const struct tokenizer *tok,
                                const struct buf *input, struct tutti_error *err)
{
    struct ids list = { 0 };
    struct buf text = { 0 };
    enum tutti_status st = input_parse_ids(&list, "--decode", input->bytes, input->n_bytes, err);
    for (size_t i = 0; st == TUTTI_OK && i < list.n; i++)
        if (list.ids[i] >= tokenizer_n_pieces(tok))
            st = error_set(err, TUTTI_E_ARGUMENT, "--decode: found id %d, expected 0 to %d", list.ids[i],
                           tokenizer_n_pieces(tok) - 1);
    if (st != TUTTI_OK)
        goto done;
    if (!tokenizer_decode(tok, list.ids, list.n, &text) ||
        (values->json && !print_ids_json(tok, &list, &text))) {
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the text of %zu ids", list.n);
        goto done;
    }
    if (!values->json) {
        output_write(text.bytes, text.n_bytes);
        output_write("\n", 1);
    }
done:
    buf_clear(&text);
    ids_clear(&list);
    return st;
}

static enum tutti_status run_tokenize(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct tokenize_values *values = v;
    struct tokenize_vocabulary vocabulary = { 0 };
    struct buf text = { 0 };
    const char *operand = operands[1] ? operands[1] : "-";
    if (values->ids && values->json)
        return error_set(err, TUTTI_E_ARGUMENT, "--ids and --json exclude each other");
    enum tutti_status st = vocabulary_load(&vocabulary, operands[0], err);
    if (st == TUTTI_OK && strcmp(operand, "-") == 0)
        st = input_read(&text, "-", err);
    else if (st == TUTTI_OK && !buf_add_string(&text, operand))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for %zu bytes of text", strlen(operand));
    if (st == TUTTI_OK)
        st = values->decode ? decode(values, vocabulary.tok, &text, err)
                            : encode(values, &vocabulary, &text, err);
    tokenizer_free(vocabulary.tok);
    buf_clear(&text);
    return st;
}

const struct command COMMAND_TOKENIZE = {
    .name = "tokenize",
    .summary = "convert text to token ids, and back",
    .about = "Prints the tokens of TEXT, one per line: the id and the piece of the vocabulary. TEXT "
             "is taken as it is; without it, or if it is -, all of standard input is read.",
    .example = "tutti tokenize models/demo \"Hello, world\"\n"
               "tutti tokenize models/demo --decode 402,344",
    .options = OPTION_SET(GROUPS, "MODEL [TEXT|-]", 1, 2,
                          "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct tokenize_values),
    .run = run_tokenize,
};
