/* tutti serve: one model behind the HTTP API and the chat page. */
#include "base/limits.h"
#include "base/log.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/options/serving_config.h"
#include "cli/terminal/numbers.h"
#include "server/server.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct serve_values {
    const char *host, *unix_path, *name, *api_key_file, *cors_origin, *log_level, *log_format;
    const char *metrics_key, *metrics_listen, *tls_cert, *tls_key, *tls_client_ca;
    const char *config, *embedding_pooling;
    struct option_texts apis, allow_hosts;
    int64_t port, max_body, max_output, header_timeout, idle_timeout, drain_delay, drain_timeout,
        step_timeout;
    bool no_access_log, share_cache;
    int64_t tokens_per_minute, max_concurrent, max_connections, max_connections_per_address;
    double max_queue_time, ttft_target, itl_target;
    struct model_flags model;
    struct adapter_flags adapters;
    struct engine_flags engine;
    struct draft_flags draft;
};

static const char *const LOG_LEVELS[] = { "debug", "info", "warn", "error", NULL }; /* as in enum log_level */

static const char *const POOLINGS[] = { "mean", "last", NULL };

static const char *const LOG_FORMATS[] = { "text", "json", NULL }; /* as in enum log_format */

enum { MAX_SECONDS = 7 * 24 * 3600 };

#define VALUES struct serve_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, host, "host", "ADDRESS",
                "address to listen on; 0.0.0.0 means all addresses of the machine (default 127.0.0.1)"),
    INT_OPTION(VALUES, port, "port", "N", "port to listen on; 0 selects a free one; without it, 8080",
               .letter = 'p', .max = 65535),
    TEXT_OPTION(VALUES, unix_path, "unix", "PATH", "listen on a Unix socket instead"),
    TEXT_OPTION(VALUES, name, "name", "ID", "name of the model in the API"),
    TEXTS_OPTION(VALUES, apis, "api", "NAME",
                 "additional APIs besides OpenAI's: llm-serving, step or tgi, separated by commas"),
    TEXT_OPTION(
        VALUES, config, "config", "FILE",
        "read the settings of MindSpore's llm-serving from its YAML file, and enable its API; flags take "
        "precedence"),
    CHOICE_OPTION(
        VALUES, embedding_pooling, "embedding-pooling", "KIND", POOLINGS,
        "default pooling of embeddings: the mean of all tokens' hidden states, or that of the last token",
        .initial = "mean"),
    INT_OPTION(VALUES, step_timeout, "step-timeout", "SECONDS",
               "with --api step: cancel a chat if its client does not poll it for this long", .min = 1,
               .max = 86400, .initial = "60"),
    TEXT_OPTION(VALUES, api_key_file, "api-key-file", "FILE",
                "require an API key: FILE has one key per line, optionally followed by a name for the log "
                "and its own limits (docs/operations.md); SIGHUP rereads it"),
    FLAG_OPTION(VALUES, share_cache, "share-cache",
                "share one prefix cache between all keys: this saves memory and time if prompts have common "
                "prefixes, but lets each key find out, by cached_tokens and response times, how prompts of "
                "other keys begin; without it, only keys of one name share a cache"),
    TEXT_OPTION(VALUES, metrics_key, "metrics-key", "FILE",
                "require one of the keys in FILE for GET /metrics; FILE has the form of --api-key-file. With "
                "--api-key-file, /metrics is closed unless this or --metrics-listen is given. SIGHUP reads "
                "FILE again"),
    TEXT_OPTION(VALUES, metrics_listen, "metrics-listen", "ADDRESS",
                "serve GET /metrics only at this address, together with GET /health: HOST:PORT, PORT of "
                "127.0.0.1, or unix:PATH; HTTPS if the server has a certificate"),
    TEXT_OPTION(VALUES, tls_cert, "tls-cert", "FILE",
                "serve HTTPS with the certificate in FILE (PEM), followed by its chain of intermediate "
                "certificates; SIGHUP rereads it"),
    TEXT_OPTION(VALUES, tls_key, "tls-key", "FILE", "the private key of --tls-cert (PEM, no passphrase)"),
    TEXT_OPTION(VALUES, tls_client_ca, "tls-client-ca", "FILE",
                "require a client certificate signed by one of those in FILE (PEM)"),
    TEXT_OPTION(VALUES, cors_origin, "cors-origin", "ORIGIN",
                "allow web pages of this origin to use the API (CORS), * for any; without keys, pages of "
                "other origins are refused"),
    TEXTS_OPTION(
        VALUES, allow_hosts, "allow-host", "NAME",
        "additional name that the Host header of requests may contain: NAME, *.NAME or * for any. Without "
        "keys, only localhost, addresses, --host and, if other machines can connect, this machine's name "
        "are allowed: this keeps web pages out (docs/threat-model.md)"),
    SIZE_OPTION(VALUES, max_body, "max-body", "SIZE",
                "maximum size of a request (default: 4M, and 32 bytes for each token of the context)",
                .min = 1024, .max = 1 << 30),
    SIZE_OPTION(VALUES, max_output, "max-output", "SIZE",
                "text buffered for a client that does not read; beyond that its connection is closed",
                .min = 4096, .max = INFINITY, .initial = "1M"),
    INT_OPTION(
        VALUES, header_timeout, "header-timeout", "SECONDS",
        "time for a TLS handshake and for the head of a request to arrive; a body must bring 16 KiB per "
        "second in each period of this length",
        .min = 1, .max = MAX_SECONDS, .initial = "30"),
    INT_OPTION(VALUES, idle_timeout, "idle-timeout", "SECONDS", "time that a connection may be idle",
               .min = 1, .max = MAX_SECONDS, .initial = "120"),
    INT_OPTION(VALUES, drain_delay, "drain-delay", "SECONDS",
               "after SIGTERM, /health returns 503 for this long before requests are refused, so that a load "
               "balancer can send them elsewhere first",
               .max = 86400, .initial = "0"),
    INT_OPTION(VALUES, drain_timeout, "drain-timeout", "SECONDS",
               "time for running requests to end after SIGTERM (and --drain-delay)", .min = 1,
               .max = MAX_SECONDS, .initial = "30"),
    CHOICE_OPTION(VALUES, log_level, "log-level", "LEVEL", LOG_LEVELS, "minimum level of log lines",
                  .initial = "info"),
    CHOICE_OPTION(VALUES, log_format, "log-format", "FORMAT", LOG_FORMATS,
                  "log as text, or one JSON object per line", .initial = "text"),
    FLAG_OPTION(VALUES, no_access_log, "no-access-log", "do not log each request"),
    { .name = NULL },
};

