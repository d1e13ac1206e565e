#include "checkpoint/pytorch/pytorch.h"

#include "base/bytes.h"
#include "base/utf8.h"
#include "checkpoint/pytorch/pickle.h"
#include "checkpoint/pytorch/zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PICKLE_BYTES = LIMIT_JSON_FILE_BYTES, MAX_KEY_BYTES = 64, MAX_PARAMETER_DEPTH = 4 };

/* Globals that tensors need. Storage types and dtypes are in the order of STORED; its last ones
 * have no storage type. */
enum {
    G_ORDERED_DICT,
    G_TENSOR_V2,
    G_TENSOR,
    G_TENSOR_V3,
    G_PARAMETER,
    G_PARAMETER_STATE,
    G_SIZE,
    G_UNTYPED,
    G_UNTYPED_TOO,
    G_STORAGES,
};

static const enum dtype STORED[] = { DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I8,
                                     DTYPE_U8,  DTYPE_I16, DTYPE_I32, DTYPE_I64,  DTYPE_BOOL,
                                     DTYPE_U16, DTYPE_U32, DTYPE_U64 };
enum { N_STORAGES = 10, G_DTYPES = G_STORAGES + N_STORAGES };

static const struct pickle_global GLOBALS[] = {
    [G_ORDERED_DICT] = { "collections", "OrderedDict", .is_dict = true },
    [G_TENSOR_V2] = { "torch._utils", "_rebuild_tensor_v2" },
    [G_TENSOR] = { "torch._utils", "_rebuild_tensor" },
    [G_TENSOR_V3] = { "torch._utils", "_rebuild_tensor_v3" },
    [G_PARAMETER] = { "torch._utils", "_rebuild_parameter" },
    [G_PARAMETER_STATE] = { "torch._utils", "_rebuild_parameter_with_state" },
    [G_SIZE] = { "torch", "Size" },
    [G_UNTYPED] = { "torch.storage", "UntypedStorage" },
    [G_UNTYPED_TOO] = { "torch", "UntypedStorage" },
    [G_STORAGES] = { "torch", "FloatStorage" },
    { "torch", "DoubleStorage" },
    { "torch", "HalfStorage" },
    { "torch", "BFloat16Storage" },
    { "torch", "CharStorage" },
    { "torch", "ByteStorage" },
    { "torch", "ShortStorage" },
    { "torch", "IntStorage" },
    { "torch", "LongStorage" },
    { "torch", "BoolStorage" },
    [G_DTYPES] = { "torch", "float32" },
    { "torch", "float64" },
    { "torch", "float16" },
    { "torch", "bfloat16" },
    { "torch", "int8" },
    { "torch", "uint8" },
    { "torch", "int16" },
    { "torch", "int32" },
    { "torch", "int64" },
    { "torch", "bool" },
    { "torch", "uint16" },
    { "torch", "uint32" },
    { "torch", "uint64" },
};
enum { N_GLOBALS = sizeof GLOBALS / sizeof *GLOBALS };

/* A storage of a file without an archive. */
struct storage {
    const char *key;
    size_t n_key;
    uint64_t n_bytes;
    const uint8_t *data;
};

/* A strided view: its elements are not stored in the order of its shape. */
struct view {
    struct tensor_source source;
    struct tensor storage; /* the bytes from its first element to its last */
    const struct tensor *from[1];
    int64_t stride[LIMIT_TENSOR_DIMS]; /* in elements */
    struct view *before;
};

struct pytorch {
    struct tensor_set set;
    struct zip *zip;  /* NULL: the old file format */
    const char *root; /* of the archive's names, with a slash at the end */
    size_t n_root;
    struct pickle *pickle;    /* while reading */
    struct storage *storages; /* of the old format, sorted by key */
    size_t n_storages;
    char *names; /* of all tensors */
    struct view *views;
};

/* The beginning of the old format: a pickled magic number, and its protocol's version, 1001. */
static const uint8_t OLD_MAGIC[] = { 0x80, 2,    0x8A, 10,  0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A,
                                     0xA8, 0x50, 0x19, '.', 0x80, 2,    'M',  0xE9, 0x03, '.' };

static bool pytorch_is(const void *bytes, size_t n_bytes)
{
    return zip_is(bytes, n_bytes) || (n_bytes >= 15 && memcmp(bytes, OLD_MAGIC, 15) == 0);
}

