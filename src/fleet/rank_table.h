/* Reads RANK_TABLE_FILE, which maps ranks to the devices of servers on sites with Ascend devices.
 * Format: "rank table file" of the HCCL and MindSpore documentation, versions 1.0 and 1.2:
 *
 *     { "version": "1.0", "status": "completed", "server_count": "2",
 *       "server_list": [ { "server_id": "10.0.0.1",
 *                          "device": [ { "device_id": "0", "device_ip": "192.168.1.8", "rank_id": "0" },
 *                                      … ] },
 *                        … ] }
 *
 * Numbers are written as strings; plain numbers are accepted too. Other keys are ignored. */
#ifndef TUTTI_FLEET_RANK_TABLE_H
#define TUTTI_FLEET_RANK_TABLE_H

#include "base/buf.h"
#include "base/error.h"

enum { RANK_TABLE_MAX_RANKS = 1 << 14, RANK_TABLE_MAX_DEVICE = 1 << 16 };

struct rank_table;

/* Reads and checks a table: ids are unique, ranks count from 0 without a gap, counts are correct,
 * addresses are valid, and the status is "completed". On success *out is the caller's.
 * TUTTI_E_FORMAT: the error names the file and the field's path, found and expected. */
MUST_CHECK enum tutti_status rank_table_read(struct rank_table **out, const char *path,
                                             struct tutti_error *err);
void rank_table_free(struct rank_table *table); /* NULL is allowed */

int rank_table_n_ranks(const struct rank_table *table);
int rank_table_n_servers(const struct rank_table *table);

/* Appends the lines of an Open MPI hostfile: each host, its host_ip or server_ip if the table has one, else its
 * server_id, and the number of its ranks. False: out of memory. */
MUST_CHECK bool rank_table_hostfile(const struct rank_table *table, struct buf *out);

/* Appends the lines of a rankfile: each rank's host and cores. The n_cores cores of a host are
 * divided among its ranks in the order of their devices. TUTTI_E_ARGUMENT: a server has more
 * ranks than cores. */
MUST_CHECK enum tutti_status rank_table_rankfile(const struct rank_table *table, int n_cores, struct buf *out,
                                                 struct tutti_error *err);

/* Checks a process that was started as one of n_ranks ranks: the table must have as many ranks,
 * and this machine must have the name or an address of the rank's server. TUTTI_E_ARGUMENT, param
 * "rank_table". */
MUST_CHECK enum tutti_status rank_table_check(const struct rank_table *table, int rank, int n_ranks,
                                              struct tutti_error *err);

#endif
