/* Predicts a model's performance on several machines (tokens per second, users, memory) from
 * kernel rates measured on one.
 *
 * A step reads every matrix once and multiplies it with every row, reads the keys and values of
 * every user, and waits for the all-reduces. Reading and computing overlap, so the two times are
 * combined by a 4-norm: about the longer one, and a fifth more if both are equal, as measured for
 * kernels near the crossing. Messages overlap with nothing. Ranks wait for each other, so the
 * rank with the largest part counts. One rank is one host; a replica is tp hosts. */
#ifndef TUTTI_FLEET_PLAN_H
#define TUTTI_FLEET_PLAN_H

#include "model/ranks/split.h"

/* The rates of one host in kernels, not its peak. 1 G = 1e9. */
struct plan_rates {
    enum dtype type;    /* of the weights */
    int n_cores;        /* used for the measurement */
    double read_gbps;   /* of a plain reading loop: the reference for scaling bandwidths */
    double linear_gbps; /* bytes of matrices */
    double linear_gops; /* a multiply-add is two */
    double attention_gbps, attention_gflops;
};

/* A measured step, from which rates are computed. */
struct plan_sample {
    int n_rows;
    double seconds;
    double matrix_bytes, kv_bytes; /* read */
    double linear_ops, attention_ops;
};

/* Measured attention, and the machine's limits at the same time; all 0: not measured. */
struct plan_attention_sample {
    double seconds, kv_bytes, ops;
    double read_gbps, f32_gflops;
};

/* Fills the linear rates from the samples with the fewest and with the most rows, and the
 * attention rates. rates->type and n_cores are unchanged. TUTTI_E_ARGUMENT: the samples must
 * include one of at most 4 rows and one of at least 16. */
MUST_CHECK enum tutti_status plan_rates_fit(struct plan_rates *rates, const struct plan_sample *samples,
                                            int n, const struct plan_attention_sample *attention,
                                            double read_gbps, double f32_gflops, struct tutti_error *err);

/* The model's sizes: bytes of all layers' matrices, packed. */
struct plan_model {
    struct model_desc desc;
    enum dtype kv_type;
    double qkv_bytes, attn_out_bytes, gate_up_bytes, down_bytes;
    double embedding_bytes, output_bytes; /* output_bytes: if tied, the embedding's */
    double whole_bytes;                   /* replicated on every rank: norms, positions */
    struct split_blocks blocks;           /* of attn_out and down */
};

struct plan_hosts {
    int n_hosts, n_cores; /* n_cores: of each */
    double read_gbps;     /* of each; 0: as measured */
    double link_gbps;     /* gigabits per second of each host's link, full duplex */
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
    int64_t n_users_fit; /* of all replicas; 0: even the weights do not fit */
};

/* Lists the layouts of n_hosts hosts: every tp that the model's heads allow, with as many
 * replicas as fit. layouts: [LIMIT_RANKS]. Returns their number. */
int plan_layouts(struct plan_layout *layouts, const struct plan_model *model, const struct plan_hosts *hosts,
                 int context);

/* The work of a step: n_rows, of which n_outputs give logits. seen: positions that all rows
 * attend to, summed; stored: those whose keys and values are read from memory. */
struct plan_work {
    double n_rows, n_outputs, seen, stored;
};
struct plan_work plan_decode(const struct plan_model *model, double n_users, int context);
struct plan_work plan_prefill(const struct plan_model *model, int n_tokens);

/* Predicts one step of a replica of tp ranks. */
struct plan_step plan_reckon(const struct plan_rates *rates, const struct plan_model *model,
                             const struct plan_hosts *hosts, int tp, const struct plan_work *work);

/* The work of a step on a single rank, as a sample; seconds and n_rows stay 0. */
struct plan_sample plan_sample_of(const struct plan_model *model, const struct plan_work *work);

/* Tokens per second of all replicas, with n_users distributed evenly; the fullest replica's step
 * counts. */
double plan_tokens(const struct plan_rates *rates, const struct plan_model *model,
                   const struct plan_hosts *hosts, const struct plan_layout *layout, int64_t n_users,
                   int context, struct plan_step *step);

#endif
