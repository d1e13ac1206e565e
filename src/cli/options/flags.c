#include "cli/options/flags.h"

#include "backend/backend.h"
#include "backend/kv_type.h"
#include "base/files/path_name.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/system/memory_left.h"
#include "cli/options/model_path.h"
#include "cli/terminal/progress.h"
#include "cluster/cluster.h"
#include "fleet/rank_table.h"
#include "model/weights/weight_type.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the model ---- */

static const char *const CPU_LEVELS[] = { "ref",  "avx2",    "avxvnni", "avx512", "amx",
                                          "neon", "dotprod", "i8mm",    NULL };

#define MODEL struct model_flags
const struct option MODEL_OPTIONS[] = {
    CHOICE_OPTION(MODEL, options.weight_type, "type", "TYPE", WEIGHT_TYPE_NAMES,
                  "convert the weights while loading, instead of running them as stored",
                  .aliases = WEIGHT_TYPE_ALIASES),
    CHOICE_OPTION(MODEL, options.kv_type, "kv-type", "TYPE", KV_TYPE_NAMES,
                  "type of keys and values in the KV cache", .initial = "f16"),
    INT_OPTION(MODEL, options.n_threads, "threads", "N",
               "number of compute threads; without it, one for each core that this process may use",
               .letter = 't', .min = 1, .max = 256),
    INT_OPTION(MODEL, tp, "tp", "N",
               "tensor parallelism: run the model on the N processes that mpirun started, each with its part "
               "of the weights",
               .min = 1, .max = LIMIT_RANKS, .initial = "1"),
    TEXT_OPTION(MODEL, rank_table, "rank-table", "TABLE",
                "a RANK_TABLE_FILE with as many ranks as --tp, which says on which machine each rank runs "
                "(docs/sharding.md)"),
    SIZE_OPTION(
        MODEL, options.memory_bytes, "memory", "SIZE",
        "memory of this machine for weights, keys and values: a model whose weights need more is refused "
        "before they are read; without it, what this machine, or the control group (container) that tutti "
        "runs in, has left",
        .min = 1, .max = INFINITY),
    FLAG_OPTION(MODEL, options.pin_threads, "pin", "bind each compute thread to its own core"),
    CHOICE_OPTION(
        MODEL, options.numa, "numa", "MODE", NUMA_MODES,
        "on a machine with several NUMA nodes (sockets): auto, the default, places weights and keys in "
        "the memory of the node whose threads compute with them; off does not"),
    CHOICE_OPTION(MODEL, options.device, "device", "NAME", DEVICE_NAMES,
                  "the device that computes, cpu by default; cuda is the NVIDIA card with the most memory, "
                  "cuda:N card number N, and auto the card if there is one and the model fits in its memory",
                  .may_number = true),
    TEXT_OPTION(MODEL, options.gpu_layers, "gpu-layers", "N",
                "with --device cuda: keep only the last N layers, and the output, in the card's memory, and "
                "let the CPU "
                "compute the others; auto for as many as fit. Without it, all layers are on the card"),
    TEXT_OPTION(MODEL, options.cpu_experts, "cpu-experts", "N",
                "with --device cuda: leave the experts of the first N layers to the CPU; all for those of "
                "all layers"),
    CHOICE_OPTION(MODEL, options.cpu, "cpu", "LEVEL", CPU_LEVELS,
                  "use at most this instruction set, for comparisons"),
    { .name = NULL },
};

const struct option CHAT_FORMAT_OPTIONS[] = {
    TEXT_OPTION(MODEL, options.chat_format, "chat-format", "NAME",
                "chat format, instead of the checkpoint's own: chatglm, chatglm2, chatglm3, glm4, llama2, "
                "baichuan, llama3, llama3.1, chatml, qwen2, qwen2.5, qwen3, mistral-v1 or mistral-v3; "
                "template for the "
                "checkpoint's template, template:NAME for one of several; or a file with a Jinja template"),
    { .name = NULL },
};

