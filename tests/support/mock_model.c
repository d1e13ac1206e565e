#include "support/mock_model.h"

#include "backend/sampler.h"
#include "base/rng.h"
#include "base/system/workers.h"
#include "engine/run/engine_state.h"
#include "kernels/kernels.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Grows in reserve() only. */
struct buffer {
    float *data;
    size_t n;
};

struct kv_memory {
    int page_tokens;
    int32_t *ids; /* [n_pages][page_tokens] */
    void *host;
    struct mock_copy {
        enum { MOCK_NO_COPY, MOCK_UNDER_WAY, MOCK_COPIED } state;
        uint64_t number; /* in the order of begins */
        int n_looks;
        void *to; /* of a read */
        const void *from;
        int32_t page[MOCK_MAX_PAGE_TOKENS]; /* of a read: what the page had */
    } * copies;
    int n_copies;
    uint64_t n_begun;
};

int mock_page_tokens = MOCK_PAGE_TOKENS;

/* On any thread. */
static void must(bool is_right)
{
    if (!is_right)
        abort();
}

static int32_t *page_of(const struct kv_memory *kv, int32_t page_id)
{
    return kv->ids + page_id * kv->page_tokens;
}

static size_t page_size(const struct kv_memory *kv)
{
    return (size_t)kv->page_tokens * sizeof *kv->ids;
}

static struct mock_model *mock_of(const struct backend *be)
{
    return (struct mock_model *)((uintptr_t)be - offsetof(struct mock_model, backend));
}

static enum tutti_status mock_kv_new(struct backend *be, struct kv_memory **out, int n_pages,
                                     int n_window_pages, enum dtype dtype, struct tutti_error *err)
{
    (void)n_window_pages;
    (void)dtype;
    struct kv_memory *kv = calloc(1, sizeof *kv);
    if (kv) {
        kv->page_tokens = be->caps->page_tokens;
        kv->ids = malloc((size_t)n_pages * page_size(kv));
    }
    if (!kv || !kv->ids) {
        free(kv);
        return error_set(err, TUTTI_E_MEMORY, "mock pages: out of memory");
    }
    memset(kv->ids, 0xA5, (size_t)n_pages * page_size(kv));
    *out = kv;
    return TUTTI_OK;
}

static void mock_kv_free(struct backend *be, struct kv_memory *kv)
{
    (void)be;
    if (kv) {
        free(kv->host);
        free(kv->copies);
        free(kv->ids);
    }
    free(kv);
}

static size_t mock_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    (void)dtype;
    return (size_t)be->caps->page_tokens * sizeof(int32_t);
}

static struct kernels kernels;

static void init_kernels(void)
{
    kernels_init(&kernels, cpu_detect());
}

enum tutti_status mock_sampler(struct sampler **out, int n_vocab, struct tutti_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_kernels);
    return sampler_new(out, &kernels, n_vocab, err);
}

static uint64_t mock_arithmetic_checksum(struct backend *be)
{
    (void)be;
    return 7;
}

static size_t mock_kv_window_bytes(const struct backend *be, enum dtype dtype)
{
    (void)be, (void)dtype;
    return 0;
}

static void mock_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy)
{
    must(!mock_of(be)->step); /* between steps */
    mock_of(be)->n_copies++;
    memcpy(page_of(kv, copy->dst), page_of(kv, copy->src), page_size(kv));
}

/* ---- copies of pages: complete as late as they may ---- */

static enum tutti_status mock_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes,
                                              int n_copies, void **out, struct tutti_error *err)
{
    (void)be;
    kv->host = malloc(n_bytes);
    kv->copies = calloc((size_t)n_copies, sizeof *kv->copies);
    if (!kv->host || !kv->copies)
        return error_set(err, TUTTI_E_MEMORY, "mock pages: out of memory");
    memset(kv->host, 0x5A, n_bytes);
    kv->n_copies = n_copies;
    *out = kv->host;
    return TUTTI_OK;
}

