/* A step of the CUDA backend: what the card gets to know of its rows, and what comes back.
 *
 * All that a step sends is in one piece of pinned memory, which is copied once, before the step's first launch. Its
 * addresses on the card depend on the number of padded rows only, so that a graph stays valid. */
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_cluster.h"
#include "kernels/cuda/step_args.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_SLOTS = 64, /* of tables whose size was not reserved */
    LEAST_PAGES = 256,
    DATA_ALIGNMENT = 64, /* bytes */
};

static const int BUCKETS[] = { 1, 2, 4, 8, 12, 16, 24, 32, 48, 64 };
enum { N_BUCKETS = sizeof BUCKETS / sizeof *BUCKETS };

int cuda_bucket(int n)
{
    for (int i = 0; i < N_BUCKETS; i++)
        if (n <= BUCKETS[i])
            return BUCKETS[i];
    return (n + 63) / 64 * 64;
}

int cuda_padded_rows(const struct cuda_backend *cuda, int n)
{
    int padded = cuda_bucket(n);
    assert(n <= cuda->max_rows);
    return padded < cuda->max_rows ? padded : cuda->max_rows;
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* Bytes of the arrays of a step of padded rows. */
static size_t arrays_bytes(int padded)
{
    size_t n = (size_t)padded * sizeof(int32_t), n_seqs = n + sizeof(int32_t);
    return 7 * round_up(n, DATA_ALIGNMENT) + 2 * round_up(n_seqs, DATA_ALIGNMENT) +
           round_up(sizeof(struct step_counts), DATA_ALIGNMENT);
}

/* ---- tables of pages ---- */

static void free_card_tables(struct cuda_backend *cuda)
{
    for (int i = 0; i < 2; i++) {
        cuda_memory_free(cuda, cuda->state->card_tables[i]);
        cuda->state->card_tables[i] = NULL;
    }
}

/* Makes the tables of this size, and forgets all entries. */
static enum tutti_status make_tables(struct cuda_backend *cuda, int n_slots, int max_pages,
                                     struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    bool ok = true;
    free_card_tables(cuda);
    for (int i = 0; i < 2 && ok; i++) {
        s->card_tables[i] = cuda_memory_new(cuda,
                                            (size_t)(n_slots + 1) * (size_t)max_pages * sizeof(int32_t));
        ok = s->card_tables[i] && page_tables_reserve(&s->tables[i], n_slots, max_pages);
    }
    if (ok)
        return TUTTI_OK;
    free_card_tables(cuda);
    return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory for the page tables of %d sequences",
                     n_slots);
}

enum tutti_status cuda_reserve_tables(struct backend *be, int n_slots, int max_pages, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    if (s->card_tables[0] && page_tables_has_room(&s->tables[0], n_slots, max_pages))
        return TUTTI_OK;
    return make_tables(cuda, n_slots > s->tables[0].n_slots ? n_slots : s->tables[0].n_slots,
                       max_pages > s->tables[0].max_pages ? max_pages : s->tables[0].max_pages, err);
}

static int slot_of(const struct step *step, int seq)
{
    return step->slots ? step->slots[seq] : seq;
}

static int round_to_power(int n, int least)
{
    while (least < n)
        least *= 2;
    return least;
}

/* Makes room for the tables of a step, if it was not reserved. lengths: [n_seqs], pages of each sequence. */
static bool fit_tables(struct cuda_backend *cuda, const struct step *step, const int32_t *lengths)
{
    struct cuda_state *s = cuda->state;
    struct tutti_error err;
    int n_slots = 1, max_pages = 1;
    for (int i = 0; i < step->n_seqs; i++) {
        n_slots = slot_of(step, i) >= n_slots ? slot_of(step, i) + 1 : n_slots;
        max_pages = lengths[i] > max_pages ? lengths[i] : max_pages;
    }
    if (s->card_tables[0] && page_tables_has_room(&s->tables[0], n_slots, max_pages))
        return true;
    enum tutti_status st = cuda_reserve_tables(&cuda->backend, round_to_power(n_slots, LEAST_SLOTS),
                                               round_to_power(max_pages, LEAST_PAGES), &err);
    if (st != TUTTI_OK)
        cuda_fail(cuda, st, err.text);
    return st == TUTTI_OK;
}