/* Every rank checks itself; if one is on the wrong machine, its whole group ends. */
static enum tutti_status check_rank_table(const struct model_flags *flags, int n_replicas, tutti_ranks *ranks,
                                          struct tutti_error *err)
{
    struct rank_table *table = NULL;
    int rank = tutti_ranks_group(ranks) * flags->tp + tutti_ranks_rank(ranks);
    enum tutti_status st = rank_table_read(&table, flags->rank_table, err);
    if (st == TUTTI_OK)
        st = rank_table_check(table, rank, flags->tp * n_replicas, err);
    rank_table_free(table);
    return ranks ? cluster_agree(cluster_of(ranks), st, err) : st;
}

/* Options that every rank takes from its own command line, and that must be equal on all ranks:
 * with another type a rank's weights would differ, with another adapter it would wait forever.
 * Rank 0 sends all other settings to the others. */
struct rank_flags {
    char program[64], type[32], kv_type[32], adapters[1024], draft[16];
};

/* Where the path in "NAME=PATH" or "PATH" begins. A path that exists may have a '='. */
static const char *adapter_path(const char *text)
{
    const char *equals = strchr(text, '=');
    return equals && access(text, F_OK) != 0 ? equals + 1 : text;
}

/* The name in "NAME=PATH", or else that of PATH's folder. */
static void adapter_name(const char *text, char *name, size_t size)
{
    const char *path = adapter_path(text);
    if (path > text)
        snprintf(name, size, "%.*s", (int)(path - text) - 1, text);
    else
        path_name(name, size, path);
}

static void describe_adapters(const struct adapter_flags *adapters, char *text, size_t size)
{
    size_t n = 0;
    for (int i = 0; adapters && i < adapters->lora.n && n < size; i++) {
        char name[256];
        adapter_name(adapters->lora.texts[i], name, sizeof name); /* paths may differ between machines */
        n += (size_t)snprintf(text + n, size - n, "%s%s", i > 0 ? ", " : "", name);
    }
}

static enum tutti_status compare_flags(const struct model_flags *flags, const struct adapter_flags *adapters,
                                       struct cluster *cluster, struct tutti_error *err)
{
    struct rank_flags own = { .program = TUTTI_VERSION }, first;
    snprintf(own.type, sizeof own.type, "%s",
             flags->options.weight_type ? flags->options.weight_type : "as stored");
    snprintf(own.kv_type, sizeof own.kv_type, "%s", flags->options.kv_type);
    snprintf(own.draft, sizeof own.draft, "%s", flags->options.mtp ? "mtp" : "not mtp");
    describe_adapters(adapters, own.adapters, sizeof own.adapters);
    first = own;
    enum tutti_status st = TUTTI_OK;
    if (!cluster_broadcast(cluster, &first, sizeof first, true))
        return cluster_check(cluster, err);
    const struct {
        const char *name, *own, *first;
    } all[] = { { "the version of tutti", own.program, first.program },
                { "--type", own.type, first.type },
                { "--kv-type", own.kv_type, first.kv_type },
                { "--lora", own.adapters, first.adapters },
                { "--draft", own.draft, first.draft } };
    for (size_t i = 0; i < sizeof all / sizeof *all && st == TUTTI_OK; i++)
        if (strcmp(all[i].own, all[i].first) != 0)
            st = error_set_param(err, TUTTI_E_ARGUMENT, all[i].name,
                                 "%s is %s, but %s on rank 0: start all ranks with the same options",
                                 all[i].name, *all[i].own ? all[i].own : "not given",
                                 *all[i].first ? all[i].first : "not given");
    return cluster_agree(cluster, st, err);
}

/* adapters: NULL: none. */
static enum tutti_status join_ranks(const struct model_flags *flags, const struct adapter_flags *adapters,
                                    tutti_ranks **out, struct tutti_error *err)
{
    tutti_ranks *ranks = NULL;
    enum tutti_status st = TUTTI_OK;
    int n_replicas = flags->n_replicas > 1 ? flags->n_replicas : 1;
    if (flags->tp > 1 || n_replicas > 1)
        st = tutti_ranks_open(&ranks, flags->tp, n_replicas, err);
    if (st == TUTTI_OK && flags->rank_table)
        st = check_rank_table(flags, n_replicas, ranks, err);
    if (st == TUTTI_OK && ranks && cluster_n_ranks(cluster_of(ranks)) > 1)
        st = compare_flags(flags, adapters, cluster_of(ranks), err);
    if (st == TUTTI_OK && tutti_ranks_rank(ranks) > 0) {
        signal(SIGTERM, SIG_IGN); /* launchers signal all ranks, but rank 0 may have requests to finish */
        signal(SIGINT, SIG_IGN);
        log_set_level(LOG_WARN);
    }
    *out = ranks;
    return st;
}

