/* tutti plan: shows what each machine holds of a model, how many users fit, and how many machines a
 * number of users needs. */
#include "fleet/plan.h"

#include "backend/backend.h"
#include "backend/kv_type.h"
#include "base/json/json_list.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "fleet/plan_model.h"
#include "model/load/device/division.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_USERS = 1 << 20 };

struct plan_values {
    int hosts;
    struct option_ints users;
    struct fit_flags fit;
    bool json;
};

#define VALUES struct plan_values
static const struct option OPTIONS[] = {
    INT_OPTION(VALUES, hosts, "hosts", "N",
               "number of machines, each of which runs one rank; with --device cuda, of cards", .min = 1,
               .max = LIMIT_RANKS, .initial = "1"),
    INTS_OPTION(VALUES, users, "users", "LIST",
                "numbers of sequences that run at the same time, on all machines together", .letter = 'u',
                .min = 1, .max = MAX_USERS, .initial = "1,16,64,256"),
    FLAG_OPTION(VALUES, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Memory", FIT_OPTIONS, offsetof(VALUES, fit) },
    { .title = NULL },
};

struct plan {
    const char *name, *unit; /* of memory, which runs one rank: "machine" or "card" */
    const struct plan_values *values;
    struct plan_model model;
    enum dtype type;
    double memory_bytes;
    int context, n_layouts;
    struct plan_layout layouts[LIMIT_RANKS];
    /* What fits on one machine, if not even one user does. */
    struct fit_room rooms[FIT_MAX_ROOMS];
    int n_rooms;
    bool has_card;
    struct division division; /* between a card and the CPU; is_given: by flags */
    struct division_report sides;
};

static bool has_user(const struct plan *p)
{
    for (int i = 0; i < p->n_layouts; i++)
        if (p->layouts[i].n_users_fit > 0)
            return true;
    return false;
}

static bool fewest_hosts(const struct plan *p, int64_t n_users, struct plan_layout *layout)
{
    return plan_fewest(layout, &p->model, p->memory_bytes, p->context, n_users);
}

static void print_side(const char *name, int n_layers, uint64_t memory, uint64_t weights, uint64_t user)
{
    char texts[3][NUMBER_SIZE_BYTES];
    output_printf("%-4s %6d %13s %13s %13s\n", name, n_layers, number_write_size(texts[0], memory),
                  number_write_size(texts[1], weights), number_write_size(texts[2], user));
}

static void print_sides(const struct plan *p)
{
    const struct division_report *r = &p->sides;
    const struct placement *at = &r->placement;
    output_printf("%-4s %6s %13s %13s %13s\n", "", "layers", "memory", "weights", "KV per user");
    print_side("card", at->n_layers - at->first_on_card, r->memory.card, r->weights.card, r->user.card);
    print_side("CPU", at->first_on_card, r->memory.cpu, r->weights.cpu, r->user.cpu);
    if (at->n_cpu_experts > at->first_on_card)
        output_printf("\nThe CPU has the experts of the first %d layers too.\n", at->n_cpu_experts);
    if (*r->refusal.text)
        output_printf("\nNot one user fits. %s\n", r->refusal.text);
    else
        output_printf("\n%" PRId64 " user%s fit%s\n", r->n_users, r->n_users == 1 ? "" : "s",
                      r->n_users == 1 ? "s" : "");
}

static void print_layouts(const struct plan *p)
{
    char memory[NUMBER_SIZE_BYTES], weights[NUMBER_SIZE_BYTES], user[NUMBER_SIZE_BYTES];
    int n_hosts = (int)p->values->hosts;
    output_printf("%d %s%s%s %s for weights, keys and values\n\n", n_hosts, p->unit, n_hosts == 1 ? "" : "s",
                  n_hosts == 1 ? " with" : ", each with",
                  number_write_size(memory, (uint64_t)p->memory_bytes));
    output_printf("%4s %4s %6s %9s %13s %13s %14s\n", "tp", "dp", "heads", "KV heads", "weights",
                  "KV per user", "users that fit");
    for (int i = 0; i < p->n_layouts; i++) {
        const struct plan_layout *l = &p->layouts[i];
        output_printf("%4d %4d %6d %9d %13s %13s %14" PRId64 "\n", l->tp, l->dp, l->n_heads, l->n_kv_heads,
                      number_write_size(weights, (uint64_t)l->weight_bytes),
                      number_write_size(user, (uint64_t)l->user_bytes), l->n_users_fit);
    }
    if (!has_user(p)) {
        char advice[FIT_TEXT_BYTES];
        output_printf("\nNot one user fits. On one %s, %s%s%s\n", p->unit, p->sides.advice,
                      *p->sides.advice ? "; " : "", fit_text(advice, p->rooms, p->n_rooms, &p->model.sizes));
    }
    output_printf("\n%8s  fewest %ss\n", "users", p->unit);
    for (int i = 0; i < p->values->users.n; i++) {
        struct plan_layout l;
        int64_t n_users = p->values->users.ints[i];
        if (fewest_hosts(p, n_users, &l))
            output_printf("%8" PRId64 "  %d (tp %d, dp %d)\n", n_users, l.tp * l.dp, l.tp, l.dp);
        else
            output_printf("%8" PRId64 "  more than %d\n", n_users, LIMIT_RANKS);
    }
}

static void print_table(const struct plan *p)
{
    output_printf("%s: %s weights, %s keys and values; %d tokens of context per user\n", p->name,
                  dtype_name(p->type), kv_type_name(p->model.kv_type), p->context);
    struct slot_params params = slot_params(&p->model.desc);
    output_printf("%.2f billion parameters", (double)params.all / 1e9);
    if (params.active < params.all)
        output_printf(", %.2f billion active for each token", (double)params.active / 1e9);
    output_printf(p->division.is_given ? "\n\n" : "\n");
    if (p->division.is_given)
        print_sides(p);
    else
        print_layouts(p);
}

static json_t *layout_json(const void *user, size_t index)
{
    const struct plan_layout *l = &((const struct plan *)user)->layouts[index];
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:f, s:I}", "tp", l->tp, "dp", l->dp, "heads", l->n_heads,
                     "kv_heads", l->n_kv_heads, "weight_bytes", l->weight_bytes, "user_bytes", l->user_bytes,
                     "users_fit", (json_int_t)l->n_users_fit);
}

