/* tutti perplexity: measures a model's perplexity on a text, and its KL divergence from another
 * model. */
#include "offline/perplexity.h"

#include "base/json/json_list.h"
#include "base/log.h"
#include "base/system/clock.h"
#include "checkpoint/gguf/gguf.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/options/output_path.h"
#include "cli/terminal/input.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "engine/run/engine.h"
#include "offline/logits_base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct perplexity_values {
    const char *ids, *save, *base;
    int context, chunks, stride;
    bool text_prefix, json;
    struct model_flags model;
};

#define VALUES struct perplexity_values
static const struct option OPTIONS[] = {
    INT_OPTION(VALUES, context, "context", "N", "tokens of a window; without it 512, or the base's",
               .letter = 'c', .min = 4, .max = LIMIT_CONTEXT),
    INT_OPTION(VALUES, stride, "stride", "N",
               "start a window every N tokens and score its last N; without it windows do not overlap, and "
               "the second half of each is scored",
               .min = 1, .max = LIMIT_CONTEXT),
    INT_OPTION(VALUES, chunks, "chunks", "N", "use only the first N windows", .min = 1, .max = INT32_MAX),
    TEXT_OPTION(VALUES, ids, "ids", "LIST",
                "instead of FILE: token ids separated by commas or blanks; @FILE reads them from a file, @- "
                "from standard input"),
    FLAG_OPTION(VALUES, text_prefix, "text-prefix",
                "begin each window with all ids that the model expects before a text, such as GLM's "
                "[gMASK]<sop>; without it, as in llama.cpp, only with the bos id, if the model has one"),
    TEXT_OPTION(VALUES, save, "save-logits", "BASE",
                "write the model's log-probabilities of every scored token to a file, for --kl"),
    TEXT_OPTION(VALUES, base, "kl", "BASE",
                "compare with the log-probabilities of another model: BASE is a file of --save-logits or of "
                "llama-perplexity's --kl-divergence-base, evaluated on the text that it contains; or a model "
                "(a folder or a GGUF file), which then runs as stored on the same FILE"),
    FLAG_OPTION(VALUES, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Model", MODEL_OPTIONS, offsetof(VALUES, model) },
    { .title = NULL },
};

/* The log-probabilities of a base model for the windows that are computed together. */
struct base_model {
    tutti_model *handle; /* NULL: the base is a file, or none */
    struct model *model;
    struct coded_row *rows; /* [capacity] */
    uint16_t *codes;        /* [capacity][n_vocab] */
    size_t capacity, n, next;
};

struct perplexity_job {
    tutti_ranks *ranks; /* NULL: none */
    const struct perplexity_values *values;
    const char *file; /* NULL: none */
    tutti_model *handle;
    struct model *model;
    bool has_base;
    struct logits_base *base;
    struct base_model base_model;
    struct logits_base_writer *writer;
    struct ids ids, head;
    struct windows windows;
    int first_window; /* of the windows computed together */
    struct perplexity sums;
    struct progress progress;
    double seconds;
};

/* ---- input ---- */

/* A folder, or a GGUF file. */
static bool is_model(const char *path)
{
    char magic[4] = "";
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return true;
    FILE *file = fopen(path, "rb");
    bool is_gguf = file && GGUF_FORMAT.is(magic, fread(magic, 1, sizeof magic, file));
    if (file)
        fclose(file);
    return is_gguf;
}

static enum tutti_status check_call(const struct perplexity_job *job, bool base_is_model,
                                    struct tutti_error *err)
{
    const struct perplexity_values *v = job->values;
    if (job->file && v->ids)
        return error_set(err, TUTTI_E_ARGUMENT, "expected either FILE or --ids");
    if (!job->file && !v->ids && !v->base)
        return error_set(err, TUTTI_E_ARGUMENT, "expected FILE, --ids LIST or --kl BASE");
    if (v->base && v->save)
        return error_set(err, TUTTI_E_ARGUMENT, "--kl and --save-logits exclude each other");
    if (base_is_model && !job->file && !v->ids)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--kl: %s is a model, expected FILE or --ids LIST for both to read", v->base);
    if (base_is_model && v->model.tp > 1)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--kl: with --tp expected a file of --save-logits, found the model %s", v->base);
    if (v->base && !base_is_model && (v->context > 0 || v->stride > 0 || v->text_prefix))
        return error_set(err, TUTTI_E_ARGUMENT, "--kl: the base defines the windows; expected no %s",
                         v->context > 0  ? "--context"
                         : v->stride > 0 ? "--stride"
                                         : "--text-prefix");
    return TUTTI_OK;
}

static enum tutti_status read_text_ids(struct perplexity_job *job, struct ids *out, struct tutti_error *err)
{
    struct buf text = { 0 };
    if (job->values->ids)
        return input_read_ids(out, job->values->ids, err);
    enum tutti_status st = input_read(&text, job->file, err);
    if (st == TUTTI_OK && !job->model->tokenizer)
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s has no tokenizer that tutti reads; --ids takes token ids", job->model->name);
    else if (st == TUTTI_OK && !tokenizer_encode(job->model->tokenizer, text.bytes, text.n_bytes, out))
        st = tokenizer_encode_error(out, err);
    buf_clear(&text);
    return st;
}

/* Finds the ids before the text: all that the model expects, or only bos. */
static enum tutti_status find_head(struct perplexity_job *job, bool all, struct tutti_error *err)
{
    enum tutti_status st = model_text_prefix(job->model, &job->head, err);
    if (st == TUTTI_OK && !all && job->head.n != 1)
        job->head.n = 0;
    return st;
}

static int64_t window_context(const struct perplexity_job *job)
{
    if (job->base)
        return logits_base_windows(job->base)->n_context;
    return job->values->context > 0 ? job->values->context : 512;
}

static enum tutti_status plan_windows(struct perplexity_job *job, struct tutti_error *err)
{
    const struct perplexity_values *v = job->values;
    struct ids text = { 0 };
    int64_t n_context = window_context(job);
    int64_t step = v->stride > 0 ? v->stride : n_context;
    int64_t first = v->stride > 0 ? n_context - step - 1 : n_context / 2;
    if (v->stride > 0 && v->stride >= n_context)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--stride: found %lld, expected less than the %lld ids of a window",
                         (long long)v->stride, (long long)n_context);
    enum tutti_status st = find_head(job, v->text_prefix, err);
    if (st == TUTTI_OK)
        st = read_text_ids(job, &text, err);
    if (st == TUTTI_OK && (!ids_add_all(&job->ids, job->head.ids, v->ids ? 0 : job->head.n) ||
                           !ids_add_all(&job->ids, text.ids, text.n)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the ids");
    ids_clear(&text);
    if (st != TUTTI_OK)
        return st;
    int64_t n_ids = (int64_t)job->ids.n, n = n_ids < n_context ? 0 : (n_ids - n_context) / step + 1;
    if (n == 0)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "the text has %lld ids, expected at least the %lld of a window; "
                         "--context takes less",
                         (long long)n_ids, (long long)n_context);
    if (n > INT32_MAX)
        return error_set(err, TUTTI_E_LIMIT, "the text has %lld windows, expected at most %d", (long long)n,
                         INT32_MAX);
    job->windows = (struct windows){ .ids = job->ids.ids,
                                     .n = (int)(v->chunks > 0 && v->chunks < n ? v->chunks : n),
                                     .n_context = (int)n_context,
                                     .step = (int)step,
                                     .first = (int)first,
                                     .head = job->head.ids,
                                     .n_head = (int)job->head.n };
    return TUTTI_OK;
}

/* Uses the base's windows. If a text is given, it must be the base's. */
static enum tutti_status take_windows(struct perplexity_job *job, struct tutti_error *err)
{
    const struct perplexity_values *v = job->values;
    struct ids given = { 0 };
    enum tutti_status st = TUTTI_OK;
    job->windows = *logits_base_windows(job->base);
    if (logits_base_n_vocab(job->base) != job->model->desc.n_vocab)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: has a vocabulary of %d, but the model one of %d",
                         v->base, logits_base_n_vocab(job->base), job->model->desc.n_vocab);
    if (!logits_base_fits(job->base, job->model))
        log_warn("%s was made with %s, a model of another shape", v->base, logits_base_name(job->base));
    if (logits_base_is_llama(job->base)) {
        st = find_head(job, false, err);
        job->windows.head = job->head.ids;
        job->windows.n_head = (int)job->head.n;
    }
    if (st == TUTTI_OK && (job->file || v->ids)) {
        const struct windows *w = &job->windows;
        size_t n = (size_t)(w->n - 1) * (size_t)w->step + (size_t)w->n_context, n_head = 0;
        st = read_text_ids(job, &given, err);
        /* The head replaces the base's first ids. */
        if (st == TUTTI_OK && !v->ids && w->n_head > 0 &&
            memcmp(w->ids, w->head, (size_t)w->n_head * sizeof *w->ids) == 0)
            n_head = (size_t)w->n_head;
        if (st == TUTTI_OK && (given.n < n - n_head ||
                               memcmp(given.ids, w->ids + n_head, (n - n_head) * sizeof *given.ids) != 0))
            st = error_set(err, TUTTI_E_ARGUMENT, "%s: was made from another text than %s", v->base,
                           v->ids ? "--ids" : job->file);
    }
    if (v->chunks > 0 && v->chunks < job->windows.n)
        job->windows.n = (int)v->chunks;
    ids_clear(&given);
    return st;
}

