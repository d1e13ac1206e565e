#include "checkpoint/mindspore/mindspore_strategy.h"

#include "base/files/mapping.h"
#include "base/files/protobuf.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 4096, MAX_DEVICES = 1 << 20 };

/* A layout as in the file, not checked yet. */
struct raw {
    const char *name;
    size_t n_name;
    int64_t stage, axes[STRATEGY_AXES], map[LIMIT_TENSOR_DIMS][STRATEGY_AXES];
    int n_axes, n_dims, n_map[LIMIT_TENSOR_DIMS];
    int64_t shard_step, shard_size;
    bool is_uneven, is_beyond; /* split manually; too many axes or dimensions */
};

static enum tutti_status strategy_fail(const char *file, const struct raw *raw, const char *what,
                                       struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: parameter %.*s: %s", file,
                     raw->n_name < 256 ? (int)raw->n_name : 256, raw->name, what);
}

/* Axes are counted from the last one in files. */
static enum tutti_status read_cuts(struct strategy_layout *layout, const struct raw *raw, const char *file,
                                   struct tutti_error *err)
{
    int n_cut = 1, n_devices = 1;
    unsigned used = 0;
    for (int i = 0; i < raw->n_axes; i++) {
        if (raw->axes[i] < 1 || raw->axes[i] > MAX_DEVICES ||
            __builtin_mul_overflow(n_devices, (int)raw->axes[i], &n_devices) || n_devices > MAX_DEVICES)
            return strategy_fail(file, raw, "its device matrix is out of range", err);
        layout->axes[i] = (int)raw->axes[i];
    }
    layout->n_axes = raw->n_axes;
    layout->n_dims = raw->n_dims;
    for (int d = 0; d < raw->n_dims; d++) {
        for (int k = 0; k < raw->n_map[d]; k++) {
            int64_t axis = raw->map[d][k];
            if (axis == -1)
                continue;
            if (axis < 0 || axis >= raw->n_axes || used & 1u << axis)
                return strategy_fail(file, raw,
                                     "its tensor map names an axis that is not there, or one twice", err);
            used |= 1u << axis;
            layout->cuts[d].axes[layout->cuts[d].n++] = raw->n_axes - 1 - (int)axis;
            n_cut *= layout->axes[raw->n_axes - 1 - axis];
        }
    }
    int64_t n_shards = raw->shard_step == 0 || raw->shard_size == 0 ? 1
                       : raw->shard_size == -1                      ? n_devices / n_cut
                                                                    : raw->shard_size;
    if (n_shards < 1 || n_shards > n_devices / n_cut || n_devices / n_cut % n_shards != 0 ||
        (n_shards > 1 && raw->n_dims == 0))
        return strategy_fail(file, raw, "its optimizer's shards do not fit the device matrix", err);
    layout->n_row_shards = (int)n_shards;
    return TUTTI_OK;
}

static enum tutti_status add_layout(struct strategy *s, const struct raw *raw_layout, const char *file,
                                    struct tutti_error *err)
{
    struct raw raw = *raw_layout;
    if (raw.is_uneven || raw.is_beyond)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: parameter %.*s: %s", file,
                         raw.n_name < 256 ? (int)raw.n_name : 256, raw.name,
                         raw.is_uneven ? "it is cut into uneven parts"
                                       : "more axes or dimensions than are read");
    size_t digits = 0; /* "1-NAME" in a merged file: of stage 1 */
    while (digits < raw.n_name && digits < 5 && raw.name[digits] >= '0' && raw.name[digits] <= '9')
        digits++;
    if (digits > 0 && digits < raw.n_name && raw.name[digits] == '-') {
        raw.stage = strtol(raw.name, NULL, 10);
        raw.name += digits + 1;
        raw.n_name -= digits + 1;
    }
    if (raw.stage < 0 || raw.stage >= MAX_STAGES)
        return strategy_fail(file, &raw, "its pipeline stage is out of range", err);
    if (s->n == s->capacity) {
        size_t capacity = s->capacity * 2 + 64;
        struct strategy_layout *more = capacity > 2 * LIMIT_TENSORS
                                           ? NULL
                                           : realloc(s->layouts, capacity * sizeof *more);
        if (!more)
            return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file);
        s->layouts = more;
        s->capacity = capacity;
    }
    struct strategy_layout layout = { .stage = (int)raw.stage };
    enum tutti_status st = read_cuts(&layout, &raw, file, err);
    if (st != TUTTI_OK)
        return st;
    layout.name = strndup(raw.name, raw.n_name);
    if (!layout.name)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file);
    s->layouts[s->n++] = layout;
    if (s->n_stages <= layout.stage)
        s->n_stages = layout.stage + 1;
    return TUTTI_OK;
}

/* ---- protocol buffers ---- */

