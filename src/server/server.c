#include "server/server.h"

#include "base/limits.h"

void server_options_init(struct server_options *options)
{
    *options = (struct server_options){
        .host = "127.0.0.1",
        .port = 8080,
        .max_body_bytes = LIMIT_BODY_BYTES,
        .max_output_bytes = 1024 * 1024,
        .header_timeout_s = 30,
        .idle_timeout_s = 120,
        .drain_timeout_s = 30,
        .access_log = true,
    };
}
