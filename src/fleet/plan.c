#include "fleet/plan.h"

#include "backend/backend.h"

#include <math.h>

static const double MAX_USERS = 1e9; /* keeps the products with the number of replicas exact */

/* Bytes that a rank holds: its part of the split weights, and all other weights. */
static double weight_bytes(const struct plan_model *m, const struct split *s)
{
    double n_bytes = 0;
    for (int layer = 0, n_seen = 0; layer < model_n_loaded(&m->desc) && n_seen < m->desc.n_kinds; layer++) {
        int kind = m->desc.kind_of[layer];
        if (kind < n_seen) /* kinds are numbered in the order of their first layers */
            continue;
        n_seen++;
        for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++) {
            if (m->bytes[kind][slot] == 0) /* the layer has no such weight */
                continue;
            const struct split_target all = { .slot = slot, .layer = layer, .part = SPLIT_ALL_PARTS };
            struct split_part part = split_part(s, &m->desc, &all);
            double share = part.kind == SPLIT_WHOLE ? 1 : (double)part.n / split_n_whole(&m->desc, &all);
            n_bytes += m->bytes[kind][slot] * share;
        }
    }
    return n_bytes;
}

/* One replica on tp machines; false: the model cannot be split over so many ranks. */
static bool lay_out(struct plan_layout *out, const struct plan_model *m, int tp, double memory_bytes,
                    int context)
{
    struct plan_layout l = { .tp = tp, .dp = 1 };
    int page_tokens = backend_caps_of(NULL)->page_tokens;
    for (int rank = 0; rank < tp; rank++) {
        struct split s;
        if (split_make(&s, &m->desc, &m->blocks, tp, rank, NULL) != TUTTI_OK)
            return false;
        struct model_desc own = split_desc(&s, &m->desc);
        const struct attn_desc *a = &own.kinds[0].attn;
        l.n_heads = a->n_heads > l.n_heads ? a->n_heads : l.n_heads;
        l.n_kv_heads = a->n_kv_heads > l.n_kv_heads ? a->n_kv_heads : l.n_kv_heads;
        l.user_bytes = fmax(l.user_bytes,
                            (double)model_context_kv_bytes(&own, m->kv_type, page_tokens, context));
        l.weight_bytes = fmax(l.weight_bytes, weight_bytes(m, &s));
    }
    double left = memory_bytes - l.weight_bytes;
    l.n_users_fit = left > 0 ? (int64_t)fmin(left / l.user_bytes, MAX_USERS) : 0;
    *out = l;
    return true;
}

static void add_replicas(struct plan_layout *l, int n_replicas)
{
    l->dp = n_replicas;
    l->n_users_fit *= n_replicas;
}

int plan_layouts(struct plan_layout *layouts, const struct plan_model *m, int n_hosts, double memory_bytes,
                 int context)
{
    int n = 0;
    for (int tp = 1; tp <= n_hosts && tp <= LIMIT_RANKS; tp++)
        if (lay_out(&layouts[n], m, tp, memory_bytes, context))
            add_replicas(&layouts[n++], n_hosts / tp);
    return n;
}

bool plan_fewest(struct plan_layout *out, const struct plan_model *m, double memory_bytes, int context,
                 int64_t n_users)
{
    int n_fewest = LIMIT_RANKS + 1;
    for (int tp = 1; tp < n_fewest; tp++) {
        struct plan_layout l;
        if (!lay_out(&l, m, tp, memory_bytes, context) || l.n_users_fit == 0)
            continue;
        int64_t n_replicas = (n_users + l.n_users_fit - 1) / l.n_users_fit;
        if (n_replicas * tp >= n_fewest)
            continue;
        n_fewest = (int)n_replicas * tp;
        add_replicas(&l, (int)n_replicas);
        *out = l;
    }
    return n_fewest <= LIMIT_RANKS;
}
