/* Converts a rendered prompt to ids. A special token is recognized only where all of its text is the
 * format's own. The text between two special tokens is tokenized as one text, so that a word that
 * begins in the format and ends in a message is split as in transformers. */
#include "model/chat/chat.h"
#include "tokenizer/json/byte_files.h"

#include <stdlib.h>

bool chat_encode(const struct tokenizer *tok, const struct template_output *text, struct ids *out)
{
    struct trusted_range *ranges = calloc(text->n_segments + 1, sizeof *ranges);
    size_t n = 0, begin = 0;
    for (size_t i = 0; ranges && i < text->n_segments; begin = text->segments[i++].end) {
        if (text->segments[i].is_user || begin == text->segments[i].end)
            continue;
        if (n > 0 && ranges[n - 1].end == begin) /* trusted segments that touch are one text */
            ranges[n - 1].end = text->segments[i].end;
        else
            ranges[n++] = (struct trusted_range){ begin, text->segments[i].end };
    }
    bool ok = ranges && tokenizer_encode_ranges(tok, text->text, text->n_bytes, ranges, n, out);
    free(ranges);
    return ok;
}

enum tutti_status chat_encode_trusted(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                      struct ids *out, struct tutti_error *err)
{
    return tokenizer_encode_trusted(tok, text, n_bytes, out) ? TUTTI_OK : tokenizer_encode_error(out, err);
}
