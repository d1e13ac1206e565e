/* tutti inspect: shows the content of a checkpoint, and how many users fit into memory. */
#include "offline/inspect.h"

#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/output.h"

#include <math.h>
#include <stdlib.h>

struct inspect_values {
    struct fit_flags fit;
    bool json, no_tensors;
};

#define VALUES struct inspect_values
static const struct option OPTIONS[] = {
    FLAG_OPTION(VALUES, no_tensors, "no-tensors", "do not print the list"),
    FLAG_OPTION(VALUES, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Memory", FIT_OPTIONS, offsetof(VALUES, fit) },
    { .title = NULL },
};

static enum tutti_status run_inspect(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct inspect_values *values = v;
    struct fit_values fit;
    enum tutti_status st = fit_flags_values(&values->fit, &fit, err);
    if (st != TUTTI_OK)
        return st;
    struct inspect_options options = {
        .as_json = values->json,
        .lists_tensors = !values->no_tensors,
        .type = fit.type,
        .kv_type = fit.kv_type,
        .device = fit.device,
        .gpu_layers = fit.gpu_layers,
        .cpu_experts = fit.cpu_experts,
        .memory_bytes = fit.memory_bytes,
        .host_bytes = fit.host_bytes,
        .context = fit.context,
        .mtp = fit.mtp,
    };
    /* The report is printed when it is complete: after a failure standard output stays empty. */
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *report = open_memstream(&text, &n_bytes);
    if (!report)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    st = model_inspect(operands[0], &options, report, err);
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
    .about = "Prints the description of the model, its tensors, the memory for weights and KV "
             "cache, and how many users of a given context fit into memory. No weights are loaded. "
             "With --gpu-layers or --cpu-experts it also prints what a card and the CPU have of "
             "them.",
    .example = "tutti inspect models/demo\n"
               "tutti inspect chatglm3-6b --type q4_0 --memory 16G --context 4096",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct inspect_values),
    .run = run_inspect,
};