/* ---- storages ---- */

/* ('storage', type, key, location, number of elements). */
struct storage_id {
    const char *key;
    size_t n_key;
    bool is_typed;
    enum dtype dtype; /* if is_typed, else U8 */
    uint64_t n_bytes;
};

static bool value_is_string(const struct pickle_value *value, const char *text)
{
    return value->kind == PICKLE_STRING && value->n == strlen(text) &&
           memcmp(value->text, text, value->n) == 0;
}

static bool read_storage_id(struct storage_id *id, const struct pickle_value *value)
{
    if (value->kind != PICKLE_PERSISTENT || value->items->n < 5)
        return false;
    const struct pickle_value *at = value->items->at;
    if (!value_is_string(&at[0], "storage") || at[1].kind != PICKLE_GLOBAL || at[2].kind != PICKLE_STRING ||
        at[4].kind != PICKLE_INT || at[4].integer < 0 || at[2].n > MAX_KEY_BYTES)
        return false;
    /* A part of another storage, as PyTorch wrote before 0.4. */
    if (value->items->n > 6 || (value->items->n == 6 && at[5].kind != PICKLE_NONE))
        return false;
    *id = (struct storage_id){ .key = at[2].text, .n_key = at[2].n, .dtype = DTYPE_U8 };
    if (at[1].n >= G_STORAGES && at[1].n < G_DTYPES) {
        id->is_typed = true;
        id->dtype = STORED[at[1].n - G_STORAGES];
    } else if (at[1].n != G_UNTYPED && at[1].n != G_UNTYPED_TOO) {
        return false;
    }
    return !__builtin_mul_overflow((uint64_t)at[4].integer, (uint64_t)dtype_block_bytes(id->dtype),
                                   &id->n_bytes);
}

static int by_key(const void *a, const void *b)
{
    const struct storage *x = a, *y = b;
    return bytes_compare(x->key, x->n_key, y->key, y->n_key);
}

/* tensor: for messages. */
static enum tutti_status find_storage(const struct pytorch *file, const struct storage_id *id,
                                      const char *tensor, const uint8_t **data, struct tutti_error *err)
{
    int n_key = (int)id->n_key;
    uint64_t n_bytes;
    if (file->zip) {
        char name[512];
        int n = snprintf(name, sizeof name, "%.*sdata/%.*s", (int)file->n_root, file->root, n_key, id->key);
        const struct zip_entry *entry = n > 0 && (size_t)n < sizeof name
                                            ? zip_find(file->zip, name, (size_t)n)
                                            : NULL;
        if (!entry)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its storage data/%.*s is missing",
                             file->set.name, tensor, n_key, id->key);
        const void *content;
        enum tutti_status st = zip_data(file->zip, entry, &content, err);
        if (st != TUTTI_OK)
            return st;
        *data = content;
        n_bytes = entry->n_bytes;
    } else {
        const struct storage want = { .key = id->key, .n_key = id->n_key };
        const struct storage *found = file->n_storages ? bsearch(&want, file->storages, file->n_storages,
                                                                 sizeof want, by_key)
                                                       : NULL;
        if (!found)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its storage %.*s is missing",
                             file->set.name, tensor, n_key, id->key);
        *data = found->data;
        n_bytes = found->n_bytes;
    }
    if (n_bytes != id->n_bytes)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: its storage %.*s has %" PRIu64 " bytes, expected %" PRIu64,
                         file->set.name, tensor, n_key, id->key, n_bytes, id->n_bytes);
    return TUTTI_OK;
}

/* ---- tensors ---- */

/* Copies the last two dimensions in square tiles: of a transposed matrix, one side is always read
 * across its rows. */
static void gather_matrix(uint8_t *to, const uint8_t *from, const int64_t *shape, const int64_t *stride,
                          size_t size)
{
    enum { SIDE = 32 };
    for (int64_t r0 = 0; r0 < shape[0]; r0 += SIDE) {
        for (int64_t c = 0; c < shape[1]; c++) {
            for (int64_t r = r0; r < shape[0] && r < r0 + SIDE; r++)
                memcpy(to + (size_t)(r * shape[1] + c) * size,
                       from + (size_t)(r * stride[0] + c * stride[1]) * size, size);
        }
    }
}