/* Entries of a table that the card must get; if there are too many, they are copied by themselves. */
static void send_entries(struct cuda_backend *cuda, int table, int slot, int first, const int32_t *pages,
                         int n)
{
    struct cuda_state *s = cuda->state;
    size_t at = (size_t)slot * (size_t)s->tables[0].max_pages + (size_t)first;
    if (n > MAX_CHANGES - s->n_changes) {
        cuda_copy_in(cuda, s->card_tables[table] + at, pages, (size_t)n * sizeof *pages);
        return;
    }
    for (int i = 0; i < n; i++)
        s->changes[s->n_changes++] = (struct table_change){ .table = (uint32_t)table,
                                                            .index = (uint32_t)at + (uint32_t)i,
                                                            .page = pages[i] };
}

static void change_tables(struct cuda_backend *cuda, const struct step *step, const int32_t *lengths)
{
    struct cuda_state *s = cuda->state;
    for (int table = 0; table < (step->window_tables ? 2 : 1); table++) {
        const int32_t *const *pages = table == 0 ? step->page_tables : step->window_tables;
        for (int i = 0; i < step->n_seqs; i++) {
            int first, slot = slot_of(step, i),
                       n = page_tables_change(&s->tables[table], slot, pages[i], lengths[i], &first);
            send_entries(cuda, table, slot, first, pages[i] + first, n);
        }
    }
}

/* ---- reserve ---- */

bool cuda_step_open(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    s->changes = calloc(MAX_CHANGES, sizeof *s->changes);
    return s->changes != NULL;
}

static void release_buffers(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < 2; i++) {
        cuda_pinned_free(cuda, s->buffers[i]);
        s->buffers[i] = NULL;
    }
    cuda_pinned_free(cuda, s->downloads_memory);
    cuda_memory_free(cuda, s->card_data);
    free(s->lengths);
    s->lengths = NULL;
    s->data = s->downloads_memory = s->card_data = NULL;
}

void cuda_step_close(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    release_buffers(cuda);
    free_card_tables(cuda);
    cuda_pinned_free(cuda, s->crossing);
    s->crossing = NULL;
    for (int i = 0; i < 2; i++)
        page_tables_clear(&s->tables[i]);
    free(s->changes);
    s->changes = NULL;
}

enum tutti_status cuda_step_reserve(struct cuda_backend *cuda, int max_rows, struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    release_buffers(cuda);
    s->changes_room = round_up(MAX_CHANGES * sizeof *s->changes, DATA_ALIGNMENT);
    s->data_room = arrays_bytes(max_rows) + STEP_DATA_BYTES;
    for (int i = 0; i < 2; i++)
        s->buffers[i] = cuda_pinned_new(cuda, s->data_room + s->changes_room);
    s->card_data = cuda_memory_new(cuda, s->data_room + s->changes_room);
    s->downloads_memory = cuda_pinned_new(cuda, DOWNLOAD_BYTES);
    s->lengths = calloc((size_t)max_rows, sizeof *s->lengths);
    if (s->buffers[0] && s->buffers[1] && s->card_data && s->downloads_memory && s->lengths)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory for steps of %d rows", max_rows);
}

/* ---- the data of a step ---- */

/* Room in what is sent; its place on the card is *card. */
static void *take_data(struct cuda_state *s, size_t room_bytes, const void **card)
{
    void *place = s->data + s->n_data;
    *card = s->card_data + s->n_data;
    s->n_data += round_up(room_bytes, DATA_ALIGNMENT);
    assert(s->n_data <= s->data_room);
    return place;
}

/* n values (NULL: zeros), then zeros up to room. */
static const int32_t *put_array(struct cuda_state *s, const int32_t *values, int n, int room)
{
    const void *card;
    int32_t *to = take_data(s, (size_t)room * sizeof *to, &card);
    n = values ? n : 0;
    memcpy(to, values ? values : to, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)(room - n) * sizeof *to);
    return card;
}

/* The same, whose padding has a value. */
static const int32_t *put_padded(struct cuda_state *s, const int32_t *values, int n, int room,
                                 int32_t padding)
{
    size_t at = s->n_data;
    const int32_t *card = put_array(s, values, n, room);
    int32_t *to = (int32_t *)(void *)(s->data + at);
    for (int i = n; i < room; i++)
        to[i] = padding;
    return card;
}

