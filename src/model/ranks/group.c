#include "model/ranks/group.h"

#include "base/system/memory_left.h"
#include "checkpoint/shards/shard_manifest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 1 << 14, MAX_COPIES = 1 << 10 };

/* Messages of rank 0: one of these numbers, then the message's fields. */
enum {
    MSG_STEP,
    MSG_HIDDEN,
    MSG_COPIES,
    MSG_RESERVE,
    MSG_KV_NEW,
    MSG_KV_FREE,
    MSG_MEMORY,
    MSG_TAKEN,
    MSG_ROOM,
    MSG_TABLES,
    MSG_END
};

/* The header of MSG_STEP. Then follow the arrays of struct step (has: which optional ones), the
 * copies; of each page table the slot, and the first and the number of its changed entries; and those
 * entries. */
enum {
    HAS_PREFIXES = 1,
    HAS_ROPE = 2,
    HAS_BLOCKS = 4,
    HAS_ADAPTERS = 8,
    HAS_WINDOWS = 16,
    HAS_SOURCES = 32,
    HAS_PREVIOUS = 64 /* the step is one of model_submit_mtp() */
};
struct step_head {
    int32_t message, n_rows, n_seqs, n_outputs, n_hidden, has, n_copies;
};
enum {
    HEAD_INTS = sizeof(struct step_head) / sizeof(int32_t),
    COPY_INTS = sizeof(struct page_copy) / sizeof(int32_t)
};

/* ---- opening ---- */

static bool group_make_room(struct group *g, size_t n_room)
{
    int32_t *plan = realloc(g->plan, n_room * sizeof *plan);
    if (plan)
        g->plan = plan;
    const int32_t **tables = realloc((void *)g->tables, n_room / 4 * sizeof *tables);
    if (tables)
        g->tables = tables;
    if (plan && tables)
        g->n_room = n_room;
    return plan && tables;
}

enum tutti_status group_open(struct model *model, const struct tutti_model_options *options,
                             struct tutti_error *err)
{
    if (!options->ranks || cluster_n_ranks(cluster_of(options->ranks)) == 1)
        return TUTTI_OK; /* each replica has the whole model */
    struct group *g = model->group = calloc(1, sizeof *g);
    if (g) {
        g->cluster = cluster_of(options->ranks);
        g->copies = calloc(COPY_INTS * (size_t)MAX_COPIES, sizeof *g->copies);
    }
    return g && g->copies && group_make_room(g, FIRST_ROOM)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "ranks: out of memory");
}

enum tutti_status group_join(struct model *model, enum tutti_status st, struct tutti_error *err)
{
    struct group *g = model->group;
    if (!g)
        return st;
    st = cluster_agree(g->cluster, st, err);
    g->is_joined = st == TUTTI_OK;
    return st;
}

enum tutti_status group_check_shard(const struct model *model, enum tutti_status st,
                                    const struct shard_manifest *shard, int *max_context,
                                    struct tutti_error *err)
{
    struct group *g = model->group;
    struct {
        char fingerprint[SHARD_DIGEST_CHARS + 1];
        int32_t max_context;
    } own = { .max_context = *max_context }, first;
    if (!g)
        return st;
    if (st == TUTTI_OK && shard)
        memcpy(own.fingerprint, shard->fingerprint, sizeof own.fingerprint);
    memcpy(&first, &own, sizeof first);
    if (!cluster_broadcast(g->cluster, &first, sizeof first, true) && st == TUTTI_OK)
        st = cluster_check(g->cluster, err);
    if (st == TUTTI_OK && strcmp(own.fingerprint, first.fingerprint) != 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: model %.16s, but rank 0 has a part of %.16s",
                       shard ? shard->path : "a whole checkpoint",
                       own.fingerprint[0] ? own.fingerprint : "without a manifest",
                       first.fingerprint[0] ? first.fingerprint : "none");
    *max_context = first.max_context;
    return st;
}

void group_free(struct group *g)
{
    if (!g)
        return;
    free(g->plan);
    free((void *)g->tables);
    page_tables_clear(&g->page_tables);
    free(g->copies);
    free(g);
}

