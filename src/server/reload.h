/* Reads the files of keys again on a thread of its own: a million keys take seconds, in which answers must go on. */
#ifndef TUTTI_SERVER_RELOAD_H
#define TUTTI_SERVER_RELOAD_H

#include "server/access/keys.h"
#include "server/server.h"

struct event_base;
struct reload;

/* What the files hold; NULL: no such file is wanted. */
struct key_files {
    struct keys *keys, *metrics_keys;
};

/* Reads both files. Where that fails, nothing is left in *out. */
MUST_CHECK enum tutti_status key_files_read(struct key_files *out, const struct server_options *options,
                                            struct tutti_error *err);
void key_files_close(struct key_files *files);

/* done: called on the loop's thread after each reload_start(); files is its own then. Where st is not TUTTI_OK, it holds nothing,
 * and err says why. */
MUST_CHECK enum tutti_status reload_new(struct reload **out, struct event_base *base,
                                        const struct server_options *options,
                                        void (*done)(void *user, enum tutti_status st,
                                                     struct key_files *files, const struct tutti_error *err),
                                        void *user, struct tutti_error *err);
void reload_free(struct reload *reload); /* waits for a reading that is under way; NULL is allowed */

/* Begins to read, on the loop's thread. Where a reading is under way, another one follows it. */
void reload_start(struct reload *reload);

#endif
