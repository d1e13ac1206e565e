/* Downloads a model from a hub into the cache. */
#ifndef TUTTI_HUB_PULL_H
#define TUTTI_HUB_PULL_H

#include "hub/cache.h"

struct hub_pull_options {
    int n_connections;
    int n_retries; /* of failures in a row in which no file got more bytes than it ever had */
    void *user;
    /* Before the download: what is downloaded, and how many bytes of it are there already. */
    void (*describe)(void *user, const char *commit, const struct hub_choice *choice, uint64_t n_there);
    void (*progress)(void *user, uint64_t n_done, uint64_t n_total);
    void (*note)(void *user, const char *text); /* waiting, another attempt */
};

/* Makes the cache's copy complete and as the hub has it, and appends its path: the model's folder, or
 * file. *is_new: something was downloaded. After a failure, what was downloaded is kept, and the next call
 * continues. TUTTI_E_UNSUPPORTED: a build without libcurl. */
MUST_CHECK enum tutti_status hub_pull(const struct hub_name *name, const struct hub_pull_options *options,
                                      struct buf *path, bool *is_new, struct tutti_error *err);

/* Appends the path of the cache's copy, without asking the hub. *is_there: there is one. */
MUST_CHECK enum tutti_status hub_find(const struct hub_name *name, struct buf *path, bool *is_there,
                                      struct tutti_error *err);

#endif
