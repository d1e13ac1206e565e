/* tutti shard: splits a checkpoint over ranks, or merges one. */
#include "fleet/shard.h"

#include "cli/options/command.h"
#include "cli/options/output_path.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"

struct shard_values {
    int tp;
    bool check;
};

#define VALUES struct shard_values
static const struct option OPTIONS[] = {
    INT_OPTION(VALUES, tp, "tp", "N", "number of ranks to split for; 1 writes a whole checkpoint", .min = 1,
               .max = LIMIT_RANKS),
    FLAG_OPTION(VALUES, check, "check", "write nothing, but verify every byte of SRC against its manifests"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

static enum tutti_status run_shard(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct shard_values *values = v;
    struct progress progress;
    struct shard_report report;
    char size[NUMBER_SIZE_BYTES], least[NUMBER_SIZE_BYTES], most[NUMBER_SIZE_BYTES];
    struct shard_options options = { .n_ranks = values->tp > 0 ? values->tp : 1,
                                     .progress = progress_update,
                                     .user = &progress };
    if (values->check && (operands[1] || values->tp > 0))
        return error_set(err, TUTTI_E_ARGUMENT, "--check takes only SRC, without DST and --tp");
    if (!values->check && (!operands[1] || values->tp < 1))
        return error_set(err, TUTTI_E_ARGUMENT, "expected SRC, DST and --tp N (or SRC and --check)");
    enum tutti_status st = values->check ? TUTTI_OK : output_path_check("DST", operands[1], NULL, 0, err);
    if (st != TUTTI_OK)
        return st;
    progress_begin(&progress, values->check ? "checking" : "cutting", PROGRESS_BYTES);
    st = values->check ? shard_check(&report, operands[0], &options, err)
                       : shard_write(&report, operands[0], operands[1], &options, err);
    progress_end(&progress);
    if (st != TUTTI_OK)
        return st;
    number_write_size(size, report.model_bytes);
    if (values->check)
        output_printf("%s: %zu tensors of %s for %d ranks are as they were written\n", operands[0],
                      report.n_tensors, size, report.n_ranks);
    else if (report.n_ranks == 1)
        output_printf("%s: %zu tensors, %s, whole\n", operands[1], report.n_tensors, size);
    else
        output_printf("%s: %zu tensors of %s for %d ranks, %s to %s each\n", operands[1], report.n_tensors,
                      size, report.n_ranks, number_write_size(least, report.rank_bytes_min),
                      number_write_size(most, report.rank_bytes_max));
    output_printf("fingerprint %s\n", report.fingerprint);
    return TUTTI_OK;
}

const struct command COMMAND_SHARD = {
    .name = "shard",
    .summary = "split a checkpoint over ranks, or merge the parts",
    .about = "Writes DST/rank_0, DST/rank_1 and so on, each with what one of N ranks needs of the "
             "model in SRC: its slices of the matrices under their original names, and the "
             "configuration and tokenizer. DST can be given wherever a model is expected: as a whole, "
             "or with --tp N, where every rank opens only its own folder. SRC may itself be sharded, "
             "for another number of ranks, by this command or by MindSpore; --tp 1 merges "
             "it.\n\nFiles are safetensors, or MindSpore's .ckpt if SRC is. A manifest in each folder "
             "(shard.json) identifies the model and the rank and has a checksum of every file; the "
             "files of SRC are compared with its own manifests before anything is written. DST appears "
             "when it is complete.",
    .example = "tutti shard models/demo demo-2 --tp 2\n"
               "tutti shard demo-2 --check\n"
               "tutti shard demo-2 demo-whole --tp 1",
    .options = OPTION_SET(GROUPS, "SRC [DST]", 1, 2, "expected SRC and DST"),
    .n_models = 1,
    .values_bytes = sizeof(struct shard_values),
    .run = run_shard,
};
