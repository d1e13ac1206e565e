#include "fleet/plan.h"

#include "backend/backend.h"
#include "backend/kv_type.h"

#include <math.h>

/* The fraction of the plain read bandwidth and of the float32 peak that attention reaches, if it
 * was not measured (docs/performance.md). */
static const double ATTENTION_SHARE = 0.6;
/* All-reduces of up to this many bytes take one exchange, larger ones two (cluster/cluster.c). */
enum { DIRECT_BYTES = 32 * 1024 };
enum { FEW_ROWS = 4, MANY_ROWS = 16 };

/* The time of two overlapping activities. */
static double overlap(double a, double b)
{
    return pow(pow(a, 4) + pow(b, 4), 0.25);
}

/* The inverse: the time of the other activity, if both together take total; 0 if one alone takes
 * that long. */
static double overlap_rest(double total, double one)
{
    return one < total ? pow(pow(total, 4) - pow(one, 4), 0.25) : 0;
}

/* ---- work ---- */

static double kv_token_bytes(const struct plan_model *m, int n_kv_heads)
{
    return 2.0 * m->desc.n_layers * n_kv_heads * (double)kv_type_bytes(m->kv_type, m->desc.head_dim);
}

struct plan_work plan_decode(const struct plan_model *m, double n_users, int context)
{
    const struct model_desc *d = &m->desc;
    double seen = d->window > 0 && context + 1 > d->window ? d->window : context + 1.0;
    return (struct plan_work){ n_users, n_users, n_users * seen, n_users * seen };
}

struct plan_work plan_prefill(const struct plan_model *m, int n_tokens)
{
    const struct model_desc *d = &m->desc;
    double n = n_tokens, seen = n * (n + 1) / 2;
    if (d->window > 0 && n_tokens > d->window)
        seen = d->window * (d->window + 1.0) / 2 + (n - d->window) * d->window;
    return (struct plan_work){ n, 1, seen, n };
}

/* One rank's work in a step. */
static struct plan_sample rank_work(const struct plan_model *m, const struct split *s,
                                    const struct plan_work *work)
{
    const struct model_desc *d = &m->desc;
    struct model_desc own = split_desc(s, d);
    double qkv = (double)split_part(s, d, SPLIT_QKV).n / split_n_whole(d, SPLIT_QKV);
    double heads = (double)own.n_heads / d->n_heads, ffn = (double)own.d_ff / d->d_ff;
    double vocab = (double)own.n_vocab / d->n_vocab;
    double q_width = (double)own.n_heads * d->head_dim, kv_width = (double)own.n_kv_heads * d->head_dim;
    double layer_ops = d->d_model * (2 * q_width + 2 * kv_width + (d->has_gate ? 3.0 : 2.0) * own.d_ff);
    return (struct plan_sample){
        .matrix_bytes = m->qkv_bytes * qkv + m->attn_out_bytes * heads +
                        (m->gate_up_bytes + m->down_bytes) * ffn + m->output_bytes * vocab,
        .kv_bytes = kv_token_bytes(m, own.n_kv_heads) * work->stored,
        .linear_ops = 2 * (work->n_rows * d->n_layers * layer_ops +
                           work->n_outputs * d->d_model * (double)own.n_vocab),
        .attention_ops = 4.0 * d->n_layers * q_width * work->seen, /* q . k, and weights . v */
    };
}

struct plan_sample plan_sample_of(const struct plan_model *m, const struct plan_work *work)
{
    struct split whole = split_whole(&m->desc);
    return rank_work(m, &whole, work);
}

/* ---- rates ---- */

static void fit_attention(struct plan_rates *r, const struct plan_attention_sample *a, double read_gbps,
                          double f32_gflops)
{
    double share = ATTENTION_SHARE;
    if (a && a->seconds > 0) {
        read_gbps = a->read_gbps;
        f32_gflops = a->f32_gflops;
        share = overlap(a->kv_bytes / (read_gbps * 1e9), f32_gflops > 0 ? a->ops / (f32_gflops * 1e9) : 0) /
                a->seconds;
    }
    r->attention_gbps = share * read_gbps;
    r->attention_gflops = share * f32_gflops;
}