void *cuda_step_data(struct cuda_backend *cuda, const void *host, size_t n_bytes, size_t room_bytes)
{
    struct cuda_state *s = cuda->state;
    assert(s->in_step && n_bytes <= room_bytes);
    for (int i = 0; i < s->n_known_data; i++)
        if (s->known_data[i].host == host && s->known_data[i].n_bytes == room_bytes &&
            memcmp(s->data + s->known_data[i].offset, host, n_bytes) == 0)
            return s->card_data + s->known_data[i].offset;
    if (s->failure != TUTTI_OK)
        return NULL;
    if (s->n_data > s->data_room || round_up(room_bytes, DATA_ALIGNMENT) > s->data_room - s->n_data) {
        cuda_fail(cuda, TUTTI_E_LIMIT,
                  "device cuda: a step's data exceed the memory that is reserved for them");
        return NULL;
    }
    const void *card;
    size_t at = s->n_data;
    memcpy(take_data(s, room_bytes, &card), host, n_bytes);
    if (s->n_known_data < MAX_STEP_DATA)
        s->known_data[s->n_known_data++] = (struct step_data){ host, room_bytes, at };
    return s->card_data + at;
}

void cuda_step_send(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    if (s->n_sent == s->n_data && s->n_changes == 0)
        return;
    size_t n_bytes = s->n_data - s->n_sent, changes_bytes = (size_t)s->n_changes * sizeof *s->changes;
    memcpy(s->data + s->n_data, s->changes, changes_bytes);
    (void)cuda_is_ok(cuda,
                     cuda->driver->copy_in(s->card_data + s->n_sent, s->data + s->n_sent,
                                           n_bytes + changes_bytes, s->stream),
                     "sending the rows of a step");
    if (s->n_changes > 0) {
        const struct set_pages_args args = { .tables = { s->card_tables[0], s->card_tables[1] },
                                             .changes = (const void *)(s->card_data + s->n_data),
                                             .n = s->n_changes };
        struct item item = { .kind = ITEM_LAUNCH, .n_bytes = sizeof args };
        item.launch.kernel = CUDA_KERNEL_set_pages;
        item.launch.x = ((uint32_t)s->n_changes + 127) / 128;
        item.launch.y = item.launch.z = 1;
        item.launch.n_threads = 128;
        cuda_item_run(cuda, &item, &args);
        /* Further data go after the changes, which the card may still have to read. */
        if (s->in_step)
            s->n_data += round_up(changes_bytes, DATA_ALIGNMENT);
        s->n_changes = 0;
    }
    s->n_sent = s->n_data;
}

/* token_ids: on the card. */
static void feed_tokens(struct cuda_backend *cuda, const struct step *step, int32_t *token_ids, int padded)
{
    if (cuda_draws_tokens(cuda)) {
        const struct feed_tokens_args args = { .token_ids = token_ids,
                                               .sources = put_padded(cuda->state, step->token_sources,
                                                                     step->n_rows, padded, -1),
                                               .results = cuda_sample_results(cuda),
                                               .n = padded };
        cuda_launch(cuda, CUDA_KERNEL_feed_tokens, (struct cuda_grid){ (padded + 127) / 128, 1, 1, 128, 0 },
                    &args, sizeof args);
    }
    cuda_share_tokens(cuda, token_ids, padded);
}

static void put_step(struct cuda_backend *cuda, const struct step *step, int padded)
{
    struct cuda_state *s = cuda->state;
    int n = step->n_rows, n_seqs = step->n_seqs;
    struct step_rows *rows = &cuda->rows;
    const void *card;
    struct step_counts *counts = take_data(s, sizeof *counts, &card);
    *counts = (struct step_counts){ n, n_seqs, step->n_outputs, step->n_hidden };
    rows->counts = card;
    int32_t *token_ids = (int32_t *)(uintptr_t)put_array(s, step->token_ids, n, padded);
    rows->token_ids = token_ids;
    rows->positions = put_array(s, step->positions, n, padded);
    rows->seqs = put_padded(s, step->seqs, n, padded, n_seqs);
    rows->rope_positions = put_array(s, step->rope_positions ? step->rope_positions : step->positions, n,
                                     padded);
    rows->block_positions = put_array(s, step->block_positions, n, padded);
    rows->output_rows = put_array(s, step->output_rows, step->n_outputs, padded);
    rows->prefix_lens = put_array(s, step->prefix_lens, n_seqs, padded + 1);
    int32_t *slots = (int32_t *)(void *)(s->data + s->n_data);
    rows->slots = put_array(s, step->slots, n_seqs, padded + 1);
    for (int i = 0; i < n_seqs; i++)
        slots[i] = slot_of(step, i);
    for (int i = n_seqs; i <= padded; i++)
        slots[i] = s->tables[0].n_slots;
    if (step->token_sources)
        feed_tokens(cuda, step, token_ids, padded);
    rows->page_tables = s->card_tables[0];
    rows->window_tables = step->window_tables ? s->card_tables[1] : s->card_tables[0];
    rows->max_pages = s->tables[0].max_pages;
}

