/* tutti inspect: what a checkpoint holds, and how many users of it fit into a memory. No weights are read. */
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/numbers.h"
#include "cli/output.h"
#include "model/family.h"
#include "model/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct inspect_values {
    const char *type, *kv_type;
    int64_t memory, context;
    bool json;
};

static const char *const TYPES[] = { "f32", "f16", "bf16", "q8_0", "q4_0", NULL };
static const char *const KV_TYPES[] = { "f16", "f32", NULL };

#define VALUES struct inspect_values
static const struct option OPTIONS[] = {
    { .name = "memory",
      .letter = 'm',
      SIZE_IN(VALUES, memory),
      .value = "SIZE",
      .min = 1,
      .max = INFINITY,
      .help = "memory for weights, keys and values; without it, all of this machine" },
    { .name = "context",
      .letter = 'c',
      INT_IN(VALUES, context),
      .value = "N",
      .min = 1,
      .max = LIMIT_CONTEXT,
      .help = "tokens of each user; without it, the model's whole context" },
    { .name = "type",
      CHOICE_IN(VALUES, type),
      .value = "TYPE",
      .choices = TYPES,
      .help = "reckon with weights converted to it, instead of as stored" },
    { .name = "kv-type",
      CHOICE_IN(VALUES, kv_type),
      .value = "TYPE",
      .choices = KV_TYPES,
      .initial = "f16",
      .help = "reckon with keys and values of this type" },
    { .name = "json", FLAG_IN(VALUES, json), .help = "print one JSON object" },
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

struct report {
    const char *path;
    struct checkpoint *ck;
    struct model_desc desc;
    const struct family *family;
    struct tokenizer *tok; /* NULL: none, for the reason in why */
    char why[256];
    const char *chat_format; /* "": none */
    enum dtype weight_type, kv_type;
    uint64_t n_params, stored_bytes, weight_bytes; /* weight_bytes: as they would run */
    uint64_t kv_bytes_per_token, memory_bytes, n_users;
    int64_t context;
};

/* ---- gathering ------------------------------------------------------------------------------------------------- */

/* The bytes of a matrix as it runs, without what packing adds at its edges. */
static enum tutti_status add_matrix(struct report *report, const struct weight *w, bool has_type,
                                    enum dtype type, struct tutti_error *err)
{
    if (w->n_parts == 0)
        return TUTTI_OK;
    int64_t n_elems;
    size_t n_bytes;
    enum dtype run = weights_fit_type(has_type ? type : w->parts[0]->dtype, w->n_in);
    if (__builtin_mul_overflow((int64_t)w->n_in, (int64_t)w->n_out, &n_elems) ||
        !dtype_bytes(run, n_elems, &n_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: %d x %d elements are too many", w->name, w->n_out,
                         w->n_in);
    report->weight_bytes += n_bytes;
    for (int i = 0; i < w->n_parts; i++)
        if (w->biases[i])
            report->weight_bytes += (uint64_t)w->biases[i]->shape[0] * sizeof(float);
    return TUTTI_OK;
}

static void add_vector(struct report *report, const struct tensor *tensor)
{
    report->weight_bytes += (uint64_t)tensor->shape[0] * sizeof(float);
}

/* Every tensor of the model is looked up, so that an incomplete checkpoint is told here already. */
static enum tutti_status add_weights(struct report *report, const struct tensor_names *names, bool has_type,
                                     enum dtype type, struct tutti_error *err)
{
    struct outer_weights outer;
    enum tutti_status st = weights_find_outer(&outer, &report->desc, names, report->ck, err);
    if (st != TUTTI_OK)
        return st;
    add_vector(report, outer.output_norm);
    st = add_matrix(report, &outer.embedding, has_type, type, err);
    if (st == TUTTI_OK)
        st = add_matrix(report, &outer.output, has_type, type, err);
    for (int i = 0; st == TUTTI_OK && i < report->desc.n_layers; i++) {
        struct layer_weights w;
        st = weights_find_layer(&w, &report->desc, names, report->ck, i, err);
        if (st != TUTTI_OK)
            break;
        if (i == 0)
            report->weight_type = has_type ? type : weights_stored_type(&w);
        add_vector(report, w.attn_norm);
        add_vector(report, w.ffn_norm);
        const struct weight *matrices[] = { &w.qkv, &w.attn_out, &w.gate_up, &w.down };
        for (size_t j = 0; st == TUTTI_OK && j < sizeof matrices / sizeof matrices[0]; j++)
            st = add_matrix(report, matrices[j], has_type, type, err);
    }
    return st;
}

static int64_t n_elems(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i]; /* the reader checked the product */
    return n;
}

static enum tutti_status read_text(struct report *report, struct tutti_error *err)
{
    json_t *tokenizer_config = NULL;
    enum tutti_status st = model_tokenizer_load(&report->tok, report->family, &report->desc, report->ck,
                                                report->why, sizeof report->why, err);
    if (st == TUTTI_OK)
        st = checkpoint_json(report->ck, "tokenizer_config.json", &tokenizer_config, err);
    report->chat_format = "";
    if (st == TUTTI_OK && report->tok)
        report->chat_format = report->family->choose_chat(&report->desc, report->tok,
                                                          checkpoint_config(report->ck), tokenizer_config);
    json_decref(tokenizer_config);
    return st;
}

/* Pages hold KV_PAGE_TOKENS tokens, and a user has whole ones. */
static void count_users(struct report *report, const struct inspect_values *values)
{
    const struct model_desc *d = &report->desc;
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    report->memory_bytes = values->memory > 0 ? (uint64_t)values->memory : machine;
    report->context = values->context > 0 ? values->context : d->n_ctx;
    report->kv_bytes_per_token = 2 * (uint64_t)d->n_layers * (uint64_t)d->n_kv_heads * (uint64_t)d->head_dim *
                                 (uint64_t)dtype_block_bytes(report->kv_type);
    uint64_t n_pages = ((uint64_t)report->context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    uint64_t user_bytes = n_pages * KV_PAGE_TOKENS * report->kv_bytes_per_token;
    if (report->memory_bytes > report->weight_bytes)
        report->n_users = (report->memory_bytes - report->weight_bytes) / user_bytes;
}

static enum tutti_status gather(struct report *report, const struct inspect_values *values, const char *path,
                                struct tutti_error *err)
{
    enum dtype type = DTYPE_F16;
    report->path = path;
    if (values->type && !dtype_find(values->type, &type))
        return error_set(err, TUTTI_E_ARGUMENT, "--type: unknown type '%s'", values->type);
    if (!dtype_find(values->kv_type, &report->kv_type))
        return error_set(err, TUTTI_E_ARGUMENT, "--kv-type: unknown type '%s'", values->kv_type);
    enum tutti_status st = checkpoint_open(&report->ck, path, err);
    if (st == TUTTI_OK)
        st = model_desc_read(&report->desc, &report->family, report->ck, err);
    if (st == TUTTI_OK)
        st = read_text(report, err);
    if (st != TUTTI_OK)
        return st;
    const struct tensor_names *names = family_layout(report->family, report->ck);
    if (!names)
        return error_set(err, TUTTI_E_FORMAT, "%s: no tensor is named as in a %s model", path,
                         report->family->name);
    for (size_t i = 0; i < checkpoint_n_tensors(report->ck); i++) {
        const struct tensor *t = checkpoint_tensor(report->ck, i);
        report->n_params += (uint64_t)n_elems(t);
        report->stored_bytes += t->n_bytes;
    }
    st = add_weights(report, names, values->type != NULL, type, err);
    count_users(report, values);
    return st;
}

/* ---- printing -------------------------------------------------------------------------------------------------- */

static const char *rope_name(enum rope_kind kind)
{
    return kind == ROPE_NONE ? "none" : kind == ROPE_HALF ? "half" : "interleaved";
}

/* A name out of a file may hold anything. text: LIMIT_TENSOR_NAME_BYTES + 1. Returns text. */
static const char *printable(char *text, const char *name)
{
    snprintf(text, LIMIT_TENSOR_NAME_BYTES + 1, "%s", name);
    json_t *string = json_string(text); /* NULL: no UTF-8 */
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7F || (!string && *c >= 0x80))
            *c = '?';
    json_decref(string);
    return text;
}

static json_t *tensor_json(const struct tensor *t)
{
    char name[LIMIT_TENSOR_NAME_BYTES + 1];
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++)
        if (json_array_append_new(shape, json_integer(t->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:s, s:o, s:I}", "name", printable(name, t->name), "type", dtype_name(t->dtype),
                     "shape", shape, "bytes", (json_int_t)t->n_bytes);
}

static void print_json(const struct report *report)
{
    const struct model_desc *d = &report->desc;
    json_t *tensors = json_array();
    bool ok = tensors != NULL;
    for (size_t i = 0; ok && i < checkpoint_n_tensors(report->ck); i++)
        ok = json_array_append_new(tensors, tensor_json(checkpoint_tensor(report->ck, i))) == 0;
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:f, s:f, s:b, s:b, s:i}", "path",
        report->path, "family", report->family->name, "chat_format", report->chat_format, "n_layers",
        d->n_layers, "d_model", d->d_model, "n_heads", d->n_heads, "n_kv_heads", d->n_kv_heads, "head_dim",
        d->head_dim, "d_ff", d->d_ff, "n_vocab", d->n_vocab, "n_ctx", d->n_ctx, "rope", rope_name(d->rope),
        "rotary_dim", d->rotary_dim, "rope_theta", d->rope_theta, "norm_eps", (double)d->norm_eps,
        "has_qkv_bias", d->has_qkv_bias, "tied_output", d->tied_output, "n_pieces",
        report->tok ? (int)tokenizer_n_pieces(report->tok) : 0);
    json_t *figures = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "weight_type", dtype_name(report->weight_type),
        "kv_type", dtype_name(report->kv_type), "n_params", (json_int_t)report->n_params, "stored_bytes",
        (json_int_t)report->stored_bytes, "weight_bytes", (json_int_t)report->weight_bytes,
        "kv_bytes_per_token", (json_int_t)report->kv_bytes_per_token, "memory_bytes",
        (json_int_t)report->memory_bytes, "context", (json_int_t)report->context, "n_users",
        (json_int_t)report->n_users, "tensors", tensors);
    ok = ok && object && figures && json_object_update(object, figures) == 0;
    output_json(ok ? object : NULL, true); /* NULL: fails, which output_flush() reports */
    json_decref(figures);
    json_decref(object);
}