/* ---- base model ---- */

/* Opens the base model as stored, with the default KV type, to show the cost of --type and
 * --kv-type. */
static enum tutti_status open_base_model(struct perplexity_job *job, struct tutti_error *err)
{
    struct model_flags flags = job->values->model;
    flags.options.max_context = (int)window_context(job);
    flags.options.weight_type = flags.options.kv_type = flags.options.chat_format = NULL;
    enum tutti_status st = model_flags_open(&flags, NULL, job->values->base, &job->base_model.handle, err);
    if (st != TUTTI_OK)
        return st;
    job->base_model.model = model_of(job->base_model.handle);
    int n_vocab = job->base_model.model->desc.n_vocab;
    if (n_vocab != job->model->desc.n_vocab)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: has a vocabulary of %d, but the model one of %d",
                         job->values->base, n_vocab, job->model->desc.n_vocab);
    return TUTTI_OK;
}

static enum tutti_status reserve_base_model(struct perplexity_job *job, struct tutti_error *err)
{
    struct base_model *b = &job->base_model;
    size_t n_vocab = (size_t)job->model->desc.n_vocab, n_codes;
    b->capacity = (size_t)windows_n_together(&job->windows) * (size_t)windows_n_scored(&job->windows);
    b->rows = calloc(b->capacity, sizeof *b->rows);
    if (!__builtin_mul_overflow(b->capacity, n_vocab, &n_codes))
        b->codes = calloc(n_codes, sizeof *b->codes);
    return b->rows && b->codes
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "out of memory for the base's log-probabilities of %zu ids",
                           b->capacity);
}