enum tutti_status group_cut(struct model *model, const struct split_blocks *blocks, struct tutti_error *err)
{
    struct group *g = model->group;
    int n = cluster_n_ranks(g->cluster);
    for (int r = 0; r < n; r++) {
        struct split split;
        enum tutti_status st = split_make(&split, &model->desc, blocks, n, r, err);
        if (st != TUTTI_OK)
            return st;
        g->vocab_begins[r] = split.vocab.begin;
        g->vocab_begins[r + 1] = split.vocab.end;
        if (r == cluster_rank(g->cluster))
            g->split = split;
    }
    model->local = split_desc(&g->split, &model->desc);
    return TUTTI_OK;
}

/* ---- rank 0 ---- */

static bool send_plan(struct group *g, size_t n_ints)
{
    return cluster_broadcast(g->cluster, g->plan, n_ints * sizeof *g->plan, false);
}

/* Sends a message with up to two numbers. */
static bool send_short(struct group *g, int32_t what, int32_t a, int32_t b)
{
    g->plan[0] = what;
    g->plan[1] = a;
    g->plan[2] = b;
    return send_plan(g, 3);
}

/* Grows the message buffer on every rank. */
static bool send_room(struct group *g, size_t n_ints)
{
    size_t n_room = g->n_room;
    while (n_room < n_ints)
        n_room *= 2;
    if (n_room == g->n_room)
        return true;
    return n_room <= INT32_MAX && send_short(g, MSG_ROOM, (int32_t)n_room, 0) && group_make_room(g, n_room);
}

/* Makes room for page tables on every rank; if there was too little, all entries are sent again. */
static bool send_table_room(struct group *g, int n_slots, int max_pages)
{
    if (page_tables_has_room(&g->page_tables, n_slots, max_pages))
        return true;
    n_slots = n_slots > g->page_tables.n_slots ? n_slots : g->page_tables.n_slots;
    max_pages = max_pages > g->page_tables.max_pages ? max_pages : g->page_tables.max_pages;
    return send_short(g, MSG_TABLES, n_slots, max_pages) &&
           page_tables_reserve(&g->page_tables, n_slots, max_pages);
}

bool group_lead_reserve(struct group *g, int max_rows, int max_outputs)
{
    return send_short(g, MSG_RESERVE, max_rows, max_outputs);
}

static int32_t *put(int32_t *at, const int32_t *values, int n)
{
    memcpy(at, values, (size_t)n * sizeof *at);
    return at + n;
}

/* The used length of each page table: pages of page_tokens positions, up to that of the sequence's
 * last row. Rows of a sequence are in order. */
static size_t measure_tables(int32_t *lengths, const struct step *step, int page_tokens)
{
    size_t n = 0;
    memset(lengths, 0, (size_t)step->n_seqs * sizeof *lengths);
    for (int r = 0; r < step->n_rows; r++)
        lengths[step->seqs[r]] = step->positions[r] / page_tokens + 1;
    for (int s = 0; s < step->n_seqs; s++)
        n += (size_t)lengths[s];
    return n;
}

/* The tables of a step: first its page tables, then its window tables. */
static int n_tables_of(const struct step *step)
{
    return step->window_tables ? 2 * step->n_seqs : step->n_seqs;
}

static const int32_t *table_of(const struct step *step, int i)
{
    return i < step->n_seqs ? step->page_tables[i] : step->window_tables[i - step->n_seqs];
}

/* The slot of struct page_tables in which all ranks store the table. */
static int slot_of(const struct step *step, int i)
{
    int s = i % step->n_seqs;
    return 2 * (step->slots ? step->slots[s] : s) + (i >= step->n_seqs);
}

/* Room for the step's page tables; the lengths of each sequence's are given. */
static bool reserve_tables(struct group *g, const struct step *step, const int32_t *lengths)
{
    int n_slots = 1, max_pages = 1;
    for (int i = 0; i < n_tables_of(step); i++) {
        int n = lengths[i % step->n_seqs];
        n_slots = slot_of(step, i) >= n_slots ? slot_of(step, i) + 1 : n_slots;
        max_pages = n > max_pages ? n : max_pages;
    }
    return send_table_room(g, n_slots, max_pages);
}

