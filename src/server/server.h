/* The HTTP server: the APIs of OpenAI and Anthropic, metrics and the chat page for one engine.
 *
 * The caller's thread runs the event loop: it submits requests and writes sockets. Events of the
 * engine reach it through a queue, with one wakeup for many events. Worker threads parse bodies
 * (intake.h).
 *
 * The server opens before the model is loaded, so a health check can distinguish a starting replica from a
 * dead one: until server_run() every request gets 503. */
#ifndef TUTTI_SERVER_SERVER_H
#define TUTTI_SERVER_SERVER_H

#include "base/error.h"
#include "tutti.h"

/* APIs other than OpenAI's; off by default. */
enum server_api {
    SERVER_API_LLM_SERVING = 1, /* MindSpore's */
    SERVER_API_STEP = 2,        /* chat by polling, POST /llm/generate (step_api.h) */
    SERVER_API_TGI = 4,         /* Hugging Face's Text Generation Inference */
};

/* Strings are borrowed while server_run() runs. Numbers are those of the options of `tutti serve`, which
 * checks their ranges. */
struct server_options {
    const char *host;         /* name or address to listen on; ignored with unix_path */
    int port;                 /* 0: any free one */
    const char *unix_path;    /* NULL: TCP. A socket file, removed at the end; a stale one is replaced */
    unsigned unix_mode;       /* permissions of the socket files of unix_path and metrics_listen */
    const char *api_key_file; /* NULL: no key is needed. Format: keys.h */
    /* GET /metrics: file with the keys that open it, as api_key_file. NULL: without API keys it is
     * open, with API keys it is closed. metrics_listen: an address of its own, "HOST:PORT", "PORT"
     * or "unix:PATH"; NULL: the server's. */
    const char *metrics_key_file, *metrics_listen;
    const char *tls_cert_file, *tls_key_file; /* PEM; both or neither: plain HTTP */
    /* NULL: clients need no certificate; else one signed by a CA in this file. */
    const char *tls_client_ca_file;
    const char *cors_origin; /* NULL: no CORS headers; "*" or one origin such as "https://chat.example" */
    /* Names by which requests may address the server, without a port: "NAME", "*.NAME" or "*", in
     * addition to localhost, addresses, host and this machine's name. Checked if there are no API
     * keys, or if this list is not empty. */
    const char *const *allow_hosts;
    size_t n_allow_hosts;
    const char *model_id; /* what requests call the model; NULL: tutti_model_info's name */
    /* Of one request; larger: 413. 0: 4 MiB and 32 bytes for each token of the context. */
    uint64_t max_body_bytes;
    /* Connections in total, 0: no limit; and from one address (IPv6: one /64 network), 0: no limit,
     * below 0: 512, and no limit for loopback addresses. */
    int max_connections, max_connections_per_address;
    uint64_t max_output_bytes; /* unsent reply bytes; a client that reads too slowly is dropped above */
    /* Of a TLS handshake, and from the first byte of a request to the end of its head. A body must
     * bring 16 KiB per second in each period of this length. */
    int header_timeout_s;
    int idle_timeout_s;  /* of a connection between requests, and of a client that reads nothing */
    int drain_delay_s;   /* after SIGTERM /ready says 503 for this long before requests are refused */
    int drain_timeout_s; /* then running requests have this long to end */
    bool no_access_log;  /* else one line for each request */
    unsigned apis;       /* enum server_api, combined with | */
    enum tutti_embedding
        embedding; /* pooling of embeddings, if the request does not say; TUTTI_EMBEDDING_NONE: as the model's files say,
                                     * or the mean */
    int step_timeout_s; /* SERVER_API_STEP: a chat that is not polled for this long is cancelled */
    /* Limits of a client: a key without limits of its own or, without keys, an address. */
    int64_t tokens_per_minute; /* of prompts and answers together; 0: no limit */
    int max_concurrent;        /* answers that run or wait; 0: no limit */
    /* Goodput targets: time to first token, and mean inter-token latency of an answer, in
     * milliseconds; 0: any. */
    double ttft_target_ms, itl_target_ms;
    bool shares_cache; /* one prefix cache for all keys; else each key has its own */
    int max_requests;  /* that may run and wait, as configured in the engine; for /info */
    /* A process of server_run_models(): its requests come from the server, which has checked them, and
     * X-Forwarded-For names their clients. ready: called when it serves. */
    bool is_behind;
    void (*ready)(void *user);
    void *ready_user;
};

/* What requests may want of a model; "capabilities" in /v1/models. */
enum server_ability {
    SERVER_CAN_COMPLETE = 1,
    SERVER_CAN_CHAT = 2,
    SERVER_CAN_INFILL = 4,
    SERVER_CAN_CALL_TOOLS = 8,
    SERVER_CAN_REASON = 16,
    SERVER_CAN_EMBED = 32,
    SERVER_CAN_RANK = 64,
};
/* Combined with |. */
unsigned server_abilities(const struct tutti_model_info *info);

/* What /v1/models tells of one of several models. */
struct server_traits {
    unsigned abilities; /* enum server_ability; 0: not known */
    int max_context;    /* tokens of one sequence; 0: not known */
    /* Once it is loaded; else "" and zeros. What is free of the device's memory is not kept: it changes. */
    char device_type[16]; /* as in struct tutti_model_info */
    struct tutti_device device;
};

/* Several models. */
struct server_models {
    const struct server_model {
        const char *name, *path;
        struct server_traits traits; /* as far as its files tell before it is loaded */
    } * list;
    int n;
    uint64_t memory_bytes; /* of all their processes; 0: no limit */
    uint64_t kv_bytes;     /* KV cache of each */
    int idle_s;            /* a process without requests for this long ends; 0: never */
    struct spawner *spawner;
};

struct server;

/* Starts to listen. From now on a thread of the server answers 503; on sockets from systemd clients
 * wait instead. options is borrowed until server_close(). *out is the caller's, for server_close().
 * TUTTI_E_ARGUMENT: an address or the limits of a key. TUTTI_E_IO, TUTTI_E_FORMAT: cannot listen, or a file
 * is unusable. */
MUST_CHECK enum tutti_status server_open(struct server **out, const struct server_options *options,
                                         struct tutti_error *err);

/* Prints "listening on http://HOST:PORT" (or "listening on unix:PATH") on standard output and
 * serves until SIGTERM or SIGINT. Then /ready says 503; after drain_delay_s new requests get 503
 * too, and running ones end. A second signal stops at once. The engine is drained at the end; the
 * caller closes it. SIGHUP reloads keys and certificates. Under systemd each change of state is
 * reported. Once for each server. */
MUST_CHECK enum tutti_status server_run(struct server *server, tutti_engine *engine, tutti_model *model,
                                        struct tutti_error *err);
/* The same for several models, each in a process of its own that is started when a request names it;
 * requests without a name are for the first. SIGHUP also replaces the processes of models whose files have
 * changed. models: borrowed until server_close(). */
MUST_CHECK enum tutti_status server_run_models(struct server *server, const struct server_models *models,
                                               struct tutti_error *err);
void server_close(struct server *server); /* NULL is allowed */

#endif