static enum tutti_status keep_rows(void *user, int window, int row, int n_rows, const float *logits,
                                   struct tutti_error *err)
{
    struct perplexity_job *job = user;
    struct base_model *b = &job->base_model;
    size_t n_vocab = (size_t)job->sums.n_vocab;
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n_rows && st == TUTTI_OK; i++, logits += n_vocab, b->n++)
        st = perplexity_code(&job->sums, logits,
                             windows_target(&job->windows, job->first_window + window, row + i),
                             b->codes + b->n * n_vocab, &b->rows[b->n], err);
    return st;
}

/* ---- evaluation ---- */

static enum tutti_status on_rows(void *user, int window, int row, int n_rows, const float *logits,
                                 struct tutti_error *err)
{
    struct perplexity_job *job = user;
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n_rows && st == TUTTI_OK; i++, logits += job->sums.n_vocab) {
        int32_t target = windows_target(&job->windows, job->first_window + window, row + i);
        struct coded_row base;
        if (job->base_model.handle)
            base = job->base_model.rows[job->base_model.next++];
        else if (job->base)
            st = logits_base_next(job->base, &base, err);
        if (st == TUTTI_OK && job->writer)
            st = logits_base_add(job->writer, &job->sums, logits, target, err);
        if (st == TUTTI_OK)
            st = perplexity_add(&job->sums, logits, target, job->has_base ? &base : NULL, err);
    }
    int n_scored = windows_n_scored(&job->windows);
    uint64_t n_windows = job->sums.n / (uint64_t)n_scored, n_context = (uint64_t)job->windows.n_context;
    progress_update(&job->progress, n_windows * n_context, (uint64_t)job->windows.n * n_context);
    return st;
}

