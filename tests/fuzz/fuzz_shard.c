/* Any bytes in the place of the manifest of one rank of two: an error, or a checkpoint whose tensors lie within their files, and a strategy
 * that fits the model. The other rank, the files of tensors and the configuration are as tutti shard wrote them. */
#include "checkpoint/shards/shard_manifest.h"
#include "fleet/shard.h"
#include "model/description/family.h"
#include "model/ranks/split.h"
#include "read_tensors.h"
#include "scratch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { RANK = 1, N_RANKS = 2 };

static const char *cut_folder(void)
{
    static char folder[SCRATCH_MAX_PATH];
    if (folder[0])
        return folder;
    snprintf(folder, sizeof folder, "%s/cut", scratch_folder());
    const struct shard_options options = { .n_ranks = N_RANKS };
    struct shard_report report;
    struct tutti_error err = { 0 };
    if (shard_write(&report, FUZZ_FIXTURES "/llama-tiny", folder, &options, &err) != TUTTI_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return folder;
}

static void check_strategy(const struct checkpoint *ck, struct tutti_error *err)
{
    struct model_desc desc = { 0 };
    const struct family *family = NULL;
    struct split split;
    const struct shard_manifest *manifest = checkpoint_shard(ck);
    assert(manifest && manifest->rank == RANK && manifest->n_ranks == N_RANKS);
    if (model_desc_read(&desc, &family, ck, err) != TUTTI_OK ||
        split_read(&split, &desc, manifest, err) != TUTTI_OK) {
        assert(err->text[0] != '\0');
        return;
    }
    struct model_desc own = split_desc(&split, &desc);
    for (int i = 0; i < desc.n_kinds; i++) {
        const struct attn_desc *a = &own.kinds[i].attn;
        assert(a->n_heads >= 1 && a->n_heads <= desc.kinds[i].attn.n_heads &&
               a->n_heads % a->n_kv_heads == 0);
        assert(own.kinds[i].ffn.d_ff >= 1 && own.kinds[i].ffn.d_ff <= desc.kinds[i].ffn.d_ff);
    }
    assert(own.n_vocab >= 1 && own.n_vocab <= desc.n_vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    const char *folder = cut_folder();
    struct checkpoint *whole = NULL, *part = NULL;
    struct tutti_error err = { 0 };
    scratch_write("cut/rank_1/shard.json", bytes, n_bytes);
    if (checkpoint_open(&whole, folder, &err) == TUTTI_OK)
        read_tensors(whole);
    else
        assert(err.text[0] != '\0' && !whole);
    err.text[0] = '\0';
    if (checkpoint_open_rank(&part, folder, RANK, N_RANKS, &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !part);
    } else {
        read_tensors(part);
        if (checkpoint_shard(part))
            check_strategy(part, &err);
    }
    checkpoint_close(whole);
    checkpoint_close(part);
    return 0;
}
