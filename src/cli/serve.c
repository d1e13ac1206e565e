/* tutti serve: one model behind the HTTP API and the chat page. */
#include "base/limits.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/options/model_places.h"
#include "cli/options/serving_config.h"
#include "cli/terminal/numbers.h"
#include "offline/inspect.h"
#include "server/models/spawner.h"
#include "server/server.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct serve_values {
    struct server_options server; /* except for what comes from the members below */
    const char *config;
    const char *unix_mode;
    struct option_texts apis, allow_hosts;
    unsigned pooling; /* as in enum tutti_embedding */
    enum log_level log_level;
    enum log_format log_format;
    double max_queue_time;
    uint64_t models_memory;
    int idle_unload_s;
    struct session_flags session;
};

static const char *const LOG_LEVELS[] = { "debug", "info", "warn", "error", NULL }; /* as in enum log_level */

static const char *const UNIX_MODES[] = { "0600", "0660", "0666", NULL };
static const char *const UNIX_MODE_ALIASES[] = { "600", "0600", "660", "0660", "666", "0666", NULL };

static const char *const POOLINGS[] = { "model", "mean", "last", "cls", NULL };

static const char *const LOG_FORMATS[] = { "text", "json", NULL }; /* as in enum log_format */

enum { MAX_SECONDS = 7 * 24 * 3600, DEFAULT_PORT = 8080, DEFAULT_STEP_TIMEOUT_S = 60 };
enum { DEFAULT_KV_BYTES = 1 << 30 }; /* of each of several models */