/* Runs both models alternately, on as many windows as are computed together. */
static enum tutti_status run_base_model(struct perplexity_job *job, struct tutti_error *err)
{
    enum tutti_status st = reserve_base_model(job, err);
    int n_all = job->windows.n, n_each = windows_n_together(&job->windows);
    for (int i = 0; i < n_all && st == TUTTI_OK; i += n_each) {
        struct windows part = job->windows;
        part.ids += (int64_t)i * part.step;
        part.n = n_all - i < n_each ? n_all - i : n_each;
        job->first_window = i;
        job->base_model.n = job->base_model.next = 0;
        st = windows_run(job->base_model.model, &part, keep_rows, job, err);
        if (st == TUTTI_OK)
            st = windows_run(job->model, &part, on_rows, job, err);
    }
    return st;
}

static enum tutti_status read_all_text(struct perplexity_job *job, struct tutti_error *err)
{
    enum tutti_status st = perplexity_init(&job->sums, job->model->desc.n_vocab, job->has_base, err);
    if (st == TUTTI_OK && job->values->save)
        st = logits_base_create(&job->writer, job->values->save, job->model, &job->windows, err);
    if (st != TUTTI_OK)
        return st;
    progress_begin(&job->progress, "reading", PROGRESS_TOKENS);
    uint64_t begin = clock_now_us();
    st = job->base_model.handle ? run_base_model(job, err)
                                : windows_run(job->model, &job->windows, on_rows, job, err);
    job->seconds = (double)(clock_now_us() - begin) / 1e6;
    progress_end(&job->progress);
    return st == TUTTI_OK && job->writer ? logits_base_finish(job->writer, err) : st;
}

/* ---- output ---- */

static double n_read(const struct perplexity_job *job)
{
    return (double)job->windows.n * (double)job->windows.n_context;
}

static void print_mean(const char *label, struct mean x, double factor, const char *unit)
{
    output_printf("%-28s %11.6f ± %.6f%s\n", label, factor * x.value, factor * x.error, unit);
}

static void print_base(struct perplexity_job *job)
{
    struct perplexity *s = &job->sums;
    print_mean("perplexity of the base", perplexity_base_value(s), 1, "");
    print_mean("difference", perplexity_difference(s), 1, "");
    print_mean("logarithm of the ratio", perplexity_log_ratio(s), 1, "");
    print_mean("KL divergence, mean", perplexity_kl(s), 1, "");
    output_printf("%-28s %11.6f\n", "  median", perplexity_kl_quantile(s, 0.5));
    output_printf("%-28s %11.6f\n", "  99th percentile", perplexity_kl_quantile(s, 0.99));
    output_printf("%-28s %11.6f\n", "  largest", perplexity_kl_quantile(s, 1));
    print_mean("change of probability, RMS", perplexity_change(s), 100, " %");
    print_mean("same most probable token", perplexity_same_top(s), 100, " %");
}

static void print_text(struct perplexity_job *job)
{
    const struct windows *w = &job->windows;
    print_mean("perplexity", perplexity_value(&job->sums), 1, "");
    if (job->has_base)
        print_base(job);
    output_printf("%llu ids scored of %.0f in %d window%s of %d; %.1f ids/s\n",
                  (unsigned long long)job->sums.n, n_read(job), w->n, w->n == 1 ? "" : "s", w->n_context,
                  job->seconds > 0 ? n_read(job) / job->seconds : 0);
}

static void print_json(struct perplexity_job *job)
{
    struct perplexity *s = &job->sums;
    struct mean value = perplexity_value(s);
    json_t *object = json_pack("{s:f, s:f, s:I, s:I, s:i, s:i, s:i, s:f}", "perplexity", value.value,
                               "perplexity_error", value.error, "scored", (json_int_t)s->n, "read",
                               (json_int_t)n_read(job), "windows", job->windows.n, "context",
                               job->windows.n_context, "step", job->windows.step, "ids_per_second",
                               job->seconds > 0 ? n_read(job) / job->seconds : 0.0);
    if (job->has_base) {
        struct mean base = perplexity_base_value(s), change = perplexity_change(s), kl = perplexity_kl(s);
        struct mean difference = perplexity_difference(s), ratio = perplexity_log_ratio(s),
                    top = perplexity_same_top(s);
        json_t *more = json_pack(
            "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "base_perplexity",
            base.value, "base_perplexity_error", base.error, "difference", difference.value,
            "difference_error", difference.error, "log_ratio", ratio.value, "log_ratio_error", ratio.error,
            "kl", kl.value, "kl_error", kl.error, "kl_median", perplexity_kl_quantile(s, 0.5), "kl_99",
            perplexity_kl_quantile(s, 0.99), "kl_max", perplexity_kl_quantile(s, 1), "same_top", top.value,
            "same_top_error", top.error, "probability_rms", change.value, "probability_rms_error",
            change.error);
        object = json_merge(object, more);
    }
    output_json(object, true); /* NULL: fails, which output_flush() reports */
    json_decref(object);
}

