/* Every place where the backend calls the driver fails once: in opening a card, loading models with adapters, reserving,
 * steps (the first, that which records a graph, its replays), sampling, copies of pages, checksums, measuring, and closing.
 *
 * A place is a moment of that life, a function of the driver, and the functions that led to the call. The list is made by a
 * run without failures, so calls that are added later are on it. Each place then fails in a process of its own, which must
 * end with an error that names the device, or with results as if nothing had failed. */
#include "backend/cuda/driver.h"
#include "base/log.h"
#include "cuda/child.h"
#include "cuda/standin_find.h"
#include "model/adapters/adapter.h"
#include "model/load/fingerprint.h"
#include "model/util.h"
#include "support/kv_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    N_SEQS = 3,
    N_PROMPT = 5,
    N_PAGES = 8,
    N_DECODED = 4, /* launched, recorded, replayed, replayed */
    MAX_PLACES = 2000,
    N_CALLERS = 2, /* of a place: the function that calls the driver, and its caller */
    MAX_FUNCTIONS = 64,
    MAX_VOCAB = 512,
    PATIENCE = 300, /* seconds of a process */
};

enum moment {
    LOADING,
    RESERVING,
    PREFILL,
    FIRST,
    RECORDING,
    REPLAY,
    SAMPLING,
    PAGES,
    CHECKING,
    MEASURING,
    CLOSING,
    N_MOMENTS
};
static const char *const MOMENTS[N_MOMENTS] = {
    "opening and loading",
    "reserving",
    "prefill",
    "first decode step",
    "recording a graph",
    "replaying",
    "sampling",
    "pages",
    "checking",
    "measuring",
    "closing",
};

