/* The server in front of the mock engine: mock_server [--NAME VALUE]...
 * --loads-while PATH: the "model" is being loaded as long as there is such a file. */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct server_options options = {
        .host = "127.0.0.1",
        .max_output_bytes = 1024 * 1024,
        .max_connections = 10000,
        .max_connections_per_address = -1,
        .embedding = TUTTI_EMBEDDING_MEAN,
        .header_timeout_s = 30,
        .idle_timeout_s = 120,
        .drain_timeout_s = 30,
        .step_timeout_s = 60,
        .unix_mode = 0660,
    };
    struct tutti_engine_options engine_options = { 0 };
    const char *loading_path = NULL, *allow_host = NULL;
    int apis = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        const struct {
            const char *name;
            const char **text;
            int *number;
            size_t *size;
        } known[] = {
            { "--host", &options.host, NULL, NULL },
            { "--unix", &options.unix_path, NULL, NULL },
            { "--api-key-file", &options.api_key_file, NULL, NULL },
            { "--allow-host", &allow_host, NULL, NULL },
            { "--metrics-key", &options.metrics_key_file, NULL, NULL },
            { "--metrics-listen", &options.metrics_listen, NULL, NULL },
            { "--cors-origin", &options.cors_origin, NULL, NULL },
            { "--tls-cert", &options.tls_cert_file, NULL, NULL },
            { "--tls-key", &options.tls_key_file, NULL, NULL },
            { "--tls-client-ca", &options.tls_client_ca_file, NULL, NULL },
            { "--loads-while", &loading_path, NULL, NULL },
            { "--port", NULL, &options.port, NULL },
            { "--header-timeout", NULL, &options.header_timeout_s, NULL },
            { "--idle-timeout", NULL, &options.idle_timeout_s, NULL },
            { "--drain-delay", NULL, &options.drain_delay_s, NULL },
            { "--drain-timeout", NULL, &options.drain_timeout_s, NULL },
            { "--max-concurrent", NULL, &options.max_concurrent, NULL },
            { "--max-connections", NULL, &options.max_connections, NULL },
            { "--max-connections-per-address", NULL, &options.max_connections_per_address, NULL },
            { "--step-timeout", NULL, &options.step_timeout_s, NULL },
            { "--apis", NULL, &apis, NULL }, /* enum server_api */
            { "--max-queue", NULL, &engine_options.max_queue, NULL },
            { "--max-body", NULL, NULL, &options.max_body_bytes },
            { "--max-output", NULL, NULL, &options.max_output_bytes },
        };
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            if (strcmp(argv[i], known[k].name))
                continue;
            found = true;
            if (known[k].text)
                *known[k].text = value;
            if (known[k].number)
                *known[k].number = atoi(value);
            if (known[k].size)
                *known[k].size = (size_t)strtoull(value, NULL, 10);
        }
        if (!found) {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    options.apis = (unsigned)apis;
    options.allow_hosts = &allow_host;
    options.n_allow_hosts = allow_host != NULL;
    struct tutti_error err;
    tutti_engine *engine = NULL;
    tutti_model *model = NULL;
    struct server *server = NULL;
    enum tutti_status st = server_open(&server, &options, &err);
    while (st == TUTTI_OK && loading_path && access(loading_path, F_OK) == 0)
        usleep(5000);
    if (st == TUTTI_OK)
        st = tutti_engine_open(&engine, model, &engine_options, &err);
    if (st == TUTTI_OK)
        st = server_run(server, engine, model, &err);
    server_close(server);
    if (st != TUTTI_OK)
        fprintf(stderr, "%s\n", err.text);
    tutti_engine_close(engine);
    return st == TUTTI_OK ? 0 : 1;
}
