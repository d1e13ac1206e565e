/* How a model is cut over ranks. Expected figures are worked out by hand. */
#include "checkpoint/shards/shard_manifest.h"
#include "model/ranks/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct split_blocks PLAIN = { 1, 1 };

/* The shape of LLaMA 2 7B, with four query heads for each of keys and values. */
static struct model_desc llama(void)
{
    return (struct model_desc){ .n_layers = 2,
                                .n_kinds = 1,
                                .d_model = 4096,
                                .kinds[0].attn.n_heads = 32,
                                .kinds[0].attn.n_kv_heads = 8,
                                .kinds[0].attn.head_dim = 128,
                                .kinds[0].ffn.d_ff = 11008,
                                .n_vocab = 32000,
                                .kinds[0].ffn.has_gate = true };
}

static struct split make(const struct model_desc *d, const struct split_blocks *blocks, int n_ranks, int rank)
{
    struct split s;
    struct tutti_error err = { 0 };
    if (split_make(&s, d, blocks, n_ranks, rank, &err) != TUTTI_OK)
        fail_msg("%d of %d: %s", rank, n_ranks, err.text);
    return s;
}

static void assert_range(struct split_range found, int begin, int end)
{
    assert_int_equal(found.begin, begin);
    assert_int_equal(found.end, end);
}

static void a_rank_owns_whole_heads_and_its_share_of_columns(void **state)
{
    (void)state;
    struct model_desc d = llama();
    struct split s = make(&d, &PLAIN, 4, 1);
    assert_range(s.kinds[0].heads, 8, 16);
    assert_range(s.kinds[0].kv_heads, 2, 4);
    assert_int_equal(s.kinds[0].n_kv_copies, 1);
    assert_range(s.kinds[0].ffn, 2752, 5504); /* 344 units of 32 */
    assert_range(s.vocab, 8000, 16000);       /* 2000 units of 16 */
    struct model_desc local = split_desc(&s, &d);
    assert_int_equal(local.kinds[0].attn.n_heads, 8);
    assert_int_equal(local.kinds[0].attn.n_kv_heads, 2);
    assert_int_equal(local.kinds[0].ffn.d_ff, 2752);
    assert_int_equal(local.n_vocab, 8000);
    assert_int_equal(local.d_model, 4096);
}

static void uneven_shares_fall_on_the_blocks_of_quantized_types(void **state)
{
    (void)state;
    struct model_desc d = llama();
    const struct split_blocks k_quants = { 256, 256 };
    const int ends[] = { 2560, 5376, 8192, 11008 }; /* 43 blocks: 10, 11, 11, 11 */
    for (int rank = 0; rank < 4; rank++)
        assert_range(make(&d, &k_quants, 4, rank).kinds[0].ffn, rank > 0 ? ends[rank - 1] : 0, ends[rank]);
    d.kinds[0].ffn.d_ff = 13696; /* ChatGLM3: 428 blocks of 32 */
    const struct split_blocks q4_0 = { 32, 32 };
    assert_range(make(&d, &q4_0, 8, 0).kinds[0].ffn, 0, 1696);
    assert_range(make(&d, &q4_0, 8, 7).kinds[0].ffn, 11968, 13696);
}

static void fewer_kv_heads_than_ranks_are_copied(void **state)
{
    (void)state;
    struct model_desc d = llama();
    d.kinds[0].attn.n_kv_heads = 2;
    for (int rank = 0; rank < 8; rank++) {
        struct split s = make(&d, &PLAIN, 8, rank);
        assert_int_equal(s.kinds[0].n_kv_copies, 4);
        assert_range(s.kinds[0].kv_heads, rank / 4, rank / 4 + 1);
        /* 16 query heads share one: all of this rank's heads must */
        assert_int_equal(s.kinds[0].heads.begin / 16, s.kinds[0].kv_heads.begin);
        assert_int_equal((s.kinds[0].heads.end - 1) / 16, s.kinds[0].kv_heads.begin);
        assert_int_equal(split_desc(&s, &d).kinds[0].attn.n_kv_heads, 1);
    }
}

/* Whatever the shape, ranks in their order hold all of it once. */
static void ranks_leave_no_gap_and_no_overlap(void **state)
{
    (void)state;
    struct model_desc d = llama();
    const int widths[] = { 8, 64, 96, 100, 1000, 11008 }, vocabs[] = { 8, 100, 65024, 65025 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        for (size_t j = 0; j < sizeof vocabs / sizeof *vocabs; j++) {
            d.kinds[0].ffn.d_ff = widths[i];
            d.n_vocab = vocabs[j];
            for (int n = 1; n <= 8; n *= 2) {
                int ffn = 0, vocab = 0, head = 0;
                for (int rank = 0; rank < n; rank++) {
                    struct split s = make(&d, &PLAIN, n, rank);
                    assert_range(s.kinds[0].ffn, ffn, s.kinds[0].ffn.end);
                    assert_range(s.vocab, vocab, s.vocab.end);
                    assert_range(s.kinds[0].heads, head, head + 32 / n);
                    assert_true(s.kinds[0].ffn.end > s.kinds[0].ffn.begin && s.vocab.end > s.vocab.begin);
                    ffn = s.kinds[0].ffn.end;
                    vocab = s.vocab.end;
                    head = s.kinds[0].heads.end;
                }
                assert_int_equal(ffn, d.kinds[0].ffn.d_ff);
                assert_int_equal(vocab, d.n_vocab);
                assert_int_equal(head, 32);
            }
        }
    }
}

