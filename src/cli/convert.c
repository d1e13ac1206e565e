/* tutti convert: any checkpoint to one GGUF file. */
#include "model/convert.h"

#include "cli/command.h"
#include "cli/progress.h"

struct convert_values {
    const char *type;
    int64_t threads;
};

static const char *const TYPES[] = { "f32", "f16", "bf16", "q8_0", "q4_0", NULL };

#define VALUES struct convert_values
static const struct option OPTIONS[] = {
    { .name = "type",
      CHOICE_IN(VALUES, type),
      .value = "TYPE",
      .choices = TYPES,
      .initial = "f16",
      .help = "of the matrices" },
    { .name = "threads",
      .letter = 't',
      INT_IN(VALUES, threads),
      .value = "N",
      .min = 1,
      .max = 256,
      .help = "threads that convert; without it, one for each core that this process may use" },
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

static enum tutti_status run(const void *v, const char *const *operands, int n_operands,
                             struct tutti_error *err)
{
    (void)n_operands;
    const struct convert_values *values = v;
    struct progress progress;
    struct convert_options options = {
        .n_threads = values->threads > 0 ? (int)values->threads : 0,
        .progress = progress_update,
        .user = &progress,
    };
    if (!dtype_find(values->type, &options.type))
        return error_set(err, TUTTI_E_ARGUMENT, "--type: unknown type '%s'", values->type);
    progress_begin(&progress, "converting", PROGRESS_BYTES);
    enum tutti_status st = convert_to_gguf(operands[0], operands[1], &options, err);
    progress_end(&progress);
    return st;
}

const struct command COMMAND_CONVERT = {
    .name = "convert",
    .summary = "write a checkpoint as a GGUF file",
    .about = "Reads the checkpoint at MODEL and writes FILE, with weights of the given type, tokenizer and "
             "description. "
             "Vectors stay f32; a matrix whose rows do not fit the blocks of the type becomes f16. FILE "
             "appears under "
             "its name when it is complete.",
    .example = "tutti convert models/demo demo.gguf --type q8_0",
    .options = OPTION_SET(GROUPS, "MODEL FILE", 2, 2, "expected MODEL and FILE, the GGUF file to write"),
    .values_bytes = sizeof(struct convert_values),
    .run = run,
};