static bool gather(const struct tensor *t, void *bytes)
{
    const struct view *view = (const struct view *)t->source;
    size_t size = (size_t)dtype_block_bytes(t->dtype);
    int64_t shape[LIMIT_TENSOR_DIMS], stride[LIMIT_TENSOR_DIMS];
    int n_front = LIMIT_TENSOR_DIMS - t->n_dims; /* leading dimensions of one element */
    for (int i = 0; i < LIMIT_TENSOR_DIMS; i++) {
        shape[i] = i < n_front ? 1 : t->shape[i - n_front];
        stride[i] = i < n_front ? 0 : view->stride[i - n_front];
    }
    enum { N_OUTER = LIMIT_TENSOR_DIMS - 2 }; /* all but those of a matrix */
    uint8_t *to = bytes;
    int64_t n_matrices = 1;
    for (int i = 0; i < N_OUTER; i++)
        n_matrices *= shape[i];
    for (int64_t k = 0; k < n_matrices; k++) {
        int64_t offset = 0, left = k;
        for (int i = N_OUTER - 1; i >= 0; left /= shape[i--])
            offset += left % shape[i] * stride[i];
        gather_matrix(to, (const uint8_t *)view->storage.data + (size_t)offset * size, shape + N_OUTER,
                      stride + N_OUTER, size);
        to += (size_t)(shape[N_OUTER] * shape[N_OUTER + 1]) * size;
    }
    return true;
}

/* Reads a tuple of numbers that are not negative. */
static bool read_sizes(const struct pickle_value *value, int64_t *out, int *n)
{
    if (value->kind == PICKLE_CALL && value->n == G_SIZE && value->items->n == 1)
        value = &value->items->at[0];
    if ((value->kind != PICKLE_TUPLE && value->kind != PICKLE_LIST) || value->items->n > LIMIT_TENSOR_DIMS)
        return false;
    *n = (int)value->items->n;
    for (int i = 0; i < *n; i++) {
        const struct pickle_value *item = &value->items->at[i];
        if (item->kind != PICKLE_INT || item->integer < 0)
            return false;
        out[i] = item->integer;
    }
    return true;
}

/* Elements from the first one of a tensor to its last one; false: the sum overflows. Not for
 * tensors without elements. */
static bool find_span(const struct tensor *t, const int64_t *stride, int64_t *span)
{
    *span = 1;
    for (int i = 0; i < t->n_dims; i++) {
        int64_t step;
        if (__builtin_mul_overflow(t->shape[i] - 1, stride[i], &step) ||
            __builtin_add_overflow(*span, step, span))
            return false;
    }
    return true;
}

static bool is_contiguous(const struct tensor *t, const int64_t *stride)
{
    int64_t want = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && stride[i] != want)
            return false;
        want *= t->shape[i];
    }
    return true;
}

static enum tutti_status add_view(struct pytorch *file, struct tensor *t, const int64_t *stride,
                                  const uint8_t *data, size_t n_bytes, struct tutti_error *err)
{
    struct view *view = calloc(1, sizeof *view);
    if (!view)
        return error_out_of_memory(file->set.name, err);
    view->before = file->views;
    file->views = view;
    view->storage = (struct tensor){
        .name = t->name, .data = data, .n_bytes = n_bytes, .file = t->file, .map = &file->set.map
    };
    view->from[0] = &view->storage;
    view->source = (struct tensor_source){ .make = gather, .from = view->from, .n_from = 1 };
    memcpy(view->stride, stride, sizeof view->stride);
    t->data = NULL;
    t->map = NULL;
    t->source = &view->source;
    return TUTTI_OK;
}

/* Sets data and source of a tensor whose type and shape are set. storage_bytes: of the whole
 * storage, at data. */
