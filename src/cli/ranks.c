/* tutti ranks: checks a RANK_TABLE_FILE and writes mpirun's hostfile and rankfile. */
#include "fleet/rank_table.h"

#include "base/files/new_file.h"
#include "base/system/team.h"
#include "cli/options/command.h"
#include "cli/options/output_path.h"
#include "cli/terminal/output.h"

struct ranks_values {
    const char *hostfile, *rankfile;
    int cores;
};

#define VALUES struct ranks_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, hostfile, "hostfile", "FILE", "write the hostfile to FILE"),
    TEXT_OPTION(VALUES, rankfile, "rankfile", "FILE", "write the rankfile to FILE"),
    INT_OPTION(VALUES, cores, "cores", "N",
               "cores of each host, which the rankfile divides among its ranks; without it, as many as this "
               "machine has",
               .min = 1, .max = 4096),
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

static enum tutti_status write_or_print(const char *path, const char *title, const struct buf *text,
                                        struct tutti_error *err)
{
    if (!path) {
        output_printf("# %s\n", title);
        output_write(text->bytes, text->n_bytes);
        return TUTTI_OK;
    }
    return new_file_put(path, text->bytes, text->n_bytes, err);
}

static enum tutti_status check_ranks_files(const struct ranks_values *values, const char *table,
                                           struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (values->hostfile)
        st = output_path_check("--hostfile", values->hostfile, &table, 1, err);
    if (st == TUTTI_OK && values->rankfile)
        st = output_path_check("--rankfile", values->rankfile, &table, 1, err);
    if (st == TUTTI_OK && values->hostfile && values->rankfile &&
        output_path_is_same(values->hostfile, values->rankfile))
        st = error_set(err, TUTTI_E_ARGUMENT, "--rankfile: %s is the file of --hostfile already",
                       values->rankfile);
    return st;
}

static enum tutti_status run_ranks(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct ranks_values *values = v;
    struct rank_table *table = NULL;
    struct buf hosts = { 0 }, ranks = { 0 };
    int n_cores = values->cores > 0 ? values->cores : team_n_cores();
    enum tutti_status st = check_ranks_files(values, operands[0], err);
    if (st == TUTTI_OK)
        st = rank_table_read(&table, operands[0], err);
    if (st == TUTTI_OK && !rank_table_hostfile(table, &hosts))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the hostfile");
    if (st == TUTTI_OK)
        st = rank_table_rankfile(table, n_cores, &ranks, err);
    if (st == TUTTI_OK)
        output_printf("# %s: %d ranks on %d servers\n", operands[0], rank_table_n_ranks(table),
                      rank_table_n_servers(table));
    if (st == TUTTI_OK)
        st = write_or_print(values->hostfile, "hostfile", &hosts, err);
    if (st == TUTTI_OK)
        st = write_or_print(values->rankfile, "rankfile", &ranks, err);
    buf_clear(&hosts);
    buf_clear(&ranks);
    rank_table_free(table);
    return st;
}

const struct command COMMAND_RANKS = {
    .name = "ranks",
    .summary = "check a RANK_TABLE_FILE, and write mpirun's files for it",
    .about = "Reads a RANK_TABLE_FILE, used on sites with Ascend devices, which says which rank runs "
             "on which device of which server. Every id, count and address is checked; an error names "
             "the field. Prints the hostfile and the rankfile with which mpirun starts the same ranks "
             "on the same hosts, or writes them.",
    .example = "tutti ranks table.json --hostfile hosts --rankfile ranks --cores 64\n"
               "mpirun -n 16 --hostfile hosts --rankfile ranks tutti serve MODEL --tp 16 --rank-table "
               "table.json",
    .options = OPTION_SET(GROUPS, "TABLE", 1, 1, "expected TABLE, a RANK_TABLE_FILE"),
    .values_bytes = sizeof(struct ranks_values),
    .run = run_ranks,
};
