/* The cards of this machine, and their properties. */
#include "backend/cuda/cuda_state.h"
#include "kernels/cuda/texts.h"

#include <stdio.h>

/* The level of kernels for a card; 0: too old. Level 90 has instructions that later cards lack, in a PTX that CUDA 12.0 was
 * the first to read. */
static int level_of(int capability, int version)
{
    return capability == 90 && version >= 12000 ? 90 : capability >= 80 ? 80 : capability >= 75 ? 75 : 0;
}

/* An attribute that only reports show; 0: the driver does not say. */
static int attribute_of(const struct cuda_driver *d, int attribute, cuda_device device)
{
    int value = 0;
    return d->device_attribute(&value, attribute, device) == CUDA_OK && value > 0 ? value : 0;
}

static cuda_result read_card(const struct cuda_driver *d, int ordinal, struct cuda_card *card)
{
    size_t n_bytes = 0;
    int major = 0, minor = 0;
    struct tutti_device *facts = &card->facts;
    *card = (struct cuda_card){ .facts.driver = d->version };
    snprintf(facts->id, sizeof facts->id, "cuda:%d", ordinal);
    cuda_result result = d->device_get(&card->device, ordinal);
    if (result == CUDA_OK)
        result = d->device_name(facts->name, sizeof facts->name, card->device);
    if (result == CUDA_OK)
        result = d->device_memory(&n_bytes, card->device);
    if (result == CUDA_OK)
        result = d->device_attribute(&major, CUDA_LEVEL_MAJOR, card->device);
    if (result == CUDA_OK)
        result = d->device_attribute(&minor, CUDA_LEVEL_MINOR, card->device);
    if (result == CUDA_OK)
        result = d->device_attribute(&facts->n_multiprocessors, CUDA_MULTIPROCESSORS, card->device);
    if (result == CUDA_OK)
        result = d->device_attribute(&card->shared_bytes, CUDA_SHARED_BYTES_OPTIN, card->device);
    if (result != CUDA_OK)
        return result;
    facts->name[sizeof facts->name - 1] = '\0';
    facts->memory_bytes = n_bytes;
    facts->capability = 10 * major + minor;
    facts->kernel_level = level_of(facts->capability, d->version);
    facts->clock_mhz = attribute_of(d, CUDA_CLOCK_KHZ, card->device) / 1000;
    /* Memory transfers at both edges of its clock. */
    facts->memory_gbps = 2e3 * attribute_of(d, CUDA_MEMORY_CLOCK_KHZ, card->device) *
                         attribute_of(d, CUDA_MEMORY_BUS_BITS, card->device) / 8 / 1e9;
    return CUDA_OK;
}

enum tutti_status cuda_card_choose(const struct cuda_driver *d, int ordinal, struct cuda_card *best,
                                   struct tutti_error *err)
{
    struct cuda_card card = { 0 };
    int n = 0;
    cuda_result result = d->device_count(&n);
    if (result == CUDA_OK && n == 0)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device", "device cuda: the driver finds no card");
    if (result == CUDA_OK && ordinal >= n)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device",
                               "device cuda:%d: the driver finds %d card%s, whose numbers begin with 0",
                               ordinal, n, n > 1 ? "s" : "");
    *best = card;
    for (int i = 0; i < n && result == CUDA_OK; i++) {
        if (ordinal >= 0 && i != ordinal)
            continue;
        result = read_card(d, i, &card);
        bool is_better = card.facts.kernel_level > 0 && card.facts.memory_bytes > best->facts.memory_bytes;
        if (is_better || best->facts.memory_bytes == 0)
            *best = card;
    }
    if (result != CUDA_OK)
        return cuda_driver_error(d, result, "listing the cards", err);
    if (best->facts.kernel_level > 0)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_UNSUPPORTED, "device",
                           "device cuda: the card %s has compute capability %d.%d, expected 7.5 or higher",
                           best->facts.name, best->facts.capability / 10, best->facts.capability % 10);
}

/* Whether the driver says it. The calling thread has no context after it: operations enter theirs. */
static uint64_t free_bytes_of(const struct cuda_driver *d, cuda_context context)
{
    size_t free_bytes = 0, n_bytes = 0;
    bool is_known = d->context_set(context) == CUDA_OK && d->memory_info(&free_bytes, &n_bytes) == CUDA_OK;
    (void)d->context_set(NULL);
    return is_known ? free_bytes : 0;
}

void cuda_describe(const struct backend *be, struct tutti_device *out)
{
    const struct cuda_backend *cuda = (const struct cuda_backend *)be;
    struct cuda_state *s = cuda->state;
    *out = s->card.facts;
    out->free_bytes = free_bytes_of(cuda->driver, s->context);
    out->busy_seconds = (double)atomic_load(&s->busy_ns) * 1e-9;
    out->loading_seconds = (double)atomic_load(&s->loading_ns) * 1e-9;
}

enum tutti_status cuda_devices(struct tutti_device *out, int max, int *n, struct tutti_error *err)
{
    const struct cuda_driver *d = NULL;
    int n_cards = 0;
    enum tutti_status st = cuda_driver_open(&d, err);
    if (st != TUTTI_OK)
        return st;
    cuda_result result = d->device_count(&n_cards);
    for (int i = 0; i < n_cards && i < max && result == CUDA_OK; i++) {
        struct cuda_card card;
        cuda_context context = NULL;
        result = read_card(d, i, &card);
        if (result == CUDA_OK && d->context_retain(&context, card.device) == CUDA_OK) {
            card.facts.free_bytes = free_bytes_of(d, context);
            (void)d->context_release(card.device);
        }
        if (!cuda_text_has_any())
            card.facts.kernel_level = 0;
        out[i] = card.facts;
    }
    if (result != CUDA_OK)
        return cuda_driver_error(d, result, "listing the cards", err);
    *n = n_cards < max ? n_cards : max;
    return TUTTI_OK;
}
