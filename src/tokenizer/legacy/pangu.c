#include "tokenizer/legacy/pangu.h"

#include "tokenizer/legacy/jieba.h"

#include <string.h>

static const char SPACE[] = "\xE2\x96\x82", LINE_FEED[] = "\xE2\x96\x83"; /* U+2582, U+2583 */

static bool pangu_add_word(void *arg, const char *word, size_t n_bytes)
{
    struct buf *out = arg;
    bool ok = out->n_bytes == 0 || buf_add(out, " ", 1);
    for (size_t i = 0; ok && i < n_bytes; i++) {
        ok = word[i] == ' '    ? buf_add_string(out, SPACE)
             : word[i] == '\n' ? buf_add_string(out, LINE_FEED)
                               : buf_add(out, &word[i], 1);
    }
    return ok;
}

bool pangu_rewrite(const struct tokenizer *tok, const char *text, size_t n_bytes, struct buf *out)
{
    return jieba_cut(tok->jieba, text, n_bytes, pangu_add_word, out);
}

bool pangu_restore(const char *text, size_t n_bytes, struct buf *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n_bytes;) {
        bool is_mark = n_bytes - i >= 3 && memcmp(text + i, SPACE, 2) == 0 &&
                       (text[i + 2] == SPACE[2] || text[i + 2] == LINE_FEED[2]);
        if (is_mark)
            ok = buf_add(out, text[i + 2] == SPACE[2] ? " " : "\n", 1);
        else if (text[i] != ' ')
            ok = buf_add(out, text + i, 1);
        i += is_mark ? 3 : 1;
    }
    return ok;
}