static double attention_s(const struct plan_rates *r, double kv_bytes, double ops)
{
    return overlap(kv_bytes / (r->attention_gbps * 1e9),
                   r->attention_gflops > 0 ? ops / (r->attention_gflops * 1e9) : 0);
}

enum tutti_status plan_rates_fit(struct plan_rates *r, const struct plan_sample *samples, int n,
                                 const struct plan_attention_sample *attention, double read_gbps,
                                 double f32_gflops, struct tutti_error *err)
{
    const struct plan_sample *few = NULL, *many = NULL;
    for (int i = 0; i < n; i++) {
        if (!few || samples[i].n_rows < few->n_rows)
            few = &samples[i];
        if (!many || samples[i].n_rows > many->n_rows)
            many = &samples[i];
    }
    if (!few || few->n_rows > FEW_ROWS || many->n_rows < MANY_ROWS)
        return error_set(
            err, TUTTI_E_ARGUMENT,
            "steps of %d to %d rows were measured, expected one of at most %d and one of at least %d",
            few ? few->n_rows : 0, many ? many->n_rows : 0, FEW_ROWS, MANY_ROWS);
    r->read_gbps = read_gbps;
    fit_attention(r, attention, read_gbps, f32_gflops);
    /* Each of the two steps is dominated by one of the two times: iterate, computing each from
     * the rest of the other. */
    double few_s = few->seconds - attention_s(r, few->kv_bytes, few->attention_ops);
    double many_s = many->seconds - attention_s(r, many->kv_bytes, many->attention_ops);
    double read_s = few_s, compute_s = many_s; /* of few's bytes, of many's operations */
    for (int i = 0; i < 50; i++) {
        read_s = overlap_rest(few_s, compute_s * few->linear_ops / many->linear_ops);
        compute_s = overlap_rest(many_s, read_s * many->matrix_bytes / few->matrix_bytes);
    }
    if (!(few_s > 0) || !(many_s > 0) || !(read_s > 0) || !(compute_s > 0))
        return error_set(
            err, TUTTI_E_ARGUMENT,
            "the steps of %d and %d rows, of %.3g and %.3g ms, do not tell reading from computing; "
            "measure more rows, or again while the machine has nothing else to do",
            few->n_rows, many->n_rows, few->seconds * 1e3, many->seconds * 1e3);
    r->linear_gbps = few->matrix_bytes / read_s / 1e9;
    r->linear_gops = many->linear_ops / compute_s / 1e9;
    return TUTTI_OK;
}

/* ---- the network ---- */

/* An all-reduce over n ranks of n_bytes each: small ones are sent from all to all, larger ones as
 * reduce-scatter and all-gather. */
static double reduce_s(const struct plan_hosts *h, int n, double n_bytes)
{
    double latency = h->latency_us / 1e6, byte_s = 8 / (h->link_gbps * 1e9);
    if (n_bytes <= DIRECT_BYTES)
        return latency + (n - 1) * n_bytes * byte_s;
    return 2 * (latency + n_bytes * (n - 1) / n * byte_s);
}

/* The step is broadcast; two all-reduces in each layer and one after the embedding; the logits
 * are gathered. */
static double network_s(const struct plan_model *m, const struct plan_hosts *h, int tp,
                        const struct plan_work *work)
{
    const struct model_desc *d = &m->desc;
    double latency = h->latency_us / 1e6, byte_s = 8 / (h->link_gbps * 1e9);
    if (tp == 1)
        return 0;
    double logits = work->n_outputs * d->n_vocab * sizeof(float) * (tp - 1) / tp;
    return latency + (2.0 * d->n_layers + 1) * reduce_s(h, tp, work->n_rows * d->d_model * sizeof(float)) +
           latency + logits * byte_s;
}