enum tutti_status model_flags_ranks(const struct model_flags *flags, tutti_ranks **out,
                                    struct tutti_error *err)
{
    return join_ranks(flags, NULL, out, err);
}

enum tutti_status model_flags_join(const struct model_flags *flags, const struct adapter_flags *adapters,
                                   const struct draft_flags *draft, const char *path, tutti_ranks **out,
                                   bool *is_done, struct tutti_error *err)
{
    struct model_flags own = *flags;
    own.options.mtp = draft && draft_flags_are_mtp(draft);
    *is_done = false;
    enum tutti_status st = join_ranks(&own, adapters, out, err);
    if (st != TUTTI_OK || tutti_ranks_rank(*out) == 0)
        return st;
    tutti_model *model = NULL;
    st = model_flags_open(&own, *out, path, &model, err);
    bool is_told = st != TUTTI_OK;
    if (st == TUTTI_OK && adapters) {
        st = adapter_flags_load(adapters, model, err);
        is_told = st != TUTTI_OK;
    }
    if (st == TUTTI_OK)
        st = tutti_model_follow(model, err);
    if (is_told && st != TUTTI_E_IO)
        st = TUTTI_OK; /* rank 0 reports it, and must not be ended by a launcher before */
    tutti_model_close(model);
    tutti_ranks_close(*out);
    *out = NULL;
    *is_done = true;
    return st;
}

enum tutti_status model_flags_open(const struct model_flags *flags, tutti_ranks *ranks, const char *path,
                                   tutti_model **out, struct tutti_error *err)
{
    struct tutti_model_options options = flags->options;
    struct progress progress;
    progress_begin(&progress, "loading", PROGRESS_BYTES);
    options.ranks = ranks;
    options.progress = progress_update;
    options.user = &progress;
    enum tutti_status st = tutti_model_open(out, path, &options, err);
    progress_end(&progress);
    return st;
}

/* ---- memory estimate ---- */

#define FIT struct fit_flags
static const char *const DRAFT_LAYERS[] = { "mtp", NULL }, *const FIT_DEVICES[] = { "cpu", "cuda", NULL };
const struct option FIT_OPTIONS[] = {
    SIZE_OPTION(
        FIT, memory, "memory", "SIZE",
        "memory of one machine, or card, for weights, keys and values; without it, what this machine, or the "
        "control group (container) that tutti runs in, or the card, has left",
        .letter = 'm', .min = 1, .max = INFINITY),
    CHOICE_OPTION(FIT, device, "device", "NAME", FIT_DEVICES,
                  "calculate for this device; with cuda and --memory, no card is needed", .may_number = true,
                  .initial = "cpu"),
    TEXT_OPTION(
        FIT, gpu_layers, "gpu-layers", "N",
        "with --device cuda: calculate with the last N layers and the output on the card, and the others "
        "on the CPU; auto for as many as fit"),
    TEXT_OPTION(
        FIT, cpu_experts, "cpu-experts", "N",
        "with --device cuda: calculate with the experts of the first N layers on the CPU; all for those "
        "of all layers"),
    SIZE_OPTION(FIT, host_memory, "host-memory", "SIZE",
                "with --gpu-layers or --cpu-experts: memory for the CPU's weights, keys and values; without "
                "it, what this machine, or its control group, has left",
                .min = 1, .max = INFINITY),
    INT_OPTION(FIT, context, "context", "N",
               "context of each user in tokens; without it, the model's whole context", .letter = 'c',
               .min = LIMIT_LEAST_CONTEXT, .max = LIMIT_CONTEXT),
    CHOICE_OPTION(FIT, type, "type", "TYPE", WEIGHT_TYPE_NAMES,
                  "calculate with weights of this type, instead of as stored",
                  .aliases = WEIGHT_TYPE_ALIASES),
    CHOICE_OPTION(FIT, kv_type, "kv-type", "TYPE", KV_TYPE_NAMES,
                  "calculate with keys and values of this type", .initial = "f16"),
    CHOICE_OPTION(FIT, draft, "draft", "mtp", DRAFT_LAYERS,
                  "count the layer for multi-token prediction too, as tutti serve --draft mtp loads it"),
    { .name = NULL },
};