static const struct option LIMIT_OPTIONS[] = {
    FLOAT_OPTION(VALUES, max_queue_time, "max-queue-time", "SECONDS",
                 "maximum time in the queue: a request that would wait longer gets 429 at once, and one that "
                 "has not started by then gets 503, both with Retry-After; 0: no limit",
                 .max = 86400, .initial = "30"),
    INT_OPTION(VALUES, tokens_per_minute, "tokens-per-minute", "N",
               "tokens of prompts and answers per minute, for each key without its own limit or, without "
               "keys, for each address; 0: no limit",
               .max = 1e12, .initial = "0"),
    INT_OPTION(VALUES, max_concurrent, "max-concurrent", "N",
               "answers of such a key or address that may run or wait at the same time; 0: no limit",
               .max = 1000000, .initial = "0"),
    INT_OPTION(VALUES, max_connections, "max-connections", "N",
               "maximum open connections; beyond that, of the address that has most, the connection that has "
               "completed no request for longest is closed; 0: no limit",
               .max = 1000000, .initial = "10000"),
    INT_OPTION(VALUES, max_connections_per_address, "max-connections-per-address", "N",
               "maximum open connections of one IPv4 address or IPv6 network of 64 bits (default 512; no "
               "limit for loopback addresses and Unix sockets); 0: no limit. Clients behind a reverse proxy "
               "share the proxy's address: X-Forwarded-For is not read",
               .max = 1000000),
    FLOAT_OPTION(
        VALUES, ttft_target, "ttft-target", "MS",
        "goodput in the metrics: count answers with a time to first token of at most MS milliseconds",
        .max = 86400000, .above_min = true),
    FLOAT_OPTION(VALUES, itl_target, "itl-target", "MS",
                 "goodput in the metrics: count answers with a mean time per output token of at most MS "
                 "milliseconds",
                 .max = 86400000, .above_min = true),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Server", OPTIONS, 0 },
    { "Limits", LIMIT_OPTIONS, 0 },
    { "Engine", ENGINE_OPTIONS, offsetof(VALUES, engine) },
    { "Draft model", DRAFT_OPTIONS, offsetof(VALUES, draft) },
    { "Model", MODEL_OPTIONS, offsetof(VALUES, model) },
    { "Adapters", ADAPTER_OPTIONS, offsetof(VALUES, adapters) },
    { .title = NULL },
};

static void set_log_level(const char *name)
{
    for (int i = 0; LOG_LEVELS[i]; i++)
        if (strcmp(LOG_LEVELS[i], name) == 0)
            log_set_level((enum log_level)i);
}