#define VALUES struct serve_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, server.host, "host", "ADDRESS",
                "address to listen on; 0.0.0.0 means all addresses of the machine (default 127.0.0.1)"),
    INT_OPTION(VALUES, server.port, "port", "N", "port to listen on, 8080 by default; 0 selects a free one",
               .letter = 'p', .max = 65535),
    TEXT_OPTION(VALUES, server.unix_path, "unix", "PATH", "listen on a Unix socket instead"),
    CHOICE_OPTION(VALUES, unix_mode, "unix-mode", "MODE", UNIX_MODES,
                  "permissions of the sockets of --unix and --metrics-listen, for the server's user only, "
                  "its group too, or "
                  "all users, whatever the umask",
                  .aliases = UNIX_MODE_ALIASES, .initial = "0660"),
    TEXT_OPTION(VALUES, server.model_id, "name", "ID",
                "name of the model in the API; by default, that of its file or folder"),
    TEXTS_OPTION(VALUES, apis, "api", "NAME",
                 "additional APIs besides OpenAI's and Anthropic's: llm-serving, step and tgi, separated by "
                 "commas, or all"),
    TEXT_OPTION(
        VALUES, config, "config", "FILE",
        "read the settings of MindSpore's llm-serving from its YAML file, and enable its API; flags take "
        "precedence"),
    ENUM_OPTION(VALUES, pooling, "embedding-pooling", "KIND", POOLINGS,
                "which hidden states become the embedding of a text, unless the request says it: the mean of "
                "all tokens, the last token, or the first (cls); model: as the model's files say, else mean",
                .initial = "model"),
    INT_OPTION(VALUES, server.step_timeout_s, "step-timeout", "SECONDS",
               "with --api step: cancel a chat if its client does not poll it for this long", .min = 1,
               .max = 86400, .initial = "60", .needs = "api"),
    TEXT_OPTION(VALUES, server.api_key_file, "api-key-file", "FILE",
                "require an API key: FILE has one key per line, optionally followed by a name for the log "
                "and its own limits (docs/operations.md); SIGHUP rereads it"),
    FLAG_OPTION(VALUES, server.shares_cache, "share-cache",
                "share one prefix cache between all keys: this saves memory and time if prompts have common "
                "prefixes, but lets each key find out, by cached_tokens and response times, how prompts of "
                "other keys begin; without it, only keys of one name share a cache",
                .needs = "api-key-file"),
    TEXT_OPTION(VALUES, server.metrics_key_file, "metrics-key", "FILE",
                "require one of the keys in FILE for GET /metrics; FILE has the form of --api-key-file. With "
                "--api-key-file, /metrics is closed unless this or --metrics-listen is given. SIGHUP reads "
                "FILE again"),
    TEXT_OPTION(VALUES, server.metrics_listen, "metrics-listen", "ADDRESS",
                "serve GET /metrics and /slots only at this address, together with /health and /ready: "
                "HOST:PORT, PORT of 127.0.0.1, or unix:PATH; HTTPS if the server has a certificate"),
    TEXT_OPTION(VALUES, server.tls_cert_file, "tls-cert", "FILE",
                "serve HTTPS with the certificate in FILE (PEM), followed by its chain of intermediate "
                "certificates; SIGHUP rereads it"),
    TEXT_OPTION(VALUES, server.tls_key_file, "tls-key", "FILE",
                "the private key of --tls-cert (PEM, no passphrase)"),
    TEXT_OPTION(VALUES, server.tls_client_ca_file, "tls-client-ca", "FILE",
                "require a client certificate signed by one of those in FILE (PEM)"),
    TEXT_OPTION(VALUES, server.cors_origin, "cors-origin", "ORIGIN",
                "allow web pages of this origin to use the API (CORS), * for any; without keys, pages of "
                "other origins are refused"),
    TEXTS_OPTION(
        VALUES, allow_hosts, "allow-host", "NAME",
        "additional name that the Host header of requests may contain: NAME, *.NAME or * for any. Without "
        "keys, only localhost, addresses, --host and, if other machines can connect, this machine's name "
        "are allowed: this keeps web pages out (docs/threat-model.md)"),
    SIZE_OPTION(VALUES, server.max_body_bytes, "max-body", "SIZE",
                "maximum size of a request (default: 4M, and 32 bytes for each token of the context)",
                .min = 1024, .max = 1 << 30),
    SIZE_OPTION(VALUES, server.max_output_bytes, "max-output", "SIZE",
                "text buffered for a client that does not read; beyond that its connection is closed",
                .min = 4096, .max = INFINITY, .initial = "1M"),
    INT_OPTION(
        VALUES, server.header_timeout_s, "header-timeout", "SECONDS",
        "time for a TLS handshake and for the head of a request to arrive; a body must bring 16 KiB per "
        "second in each period of this length",
        .min = 1, .max = MAX_SECONDS, .initial = "30"),
    INT_OPTION(VALUES, server.idle_timeout_s, "idle-timeout", "SECONDS", "time that a connection may be idle",
               .min = 1, .max = MAX_SECONDS, .initial = "120"),
    INT_OPTION(VALUES, server.drain_delay_s, "drain-delay", "SECONDS",
               "after SIGTERM, /ready returns 503 for this long before requests are refused, so that a load "
               "balancer can send them elsewhere first",
               .max = 86400, .initial = "0"),
    INT_OPTION(VALUES, server.drain_timeout_s, "drain-timeout", "SECONDS",
               "time for running requests to end after SIGTERM (and --drain-delay)", .min = 1,
               .max = MAX_SECONDS, .initial = "30"),
    ENUM_OPTION(VALUES, log_level, "log-level", "LEVEL", LOG_LEVELS, "minimum level of log lines",
                .initial = "info"),
    ENUM_OPTION(VALUES, log_format, "log-format", "FORMAT", LOG_FORMATS,
                "log as text, or one JSON object per line", .initial = "text"),
    FLAG_OPTION(VALUES, server.no_access_log, "no-access-log", "do not log each request"),
    { .name = NULL },
};

static const struct option SEVERAL_OPTIONS[] = {
    SIZE_OPTION(VALUES, models_memory, "models-memory", "SIZE",
                "memory for the weights and KV caches of all loaded models: models whose last request is "
                "longest ago are unloaded to make room; without it, no limit",
                .min = 1024 * 1024, .max = INFINITY),
    INT_OPTION(VALUES, idle_unload_s, "idle-unload", "SECONDS",
               "unload a model that has had no request for this long; 0: never", .max = MAX_SECONDS,
               .initial = "0"),
    { .name = NULL },
};