static void print_description(const struct report *report)
{
    const struct model_desc *d = &report->desc;
    output_printf("model          %s\n", report->path);
    output_printf("family         %s\n", report->family->name);
    output_printf("layers         %d\n", d->n_layers);
    output_printf("width          %d, feed-forward %d\n", d->d_model, d->d_ff);
    output_printf("attention      %d heads of %d, %d of keys and values%s\n", d->n_heads, d->head_dim,
                  d->n_kv_heads, d->has_qkv_bias ? ", with biases" : "");
    output_printf("positions      %s, %d of %d dimensions, theta %g\n", rope_name(d->rope), d->rotary_dim,
                  d->head_dim, d->rope_theta);
    output_printf("vocabulary     %d%s\n", d->n_vocab,
                  d->tied_output ? ", output tied to the embedding" : "");
    output_printf("context        %d tokens\n", d->n_ctx);
    if (report->tok)
        output_printf("tokenizer      %d pieces\n", tokenizer_n_pieces(report->tok));
    else
        output_printf("tokenizer      none (%s)\n", report->why);
    output_printf("chat format    %s\n\n", report->chat_format[0] ? report->chat_format : "none");
}

static void print_tensors(const struct report *report)
{
    char size[NUMBER_SIZE_BYTES];
    int width = 6;
    for (size_t i = 0; i < checkpoint_n_tensors(report->ck); i++) {
        int n = (int)strlen(checkpoint_tensor(report->ck, i)->name);
        width = n > width ? n : width;
    }
    output_printf("%-*s  %-5s %16s %10s\n", width, "tensor", "type", "shape", "size");
    for (size_t i = 0; i < checkpoint_n_tensors(report->ck); i++) {
        const struct tensor *t = checkpoint_tensor(report->ck, i);
        char shape[LIMIT_TENSOR_DIMS * 24] = "", name[LIMIT_TENSOR_NAME_BYTES + 1];
        for (int j = 0, n = 0; j < t->n_dims; j++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRId64, j ? " x " : "", t->shape[j]);
        output_printf("%-*s  %-5s %16s %10s\n", width, printable(name, t->name), dtype_name(t->dtype), shape,
                      number_write_size(size, t->n_bytes));
    }
    output_printf("\n");
}