static const char *const FUNCTIONS[] = {
#define FUNCTION(field, symbol, arguments) symbol,
    CUDA_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { N_FUNCTIONS = sizeof FUNCTIONS / sizeof *FUNCTIONS };

/* What a process ends with. */
enum outcome { FAILED_CLEARLY, WENT_ON, WRONG, NOT_GIVEN };

struct place {
    enum moment moment;
    int visit; /* moments come again: the first one with this place */
    int function;
    long call; /* the number of its first call in the visit */
    uint64_t callers;
};

/* What processes leave for one another. */
static struct shared {
    struct place
        places[MAX_PLACES]; /* of all lives; of this one from first on: those that no life before it had */
    int first, n_places;
    long n_calls;
    struct sample samples[N_DECODED + 1][N_SEQS]; /* of the run without failures */
    uint64_t checksum;
    bool has_failed[N_FUNCTIONS]; /* of all runs */
} * shared;

static enum moment moment;
static int n_visits;
static const struct place *to_fail; /* NULL: none */

/* Calls are counted from the begin of each moment: how many there are in measuring depends on the time. */
static void begin_moment(enum moment next)
{
    moment = next;
    n_visits++;
    if (!to_fail || n_visits <= to_fail->visit)
        standin_functions()->fail_call(NULL, to_fail && n_visits == to_fail->visit ? to_fail->call : 0, 719);
}

static int function_of(const char *name)
{
    for (int i = 0; i < N_FUNCTIONS; i++)
        if (strcmp(FUNCTIONS[i], name) == 0)
            return i;
    fprintf(stderr, "%s is not in the driver's table\n", name);
    _exit(WRONG);
}

static void note_call(long call, const char *name, void *const *callers, int n_callers)
{
    struct place place = { .moment = moment, .visit = n_visits, .function = function_of(name), .call = call };
    shared->n_calls++;
    for (int i = 0; i < n_callers && i < N_CALLERS; i++)
        place.callers = (place.callers ^ (uint64_t)(uintptr_t)callers[i]) * 0x9e3779b97f4a7c15;
    for (int i = 0; i < shared->n_places; i++) {
        const struct place *p = &shared->places[i];
        if (p->moment == place.moment && p->function == place.function && p->callers == place.callers)
            return;
    }
    if (shared->n_places == MAX_PLACES)
        abort();
    shared->places[shared->n_places++] = place;
}

/* ---- the life of a model ---- */

struct life {
    const char *model, *kv_type;
    const char *adapters[N_SEQS]; /* of each sequence; NULL: none */
    bool mtp;
};

static const struct life LIVES[] = {
    { "llama-tiny", "f16", { "llama-all", "llama-embedding", "llama-prefix" }, false },
    { "llama-tiny", "int8", { "llama-saved", "llama-lora-bias", "llama-dora" }, false },
    { "mtp/deepseek-v3", "f16", { NULL }, true },
    { "gpt-oss-tiny", "f32", { NULL }, false },
};

struct run {
    struct model *model;
    struct kv_memory *kv;
    void *host; /* of a page */
    int32_t pages[N_SEQS][N_PAGES];
    int32_t ids[N_SEQS][N_PAGES * 16], adapters[N_SEQS];
    int n[N_SEQS];
};

static enum tutti_status load(struct run *run, const struct life *life, struct tutti_error *err)
{
    char path[512];
    const struct tutti_model_options options = {
        .kv_type = life->kv_type, .n_threads = 1, .mtp = life->mtp, .device = "cuda"
    };
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", life->model);
    enum tutti_status st = model_load(&run->model, path, &options, err);
    for (int s = 0; s < N_SEQS && st == TUTTI_OK; s++) {
        run->adapters[s] = -1;
        if (!life->adapters[s])
            continue;
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", life->adapters[s]);
        st = model_add_adapter(run->model, life->adapters[s], path, err);
        run->adapters[s] = model_find_adapter(run->model, life->adapters[s]);
    }
    return st;
}

static enum tutti_status reserve(struct run *run, struct tutti_error *err)
{
    struct model *model = run->model;
    enum tutti_status st = model_reserve_tables(model, 64, N_SEQS, N_PAGES, err);
    if (st == TUTTI_OK)
        st = model_reserve(model, 64, 64, err);
    if (st == TUTTI_OK)
        st = model->backend->ops->reserve_sampling(model->backend, model->desc.n_vocab, err);
    if (st == TUTTI_OK)
        st = model_kv_new(model, &run->kv, N_SEQS * N_PAGES, N_SEQS * N_PAGES, err);
    if (st == TUTTI_OK)
        st = model->backend->ops->kv_reserve_host(
            model->backend, run->kv, model->backend->ops->kv_page_bytes(model->backend, model->kv_type), 1,
            &run->host, err);
    return st;
}

/* The arrays of a step of all sequences. */
struct step_rows {
    int32_t ids[64], positions[64], seqs[64], outputs[N_SEQS];
    const int32_t *tables[N_SEQS];
};

static struct step step_of(const struct run *run, struct step_rows *rows, int n_rows)
{
    for (int s = 0; s < N_SEQS; s++)
        rows->tables[s] = run->pages[s];
    return (struct step){ .n_rows = n_rows,
                          .n_seqs = N_SEQS,
                          .n_outputs = N_SEQS,
                          .token_ids = rows->ids,
                          .positions = rows->positions,
                          .seqs = rows->seqs,
                          .page_tables = rows->tables,
                          .output_rows = rows->outputs };
}

/* n rows of each sequence, whose last one is an output. */
static struct floats forward(struct run *run, int n)
{
    struct step_rows rows;
    int32_t slots[N_SEQS];
    int n_rows = 0;
    for (int s = 0; s < N_SEQS; s++) {
        for (int i = 0; i < n; i++, n_rows++) {
            rows.ids[n_rows] = run->ids[s][run->n[s]];
            rows.positions[n_rows] = run->n[s]++;
            rows.seqs[n_rows] = s;
        }
        rows.outputs[s] = n_rows - 1;
        slots[s] = s;
    }
    struct step step = step_of(run, &rows, n_rows);
    step.window_tables = rows.tables;
    step.rope_positions = model_shifts_positions(run->model) ? rows.positions : NULL;
    step.slots = slots;
    step.adapters = run->adapters;
    struct floats logits = model_forward(run->model, run->kv, &step);
    for (int s = 0; run->model->desc.uses_mtp && s < N_SEQS; s++)
        model_store_hidden(run->model, run->kv, &rows.outputs[s], &run->pages[s][(run->n[s] - 1) / 16], 1);
    return logits;
}

/* The MTP layer's logits after the last token of each sequence. */
static void draft(struct run *run)
{
    struct step_rows rows;
    int32_t previous[N_SEQS];
    for (int s = 0; s < N_SEQS; s++) {
        rows.ids[s] = run->ids[s][run->n[s]];
        rows.positions[s] = run->n[s];
        rows.seqs[s] = rows.outputs[s] = s;
        previous[s] = s == 0 ? -1 : s;
    }
    struct step step = step_of(run, &rows, N_SEQS);
    float logits[MAX_VOCAB];
    struct floats out = model_submit_mtp(run->model, run->kv, &step, previous);
    model_wait(run->model);
    model_read_logits(run->model, out, 1, logits);
}

/* Tokens drawn greedily, and in three other ways, with log-probabilities. */
static void sample(struct run *run, struct floats logits, struct sample *samples)
{
    struct backend *be = run->model->backend;
    int n_vocab = run->model->desc.n_vocab;
    static const struct tutti_sampling WAYS[N_SEQS] = {
        { .repetition_penalty = 1, .top_p = 1, .typical_p = 1 },
        { .temperature = 1, .top_p = 0.8f, .top_k = 20, .repetition_penalty = 1.1f, .typical_p = 1 },
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .typical_p = 0.7f },
    };
    uint32_t allowed[MAX_VOCAB / 32];
    struct sample_input inputs[N_SEQS] = { 0 };
    memset(allowed, 0x55, sizeof allowed);
    for (int s = 0; s < N_SEQS; s++) {
        inputs[s] = (struct sample_input){ .kind = SAMPLE_DRAW,
                                           .row = s,
                                           .n_usable = n_vocab,
                                           .sampling = &WAYS[s],
                                           .ids = run->ids[s],
                                           .n_prompt = N_PROMPT,
                                           .n_ids = run->n[s],
                                           .seed = 7,
                                           .logprobs = true,
                                           .n_top = 2,
                                           .allowed = s == 1 ? allowed : NULL,
                                           .out = &samples[s] };
    }
    be->ops->sample(be, logits, n_vocab, inputs, N_SEQS);
    struct sample score;
    struct sample_candidate best[3];
    struct sample_input others[2] = {
        { .kind = SAMPLE_SCORE,
          .n_usable = n_vocab,
          .token = 5,
          .logprobs = true,
          .n_top = 1,
          .out = &score },
        { .kind = SAMPLE_BEST,
          .row = 1,
          .n_usable = n_vocab,
          .sampling = &WAYS[0],
          .ids = run->ids[1],
          .n_prompt = N_PROMPT,
          .n_ids = run->n[1],
          .n_best = 3,
          .best = best,
          .out = &score },
    };
    be->ops->sample(be, logits, n_vocab, others, 2);
}