static const struct option LIMIT_OPTIONS[] = {
    FLOAT_OPTION(VALUES, max_queue_time, "max-queue-time", "SECONDS",
                 "maximum time in the queue: a request that would wait longer gets 429 at once, and one that "
                 "has not started by then gets 503, both with Retry-After; 0: no limit",
                 .max = 86400, .initial = "30"),
    INT64_OPTION(VALUES, server.tokens_per_minute, "tokens-per-minute", "N",
                 "tokens of prompts and answers per minute, for each key without its own limit or, without "
                 "keys, for each address; 0: no limit",
                 .max = 1e12, .initial = "0"),
    INT_OPTION(
        VALUES, server.max_concurrent, "max-concurrent", "N",
        "answers that may run or wait at the same time, for each key without its own limit or, without "
        "keys, for each address; 0: no limit",
        .max = 1000000, .initial = "0"),
    INT_OPTION(
        VALUES, server.max_connections, "max-connections", "N",
        "maximum open connections; beyond that, the address with the most connections loses the one that "
        "has completed no request for longest; 0: no limit",
        .max = 1000000, .initial = "10000"),
    INT_OPTION(VALUES, server.max_connections_per_address, "max-connections-per-address", "N",
               "maximum open connections of one IPv4 address or IPv6 network of 64 bits (default 512; no "
               "limit for loopback addresses and Unix sockets); 0: no limit. Clients of a reverse proxy "
               "share the proxy's address: X-Forwarded-For is not read",
               .max = 1000000, .excludes = "unix"),
    FLOAT_OPTION(
        VALUES, server.ttft_target_ms, "ttft-target", "MS",
        "goodput in the metrics: count answers with a time to first token of at most MS milliseconds",
        .max = 86400000, .above_min = true),
    FLOAT_OPTION(VALUES, server.itl_target_ms, "itl-target", "MS",
                 "goodput in the metrics: count answers with a mean time per output token of at most MS "
                 "milliseconds",
                 .max = 86400000, .above_min = true),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Server", OPTIONS, 0 },
    { "Limits", LIMIT_OPTIONS, 0 },
    { "Several models", SEVERAL_OPTIONS, 0 },
    SESSION_GROUPS(VALUES, session),
    { .title = NULL },
};

/* Reads names separated by commas. */
static enum tutti_status read_apis(const struct option_texts *texts, unsigned *out, struct tutti_error *err)
{
    static const struct {
        const char *name;
        unsigned api;
    } APIS[] = { { "openai", 0 }, /* always on */
                 { "llm-serving", SERVER_API_LLM_SERVING },
                 { "step", SERVER_API_STEP },
                 { "tgi", SERVER_API_TGI },
                 { "all", SERVER_API_LLM_SERVING | SERVER_API_STEP | SERVER_API_TGI } };
    for (int i = 0; i < texts->n; i++) {
        for (const char *word = texts->texts[i]; word;) {
            size_t n = strcspn(word, ","), k = 0, n_apis = sizeof APIS / sizeof *APIS;
            while (k < n_apis && (strlen(APIS[k].name) != n || strncmp(APIS[k].name, word, n)))
                k++;
            if (k == n_apis)
                return error_set_param(err, TUTTI_E_ARGUMENT, "api",
                                       "--api: found '%.*s', expected llm-serving, step, tgi or all",
                                       (int)(n < 64 ? n : 64), word);
            *out |= APIS[k].api;
            word = word[n] ? word + n + 1 : NULL;
        }
    }
    return TUTTI_OK;
}

/* Whether a browser could send this Origin: SCHEME://HOST[:PORT] in lower case, without a path. */
static bool is_origin(const char *text)
{
    const char *at = strstr(text, "://");
    if (!at || at == text || !at[3])
        return false;
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~' || (*c >= 'A' && *c <= 'Z') || (c >= at + 3 && strchr("/?#@", *c)))
            return false;
    return true;
}

/* Whether a Host header could match: NAME, *.NAME or *. */
static bool is_host_pattern(const char *text)
{
    static const char NAME[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    const char *name = strncmp(text, "*.", 2) == 0 ? text + 2 : text;
    return strcmp(text, "*") == 0 || (*name && name[strspn(name, NAME)] == '\0');
}

/* What could never match is a mistake: the requests that it should allow would be refused. */
static enum tutti_status check_pages(const char *origin, const struct option_texts *hosts,
                                     struct tutti_error *err)
{
    if (origin && strcmp(origin, "*") != 0 && strcmp(origin, "null") != 0 && !is_origin(origin))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--cors-origin: found '%s', expected * or an origin such as https://example.org, in "
                         "lower case and without a path",
                         origin);
    for (int i = 0; i < hosts->n; i++)
        if (!is_host_pattern(hosts->texts[i]))
            return error_set(err, TUTTI_E_ARGUMENT,
                             "--allow-host: found '%s', expected a name such as chat.example, *.chat.example "
                             "or *, without scheme and port",
                             hosts->texts[i]);
    return TUTTI_OK;
}

