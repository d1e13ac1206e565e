/* tutti pull: downloads a model from a hub into the cache. */
#include "cli/options/command.h"
#include "cli/options/model_path.h"
#include "cli/terminal/output.h"

#include <stdio.h>

struct pull_values {
    const char *hub;
    int connections, retries;
};

#define VALUES struct pull_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(
        VALUES, hub, "hub", "URL",
        "the hub; without it, HF_ENDPOINT or https://huggingface.co, and for ms: MODELSCOPE_DOMAIN or "
        "https://www.modelscope.cn"),
    INT_OPTION(VALUES, connections, "connections", "N",
               "number of connections to download over at the same time", .min = 1, .max = 64,
               .initial = "8"),
    INT_OPTION(VALUES, retries, "retries", "N",
               "give up after N failures of the network or the hub in a row without one new byte; the pauses "
               "between them grow from 0.25 to 30 seconds, unless the hub's Retry-After says how long",
               .max = 1000, .initial = "8"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { .title = NULL },
};

static enum tutti_status run_pull(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct pull_values *values = v;
    struct hub_name name;
    struct buf path = { 0 };
    bool is_new = false;
    enum tutti_status st = hub_name_parse(&name, operands[0], values->hub, err);
    if (st == TUTTI_OK)
        st = model_path_pull(&name, values->connections, values->retries, &path, &is_new, err);
    if (st == TUTTI_OK) {
        if (!is_new)
            fprintf(stderr, "tutti: %s is up to date\n", operands[0]);
        output_printf("%s\n", path.bytes);
    }
    buf_clear(&path);
    return st;
}

const struct command COMMAND_PULL = {
    .name = "pull",
    .summary = "download a model from Hugging Face, ModelScope or another hub",
    .about =
        "Downloads the model ORG/NAME into the cache and prints its path. Of a folder, the weights in one "
        "format, the configuration, tokenizer and chat templates are downloaded; of GGUF files, the one of "
        "TYPE, such as q4_k_m, with all its parts; or only FILE. ms:ORG/NAME is a model of ModelScope. Every "
        "file is checked against the hub's checksum.\n\nAfter an interruption of any kind the same command "
        "continues where it was. If the model is in the cache, files that have changed on the hub are "
        "downloaded. tutti list shows the cache, tutti rm removes models from it. The environment variables "
        "HF_TOKEN and MODELSCOPE_API_TOKEN are tokens for private and gated models, TUTTI_CACHE is the "
        "folder "
        "of the cache, and SSL_CERT_FILE a file with certificates of trusted authorities. Where other "
        "commands "
        "expect MODEL, hf:ORG/NAME and ms:ORG/NAME, with all that may follow, are downloaded once and then "
        "taken from the cache.",
    .example = "tutti pull Qwen/Qwen3-0.6B\n"
               "tutti pull Qwen/Qwen3-0.6B-GGUF:q8_0\n"
               "tutti serve hf:Qwen/Qwen3-0.6B-GGUF:q8_0",
    .options = OPTION_SET(GROUPS, "ORG/NAME[@REVISION][:TYPE|:FILE]", 1, 1,
                          "expected the name of a model on a hub, such as Qwen/Qwen3-0.6B"),
    .values_bytes = sizeof(struct pull_values),
    .run = run_pull,
};