/* ---- steps ---- */

struct plan_step plan_reckon(const struct plan_rates *rates, const struct plan_model *m,
                             const struct plan_hosts *h, int tp, const struct plan_work *work)
{
    struct plan_rates r = *rates;
    struct plan_step slowest = { 0 };
    double cores = (double)h->n_cores / r.n_cores, memory = h->read_gbps > 0 ? h->read_gbps / r.read_gbps : 1;
    r.linear_gops *= cores;
    r.attention_gflops *= cores;
    r.linear_gbps *= memory;
    r.attention_gbps *= memory;
    for (int rank = 0; rank < tp; rank++) {
        struct split s;
        if (split_make(&s, &m->desc, &m->blocks, tp, rank, NULL) != TUTTI_OK)
            return (struct plan_step){ .total_s = INFINITY }; /* plan_layouts() never returns such a tp */
        struct plan_sample own = rank_work(m, &s, work);
        double read = own.matrix_bytes / (r.linear_gbps * 1e9),
               compute = own.linear_ops / (r.linear_gops * 1e9);
        double total = overlap(read, compute) + attention_s(&r, own.kv_bytes, own.attention_ops);
        if (total <= slowest.total_s)
            continue;
        slowest.read_s = read + own.kv_bytes / (r.attention_gbps * 1e9);
        slowest.compute_s = compute +
                            (r.attention_gflops > 0 ? own.attention_ops / (r.attention_gflops * 1e9) : 0);
        slowest.total_s = total;
    }
    slowest.network_s = network_s(m, h, tp, work);
    slowest.total_s += slowest.network_s;
    return slowest;
}

double plan_tokens(const struct plan_rates *rates, const struct plan_model *m, const struct plan_hosts *h,
                   const struct plan_layout *layout, int64_t n_users, int context, struct plan_step *step)
{
    int64_t fullest = (n_users + layout->dp - 1) / layout->dp;
    struct plan_work work = plan_decode(m, (double)fullest, context);
    *step = plan_reckon(rates, m, h, layout->tp, &work);
    return (double)n_users / step->total_s;
}

/* ---- layouts ---- */

static double rank_weight_bytes(const struct plan_model *m, const struct split *s)
{
    const struct plan_work none = { 0 };
    double embedding = m->desc.tied_output ? 0 : m->embedding_bytes;
    return rank_work(m, s, &none).matrix_bytes + m->whole_bytes +
           embedding * (s->vocab.end - s->vocab.begin) / m->desc.n_vocab;
}

int plan_layouts(struct plan_layout *layouts, const struct plan_model *m, const struct plan_hosts *h,
                 int context)
{
    int n = 0;
    for (int tp = 1; tp <= h->n_hosts && tp <= LIMIT_RANKS; tp++) {
        struct plan_layout *l = &layouts[n];
        struct split s;
        *l = (struct plan_layout){ .tp = tp, .dp = h->n_hosts / tp };
        bool can = true;
        for (int rank = 0; rank < tp && can; rank++) {
            can = split_make(&s, &m->desc, &m->blocks, tp, rank, NULL) == TUTTI_OK;
            double bytes = can ? rank_weight_bytes(m, &s) : 0;
            l->weight_bytes = bytes > l->weight_bytes ? bytes : l->weight_bytes;
        }
        if (!can)
            continue;
        int n_pages = (context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        l->user_bytes = kv_token_bytes(m, s.kv_heads.end - s.kv_heads.begin) * n_pages * KV_PAGE_TOKENS;
        double left = h->memory_bytes - l->weight_bytes;
        l->n_users_fit = left > 0 ? l->dp * (int64_t)fmin(left / l->user_bytes, 1e9) : 0;
        n++;
    }
    return n;
}