/* Free memory of the card, which must be there: *out. */
static enum tutti_status read_card(const char *device, uint64_t *out, struct tutti_error *err)
{
    enum { MOST = 64 };
    struct tutti_device devices[MOST];
    const struct tutti_device *best = NULL;
    struct tutti_error why = { 0 };
    int n = 0;
    enum tutti_status st = tutti_devices(devices, MOST, &n, &why);
    for (int i = 0; i < n; i++) {
        const struct tutti_device *d = &devices[i];
        bool is_named = strchr(device, ':') ? strcmp(device, d->id) == 0 : d->kernel_level > 0;
        if (is_named && (!best || d->memory_bytes > best->memory_bytes))
            best = d;
    }
    if (best && best->free_bytes > 0) {
        *out = best->free_bytes;
        return TUTTI_OK;
    }
    return error_set_param(err, st == TUTTI_OK ? TUTTI_E_UNSUPPORTED : st, "device",
                           "--device %s: %s; give the memory of a card with --memory", device,
                           st != TUTTI_OK ? why.text
                           : best         ? "the card does not tell its free memory"
                                          : "there is no such card");
}

enum tutti_status fit_flags_values(const struct fit_flags *flags, struct fit_values *out,
                                   struct tutti_error *err)
{
    *out = (struct fit_values){
        .type = flags->type ? weight_type_find(flags->type) : NULL,
        .device = flags->device,
        .gpu_layers = flags->gpu_layers,
        .cpu_experts = flags->cpu_experts,
        .memory_bytes = flags->memory,
        .host_bytes = flags->host_memory > 0 ? flags->host_memory : memory_left(""),
        .context = flags->context,
        .mtp = flags->draft != NULL,
    };
    if (!kv_type_find(flags->kv_type, &out->kv_type))
        return error_set(err, TUTTI_E_ARGUMENT, "--kv-type: unknown type '%s'", flags->kv_type);
    if (flags->host_memory > 0 && !flags->gpu_layers && !flags->cpu_experts)
        return error_set_param(err, TUTTI_E_ARGUMENT, "host-memory",
                               "--host-memory: only with --gpu-layers or --cpu-experts, where a card and the "
                               "CPU compute together; without them, give --memory");
    if (flags->memory > 0)
        return TUTTI_OK;
    out->memory_bytes = memory_left("");
    return backend_is_card(flags->device) ? read_card(flags->device, &out->memory_bytes, err) : TUTTI_OK;
}

/* ---- adapters ---- */

const struct option ADAPTER_OPTIONS[] = {
    TEXTS_OPTION(
        struct adapter_flags, lora, "lora", "NAME=PATH",
        "load the adapter in the folder PATH (LoRA, DoRA, prefix tuning, prompt tuning, as PEFT saves "
        "them) under this name; PATH may be hf:ORG/NAME, which is downloaded first"),
    { .name = NULL },
};

enum tutti_status adapter_flags_load(const struct adapter_flags *flags, tutti_model *model,
                                     struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < flags->lora.n && st == TUTTI_OK; i++) {
        const char *text = flags->lora.texts[i], *path = adapter_path(text);
        char name[256], *found = NULL;
        adapter_name(text, name, sizeof name);
        st = model_path_find(path, &found, err);
        if (st == TUTTI_OK)
            st = tutti_model_add_adapter(model, name, found ? found : path, err);
        free(found);
        if (st != TUTTI_OK)
            error_prefix(err, "--lora %s", text);
    }
    return st;
}

enum tutti_status adapter_flags_choose(const char *named, const tutti_model *model, const char **out,
                                       struct tutti_error *err)
{
    const char *name;
    *out = NULL;
    if (named && strcmp(named, "none") == 0)
        return TUTTI_OK;
    for (int i = 0; (name = tutti_model_adapter_name(model, i)); i++) {
        if (!named || strcmp(name, named) == 0) {
            *out = name;
            return TUTTI_OK;
        }
    }
    if (!named)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_NOT_FOUND, "adapter", "--adapter %s: no --lora has this name", named);
}