static enum tutti_status place_tensor(struct pytorch *file, struct tensor *t, const int64_t *stride,
                                      int64_t offset, const uint8_t *data, uint64_t storage_bytes,
                                      struct tutti_error *err)
{
    uint64_t size = (uint64_t)dtype_block_bytes(t->dtype), n_elems = t->n_bytes / size;
    int64_t span = 0;
    t->map = &file->set.map;
    if (n_elems == 0) {
        t->data = data;
        return TUTTI_OK;
    }
    char shape[96], strides[96];
    tensor_shape_text(shape, sizeof shape, t->shape, t->n_dims);
    tensor_shape_text(strides, sizeof strides, stride, t->n_dims);
    uint64_t storage_elems = storage_bytes / size;
    if (!find_span(t, stride, &span) || (uint64_t)offset > storage_elems ||
        (uint64_t)span > storage_elems - (uint64_t)offset)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: shape %s with strides %s from element %" PRId64
                         " does not lie within a storage of %" PRIu64 " elements",
                         file->set.name, t->name, shape, strides, offset, storage_elems);
    data += (uint64_t)offset * size;
    if (is_contiguous(t, stride)) {
        t->data = data;
        return TUTTI_OK;
    }
    if (n_elems > (uint64_t)span)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s: shape %s with strides %s shows elements more than once",
                         file->set.name, t->name, shape, strides);
    return add_view(file, t, stride, data, (size_t)((uint64_t)span * size), err);
}

/* Checks the last argument of a tensor's call, a dict of flags that change what its bytes mean;
 * older files lack it. PyTorch has "neg" (every element is negated when it is read) and "conj". */
static enum tutti_status check_flags(const struct pytorch *file, const struct tensor *t,
                                     const struct pickle_value *flags, struct tutti_error *err)
{
    if (flags->kind == PICKLE_NONE)
        return TUTTI_OK;
    if (flags->kind != PICKLE_DICT)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its flags are no dict", file->set.name,
                         t->name);
    for (size_t i = 0; i < flags->items->n; i += 2) {
        const struct pickle_value *key = &flags->items->at[i], *value = key + 1;
        if (value->kind == PICKLE_BOOL && !value->integer)
            continue;
        bool has_text = key->kind == PICKLE_STRING && utf8_is_printable(key->text, key->n);
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: tensor %s: PyTorch's flag \"%.*s\" is set, so its values are not those that are "
            "stored; expected none. Save it with tensor.resolve_neg().resolve_conj()",
            file->set.name, t->name, has_text ? (int)(key->n < 64 ? key->n : 64) : 1,
            has_text ? key->text : "?");
    }
    return TUTTI_OK;
}

/* value: a call of G_TENSOR, G_TENSOR_V2 or G_TENSOR_V3. */
static enum tutti_status read_torch_tensor(struct pytorch *file, struct tensor *t,
                                           const struct pickle_value *value, struct tutti_error *err)
{
    const struct pickle_value *at = value->items->at;
    int64_t stride[LIMIT_TENSOR_DIMS] = { 0 };
    int n_strides = 0;
    struct storage_id id;
    bool is_v3 = value->n == G_TENSOR_V3;
    if (value->items->n < (is_v3 ? 7u : value->n == G_TENSOR_V2 ? 6u : 4u) || !read_storage_id(&id, &at[0]))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its storage is not described as PyTorch does",
                         file->set.name, t->name);
    if (at[2].kind == PICKLE_TUPLE && at[2].items->n > LIMIT_TENSOR_DIMS)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: %zu dimensions, expected at most %d",
                         file->set.name, t->name, at[2].items->n, LIMIT_TENSOR_DIMS);
    if (at[1].kind != PICKLE_INT || at[1].integer < 0 || !read_sizes(&at[2], t->shape, &t->n_dims) ||
        !read_sizes(&at[3], stride, &n_strides) || n_strides != t->n_dims)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: its offset, shape or strides are not as PyTorch writes them",
                         file->set.name, t->name);
    t->dtype = id.dtype;
    if (is_v3 ? at[6].kind != PICKLE_GLOBAL || at[6].n < G_DTYPES : !id.is_typed)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its type is missing", file->set.name, t->name);
    if (is_v3)
        t->dtype = STORED[at[6].n - G_DTYPES];
    if (!tensor_measure(t))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", file->set.name,
                         t->name);
    const uint8_t *data = NULL;
    size_t n_plain = is_v3 ? 7 : value->n == G_TENSOR_V2 ? 6 : 4;
    enum tutti_status st = value->items->n > n_plain ? check_flags(file, t, &at[n_plain], err) : TUTTI_OK;
    if (st == TUTTI_OK && value->items->n > n_plain + 1)
        st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: %zu arguments, expected at most %zu",
                       file->set.name, t->name, value->items->n, n_plain + 1);
    if (st == TUTTI_OK)
        st = find_storage(file, &id, t->name, &data, err);
    return st == TUTTI_OK ? place_tensor(file, t, stride, at[1].integer, data, id.n_bytes, err) : st;
}