/* The used pages of each sequence: up to that of its last row. Rows of a sequence are in order. */
static void measure_tables(int32_t *lengths, const struct step *step)
{
    memset(lengths, 0, (size_t)step->n_seqs * sizeof *lengths);
    for (int r = 0; r < step->n_rows; r++)
        lengths[step->seqs[r]] = step->positions[r] / CUDA_PAGE_TOKENS + 1;
}

/* A rank that draws no tokens does not wait for those of the step before the last one, so it waits for that step itself. */
static void wait_without_draws(struct cuda_backend *cuda)
{
    if (cuda_draws_tokens(cuda) || cuda->state->n_in_flight == 0)
        return;
    if (cuda->state->n_marked > 0)
        cuda_wait_samples(cuda);
    cuda_mark_samples(cuda); /* after the last one */
}

void cuda_step_begin(struct backend *be, const struct step *step)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    assert(!s->in_step && step->n_seqs <= cuda->max_rows && step->n_outputs <= cuda->max_rows);
    wait_without_draws(cuda);
    int most = step->n_rows > step->n_outputs ? step->n_rows : step->n_outputs;
    most = most > step->n_seqs ? most : step->n_seqs; /* a sequence may have no row in a step */
    cuda->step = step;
    cuda->n_padded_rows = cuda_padded_rows(cuda, most);
    assert(s->n_downloads == 0 || s->failure != TUTTI_OK); /* else step_wait() is missing */
    assert(s->n_in_flight < 2);                            /* else sample_wait() or step_wait() is missing */
    s->buffer = 1 - s->buffer;
    s->data = s->buffers[s->buffer];
    s->n_data = s->n_sent = s->list.n_bytes = s->n_downloaded = 0;
    s->n_known_data = s->n_downloads = s->n_changes = 0;
    s->n_crossed = 0;
    s->is_cut = false;
    s->in_step = true;
    measure_tables(s->lengths, step);
    if (!fit_tables(cuda, step, s->lengths))
        return; /* a kept failure: nothing is launched any more */
    change_tables(cuda, step, s->lengths);
    put_step(cuda, step, cuda->n_padded_rows);
    cuda_rope_tables(cuda);
    cuda_attention_begin(cuda);
}

void cuda_step_submit(struct backend *be)
{
    struct cuda_backend *cuda = cuda_of(be);
    cuda_enter(cuda);
    struct cuda_state *s = cuda->state;
    cuda_list_run(cuda, true);
    cuda_busy_end(cuda);
    s->in_step = false;
    cuda->step = NULL;
    s->n_in_flight++;
    if (s->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, cuda->driver->event_record(s->marks[MARK_STEP], s->stream),
                         "marking the end of a step");
}

bool cuda_step_is_done(struct backend *be)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    if (s->failure != TUTTI_OK)
        return true;
    cuda_result result = cuda->driver->event_query(s->marks[MARK_STEP]);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    (void)cuda_is_ok(cuda, result, "computing a step");
    return true;
}

void cuda_step_wait(struct backend *be)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    (void)cuda_is_ok(cuda, cuda_wait_stream(cuda, s->stream), "computing a step");
    s->n_in_flight = s->n_marked = 0;
    cuda_busy_count(cuda);
    for (int i = 0; i < s->n_downloads; i++) {
        const struct download *d = &s->downloads[i];
        if (s->failure == TUTTI_OK)
            memcpy(d->host, s->downloads_memory + d->offset, d->n_bytes);
        else
            memset(d->host, 0, d->n_bytes); /* the card may still write; not used, but defined */
    }
    s->n_downloads = 0;
}

void cuda_download(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    const float *from = cuda_floats(src, n_floats);
    size_t n_bytes = n_floats * sizeof *host;
    if (n_floats == 0)
        return;
    if (!s->in_step || n_bytes > DOWNLOAD_BYTES - s->n_downloaded || s->n_downloads == MAX_DOWNLOADS) {
        cuda_copy_out(cuda, host, from, n_bytes);
        return;
    }
    struct item item = { .kind = ITEM_DOWNLOAD };
    item.copy.from = from;
    item.copy.to = s->downloads_memory + s->n_downloaded;
    item.copy.n_bytes = n_bytes;
    cuda_list_add(cuda, &item, NULL);
    s->downloads[s->n_downloads++] = (struct download){ host, s->n_downloaded, n_bytes };
    s->n_downloaded += round_up(n_bytes, DATA_ALIGNMENT);
}
