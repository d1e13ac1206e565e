/* What a model will do on several machines, reckoned from what its kernels do on one: tokens a second, users, memory.
 *
 * A step reads every matrix once and multiplies it with every row, reads the keys and values of every user, and waits for the sums over
 * the ranks. Reading and computing overlap, so each pair of times is folded by a power mean of 4: the longer one, and a fifth more
 * where both are equal, as kernels have it near the crossing. Messages overlap with nothing. Ranks wait for each other, so the one
 * with the largest share counts. One rank is one host; a replica is tp of them. */
#ifndef TUTTI_FLEET_PLAN_H
#define TUTTI_FLEET_PLAN_H

#include "model/ranks/split.h"

/* What one host does in kernels, not at its peak. 1 G = 1e9. */
struct plan_rates {
    enum dtype type;    /* of the weights */
    int n_cores;        /* that did it */
    double read_gbps;   /* a plain reading loop: what bandwidths are scaled by */
    double linear_gbps; /* bytes of matrices */
    double linear_gops; /* a multiply-add is two */
    double attention_gbps, attention_gflops;
};

/* A step that was measured, to make rates of. */
struct plan_sample {
    int n_rows;
    double seconds;
    double matrix_bytes, kv_bytes; /* read */
    double linear_ops, attention_ops;
};

/* Attention alone, and what the machine could do at most meanwhile; context 0: not measured. */
struct plan_attention_sample {
    double seconds, kv_bytes, ops;
    double read_gbps, f32_gflops;
};

/* Fills the linear rates from the sample with the fewest rows and the one with the most, and those of attention. rates->type and n_cores
 * stay. TUTTI_E_ARGUMENT: the samples do not tell both: expected are one of at most 4 rows, and one of at least 16. */
MUST_CHECK enum tutti_status plan_rates_fit(struct plan_rates *rates, const struct plan_sample *samples,
                                            int n, const struct plan_attention_sample *attention,
                                            double read_gbps, double f32_gflops, struct tutti_error *err);

/* Bytes of all layers' matrices, as they are packed to run. */
struct plan_model {
    struct model_desc desc;
    enum dtype kv_type;
    double qkv_bytes, attn_out_bytes, gate_up_bytes, down_bytes;
    double embedding_bytes, output_bytes; /* output_bytes: the embedding's where tied */
    double whole_bytes;                   /* what every rank has: norms, positions */
    struct split_blocks blocks;           /* of attn_out and down */
};

struct plan_hosts {
    int n_hosts, n_cores; /* n_cores: of each */
    double read_gbps;     /* of each; 0: as measured */
    double link_gbps;     /* gigabits a second of each host's link, in both directions at once */
    double latency_us;    /* of a message */
    double memory_bytes;  /* of each */
};

/* Times of one step, in seconds. Reading and computing overlap. */
struct plan_step {
    double read_s, compute_s, network_s, total_s;
};

struct plan_layout {
    int tp, dp;          /* tp * dp <= n_hosts */
    double weight_bytes; /* of the largest rank */
    double user_bytes;   /* keys and values of one user's context, on the largest rank */
    int64_t n_users_fit; /* of all replicas; 0: not even the weights do */
};

/* Layouts of n_hosts hosts: every tp that the model's heads allow, with as many replicas as there are hosts for. layouts:
 * [LIMIT_RANKS]. Returns how many. */
int plan_layouts(struct plan_layout *layouts, const struct plan_model *model, const struct plan_hosts *hosts,
                 int context);

/* n_rows of which n_outputs give logits. seen: positions that all rows together look at; stored: those of which keys and values come from
 * memory. */
struct plan_work {
    double n_rows, n_outputs, seen, stored;
};
struct plan_work plan_decode(const struct plan_model *model, double n_users, int context);
struct plan_work plan_prefill(const struct plan_model *model, int n_tokens);

/* One step of a replica of tp ranks. */
struct plan_step plan_reckon(const struct plan_rates *rates, const struct plan_model *model,
                             const struct plan_hosts *hosts, int tp, const struct plan_work *work);

/* The work of a step on one rank that has all, in a sample's terms; seconds and n_rows stay 0. */
struct plan_sample plan_sample_of(const struct plan_model *model, const struct plan_work *work);

/* Tokens a second of all replicas, for n_users dealt out over them evenly; the fullest replica's step counts. */
double plan_tokens(const struct plan_rates *rates, const struct plan_model *model,
                   const struct plan_hosts *hosts, const struct plan_layout *layout, int64_t n_users,
                   int context, struct plan_step *step);

#endif
