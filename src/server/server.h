/* The HTTP server: OpenAI's API, metrics and the chat page in front of one engine.
 *
 * One thread, the caller's, runs the event loop: it parses requests, submits them and writes sockets. Events of the
 * engine reach it through a queue with one wakeup for many of them; nothing else is shared.
 *
 * The server opens before the model is loaded, so that whoever watches it can tell a replica that comes up from one that is
 * gone: until server_run() every request gets 503. */
#ifndef TUTTI_SERVER_SERVER_H
#define TUTTI_SERVER_SERVER_H

#include "base/error.h"

/* APIs beside OpenAI's, off unless they are asked for. */
enum server_api {
    SERVER_API_LLM_SERVING = 1, /* MindSpore's */
    SERVER_API_STEP = 2,        /* a chat in steps, POST /llm/generate */
    SERVER_API_TGI = 4,         /* Hugging Face's Text Generation Inference */
};

/* Zero-initialise, then server_options_init(). Strings are borrowed while server_run() runs. */
struct server_options {
    const char *host;         /* name or address to listen on; ignored with unix_path */
    int port;                 /* 0: any free one */
    const char *unix_path;    /* NULL: TCP. A socket file, removed at the end; a stale one is replaced */
    const char *api_key_file; /* NULL: open to all. As keys.h has it */
    /* GET /metrics: keys that open it, as api_key_file; NULL: none is needed without API keys; with API keys, /metrics is closed.
     * metrics_listen: its own address, "HOST:PORT", "PORT" or "unix:PATH"; NULL: that of the server. */
    const char *metrics_key_file, *metrics_listen;
    const char *tls_cert_file, *tls_key_file; /* PEM; both or neither: plain HTTP */
    /* NULL: clients need no certificate; else one signed by a certificate in it. */
    const char *tls_client_ca_file;
    const char *cors_origin; /* NULL: no CORS headers; "*" or one origin such as "https://chat.example" */
    /* Names beyond localhost, addresses, host and this machine's name that requests may address the server by, without a port:
     * "NAME", "*.NAME" or "*". Checked where there are no keys, and where there is such a name. */
    const char *const *allow_hosts;
    size_t n_allow_hosts;
    const char *model_id; /* what requests call the model; NULL: tutti_model_info's name */
    size_t
        max_body_bytes; /* of one request; beyond: 413. 0: 4 MiB and 32 bytes for each token of the context */
    /* Connections in all, 0: no bound; and of one address (of IPv6 a network of 64 bits), 0: no bound, below 0: as
     * server_options_init() has it, and none for loopback addresses. */
    int max_connections, max_connections_per_address;
    size_t max_output_bytes; /* buffered for a reader that does not read; beyond: the connection is dropped */
    int header_timeout_s;    /* from the first byte of a request to its last */
    int idle_timeout_s;      /* of a connection between requests, and of a reader that takes no byte */
    int drain_delay_s;       /* after SIGTERM /health says 503 this long before requests are refused */
    int drain_timeout_s;     /* from then on running requests have this long to end */
    bool access_log;         /* one line for each request */
    unsigned apis;           /* enum server_api, put together with | */
    enum tutti_embedding embedding; /* how vectors are made where the request does not say it */
    int step_timeout_s;             /* a chat in steps that nobody asks for so long is cancelled */
    /* Of a client, that is a key without limits of its own, or, without keys, an address: */
    int64_t tokens_per_minute; /* of prompts and answers together; 0: no limit */
    int max_concurrent;        /* answers that run or wait; 0: no limit */
    /* Goodput: answers whose first token came within so many milliseconds, and whose mean time from token to token is within
     * so many; 0: any. */
    double ttft_target_ms, itl_target_ms;
    bool shares_cache; /* one prefix cache for all keys; else each key has its own */
    int max_requests;  /* that may run and wait, as the engine was opened; for /info */
};

/* The defaults: 127.0.0.1:8080, 1 MiB output, 30 s header, 120 s idle, drain at once and for 30 s, access log on, no
 * other API, 60 s for a step. */
void server_options_init(struct server_options *options);

struct server;

/* Listens. A thread of the server's answers 503 from now on; on sockets that systemd has opened, clients wait instead.
 * options is borrowed until server_close(). *out is the caller's, for server_close().
 * TUTTI_E_ARGUMENT: an option is out of range. TUTTI_E_IO, TUTTI_E_FORMAT: cannot listen, or a file cannot be used. */
MUST_CHECK enum tutti_status server_open(struct server **out, const struct server_options *options,
                                         struct tutti_error *err);

/* Prints "listening on http://HOST:PORT" (or "listening on unix:PATH") on standard output and serves until SIGTERM or
 * SIGINT; then /health says 503, after drain_delay_s new requests get 503 too, and running ones end; a second signal stops
 * at once. The engine is drained afterwards; closing it stays with the caller. SIGHUP reads keys and certificates anew.
 * Where systemd started the process, it is told of each change. Once for each server. */
MUST_CHECK enum tutti_status server_run(struct server *server, tutti_engine *engine, tutti_model *model,
                                        struct tutti_error *err);
void server_close(struct server *server); /* NULL is allowed */

#endif