static void the_table_says_what_of_a_matrix_a_rank_holds(void **state)
{
    (void)state;
    struct model_desc d = { .n_kinds = 1,
                            .kinds[0].attn.n_heads = 4,
                            .kinds[0].attn.n_kv_heads = 2,
                            .kinds[0].attn.head_dim = 8,
                            .kinds[0].ffn.d_ff = 64,
                            .n_vocab = 100,
                            .kinds[0].ffn.has_gate = true };
    struct split s = make(&d, &PLAIN, 2, 1);
    static const struct {
        struct split_target target;
        enum split_kind kind;
        int n_whole, n;
        struct split_range runs[SPLIT_MAX_RUNS];
    } CASES[] = {
        { { .slot = SLOT_EMBEDDING, .part = 0 }, SPLIT_ROWS, 100, 52, { { 48, 100 } } },
        { { .slot = SLOT_OUTPUT, .part = SPLIT_ALL_PARTS }, SPLIT_ROWS, 100, 52, { { 48, 100 } } },
        { { .slot = SLOT_QKV, .part = 0 }, SPLIT_ROWS, 32, 16, { { 16, 32 } } },
        { { .slot = SLOT_QKV, .part = 1 }, SPLIT_ROWS, 16, 8, { { 8, 16 } } },
        { { .slot = SLOT_QKV, .part = 2 }, SPLIT_ROWS, 16, 8, { { 8, 16 } } },
        { { .slot = SLOT_QKV, .part = SPLIT_ALL_PARTS },
          SPLIT_ROWS,
          64,
          32,
          { { 16, 32 }, { 40, 48 }, { 56, 64 } } },
        { { .slot = SLOT_QKV, .part = SPLIT_ALL_PARTS, .by_head = true },
          SPLIT_ROWS,
          64, /* by KV head: two queries, a key and a value each */
          32,
          { { 32, 64 } } },
        { { .slot = SLOT_ATTN_OUT, .part = SPLIT_ALL_PARTS }, SPLIT_COLUMNS, 32, 16, { { 16, 32 } } },
        { { .slot = SLOT_GATE_UP, .part = 0 }, SPLIT_ROWS, 64, 32, { { 32, 64 } } },
        { { .slot = SLOT_GATE_UP, .part = 1 }, SPLIT_ROWS, 64, 32, { { 32, 64 } } },
        { { .slot = SLOT_GATE_UP, .part = SPLIT_ALL_PARTS },
          SPLIT_ROWS,
          128,
          64,
          { { 32, 64 }, { 96, 128 } } },
        { { .slot = SLOT_DOWN, .part = SPLIT_ALL_PARTS }, SPLIT_COLUMNS, 64, 32, { { 32, 64 } } },
        { { .slot = SLOT_TOP_QUERY, .part = SPLIT_ALL_PARTS }, SPLIT_ROWS, 32, 16, { { 16, 32 } } },
        { { .slot = SLOT_TOP_KV, .part = SPLIT_ALL_PARTS }, SPLIT_ROWS, 32, 16, { { 8, 16 }, { 24, 32 } } },
        { { .slot = SLOT_COUNT }, SPLIT_WHOLE, 0, 0, { { 0, 0 } } },
        { { .slot = SLOT_ATTN_NORM, .part = SPLIT_ALL_PARTS }, SPLIT_WHOLE, 0, 0, { { 0, 0 } } },
        { { .slot = SLOT_POSITIONS, .part = SPLIT_ALL_PARTS }, SPLIT_WHOLE, 0, 0, { { 0, 0 } } },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct split_part part = split_part(&s, &d, &CASES[i].target);
        assert_int_equal(split_kind(CASES[i].target.slot), CASES[i].kind);
        assert_int_equal(part.kind, CASES[i].kind);
        assert_int_equal(part.n, CASES[i].n);
        assert_int_equal(split_n_whole(&d, &CASES[i].target), CASES[i].n_whole);
        for (int r = 0; r < part.n_runs; r++)
            assert_range(part.runs[r], CASES[i].runs[r].begin, CASES[i].runs[r].end);
        assert_true(part.n_runs == SPLIT_MAX_RUNS || CASES[i].runs[part.n_runs].end == 0);
    }
}