static enum tutti_status check_flags(const struct server_options *server, struct tutti_error *err)
{
    const char *cert = server->tls_cert_file, *key = server->tls_key_file;
    if (server->unix_path && (server->host || server->port >= 0))
        return error_set(err, TUTTI_E_ARGUMENT, "--unix: takes the place of --%s, found both",
                         server->host ? "host" : "port");
    if (!cert != !key)
        return error_set(err, TUTTI_E_ARGUMENT, "--tls-%s: expected --tls-%s too", cert ? "cert" : "key",
                         cert ? "key" : "cert");
    if (server->tls_client_ca_file && !cert)
        return error_set(err, TUTTI_E_ARGUMENT, "--tls-client-ca: expected --tls-cert and --tls-key too");
    return TUTTI_OK;
}

/* Applies the file's settings, unless a flag is given. */
static void apply_config(const struct serving_config *config, const char *path, struct server_options *server,
                         struct tutti_engine_options *engine)
{
    server->apis |= SERVER_API_LLM_SERVING;
    if (!server->host && config->host[0])
        server->host = config->host;
    if (server->port < 0)
        server->port = config->port;
    if (!server->model_id && config->model_name[0])
        server->model_id = config->model_name;
    if (engine->max_context == 0)
        engine->max_context = config->max_context;
    if (engine->max_seqs == 0)
        engine->max_seqs = config->max_seqs;
    if (config->unused.n_bytes > 0)
        log_warn("%s: settings that have no effect on tutti: %s", path, config->unused.bytes);
}

/* Converts the file's KV pages to bytes of this model, and limits the context to the model's. */
static void fit_config(const struct serving_config *config, const tutti_model *model,
                       struct tutti_engine_options *engine)
{
    struct tutti_model_info info;
    uint64_t n_bytes;
    tutti_model_info(model, &info);
    if (engine->kv_bytes == 0 &&
        !__builtin_mul_overflow((uint64_t)config->n_kv_tokens, info.kv_bytes_per_token, &n_bytes))
        engine->kv_bytes = n_bytes;
    if (config->max_context > info.n_ctx && engine->max_context == config->max_context)
        engine->max_context = info.n_ctx;
}

/* "NAME: FAMILY, SIZE of TYPE weights; " and the size of its KV cache. */
static void describe_model(const tutti_model *model, const struct tutti_stats *stats, char *out,
                           size_t n_bytes)
{
    struct tutti_model_info info;
    char weights[NUMBER_SIZE_BYTES], kv[NUMBER_SIZE_BYTES];
    tutti_model_info(model, &info);
    uint64_t n_tokens = stats->kv_pages_total * stats->kv_page_tokens;
    snprintf(out, n_bytes, "%s: %s, %s of %s weights; %" PRIu64 " tokens of KV cache (%s)", info.name,
             info.family, number_write_size(weights, info.weight_bytes), info.weight_type, n_tokens,
             number_write_size(kv, n_tokens * info.kv_bytes_per_token));
}

/* How long the driver took, and whether a next start takes as long: from its cache it takes some milliseconds. */
static void log_device(const struct session *session)
{
    enum { COMPILED_S = 1 };
    struct tutti_device d;
    char memory[NUMBER_SIZE_BYTES], left[NUMBER_SIZE_BYTES];
    tutti_engine_device(session->engine, &d);
    if (!d.name[0])
        return;
    log_info("device %s: %s, compute capability %d.%d with kernels of level %d, driver for CUDA %d.%d; %s of "
             "memory, "
             "%s free now; kernels loaded in %.1f s%s",
             d.id, d.name, d.capability / 10, d.capability % 10, d.kernel_level, d.driver / 1000,
             d.driver % 1000 / 10, number_write_size(memory, d.memory_bytes),
             number_write_size(left, d.free_bytes), d.loading_seconds,
             d.loading_seconds >= COMPILED_S
                 ? ": the driver compiled them, and takes them from its cache the next time"
                 : "");
}

