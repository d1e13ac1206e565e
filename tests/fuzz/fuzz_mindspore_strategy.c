/* Any bytes as a strategy file of MindSpore: an error that says what is wrong, or layouts whose parts lie within their tensors.
 * The first byte chooses the kind: below 128 protocol buffers, else JSON. */
#include "checkpoint/mindspore/mindspore_strategy.h"
#include "scratch.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { PROTOBUF, JSON, N_KINDS };
static const char *const FILES[N_KINDS] = { "ckpt_strategy_rank_0.ckpt", "ckpt_strategy_rank_0.json" };

static void check_layout(const struct strategy *s, const struct strategy_layout *layout)
{
    int n_devices = strategy_n_devices(layout);
    assert(n_devices >= 1 && layout->n_dims >= 0 && layout->n_dims <= LIMIT_TENSOR_DIMS);
    assert(strategy_find(s, layout->stage, layout->name));
    for (int device = 0; device < n_devices && device < 64; device++) {
        int64_t part[LIMIT_TENSOR_DIMS], n_parts[LIMIT_TENSOR_DIMS];
        strategy_part(layout, device, part, n_parts);
        for (int i = 0; i < layout->n_dims; i++)
            assert(part[i] >= 0 && part[i] < n_parts[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct strategy strategy = { 0 };
    struct tutti_error err = { 0 };
    if (n_bytes == 0)
        return 0;
    const char *name = FILES[bytes[0] < 128 ? PROTOBUF : JSON];
    scratch_write(name, bytes + 1, n_bytes - 1);
    if (strategy_read_folder(&strategy, scratch_folder(), &err) != TUTTI_OK)
        assert(err.text[0] != '\0');
    for (size_t i = 0; i < strategy.n && err.text[0] == '\0'; i++)
        check_layout(&strategy, &strategy.layouts[i]);
    strategy_clear(&strategy);
    scratch_remove(name);
    return 0;
}