static void what_cannot_be_cut_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        int n_heads, n_kv_heads, d_ff, n_vocab, n_ranks;
        struct split_blocks blocks;
        const char *words;
    } CASES[] = {
        { 12,
          12,
          64,
          100,
          8,
          { 1, 1 },
          "12 heads with 12 KV heads cannot be dealt out over 8 ranks, expected tp 1, 2, 3, 4, 6, 12" },
        { 12,
          2,
          64,
          100,
          3,
          { 1, 1 },
          "12 heads with 2 KV heads cannot be dealt out over 3 ranks, expected tp 1, 2, 4, 6, 12" },
        { 12, 4, 64, 100, 6, { 1, 1 }, "expected tp 1, 2, 4, 12" },
        { 12, 12, 64, 100, 0, { 1, 1 }, "tp 0, expected 1 to 64" },
        { 12, 12, 64, 100, 65, { 1, 1 }, "tp 65, expected 1 to 64" },
        { 12,
          12,
          64,
          100,
          12,
          { 32, 1 },
          "of attention's output matrix each rank would have 16 columns (1 heads of 16), no multiple of its "
          "blocks of "
          "32 weights, expected tp 1, 2, 3, 6, or weights of another type" },
        { 32,
          8,
          1024,
          100,
          4,
          { 256, 256 },
          "128 columns (8 heads of 16), no multiple of its blocks of 256 weights, expected tp 1, 2, or" },
        { 128,
          8,
          512,
          100,
          4,
          { 256, 256 },
          "the 512 columns of the feed-forward layer's down matrix are not as many blocks of 256 as there "
          "are ranks, "
          "expected tp 1, 2, or" },
        { 12,
          12,
          64,
          100,
          3,
          { 32, 32 },
          "the 64 columns of the feed-forward layer's down matrix are not as many blocks of 32" },
        { 12,
          12,
          8,
          100,
          12,
          { 1, 1 },
          "the 8 columns of the feed-forward layer's down matrix are not as many blocks of 1 as" },
        { 12, 12, 64, 5, 6, { 1, 1 }, "a vocabulary of 5 is too small, expected tp 1, 2, 3, 4" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model_desc d = { .n_kinds = 1,
                                .kinds[0].attn.n_heads = CASES[i].n_heads,
                                .kinds[0].attn.n_kv_heads = CASES[i].n_kv_heads,
                                .kinds[0].attn.head_dim = 16,
                                .kinds[0].ffn.d_ff = CASES[i].d_ff,
                                .n_vocab = CASES[i].n_vocab };
        struct split s;
        struct tutti_error err = { 0 };
        assert_int_equal(split_make(&s, &d, &CASES[i].blocks, CASES[i].n_ranks, 0, &err), TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, "tp");
        if (!strstr(err.text, CASES[i].words))
            fail_msg("\"%s\" lacks \"%s\"", err.text, CASES[i].words);
    }
}

/* A manifest has a list of what the rank owns of each kind of layers; before version 3 it had no list. */
static void manifests_are_read_with_and_without_kinds(void **state)
{
    (void)state;
    struct model_desc d = llama();
    struct split want = make(&d, &PLAIN, 4, 1), got;
    static const struct {
        int version;
        const char *strategy, *fault;
    } CASES[] = {
        { 3,
          "{'kinds': [{'heads': [8, 16], 'kv_heads': [2, 4], 'ffn': [2752, 5504]}], 'vocab': [8000, 16000]}",
          NULL },
        { 2, "{'heads': [8, 16], 'kv_heads': [2, 4], 'ffn': [2752, 5504], 'vocab': [8000, 16000]}", NULL },
        { 3, "{'heads': [8, 16], 'kv_heads': [2, 4], 'ffn': [2752, 5504], 'vocab': [8000, 16000]}",
          ": strategy.kinds: " },
        { 3,
          "{'kinds': [{'heads': [8, 16], 'kv_heads': [2, 4], 'ffn': [2752, 11009]}], 'vocab': [8000, 16000]}",
          ": strategy.kinds[0].ffn: " },
        { 2, "{'heads': [8, 16], 'kv_heads': [2, 5], 'ffn': [2752, 5504], 'vocab': [8000, 16000]}",
          ": strategy.kv_heads: " },
    };
    snprintf(d.family, sizeof d.family, "llama");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        char text[256];
        snprintf(text, sizeof text, "%s", CASES[i].strategy);
        for (char *quote; (quote = strchr(text, '\''));)
            *quote = '"';
        json_t *strategy = json_loads(text, 0, NULL);
        struct shard_manifest manifest = { .path = "shard.json",
                                           .family = d.family,
                                           .version = CASES[i].version,
                                           .n_ranks = 4,
                                           .rank = 1,
                                           .strategy = strategy };
        enum tutti_status st = split_read(&got, &d, &manifest, &err);
        assert_int_equal(st, CASES[i].fault ? TUTTI_E_FORMAT : TUTTI_OK);
        if (CASES[i].fault)
            assert_non_null(strstr(err.text, CASES[i].fault));
        else
            assert_memory_equal(&got, &want, sizeof got);
        json_decref(strategy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_owns_whole_heads_and_its_share_of_columns),
        cmocka_unit_test(uneven_shares_fall_on_the_blocks_of_quantized_types),
        cmocka_unit_test(fewer_kv_heads_than_ranks_are_copied),
        cmocka_unit_test(ranks_leave_no_gap_and_no_overlap),
        cmocka_unit_test(the_table_says_what_of_a_matrix_a_rank_holds),
        cmocka_unit_test(what_cannot_be_cut_is_refused_with_the_reason),
        cmocka_unit_test(manifests_are_read_with_and_without_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