/* Of the first sequence: its page is read, another one is overwritten with it, and copied back. */
static void use_pages(struct run *run)
{
    struct backend *be = run->model->backend;
    int32_t page = run->pages[0][0], other = run->pages[0][N_PAGES - 1];
    kv_read_now(be, run->kv, page, run->host);
    kv_write_now(be, run->kv, other, run->host);
    model_kv_copy_page(run->model, run->kv, &(struct page_copy){ page, other, page, other });
}

static enum tutti_status decode(struct run *run, struct sample samples[][N_SEQS], struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int s = 0; s < N_SEQS; s++) {
        for (int p = 0; p < N_PAGES; p++)
            run->pages[s][p] = p * N_SEQS + s;
        for (int i = 0; i < N_PAGES * 16; i++)
            run->ids[s][i] = 3 + (7 * i + 11 * s) % 50;
    }
    for (int i = 0; i <= N_DECODED && st == TUTTI_OK; i++) {
        begin_moment(i == 0 ? PREFILL : i == 1 ? FIRST : i == 2 ? RECORDING : REPLAY);
        struct floats logits = forward(run, i == 0 ? N_PROMPT : 1);
        begin_moment(SAMPLING);
        sample(run, logits, samples[i]);
        if (run->model->desc.uses_mtp)
            draft(run);
        begin_moment(PAGES);
        if (i == 1)
            use_pages(run);
        st = model_check(run->model, err);
    }
    return st;
}

