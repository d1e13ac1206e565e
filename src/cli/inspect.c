/* tutti inspect: shows the content of a checkpoint, and how many users fit into memory. */
#include "offline/inspect.h"

#include "backend/kv_type.h"
#include "cli/options/command.h"
#include "cli/terminal/output.h"

#include <math.h>
#include <stdlib.h>

struct inspect_values {
    const char *type, *kv_type;
    int64_t memory, context;
    bool json, no_tensors;
};

#define VALUES struct inspect_values
static const struct option OPTIONS[] = {
    { .name = "memory",
      .letter = 'm',
      SIZE_IN(VALUES, memory),
      .value = "SIZE",
      .min = 1,
      .max = INFINITY,
      .help = "memory for weights, keys and values; without it, what this machine, or the control group "
              "(container) that tutti runs in, has left" },
    { .name = "context",
      .letter = 'c',
      INT_IN(VALUES, context),
      .value = "N",
      .min = 1,
      .max = LIMIT_CONTEXT,
      .help = "context of each user in tokens; without it, the model's whole context" },
    { .name = "type",
      CHOICE_IN(VALUES, type),
      .value = "TYPE",
      .choices = WEIGHT_TYPE_NAMES,
      .aliases = WEIGHT_TYPE_ALIASES,
      .help = "calculate with weights of this type, instead of as stored" },
    { .name = "kv-type",
      CHOICE_IN(VALUES, kv_type),
      .value = "TYPE",
      .choices = KV_TYPE_NAMES,
      .initial = "f16",
      .help = "calculate with keys and values of this type" },
    { .name = "no-tensors", FLAG_IN(VALUES, no_tensors), .help = "do not print the list" },
    { .name = "json", FLAG_IN(VALUES, json), .help = "print one JSON object" },
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

static enum tutti_status run(const void *v, const char *const *operands, int n_operands,
                             struct tutti_error *err)
{
    (void)n_operands;
    const struct inspect_values *values = v;
    struct inspect_options options = {
        .as_json = values->json,
        .lists_tensors = !values->no_tensors,
        .type = values->type ? weight_type_find(values->type) : NULL,
        .memory_bytes = values->memory > 0 ? (uint64_t)values->memory : 0,
        .context = values->context > 0 ? (int)values->context : 0,
    };
    if (!kv_type_find(values->kv_type, &options.kv_type))
        return error_set(err, TUTTI_E_ARGUMENT, "--kv-type: unknown type '%s'", values->kv_type);
    /* The report is printed when it is complete: after a failure standard output stays empty. */
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *report = open_memstream(&text, &n_bytes);
    if (!report)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    enum tutti_status st = model_inspect(operands[0], &options, report, err);
    if (fclose(report) != 0 && st == TUTTI_OK)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    if (st == TUTTI_OK)
        output_write(text, n_bytes);
    free(text);
    return st;
}

const struct command COMMAND_INSPECT = {
    .name = "inspect",
    .summary = "show the content of a checkpoint, and how many users fit",
    .about = "Prints the description of the model, its tensors, the memory for weights and KV cache, "
             "and how many users of a given context fit into memory. No weights are loaded.",
    .example = "tutti inspect models/demo\n"
               "tutti inspect chatglm3-6b --type q4_0 --memory 16G --context 4096",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .values_bytes = sizeof(struct inspect_values),
    .run = run,
};