static struct server_options server_options(const struct serve_values *values)
{
    struct server_options options = { 0 };
    server_options_init(&options);
    if (values->host)
        options.host = values->host;
    if (values->port >= 0)
        options.port = (int)values->port;
    options.unix_path = values->unix_path;
    options.api_key_file = values->api_key_file;
    options.metrics_key_file = values->metrics_key;
    options.metrics_listen = values->metrics_listen;
    options.tls_cert_file = values->tls_cert;
    options.tls_key_file = values->tls_key;
    options.tls_client_ca_file = values->tls_client_ca;
    options.cors_origin = values->cors_origin;
    options.allow_hosts = values->allow_hosts.texts;
    options.n_allow_hosts = (size_t)values->allow_hosts.n;
    options.model_id = values->name;
    options.max_body_bytes = values->max_body > 0 ? (size_t)values->max_body
                                                  : 0; /* not given: depends on the context */
    options.max_output_bytes = (size_t)values->max_output;
    options.header_timeout_s = (int)values->header_timeout;
    options.idle_timeout_s = (int)values->idle_timeout;
    options.drain_delay_s = (int)values->drain_delay;
    options.drain_timeout_s = (int)values->drain_timeout;
    options.access_log = !values->no_access_log;
    options.shares_cache = values->share_cache;
    bool is_mean = strcmp(values->embedding_pooling, POOLINGS[0]) == 0;
    options.embedding = is_mean ? TUTTI_EMBEDDING_MEAN : TUTTI_EMBEDDING_LAST;
    options.step_timeout_s = (int)values->step_timeout;
    options.tokens_per_minute = values->tokens_per_minute;
    options.max_concurrent = (int)values->max_concurrent;
    options.max_connections = (int)values->max_connections;
    options.max_connections_per_address = (int)values->max_connections_per_address;
    options.ttft_target_ms = isnan(values->ttft_target) ? 0 : values->ttft_target;
    options.itl_target_ms = isnan(values->itl_target) ? 0 : values->itl_target;
    return options;
}

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

static enum tutti_status check_flags(const struct serve_values *values, struct tutti_error *err)
{
    const char *origin = values->cors_origin;
    if (values->unix_path && (values->host || values->port >= 0))
        return error_set(err, TUTTI_E_ARGUMENT, "--unix: takes the place of --%s, found both",
                         values->host ? "host" : "port");
    if (!values->tls_cert != !values->tls_key)
        return error_set(err, TUTTI_E_ARGUMENT, "--tls-%s: expected --tls-%s too",
                         values->tls_cert ? "cert" : "key", values->tls_cert ? "key" : "cert");
    if (values->tls_client_ca && !values->tls_cert)
        return error_set(err, TUTTI_E_ARGUMENT, "--tls-client-ca: expected --tls-cert and --tls-key too");
    if (origin && strcmp(origin, "*") != 0 && strcmp(origin, "null") != 0 && !strstr(origin, "://"))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--cors-origin: found '%s', expected * or an origin such as https://example.org",
                         origin);
    return TUTTI_OK;
}

/* Applies the file's settings, unless a flag is given. */
static void apply_config(const struct serving_config *config, const struct serve_values *values,
                         struct server_options *options, struct engine_flags *engine)
{
    options->apis |= SERVER_API_LLM_SERVING;
    if (!values->host && config->host[0])
        options->host = config->host;
    if (values->port < 0 && config->port >= 0)
        options->port = config->port;
    if (!values->name && config->model_name[0])
        options->model_id = config->model_name;
    if (engine->context < 0)
        engine->context = config->max_context;
    if (engine->max_seqs < 0)
        engine->max_seqs = config->max_seqs;
    if (config->unused.n_bytes > 0)
        log_warn("%s: without a meaning here: %s", values->config, config->unused.bytes);
}

/* Converts the file's KV pages to bytes of this model, and limits the context to the model's. */
static void fit_config(const struct serving_config *config, const tutti_model *model,
                       struct engine_flags *engine)
{
    struct tutti_model_info info;
    uint64_t n_bytes;
    tutti_model_info(model, &info);
    if (engine->kv_memory < 0 && config->n_kv_tokens > 0 &&
        !__builtin_mul_overflow((uint64_t)config->n_kv_tokens, info.kv_bytes_per_token, &n_bytes) &&
        n_bytes <= INT64_MAX)
        engine->kv_memory = (int64_t)n_bytes;
    if (config->max_context > info.n_ctx && engine->context == config->max_context)
        engine->context = info.n_ctx;
}

