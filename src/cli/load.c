/* tutti load: sends load to a server and reports throughput, latencies and failures. */
#include "base/buf.h"
#include "base/files/new_file.h"
#include "base/system/os.h"
#include "base/utf8.h"
#include "cli/options/command.h"
#include "cli/options/output_path.h"
#include "cli/terminal/input.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "load/result.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const PROCESSES[] = { "poisson", "even", NULL };

enum { DEFAULT_REQUESTS = 100, MAX_KEYS = 4096 };

struct load_values {
    struct load_options options; /* except for what comes from the members below */
    int requests;
    int64_t seed;
    const char *prompts; /* NULL: made */
    struct made_prompts made;
    const char *body, *api_key_file, *json;
    double ttft_target, itl_target; /* 0: none */
    bool details;
};

#define VALUES struct load_values
static const struct option LOAD_OPTIONS[] = {
    FLOAT_OPTION(
        VALUES, options.rate, "rate", "X",
        "open loop: X requests arrive per second, independent of the server; without it, closed loop",
        .letter = 'r', .max = 100000, .above_min = true),
    ENUM_OPTION(VALUES, options.process, "arrivals", "HOW", PROCESSES,
                "with --rate: at random times, or at equal intervals", .initial = "poisson", .needs = "rate"),
    INT_OPTION(VALUES, options.concurrency, "concurrency", "C",
               "closed loop: C users (1 without it), each of which sends its next request when its answer "
               "has ended; with --rate: at most C requests are open at once, and the others wait",
               .letter = 'c', .min = 1, .max = LOAD_MAX_OPEN),
    FLOAT_OPTION(VALUES, options.duration_s, "duration", "SECONDS", "time in which new requests arrive",
                 .letter = 'd', .max = 604800, .above_min = true),
    INT_OPTION(VALUES, requests, "requests", "N",
               "number of requests; without it and --duration, each prompt of the file once, or 100",
               .letter = 'N', .min = 1, .max = LOAD_MAX_REQUESTS),
    INT64_OPTION(VALUES, seed, "seed", "S",
                 "seed of arrivals, order and synthetic prompts: the same seed gives the same load",
                 .initial = "0"),
    FLOAT_OPTION(VALUES, options.timeout_s, "timeout", "SECONDS", "timeout of one request", .max = 604800,
                 .above_min = true, .initial = "600"),
    FLOAT_OPTION(VALUES, options.drain_s, "drain", "SECONDS",
                 "time for requests that still run or wait after the last arrival; without it, as --timeout",
                 .max = 604800),
    { .name = NULL },
};

static const struct option REQUEST_OPTIONS[] = {
    TEXT_OPTION(VALUES, prompts, "prompts", "FILE",
                "file of prompts: one per line, or JSON Lines with {\"prompt\": TEXT} or {\"messages\": "
                "[...]} and optionally \"max_tokens\" (or \"output_len\"); - is standard input",
                .letter = 'f'),
    FLAG_OPTION(VALUES, options.in_order, "in-order",
                "use the prompts in the order of the file, instead of a random one", .needs = "prompts"),
    INT_OPTION(VALUES, made.n_words, "prompt-tokens", "N",
               "without a file: words of the synthetic prompts, about one token each", .min = 1,
               .max = 1000000, .initial = "64", .excludes = "prompts"),
    INT_OPTION(VALUES, made.n_shared, "shared-tokens", "N",
               "without a file: the first N words are the same in all prompts, like a system message",
               .min = 0, .max = 1000000, .initial = "0", .excludes = "prompts"),
    INT_OPTION(VALUES, options.style.max_tokens, "max-tokens", "N",
               "maximum tokens of an answer, unless the file has its own", .letter = 'n', .min = 1,
               .max = LIMIT_CONTEXT, .initial = "128"),
    FLOAT_OPTION(VALUES, made.spread, "spread", "P",
                 "without a file: vary the lengths of prompts and answers uniformly by up to the fraction P",
                 .max = 1, .initial = "0", .excludes = "prompts"),
    FLAG_OPTION(VALUES, options.style.as_chat, "chat",
                "send texts as a user message to the chat endpoint; messages go there anyway"),
    FLOAT_OPTION(VALUES, options.style.temperature, "temperature", "T",
                 "sampling temperature; without it, the server's default", .max = 100),
    FLAG_OPTION(VALUES, options.style.ignore_eos, "ignore-eos",
                "request answers of exactly that number of tokens, as tutti, vLLM and llama-server support"),
    TEXT_OPTION(VALUES, body, "body", "JSON",
                "an object whose members are added to each request, such as '{\"top_p\": 0.9}'"),
    { .name = NULL },
};