static void log_models(const struct session *session)
{
    struct tutti_stats stats;
    struct tutti_model_info info;
    char text[512];
    tutti_engine_stats(session->engine, &stats);
    describe_model(session->model, &stats, text, sizeof text);
    log_info("model %s, at most %d each", text, stats.max_context);
    log_device(session);
    for (int i = 0; i < tutti_model_n_adapters(session->model); i++)
        log_info("adapter %s: requests use it by the model name MODEL:ADAPTER",
                 tutti_model_adapter_name(session->model, i));
    tutti_model_info(session->model, &info);
    if (info.uses_mtp)
        log_info("draft tokens by the model's layer for multi-token prediction");
    if (!session->draft)
        return;
    describe_model(session->draft, &stats, text, sizeof text);
    log_info("draft model %s", text);
}

/* A failure of the engine that ends the server. */
struct failure {
    struct tutti_error error;
};

/* Called on the engine's thread, which ends before the error is read. Requests get an error, then
 * this process exits, so that its launcher restarts the ranks. */
static void on_failure(void *user, const struct tutti_error *why)
{
    struct failure *failure = user;
    failure->error = *why;
    kill(getpid(), SIGTERM);
}

/* What a process of several models tells the server when it serves. */
struct child_report {
    const struct spawner_child *child;
    const struct session *session;
};

static void on_ready(void *user)
{
    const struct child_report *report = user;
    struct tutti_model_info info;
    struct tutti_stats stats;
    tutti_model_info(report->session->model, &info);
    tutti_engine_stats(report->session->engine, &stats);
    uint64_t kv_bytes = stats.kv_pages_total * stats.kv_page_tokens * info.kv_bytes_per_token;
    struct server_traits traits = { .abilities = server_abilities(&info), .max_context = stats.max_context };
    snprintf(traits.device_type, sizeof traits.device_type, "%s", info.device);
    tutti_engine_device(report->session->engine, &traits.device);
    traits.device.free_bytes = 0;
    spawner_child_ready(report->child, info.weight_bytes + kv_bytes, &traits);
}

/* Checks the flags. options: the server's. */
static enum tutti_status read_server(const struct serve_values *values, struct server_options *options,
                                     struct tutti_error *err)
{
    *options = values->server;
    enum tutti_status st = check_flags(options, err);
    if (st == TUTTI_OK)
        st = check_pages(options->cors_origin, &values->allow_hosts, err);
    if (st == TUTTI_OK)
        st = read_apis(&values->apis, &options->apis, err);
    if (st == TUTTI_OK && options->step_timeout_s != DEFAULT_STEP_TIMEOUT_S &&
        !(options->apis & SERVER_API_STEP))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "step-timeout",
                             "--step-timeout has no effect without --api step");
    options->allow_hosts = values->allow_hosts.texts;
    options->n_allow_hosts = (size_t)values->allow_hosts.n;
    options->embedding = (enum tutti_embedding)values->pooling;
    options->unix_mode = (unsigned)strtoul(values->unix_mode, NULL, 8);
    return st;
}

static void set_address(struct server_options *options)
{
    options->host = options->host ? options->host : "127.0.0.1";
    options->port = options->port >= 0 ? options->port : DEFAULT_PORT;
}

static enum tutti_status refuse_option(const char *name, const char *why, struct tutti_error *err)
{
    return error_set_param(err, TUTTI_E_ARGUMENT, name, "--%s: %s", name, why);
}

/* A cross-encoder makes scores, and no embeddings that could be pooled. */
static enum tutti_status check_pooling(const struct serve_values *values, const tutti_model *model,
                                       struct tutti_error *err)
{
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    return info.has_score && values->pooling != TUTTI_EMBEDDING_NONE
               ? refuse_option("embedding-pooling", "has no effect on a model that only ranks", err)
               : TUTTI_OK;
}

