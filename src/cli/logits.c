/* tutti logits: writes the logits of every position for given token ids, to check a model. */
#include "base/files/new_file.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/options/output_path.h"
#include "cli/terminal/input.h"
#include "cli/terminal/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct logits_values {
    const char *ids, *out;
    struct model_flags model;
};

static const struct option OPTIONS[] = {
    TEXT_OPTION(
        struct logits_values, ids, "ids", "LIST",
        "token ids separated by commas or blanks; @FILE reads them from a file, @- from standard input"),
    TEXT_OPTION(struct logits_values, out, "out", "FILE", "the safetensors file to write", .letter = 'o'),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Model", MODEL_OPTIONS, offsetof(struct logits_values, model) },
    { .title = NULL },
};

/* Safetensors: the length of a JSON header as 64 bits, the header, the data
 * (huggingface/safetensors, "Format"). The header is filled with blanks so that the data is
 * aligned to 8 bytes. */
static enum tutti_status write_logits(struct new_file *file, const struct ids *ids, const float *logits,
                                      int n_vocab, struct tutti_error *err)
{
    uint64_t logits_bytes = (uint64_t)ids->n * (uint64_t)n_vocab * sizeof *logits;
    uint64_t ids_bytes = (uint64_t)ids->n * sizeof *ids->ids;
    char header[512];
    int n = snprintf(header, sizeof header,
                     "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%d],\"data_offsets\":[0,%" PRIu64 "]},"
                     "\"ids\":{\"dtype\":\"I32\",\"shape\":[%zu],\"data_offsets\":[%" PRIu64 ",%" PRIu64
                     "]}}",
                     ids->n, n_vocab, logits_bytes, ids->n, logits_bytes, logits_bytes + ids_bytes);
    for (; n % 8 != 0; n++)
        header[n] = ' ';
    uint8_t length[8] = { (uint8_t)n, (uint8_t)(n >> 8) };
    enum tutti_status st = new_file_write(file, length, sizeof length, err);
    if (st == TUTTI_OK)
        st = new_file_write(file, header, (size_t)n, err);
    if (st == TUTTI_OK)
        st = new_file_write(file, logits, (size_t)logits_bytes, err);
    if (st == TUTTI_OK)
        st = new_file_write(file, ids->ids, (size_t)ids_bytes, err);
    return st == TUTTI_OK ? new_file_finish(file, err) : st;
}

static enum tutti_status compute(tutti_model *model, const struct ids *ids, const char *path,
                                 struct tutti_error *err)
{
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] >= info.n_vocab)
            return error_set(err, TUTTI_E_ARGUMENT, "--ids: found %d at id %zu, expected 0 to %d",
                             ids->ids[i], i, info.n_vocab - 1);
    struct new_file *file = NULL;
    size_t n_floats, n_bytes;
    float *logits = NULL;
    if (!__builtin_mul_overflow(ids->n, (size_t)info.n_vocab, &n_floats) &&
        !__builtin_mul_overflow(n_floats, sizeof *logits, &n_bytes))
        logits = malloc(n_bytes);
    enum tutti_status st = TUTTI_OK;
    if (!logits) {
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the logits of %zu tokens", ids->n);
        goto done;
    }
    st = new_file_open(&file, path, err); /* before the work, so that a bad path fails at once */
    if (st == TUTTI_OK)
        st = tutti_model_logits(model, ids->ids, ids->n, logits, err);
    if (st == TUTTI_OK)
        st = write_logits(file, ids, logits, info.n_vocab, err);
done:
    new_file_free(file);
    free(logits);
    return st;
}

static enum tutti_status run_logits(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct logits_values *values = v;
    struct ids ids = { 0 };
    tutti_model *model = NULL;
    tutti_ranks *ranks = NULL;
    bool is_done;
    if (!values->ids || !values->out)
        return error_set(err, TUTTI_E_ARGUMENT, "expected %s", values->ids ? "--out FILE" : "--ids LIST");
    const char *const inputs[] = { operands[0], input_ids_file(values->ids) };
    enum tutti_status st = output_path_check("--out", values->out, inputs, 2, err);
    if (st != TUTTI_OK)
        return st;
    st = model_flags_join(&values->model, NULL, NULL, operands[0], &ranks, &is_done, err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = input_read_ids(&ids, values->ids, err);
    if (st == TUTTI_OK && ids.n == 0)
        st = error_set(err, TUTTI_E_ARGUMENT, "--ids: expected at least one token id");
    struct model_flags flags = values->model;
    flags.options.max_context = (int)ids.n;
    if (st == TUTTI_OK)
        st = model_flags_open(&flags, ranks, operands[0], &model, err);
    if (st == TUTTI_OK)
        st = compute(model, &ids, values->out, err);
    tutti_model_close(model);
    tutti_ranks_close(ranks);
    ids_clear(&ids);
    return st;
}

const struct command COMMAND_LOGITS = {
    .name = "logits",
    .summary = "write the logits of given token ids to a file",
    .about = "Runs the model over the ids and writes a safetensors file with \"logits\", float32 [n, "
             "vocabulary], one row per position, and \"ids\", int32 [n]. No tokenizer is needed. The "
             "file appears under its name when it is complete.",
    .example = "tutti logits models/demo --ids 5,17,3 --out logits.safetensors --type f32 --kv-type f32",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct logits_values),
    .run = run_logits,
};