static const struct option SERVER_OPTIONS[] = {
    ENUM_OPTION(VALUES, options.style.api, "api", "NAME", LOAD_API_NAMES, "HTTP API of the server",
                .initial = "openai"),
    TEXT_OPTION(VALUES, options.style.model, "model", "NAME",
                "model to request; without it, the first one that the server lists, and llama2 with --api "
                "llm-serving",
                .letter = 'm'),
    TEXT_OPTION(VALUES, api_key_file, "api-key-file", "FILE",
                "API keys to send, one per line, used in rotation; without it, the environment variable "
                "TUTTI_API_KEY if set"),
    TEXT_OPTION(VALUES, options.ca_file, "ca-file", "FILE",
                "trust servers with certificates signed by those in FILE, instead of the system's"),
    FLAG_OPTION(VALUES, options.no_reuse, "no-reuse", "open a new connection for each request"),
    { .name = NULL },
};

static const struct option REPORT_OPTIONS[] = {
    FLOAT_OPTION(VALUES, ttft_target, "ttft-target", "MS",
                 "goodput: count answers with a time to first token of at most MS milliseconds",
                 .max = 86400000, .above_min = true),
    FLOAT_OPTION(VALUES, itl_target, "itl-target", "MS",
                 "goodput: count answers with a mean time per output token of at most MS milliseconds",
                 .max = 86400000, .above_min = true),
    TEXT_OPTION(VALUES, json, "json", "FILE", "write the results as JSON; - prints them instead of the text"),
    FLAG_OPTION(VALUES, details, "details",
                "include every request in the JSON, and the distributions that bench/load-page draws",
                .needs = "json"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", LOAD_OPTIONS, 0 },
    { "Requests", REQUEST_OPTIONS, 0 },
    { "Server", SERVER_OPTIONS, 0 },
    { "Report", REPORT_OPTIONS, 0 },
    { .title = NULL },
};

/* ---- keys ---- */

struct key_list {
    struct buf bytes;
    const char *keys[MAX_KEYS];
    size_t n;
};

static void clear_keys(struct key_list *list)
{
    if (list->bytes.bytes)
        os_forget(list->bytes.bytes, list->bytes.n_bytes);
    buf_clear(&list->bytes);
}

/* The first word of each line; '#' begins a comment, as in the file that `serve` reads. */
static enum tutti_status read_keys(struct key_list *list, const char *path, struct tutti_error *err)
{
    enum tutti_status st = input_read(&list->bytes, path, err);
    char *rest = list->bytes.bytes;
    for (int number = 1; st == TUTTI_OK && rest && *rest; number++) {
        char *line = strsep(&rest, "\n");
        char *key = line + strspn(line, " \t\r");
        key[strcspn(key, " \t\r")] = '\0';
        if (*key == '\0' || *key == '#') {
            if (!rest)
                break;
            continue;
        }
        if (!utf8_is_printable(key, strlen(key)))
            return error_set(err, TUTTI_E_FORMAT, "%s, line %d: expected a key of printable characters",
                             input_name(path), number);
        if (list->n == MAX_KEYS)
            return error_set(err, TUTTI_E_LIMIT, "%s: expected %d keys at most", input_name(path), MAX_KEYS);
        list->keys[list->n++] = key;
    }
    if (st == TUTTI_OK && list->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: no key found, expected one per line", input_name(path));
    return st;
}

static enum tutti_status find_keys(struct key_list *list, const char *path, struct tutti_error *err)
{
    const char *from_environment = getenv("TUTTI_API_KEY");
    if (path)
        return read_keys(list, path, err);
    if (!from_environment || *from_environment == '\0')
        return TUTTI_OK;
    if (!utf8_is_printable(from_environment, strlen(from_environment)))
        return error_set(err, TUTTI_E_ARGUMENT, "TUTTI_API_KEY: expected a key of printable characters");
    list->keys[list->n++] = from_environment;
    return TUTTI_OK;
}

/* ---- progress ---- */

static void draw(void *user, const struct load_progress *now)
{
    char line[200];
    snprintf(line, sizeof line,
             "%.1f s: %" PRIu64 " arrived, %" PRIu64 " running, %" PRIu64 " complete, %" PRIu64
             " failed, %.0f pieces/s",
             now->elapsed_s, now->n_arrived, now->n_running, now->n_complete, now->n_failed,
             now->elapsed_s > 0 ? (double)now->n_pieces / now->elapsed_s : 0);
    progress_draw(user, line);
}

/* ---- reports ---- */

/* Checks before a long measurement, not after it. */
static enum tutti_status check_report(const struct load_values *values, struct tutti_error *err)
{
    const char *const inputs[] = { values->prompts, values->api_key_file, values->options.ca_file };
    if (!values->json || strcmp(values->json, "-") == 0)
        return TUTTI_OK;
    enum tutti_status st = output_path_check("--json", values->json, inputs, sizeof inputs / sizeof *inputs,
                                             err);
    return st == TUTTI_OK ? output_path_try(values->json, err) : st;
}

static enum tutti_status write_reports(const struct load_values *values, const struct load_report *report,
                                       struct tutti_error *err)
{
    struct buf text = { 0 };
    bool json_only = values->json && strcmp(values->json, "-") == 0;
    enum tutti_status st = json_only ? TUTTI_OK : load_report_text(&text, report, err);
    if (st == TUTTI_OK && !json_only)
        output_write(text.bytes, text.n_bytes);
    buf_truncate(&text, 0);
    if (st == TUTTI_OK && values->json) {
        st = load_report_json(&text, report, values->details, err);
        if (st == TUTTI_OK && json_only)
            output_write(text.bytes, text.n_bytes);
        else if (st == TUTTI_OK)
            st = new_file_put(values->json, text.bytes, text.n_bytes, err);
    }
    buf_clear(&text);
    return st;
}

/* ---- the command ---- */

static enum tutti_status prepare_work(const struct load_values *values, struct work *out,
                                      struct tutti_error *err)
{
    out->made = values->made;
    out->made.seed = (uint64_t)values->seed;
    if (!values->prompts)
        return TUTTI_OK;
    enum tutti_status st = input_read(&out->prompts.bytes, values->prompts, err);
    return st == TUTTI_OK ? prompt_file_read(&out->prompts, input_name(values->prompts), PROMPTS_TO_SEND, err)
                          : st;
}

static enum tutti_status prepare_body(const char *text, json_t **out, struct tutti_error *err)
{
    json_error_t json_err;
    if (!text)
        return TUTTI_OK;
    *out = json_loads(text, JSON_REJECT_DUPLICATES, &json_err);
    if (!*out)
        return error_set(err, TUTTI_E_ARGUMENT, "--body: column %d: %s", json_err.column, json_err.text);
    if (!json_is_object(*out))
        return error_set(err, TUTTI_E_ARGUMENT, "--body: expected a JSON object");
    return TUTTI_OK;
}

static struct load_options options_of(const struct load_values *values, const char *url,
                                      const struct work *work)
{
    struct load_options options = values->options;
    options.url = url;
    options.work = work;
    options.seed = (uint64_t)values->seed;
    options.n_requests = (uint64_t)values->requests;
    options.progress = draw;
    if (isnan(options.drain_s))
        options.drain_s = options.timeout_s;
    if (options.concurrency == 0 && options.rate <= 0)
        options.concurrency = 1;
    /* llm-serving has the name of a model family in its path; this is the default of its clients. */
    if (!options.style.model && options.style.api == LOAD_API_LLM_SERVING)
        options.style.model = "llama2";
    if (options.n_requests == 0 && options.duration_s <= 0)
        options.n_requests = work->prompts.list ? work->prompts.n : DEFAULT_REQUESTS;
    return options;
}

static enum tutti_status check_values(const struct load_values *values, const char *url,
                                      struct tutti_error *err)
{
    const char *model = values->options.style.model;
    if (!utf8_is_printable(url, strlen(url)))
        return error_set(err, TUTTI_E_ARGUMENT, "expected a URL such as http://127.0.0.1:8080");
    if (model && !utf8_is_printable(model, strlen(model)))
        return error_set(err, TUTTI_E_ARGUMENT, "--model: expected a name of printable characters");
    if (model && values->options.style.api == LOAD_API_TGI)
        return error_set_param(err, TUTTI_E_ARGUMENT, "model",
                               "--model has no effect with --api tgi, whose requests name no model");
    if (values->made.n_shared > values->made.n_words)
        return error_set_param(err, TUTTI_E_ARGUMENT, "shared-tokens",
                               "--shared-tokens: found %d, expected at most the %d words of a prompt "
                               "(--prompt-tokens)",
                               values->made.n_shared, values->made.n_words);
    if (values->options.ca_file && strncmp(url, "https://", 8) != 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "ca-file",
                               "--ca-file has no effect on %s: expected a URL with https", url);
    return check_report(values, err);
}

/* Runs the load and reports. */
static enum tutti_status run_and_report(const struct load_values *values, const struct load_options *options,
                                        struct tutti_error *err)
{
    struct load_run loaded = { 0 };
    struct load_result result = { 0 };
    struct load_targets targets = { values->ttft_target > 0 ? values->ttft_target : NAN,
                                    values->itl_target > 0 ? values->itl_target : NAN };
    enum tutti_status st = load_run(&loaded, options, err);
    progress_end(options->user);
    if (st == TUTTI_OK)
        st = load_result_compute(&result, &loaded, &targets, err);
    if (st == TUTTI_OK)
        st = write_reports(values, &(struct load_report){ options, &loaded, &result, targets }, err);
    if (st == TUTTI_OK)
        st = output_flush(err);
    if (st == TUTTI_OK && loaded.was_interrupted)
        st = TUTTI_E_CANCELLED;
    else if (st == TUTTI_OK && result.n_requests > 0 && result.n_outcomes[LOAD_COMPLETE] == 0)
        st = error_set(err, TUTTI_E_IO, "%s: none of the %" PRIu64 " requests had a complete answer",
                       options->url, result.n_requests);
    load_result_clear(&result);
    load_run_clear(&loaded);
    return st;
}

static enum tutti_status run_load(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct load_values *values = v;
    struct work work = { 0 };
    struct buf model = { 0 };
    json_t *more = NULL;
    struct key_list *keys = calloc(1, sizeof *keys);
    enum tutti_status st = keys ? check_values(values, operands[0], err)
                                : error_set(err, TUTTI_E_MEMORY, "out of memory for the keys");
    if (st == TUTTI_OK)
        st = prepare_work(values, &work, err);
    if (st == TUTTI_OK)
        st = prepare_body(values->body, &more, err);
    if (st == TUTTI_OK)
        st = find_keys(keys, values->api_key_file, err);
    if (st != TUTTI_OK)
        goto done;
    struct load_options options = options_of(values, operands[0], &work);
    struct progress progress;
    progress_begin(&progress, "", PROGRESS_STEPS);
    options.user = &progress;
    options.keys = keys->keys;
    options.n_keys = keys->n;
    options.style.more = more;
    st = work_check(&work, &options.style, err);
    if (st == TUTTI_OK && options.style.api == LOAD_API_OPENAI && !options.style.model) {
        st = load_find_model(&model, &options, err);
        options.style.model = model.n_bytes ? model.bytes : NULL;
    }
    if (st == TUTTI_OK)
        st = run_and_report(values, &options, err);
done:
    if (keys)
        clear_keys(keys);
    free(keys);
    json_decref(more);
    buf_clear(&model);
    prompt_file_clear(&work.prompts);
    return st;
}

const struct command COMMAND_LOAD = {
    .name = "load",
    .summary = "load-test a server and measure its throughput and latency",
    .about = "Sends requests to the server at URL (tutti, llama-server, vLLM, or another with one of "
             "the APIs below), reads the streams, and prints throughput, latencies (mean, median, "
             "90th and 99th percentile of all samples) and failures by kind. With --rate requests "
             "arrive at times drawn in advance, and all times count from the arrival, even if a "
             "request had to wait before it could be sent. Without it, each user sends one request "
             "after another; after a failure it waits for the time in Retry-After, 0.1 to 60 "
             "seconds.\n\nNumbers of tokens are those that the server reports, else the pieces of the "
             "streams; the report says which. \"Between pieces\" is the time between two pieces of "
             "one answer; \"time per output token\" is the time from the first to the last piece of "
             "an answer divided by its tokens minus one, so that servers which send several tokens at "
             "once can be compared. Ctrl-C ends the measurement; the results so far are still "
             "reported.",
    .example = "tutti load http://127.0.0.1:8080 --rate 6 --duration 250 --prompt-tokens 20 --max-tokens 65\n"
               "tutti load http://127.0.0.1:8080 -c 32 -N 500 -f prompts.jsonl --json figures.json",
    .options = OPTION_SET(GROUPS, "URL", 1, 1, "expected URL, such as http://127.0.0.1:8080"),
    .values_bytes = sizeof(struct load_values),
    .run = run_load,
};