static struct mock_copy *begin_copy(struct backend *be, struct kv_memory *kv, int copy)
{
    struct mock_copy *c = &kv->copies[copy];
    must(!mock_of(be)->step && copy >= 0 && copy < kv->n_copies && c->state == MOCK_NO_COPY);
    must(kv->page_tokens <= MOCK_MAX_PAGE_TOKENS);
    *c = (struct mock_copy){ .state = MOCK_UNDER_WAY, .number = ++kv->n_begun };
    return c;
}

static void mock_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id,
                               void *host)
{
    struct mock_copy *c = begin_copy(be, kv, copy);
    c->to = host;
    memcpy(c->page, page_of(kv, page_id), page_size(kv)); /* operations called later may change the page */
}

static void mock_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host)
{
    begin_copy(be, kv, copy)->from = host;
}

static bool mock_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits)
{
    struct mock_copy *c = &kv->copies[copy];
    must(!mock_of(be)->step && c->state == MOCK_UNDER_WAY);
    if (!waits && c->n_looks++ < mock_of(be)->n_late_copies)
        return false;
    for (int i = 0; i < kv->n_copies; i++) /* in the order in which they began */
        must(kv->copies[i].state != MOCK_UNDER_WAY || kv->copies[i].number >= c->number);
    if (c->to)
        memcpy(c->to, c->page, page_size(kv));
    c->state = c->to ? MOCK_NO_COPY : MOCK_COPIED;
    return true;
}

static void mock_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id,
                              const void *host)
{
    struct mock_copy *c = &kv->copies[copy];
    must(!mock_of(be)->step && c->state == MOCK_COPIED && c->from == host);
    c->state = MOCK_NO_COPY;
    if (page_id >= 0)
        memcpy(page_of(kv, page_id), host, page_size(kv));
}

static float *mock_floats(struct floats floats, size_t n)
{
    must(floats.buffer && floats.offset + n <= floats.buffer->n);
    return floats.buffer->data + floats.offset;
}

static void mock_upload(struct backend *be, struct floats dst, const float *src, size_t n)
{
    must(!mock_of(be)->step); /* between steps */
    memcpy(mock_floats(dst, n), src, n * sizeof *src);
}

static void mock_download(struct backend *be, float *host, struct floats src, size_t n)
{
    must(!mock_of(be)->step); /* between steps */
    memcpy(host, mock_floats(src, n), n * sizeof *host);
}

static enum tutti_status mock_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err)
{
    struct mock_model *mock = mock_of(be);
    return mock->sampler ? TUTTI_OK : mock_sampler(&mock->sampler, n_vocab, err);
}

static void mock_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs,
                        int n)
{
    must(!mock_of(be)->step); /* between steps */
    struct mock_model *mock = mock_of(be);
    mock->n_sampled += n;
    for (int i = 0; i < n; i++)
        sampler_run(mock->sampler, mock_floats(logits, 0), n_vocab, &inputs[i]);
}

/* Its pages are not the host's memory, so that host memory may have copies of them. */
static uint64_t mock_memory_left(const struct backend *be)
{
    (void)be;
    return UINT64_C(1) << 34;
}

static const struct backend_ops mock_ops = {
    .name = "mock",
    .memory_left = mock_memory_left,
    .arithmetic_checksum = mock_arithmetic_checksum,
    .upload = mock_upload,
    .download = mock_download,
    .reserve_sampling = mock_reserve_sampling,
    .sample = mock_sample,
    .kv_new = mock_kv_new,
    .kv_free = mock_kv_free,
    .kv_page_bytes = mock_kv_page_bytes,
    .kv_window_bytes = mock_kv_window_bytes,
    .kv_copy_page = mock_kv_copy_page,
    .kv_reserve_host = mock_kv_reserve_host,
    .kv_read_begin = mock_kv_read_begin,
    .kv_write_begin = mock_kv_write_begin,
    .kv_is_copied = mock_kv_is_copied,
    .kv_write_end = mock_kv_write_end,
};

