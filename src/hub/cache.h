/* The folder of downloaded models: $TUTTI_CACHE, else $XDG_CACHE_HOME/tutti, else ~/.cache/tutti.
 *
 * A complete model is in models/LAYOUT/HUB/ORG/NAME[@REVISION][:SELECTION] with a record of its files
 * (.tutti.json). An incomplete one is in the same place below partial/; when it is complete, its folder is
 * renamed. Both folders must be on one file system. The lock of a model is held on its incomplete folder. */
#ifndef TUTTI_HUB_CACHE_H
#define TUTTI_HUB_CACHE_H

#include "hub/record.h"

/* The folder in an incomplete model's folder that says which bytes of a file are there. It is removed after
 * the rename, so a complete model may have it for a moment. */
#define HUB_STATE_FOLDER ".tutti-state"

/* The cache's folder, for free(). NULL: error in *err: TUTTI_E_ARGUMENT: neither of the environment
 * variables nor HOME is set. */
MUST_CHECK char *hub_cache_root(struct tutti_error *err);

struct hub_places {
    char *root;
    char *complete, *partial; /* of the model */
    char *
        aside; /* ".NAME" in the folder of the complete one: the old model during an update without an exchange */
};

/* The paths of a model. Call hub_places_clear() in any case. */
MUST_CHECK enum tutti_status hub_places_of(struct hub_places *out, const struct hub_name *name,
                                           struct tutti_error *err);
void hub_places_clear(struct hub_places *places);

/* mkdir -p of the folder; of its parent if is_file. */
MUST_CHECK enum tutti_status hub_make_folders(const char *path, bool is_file, struct tutti_error *err);
/* rm -r. A path that is not there is no error. */
MUST_CHECK enum tutti_status hub_remove_tree(const char *path, struct tutti_error *err);

/* Removes the parents of path that are empty, below root. path is cut. */
void hub_remove_empty_parents(char *path, const char *root);

/* ---- the lock ---- */

/* Makes the incomplete folder and locks it; *fd is the caller's, to be closed. waits(user): called
 * before waiting for another process; NULL: do not wait, but fail with TUTTI_E_BUSY. TUTTI_E_IO also where
 * the file system has no locks: without one, two processes would write the same files. */
MUST_CHECK enum tutti_status hub_lock(const struct hub_places *places, void (*waits)(void *user), void *user,
                                      int *fd, struct tutti_error *err);

/* ---- publishing ---- */

/* Puts the incomplete folder, which has its record, in the place of the complete one. After a failure the
 * complete one is as before, and the incomplete one has all that the next pull needs to publish it without
 * a download. */
MUST_CHECK enum tutti_status hub_publish(const struct hub_places *places, struct tutti_error *err);

/* Removes the incomplete folder, and the files that a process left in the complete one when it ended while publishing. */
MUST_CHECK enum tutti_status hub_remove_leftovers(const struct hub_places *places, struct tutti_error *err);

/* Appends the path that opens the complete model. False: out of memory. */
MUST_CHECK bool hub_add_model_path(struct buf *out, const struct hub_places *places,
                                   const struct hub_record *record);

/* ---- all models ---- */

struct hub_cached {
    struct hub_name name;
    uint64_t n_bytes; /* on disk, of both folders */
    int64_t pulled_at;
    bool is_complete, is_partial; /* both: an update is incomplete */
};

/* All models, sorted by name, for free(). */
MUST_CHECK enum tutti_status hub_list(struct hub_cached **out, size_t *n, struct tutti_error *err);

/* Removes the folders of a model. TUTTI_E_NOT_FOUND; TUTTI_E_BUSY: it is being downloaded. */
MUST_CHECK enum tutti_status hub_remove(const struct hub_name *name, uint64_t *n_bytes,
                                        struct tutti_error *err);

#endif