static enum tutti_status run_job(struct perplexity_job *job, const char *path, struct tutti_error *err)
{
    const char *const inputs[] = { path, job->file, input_ids_file(job->values->ids) };
    job->has_base = job->values->base != NULL;
    bool base_is_model = job->has_base && is_model(job->values->base);
    enum tutti_status st = check_call(job, base_is_model, err);
    if (st == TUTTI_OK && job->values->save)
        st = output_path_check("--save-logits", job->values->save, inputs, sizeof inputs / sizeof *inputs,
                               err);
    if (st == TUTTI_OK && job->has_base &&
        !base_is_model) /* before the model: it is quick, and fails more often */
        st = logits_base_open(&job->base, job->values->base, err);
    struct model_flags flags = job->values->model;
    flags.options.max_context = (int)window_context(job);
    if (st == TUTTI_OK)
        st = model_flags_open(&flags, job->ranks, path, &job->handle, err);
    if (st != TUTTI_OK)
        return st;
    job->model = model_of(job->handle);
    st = job->base ? take_windows(job, err) : plan_windows(job, err);
    if (st == TUTTI_OK && base_is_model)
        st = open_base_model(job, err);
    if (st == TUTTI_OK && job->windows.n_context > job->model->desc.n_ctx)
        log_warn("windows of %d ids, but the model was made for %d", job->windows.n_context,
                 job->model->desc.n_ctx);
    if (st == TUTTI_OK)
        st = read_all_text(job, err);
    if (st == TUTTI_OK && job->values->json)
        print_json(job);
    else if (st == TUTTI_OK)
        print_text(job);
    return st;
}

static enum tutti_status run_perplexity(const void *v, const char *const *operands, struct tutti_error *err)
{
    struct perplexity_job job = { .values = v, .file = operands[1] };
    bool is_done;
    enum tutti_status st = model_flags_join(&job.values->model, NULL, NULL, operands[0], &job.ranks, &is_done,
                                            err);
    if (st != TUTTI_OK || is_done)
        return st;
    st = run_job(&job, operands[0], err);
    perplexity_clear(&job.sums);
    logits_base_writer_free(job.writer);
    logits_base_close(job.base);
    tutti_model_close(job.base_model.handle);
    free(job.base_model.rows);
    free(job.base_model.codes);
    tutti_model_close(job.handle);
    tutti_ranks_close(job.ranks);
    ids_clear(&job.ids);
    ids_clear(&job.head);
    return st;
}

const struct command COMMAND_PERPLEXITY = {
    .name = "perplexity",
    .summary = "measure a model's perplexity on a text",
    .about = "Reads FILE (- for standard input) as one text, in windows of equal length, and prints "
             "the perplexity: e to the mean of the negative log-probability of each scored token, "
             "with its standard error. Without --stride, the windows and results are those of "
             "llama-perplexity.\n\nTo "
             "see what a quantized type costs, compare with the original model, given by --kl. The "
             "Kullback-Leibler divergence is more informative, on less text, than the difference of "
             "perplexities. To compare several types, or if two models do not fit into memory, save "
             "the log-probabilities of the original with --save-logits and give that file to --kl; it "
             "takes two bytes for each scored token and id of the vocabulary.",
    .example = "tutti perplexity demo-q4_k_m.gguf text.txt --kl models/demo\n"
               "tutti perplexity models/demo text.txt --type q8_0 --kl models/demo\n"
               "tutti perplexity models/demo text.txt --save-logits demo.base\n"
               "tutti perplexity demo-q4_k_m.gguf --kl demo.base",
    .options = OPTION_SET(GROUPS, "MODEL [FILE]", 1, 2,
                          "expected MODEL, a Hugging Face folder or a GGUF file"),
    .n_models = 1,
    .values_bytes = sizeof(struct perplexity_values),
    .run = run_perplexity,
};