/* Appends the numbers of a message { repeated dim = 1 } to the *n values, at most STRATEGY_AXES. */
static bool read_dims(struct protobuf_field message, int64_t *values, int *n, bool *is_beyond)
{
    struct protobuf m = protobuf_open(message.bytes, message.n_bytes);
    struct protobuf_field f;
    while (protobuf_next(&m, &f)) {
        if (f.number != 1 || f.wire != PROTOBUF_VARINT)
            return false;
        if (*n < STRATEGY_AXES)
            values[(*n)++] = (int32_t)(uint32_t)f.value; /* negative numbers take ten bytes */
        else
            *is_beyond = true;
    }
    return !m.is_bad;
}

/* One tensor map has an axis for each dimension; several have a dimension's axes each. */
static void place_map(struct raw *raw, int64_t maps[][STRATEGY_AXES], const int *n_map, int n_maps)
{
    bool is_one = n_maps == 1;
    raw->n_dims = is_one ? n_map[0] : n_maps;
    if (raw->n_dims > LIMIT_TENSOR_DIMS) {
        raw->is_beyond = true;
        raw->n_dims = 0;
    }
    for (int d = 0; d < raw->n_dims; d++) {
        raw->n_map[d] = is_one ? 1 : n_map[d];
        memcpy(raw->map[d], is_one ? &maps[0][d] : maps[d], (size_t)raw->n_map[d] * sizeof(int64_t));
    }
}

static bool read_layouts(struct raw *raw, struct protobuf_field message)
{
    struct protobuf m = protobuf_open(message.bytes, message.n_bytes);
    struct protobuf_field f;
    int64_t maps[STRATEGY_AXES][STRATEGY_AXES] = { 0 }, uneven[STRATEGY_AXES];
    int n_map[STRATEGY_AXES] = { 0 }, n_maps = 0, n_uneven = 0;
    while (protobuf_next(&m, &f)) {
        bool ok = true;
        if (f.number == 1 && f.wire == PROTOBUF_BYTES) {
            ok = read_dims(f, raw->axes, &raw->n_axes, &raw->is_beyond);
        } else if (f.number == 2 && f.wire == PROTOBUF_BYTES) {
            if (n_maps == STRATEGY_AXES)
                raw->is_beyond = true;
            else
                ok = read_dims(f, maps[n_maps], &n_map[n_maps], &raw->is_beyond);
            n_maps += n_maps < STRATEGY_AXES;
        } else if ((f.number == 3 || f.number == 4) && f.wire == PROTOBUF_BYTES) {
            ok = read_dims(f, uneven, &n_uneven, &raw->is_uneven);
        } else if (f.number == 6 && f.wire == PROTOBUF_VARINT) {
            raw->shard_step = (int32_t)(uint32_t)f.value;
        } else if (f.number == 7 && f.wire == PROTOBUF_VARINT) {
            raw->shard_size = (int32_t)(uint32_t)f.value;
        }
        if (!ok)
            return false;
    }
    raw->is_uneven = raw->is_uneven || n_uneven > 0;
    place_map(raw, maps, n_map, n_maps);
    return !m.is_bad;
}

static bool read_item(struct raw *raw, struct protobuf_field message)
{
    struct protobuf m = protobuf_open(message.bytes, message.n_bytes);
    struct protobuf_field f;
    raw->name = "";
    while (protobuf_next(&m, &f)) {
        if (f.number == 1 && f.wire == PROTOBUF_BYTES) {
            raw->name = (const char *)f.bytes;
            raw->n_name = f.n_bytes;
        } else if (f.number == 2 && f.wire == PROTOBUF_BYTES && !read_layouts(raw, f)) {
            return false;
        }
    }
    return !m.is_bad && raw->n_name > 0;
}

static enum tutti_status read_protobuf(struct strategy *s, const char *file, const struct mapping *map,
                                       struct tutti_error *err)
{
    struct protobuf m = protobuf_open(map->bytes, map->n_bytes);
    struct protobuf_field f;
    int64_t stage = 0;
    for (struct protobuf look = m; protobuf_next(&look, &f);) {
        if (f.number == 1 && f.wire == PROTOBUF_VARINT)
            stage = f.value < MAX_STAGES ? (int64_t)f.value : MAX_STAGES;
    }
    while (protobuf_next(&m, &f)) {
        struct raw raw = { .stage = stage };
        if (f.number != 3 || f.wire != PROTOBUF_BYTES)
            continue;
        if (!read_item(&raw, f))
            return error_set(err, TUTTI_E_FORMAT, "%s: a layout of the strategy is broken", file);
        enum tutti_status st = add_layout(s, &raw, file, err);
        if (st != TUTTI_OK)
            return st;
    }
    return m.is_bad ? error_set(err, TUTTI_E_FORMAT, "%s: not a strategy of MindSpore", file) : TUTTI_OK;
}

/* ---- JSON ---- */

static void read_list(const json_t *list, int64_t *values, int *n, bool *is_beyond)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (*n < STRATEGY_AXES)
            values[(*n)++] = json_integer_value(json_array_get(list, i));
        else
            *is_beyond = true;
    }
}

