/* Any bytes as a file of log-probabilities, tutti's own or llama-perplexity's: an error, or rows that can all be read. */
#include "offline/logits_base.h"
#include "scratch.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static const char WRONG_SUM[] = "their sum is ";
enum { SUM_AT = 104 };

/* A checksum keeps all but equal files out: the reader says which one it expects, and gets it. */
static enum tutti_status open_base(struct logits_base **out, const uint8_t *bytes, size_t n_bytes,
                                   struct tutti_error *err)
{
    const char *path = scratch_write("base", bytes, n_bytes);
    enum tutti_status st = logits_base_open(out, path, err);
    const char *at = st == TUTTI_OK ? NULL : strstr(err->text, WRONG_SUM);
    if (!at)
        return st;
    uint64_t sum = strtoull(at + strlen(WRONG_SUM), NULL, 16);
    uint8_t *mended = malloc(n_bytes);
    assert(mended && n_bytes >= SUM_AT + 8);
    memcpy(mended, bytes, n_bytes);
    for (int i = 0; i < 8; i++)
        mended[SUM_AT + i] = (uint8_t)(sum >> 8 * i);
    path = scratch_write("base", mended, n_bytes);
    free(mended);
    return logits_base_open(out, path, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct logits_base *base = NULL;
    struct tutti_error err = { 0 };
    if (open_base(&base, bytes, n_bytes, &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !base);
        return 0;
    }
    const struct windows *w = logits_base_windows(base);
    int n_vocab = logits_base_n_vocab(base);
    assert(w->n > 0 && n_vocab > 0 && windows_n_scored(w) >= 0 &&
           strlen(logits_base_name(base)) < LOGITS_BASE_NAME_BYTES);
    for (int i = 0; i < w->n; i++)
        for (int row = 0; row < windows_n_scored(w); row++) {
            struct coded_row coded;
            int32_t target = windows_target(w, i, row);
            assert(target >= 0 && target < n_vocab);
            if (logits_base_next(base, &coded, &err) != TUTTI_OK) {
                assert(err.text[0] != '\0');
                logits_base_close(base);
                return 0;
            }
            assert(isfinite(coded.scale) && isfinite(coded.min));
            unsigned sum = 0;
            for (int k = 0; k < n_vocab; k++)
                sum += coded.codes[k]; /* the sanitizer watches */
            assert(sum < UINT32_MAX);
        }
    logits_base_close(base);
    return 0;
}
