/* RANK_TABLE_FILE: the table in which sites with Ascend devices say which rank runs on which device of which server.
 * Format: "rank table file" of the HCCL and MindSpore documentation, versions 1.0 and 1.2:
 *
 *     { "version": "1.0", "status": "completed", "server_count": "2", "server_list": [
 *         { "server_id": "10.0.0.1", "device": [ { "device_id": "0", "device_ip": "192.168.1.8", "rank_id": "0" }, … ] }, … ] }
 *
 * Numbers are strings there; numbers are read as well. Further keys are left alone. */
#ifndef TUTTI_FLEET_RANK_TABLE_H
#define TUTTI_FLEET_RANK_TABLE_H

#include "base/buf.h"
#include "base/error.h"

enum { RANK_TABLE_MAX_RANKS = 1 << 14, RANK_TABLE_MAX_DEVICE = 1 << 16 };

struct rank_table;

/* Reads and checks a table: ids are unique, ranks count from 0 without a gap, counts are right, addresses are addresses, and it is
 * "completed". On success *out is the caller's. TUTTI_E_FORMAT names the file and the field by its path, found and expected. */
MUST_CHECK enum tutti_status rank_table_read(struct rank_table **out, const char *path,
                                             struct tutti_error *err);
void rank_table_free(struct rank_table *table); /* NULL is allowed */

int rank_table_n_ranks(const struct rank_table *table);
int rank_table_n_servers(const struct rank_table *table);

/* The host under which a rank's server is reached: its host_ip or server_ip where the table has one, else its server_id. */
const char *rank_table_host(const struct rank_table *table, int rank);

/* Adds the lines of a hostfile for Open MPI: a host and the number of its ranks. False: no memory. */
MUST_CHECK bool rank_table_hostfile(const struct rank_table *table, struct buf *out);

/* Adds those of a rankfile: each rank's host and cores. The cores of a host, n_cores, are dealt out over its ranks in the order of their
 * devices. TUTTI_E_ARGUMENT: a server has more ranks than that. */
MUST_CHECK enum tutti_status rank_table_rankfile(const struct rank_table *table, int n_cores, struct buf *out,
                                                 struct tutti_error *err);

/* For a process that was started as rank of n_ranks: the table must have as many, and this machine must be the server that the table says,
 * by a name or an address that it has. TUTTI_E_ARGUMENT, param "rank_table". */
MUST_CHECK enum tutti_status rank_table_check(const struct rank_table *table, int rank, int n_ranks,
                                              struct tutti_error *err);

#endif
