/* Any text as config.json: an error, or a description within its ranges. */
#include "model/description/config_keys.h"
#include "model/description/family.h"

#include <assert.h>
#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void describe(const struct family *family, const json_t *root, bool is_gguf)
{
    struct tutti_error err = { 0 };
    struct model_desc desc = { .n_kinds = 1, .bos_id = -1, .pad_id = -1 };
    char prefix[32] = "";
    if (is_gguf) {
        strcpy(prefix, family->gguf_architecture);
        strcat(prefix, ".");
    }
    struct config c = { .root = root, .file = "fuzz", .prefix = prefix, .is_flat = is_gguf, .err = &err };
    const struct config_key *const lists[] = { is_gguf ? CONFIG_KEYS_GGUF : CONFIG_KEYS_COMMON,
                                               is_gguf ? family->gguf_keys : family->keys, NULL };
    c.is_quiet = true;
    family->describe(&desc, &c, is_gguf);
    if (config_end(&c, lists, family->name) != TUTTI_OK) {
        assert(err.text[0] != '\0');
        return;
    }
    if (desc.n_vocab == 0)
        desc.n_vocab = 1;
    desc.n_usable_vocab = desc.n_vocab;
    if (model_desc_check(&desc, "fuzz", &err) != TUTTI_OK)
        return;
    assert(desc.n_layers > 0 && desc.n_kinds > 0 && desc.n_kinds <= MAX_LAYER_KINDS);
    for (int i = 0; i < desc.n_layers; i++)
        assert(desc.kind_of[i] < desc.n_kinds);
    for (int i = 0; i < desc.n_kinds; i++) {
        const struct attn_desc *a = &desc.kinds[i].attn;
        float freqs[2048];
        assert(a->head_dim > 0 && a->n_heads % a->n_kv_heads == 0);
        if (a->rotary_dim > 4096)
            return;
        model_rope_freqs(a, freqs);
        for (int j = 0; j < a->rotary_dim / 2; j++)
            assert(isfinite(freqs[j]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    json_t *root = json_loadb((const char *)bytes, n_bytes, JSON_ALLOW_NUL, NULL);
    if (json_is_object(root)) {
        for (int i = 0; FAMILIES[i]; i++) {
            FAMILIES[i]->is_mine(root);
            describe(FAMILIES[i], root, false);
            describe(FAMILIES[i], root, true);
        }
    }
    json_decref(root);
    return 0;
}