/* Appends the changes of the page tables. */
static int32_t *put_tables(struct group *g, int32_t *at, const struct step *step, int page_tokens)
{
    int n = n_tables_of(step);
    int32_t *slots = at, *firsts = at + n, *counts = at + 2 * n;
    at += 3 * n;
    measure_tables(counts, step, page_tokens);
    for (int i = step->n_seqs; i < n; i++)
        counts[i] = counts[i - step->n_seqs];
    for (int i = 0; i < n; i++) {
        slots[i] = slot_of(step, i);
        counts[i] = page_tables_change(&g->page_tables, slots[i], table_of(step, i), counts[i], &firsts[i]);
        at = put(at, table_of(step, i) + firsts[i], counts[i]);
    }
    return at;
}

bool group_lead_hidden(struct group *g, const int32_t *rows, const int32_t *page_ids, int n)
{
    if (!send_room(g, 2 + 2 * (size_t)n))
        return false;
    g->plan[0] = MSG_HIDDEN;
    g->plan[1] = n;
    put(put(g->plan + 2, rows, n), page_ids, n);
    return send_plan(g, 2 + 2 * (size_t)n);
}

bool group_lead_step(struct group *g, const struct step *step, const int32_t *previous, int page_tokens)
{
    struct step_head head = { .message = MSG_STEP,
                              .n_rows = step->n_rows,
                              .n_seqs = step->n_seqs,
                              .n_outputs = step->n_outputs,
                              .n_hidden = step->n_hidden,
                              .n_copies = g->n_copies };
    head.has = (step->prefix_lens ? HAS_PREFIXES : 0) | (step->rope_positions ? HAS_ROPE : 0) |
               (step->block_positions ? HAS_BLOCKS : 0) | (step->adapters ? HAS_ADAPTERS : 0) |
               (step->window_tables ? HAS_WINDOWS : 0) | (step->token_sources ? HAS_SOURCES : 0) |
               (previous ? HAS_PREVIOUS : 0);
    size_t n_most = HEAD_INTS + 7 * (size_t)step->n_rows + (size_t)step->n_outputs +
                    8 * (size_t)step->n_seqs + COPY_INTS * (size_t)g->n_copies;
    if (!send_room(g, n_most))
        return false;
    size_t n_entries = 2 * measure_tables(g->plan, step, page_tokens); /* measured again below */
    if (!reserve_tables(g, step, g->plan) || !send_room(g, n_most + n_entries))
        return false;
    int32_t *at = put(g->plan, (const int32_t *)(const void *)&head, HEAD_INTS);
    at = put(at, step->token_ids, step->n_rows);
    at = put(at, step->positions, step->n_rows);
    at = put(at, step->seqs, step->n_rows);
    at = put(at, step->output_rows, step->n_outputs);
    if (head.has & HAS_PREFIXES)
        at = put(at, step->prefix_lens, step->n_seqs);
    if (head.has & HAS_ROPE)
        at = put(at, step->rope_positions, step->n_rows);
    if (head.has & HAS_BLOCKS)
        at = put(at, step->block_positions, step->n_rows);
    if (head.has & HAS_ADAPTERS)
        at = put(at, step->adapters, step->n_seqs);
    if (head.has & HAS_SOURCES)
        at = put(at, step->token_sources, step->n_rows);
    if (previous)
        at = put(at, previous, step->n_rows);
    at = put(at, g->copies, COPY_INTS * g->n_copies);
    g->n_copies = 0;
    at = put_tables(g, at, step, page_tokens);
    return send_plan(g, (size_t)(at - g->plan));
}

bool group_own_rows(const struct group *g, int n_rows, int d_model, int *begin, int *end)
{
    bool shares = cluster_prefers_scatter(g->cluster, n_rows, d_model);
    if (shares)
        cluster_own_rows(g->cluster, n_rows, begin, end);
    return shares;
}

/* ---- what users of a model call in place of the backend's operations ---- */

static enum tutti_status make_kv(struct model *model, struct kv_memory **out, int n_pages, int n_window_pages,
                                 struct tutti_error *err)
{
    struct backend *be = model->backend;
    enum tutti_status st = be->ops->kv_new(be, out, n_pages, n_window_pages, model->kv_type, err);
    return model->group ? cluster_agree(model->group->cluster, st, err) : st;
}

