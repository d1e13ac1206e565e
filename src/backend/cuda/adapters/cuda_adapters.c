/* Tables of what adapters change, and the adapter of each row, on the card. */
#include "backend/cuda/adapters/cuda_lora.h"

#include <stdlib.h>
#include <string.h>

enum {
    LAYER_TABLES = 32, /* more than a layer has operations with adapters; twice that is kept */
    N_ARRAYS = 8,      /* more than a step has different arrays of rows' adapters */
};

struct cuda_adapters {
    struct adapter_table *tables; /* [n_tables] */
    uint8_t *card;                /* [n_tables][LORA_TABLE] addresses */
    int32_t *arrays[N_ARRAYS];    /* [max_rows] */
    int n_tables, last, next_array;
    uint64_t n_uses;
};

void cuda_adapters_release(struct cuda_backend *cuda)
{
    struct cuda_adapters *all = cuda->adapters;
    if (!all)
        return;
    cuda_memory_free(cuda, all->card);
    for (int i = 0; i < N_ARRAYS; i++)
        free(all->arrays[i]);
    free(all->tables);
    free(all);
    cuda->adapters = NULL;
}

bool cuda_adapters_reserve(struct cuda_backend *cuda, int max_rows)
{
    size_t n = (size_t)(cuda->n_layers + 2) * LAYER_TABLES, entry = LORA_TABLE * sizeof(void *);
    cuda_adapters_release(cuda);
    struct cuda_adapters *all = cuda->adapters = calloc(1, sizeof *all);
    if (!all)
        return false;
    all->n_tables = (int)n;
    all->tables = calloc(n, sizeof *all->tables);
    all->card = cuda_memory_new(cuda, n * entry);
    bool has_all = all->tables && all->card;
    for (int i = 0; i < N_ARRAYS; i++) {
        all->arrays[i] = calloc((size_t)max_rows, sizeof **all->arrays);
        has_all = has_all && all->arrays[i];
    }
    for (size_t i = 0; has_all && i < n; i++)
        all->tables[i].card = all->card + i * entry;
    return has_all;
}

/* Operations come in the same order in every step, so the next table is mostly the one after the last. */
static struct adapter_table *find_table(struct cuda_adapters *all, const void *key)
{
    int oldest = 0;
    for (int i = 1; i <= all->n_tables; i++) {
        int at = (all->last + i) % all->n_tables;
        if (all->tables[at].key == key) {
            all->last = at;
            return &all->tables[at];
        }
        if (!all->tables[at].key && all->tables[oldest].key)
            oldest = at;
        if (all->tables[at].last_use < all->tables[oldest].last_use)
            oldest = at;
    }
    all->last = oldest;
    all->tables[oldest].key = key;
    return &all->tables[oldest];
}

struct adapter_table *cuda_adapters_table(struct cuda_backend *cuda, const void *key)
{
    if (!cuda->adapters)
        return NULL;
    struct adapter_table *table = find_table(cuda->adapters, key);
    table->last_use = ++cuda->adapters->n_uses;
    return table;
}

void cuda_adapters_set(struct adapter_table *table, int adapter, const void *entry)
{
    assert(adapter >= 0 && adapter < LORA_TABLE);
    table->is_changed = table->is_changed || table->entries[adapter] != entry;
    table->entries[adapter] = entry;
}

const void *cuda_adapters_send(struct cuda_backend *cuda, struct adapter_table *table)
{
    if (table->is_changed)
        cuda_copy_in(cuda, (void *)(uintptr_t)table->card, table->entries, sizeof table->entries);
    table->is_changed = false;
    return table->card;
}

/* An array of the same numbers is found again, so that a step's copy has it once. */
const int32_t *cuda_adapters_rows(struct cuda_backend *cuda, const int32_t *numbers, int n)
{
    struct cuda_adapters *all = cuda->adapters;
    size_t padded = (size_t)cuda_padded_rows(cuda, n), used = (size_t)n * sizeof *numbers;
    int32_t *array = NULL;
    for (int i = 0; i < N_ARRAYS && !array; i++)
        if (memcmp(all->arrays[i], numbers, used) == 0)
            array = all->arrays[i];
    if (!array) {
        array = all->arrays[all->next_array];
        all->next_array = (all->next_array + 1) % N_ARRAYS;
        memcpy(array, numbers, used);
    }
    for (size_t i = (size_t)n; i < padded; i++)
        array[i] = -1;
    return cuda_step_data(cuda, array, padded * sizeof *array, padded * sizeof *array);
}
