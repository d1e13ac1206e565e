/* The server in front of the mock engine: mock_server [--NAME VALUE]... */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct server_options options;
    struct tutti_engine_options engine_options = { 0 };
    int apis = 0;
    server_options_init(&options);
    options.port = 0;
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
            { "--cors-origin", &options.cors_origin, NULL, NULL },
            { "--tls-cert", &options.tls_cert_file, NULL, NULL },
            { "--tls-key", &options.tls_key_file, NULL, NULL },
            { "--tls-client-ca", &options.tls_client_ca_file, NULL, NULL },
            { "--port", NULL, &options.port, NULL },
            { "--header-timeout", NULL, &options.header_timeout_s, NULL },
            { "--idle-timeout", NULL, &options.idle_timeout_s, NULL },
            { "--drain-timeout", NULL, &options.drain_timeout_s, NULL },
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
    struct tutti_error err;
    tutti_engine *engine = NULL;
    tutti_model *model = NULL;
    if (tutti_engine_open(&engine, model, &engine_options, &err) != TUTTI_OK)
        return 1;
    enum tutti_status st = server_run(engine, model, &options, &err);
    if (st != TUTTI_OK)
        fprintf(stderr, "%s\n", err.text);
    tutti_engine_close(engine);
    return st == TUTTI_OK ? 0 : 1;
}