enum tutti_status model_kv_new(struct model *model, struct kv_memory **out, int n_pages, int n_window_pages,
                               struct tutti_error *err)
{
    struct group *g = model->group;
    struct kv_memory *kv = NULL;
    assert(!g || !g->has_kv); /* followers support only one */
    if (g && !send_short(g, MSG_KV_NEW, n_pages, n_window_pages))
        return cluster_check(g->cluster, err);
    enum tutti_status st = make_kv(model, &kv, n_pages, n_window_pages, err);
    if (st != TUTTI_OK) {
        model->backend->ops->kv_free(model->backend, kv);
        return st;
    }
    if (g)
        g->has_kv = true;
    *out = kv;
    return TUTTI_OK;
}

void model_kv_free(struct model *model, struct kv_memory *kv)
{
    struct group *g = model->group;
    if (g && g->has_kv && kv) {
        g->has_kv = false;
        g->n_copies = 0;
        (void)send_short(g, MSG_KV_FREE, 0, 0); /* a lost rank has none */
    }
    model->backend->ops->kv_free(model->backend, kv);
}

void model_kv_copy_page(struct model *model, struct kv_memory *kv, const struct page_copy *copy)
{
    struct group *g = model->group;
    model->backend->ops->kv_copy_page(model->backend, kv, copy);
    if (!g)
        return;
    memcpy(g->copies + COPY_INTS * g->n_copies, copy, sizeof *copy);
    if (++g->n_copies < MAX_COPIES)
        return;
    g->plan[0] = MSG_COPIES;
    g->plan[1] = g->n_copies;
    put(g->plan + 2, g->copies, COPY_INTS * g->n_copies);
    g->n_copies = 0;
    (void)send_plan(g, 2 + COPY_INTS * (size_t)MAX_COPIES);
}

enum tutti_status model_reserve_tables(struct model *model, int max_rows, int max_seqs, int max_pages,
                                       struct tutti_error *err)
{
    struct group *g = model->group;
    struct backend *be = model->backend;
    if (be->ops->reserve_tables) {
        enum tutti_status st = be->ops->reserve_tables(be, max_seqs, max_pages, err);
        if (st != TUTTI_OK)
            return st;
    }
    if (!g)
        return TUTTI_OK;
    size_t rows = (size_t)max_rows, seqs = (size_t)(max_seqs < max_rows ? max_seqs : max_rows);
    size_t n = HEAD_INTS + 8 * rows + 8 * seqs + COPY_INTS * (size_t)MAX_COPIES +
               2 * seqs * (size_t)max_pages;
    if (send_room(g, n) && send_table_room(g, 2 * max_seqs, max_pages))
        return TUTTI_OK;
    enum tutti_status st = cluster_check(g->cluster, err);
    return st != TUTTI_OK ? st : error_set(err, TUTTI_E_MEMORY, "out of memory for the plan of a step");
}

/* Ranks on one machine divide its free memory. */
uint64_t model_own_memory_left(const struct model *model)
{
    struct backend *be = model->backend;
    bool is_on_device = be && be->ops->memory_left;
    uint64_t n_ranks = model->group ? (uint64_t)cluster_n_local(model->group->cluster) : 1,
             left = !is_on_device         ? 0
                    : be->ops->pages_left ? be->ops->pages_left(be)
                                          : be->ops->memory_left(be);
    if (model->memory_bytes == 0)
        return is_on_device ? left : memory_left("") / n_ranks;
    uint64_t own = model->memory_bytes / n_ranks;
    own = own > model->weight_bytes ? own - model->weight_bytes : 0;
    return is_on_device && left < own ? left : own;
}

uint64_t model_memory_left(struct model *model)
{
    struct group *g = model->group;
    uint64_t n_bytes = model_own_memory_left(model);
    if (g && send_short(g, MSG_MEMORY, 0, 0))
        (void)cluster_min(g->cluster, &n_bytes);
    return n_bytes;
}

int model_memory_taken(struct model *model, uint64_t *n_bytes)
{
    struct group *g = model->group;
    n_bytes[0] = memory_resident();
    if (!g)
        return 1;
    bool ok = send_short(g, MSG_TAKEN, 0, 0) && cluster_values(g->cluster, n_bytes[0], n_bytes);
    return ok ? cluster_n_ranks(g->cluster) : 0;
}

