#include "checkpoint/mindspore/mindspore.h"

#include "base/files/protobuf.h"
#include "base/utf8.h"
#include "checkpoint/tensor_join.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CRC_BYTES = 17 }; /* optional trailer after the last value: "crc_num" and ten bytes */

/* Training state: prefixes of tags, and names of scalars. */
static const char *const TRAINING_PREFIXES[] = { "adam_m.",  "adam_v.",  "moment1.",
                                                 "moment2.", "moments.", "accu_grads." };
static const char *const TRAINING_SCALARS[] = { "epoch_num",
                                                "step_num",
                                                "global_step",
                                                "loss_scale",
                                                "scale_sense",
                                                "current_iterator_step",
                                                "last_overflow_iterator_step",
                                                "learning_rate",
                                                "beta1_power",
                                                "beta2_power" };
static const char *const WRAPPERS[] = { "network.", "_backbone." };

struct mindspore {
    struct tensor_set set;
    char *names; /* of all tensors */
    struct tensor_join *joins;
    struct tensor *slices; /* of all joined tensors */
    size_t n_slices;
};

struct ckpt_text {
    const char *bytes;
    size_t n;
};

/* One Value. */
struct ckpt_value {
    struct ckpt_text tag, type;
    int n_dims;
    int64_t dims[LIMIT_TENSOR_DIMS];
    const uint8_t *content;
    size_t n_bytes;
    bool is_map, has_too_many_dims;
};

static bool begins_with(struct ckpt_text text, const char *prefix)
{
    size_t n = strlen(prefix);
    return text.n >= n && memcmp(text.bytes, prefix, n) == 0;
}

static bool text_is(struct ckpt_text text, const char *what)
{
    return text.n == strlen(what) && begins_with(text, what);
}

/* Whether bytes begin like such a file, or like an encrypted one. */
static bool mindspore_is(const void *bytes, size_t n_bytes)
{
    const uint8_t *b = bytes;
    bool is_encrypted = n_bytes >= 4 && b[3] == 0x7F && b[2] == 0x3A && b[1] == 0x5E && b[0] >= 0xD8 &&
                        b[0] <= 0xDA; /* AES-GCM, AES-CBC, SM4-CBC; mindspore/core/include/utils/crypto.h */
    return is_encrypted || (n_bytes >= 1 && b[0] == 0x0A);
}

/* ---- one value ---- */

static void add_dim(struct ckpt_value *v, uint64_t dim)
{
    if (v->n_dims < LIMIT_TENSOR_DIMS)
        v->dims[v->n_dims++] = (int64_t)dim;
    else
        v->has_too_many_dims = true;
}

/* Consecutive varints. */
static bool read_packed_dims(struct ckpt_value *v, const uint8_t *bytes, size_t n_bytes)
{
    struct protobuf m = protobuf_open(bytes, n_bytes);
    while (m.at < m.end && !m.is_bad)
        add_dim(v, protobuf_varint(&m));
    return !m.is_bad;
}

static bool read_tensor_proto(struct ckpt_value *v, const struct protobuf_field *tensor)
{
    struct protobuf m = protobuf_open(tensor->bytes, tensor->n_bytes);
    struct protobuf_field f;
    while (protobuf_next(&m, &f)) {
        if (f.number == 1 && f.wire == PROTOBUF_VARINT) {
            add_dim(v, f.value);
        } else if (f.number == 1 && f.wire == PROTOBUF_BYTES) {
            if (!read_packed_dims(v, f.bytes, f.n_bytes))
                return false;
        } else if (f.number == 2 && f.wire == PROTOBUF_BYTES) {
            v->type = (struct ckpt_text){ (const char *)f.bytes, f.n_bytes };
        } else if (f.number == 3 && f.wire == PROTOBUF_BYTES) {
            v->content = f.bytes;
            v->n_bytes = f.n_bytes;
        }
    }
    return !m.is_bad;
}