/* The call that creates a tensor, unwrapped; NULL: the value is not a tensor. */
static const struct pickle_value *find_call(const struct pickle_value *value)
{
    for (int depth = 0; depth < MAX_PARAMETER_DEPTH && value->kind == PICKLE_CALL; depth++) {
        if (value->n == G_TENSOR || value->n == G_TENSOR_V2 || value->n == G_TENSOR_V3)
            return value;
        if ((value->n != G_PARAMETER && value->n != G_PARAMETER_STATE) || value->items->n == 0)
            return NULL;
        value = &value->items->at[0];
    }
    return NULL;
}

/* Entries of a dict that are tensors; *n_name_bytes: of all their names, with terminators. */
static size_t count_tensors(const struct pickle_value *dict, size_t *n_name_bytes)
{
    size_t n = 0;
    *n_name_bytes = 0;
    for (size_t i = 0; dict->kind == PICKLE_DICT && i < dict->items->n; i += 2) {
        const struct pickle_value *key = &dict->items->at[i], *value = key + 1;
        if (key->kind == PICKLE_STRING && find_call(value)) {
            n++;
            *n_name_bytes += key->n + 1;
        }
    }
    return n;
}

/* The dict of tensors: the saved object itself, or its entry under a usual name of training
 * scripts. */
static const struct pickle_value *find_dict(const struct pickle_value *root)
{
    static const char *const NAMES[] = { "state_dict", "module" };
    size_t n_name_bytes;
    if (root->kind != PICKLE_DICT || count_tensors(root, &n_name_bytes) > 0)
        return root;
    for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
        for (size_t i = 0; i < root->items->n; i += 2) {
            const struct pickle_value *key = &root->items->at[i];
            if (value_is_string(key, NAMES[k]) && key[1].kind == PICKLE_DICT)
                return key + 1;
        }
    }
    return root;
}

static enum tutti_status read_state_dict(struct pytorch *file, struct tutti_error *err)
{
    const struct pickle_value *dict = find_dict(pickle_result(file->pickle));
    size_t n_name_bytes, n = count_tensors(dict, &n_name_bytes);
    if (n == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: the saved object is no dict of named tensors",
                         file->set.name);
    if (n > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, expected at most %d", file->set.name, n,
                         LIMIT_TENSORS);
    file->set.tensors = calloc(n, sizeof *file->set.tensors);
    file->names = malloc(n_name_bytes);
    if (!file->set.tensors || !file->names)
        return error_out_of_memory(file->set.name, err);
    char *name = file->names;
    for (size_t i = 0; i < dict->items->n; i += 2) {
        const struct pickle_value *key = &dict->items->at[i], *call = find_call(key + 1);
        if (key->kind != PICKLE_STRING || !call)
            continue; /* such as an epoch number */
        if (key->n == 0 || key->n > LIMIT_TENSOR_NAME_BYTES || !utf8_is_printable(key->text, key->n))
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensor %zu: a name of %u bytes, expected 1 to %d of printable UTF-8",
                             file->set.name, file->set.n, key->n, LIMIT_TENSOR_NAME_BYTES);
        memcpy(name, key->text, key->n);
        name[key->n] = '\0';
        struct tensor *t = &file->set.tensors[file->set.n];
        *t = (struct tensor){ .name = name, .file = file->set.name };
        enum tutti_status st = read_torch_tensor(file, t, call, err);
        if (st != TUTTI_OK)
            return st;
        file->set.n++;
        name += key->n + 1;
    }
    return tensors_check_names(file->set.tensors, file->set.n, err);
}

/* ---- the archive ---- */

static enum tutti_status read_pickle(struct pytorch *file, const void *bytes, size_t n_bytes,
                                     struct tutti_error *err)
{
    return pickle_open(&file->pickle, bytes, n_bytes, GLOBALS, N_GLOBALS, file->set.name, err);
}

