/* Any bytes as MindFormers' configuration, YAML or (after a first byte of 128 and more) config.json: an error, or a configuration
 * that families can read. */
#include "checkpoint/mindspore/mindformers.h"
#include "model/description/config_keys.h"
#include "model/description/family.h"
#include "scratch.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* What a family makes of it. */
static void describe(const json_t *config)
{
    for (int i = 0; FAMILIES[i]; i++) {
        struct tutti_error err = { 0 };
        struct model_desc desc = { .bos_id = -1, .pad_id = -1 };
        struct config c = { .root = config, .file = "fuzz", .prefix = "", .err = &err };
        if (!FAMILIES[i]->is_mine(config))
            continue;
        const struct config_key *const lists[] = { CONFIG_KEYS_COMMON, CONFIG_KEYS_MINDFORMERS,
                                                   FAMILIES[i]->keys, NULL };
        c.is_quiet = true;
        FAMILIES[i]->describe(&desc, &c, false);
        enum tutti_status st = config_end(&c, lists, FAMILIES[i]->name);
        assert(st == TUTTI_OK || err.text[0] != '\0');
        (void)st;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct tutti_error err = { 0 };
    json_t *config = NULL;
    enum tutti_status st = TUTTI_OK;
    if (n_bytes == 0)
        return 0;
    if (bytes[0] < 128)
        st = mindformers_read(&config, scratch_write("config.yaml", bytes + 1, n_bytes - 1), &err);
    else if ((config = json_loadb((const char *)bytes + 1, n_bytes - 1, JSON_ALLOW_NUL, NULL)) &&
             json_is_object(config))
        st = mindformers_translate(config, "fuzz", &err);
    assert(st == TUTTI_OK || err.text[0] != '\0');
    if (st == TUTTI_OK && json_is_object(config))
        describe(config);
    json_decref(config);
    return 0;
}
