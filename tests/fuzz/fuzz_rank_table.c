/* Any bytes as a table of ranks: an error, or ranks with hosts from which mpirun's files can be made. */
#include "fleet/rank_table.h"
#include "scratch.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct rank_table *table = NULL;
    struct tutti_error err = { 0 };
    struct buf hosts = { 0 }, ranks = { 0 };
    if (rank_table_read(&table, scratch_write("table", bytes, n_bytes), &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !table);
        return 0;
    }
    int n = rank_table_n_ranks(table);
    assert(n > 0 && n <= RANK_TABLE_MAX_RANKS && rank_table_n_servers(table) > 0);
    assert(rank_table_hostfile(table, &hosts) && hosts.n_bytes > 0);
    if (rank_table_rankfile(table, 8, &ranks, &err) != TUTTI_OK ||
        rank_table_check(table, 0, n, &err) != TUTTI_OK)
        assert(err.text[0] != '\0');
    buf_clear(&hosts);
    buf_clear(&ranks);
    rank_table_free(table);
    return 0;
}
