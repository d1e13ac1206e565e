/* Any bytes as a grammar: the first byte chooses the notation, the bytes after the last "\n\n" are fed as text. A mask must allow
 * exactly the tokens that can be taken, or lead to too many places. */
#include "grammar/grammar.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { N_BYTES = 256, N_LONGER = 6, N_TOKENS = 2 + N_BYTES + N_LONGER };

static struct token_trie *make_trie(void)
{
    static const char *const LONGER[N_LONGER] = { "\":",
                                                  "{\"a",
                                                  "aa",
                                                  "]}",
                                                  "tru",
                                                  "\xC3\xA9"
                                                  "1" };
    static char names[N_BYTES][8];
    struct piece pieces[N_TOKENS] = { { "<unk>", 5, 0, PIECE_UNKNOWN }, { "</s>", 4, 0, PIECE_CONTROL } };
    struct tokenizer *tok;
    struct token_trie *trie;
    for (int i = 0; i < N_BYTES; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", (unsigned)i);
        pieces[2 + i] = (struct piece){ names[i], 6, 0, PIECE_BYTE };
    }
    for (int i = 0; i < N_LONGER; i++)
        pieces[2 + N_BYTES + i] = (struct piece){ LONGER[i], strlen(LONGER[i]), 0, PIECE_NORMAL };
    struct piece_vocab vocab = {
        .pieces = pieces, .n_pieces = N_TOKENS, .byte_fallback = true, .bos_id = -1, .eos_id = 1
    };
    if (tokenizer_from_pieces(&tok, &vocab, "fuzz", NULL) != TUTTI_OK ||
        token_trie_new(&trie, tok, N_TOKENS, NULL) != TUTTI_OK)
        abort();
    tokenizer_free(tok);
    return trie;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static struct token_trie *trie;
    struct tutti_error err = { 0 };
    struct grammar *g = NULL;
    struct matcher m;
    /* Less than a server allows: under sanitizers a step takes ten times as long. What one step may cost at most beyond the
     * budget is the text, read once, and a slice of the first mask. */
    static const struct budget_limits LIMITS = { .n_steps = 2 * 1000 * 1000, .n_bytes = LIMIT_COMPILE_BYTES };
    enum { MAX_OVERSHOOT = 1000 * 1000, MAX_SLICES = 18 };
    static const enum grammar_kind KINDS[] = { GRAMMAR_GBNF, GRAMMAR_JSON_SCHEMA, GRAMMAR_PATTERN };
    if (!trie)
        trie = make_trie();
    if (n_bytes == 0 || n_bytes > 65536)
        return 0;
    const char *text = (const char *)bytes + 1, *end = (const char *)bytes + n_bytes, *input = end;
    for (const char *c = text; c + 1 < end; c++)
        if (c[0] == '\n' && c[1] == '\n')
            input = c + 2;
    size_t n_text = (size_t)((input < end ? input - 2 : end) - text);
    struct budget budget;
    budget_init(&budget, &LIMITS);
    enum tutti_status st = grammar_new(&g, KINDS[*bytes % 3], text, n_text, trie, &budget, &err);
    assert(budget_steps(&budget) <= LIMITS.n_steps + MAX_OVERSHOOT && budget.peak_bytes <= LIMITS.n_bytes &&
           budget.n_bytes == 0);
    assert(st == TUTTI_OK || err.text[0] != '\0');
    assert(st != TUTTI_E_INTERNAL);
    if (st != TUTTI_OK)
        return 0;
    matcher_init(&m, g);
    size_t n_input = (size_t)(end - input), n_before = n_input > 12 ? n_input - 12 : 0;
    if (n_before > 0 && !matcher_take_bytes(&m, input, n_before)) /* most of a long text at once */
        n_before = 0;
    input += n_before;
    for (int i = 0; i < 12; i++) {
        uint32_t mask[(N_TOKENS + 31) / 32];
        enum tutti_status made = TUTTI_E_BUSY;
        for (int slice = 0; slice < MAX_SLICES && made == TUTTI_E_BUSY; slice++)
            made = matcher_mask_slice(&m, mask, 1 + (1 << slice), NULL);
        if (made != TUTTI_OK)
            break;
        for (int32_t token = 0; token < N_TOKENS; token++) {
            struct matcher probe;
            matcher_init(&probe, g);
            probe.set = m.set;
            bool is_taken = matcher_take(&probe, token);
            bool has_given_up = !is_taken && matcher_status(&probe) != TUTTI_OK;
            assert(has_given_up || is_taken == (mask[token / 32] >> (token % 32) & 1));
            matcher_clear(&probe);
        }
        if (input >= end || !matcher_take_bytes(&m, input++, 1))
            break;
    }
    matcher_clear(&m);
    grammar_drop(g);
    return 0;
}
