/* What all backends expect of the shapes of attention. */
#include "backend/backend.h"
#include "kernels/kernels.h"

static enum tutti_status check_shape(const struct attention_shape *a, struct tutti_error *err)
{
    if (a->n_heads < 1 || a->n_kv_heads < 1 || a->n_heads % a->n_kv_heads != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "attention: %d heads, %d KV heads, expected heads a multiple of KV heads",
                         a->n_heads, a->n_kv_heads);
    if (a->head_dim < 8 || a->head_dim % 8 != 0 || a->head_dim > ATTENTION_MAX_DIM)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "attention: heads of %d dimensions, expected a multiple of 8 up to %d", a->head_dim,
                         ATTENTION_MAX_DIM);
    if (a->rotary_dim < 0 || a->rotary_dim % 2 != 0 || a->rotary_dim > a->head_dim)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "attention: %d rotary dimensions, expected an even number up to %d", a->rotary_dim,
                         a->head_dim);
    if (a->rope == ROPE_2D && a->rotary_dim % 4 != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "attention: %d rotary dimensions for two positions, expected a multiple of 4",
                         a->rotary_dim);
    bool is_latent = a->n_latent != 0;
    if (is_latent && (a->n_latent < 8 || a->n_latent % 8 != 0 || a->n_kv_heads != 1 ||
                      a->head_dim != a->n_latent + a->rotary_dim || a->rotary_dim == 0 ||
                      (a->rope != ROPE_INTERLEAVED && a->rope != ROPE_HALF)))
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "latent attention: latents of %d and %d rotary dimensions, %d KV heads of %d, expected "
            "latents of a multiple of 8, and one KV head of both parts",
            a->n_latent, a->rotary_dim, a->n_kv_heads, a->head_dim);
    if (a->window < 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "attention: a window of %d positions", a->window);
    return TUTTI_OK;
}

enum tutti_status backend_check_attention(const struct backend_options *options, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (options->n_layers < 1 || options->n_kinds < 1 || options->n_kinds > UINT8_MAX)
        return error_set(err, TUTTI_E_UNSUPPORTED, "attention: %d layers of %d kinds, expected 1 to %d kinds",
                         options->n_layers, options->n_kinds, UINT8_MAX);
    for (int i = 0; i < options->n_kinds && st == TUTTI_OK; i++)
        st = check_shape(&options->attention[i], err);
    for (int i = 0; options->kinds && i < options->n_layers && st == TUTTI_OK; i++)
        if (options->kinds[i] >= options->n_kinds)
            st = error_set(err, TUTTI_E_UNSUPPORTED, "attention: layer %d is of kind %d, expected 0 to %d", i,
                           options->kinds[i], options->n_kinds - 1);
    return st;
}
