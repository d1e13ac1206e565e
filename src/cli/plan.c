/* tutti plan: shows what each machine holds of a model, how many users fit, and how many machines a
 * number of users needs. */
#include "fleet/plan.h"

#include "backend/kv_type.h"
#include "base/json/json_list.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "fleet/plan_model.h"

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

static void print_table(const struct plan *p)
{
    char memory[NUMBER_SIZE_BYTES], weights[NUMBER_SIZE_BYTES], user[NUMBER_SIZE_BYTES];
    int n_hosts = (int)p->values->hosts;
    output_printf("%s: %s weights, %s keys and values; %d tokens of context per user\n", p->name,
                  dtype_name(p->type), kv_type_name(p->model.kv_type), p->context);
    struct slot_params params = slot_params(&p->model.desc);
    output_printf("%.2f billion parameters", (double)params.all / 1e9);
    if (params.active < params.all)
        output_printf(", %.2f billion active for each token", (double)params.active / 1e9);
    output_printf("\n");
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
        output_printf("\nNot one user fits. On one %s, %s\n", p->unit,
                      fit_text(advice, p->rooms, p->n_rooms, &p->model.sizes));
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
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o}", "model", p->name, "device",
        p->values->fit.device, "params", (json_int_t)params.all, "active_params", (json_int_t)params.active,
        "type", dtype_name(p->type), "kv_type", kv_type_name(p->model.kv_type), "context", p->context,
        "memory_bytes", (json_int_t)p->memory_bytes, "hosts", (json_int_t)p->values->hosts, "layouts",
        json_list((size_t)p->n_layouts, layout_json, p), "fits", json_list((size_t)p->n_rooms, room_json, p),
        "fewest_hosts", json_list((size_t)p->values->users.n, users_json, p));
    output_json(root, true); /* NULL: fails, which output_flush() reports */
    json_decref(root);
}

static enum tutti_status run_plan(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct plan_values *values = v;
    struct plan p = { .name = operands[0], .values = values };
    struct fit_values fit;
    enum tutti_status st = fit_flags_values(&values->fit, &fit, err);
    if (st != TUTTI_OK)
        return st;
    st = plan_model_read(&p.model, &p.type, p.name, fit.type, fit.kv_type, fit.mtp,
                         backend_caps_of(fit.device), err);
    if (st != TUTTI_OK)
        return st;
    int n_ctx = p.model.desc.n_ctx;
    if (fit.context > n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT, "--context: found %d, expected at most %d for this model",
                         fit.context, n_ctx);
    p.context = fit.context > 0 ? fit.context : n_ctx;
    p.memory_bytes = (double)fit.memory_bytes;
    p.unit = strcmp(fit.device, "cpu") == 0 ? "machine" : "card";
    p.n_layouts = plan_layouts(p.layouts, &p.model, (int)values->hosts, p.memory_bytes, p.context);
    const struct fit_request request = { .desc = &p.model.desc,
                                         .kv_type = p.model.kv_type,
                                         .page_tokens = backend_caps_of(fit.device)->page_tokens,
                                         .n_ctx = p.context,
                                         .memory_bytes = fit.memory_bytes };
    if (!has_user(&p))
        p.n_rooms = fit_find(p.rooms, &p.model.sizes, &request);
    values->json ? print_plan_json(&p) : print_table(&p);
    return TUTTI_OK;
}

const struct command COMMAND_PLAN = {
    .name = "plan",
    .summary = "show whether a model and its users fit, and on how many machines",
    .about = "Calculates how a model divides over N machines, each of which runs one rank. For each "
             "split over tp machines, with dp replicas, it prints what the largest rank holds (heads, "
             "KV heads, weights), the KV cache of one user, and how many users fit. For each number "
             "of users it prints the fewest machines that hold them, up to 64. MODEL is a checkpoint, "
             "of which only the headers are read, or the name of a known shape (tutti bench --shape "
             "list), in q4_0 (gpt-oss-20b in mxfp4) unless --type is given. Nothing is measured: tutti bench "
             "measures speed.",
    .example = "tutti plan models/demo --context 512\n"
               "tutti plan llama-7b --hosts 4 --memory 16G --users 16,64,512",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a checkpoint or the name of a shape"),
    .n_models = 1,
    .values_bytes = sizeof(struct plan_values),
    .run = run_plan,
};