struct mock_model *mock_model_new(int n_ctx, bool has_stop)
{
    struct mock_model *mock = calloc(1, sizeof *mock);
    assert_non_null(mock);
    mock->caps = (struct backend_caps){ .page_tokens = mock_page_tokens, .kv_types = ~0u };
    mock->backend.ops = &mock_ops;
    mock->backend.caps = &mock->caps;
    mock->model.backend = &mock->backend;
    strcpy(mock->model.name, "mock");
    mock->model.desc = (struct model_desc){ .n_kinds = 1,
                                            .n_vocab = MOCK_VOCAB,
                                            .d_model = MOCK_WIDTH,
                                            .n_usable_vocab = MOCK_USABLE,
                                            .n_ctx = n_ctx,
                                            .bos_id = -1,
                                            .pad_id = -1,
                                            .n_stop_ids = has_stop,
                                            .stop_ids = { MOCK_STOP } };
    return mock;
}

void mock_model_free(struct mock_model *mock)
{
    assert_false(mock->model.in_use);
    sampler_free(mock->sampler);
    if (mock->logits)
        free(mock->logits->data);
    free(mock->logits);
    free(mock);
}

static void mock_logits(uint64_t hash, float *logits)
{
    for (int i = 0; i < MOCK_VOCAB; i++)
        logits[i] = (float)(mix64(hash ^ (uint64_t)i) >> 40) * 0x1p-21f; /* 0..8 */
    for (int i = MOCK_USABLE; i < MOCK_VOCAB; i++)
        logits[i] = 100.0f; /* padding, which must not be chosen */
}

static uint64_t mock_hash(uint64_t hash, int32_t id)
{
    return mix64(hash ^ (uint32_t)id);
}

static void mock_hidden(uint64_t hash, float *hidden)
{
    for (int i = 0; i < MOCK_WIDTH; i++)
        hidden[i] = (float)(mix64(hash ^ (uint64_t)(i + 1) << 32) >> 40) * 0x1p-23f - 1.0f; /* -1..1 */
}

void mock_outputs(const int32_t *ids, int n, float *hidden, float *logits)
{
    uint64_t hash = 0;
    for (int i = 0; i < n; i++)
        hash = mock_hash(hash, ids[i]);
    mock_hidden(hash, hidden);
    mock_logits(hash, logits);
}

static enum tutti_status mock_reserve(struct model *model, int max_rows, int max_outputs,
                                      struct tutti_error *err)
{
    struct mock_model *mock = (struct mock_model *)model;
    size_t n = (size_t)max_outputs * MOCK_VOCAB;
    (void)max_rows;
    struct buffer *logits = mock->logits ? mock->logits : calloc(1, sizeof *logits);
    float *data = logits ? realloc(logits->data, n * sizeof *data) : NULL;
    if (!data) {
        if (!mock->logits)
            free(logits);
        return error_set(err, TUTTI_E_MEMORY, "mock logits: out of memory");
    }
    *logits = (struct buffer){ data, n };
    mock->logits = logits;
    return TUTTI_OK;
}

/* Where a position of the sequence of row r is stored. */
static int32_t *id_at(const struct kv_memory *kv, const struct step *step, int r, int pos)
{
    int32_t page_id = step->page_tables[step->seqs[r]][pos / kv->page_tokens];
    return page_of(kv, page_id) + pos % kv->page_tokens;
}

static struct floats mock_submit(struct model *model, struct kv_memory *kv, const struct step *step)
{
    struct mock_model *mock = (struct mock_model *)model;
    must(!mock->step);
    mock->step = step;
    mock->kv = kv;
    return (struct floats){ .buffer = mock->logits };
}