/* "NAME/data.pkl" in the archive's one folder. */
static const struct zip_entry *find_pickle(const struct zip *zip)
{
    static const char END[] = "/data.pkl";
    const size_t n_end = sizeof END - 1;
    const struct zip_entry *found = NULL;
    for (size_t i = 0; i < zip_n_entries(zip); i++) {
        const struct zip_entry *entry = zip_entry(zip, i);
        size_t n_root = entry->n_name > n_end ? entry->n_name - n_end : 0;
        if (n_root > 0 && memcmp(entry->name + n_root, END, n_end) == 0 &&
            !memchr(entry->name, '/', n_root)) {
            if (found)
                return NULL;
            found = entry;
        }
    }
    return found;
}

static enum tutti_status check_byte_order(const struct pytorch *file, struct tutti_error *err)
{
    char name[512];
    const void *text;
    int n = snprintf(name, sizeof name, "%.*sbyteorder", (int)file->n_root, file->root);
    const struct zip_entry *entry = n > 0 && (size_t)n < sizeof name ? zip_find(file->zip, name, (size_t)n)
                                                                     : NULL;
    if (!entry)
        return TUTTI_OK;
    enum tutti_status st = zip_data(file->zip, entry, &text, err);
    if (st != TUTTI_OK)
        return st;
    if (entry->n_bytes != 6 || memcmp(text, "little", 6) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: byte order \"%.*s\", expected \"little\"",
                         file->set.name, entry->n_bytes < 16 ? (int)entry->n_bytes : 16, (const char *)text);
    return TUTTI_OK;
}

static enum tutti_status read_archive(struct pytorch *file, struct tutti_error *err)
{
    enum tutti_status st = zip_open(&file->zip, file->set.map.bytes, file->set.map.n_bytes, file->set.name,
                                    err);
    if (st != TUTTI_OK)
        return st;
    const struct zip_entry *entry = find_pickle(file->zip);
    if (!entry)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: expected one folder with data.pkl, as torch.save() writes it",
                         file->set.name);
    if (entry->n_bytes > MAX_PICKLE_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: a pickle of %" PRIu64 " bytes, expected at most %d",
                         file->set.name, entry->n_bytes, MAX_PICKLE_BYTES);
    file->root = entry->name;
    file->n_root = entry->n_name - (sizeof "data.pkl" - 1);
    st = check_byte_order(file, err);
    const void *bytes;
    if (st == TUTTI_OK)
        st = zip_data(file->zip, entry, &bytes, err);
    if (st == TUTTI_OK)
        st = read_pickle(file, bytes, (size_t)entry->n_bytes, err);
    return st == TUTTI_OK ? read_state_dict(file, err) : st;
}

/* ---- files of the old kind: magic number, version, system, object, keys of the storages, storages ---- */

/* Types of the storages, by key; a key must always have the same type. */
static enum tutti_status list_storages(struct pytorch *file, struct tutti_error *err)
{
    size_t n;
    const struct pickle_value *ids = pickle_persistents(file->pickle, &n);
    file->storages = calloc(n + 1, sizeof *file->storages);
    if (!file->storages)
        return error_out_of_memory(file->set.name, err);
    for (size_t i = 0; i < n; i++) {
        struct storage_id id;
        if (!read_storage_id(&id, &ids[i]))
            return error_set(err, TUTTI_E_FORMAT, "%s: storage %zu is not described as PyTorch does",
                             file->set.name, i);
        file->storages[i] = (struct storage){ .key = id.key, .n_key = id.n_key, .n_bytes = id.n_bytes };
    }
    qsort(file->storages, n, sizeof *file->storages, by_key);
    for (size_t i = 0; i < n; i++) {
        const struct storage *s = &file->storages[i];
        struct storage *last = file->n_storages ? &file->storages[file->n_storages - 1] : NULL;
        if (!last || by_key(last, s) != 0)
            file->storages[file->n_storages++] = *s;
        else if (last->n_bytes != s->n_bytes)
            return error_set(err, TUTTI_E_FORMAT, "%s: storage %.*s is given two sizes", file->set.name,
                             (int)s->n_key, s->key);
    }
    return TUTTI_OK;
}

