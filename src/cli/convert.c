/* tutti convert: converts any checkpoint to one GGUF file. */
#include "offline/convert.h"
#include "offline/imatrix.h"

#include "base/files/new_file.h"
#include "base/json/json_list.h"
#include "base/json/json_print.h"
#include "cli/options/command.h"
#include "cli/options/output_path.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct convert_values {
    const char *type, *report_file;
    int threads;
    bool pure, report;
    struct option_texts merge_lora, tensor_type;
    const char *imatrix;
};

#define VALUES struct convert_values
static const struct option OPTIONS[] = {
    CHOICE_OPTION(VALUES, type, "type", "TYPE", WEIGHT_TYPE_NAMES, "type of the matrices",
                  .aliases = WEIGHT_TYPE_ALIASES, .initial = "f16"),
    FLAG_OPTION(
        VALUES, pure, "pure",
        "convert every matrix to the same type; without it, quantized types keep some matrices at more bits"),
    TEXTS_OPTION(VALUES, tensor_type, "tensor-type", "PATTERN=TYPE",
                 "type of the matrices whose names in FILE match the regular expression PATTERN, such as "
                 "ffn_down=q6_k; the first match counts"),
    TEXT_OPTION(VALUES, imatrix, "imatrix", "FILE",
                "importance matrix of llama-imatrix (.dat or GGUF): columns with larger values are quantized "
                "more precisely"),
    TEXTS_OPTION(VALUES, merge_lora, "merge-lora", "PATH[:SCALE]",
                 "merge the adapter in the folder PATH (LoRA, as PEFT saves it) into the weights, its "
                 "updates times SCALE"),
    FLAG_OPTION(VALUES, report, "report", "print the error of each tensor"),
    TEXT_OPTION(VALUES, report_file, "report-file", "FILE", "write the error of each tensor as JSON"),
    INT_OPTION(VALUES, threads, "threads", "N",
               "number of threads; without it, one for each core that this process may use", .letter = 't',
               .min = 1, .max = 256),
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

/* ---- the report ---- */

struct convert_report {
    struct progress progress;
    const char *type;
    json_t *tensors; /* what --report-file writes; NULL: out of memory, or not wanted */
    struct buf table;
    bool is_table, ok;
    double squares, squared_error;
    float max_error;
    uint64_t n_elems, n_bytes;
};

/* The root mean squared error, relative to the root mean square. */
static double relative(double squared_error, double squares)
{
    return squares > 0 ? sqrt(squared_error / squares) : 0;
}

static void add_to_table(struct convert_report *r, const struct convert_result *t)
{
    char shape[64] = "", change[40], note[48] = "";
    for (int i = 0; i < t->n_dims; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", i ? "x" : "",
                 (long long)t->shape[i]);
    snprintf(change, sizeof change, "%s > %s", dtype_name(t->from), dtype_name(t->to));
    if (t->to != t->wanted)
        snprintf(note, sizeof note, "  does not fit %s", dtype_name(t->wanted));
    r->ok = r->ok && buf_printf(&r->table, "%-28s %14s %14s %12.6f %12.4g%s\n", t->name, shape, change,
                                relative(t->squared_error, t->squares), (double)t->max_error, note);
}

static void add_to_json(struct convert_report *r, const struct convert_result *t)
{
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:f, s:f}", "name", t->name, "from",
                               dtype_name(t->from), "type", dtype_name(t->to), "wanted",
                               dtype_name(t->wanted), "shape", json_integers(t->shape, (size_t)t->n_dims),
                               "bytes", (json_int_t)t->n_bytes, "relative_rms_error",
                               relative(t->squared_error, t->squares), "max_error", (double)t->max_error);
    r->ok = r->ok && json_array_append_new(r->tensors, object) == 0; /* NULL fails too */
}

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    struct convert_report *r = user;
    progress_update(&r->progress, done, total);
}

static void on_tensor(void *user, const struct convert_result *t)
{
    struct convert_report *r = user;
    r->squares += t->squares;
    r->squared_error += t->squared_error;
    r->max_error = t->max_error > r->max_error ? t->max_error : r->max_error;
    r->n_elems += t->n_elems;
    r->n_bytes += t->n_bytes;
    if (r->is_table)
        add_to_table(r, t);
    if (r->tensors)
        add_to_json(r, t);
}