static json_t *room_json(const void *user, size_t index)
{
    const struct plan *p = user;
    const struct fit_room *r = &p->rooms[index];
    return json_pack("{s:s, s:I, s:i, s:I}", "type", r->type ? r->type->name : dtype_name(p->type),
                     "weight_bytes", (json_int_t)r->weight_bytes, "context", r->n_ctx, "users",
                     (json_int_t)r->n_users);
}

static json_t *users_json(const void *user, size_t index)
{
    const struct plan *p = user;
    int64_t n_users = p->values->users.ints[index];
    struct plan_layout l;
    if (!fewest_hosts(p, n_users, &l))
        return json_pack("{s:I, s:n}", "users", (json_int_t)n_users, "hosts");
    return json_pack("{s:I, s:i, s:i, s:i}", "users", (json_int_t)n_users, "hosts", l.tp * l.dp, "tp", l.tp,
                     "dp", l.dp);
}

static void print_plan_json(const struct plan *p)
{
    struct slot_params params = slot_params(&p->model.desc);
    size_t n_users = p->division.is_given ? 0 : (size_t)p->values->users.n;
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "model", p->name, "device",
        p->values->fit.device, "params", (json_int_t)params.all, "active_params", (json_int_t)params.active,
        "type", dtype_name(p->type), "kv_type", kv_type_name(p->model.kv_type), "context", p->context,
        "memory_bytes", (json_int_t)p->memory_bytes, "hosts", (json_int_t)p->values->hosts, "layouts",
        json_list((size_t)p->n_layouts, layout_json, p), "fits", json_list((size_t)p->n_rooms, room_json, p),
        "fewest_hosts", json_list(n_users, users_json, p), "division",
        p->has_card ? division_json(&p->sides) : json_null());
    output_json(root, true); /* NULL: fails, which output_flush() reports */
    json_decref(root);
}