int model_rank(const struct model *model)
{
    return model->group ? cluster_rank(model->group->cluster) : 0;
}

bool model_is_lost(const struct model *model)
{
    const struct backend *be = model->backend;
    return (model->group && cluster_is_lost(model->group->cluster)) ||
           (be && be->ops->check && be->ops->check(be, NULL) != TUTTI_OK);
}

enum tutti_status model_check(const struct model *model, struct tutti_error *err)
{
    const struct backend *be = model->backend;
    enum tutti_status st = model->group ? cluster_check(model->group->cluster, err) : TUTTI_OK;
    return st == TUTTI_OK && be && be->ops->check ? be->ops->check(be, err) : st;
}

void model_on_loss(struct model *model, void (*fn)(void *user), void *user)
{
    if (model->group)
        cluster_on_loss(model->group->cluster, fn, user);
}

void group_end(struct group *g)
{
    if (!g->is_joined)
        return;
    if (!g->is_over && g->split.rank == 0)
        (void)send_short(g, MSG_END, 0, 0);
    else if (!g->is_over)
        (void)cluster_broadcast(g->cluster, g->plan, g->n_room * sizeof *g->plan, true);
    (void)cluster_end(g->cluster); /* an error is irrelevant if a rank was lost */
}

/* ---- the other ranks ---- */

static const int32_t *take(const int32_t **at, int n)
{
    const int32_t *values = *at;
    *at += n;
    return values;
}

static void copy_pages(struct model *model, struct kv_memory *kv, const int32_t *copies, int n)
{
    struct backend *be = model->backend;
    for (int i = 0; i < n; i++)
        be->ops->kv_copy_page(be, kv, (const struct page_copy *)(const void *)(copies + COPY_INTS * i));
}

/* Waits for the step that is in flight. */
static void end_step(struct model *model)
{
    if (model->group->is_in_flight)
        model_wait(model);
    model->group->is_in_flight = false;
}

/* Rank 0 may submit the next step before this one is computed: then this rank must not wait for it either. */
static enum tutti_status follow_step(struct model *model, struct kv_memory *kv, struct tutti_error *err)
{
    struct group *g = model->group;
    const struct backend *be = model->backend;
    struct step_head head;
    memcpy(&head, g->plan, sizeof head);
    const int32_t *at = g->plan + HEAD_INTS;
    struct step step = { .n_rows = head.n_rows,
                         .n_seqs = head.n_seqs,
                         .n_outputs = head.n_outputs,
                         .n_hidden = head.n_hidden,
                         .page_tables = g->tables };
    step.token_ids = take(&at, head.n_rows);
    step.positions = take(&at, head.n_rows);
    step.seqs = take(&at, head.n_rows);
    step.output_rows = take(&at, head.n_outputs);
    if (head.has & HAS_PREFIXES)
        step.prefix_lens = take(&at, head.n_seqs);
    if (head.has & HAS_ROPE)
        step.rope_positions = take(&at, head.n_rows);
    if (head.has & HAS_BLOCKS)
        step.block_positions = take(&at, head.n_rows);
    if (head.has & HAS_ADAPTERS)
        step.adapters = take(&at, head.n_seqs);
    if (head.has & HAS_SOURCES)
        step.token_sources = take(&at, head.n_rows);
    const int32_t *previous = head.has & HAS_PREVIOUS ? take(&at, head.n_rows) : NULL;
    copy_pages(model, kv, take(&at, COPY_INTS * head.n_copies), head.n_copies);
    int n_tables = head.has & HAS_WINDOWS ? 2 * head.n_seqs : head.n_seqs;
    const int32_t *slots = take(&at, n_tables), *firsts = take(&at, n_tables), *counts = take(&at, n_tables);
    for (int i = 0; i < n_tables; i++) {
        if (!page_tables_set(&g->page_tables, slots[i], firsts[i], take(&at, counts[i]), counts[i]))
            return error_set(err, TUTTI_E_INTERNAL,
                             "rank 0 sent entries %d to %d of page table %d, which do not fit", firsts[i],
                             firsts[i] + counts[i] - 1, slots[i]);
        g->tables[i] = page_tables_get(&g->page_tables, slots[i]);
    }
    if (head.has & HAS_WINDOWS)
        step.window_tables = g->tables + head.n_seqs;
    (void)(previous ? model_submit_mtp(model, kv, &step, previous) : model_submit(model, kv, &step));
    g->is_in_flight = true;
    if (model->desc.uses_mtp || !be->ops->feeds_tokens || !be->ops->feeds_tokens(be))
        end_step(model);
    return TUTTI_OK;
}

