#include "checkpoint/tensor_file.h"

#include "checkpoint/gguf/gguf.h"
#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/mindspore/mindspore_ranks.h"
#include "checkpoint/pytorch/pytorch.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum format {
    FORMAT_SAFETENSORS,
    FORMAT_GGUF,
    FORMAT_PYTORCH,
    FORMAT_MINDSPORE,
    FORMAT_RANKS,
    FORMAT_UNKNOWN
};

struct tensor_file {
    enum format format;
    union {
        struct safetensors *safetensors;
        struct gguf *gguf;
        struct pytorch *pytorch;
        struct mindspore *mindspore;
        struct mindspore_ranks *ranks;
    };
};

static const struct {
    const char *end;
    enum format format;
} NAMES[] = {
    { ".safetensors", FORMAT_SAFETENSORS },
    { ".gguf", FORMAT_GGUF },
    { ".bin", FORMAT_PYTORCH },
    { ".pt", FORMAT_PYTORCH },
    { ".pth", FORMAT_PYTORCH },
    { ".ckpt", FORMAT_MINDSPORE },
};

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum format find_format(const char *path, const uint8_t *bytes, size_t n_bytes)
{
    if (gguf_is(bytes, n_bytes))
        return FORMAT_GGUF;
    if (pytorch_is(bytes, n_bytes))
        return FORMAT_PYTORCH;
    if (n_bytes >= 9 && bytes[8] == '{' && bytes[7] == 0) /* a header below 2^56 bytes */
        return FORMAT_SAFETENSORS;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (ends_with(path, NAMES[i].end))
            return NAMES[i].format;
    }
    return mindspore_is(bytes, n_bytes) ? FORMAT_MINDSPORE : FORMAT_UNKNOWN;
}

enum tutti_status tensor_file_open(struct tensor_file **out, const char *path, struct tutti_error *err)
{
    struct mapping map = { 0 };
    bool is_ranks = mindspore_ranks_is(path);
    enum tutti_status st = is_ranks ? TUTTI_OK : mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    struct tensor_file *file = calloc(1, sizeof *file);
    if (file)
        file->format = is_ranks ? FORMAT_RANKS : find_format(path, map.bytes, map.n_bytes);
    mapping_close(&map);
    if (!file)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    switch (file->format) {
    case FORMAT_SAFETENSORS:
        st = safetensors_open(&file->safetensors, path, err);
        break;
    case FORMAT_GGUF:
        st = gguf_open(&file->gguf, path, err);
        break;
    case FORMAT_PYTORCH:
        st = pytorch_open(&file->pytorch, path, err);
        break;
    case FORMAT_MINDSPORE:
        st = mindspore_open(&file->mindspore, path, err);
        break;
    case FORMAT_RANKS:
        st = mindspore_ranks_open(&file->ranks, path, err);
        break;
    default:
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: it is neither GGUF nor safetensors, nor a checkpoint of PyTorch or MindSpore",
                       path);
    }
    if (st == TUTTI_OK)
        *out = file;
    else
        free(file);
    return st;
}

void tensor_file_close(struct tensor_file *file)
{
    if (!file)
        return;
    switch (file->format) {
    case FORMAT_SAFETENSORS:
        safetensors_close(file->safetensors);
        break;
    case FORMAT_GGUF:
        gguf_close(file->gguf);
        break;
    case FORMAT_PYTORCH:
        pytorch_close(file->pytorch);
        break;
    case FORMAT_RANKS:
        mindspore_ranks_close(file->ranks);
        break;
    default:
        mindspore_close(file->mindspore);
    }
    free(file);
}

size_t tensor_file_n_tensors(const struct tensor_file *file)
{
    switch (file->format) {
    case FORMAT_SAFETENSORS:
        return safetensors_n_tensors(file->safetensors);
    case FORMAT_GGUF:
        return gguf_n_tensors(file->gguf);
    case FORMAT_PYTORCH:
        return pytorch_n_tensors(file->pytorch);
    case FORMAT_RANKS:
        return mindspore_ranks_n_tensors(file->ranks);
    default:
        return mindspore_n_tensors(file->mindspore);
    }
}

const struct tensor *tensor_file_tensor(const struct tensor_file *file, size_t index)
{
    switch (file->format) {
    case FORMAT_SAFETENSORS:
        return safetensors_tensor(file->safetensors, index);
    case FORMAT_GGUF:
        return gguf_tensor(file->gguf, index);
    case FORMAT_PYTORCH:
        return pytorch_tensor(file->pytorch, index);
    case FORMAT_RANKS:
        return mindspore_ranks_tensor(file->ranks, index);
    default:
        return mindspore_tensor(file->mindspore, index);
    }
}

const struct gguf *tensor_file_gguf(const struct tensor_file *file)
{
    return file->format == FORMAT_GGUF ? file->gguf : NULL;
}