static void mock_wait(struct model *model)
{
    struct mock_model *mock = (struct mock_model *)model;
    const struct step *step = mock->step;
    struct kv_memory *kv = mock->kv;
    struct floats logits = { .buffer = mock->logits };
    must(step);
    mock->step = NULL;
    for (int r = 0; r < step->n_rows; r++) {
        must(step->token_ids[r] >= 0 && step->token_ids[r] < model->desc.n_vocab);
        *id_at(kv, step, r, step->positions[r]) = step->token_ids[r];
    }
    int n_logits = step->n_outputs - step->n_hidden;
    for (int i = 0; i < step->n_outputs; i++) {
        int r = step->output_rows[i];
        uint64_t hash = mock->salt;
        for (int pos = 0; pos <= step->positions[r]; pos++)
            hash = mock_hash(hash, *id_at(kv, step, r, pos));
        if ((int)(mix64(hash ^ 77) % 100) < mock->percent_wrong)
            hash = ~hash;
        if (i < n_logits)
            mock_logits(hash, mock_floats(floats_at(logits, (size_t)i * MOCK_VOCAB), MOCK_VOCAB));
        else
            mock_hidden(hash, step->hidden + (size_t)(i - n_logits) * MOCK_WIDTH);
    }
    mock->n_steps++;
    mock->n_rows += step->n_rows;
    if (step->n_rows > mock->max_rows)
        mock->max_rows = step->n_rows;
    if (mock->step_us > 0)
        usleep((useconds_t)mock->step_us);
    while (atomic_load(&mock->is_held))
        usleep(200);
}

void mock_release(struct mock_model *mock, tutti_engine *engine)
{
    struct workers_counts counts;
    for (;;) {
        workers_counts(engine->prompts, &counts);
        if (counts.n_waiting + counts.n_running == 0)
            break;
        usleep(200);
    }
    atomic_store(&mock->is_held, false);
}

tutti_engine *mock_engine(struct mock_model *mock, const struct tutti_engine_options *options,
                          const struct engine_hooks *hooks)
{
    struct engine_hooks all = hooks ? *hooks : (struct engine_hooks){ 0 };
    all.reserve = mock_reserve;
    all.submit = mock_submit;
    all.wait = mock_wait;
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    if (engine_open(&engine, &mock->model, options, &all, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return engine;
}

enum tutti_status mock_engine_try(struct mock_model *mock, const struct tutti_engine_options *options,
                                  struct tutti_error *err)
{
    struct engine_hooks hooks = { .reserve = mock_reserve, .submit = mock_submit, .wait = mock_wait };
    tutti_engine *engine = NULL;
    enum tutti_status st = engine_open(&engine, &mock->model, options, &hooks, err);
    if (st == TUTTI_OK)
        tutti_engine_close(engine);
    return st;
}

int mock_answer(const struct tutti_request *request, int choice, int max_context, bool has_stop, int32_t *ids,
                int max_ids)
{
    struct sampler *sampler = NULL;
    assert_int_equal(mock_sampler(&sampler, MOCK_VOCAB, NULL), TUTTI_OK);
    int32_t *all = malloc((size_t)max_context * sizeof *all);
    float logits[MOCK_VOCAB];
    int n = 0;
    uint64_t hash = 0;
    assert_non_null(all);
    for (; (size_t)n < request->n_ids; n++)
        hash = mock_hash(hash, all[n] = request->ids[n]);
    int end = request->max_tokens > 0 && n + request->max_tokens < max_context ? n + request->max_tokens
                                                                               : max_context;
    for (; n < end; n++) {
        mock_logits(hash, logits);
        struct sample_input in = { .n_usable = MOCK_USABLE,
                                   .sampling = &request->sampling,
                                   .ids = all,
                                   .n_prompt = (int)request->n_ids,
                                   .n_ids = n,
                                   .seed = request->sampling.seed,
                                   .choice = choice };
        struct sample sample;
        assert_true(sampler_draw(sampler, logits, &in, &sample));
        if (has_stop && sample.token == MOCK_STOP)
            break;
        hash = mock_hash(hash, all[n] = sample.token);
    }
    int n_answer = n - (int)request->n_ids;
    assert_true(n_answer <= max_ids);
    memcpy(ids, all + request->n_ids, (size_t)n_answer * sizeof *ids);
    free(all);
    sampler_free(sampler);
    return n_answer;
}
