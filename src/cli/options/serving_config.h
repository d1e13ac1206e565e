/* Reads the YAML configuration of MindSpore's llm-serving, for `serve --config`: settings that
 * tutti also has are used. */
#ifndef TUTTI_CLI_OPTIONS_SERVING_CONFIG_H
#define TUTTI_CLI_OPTIONS_SERVING_CONFIG_H

#include "base/buf.h"
#include "base/error.h"

struct serving_config {
    char host[256];       /* serving_config.server_ip; "": not set */
    char model_name[256]; /* model_config.model_name */
    int port;             /* serving_config.server_port; -1: not set */
    int64_t n_kv_tokens;  /* pa_config.num_blocks * block_size; 0: not set, as below */
    /* The minimum of pa_config.decode_seq_length, the last model_config.seq_length and
     * max_generate_length. */
    int max_context;
    int max_seqs;      /* the last model_config.decode_batch_size */
    struct buf unused; /* names of the settings that have no effect here, separated by commas */
};

/* TUTTI_E_IO, TUTTI_E_FORMAT with line and column, or with the setting. Call
 * serving_config_clear() in either case. */
MUST_CHECK enum tutti_status serving_config_read(struct serving_config *out, const char *path,
                                                 struct tutti_error *err);
void serving_config_clear(struct serving_config *config);

#endif
