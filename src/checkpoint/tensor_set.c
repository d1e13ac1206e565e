#include "checkpoint/tensor_set.h"

#include "base/text.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/mindspore/mindspore_ranks.h"
#include "checkpoint/pytorch/pytorch.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shards/shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

bool checkpoint_format_has_file(const struct checkpoint_format *format, const char *name)
{
    return name[0] != '.' && !strstr(name, "ckpt_strategy") && checkpoint_format_has_ending(format, name);
}

enum tutti_status rank_folders_last(const char *folder, long *last, struct tutti_error *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return error_set(err, TUTTI_E_IO, "%s: %s", folder, strerror(errno));
    *last = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char *end = NULL;
        bool is_rank = strncmp(entry->d_name, "rank_", 5) == 0 && text_is_digit(entry->d_name[5]);
        long rank = is_rank ? strtol(entry->d_name + 5, &end, 10) : 0;
        if (is_rank && *end == '\0' && rank > *last)
            *last = rank;
    }
    closedir(dir);
    return TUTTI_OK;
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
        if ((*f)->is && (*f)->is_vague && (*f)->is(map->bytes, map->n_bytes))
            return *f;
    }
    return NULL;
}

struct tensor_set *tensor_set_new(const struct checkpoint_format *format, struct mapping map,
                                  struct tutti_error *err)
{
    struct tensor_set *set = calloc(1, format->set_bytes);
    if (!set) {
        (void)error_out_of_memory(map.name, err);
        mapping_close(&map);
        return NULL;
    }
    set->format = format;
    set->map = map;
    set->name = map.name;
    return set;
}

enum tutti_status tensor_set_read(struct tensor_set **out, struct tensor_set *set, struct tutti_error *err)
{
    enum tutti_status st = set ? set->format->read(&set, err) : TUTTI_E_MEMORY;
    if (st == TUTTI_OK)
        *out = set;
    else
        tensor_set_close(set);
    return st;
}

enum tutti_status tensor_set_open(struct tensor_set **out, const char *path, struct tutti_error *err)
{
    for (const struct checkpoint_format *const *f = CHECKPOINT_FORMATS; *f; f++) {
        if ((*f)->is_folder && (*f)->is_folder(path))
            return tensor_set_open_memory(out, *f, NULL, 0, path, err);
    }
    struct mapping map = { 0 };
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    const struct checkpoint_format *format = find_format(&map);
    if (format)
        return tensor_set_read(out, tensor_set_new(format, map, err), err);
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
    return st == TUTTI_OK ? tensor_set_read(out, tensor_set_new(format, map, err), err) : st;
}

enum tutti_status tensor_set_open_memory(struct tensor_set **out, const struct checkpoint_format *format,
                                         const void *bytes, size_t n_bytes, const char *name,
                                         struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_borrow(&map, bytes, n_bytes, name, err);
    return st == TUTTI_OK ? tensor_set_read(out, tensor_set_new(format, map, err), err) : st;
}

void tensor_set_close(struct tensor_set *set)
{
    if (!set)
        return;
    if (set->format->clear)
        set->format->clear(set);
    free(set->tensors);
    mapping_close(&set->map);
    free(set);
}