static void print_report(const struct convert_report *r)
{
    char size[NUMBER_SIZE_BYTES];
    output_printf("%-28s %14s %14s %12s %12s\n", "tensor", "shape", "type", "relative RMS", "largest");
    output_write(r->table.bytes, r->table.n_bytes);
    output_printf("%-28s %14s %14s %12.6f %12.4g\n", "all", number_write_size(size, r->n_bytes), r->type,
                  relative(r->squared_error, r->squares), (double)r->max_error);
    output_printf("%.3f bits for each of %llu weights\n", 8 * (double)r->n_bytes / (double)r->n_elems,
                  (unsigned long long)r->n_elems);
}

static enum tutti_status write_report(const struct convert_report *r, const char *path,
                                      struct tutti_error *err)
{
    struct buf text = { 0 };
    json_t *object = json_pack("{s:s, s:I, s:I, s:f, s:f, s:O}", "type", r->type, "weights",
                               (json_int_t)r->n_elems, "bytes", (json_int_t)r->n_bytes, "relative_rms_error",
                               relative(r->squared_error, r->squares), "max_error", (double)r->max_error,
                               "tensors", r->tensors);
    bool ok = json_print_to(&text, object, JSON_INDENT(1)) && buf_add_string(&text, "\n");
    enum tutti_status st = ok ? new_file_put(path, text.bytes, text.n_bytes, err)
                              : error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    buf_clear(&text);
    json_decref(object);
    return st;
}

/* "PATH" or "PATH:SCALE". paths: [OPTION_MAX_TEXTS] copies without the scale, freed by the caller. */
static enum tutti_status read_merge_options(const struct option_texts *texts, struct merge_source *out,
                                            char **paths, struct tutti_error *err)
{
    for (int i = 0; i < texts->n; i++) {
        const char *text = texts->texts[i], *colon = strrchr(text, ':');
        size_t n = strlen(text);
        out[i].scale = 1;
        if (colon && colon > text && access(text, F_OK) != 0 && /* a path that exists may end in a number */
            number_read_float(colon + 1, &out[i].scale))
            n = (size_t)(colon - text);
        if (!(fabs(out[i].scale) <= 1000))
            return error_set_param(err, TUTTI_E_ARGUMENT, "merge-lora",
                                   "--merge-lora %s: the scale is not from -1000 to 1000", text);
        paths[i] = strndup(text, n);
        if (!paths[i])
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the options");
        out[i].path = paths[i];
    }
    return TUTTI_OK;
}

/* "PATTERN=TYPE". patterns: [OPTION_MAX_TEXTS] copies, freed by the caller. */
static enum tutti_status read_tensor_types(const struct option_texts *texts, struct convert_tensor_type *out,
                                           char **patterns, struct tutti_error *err)
{
    for (int i = 0; i < texts->n; i++) {
        const char *text = texts->texts[i], *equals = strrchr(text, '=');
        const struct weight_type *type = equals ? weight_type_find(equals + 1) : NULL;
        char known[256];
        weight_type_list(known, sizeof known);
        if (!type || equals == text)
            return error_set_param(err, TUTTI_E_ARGUMENT, "tensor-type",
                                   "--tensor-type %s: expected PATTERN=TYPE, where TYPE is %s", text, known);
        patterns[i] = strndup(text, (size_t)(equals - text));
        if (!patterns[i])
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the options");
        out[i] = (struct convert_tensor_type){ patterns[i], type->dtype };
    }
    return TUTTI_OK;
}

/* Checks the files to write before the work, which may take hours. */
static enum tutti_status check_outputs(const struct convert_values *values, const char *const *operands,
                                       struct tutti_error *err)
{
    const char *const inputs[] = { values->imatrix, operands[0] };
    enum tutti_status st = output_path_check("FILE", operands[1], inputs, 1, err);
    if (st != TUTTI_OK || !values->report_file)
        return st;
    if (output_path_is_same(values->report_file, operands[1]))
        return error_set(err, TUTTI_E_ARGUMENT, "--report-file: %s is the file to convert to", operands[1]);
    st = output_path_check("--report-file", values->report_file, inputs, 2, err);
    return st == TUTTI_OK ? output_path_try(values->report_file, err) : st;
}