/* False: malformed message. */
static bool read_ckpt_value(struct ckpt_value *v, const struct protobuf_field *value)
{
    struct protobuf m = protobuf_open(value->bytes, value->n_bytes);
    struct protobuf_field f;
    *v = (struct ckpt_value){ .tag.bytes = "", .type.bytes = "", .content = value->bytes };
    while (protobuf_next(&m, &f)) {
        if (f.number == 1 && f.wire == PROTOBUF_BYTES)
            v->tag = (struct ckpt_text){ (const char *)f.bytes, f.n_bytes };
        else if (f.number == 2 && f.wire == PROTOBUF_BYTES && !read_tensor_proto(v, &f))
            return false;
        else if (f.number == 3)
            v->is_map = true;
    }
    return !m.is_bad;
}

/* Whether a value is not a weight. */
static bool is_left_out(const struct ckpt_value *v)
{
    for (size_t i = 0; i < sizeof TRAINING_PREFIXES / sizeof *TRAINING_PREFIXES; i++) {
        if (begins_with(v->tag, TRAINING_PREFIXES[i]))
            return true;
    }
    for (size_t i = 0; i < sizeof TRAINING_SCALARS / sizeof *TRAINING_SCALARS; i++) {
        if (text_is(v->tag, TRAINING_SCALARS[i]))
            return true;
    }
    return text_is(v->type, "str");
}

/* ---- all values ---- */

struct ckpt_reader {
    struct mindspore *file;
    struct protobuf message;
    struct ckpt_text tag;    /* of the current tensor */
    size_t n_values, n_read; /* bytes of its content so far */
    char *name;              /* where the next one goes */
};

static enum tutti_status broken(const struct ckpt_reader *r, struct tutti_error *err)
{
    const struct mindspore *file = r->file;
    return error_set(
        err, TUTTI_E_FORMAT,
        "%s: value %zu of the checkpoint is broken, before byte %td; the file is cut off, or it is "
        "no MindSpore checkpoint",
        file->set.name, r->n_values, r->message.at - file->set.map.bytes);
}

/* Reads the next value; *is_there: false at the end. */
static enum tutti_status next(struct ckpt_reader *r, struct ckpt_value *v, bool *is_there,
                              struct tutti_error *err)
{
    struct protobuf_field field;
    *is_there = protobuf_next(&r->message, &field);
    if (!*is_there)
        return r->message.is_bad ? broken(r, err) : TUTTI_OK;
    if (field.number != 1 || field.wire != PROTOBUF_BYTES || !read_ckpt_value(v, &field))
        return broken(r, err);
    const char *file = r->file->set.name;
    if (r->n_values++ >= LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT, "%s: more than %d values", file, LIMIT_TENSORS);
    if (v->tag.n == 0 || v->tag.n > LIMIT_TENSOR_NAME_BYTES || !utf8_is_printable(v->tag.bytes, v->tag.n))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: value %zu: a tag of %zu bytes, expected 1 to %d of printable UTF-8", file,
                         r->n_values - 1, v->tag.n, LIMIT_TENSOR_NAME_BYTES);
    if (v->is_map && !is_left_out(v))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %.*s: a map tensor", file, (int)v->tag.n,
                         v->tag.bytes);
    return TUTTI_OK;
}

static struct ckpt_reader reader_start(struct mindspore *file)
{
    size_t n = file->set.map.n_bytes;
    if (n >= CRC_BYTES && memcmp(file->set.map.bytes + n - CRC_BYTES, "crc_num", 7) == 0)
        n -= CRC_BYTES;
    return (struct ckpt_reader){ .file = file,
                                 .message = protobuf_open(file->set.map.bytes, n),
                                 .name = file->names };
}

/* Counts values and finds the prefix of all tags, as an index into WRAPPERS; -1: none. */
static enum tutti_status count_values(struct mindspore *file, size_t *n, size_t *n_name_bytes, int *wrapper,
                                      struct tutti_error *err)
{
    enum { N = sizeof WRAPPERS / sizeof *WRAPPERS };
    size_t n_wrapped[N] = { 0 };
    struct ckpt_reader r = reader_start(file);
    bool is_there;
    *n = *n_name_bytes = 0;
    for (;;) {
        struct ckpt_value v;
        enum tutti_status st = next(&r, &v, &is_there, err);
        if (st != TUTTI_OK)
            return st;
        if (!is_there)
            break;
        if (is_left_out(&v))
            continue;
        *n += 1;
        *n_name_bytes += v.tag.n + 1;
        for (int i = 0; i < N; i++)
            n_wrapped[i] += begins_with(v.tag, WRAPPERS[i]);
    }
    *wrapper = -1;
    for (int i = 0; i<N && * n> 0; i++) {
        if (n_wrapped[i] == *n)
            *wrapper = i;
    }
    return TUTTI_OK;
}

