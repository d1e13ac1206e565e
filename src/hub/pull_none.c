/* Builds without libcurl: says so. What is in the cache can still be used. */
#include "hub/pull.h"

enum tutti_status hub_pull(const struct hub_name *name, const struct hub_pull_options *options,
                           struct buf *path, bool *is_new, struct tutti_error *err)
{
    (void)options, (void)path;
    *is_new = false;
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: this tutti was built without libcurl, which downloads need; install "
                     "libcurl4-openssl-dev and build again",
                     name->model);
}