static void print_figures(const struct report *report)
{
    char size[NUMBER_SIZE_BYTES], user[NUMBER_SIZE_BYTES];
    output_printf("parameters     %" PRIu64 ", %s in the file%s\n", report->n_params,
                  number_write_size(size, report->stored_bytes), checkpoint_gguf(report->ck) ? "" : "s");
    output_printf("weights        %s as %s\n", number_write_size(size, report->weight_bytes),
                  dtype_name(report->weight_type));
    output_printf("KV cache       %" PRIu64 " bytes a token as %s, %s for %" PRId64 " tokens\n",
                  report->kv_bytes_per_token, dtype_name(report->kv_type),
                  number_write_size(user, (uint64_t)report->context * report->kv_bytes_per_token),
                  report->context);
    output_printf("users          %" PRIu64 " of %" PRId64 " tokens each fit into %s beside the weights\n",
                  report->n_users, report->context, number_write_size(size, report->memory_bytes));
}

static enum tutti_status run(const void *v, const char *const *operands, int n_operands,
                             struct tutti_error *err)
{
    (void)n_operands;
    const struct inspect_values *values = v;
    struct report report = { 0 };
    enum tutti_status st = gather(&report, values, operands[0], err);
    if (st == TUTTI_OK && values->json) {
        print_json(&report);
    } else if (st == TUTTI_OK) {
        print_description(&report);
        print_tensors(&report);
        print_figures(&report);
    }
    tokenizer_free(report.tok);
    checkpoint_close(report.ck);
    return st;
}

const struct command COMMAND_INSPECT = {
    .name = "inspect",
    .summary = "show what a checkpoint holds, and how many users fit",
    .about = "Prints the description of the model, its tensors, what weights and KV cache take, and how many "
             "users of "
             "a context fit into a memory. No weights are loaded.",
    .example = "tutti inspect models/demo\n"
               "tutti inspect chatglm3-6b --type q4_0 --memory 16G --context 4096",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .values_bytes = sizeof(struct inspect_values),
    .run = run,
};