/* Until something fails. samples: [N_DECODED + 1][N_SEQS] */
static enum tutti_status live(const struct life *life, struct sample samples[][N_SEQS], uint64_t *checksum,
                              struct tutti_error *err)
{
    struct run run = { 0 };
    begin_moment(LOADING);
    enum tutti_status st = load(&run, life, err);
    if (st == TUTTI_OK) {
        begin_moment(RESERVING);
        st = reserve(&run, err);
    }
    if (st == TUTTI_OK)
        st = decode(&run, samples, err);
    if (st == TUTTI_OK) {
        struct backend *be = run.model->backend;
        struct backend_limits limits;
        begin_moment(CHECKING);
        *checksum = model_weights_fingerprint(run.model) ^ be->ops->arithmetic_checksum(be);
        (void)be->ops->memory_left(be);
        begin_moment(MEASURING);
        be->ops->measure(be, &limits);
        st = model_check(run.model, err);
    }
    begin_moment(CLOSING);
    if (run.model)
        model_kv_free(run.model, run.kv);
    model_free(run.model); /* the stand-in ends the process if something is left on the card */
    return st;
}

/* ---- processes ---- */

static bool is_same(struct sample a[][N_SEQS], struct sample b[][N_SEQS])
{
    for (int i = 0; i <= N_DECODED; i++)
        for (int s = 0; s < N_SEQS; s++)
            if (a[i][s].token != b[i][s].token || a[i][s].logprob != b[i][s].logprob)
                return false;
    return true;
}

/* In a process of its own. */
static enum outcome live_with_failure(const struct life *life, const struct place *place)
{
    static struct sample samples[N_DECODED + 1][N_SEQS];
    const struct standin_functions *driver = standin_functions();
    struct tutti_error err = { 0 };
    uint64_t checksum = 0;
    to_fail = place;
    enum tutti_status st = live(life, samples, &checksum, &err);
    if (driver->failed())
        shared->has_failed[function_of(driver->failed())] = true;
    if (place->moment != MEASURING &&
        (!driver->failed() || strcmp(driver->failed(), FUNCTIONS[place->function]) != 0))
        return NOT_GIVEN;
    if (driver->bytes() != 0)
        return WRONG;
    if (st == TUTTI_OK)
        return is_same(samples, shared->samples) && checksum == shared->checksum ? WENT_ON : WRONG;
    return err.status == st && strlen(err.text) > 4 ? FAILED_CLEARLY : WRONG;
}

static void live_without_failure(const struct life *life)
{
    struct tutti_error err = { 0 };
    shared->first = shared->n_places;
    shared->n_calls = 0;
    standin_functions()->trace(note_call);
    if (live(life, shared->samples, &shared->checksum, &err) == TUTTI_OK)
        return;
    fprintf(stderr, "%s: %s\n", life->model, err.text);
    _exit(WRONG);
}

