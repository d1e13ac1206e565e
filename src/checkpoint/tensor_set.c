#include "checkpoint/tensor_set.h"

#include "base/text.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/mindspore/mindspore_ranks.h"
#include "checkpoint/pytorch/pytorch.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shards/shards.h"

/* GGUF is before safetensors: a GGUF file of 123 tensors begins like both. */
const struct checkpoint_format *const CHECKPOINT_FORMATS[] = {
    &SHARDS_FORMAT,    &GGUF_FORMAT, &SAFETENSORS_FORMAT, &PYTORCH_FORMAT, &MINDSPORE_RANKS_FORMAT,
    &MINDSPORE_FORMAT, NULL,
};

bool checkpoint_format_has_ending(const struct checkpoint_format *format, const char *path)
{
    for (const char *const *end = format->endings; end && *end; end++) {
        if (text_ends_with(path, *end))
            return true;
    }
    return false;
}

static const struct checkpoint_format *find_format(const struct mapping *map)
{
    const struct checkpoint_format *const *f;
    for (f = CHECKPOINT_FORMATS; *f; f++) {
        if ((*f)->is && !(*f)->is_vague && (*f)->is(map->bytes, map->n_bytes))
            return *f;
    }
    for (f = CHECKPOINT_FORMATS; *f; f++) {
        if (checkpoint_format_has_ending(*f, map->name))
            return *f;
    }
    for (f = CHECKPOINT_FORMATS; *f; f++) {
        if ((*f)->is_vague && (*f)->is(map->bytes, map->n_bytes))
            return *f;
    }
    return NULL;
}

enum tutti_status tensor_set_open(struct tensor_set **out, const char *path, struct tutti_error *err)
{
    for (const struct checkpoint_format *const *f = CHECKPOINT_FORMATS; *f; f++) {
        if ((*f)->is_folder && (*f)->is_folder(path))
            return (*f)->open(out, path, err);
    }
    struct mapping map = { 0 };
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    const struct checkpoint_format *format = find_format(&map);
    if (format)
        return format->read(out, map, err);
    mapping_close(&map);
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: it is neither GGUF nor safetensors, nor a checkpoint of PyTorch or MindSpore",
                     path);
}

enum tutti_status tensor_set_open_as(struct tensor_set **out, const struct checkpoint_format *format,
                                     const char *path, struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, err);
    return st == TUTTI_OK ? format->read(out, map, err) : st;
}

enum tutti_status tensor_set_open_memory(struct tensor_set **out, const struct checkpoint_format *format,
                                         const void *bytes, size_t n_bytes, const char *name,
                                         struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_borrow(&map, bytes, n_bytes, name, err);
    return st == TUTTI_OK ? format->read(out, map, err) : st;
}

void tensor_set_close(struct tensor_set *set)
{
    if (set)
        set->close(set);
}