static enum tutti_status check_complete(const struct ckpt_reader *r, struct tutti_error *err)
{
    const struct tensor *t = r->file->set.n ? &r->file->set.tensors[r->file->set.n - 1] : NULL;
    if (!t || r->n_read == t->n_bytes)
        return TUTTI_OK;
    char shape[96];
    tensor_shape_text(shape, sizeof shape, t->shape, t->n_dims);
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: tensor %s: %zu bytes of content, but its shape %s holds %zu of %s",
                     r->file->set.name, t->name, r->n_read, shape, t->n_bytes, dtype_name(t->dtype));
}

static enum tutti_status read_type(const struct mindspore *file, const struct ckpt_value *v, struct tensor *t,
                                   struct tutti_error *err)
{
    if (tensor_type_find(TENSOR_FORMAT_MINDSPORE, v->type.bytes, v->type.n, &t->dtype))
        return TUTTI_OK;
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: type \"%.*s\" is not supported",
                     file->set.name, t->name, v->type.n < 32 ? (int)v->type.n : 32, v->type.bytes);
}

/* Starts a tensor from its first value, without its bytes. */
static enum tutti_status begin_tensor(struct ckpt_reader *r, const struct ckpt_value *v, int wrapper,
                                      struct tutti_error *err)
{
    static const char KEY[] = ".__param_key__";
    struct mindspore *file = r->file;
    struct tensor *t = &file->set.tensors[file->set.n];
    size_t n_wrapper = wrapper >= 0 ? strlen(WRAPPERS[wrapper]) : 0;
    size_t n_name = v->tag.n - n_wrapper;
    memcpy(r->name, v->tag.bytes + n_wrapper, n_name);
    r->name[n_name] = '\0';
    char *key = strstr(r->name, KEY);
    if (key)
        *key = '\0';
    *t = (struct tensor){
        .name = r->name, .file = file->set.name, .map = &file->set.map, .n_dims = v->n_dims
    };
    r->name += n_name + 1;
    enum tutti_status st = read_type(file, v, t, err);
    if (st != TUTTI_OK)
        return st;
    if (t->name[0] == '\0')
        return error_set(err, TUTTI_E_FORMAT, "%s: value %zu: no name is left of tag %.*s", file->set.name,
                         r->n_values - 1, (int)v->tag.n, v->tag.bytes);
    if (v->has_too_many_dims)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: more than %d dimensions", file->set.name,
                         t->name, LIMIT_TENSOR_DIMS);
    memcpy(t->shape, v->dims, sizeof t->shape);
    /* Older versions wrote a scalar as a vector with zero elements. */
    if (t->n_dims == 1 && t->shape[0] == 0 && v->n_bytes == (size_t)dtype_block_bytes(t->dtype))
        t->n_dims = 0;
    if (!tensor_measure(t))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: a dimension or the shape's product is out of range", file->set.name,
                         t->name);
    t->data = v->content;
    file->set.n++;
    r->tag = v->tag;
    r->n_read = v->n_bytes;
    return r->n_read > t->n_bytes ? check_complete(r, err) : TUTTI_OK;
}

/* Adds the next bytes of a tensor, which begin at its byte at. False: out of memory. */
static bool add_slice(struct mindspore *file, struct tensor_join *join, const void *data, size_t n_bytes,
                      size_t at)
{
    const int64_t none = 0, begin = (int64_t)at, n = (int64_t)n_bytes;
    struct tensor *slice = &file->slices[file->n_slices++];
    *slice = (struct tensor){ .name = "",
                              .dtype = DTYPE_U8,
                              .n_dims = 1,
                              .shape = { n },
                              .data = data,
                              .n_bytes = n_bytes,
                              .file = file->set.name,
                              .map = &file->set.map };
    return tensor_join_add(join, 1, slice, &none, &begin, &n);
}

