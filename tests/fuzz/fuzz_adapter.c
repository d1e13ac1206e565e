/* Any bytes as an adapter's folder: an error, or changes that fit the model's weights.
 * Input: adapter_config.json, a zero byte, adapter_model.safetensors; or "!", the config.json of ChatGLM's
 * P-Tuning, a zero byte, model.safetensors. */
#include "model/adapters/adapter.h"
#include "scratch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void describe(struct model_desc *desc, const struct family **family, const char *path)
{
    struct checkpoint *ck;
    struct tutti_error err = { 0 };
    if (checkpoint_open(&ck, path, &err) != TUTTI_OK || model_desc_read(desc, family, ck, &err) != TUTTI_OK)
        abort();
    checkpoint_close(ck);
}

/* The sanitizer watches. */
static void read_floats(const float *x, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    assert(sum == sum || sum != sum);
}

static void read_bytes(const uint8_t *x, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    assert(sum < 256 * n + 1);
}

static struct slot_shape check_place(const struct model_desc *desc, enum weight_slot slot, int layer,
                                     int out_begin, int n_out)
{
    assert(slot >= 0 && slot < SLOT_COUNT && layer >= 0 && layer < desc->n_layers);
    assert(slot_is_in(desc, slot, layer) || slot == SLOT_OUTPUT);
    struct slot_shape shape = slot_shape(desc, slot, layer);
    assert(out_begin >= 0 && n_out > 0 && out_begin <= shape.n_out - n_out);
    return shape;
}

static void check_update(const struct model_desc *desc, const struct adapter_update *u)
{
    struct slot_shape shape = check_place(desc, u->slot, u->layer, u->out_begin, u->n_out);
    assert(slot_info(u->slot)->can_adapt && u->n_in == shape.n_in && u->rank > 0);
    read_floats(u->a, (size_t)u->rank * (size_t)u->n_in);
    read_floats(u->b, (size_t)u->rank * (size_t)u->n_out);
    if (u->magnitudes)
        read_floats(u->magnitudes, (size_t)u->n_out);
}

static void check_module(const struct model_desc *desc, const struct adapter_module *m)
{
    struct slot_shape shape = check_place(desc, m->slot, m->layer, m->out_begin, m->n_out);
    size_t row_bytes = 0;
    assert(m->n_in == shape.n_in && dtype_bytes(m->dtype, m->n_in, &row_bytes));
    if (m->rows)
        read_bytes(m->rows, (size_t)m->n_out * row_bytes);
    if (m->bias)
        read_floats(m->bias, (size_t)m->n_in);
}

static void check_tokens(const struct model_desc *desc, const struct adapter_tokens *tokens)
{
    for (int i = 0; i < tokens->n; i++)
        assert(tokens->ids[i] >= 0 && tokens->ids[i] < desc->n_vocab &&
               (i == 0 || tokens->ids[i] > tokens->ids[i - 1]));
    read_floats(tokens->rows, (size_t)tokens->n * (size_t)desc->d_model);
}

static void check_file(const struct model_desc *desc, const struct adapter_file *file)
{
    const struct attn_desc *a = &desc->kinds[0].attn;
    for (int i = 0; i < file->n; i++)
        check_update(desc, &file->updates[i]);
    for (int i = 0; i < file->n_biases; i++) {
        const struct adapter_bias *b = &file->biases[i];
        check_place(desc, b->slot, b->layer, b->out_begin, b->n_out);
        read_floats(b->values, (size_t)b->n_out);
    }
    for (int i = 0; i < file->n_modules; i++)
        check_module(desc, &file->modules[i]);
    check_tokens(desc, &file->tokens);
    check_tokens(desc, &file->output_tokens);
    size_t rank = (size_t)file->embedding.rank, width = (size_t)desc->d_model, n = (size_t)file->virtual.n;
    read_floats(file->embedding.a, rank * (size_t)desc->n_vocab);
    read_floats(file->embedding.b, rank * width);
    assert(n == 0 || file->virtual.rows || file->virtual.keys);
    if (file->virtual.rows)
        read_floats(file->virtual.rows, n * width);
    if (file->virtual.keys)
        read_floats(file->virtual.keys,
                    (size_t)desc->n_layers * n * 2 * (size_t)(a->n_kv_heads * a->head_dim));
}

/* Writes the two files of a kind, and removes those of the other. */
static void write_folder(bool is_chatglm, const uint8_t *bytes, size_t n_config, size_t n_bytes)
{
    scratch_remove(is_chatglm ? "adapter_config.json" : "config.json");
    scratch_remove(is_chatglm ? "adapter_model.safetensors" : "model.safetensors");
    scratch_write(is_chatglm ? "config.json" : "adapter_config.json", bytes, n_config);
    scratch_write(is_chatglm ? "model.safetensors" : "adapter_model.safetensors", bytes + n_config + 1,
                  n_bytes - n_config - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static struct model_desc descs[2];
    static const struct family *families[2];
    struct adapter_file file = { 0 };
    struct tutti_error err = { 0 };
    bool is_chatglm = n_bytes > 0 && bytes[0] == '!';
    bytes += is_chatglm;
    n_bytes -= is_chatglm;
    const uint8_t *zero = n_bytes > 0 ? memchr(bytes, 0, n_bytes) : NULL;
    if (!zero)
        return 0;
    if (descs[0].n_layers == 0) {
        describe(&descs[0], &families[0], FUZZ_FIXTURES "/llama-tiny");
        describe(&descs[1], &families[1], FUZZ_FIXTURES "/chatglm3-tiny");
    }
    const struct model_desc *desc = &descs[is_chatglm];
    write_folder(is_chatglm, bytes, (size_t)(zero - bytes), n_bytes);
    if (adapter_file_open(&file, scratch_folder(), desc, families[is_chatglm], false, &err) != TUTTI_OK)
        assert(err.text[0] != '\0');
    else
        check_file(desc, &file);
    adapter_file_clear(&file);
    return 0;
}