/* keys: in the order of the storages' data, which begin at byte at. */
static enum tutti_status place_storages(struct pytorch *file, const struct pickle_value *keys, size_t at,
                                        struct tutti_error *err)
{
    if (keys->kind != PICKLE_LIST || keys->items->n != file->n_storages)
        return error_set(err, TUTTI_E_FORMAT, "%s: expected the list of %zu storages after the object",
                         file->set.name, file->n_storages);
    for (size_t i = 0; i < file->n_storages; i++) {
        const struct pickle_value *key = &keys->items->at[i];
        struct storage want = { .key = key->text, .n_key = key->n };
        struct storage *s = key->kind != PICKLE_STRING
                                ? NULL
                                : bsearch(&want, file->storages, file->n_storages, sizeof want, by_key);
        size_t left = file->set.map.n_bytes - at;
        if (!s || s->data)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: storage %zu: no tensor refers to it, or it is a duplicate", file->set.name,
                             i);
        if (left < 8 || s->n_bytes > left - 8)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: storage %.*s: %" PRIu64 " bytes at byte %zu of a file of %zu",
                             file->set.name, (int)s->n_key, s->key, s->n_bytes, at, file->set.map.n_bytes);
        s->data = file->set.map.bytes + at +
                  8; /* after its number of elements, which is also in the pickle */
        at += 8 + (size_t)s->n_bytes;
    }
    return TUTTI_OK;
}

static enum tutti_status read_old(struct pytorch *file, struct tutti_error *err)
{
    size_t n_bytes = file->set.map.n_bytes, at = sizeof OLD_MAGIC;
    if (n_bytes < at || memcmp(file->set.map.bytes, OLD_MAGIC, at) != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: expected version 1001 of PyTorch's old format",
                         file->set.name);
    struct pickle *keys = NULL;
    enum tutti_status st = TUTTI_OK;
    for (int part = 0; part < 2 && st == TUTTI_OK; part++) { /* the system that wrote it, the object */
        size_t left = n_bytes - at;
        pickle_close(file->pickle);
        file->pickle = NULL;
        st = read_pickle(file, file->set.map.bytes + at, left < MAX_PICKLE_BYTES ? left : MAX_PICKLE_BYTES,
                         err);
        at += st == TUTTI_OK ? pickle_n_bytes(file->pickle) : 0;
        const struct pickle_value *system = st == TUTTI_OK ? pickle_result(file->pickle) : NULL;
        for (size_t i = 0; part == 0 && system && system->kind == PICKLE_DICT && i < system->items->n;
             i += 2) {
            const struct pickle_value *key = &system->items->at[i];
            if (value_is_string(key, "little_endian") && key[1].kind == PICKLE_BOOL && !key[1].integer)
                st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: a big-endian file", file->set.name);
        }
    }
    if (st == TUTTI_OK)
        st = list_storages(file, err);
    if (st == TUTTI_OK)
        st = pickle_open(&keys, file->set.map.bytes + at, n_bytes - at, NULL, 0, file->set.name, err);
    if (st == TUTTI_OK)
        st = place_storages(file, pickle_result(keys), at + pickle_n_bytes(keys), err);
    if (st == TUTTI_OK)
        st = read_state_dict(file, err);
    pickle_close(keys);
    return st;
}

/* ---- opening ---- */

static enum tutti_status pytorch_read(struct tensor_set **set, struct tutti_error *err)
{
    struct pytorch *file = (struct pytorch *)*set;
    enum tutti_status st;
    if (!pytorch_is(file->set.map.bytes, file->set.map.n_bytes))
        st = error_set(err, TUTTI_E_FORMAT, "%s: not a file of torch.save()", file->set.name);
    else if (zip_is(file->set.map.bytes, file->set.map.n_bytes))
        st = read_archive(file, err);
    else
        st = read_old(file, err);
    pickle_close(file->pickle); /* not needed by tensors any more */
    file->pickle = NULL;
    return st;
}

static void pytorch_clear(struct tensor_set *set)
{
    struct pytorch *file = (struct pytorch *)set;
    while (file->views) {
        struct view *before = file->views->before;
        free(file->views);
        file->views = before;
    }
    zip_close(file->zip);
    free(file->storages);
    free(file->names);
}

static const char *const ENDINGS[] = { ".bin", ".pt", ".pth", NULL };

const struct checkpoint_format PYTORCH_FORMAT = {
    .name = "PyTorch",
    .endings = ENDINGS,
    .is = pytorch_is,
    .set_bytes = sizeof(struct pytorch),
    .read = pytorch_read,
    .clear = pytorch_clear,
    .file = "pytorch_model.bin",
    .index = "pytorch_model.bin.index.json",
};
