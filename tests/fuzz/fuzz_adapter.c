/* Any bytes as an adapter's folder: an error, or updates that fit the model's matrices.
 * Input: adapter_config.json, a zero byte, adapter_model.safetensors. */
#include "model/adapters/adapter.h"
#include "model/description/config_keys.h"
#include "scratch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void describe(struct model_desc *desc, const struct family *family, const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    struct tutti_error err = { 0 };
    struct config c = { .root = root, .file = path, .prefix = "", .err = &err };
    desc->bos_id = desc->pad_id = -1;
    const struct config_key *const lists[] = { CONFIG_KEYS_COMMON, family->keys, NULL };
    family->describe(desc, &c, false);
    desc->n_usable_vocab = desc->n_vocab;
    if (config_end(&c, lists, family->name) != TUTTI_OK || model_desc_check(desc, path, &err) != TUTTI_OK)
        abort();
    json_decref(root);
}

static void check_update(const struct model_desc *desc, const struct adapter_update *u)
{
    assert(u->slot >= 0 && u->slot < SLOT_COUNT && slot_info(u->slot)->can_adapt && u->layer >= 0 &&
           u->layer < desc->n_layers);
    struct slot_shape shape = slot_shape(desc, u->slot, u->layer);
    assert(slot_is_in(desc, u->slot, u->layer) || u->slot == SLOT_OUTPUT);
    assert(u->n_in == shape.n_in && u->out_begin >= 0 && u->n_out > 0 &&
           u->out_begin <= shape.n_out - u->n_out && u->rank > 0);
    float sum = 0;
    for (size_t i = 0; i < (size_t)u->rank * (size_t)u->n_in; i++)
        sum += u->a[i];
    for (size_t i = 0; i < (size_t)u->rank * (size_t)u->n_out; i++)
        sum += u->b[i]; /* the sanitizer watches */
    assert(sum == sum || sum != sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static struct model_desc desc;
    struct adapter_file file = { 0 };
    struct tutti_error err = { 0 };
    const uint8_t *zero = n_bytes > 0 ? memchr(bytes, 0, n_bytes) : NULL;
    if (!zero)
        return 0;
    if (desc.n_layers == 0)
        describe(&desc, &FAMILY_LLAMA, FUZZ_FIXTURES "/llama-tiny/config.json");
    scratch_write("adapter_config.json", bytes, (size_t)(zero - bytes));
    scratch_write("adapter_model.safetensors", zero + 1, n_bytes - (size_t)(zero + 1 - bytes));
    if (adapter_file_open(&file, scratch_folder(), &desc, &FAMILY_LLAMA, false, &err) != TUTTI_OK)
        assert(err.text[0] != '\0');
    else
        for (int i = 0; i < file.n; i++)
            check_update(&desc, &file.updates[i]);
    adapter_file_clear(&file);
    return 0;
}
