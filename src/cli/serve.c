/* tutti serve: one model behind the HTTP API and the chat page. */
#include "base/limits.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/numbers.h"
#include "server/server.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct serve_values {
    const char *host, *unix_path, *name, *api_key_file, *cors_origin, *log_level;
    const char *tls_cert, *tls_key, *tls_client_ca;
    int64_t port, max_body, max_output, header_timeout, idle_timeout, drain_timeout;
    bool no_access_log;
    struct model_flags model;
    struct adapter_flags adapters;
    struct engine_flags engine;
};

static const char *const LOG_LEVELS[] = { "debug", "info", "warn", "error", NULL }; /* as in enum log_level */

enum { MAX_SECONDS = 7 * 24 * 3600 };

#define VALUES struct serve_values
static const struct option OPTIONS[] = {
    { .name = "host",
      TEXT_IN(VALUES, host),
      .value = "ADDRESS",
      .initial = "127.0.0.1",
      .help = "address to listen on; 0.0.0.0 is every one of the machine" },
    { .name = "port",
      .letter = 'p',
      INT_IN(VALUES, port),
      .value = "N",
      .max = 65535,
      .initial = "8080",
      .help = "0 takes a free one" },
    { .name = "unix",
      TEXT_IN(VALUES, unix_path),
      .value = "PATH",
      .help = "listen on a Unix socket instead" },
    { .name = "name", TEXT_IN(VALUES, name), .value = "ID", .help = "how requests call the model" },
    { .name = "api-key-file",
      TEXT_IN(VALUES, api_key_file),
      .value = "FILE",
      .help = "answer those alone who send one of the keys in FILE, one a line" },
    { .name = "tls-cert",
      TEXT_IN(VALUES, tls_cert),
      .value = "FILE",
      .help = "speak HTTPS with the certificate in FILE (PEM), those that vouch for it behind it; SIGHUP "
              "reads it anew" },
    { .name = "tls-key",
      TEXT_IN(VALUES, tls_key),
      .value = "FILE",
      .help = "the private key of --tls-cert (PEM, no passphrase)" },
    { .name = "tls-client-ca",
      TEXT_IN(VALUES, tls_client_ca),
      .value = "FILE",
      .help = "answer those alone who show a certificate that one in FILE (PEM) has signed" },
    { .name = "cors-origin",
      TEXT_IN(VALUES, cors_origin),
      .value = "ORIGIN",
      .help = "let pages of this origin use the API; * allows all" },
    { .name = "max-body",
      SIZE_IN(VALUES, max_body),
      .value = "SIZE",
      .min = 1024,
      .max = INFINITY,
      .initial = "16M",
      .help = "largest request" },
    { .name = "max-output",
      SIZE_IN(VALUES, max_output),
      .value = "SIZE",
      .min = 4096,
      .max = INFINITY,
      .initial = "1M",
      .help = "text kept for a reader that does not read; beyond that it is dropped" },
    { .name = "header-timeout",
      INT_IN(VALUES, header_timeout),
      .value = "SECONDS",
      .min = 1,
      .max = MAX_SECONDS,
      .initial = "30",
      .help = "time for a request to arrive whole" },
    { .name = "idle-timeout",
      INT_IN(VALUES, idle_timeout),
      .value = "SECONDS",
      .min = 1,
      .max = MAX_SECONDS,
      .initial = "120",
      .help = "time that a connection may rest" },
    { .name = "drain-timeout",
      INT_IN(VALUES, drain_timeout),
      .value = "SECONDS",
      .min = 1,
      .max = MAX_SECONDS,
      .initial = "30",
      .help = "time for running requests to end after SIGTERM" },
    { .name = "log-level",
      CHOICE_IN(VALUES, log_level),
      .value = "LEVEL",
      .choices = LOG_LEVELS,
      .initial = "info",
      .help = "least important lines that are written" },
    { .name = "no-access-log", FLAG_IN(VALUES, no_access_log), .help = "no line for each request" },
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Server", OPTIONS, 0 },
    { "Engine", ENGINE_OPTIONS, offsetof(VALUES, engine) },
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
    options.host = values->host;
    options.port = (int)values->port;
    options.unix_path = values->unix_path;
    options.api_key_file = values->api_key_file;
    options.tls_cert_file = values->tls_cert;
    options.tls_key_file = values->tls_key;
    options.tls_client_ca_file = values->tls_client_ca;
    options.cors_origin = values->cors_origin;
    options.model_id = values->name;
    options.max_body_bytes = (size_t)values->max_body;
    options.max_output_bytes = (size_t)values->max_output;
    options.header_timeout_s = (int)values->header_timeout;
    options.idle_timeout_s = (int)values->idle_timeout;
    options.drain_timeout_s = (int)values->drain_timeout;
    options.access_log = !values->no_access_log;
    return options;
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
        log_info("adapter %s: requests for a model of this name behind ':' use it",
                 tutti_model_adapter_name(model, i));
}

static enum tutti_status run(const void *v, const char *const *operands, int n_operands,
                             struct tutti_error *err)
{
    (void)n_operands;
    const struct serve_values *values = v;
    struct server_options options = server_options(values);
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    set_log_level(values->log_level);
    enum tutti_status st = model_flags_open(&values->model, operands[0], &model, err);
    if (st == TUTTI_OK)
        st = adapter_flags_load(&values->adapters, model, err);
    if (st == TUTTI_OK)
        st = engine_flags_open(&values->engine, 0, model, &engine, err);
    if (st == TUTTI_OK) {
        log_model(model, engine);
        st = server_run(engine, model, &options, err);
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
    return st;
}

const struct command COMMAND_SERVE = {
    .name = "serve",
    .summary = "serve a model: the OpenAI API, metrics and a chat page",
    .about =
        "Loads MODEL and answers HTTP requests until SIGTERM or Ctrl-C; then running requests end, and a "
        "second "
        "signal stops at once. When ready it prints \"listening on http://HOST:PORT\" on standard output.",
    .example = "tutti serve models/demo\n"
               "tutti serve chatglm3-6b.gguf --host 0.0.0.0 --api-key-file keys.txt --kv-memory 4G",
    .options = OPTION_SET(
        GROUPS, "MODEL", 1, 1,
        "expected MODEL, a Hugging Face folder or a GGUF file; './run serve' takes models/demo"),
    .values_bytes = sizeof(struct serve_values),
    .run = run,
};