/* Serves one model. child: this is a process of several models; NULL: it is not. */
static enum tutti_status serve_one(const struct serve_values *values, const char *path,
                                   const struct serving_config *config, tutti_ranks *ranks,
                                   struct server_options *options, const struct spawner_child *child,
                                   struct tutti_error *err)
{
    struct session_flags flags = values->session;
    struct session session = { 0 };
    struct server *server = NULL;
    struct failure failure = { 0 };
    struct child_report report = { child, &session };
    if (values->config)
        apply_config(config, values->config, options, &flags.engine);
    options->max_requests = flags.engine.max_queue +
                            (flags.engine.max_seqs > 0 ? flags.engine.max_seqs : DEFAULT_MAX_SEQS);
    set_address(options);
    if (child) {
        options->ready = on_ready;
        options->ready_user = &report;
    }
    enum tutti_status st = server_open(&server, options, err);
    if (st == TUTTI_OK)
        st = session_open_model(&session, &flags, ranks, path, err);
    if (st == TUTTI_OK && !child)
        st = check_pooling(values, session.model, err);
    if (st == TUTTI_OK && values->config)
        fit_config(config, session.model, &flags.engine);
    flags.engine.max_queue_ms = (int)ceil(values->max_queue_time * 1e3);
    flags.engine.failed = on_failure;
    flags.engine.user = &failure;
    if (st == TUTTI_OK)
        st = session_open_engine(&session, &flags, 0, err);
    if (st == TUTTI_OK) {
        log_models(&session);
        st = server_run(server, session.engine, session.model, err);
    }
    server_close(server);
    tutti_engine_close(session.engine); /* its thread reports failures */
    session.engine = NULL;
    if (failure.error.status != TUTTI_OK) {
        st = TUTTI_E_IO;
        if (err)
            *err = failure.error;
    }
    session_close(&session);
    return st;
}

/* ---- several models ---- */

struct several {
    const struct serve_values *values;
    const struct model_places *places;
};

/* In a process of its own: the server has the address, the certificate, the log of requests and the limits of
 * connections; this process has the model and the limits of its clients. */
static enum tutti_status serve_child(void *user, const struct spawner_child *child, struct tutti_error *err)
{
    const struct several *several = user;
    struct serve_values values = *several->values;
    const struct model_place *place = &several->places->list[child->order.model];
    struct server_options options;
    values.server.host = NULL;
    values.server.port = -1;
    values.server.unix_path = child->order.socket;
    values.server.model_id = place->name;
    values.server.metrics_key_file = values.server.metrics_listen = NULL;
    values.server.tls_cert_file = values.server.tls_key_file = values.server.tls_client_ca_file = NULL;
    values.server.cors_origin = NULL;
    values.server.max_connections = values.server.max_connections_per_address = 0;
    values.server.drain_delay_s = 0;
    values.server.drain_timeout_s = MAX_SECONDS;
    values.server.no_access_log = true;
    values.server.is_behind = true;
    if (values.session.engine.kv_bytes == 0)
        values.session.engine.kv_bytes = DEFAULT_KV_BYTES;
    enum tutti_status st = read_server(&values, &options, err);
    return st == TUTTI_OK ? serve_one(&values, place->path, NULL, NULL, &options, child, err) : st;
}

/* Options that are about one model. */
static enum tutti_status check_several(const struct serve_values *values, struct tutti_error *err)
{
    static const char *const NONE[] = { NULL };
    static const char WHY[] = "is for one model; found several";
    const struct option *given = options_first_given(ADAPTER_OPTIONS, values,
                                                     offsetof(struct serve_values, session.adapters), NONE);
    if (!given)
        given = options_first_given(DRAFT_OPTIONS, values, offsetof(struct serve_values, session.draft),
                                    NONE);
    if (given)
        return refuse_option(given->name, WHY, err);
    if (values->server.model_id)
        return refuse_option("name", "is for one model; expected NAME=PATH for each of several", err);
    if (values->config)
        return refuse_option("config", WHY, err);
    if (values->session.model.tp > 1 || values->session.model.rank_table)
        return refuse_option(values->session.model.tp > 1 ? "tp" : "rank-table", WHY, err);
    if (values->session.engine.kv_spill_dir)
        return refuse_option("kv-spill", WHY, err);
    if (values->session.engine.kv_spill_host_bytes > 0)
        return refuse_option("kv-spill-host", WHY, err);
    if (values->apis.n > 0) { /* chats by polling have their state in one process */
        unsigned apis = 0;
        enum tutti_status st = read_apis(&values->apis, &apis, err);
        if (st == TUTTI_OK && (apis & SERVER_API_STEP))
            return refuse_option("api", "step is for one model; found several", err);
        return st;
    }
    return TUTTI_OK;
}

/* What the files of a model tell of it; zeros: they cannot be read, which is a warning, because they may come
 * later. max_context: that of the flags, or 0. */
static struct server_traits find_traits(const char *name, const char *path, int max_context)
{
    struct tutti_model_info info;
    struct tutti_error error = { 0 };
    if (model_inspect_info(path, &info, &error) != TUTTI_OK) {
        log_warn("model %s: %s; requests for it get 503 until it can be loaded", name, error.text);
        return (struct server_traits){ 0 };
    }
    bool is_limited = max_context > 0 && max_context < info.n_ctx;
    return (struct server_traits){ .abilities = server_abilities(&info),
                                   .max_context = is_limited ? max_context : info.n_ctx };
}