/* On failure this rank ends, and the others notice. */
static enum tutti_status follow_one(struct model *model, struct kv_memory **kv, struct tutti_error *err)
{
    struct group *g = model->group;
    struct backend *be = model->backend;
    uint64_t n_bytes, all[CLUSTER_MAX_RANKS] = { 0 };
    switch (g->plan[0]) {
    case MSG_STEP:
        return follow_step(model, *kv, err);
    case MSG_HIDDEN:
        model_store_hidden(model, *kv, g->plan + 2, g->plan + 2 + g->plan[1], g->plan[1]);
        return TUTTI_OK;
    case MSG_COPIES:
        copy_pages(model, *kv, g->plan + 2, g->plan[1]);
        return TUTTI_OK;
    case MSG_RESERVE:
        if (model_reserve(model, g->plan[1], g->plan[2], err) == TUTTI_OK)
            return TUTTI_OK;
        return cluster_is_lost(g->cluster)
                   ? TUTTI_E_IO
                   : TUTTI_OK; /* otherwise all ranks know of the failure, and continue */
    case MSG_KV_NEW:
        if (make_kv(model, kv, g->plan[1], g->plan[2], err) != TUTTI_OK) {
            be->ops->kv_free(be, *kv);
            *kv = NULL;
        }
        return TUTTI_OK;
    case MSG_KV_FREE:
        be->ops->kv_free(be, *kv);
        *kv = NULL;
        return TUTTI_OK;
    case MSG_MEMORY:
        n_bytes = model_own_memory_left(model);
        (void)cluster_min(g->cluster, &n_bytes);
        return TUTTI_OK;
    case MSG_TAKEN:
        (void)cluster_values(g->cluster, memory_resident(), all);
        return TUTTI_OK;
    case MSG_TABLES:
        return page_tables_reserve(&g->page_tables, g->plan[1], g->plan[2])
                   ? TUTTI_OK
                   : error_set(err, TUTTI_E_MEMORY, "out of memory for the page tables of a step");
    case MSG_ROOM:
        return group_make_room(g, (size_t)g->plan[1])
                   ? TUTTI_OK
                   : error_set(err, TUTTI_E_MEMORY, "out of memory for the plan of a step");
    default:
        return error_set(err, TUTTI_E_INTERNAL, "rank 0 said %d, which has no meaning", g->plan[0]);
    }
}

/* While rank 0 sends nothing: notices the end of the step in flight. False: the device failed. */
static bool watch_step(void *user)
{
    struct model *model = user;
    struct backend *be = model->backend;
    bool is_done = model->group->is_in_flight && be->ops->step_is_done(be);
    if (be->ops->check && be->ops->check(be, NULL) != TUTTI_OK)
        return false;
    if (is_done)
        end_step(model);
    return true;
}

enum tutti_status model_follow(struct model *model, struct tutti_error *err)
{
    struct group *g = model->group;
    struct kv_memory *kv = NULL;
    enum tutti_status st = TUTTI_OK;
    assert(g && model_rank(model) > 0);
    if (model->backend->ops->bind_caller)
        model->backend->ops->bind_caller(model->backend);
    while (st == TUTTI_OK) {
        if (!cluster_await(g->cluster, g->plan, g->n_room * sizeof *g->plan, watch_step, model)) {
            st = model_check(model, err);
            break;
        }
        if (g->plan[0] != MSG_STEP && g->plan[0] != MSG_COPIES)
            end_step(model);
        if (g->plan[0] == MSG_END)
            break;
        st = follow_one(model, &kv, err);
        if (st == TUTTI_OK)
            st = model_check(model, err); /* if its card failed, this rank ends, and the others notice */
    }
    g->is_over = true;
    model->backend->ops->kv_free(model->backend, kv);
    return st;
}
