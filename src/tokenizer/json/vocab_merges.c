/* Reads vocab.json and merges.txt, the format of GPT-2. */
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/byte_files.h"

#include <string.h>

/* A comment, then a line for each merge: two spellings with a blank between. */
static enum tutti_status read_merges_file(struct tokenizer *tok, const struct byte_file *file,
                                          struct tutti_error *err)
{
    const char *at = file->bytes, *end = at + file->n_bytes;
    bool is_first = true;
    while (at && at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((feed ? feed : end) - at);
        size_t n_line = n > 0 && at[n - 1] == '\r' ? n - 1 : n;
        bool is_comment = is_first && n_line >= 8 && memcmp(at, "#version", 8) == 0;
        if (n_line > 0 && !is_comment) {
            enum tutti_status st = byte_level_add_merge_line(tok, at, n_line, file->name, err);
            if (st != TUTTI_OK)
                return st;
        }
        is_first = false;
        at += n + 1;
    }
    return TUTTI_OK;
}

/* Without other files, this format has one token that ends a text. */
static enum tutti_status add_end_of_text(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    static const char END[] = "<|endoftext|>";
    int32_t id = byte_config_find(tok, END);
    if (id < 0)
        return TUTTI_OK;
    tok->bos_id = tok->eos_id = id;
    return byte_level_add(tok, END, strlen(END), (struct added_token){ .id = id, .is_special = true }, name,
                          err);
}

enum tutti_status tokenizer_from_vocab_merges(struct tokenizer **out, const struct byte_file *vocab,
                                              const struct byte_file *merges, const char *pre,
                                              const json_t *config, struct tutti_error *err)
{
    json_t *root = NULL;
    struct tokenizer *tok = byte_level_new();
    const struct pre_name *named = pre_name_find(pre);
    if (!tok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", vocab->name);
    enum tutti_status st = byte_level_use(tok, named, pre, vocab->name, err);
    if (st == TUTTI_OK)
        st = byte_config_parse(&root, vocab->bytes, vocab->n_bytes, vocab->name, err);
    if (st == TUTTI_OK)
        st = byte_config_vocab(tok, root, vocab->name, err);
    if (st == TUTTI_OK)
        st = read_merges_file(tok, merges, err);
    if (st == TUTTI_OK)
        st = byte_config_add_all(tok, config, vocab->name, err);
    if (st == TUTTI_OK)
        st = byte_config_add_named(tok, config, vocab->name, err);
    if (st == TUTTI_OK && tok->added.n == 0)
        st = add_end_of_text(tok, vocab->name, err);
    if (st == TUTTI_OK)
        st = byte_level_finish(tok, false, merges->name, err);
    if (st == TUTTI_OK)
        st = byte_config_specials(tok, config, vocab->name, err);
    tok->affixes.is_known = true; /* nothing is added unless the settings say so */
    json_decref(root);
    return tokenizer_give(out, tok, st);
}