/* ---- the draft model ---- */

#define DRAFT struct draft_flags
const struct option DRAFT_OPTIONS[] = {
    TEXT_OPTION(
        DRAFT, draft, "draft", "MODEL",
        "draft model for speculative decoding: a smaller model with the same vocabulary, whose draft "
        "tokens are verified several in one step, if that is faster; the answers stay the same. mtp: "
        "the model's own layer for multi-token prediction, of GLM-4.5 and later and DeepSeek-V3. With "
        "--speculate too, the more probable draft is used"),
    INT_OPTION(DRAFT, tokens, "draft-tokens", "N",
               "maximum draft tokens per sequence and step from the draft model", .min = 1, .max = 32,
               .initial = "8", .needs = "draft"),
    CHOICE_OPTION(DRAFT, type, "draft-type", "TYPE", WEIGHT_TYPE_NAMES,
                  "convert the draft model's weights while loading", .aliases = WEIGHT_TYPE_ALIASES,
                  .needs = "draft"),
    { .name = NULL },
};

bool draft_flags_are_mtp(const struct draft_flags *flags)
{
    return flags->draft && strcmp(flags->draft, "mtp") == 0;
}

enum tutti_status draft_flags_open(const struct draft_flags *flags, const struct model_flags *model,
                                   tutti_model **out, struct tutti_error *err)
{
    struct model_flags draft = *model;
    *out = NULL;
    if (draft_flags_are_mtp(flags) && flags->type)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "draft-type",
            "--draft-type with --draft mtp: the layer is converted with its model, by --type");
    if (draft_flags_are_mtp(flags))
        return TUTTI_OK;
    draft.options.weight_type = flags->type;
    draft.options.chat_format = NULL;
    draft.options.mtp = false;
    draft.options.gpu_layers = draft.options.cpu_experts = NULL; /* a draft model is small */
    if (!flags->draft)
        return TUTTI_OK;
    char *path = NULL;
    enum tutti_status st = model_path_find(flags->draft, &path, err);
    if (st == TUTTI_OK)
        st = model_flags_open(&draft, NULL, path ? path : flags->draft, out, err);
    free(path);
    return st;
}

/* ---- the engine ---- */

#define ENGINE struct tutti_engine_options
const struct option ENGINE_OPTIONS[] = {
    SIZE_OPTION(
        ENGINE, kv_bytes, "kv-memory", "SIZE",
        "memory for the KV cache of all sequences, such as 4G; by default, taken from free memory, and with "
        "several models 1G for each",
        .min = 1, .max = INFINITY),
    INT_OPTION(
        ENGINE, max_context, "context", "N",
        "maximum tokens of one sequence; without it, the model's context, or what --kv-memory holds if "
        "that is less",
        .letter = 'c', .min = LIMIT_LEAST_CONTEXT, .max = LIMIT_CONTEXT),
    INT_OPTION(ENGINE, max_batch_tokens, "max-batch-tokens", "N", "maximum rows (tokens) of one step",
               .min = 1, .max = 65536, .initial = "256"),
    INT_OPTION(
        ENGINE, max_lookup_tokens, "speculate", "N",
        "speculative decoding by prompt lookup: draft up to N tokens of a text that repeats itself or its "
        "prompt, and verify them in one step if that is faster; the answers stay the same. 0: none",
        .max = 32, .initial = "0"),
    FLAG_OPTION(ENGINE, no_prefix_cache, "no-prefix-cache",
                "disable the prefix cache: do not reuse keys and values of earlier prompts"),
    TEXT_OPTION(ENGINE, kv_spill_dir, "kv-spill", "DIR",
                "spill the KV cache of idle conversations to a file in this folder when memory is short, and "
                "at exit; the next start restores it. One process at a time can use the folder"),
    SIZE_OPTION(
        ENGINE, kv_spill_host_bytes, "kv-spill-host", "SIZE",
        "host memory, such as 32G, for the KV cache of idle conversations when a card's memory is short, "
        "before --kv-spill or without it; not on --device cpu",
        .min = 1, .max = INFINITY),
    SIZE_OPTION(ENGINE, kv_spill_bytes, "kv-spill-size", "SIZE",
                "maximum size of the file of --kv-spill, such as 100G; 8G by default", .min = 1,
                .max = INFINITY, .needs = "kv-spill"),
    { .name = NULL },
};

