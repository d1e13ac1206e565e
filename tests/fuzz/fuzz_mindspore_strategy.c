/* Any bytes as a strategy file of MindSpore: an error that says what is wrong, or layouts whose parts lie within their tensors.
 * The first byte chooses the kind: below 128 protocol buffers, else JSON. */
#include "checkpoint/mindspore_strategy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { PROTOBUF, JSON, N_KINDS };
static const char *const FILES[N_KINDS] = { "ckpt_strategy_rank_0.ckpt", "ckpt_strategy_rank_0.json" };

static char folder[64]; /* of this process */

static void path_of(char *path, size_t size, int kind)
{
    snprintf(path, size, "%s/%s", folder, FILES[kind]);
}

static void remove_folder(void)
{
    char path[128];
    for (int kind = 0; kind < N_KINDS; kind++) {
        path_of(path, sizeof path, kind);
        unlink(path);
    }
    rmdir(folder);
}

/* In memory where the machine has such a place. */
static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/tutti-fuzz-strategy-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
}

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
    char path[128];
    if (n_bytes == 0)
        return 0;
    if (!folder[0])
        make_folder();
    path_of(path, sizeof path, bytes[0] < 128 ? PROTOBUF : JSON);
    FILE *file = fopen(path, "wb");
    assert(file);
    assert(n_bytes == 1 || fwrite(bytes + 1, 1, n_bytes - 1, file) == n_bytes - 1);
    assert(fclose(file) == 0);
    if (strategy_read_folder(&strategy, folder, &err) != TUTTI_OK)
        assert(err.text[0] != '\0');
    for (size_t i = 0; i < strategy.n && err.text[0] == '\0'; i++)
        check_layout(&strategy, &strategy.layouts[i]);
    strategy_clear(&strategy);
    unlink(path);
    return 0;
}
