/* Groups of options that several commands share, and their conversion to the library's options. */
#ifndef TUTTI_CLI_OPTIONS_FLAGS_H
#define TUTTI_CLI_OPTIONS_FLAGS_H

#include "base/error.h"
#include "cli/options/options.h"
#include "model/weights/weight_type.h"

/* ---- the model ---- */
struct model_flags {
    /* Not from flags: ranks and progress, which model_flags_open() sets, and max_context. */
    struct tutti_model_options options;
    const char *rank_table;
    int tp;
    int n_replicas; /* not a flag of this group; 0: one */
};
/* The second table is for commands that send messages. */
extern const struct option MODEL_OPTIONS[], CHAT_FORMAT_OPTIONS[];

/* Opens the model, with a progress bar while it is being loaded. ranks: NULL: none. */
MUST_CHECK enum tutti_status model_flags_open(const struct model_flags *flags, tutti_ranks *ranks,
                                              const char *path, tutti_model **out, struct tutti_error *err);

struct adapter_flags;
struct draft_flags;

/* Connects the ranks if --tp or n_replicas is above 1: *out is the caller's, for
 * tutti_ranks_close(); otherwise it is NULL. A rank above 0 does all its work here: it opens the
 * model with its adapters (NULL: none) and the layer that draft names (NULL: none), follows rank 0 to the end,
 * and returns with *out NULL and *is_done true. */
MUST_CHECK enum tutti_status model_flags_join(const struct model_flags *flags,
                                              const struct adapter_flags *adapters,
                                              const struct draft_flags *draft, const char *path,
                                              tutti_ranks **out, bool *is_done, struct tutti_error *err);

/* Connects the ranks without opening a model. A rank above 0 must not catch signals, and logs
 * only errors. */
MUST_CHECK enum tutti_status model_flags_ranks(const struct model_flags *flags, tutti_ranks **out,
                                               struct tutti_error *err);

/* ---- memory estimate ---- */
struct fit_flags {
    const char *type, *kv_type, *draft, *device, *gpu_layers, *cpu_experts;
    uint64_t memory, host_memory;
    int context;
};
extern const struct option FIT_OPTIONS[];

struct fit_values {
    const struct weight_type *type; /* NULL: as stored */
    enum dtype kv_type;
    const char *device;                   /* as backend_caps_of() takes it */
    const char *gpu_layers, *cpu_experts; /* as division_read() takes them */
    uint64_t memory_bytes;                /* without --memory: memory_left(), or the card's */
    uint64_t host_bytes; /* for what a card leaves to the CPU; without --host-memory: memory_left() */
    int context;         /* 0: not given */
    bool mtp;            /* with the layer for multi-token prediction */
};
MUST_CHECK enum tutti_status fit_flags_values(const struct fit_flags *flags, struct fit_values *out,
                                              struct tutti_error *err);

/* ---- adapters ---- */
struct adapter_flags {
    struct option_texts lora;
};
extern const struct option ADAPTER_OPTIONS[];

/* Loads each "NAME=PATH", or PATH under the name of its folder. A PATH on a hub is downloaded first. */
MUST_CHECK enum tutti_status adapter_flags_load(const struct adapter_flags *flags, tutti_model *model,
                                                struct tutti_error *err);

/* The adapter of a command that uses only one: the one named, else the first loaded. NULL: none
 * is loaded, or "none" was named. TUTTI_E_NOT_FOUND: unknown name. */
MUST_CHECK enum tutti_status adapter_flags_choose(const char *named, const tutti_model *model,
                                                  const char **out, struct tutti_error *err);

/* ---- the draft model ---- */
struct draft_flags {
    const char *draft, *type;
    int tokens;
};
extern const struct option DRAFT_OPTIONS[];

/* The draft is the model's own layer for multi-token prediction: struct tutti_model_options, mtp. */
bool draft_flags_are_mtp(const struct draft_flags *flags);

/* Opens the draft model, with the threads, KV type and context of the main model. *out is NULL if none was
 * named, or mtp. */
MUST_CHECK enum tutti_status draft_flags_open(const struct draft_flags *flags,
                                              const struct model_flags *model, tutti_model **out,
                                              struct tutti_error *err);

/* ---- a model, its adapters, and an engine with a draft model ---- */

/* Members of struct tutti_engine_options; the others stay 0. The second table is for commands that run several
 * sequences at the same time. */
extern const struct option ENGINE_OPTIONS[], SCHEDULING_OPTIONS[];

enum { DEFAULT_MAX_SEQS = 256 };

struct session_flags {
    struct model_flags model;
    struct adapter_flags adapters;
    struct tutti_engine_options engine; /* not from flags: draft, max_draft_tokens, failed, user */
    struct draft_flags draft;
};
/* The groups of a command whose struct has this as a member. A command with one sequence leaves out
 * SCHEDULING_OPTIONS.
 * NOLINTBEGIN(bugprone-macro-parentheses): member is a name */
#define SESSION_GROUPS(type, member)                                                                         \
    { "Model", MODEL_OPTIONS, offsetof(type, member.model) },                                                \
        { "Messages", CHAT_FORMAT_OPTIONS, offsetof(type, member.model) },                                   \
        { "Adapters", ADAPTER_OPTIONS, offsetof(type, member.adapters) },                                    \
        { "Engine", ENGINE_OPTIONS, offsetof(type, member.engine) },                                         \
        { "Scheduling", SCHEDULING_OPTIONS, offsetof(type, member.engine) },                                 \
    {                                                                                                        \
        "Draft model", DRAFT_OPTIONS, offsetof(type, member.draft)                                           \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

/* Zero-initialise. */
struct session {
    tutti_model *model, *draft; /* draft: NULL: none */
    tutti_engine *engine;
};

/* Opens the model for the engine's context, and its adapters. */
MUST_CHECK enum tutti_status session_open_model(struct session *session, const struct session_flags *flags,
                                                tutti_ranks *ranks, const char *path,
                                                struct tutti_error *err);
/* Opens the draft model and the engine. n_seqs: sequences
 * that can run at the same time, so that no more memory is reserved than they can use; 0: unknown. */
MUST_CHECK enum tutti_status session_open_engine(struct session *session, const struct session_flags *flags,
                                                 int n_seqs, struct tutti_error *err);
void session_close(struct session *session); /* also after a failure */

/* ---- sampling ---- */
struct sampling_flags {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int top_k, max_tokens;
    int64_t seed;
    struct option_texts stop;
    bool ignore_eos;
};
extern const struct option SAMPLING_OPTIONS[];

/* Fills sampling, max_tokens, stop and ignore_eos of the request: the model's defaults,
 * overridden by the flags. The stop strings are borrowed from flags and listed in stops. */
void sampling_flags_apply(const struct sampling_flags *flags, const tutti_model *model,
                          struct tutti_string stops[OPTION_MAX_TEXTS], struct tutti_request *request);

/* The first option that was given although it has no effect on an answer of the request: at temperature 0, and in
 * a beam search, nothing is drawn. NULL: none. */
const struct option *sampling_flags_unused(const struct sampling_flags *flags,
                                           const struct tutti_request *request);
MUST_CHECK enum tutti_status sampling_flags_check(const struct sampling_flags *flags,
                                                  const struct tutti_request *request,
                                                  struct tutti_error *err);

#endif