/* Adds a further value of the current tensor. */
static enum tutti_status add_value(struct ckpt_reader *r, const struct ckpt_value *v, struct tutti_error *err)
{
    struct mindspore *file = r->file;
    struct tensor *t = &file->set.tensors[file->set.n - 1];
    struct tensor other = *t;
    if (r->n_read == t->n_bytes)
        return error_set(err, TUTTI_E_FORMAT, "%s: duplicate tensor %s", file->set.name, t->name);
    enum tutti_status st = read_type(file, v, &other, err);
    if (st != TUTTI_OK)
        return st;
    if (other.dtype != t->dtype || v->n_dims != t->n_dims || v->has_too_many_dims ||
        memcmp(v->dims, t->shape, (size_t)t->n_dims * sizeof *v->dims) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its slices differ in shape or type",
                         file->set.name, t->name);
    if (v->n_bytes > t->n_bytes - r->n_read) {
        r->n_read += v->n_bytes;
        return check_complete(r, err);
    }
    struct tensor_join *join = file->joins;
    bool ok = true;
    if (!t->source) {
        const void *first = t->data;
        join = tensor_join_new(&file->joins, t, true);
        ok = join && add_slice(file, join, first, r->n_read, 0);
    }
    if (!ok || !add_slice(file, join, v->content, v->n_bytes, r->n_read))
        return error_out_of_memory(file->set.name, err);
    r->n_read += v->n_bytes;
    return TUTTI_OK;
}

static enum tutti_status mindspore_read(struct tensor_set **set, struct tutti_error *err)
{
    struct mindspore *file = (struct mindspore *)*set;
    if (file->set.map.n_bytes == 0 || !mindspore_is(file->set.map.bytes, file->set.map.n_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: not a MindSpore checkpoint", file->set.name);
    if (file->set.map.bytes[0] != 0x0A)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: an encrypted checkpoint; save it again without enc_key", file->set.name);
    size_t n, n_name_bytes;
    int wrapper;
    enum tutti_status st = count_values(file, &n, &n_name_bytes, &wrapper, err);
    if (st != TUTTI_OK)
        return st;
    if (n == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: there is no weight in it", file->set.name);
    file->names = malloc(n_name_bytes);
    file->set.tensors = calloc(n, sizeof *file->set.tensors);
    file->slices = calloc(2 * n, sizeof *file->slices); /* each value, and the first of each tensor */
    if (!file->names || !file->set.tensors || !file->slices)
        return error_out_of_memory(file->set.name, err);
    struct ckpt_reader r = reader_start(file);
    for (;;) {
        struct ckpt_value v;
        bool is_there;
        st = next(&r, &v, &is_there, err);
        if (st != TUTTI_OK)
            return st;
        if (!is_there)
            break;
        if (is_left_out(&v))
            continue;
        bool goes_on = file->set.n > 0 && v.tag.n == r.tag.n &&
                       memcmp(v.tag.bytes, r.tag.bytes, r.tag.n) == 0;
        if (!goes_on)
            st = check_complete(&r, err);
        if (st == TUTTI_OK)
            st = goes_on ? add_value(&r, &v, err) : begin_tensor(&r, &v, wrapper, err);
        if (st != TUTTI_OK)
            return st;
    }
    st = check_complete(&r, err);
    return st == TUTTI_OK ? tensors_check_names(file->set.tensors, file->set.n, err) : st;
}

/* ---- opening ---- */

static void mindspore_clear(struct tensor_set *set)
{
    struct mindspore *file = (struct mindspore *)set;
    tensor_joins_free(file->joins);
    free(file->slices);
    free(file->names);
}

static const char *const ENDINGS[] = { ".ckpt", NULL };

const struct checkpoint_format MINDSPORE_FORMAT = {
    .name = "MindSpore",
    .endings = ENDINGS,
    .is = mindspore_is,
    .is_vague = true,
    .set_bytes = sizeof(struct mindspore),
    .read = mindspore_read,
    .clear = mindspore_clear,
    .is_only_file = true,
};