/* place NULL: without a failure. */
static int in_process(const struct life *life, const struct place *place)
{
    int status = 0;
    pid_t child = child_fork(PATIENCE);
    if (child == 0) {
        if (place)
            _exit((int)live_with_failure(life, place));
        live_without_failure(life);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void fail_place(const struct life *life, const struct place *place, int *outcomes)
{
    int status = in_process(life, place);
    if (!WIFEXITED(status) || WEXITSTATUS(status) >= WRONG)
        fail_msg("%s: %s (%d), %s at call %ld: the process ended with %#x", life->model,
                 MOMENTS[place->moment], place->visit, FUNCTIONS[place->function], place->call,
                 (unsigned)status);
    outcomes[WEXITSTATUS(status)]++;
}

static void print_places(const struct life *life, const int *outcomes)
{
    print_message("# %s, %s: %d new places in %ld calls; %d failures end clearly, %d make no difference\n",
                  life->model, life->kv_type, shared->n_places - shared->first, shared->n_calls,
                  outcomes[FAILED_CLEARLY], outcomes[WENT_ON]);
    for (enum moment m = 0; m < N_MOMENTS; m++) {
        int counts[N_FUNCTIONS] = { 0 }, n = 0;
        for (int i = shared->first; i < shared->n_places; i++)
            if (shared->places[i].moment == m) {
                counts[shared->places[i].function]++;
                n++;
            }
        if (n > 0)
            print_message("#   %s: %d:", MOMENTS[m], n);
        for (int f = 0; f < N_FUNCTIONS; f++)
            if (counts[f] > 0)
                print_message(" %s %d", FUNCTIONS[f] + 2, counts[f]);
        if (n > 0)
            print_message("\n");
    }
}

static void every_place_of_a_models_life_may_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LIVES / sizeof *LIVES; i++) {
        int outcomes[NOT_GIVEN + 1] = { 0 };
        assert_int_equal(in_process(&LIVES[i], NULL), 0);
        for (int p = shared->first; p < shared->n_places; p++)
            fail_place(&LIVES[i], &shared->places[p], outcomes);
        print_places(&LIVES[i], outcomes);
        assert_true(i > 0 || outcomes[FAILED_CLEARLY] > outcomes[WENT_ON]);
    }
}

/* The driver's own texts may fail to come: the error has the number. */
static void errors_without_texts_have_their_number(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "cuGetErrorName", "cuGetErrorString" };
    static const char *const WANT[] = { "doing this: unknown error (719): an error of the stand-in",
                                        "doing this: CUDA_ERROR_719 (719): the driver has no text for it" };
    const struct cuda_driver *driver = NULL;
    struct tutti_error err = { 0 };
    if (cuda_driver_open(&driver, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < 2; i++) {
        standin_functions()->fail_call(TEXTS[i], 1, 999);
        assert_int_equal(cuda_driver_error(driver, 719, "doing this", &err), TUTTI_E_IO);
        assert_non_null(strstr(err.text, WANT[i]));
        shared->has_failed[function_of(TEXTS[i])] = true;
    }
}

static void every_function_of_the_table_has_failed(void **state)
{
    (void)state;
    int n_missing = 0;
    print_message("# functions that failed:");
    for (int i = 0; i < N_FUNCTIONS; i++) {
        /* No life here has copies that nobody waits for, or NCCL. */
        n_missing += !shared->has_failed[i] && strcmp(FUNCTIONS[i], "cuEventQuery") != 0 &&
                     strcmp(FUNCTIONS[i], "cuStreamQuery") != 0;
        print_message(" %s%s", FUNCTIONS[i], shared->has_failed[i] ? "" : " (never)");
    }
    print_message("\n");
    assert_int_equal(n_missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_place_of_a_models_life_may_fail), /* first: its processes begin without a driver */
        cmocka_unit_test(errors_without_texts_have_their_number),
        cmocka_unit_test(every_function_of_the_table_has_failed),
    };
    setenv("TUTTI_STANDIN_MEMORY", "100000000", 1); /* a small buffer for measuring */
    log_set_level(LOG_ERROR);                       /* the models have no tokenizer */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