const struct option SCHEDULING_OPTIONS[] = {
    INT_OPTION(ENGINE, max_seqs, "max-seqs", "N",
               "maximum sequences that run at the same time, 256 by default", .min = 1, .max = LIMIT_SEQS),
    INT_OPTION(
        ENGINE, max_queue, "max-queue", "N",
        "answers that may wait in addition to the --max-seqs that run; each of a request's n counts, and "
        "beyond that requests get 429",
        .min = 1, .max = 1000000, .initial = "1024"),
    FLOAT_OPTION(ENGINE, max_slowdown, "max-slowdown", "X",
                 "during prefill of a prompt, a step may take X times as long as a step that only decodes: a "
                 "larger X means a shorter time to first token, a smaller one steadier inter-token latency",
                 .min = 1.01, .max = 1000, .initial = "2"),
    { .name = NULL },
};

/* ---- sessions ---- */

/* Refuses options that have no effect on a model that only makes embeddings. */
static enum tutti_status check_encoder(const struct session_flags *flags, const tutti_model *model,
                                       struct tutti_error *err)
{
    const struct tutti_engine_options *engine = &flags->engine;
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    const char *name = flags->draft.draft                 ? "draft"
                       : engine->max_lookup_tokens > 0    ? "speculate"
                       : engine->kv_spill_dir             ? "kv-spill"
                       : engine->kv_spill_host_bytes > 0  ? "kv-spill-host"
                       : engine->no_prefix_cache          ? "no-prefix-cache"
                       : flags->model.options.chat_format ? "chat-format"
                                                          : NULL;
    if (!info.only_embeds || !name)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, name,
                           "--%s has no effect on %s, which only makes embeddings", name, info.name);
}

enum tutti_status session_open_model(struct session *session, const struct session_flags *flags,
                                     tutti_ranks *ranks, const char *path, struct tutti_error *err)
{
    struct model_flags model = flags->model;
    model.options.max_context = flags->engine.max_context;
    model.options.mtp = draft_flags_are_mtp(&flags->draft);
    enum tutti_status st = model_flags_open(&model, ranks, path, &session->model, err);
    if (st == TUTTI_OK)
        st = check_encoder(flags, session->model, err);
    return st == TUTTI_OK ? adapter_flags_load(&flags->adapters, session->model, err) : st;
}

enum tutti_status session_open_engine(struct session *session, const struct session_flags *flags, int n_seqs,
                                      struct tutti_error *err)
{
    struct tutti_engine_options options = flags->engine;
    struct model_flags model = flags->model;
    model.options.max_context = options.max_context;
    struct tutti_model_info info;
    tutti_model_info(session->model, &info);
    if (model.options.memory_bytes > 0) /* the draft model gets what the model leaves, or nothing: 1 byte */
        model.options.memory_bytes = info.weight_bytes < model.options.memory_bytes
                                         ? model.options.memory_bytes - info.weight_bytes
                                         : 1;
    enum tutti_status st = draft_flags_open(&flags->draft, &model, &session->draft, err);
    if (st != TUTTI_OK)
        return st;
    options.draft = session->draft;
    options.max_draft_tokens = flags->draft.tokens;
    options.max_seqs = options.max_seqs > 0 ? options.max_seqs : DEFAULT_MAX_SEQS;
    if (n_seqs > 0 && n_seqs < options.max_seqs)
        options.max_seqs = n_seqs;
    return tutti_engine_open(&session->engine, session->model, &options, err);
}

void session_close(struct session *session)
{
    tutti_engine_close(session->engine);
    tutti_model_close(session->draft);
    tutti_model_close(session->model);
    *session = (struct session){ 0 };
}

/* ---- sampling ---- */