static enum tutti_status run_convert(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct convert_values *values = v;
    bool wants_report = values->report || values->report_file;
    struct convert_report report = { .type = values->type, .is_table = values->report, .ok = true };
    struct convert_options options = {
        .type = weight_type_find(values->type),
        .is_pure = values->pure,
        .n_threads = values->threads,
        .progress = on_progress,
        .report = wants_report ? on_tensor : NULL,
        .user = &report,
    };
    struct merge_source merges[OPTION_MAX_TEXTS];
    char *paths[OPTION_MAX_TEXTS] = { NULL };
    struct convert_tensor_type types[OPTION_MAX_TEXTS];
    char *patterns[OPTION_MAX_TEXTS] = { NULL };
    struct imatrix *imatrix = NULL;
    options.tensor_types = types;
    options.n_tensor_types = values->tensor_type.n;
    options.merges = merges;
    options.n_merges = values->merge_lora.n;
    enum tutti_status st = check_outputs(values, operands, err);
    if (st != TUTTI_OK)
        return st;
    if (values->report_file && !(report.tensors = json_array()))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    progress_begin(&report.progress, "converting", PROGRESS_BYTES);
    st = read_merge_options(&values->merge_lora, merges, paths, err);
    if (st == TUTTI_OK)
        st = read_tensor_types(&values->tensor_type, types, patterns, err);
    if (st == TUTTI_OK && values->imatrix)
        st = imatrix_open(&imatrix, values->imatrix, err);
    options.imatrix = imatrix;
    if (st == TUTTI_OK)
        st = convert_to_gguf(operands[0], operands[1], &options, err);
    imatrix_close(imatrix);
    for (int i = 0; i < OPTION_MAX_TEXTS; i++) {
        free(paths[i]);
        free(patterns[i]);
    }
    progress_end(&report.progress);
    if (st == TUTTI_OK && !report.ok)
        st = error_set(err, TUTTI_E_MEMORY, "%s is written; out of memory for the report", operands[1]);
    if (st == TUTTI_OK && values->report)
        print_report(&report);
    if (st == TUTTI_OK && values->report_file)
        st = write_report(&report, values->report_file, err);
    buf_clear(&report.table);
    json_decref(report.tensors);
    return st;
}

const struct command COMMAND_CONVERT = {
    .name = "convert",
    .summary = "write a checkpoint as a GGUF file",
    .about =
        "Reads the checkpoint at MODEL and writes FILE with the weights in the given type, the "
        "tokenizer and the metadata. The model is streamed: at most one matrix is in memory. "
        "FILE appears under its name when it is complete, and its bytes do not depend on the "
        "number of threads.\n\nVectors stay f32. As in llama.cpp, quantized types keep the "
        "output in q6_k (q8_0 in q8_0), and the types on _m and _l, q4_k_s and q2_k also some of "
        "the most sensitive matrices; q4_k means q4_k_m. mxfp4 is for the experts of a model, and all else "
        "is "
        "q8_0. --pure converts all of them to the same "
        "type. A matrix whose rows are no multiple of 256 becomes q4_0 instead of q2_k and q3_k, "
        "q5_0 instead of q4_k, q5_1 instead of q5_k, q8_0 instead of q6_k; if they are no "
        "multiple of 32 either, f16.\n\n--tensor-type gives matrices another type than --type and --pure, by "
        "their names in FILE (blk.0.attn_q.weight); routers and vectors keep theirs. Of a TYPE such "
        "as q4_k_m that is a mix, it is that of most matrices.",
    .example = "tutti convert models/demo demo.gguf --type q4_k_m --report",
    .options = OPTION_SET(GROUPS, "MODEL FILE", 2, 2, "expected MODEL and FILE, the GGUF file to write"),
    .n_models = 1,
    .values_bytes = sizeof(struct convert_values),
    .run = run_convert,
};