/* What a card and the CPU have; without flags, the card has all. */
static enum tutti_status plan_division(struct plan *p, const struct fit_values *fit, struct tutti_error *err)
{
    const struct division_options options = { .model = p->name,
                                              .device = fit->device,
                                              .gpu_layers = fit->gpu_layers,
                                              .cpu_experts = fit->cpu_experts,
                                              .has_ranks = p->values->hosts > 1 };
    const struct division_request request = { .model = p->name,
                                              .type = dtype_name(p->type),
                                              .desc = &p->model.desc,
                                              .parts = p->model.parts,
                                              .memory = { fit->memory_bytes, fit->host_bytes },
                                              .kv_type = p->model.kv_type,
                                              .n_ctx = p->context };
    enum tutti_status st = division_read(&p->division, &p->model.desc, &options, err);
    if (st == TUTTI_OK && p->has_card)
        division_calculate(&p->sides, &p->division, &request);
    return st;
}

static enum tutti_status calculate(struct plan *p, const struct fit_values *fit, struct tutti_error *err)
{
    int n_ctx = p->model.desc.n_ctx;
    if (fit->context > n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT, "--context: found %d, expected at most %d for this model",
                         fit->context, n_ctx);
    p->context = fit->context > 0 ? fit->context : n_ctx;
    p->memory_bytes = (double)fit->memory_bytes;
    p->has_card = backend_is_card(fit->device);
    p->unit = p->has_card ? "card" : "machine";
    enum tutti_status st = plan_division(p, fit, err);
    if (st != TUTTI_OK || p->division.is_given)
        return st;
    p->n_layouts = plan_layouts(p->layouts, &p->model, (int)p->values->hosts, p->memory_bytes, p->context);
    const struct fit_request request = { .desc = &p->model.desc,
                                         .kv_type = p->model.kv_type,
                                         .page_tokens = backend_caps_of(fit->device)->page_tokens,
                                         .n_ctx = p->context,
                                         .memory_bytes = fit->memory_bytes };
    if (!has_user(p))
        p->n_rooms = fit_find(p->rooms, &p->model.sizes, &request);
    return TUTTI_OK;
}

static enum tutti_status run_plan(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct plan_values *values = v;
    struct plan p = { .name = operands[0], .values = values };
    struct fit_values fit;
    enum tutti_status st = fit_flags_values(&values->fit, &fit, err);
    if (st != TUTTI_OK)
        return st;
    const struct plan_model_options options = { .type = fit.type,
                                                .kv_type = fit.kv_type,
                                                .context = fit.context,
                                                .mtp = fit.mtp,
                                                .caps = backend_caps_of(fit.device) };
    st = plan_model_read(&p.model, &p.type, p.name, &options, err);
    if (st == TUTTI_OK)
        st = calculate(&p, &fit, err);
    if (st == TUTTI_OK)
        values->json ? print_plan_json(&p) : print_table(&p);
    plan_model_clear(&p.model);
    return st;
}

const struct command COMMAND_PLAN = {
    .name = "plan",
    .summary = "show whether a model and its users fit, and on how many machines",
    .about = "Calculates how a model divides over N machines, each of which runs one rank. For "
             "each split over tp machines, with dp replicas, it prints what the largest rank holds "
             "(heads, KV heads, weights), the KV cache of one user, and how many users fit. For "
             "each number of users it prints the fewest machines that hold them, up to 64. MODEL "
             "is a checkpoint, of which only the headers are read, or the name of a known shape "
             "(tutti bench --shape list), in q4_0 (gpt-oss-20b in mxfp4) unless --type is given. "
             "With --gpu-layers or --cpu-experts it prints what a card and the CPU have of one "
             "model instead, and whether tutti serve would load it so. Nothing is measured: tutti "
             "bench measures speed.",
    .example = "tutti plan models/demo --context 512\n"
               "tutti plan llama-7b --device cuda --memory 4G --gpu-layers auto\n"
               "tutti plan llama-7b --hosts 4 --memory 16G --users 16,64,512",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a checkpoint or the name of a shape"),
    .n_models = 1,
    .values_bytes = sizeof(struct plan_values),
    .run = run_plan,
};