static void log_model(const tutti_model *model, tutti_engine *engine)
{
    struct tutti_model_info info;
    struct tutti_stats stats;
    char weights[NUMBER_SIZE_BYTES], kv[NUMBER_SIZE_BYTES];
    tutti_model_info(model, &info);
    tutti_engine_stats(engine, &stats);
    uint64_t n_tokens = stats.kv_pages_total * stats.kv_page_tokens;
    log_info("model %s: %s, %s of %s weights; %" PRIu64 " tokens of KV cache (%s), at most %d each",
             info.name, info.family, number_write_size(weights, info.weight_bytes), info.weight_type,
             n_tokens, number_write_size(kv, n_tokens * info.kv_bytes_per_token), stats.max_context);
    for (int i = 0; i < tutti_model_n_adapters(model); i++)
        log_info("adapter %s: requests use it by the model name MODEL:ADAPTER",
                 tutti_model_adapter_name(model, i));
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

/* NULL: none. */
static void log_draft(const tutti_model *draft, tutti_engine *engine)
{
    struct tutti_model_info info;
    struct tutti_stats stats;
    char weights[NUMBER_SIZE_BYTES], kv[NUMBER_SIZE_BYTES];
    if (!draft)
        return;
    tutti_model_info(draft, &info);
    tutti_engine_stats(engine, &stats);
    uint64_t kv_bytes = stats.kv_pages_total * stats.kv_page_tokens * info.kv_bytes_per_token;
    log_info("draft model %s: %s, %s of %s weights; as many tokens of KV cache (%s)", info.name, info.family,
             number_write_size(weights, info.weight_bytes), info.weight_type,
             number_write_size(kv, kv_bytes));
}

static enum tutti_status run_serve(const void *v, const char *const *operands, int n_operands,
                                   struct tutti_error *err)
{
    (void)n_operands;
    const struct serve_values *values = v;
    struct server_options options = server_options(values);
    struct engine_flags engine_flags = values->engine;
    engine_flags.max_queue_time = values->max_queue_time;
    struct serving_config config = { 0 };
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    struct server *server = NULL;
    tutti_ranks *ranks = NULL;
    struct failure failure = { 0 };
    bool is_done;
    set_log_level(values->log_level);
    log_set_format(strcmp(values->log_format, LOG_FORMATS[LOG_JSON]) == 0 ? LOG_JSON : LOG_TEXT);
    enum tutti_status st = model_flags_join(&values->model, &values->adapters, operands[0], &ranks, &is_done,
                                            err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = check_flags(values, err);
    if (st == TUTTI_OK)
        st = read_apis(&values->apis, &options.apis, err);
    if (st == TUTTI_OK && values->config)
        st = serving_config_read(&config, values->config, err);
    if (st == TUTTI_OK && values->config)
        apply_config(&config, values, &options, &engine_flags);
    options.max_requests = engine_flags_max_seqs(&engine_flags) + (int)engine_flags.max_queue;
    if (st == TUTTI_OK)
        st = server_open(&server, &options, err);
    struct model_flags model_flags = values->model;
    model_flags.context = engine_flags.context;
    if (st == TUTTI_OK)
        st = model_flags_open(&model_flags, ranks, operands[0], &model, err);
    if (st == TUTTI_OK)
        st = adapter_flags_load(&values->adapters, model, err);
    if (st == TUTTI_OK && values->config)
        fit_config(&config, model, &engine_flags);
    engine_flags.failed = on_failure;
    engine_flags.user = &failure;
    if (st == TUTTI_OK)
        st = draft_flags_open(&values->draft, &model_flags, &engine_flags.draft, err);
    engine_flags.draft_tokens = values->draft.tokens;
    if (st == TUTTI_OK)
        st = engine_flags_open(&engine_flags, 0, model, &engine, err);
    if (st == TUTTI_OK) {
        log_model(model, engine);
        log_draft(engine_flags.draft, engine);
        st = server_run(server, engine, model, err);
    }
    server_close(server);
    tutti_engine_close(engine);
    if (failure.error.status != TUTTI_OK) {
        st = TUTTI_E_IO;
        if (err)
            *err = failure.error;
    }
    tutti_model_close(engine_flags.draft);
    tutti_model_close(model);
    tutti_ranks_close(ranks);
    serving_config_clear(&config);
    return st;
}

const struct command COMMAND_SERVE = {
    .name = "serve",
    .summary = "serve a model: the OpenAI API, metrics and a chat page",
    .about = "Loads MODEL and answers HTTP requests until SIGTERM or Ctrl-C; then running requests "
             "complete, and a second signal stops at once. While MODEL is loading, requests get 503. "
             "When ready it prints \"listening on http://HOST:PORT\" on standard output.",
    .example = "tutti serve models/demo\n"
               "tutti serve chatglm3-6b.gguf --host 0.0.0.0 --api-key-file keys.txt --kv-memory 4G",
    .options = OPTION_SET(
        GROUPS, "MODEL", 1, 1,
        "expected MODEL, a Hugging Face folder or a GGUF file; './run serve' takes models/demo"),
    .values_bytes = sizeof(struct serve_values),
    .run = run_serve,
};