static enum tutti_status serve_several(const struct serve_values *values, const struct model_places *places,
                                       struct tutti_error *err)
{
    struct several several = { values, places };
    struct server_model list[MODEL_PLACES_MOST];
    struct server_models models = {
        .list = list,
        .n = places->n,
        .memory_bytes = values->models_memory,
        .kv_bytes = values->session.engine.kv_bytes > 0 ? values->session.engine.kv_bytes : DEFAULT_KV_BYTES,
        .idle_s = values->idle_unload_s,
    };
    struct server_options options;
    struct server *server = NULL;
    for (int i = 0; i < places->n; i++)
        list[i] = (struct server_model){ .name = places->list[i].name, .path = places->list[i].path };
    enum tutti_status st = check_several(values, err);
    if (st == TUTTI_OK)
        st = read_server(values, &options, err);
    if (st != TUTTI_OK)
        return st;
    set_address(&options);
    st = spawner_open(&models.spawner, serve_child, &several, err);
    if (st == TUTTI_OK)
        st = server_open(&server, &options, err);
    if (st == TUTTI_OK) {
        for (int i = 0; i < places->n; i++) {
            log_info("model %s: %s", list[i].name, list[i].path);
            list[i].traits = find_traits(list[i].name, list[i].path, values->session.engine.max_context);
        }
        st = server_run_models(server, &models, err);
    }
    server_close(server);
    spawner_close(models.spawner);
    return st;
}

static enum tutti_status serve_single(const struct serve_values *values, const char *path,
                                      struct tutti_error *err)
{
    struct server_options options;
    struct serving_config config = { 0 };
    tutti_ranks *ranks = NULL;
    bool is_done;
    if (values->models_memory > 0)
        return refuse_option("models-memory", "is for several models; found one", err);
    if (values->idle_unload_s > 0)
        return refuse_option("idle-unload", "is for several models; found one", err);
    enum tutti_status st = model_flags_join(&values->session.model, &values->session.adapters,
                                            &values->session.draft, path, &ranks, &is_done, err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = read_server(values, &options, err);
    if (st == TUTTI_OK && values->config)
        st = serving_config_read(&config, values->config, err);
    if (st == TUTTI_OK)
        st = serve_one(values, path, &config, ranks, &options, NULL, err);
    tutti_ranks_close(ranks);
    serving_config_clear(&config);
    return st;
}

static enum tutti_status run_serve(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct serve_values *values = v;
    struct model_places places;
    log_set_level(values->log_level);
    log_set_format(values->log_format);
    enum tutti_status st = model_places_read(&places, operands, err);
    if (st == TUTTI_OK)
        st = places.n > 0 ? serve_several(values, &places, err) : serve_single(values, operands[0], err);
    model_places_clear(&places);
    return st;
}

const struct command COMMAND_SERVE = {
    .name = "serve",
    .summary = "serve a model: the APIs of OpenAI and Anthropic, metrics and a chat page",
    .about = "Loads MODEL and answers HTTP requests until SIGTERM or Ctrl-C; then running requests "
             "complete, and a second signal stops at once. While MODEL is loading, requests get 503. "
             "When ready it prints \"listening on http://HOST:PORT\" on standard output.\n"
             "\n"
             "With several models (NAME=PATH for each, or a folder of models), each has a process of its own "
             "that is started when the first request names it. Requests wait while their model loads. A "
             "process that dies is started again. SIGHUP also replaces the processes of models whose files "
             "have changed, without interrupting answers.",
    .example = "tutti serve models/demo\n"
               "tutti serve chatglm3-6b.gguf --host 0.0.0.0 --api-key-file keys.txt --kv-memory 4G\n"
               "tutti serve chat=chatglm3-6b.gguf code=qwen2.5-coder --kv-memory 2G --models-memory 12G",
    .options = OPTION_SET(
        GROUPS, "MODEL | NAME=MODEL ... | FOLDER", 1, MODEL_PLACES_MOST,
        "expected MODEL, a Hugging Face folder or a GGUF file; './run serve' takes models/demo"),
    .n_models = MODEL_PLACES_MOST,
    .values_bytes = sizeof(struct serve_values),
    .run = run_serve,
};