static enum tutti_status read_strategy_json(struct strategy *s, const char *file, const struct mapping *map,
                                            struct tutti_error *err)
{
    json_error_t json_err;
    json_t *root = json_loadb((const char *)map->bytes, map->n_bytes, 0, &json_err);
    if (!root)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s (line %d)", file, json_err.text, json_err.line);
    enum tutti_status st = TUTTI_OK;
    const char *name;
    json_t *item;
    json_object_foreach(json_object_get(root, "parallel_layout_item"), name, item)
    {
        struct raw raw = { .name = name, .n_name = strlen(name) };
        int64_t maps[STRATEGY_AXES][STRATEGY_AXES] = { 0 };
        int n_map[STRATEGY_AXES] = { 0 }, n_maps = 1;
        const json_t *tensor_map = json_object_get(item, "tensor_map");
        raw.stage = json_integer_value(json_object_get(root, "current_stage"));
        raw.shard_step = json_integer_value(json_object_get(item, "opt_weight_shard_step"));
        raw.shard_size = json_integer_value(json_object_get(item, "opt_weight_shard_size"));
        raw.is_uneven = json_array_size(json_object_get(item, "param_split_shape")) > 0;
        read_list(json_object_get(item, "dev_matrix"), raw.axes, &raw.n_axes, &raw.is_beyond);
        if (json_is_array(json_array_get(tensor_map, 0))) {
            n_maps = json_array_size(tensor_map) > STRATEGY_AXES ? STRATEGY_AXES
                                                                 : (int)json_array_size(tensor_map);
            for (int d = 0; d < n_maps; d++)
                read_list(json_array_get(tensor_map, (size_t)d), maps[d], &n_map[d], &raw.is_beyond);
        } else {
            read_list(tensor_map, maps[0], &n_map[0], &raw.is_beyond);
        }
        place_map(&raw, maps, n_map, n_maps);
        st = add_layout(s, &raw, file, err);
        if (st != TUTTI_OK)
            break;
    }
    json_decref(root);
    return st;
}

/* ---- folders ---- */

static int compare_layouts(const void *a, const void *b)
{
    const struct strategy_layout *x = a, *y = b;
    return x->stage != y->stage ? (x->stage < y->stage ? -1 : 1) : strcmp(x->name, y->name);
}

static enum tutti_status read_strategy_file(struct strategy *s, const char *path, struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    if (map.n_bytes == 0 || map.n_bytes > LIMIT_JSON_FILE_BYTES)
        st = error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes, expected 1 to %d", path, map.n_bytes,
                       LIMIT_JSON_FILE_BYTES);
    else
        st = text_ends_with(path, ".json") ? read_strategy_json(s, path, &map, err)
                                           : read_protobuf(s, path, &map, err);
    mapping_close(&map);
    return st;
}

enum tutti_status strategy_read_folder(struct strategy *s, const char *folder, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT || errno == ENOTDIR
                   ? TUTTI_OK
                   : error_set(err, TUTTI_E_IO, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry; st == TUTTI_OK && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        char *path = NULL;
        if (!strstr(name, "ckpt_strategy") || name[0] == '.' ||
            !(text_ends_with(name, ".ckpt") || text_ends_with(name, ".json")))
            continue;
        if (asprintf(&path, "%s/%s", folder, name) < 0)
            path = NULL;
        st = path ? read_strategy_file(s, path, err)
                  : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", folder);
        free(path);
    }
    closedir(dir);
    if (s->n > 0)
        qsort(s->layouts, s->n, sizeof *s->layouts, compare_layouts);
    return st;
}

void strategy_clear(struct strategy *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->layouts[i].name);
    free(s->layouts);
    *s = (struct strategy){ 0 };
}

const struct strategy_layout *strategy_find(const struct strategy *s, int stage, const char *name)
{
    struct strategy_layout want = { .stage = stage, .name = (char *)(uintptr_t)name };
    return s->n ? bsearch(&want, s->layouts, s->n, sizeof want, compare_layouts) : NULL;
}

int strategy_n_devices(const struct strategy_layout *layout)
{
    int n = 1;
    for (int i = 0; i < layout->n_axes; i++)
        n *= layout->axes[i];
    return n;
}

void strategy_part(const struct strategy_layout *layout, int device, int64_t *part, int64_t *n_parts)
{
    int place[STRATEGY_AXES], left = device;
    bool is_used[STRATEGY_AXES] = { false };
    for (int i = layout->n_axes - 1; i >= 0; i--) {
        place[i] = left % layout->axes[i];
        left /= layout->axes[i];
    }
    for (int d = 0; d < layout->n_dims; d++) {
        int64_t at = 0, n = 1;
        for (int k = 0; k < layout->cuts[d].n; k++) {
            int axis = layout->cuts[d].axes[k];
            is_used[axis] = true;
            at = at * layout->axes[axis] + place[axis];
            n *= layout->axes[axis];
        }
        part[d] = at;
        if (n_parts)
            n_parts[d] = n;
    }
    if (layout->n_row_shards <= 1)
        return;
    int same = 0; /* index of the device among those with the same part */
    for (int i = 0; i < layout->n_axes; i++)
        same = is_used[i] ? same : same * layout->axes[i] + place[i];
    part[0] = part[0] * layout->n_row_shards + same % layout->n_row_shards;
    if (n_parts)
        n_parts[0] *= layout->n_row_shards;
}