#define SAMPLING struct sampling_flags
const struct option SAMPLING_OPTIONS[] = {
    INT_OPTION(SAMPLING, max_tokens, "max-tokens", "N",
               "maximum tokens of an answer; without it, as many as the context allows", .letter = 'n',
               .min = 1, .max = LIMIT_CONTEXT),
    FLOAT_OPTION(SAMPLING, temperature, "temperature", "T",
                 "sampling temperature; 0: always the most probable token; without it, the model's "
                 "default, which holds for all options of this group",
                 .min = 0, .max = 100),
    INT_OPTION(SAMPLING, top_k, "top-k", "K", "sample from the K most probable tokens; 0: from all",
               .max = INT32_MAX),
    FLOAT_OPTION(SAMPLING, top_p, "top-p", "P",
                 "sample from the most probable tokens that together have probability P", .max = 1,
                 .above_min = true),
    FLOAT_OPTION(SAMPLING, min_p, "min-p", "P",
                 "drop tokens less probable than P times the most probable one", .max = 1),
    FLOAT_OPTION(SAMPLING, repetition_penalty, "repetition-penalty", "R",
                 "divide the logits of tokens that occurred by this; 1: off", .min = LIMIT_LEAST_PENALTY,
                 .max = LIMIT_PENALTY),
    FLOAT_OPTION(SAMPLING, presence_penalty, "presence-penalty", "R",
                 "subtract this from the logits of tokens that the answer contains", .min = -2, .max = 2),
    FLOAT_OPTION(SAMPLING, frequency_penalty, "frequency-penalty", "R",
                 "subtract this for each occurrence of the token in the answer", .min = -2, .max = 2),
    INT64_OPTION(SAMPLING, seed, "seed", "N", "random seed: the same seed gives the same answer"),
    TEXTS_OPTION(SAMPLING, stop, "stop", "TEXT", "stop string: end the answer before this text"),
    FLAG_OPTION(SAMPLING, ignore_eos, "ignore-eos", "continue where the model would end the answer"),
    { .name = NULL },
};

static void override(float *member, double given)
{
    if (!isnan(given))
        *member = (float)given;
}

void sampling_flags_apply(const struct sampling_flags *flags, const tutti_model *model,
                          struct tutti_string stops[OPTION_MAX_TEXTS], struct tutti_request *request)
{
    struct tutti_sampling *sampling = &request->sampling;
    tutti_sampling_init(sampling, model);
    override(&sampling->temperature, flags->temperature);
    override(&sampling->min_p, flags->min_p);
    override(&sampling->presence_penalty, flags->presence_penalty);
    override(&sampling->frequency_penalty, flags->frequency_penalty);
    if (flags->top_p > 0)
        sampling->top_p = (float)flags->top_p;
    if (flags->repetition_penalty > 0)
        sampling->repetition_penalty = (float)flags->repetition_penalty;
    if (flags->top_k >= 0)
        sampling->top_k = flags->top_k;
    if (flags->seed >= 0) {
        sampling->has_seed = true;
        sampling->seed = (uint64_t)flags->seed;
    }
    request->max_tokens = flags->max_tokens;
    request->ignore_eos = flags->ignore_eos;
    request->n_stop = 0;
    request->stop = stops;
    for (int i = 0; i < flags->stop.n; i++)
        stops[request->n_stop++] = (struct tutti_string){ flags->stop.texts[i],
                                                          strlen(flags->stop.texts[i]) };
}

const struct option *sampling_flags_unused(const struct sampling_flags *flags,
                                           const struct tutti_request *request)
{
    static const char *const OF_GREEDY[] = {
        "max-tokens",        "temperature", "repetition-penalty", "presence-penalty",
        "frequency-penalty", "stop",        "ignore-eos",         NULL,
    };
    bool is_beam = request->n_beams > 1;
    if (is_beam && flags->temperature > 0)
        return options_find(SAMPLING_OPTIONS, "temperature");
    if (!is_beam && request->sampling.temperature > 0)
        return NULL;
    return options_first_given(SAMPLING_OPTIONS, flags, 0, OF_GREEDY);
}

enum tutti_status sampling_flags_check(const struct sampling_flags *flags,
                                       const struct tutti_request *request, struct tutti_error *err)
{
    const struct option *o = sampling_flags_unused(flags, request);
    if (!o)
        return TUTTI_OK;
    return error_set_param(
        err, TUTTI_E_ARGUMENT, o->name,
        request->n_beams > 1 ? "--%s has no effect with --beams, which draws nothing"
                             : "--%s has no effect at temperature 0, which draws nothing; give --temperature",
        o->name);
}
