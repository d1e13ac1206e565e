/* Any bytes as the YAML configuration of an llm-serving: an error, or settings within their ranges. */
#include "cli/options/serving_config.h"
#include "scratch.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct serving_config config;
    struct tutti_error err = { 0 };
    if (serving_config_read(&config, scratch_write("config.yaml", bytes, n_bytes), &err) != TUTTI_OK) {
        assert(err.text[0] != '\0');
    } else {
        assert(config.port >= -1 && config.port <= 65535);
        assert(config.n_kv_tokens >= 0);
        assert(config.max_context >= 0);
        assert(config.max_seqs >= 0);
    }
    serving_config_clear(&config);
    return 0;
}
