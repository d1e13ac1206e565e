/* The embedding with what adapters change of it. Rows of tables of an adapter's own are made for all rows of the step, and
 * used where the row has that adapter: such adapters are few. */
#include "backend/cuda/adapters/cuda_lora.h"
#include "backend/cuda/adapters/lora_pack.h"
#include "base/hash.h"

#include <stdlib.h>

struct embedding_update {
    int n_columns;
    struct matrix *table; /* NULL: the model's */
    int number;           /* of the table; 0: the model's */
    uint8_t *card;        /* begins with its struct embedding_change */
    size_t n_bytes;
    uint64_t sum;
};

struct cuda_embeddings {
    int n_tables, n_columns; /* of tables of adapters; the most columns */
    struct buffer rows;      /* [max_rows][n_columns]: of such a table */
};

static bool copy_to_card(struct cuda_backend *cuda, struct embedding_update *u,
                         const struct embedding_source *source)
{
    size_t n = embedding_pack(NULL, NULL, source, u->number);
    uint8_t *host = calloc(1, n);
    u->card = cuda_memory_new(cuda, n);
    bool has_all = host && u->card;
    if (has_all) {
        embedding_pack(host, u->card, source, u->number);
        cuda_copy_in(cuda, u->card, host, n);
        u->sum = embedding_hash(host, n, source);
        u->n_bytes = n;
    }
    free(host);
    return has_all;
}

enum tutti_status cuda_embedding_new(struct backend *be, struct embedding_update **out,
                                     const struct embedding_source *source, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct embedding_update *u = calloc(1, sizeof *u);
    if (!cuda->embeddings)
        cuda->embeddings = calloc(1, sizeof *cuda->embeddings);
    if (!u || !cuda->embeddings) {
        free(u);
        be->ops->matrix_free(be, source->table);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    struct cuda_embeddings *all = cuda->embeddings;
    u->n_columns = source->n_columns;
    u->table = source->table;
    u->number = u->table ? ++all->n_tables : 0;
    if (!copy_to_card(cuda, u, source)) {
        cuda_embedding_free(be, u);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory on the card");
    }
    (void)cuda_need(cuda, CUDA_KERNEL_embed_change, CUDA_NEED_FILE);
    enum tutti_status st = cuda_check(cuda, err);
    if (st != TUTTI_OK) {
        cuda_embedding_free(be, u);
        return st;
    }
    if (u->table) {
        u->n_bytes += be->ops->matrix_bytes(u->table);
        all->n_columns = u->n_columns > all->n_columns ? u->n_columns : all->n_columns;
    }
    *out = u;
    return TUTTI_OK;
}

void cuda_embedding_free(struct backend *be, struct embedding_update *u)
{
    if (!u)
        return;
    be->ops->matrix_free(be, u->table);
    cuda_memory_free(cuda_of(be), u->card);
    free(u);
}

size_t cuda_embedding_bytes(const struct backend *be, const struct embedding_update *u)
{
    (void)be;
    return u->n_bytes;
}

uint64_t cuda_embedding_checksum(struct backend *be, const struct embedding_update *u)
{
    uint64_t sum = u->table ? be->ops->matrix_checksum(be, u->table) : 0;
    return hash64(sum, &u->sum, sizeof u->sum);
}

bool cuda_embedding_reserve(struct cuda_backend *cuda, int max_rows)
{
    struct cuda_embeddings *all = cuda->embeddings;
    if (!all)
        return true;
    cuda_memory_free(cuda, all->rows.data);
    all->rows = (struct buffer){ .n_floats = (size_t)max_rows * (size_t)all->n_columns };
    if (all->n_columns > 0)
        all->rows.data = cuda_memory_new(cuda, all->rows.n_floats * sizeof(float));
    return all->n_columns == 0 || all->rows.data;
}

void cuda_embedding_release(struct cuda_backend *cuda)
{
    if (!cuda->embeddings)
        return;
    cuda_memory_free(cuda, cuda->embeddings->rows.data);
    free(cuda->embeddings);
    cuda->embeddings = NULL;
}

/* ---- a step ---- */

static const struct embedding_update *update_of(const struct embedding_update *const *updates,
                                                const int32_t *adapters, int row)
{
    return adapters[row] >= 0 ? updates[adapters[row]] : NULL;
}

/* Changes the rows whose adapters use table number table, which are in from. */
static void change_rows(struct cuda_backend *cuda, struct embed_change_args *args, const float *from,
                        int table)
{
    enum { THREADS = 256 };
    args->from = from;
    args->table = table;
    cuda_launch(
        cuda, CUDA_KERNEL_embed_change,
        (struct cuda_grid){
            .x = cuda->n_padded_rows, .y = (args->n + THREADS - 1) / THREADS, .z = 1, .n_threads = THREADS },
        args, sizeof *args);
}

/* The first row with this table. */
static bool is_first(const struct embedding_update *const *updates, const int32_t *adapters, int row)
{
    int number = update_of(updates, adapters, row)->number;
    for (int r = 0; r < row; r++) {
        const struct embedding_update *u = update_of(updates, adapters, r);
        if (u && u->number == number)
            return false;
    }
    return true;
}

void cuda_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                        const struct embedding_update *const *updates, const int32_t *adapters)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct adapter_table *changes = NULL;
    struct embed_change_args args = { 0 };
    int n_rows = cuda->step->n_rows;
    be->ops->embed(be, x, table, 0);
    for (int r = 0; r < n_rows; r++) {
        const struct embedding_update *u = update_of(updates, adapters, r);
        if (adapters[r] < 0)
            continue;
        changes = changes ? changes : cuda_adapters_table(cuda, updates);
        assert(changes); /* else reserve() was not called */
        cuda_adapters_set(changes, adapters[r], u ? u->card : NULL);
        args.n = u ? u->n_columns : args.n;
    }
    if (args.n == 0)
        return;
    args.changes = cuda_adapters_send(cuda, changes);
    args.adapters = cuda_adapters_rows(cuda, adapters, n_rows);
    args.token_ids = cuda->rows.token_ids;
    args.positions = cuda->rows.positions;
    args.x = cuda_floats(x, (size_t)cuda->n_padded_rows * (size_t)args.n);
    change_rows(cuda, &args, args.x, 0);
    for (int r = 0; r < n_rows; r++) {
        const struct embedding_update *u = update_of(updates, adapters, r);
        if (!u || !u->table || !is_first(updates, adapters, r))
            continue;
        struct buffer *rows = &cuda->embeddings->rows;
        assert(rows->data && u->n_columns <= cuda->embeddings->n_columns); /* else reserve() came before it */
        be->ops->embed(be, (struct floats){ .buffer = rows }, u->table, 0);
        change_rows(cuda, &args, rows->data, u->number);
    }
}
