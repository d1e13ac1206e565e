/* Reloads the key files on a thread of its own: a million keys take seconds, and serving must go on
 * meanwhile. */
#ifndef TUTTI_SERVER_RELOAD_H
#define TUTTI_SERVER_RELOAD_H

#include "server/access/keys.h"
#include "server/server.h"

struct event_base;
struct reload;

/* The loaded files; NULL: that file is not configured. */
struct key_files {
    struct keys *keys, *metrics_keys;
};

/* Loads both files. On failure *out is empty. */
MUST_CHECK enum tutti_status key_files_read(struct key_files *out, const struct server_options *options,
                                            struct tutti_error *err);
void key_files_close(struct key_files *files);

/* done: called on the loop's thread after each reload_start(); it owns files. If st is not
 * TUTTI_OK, files is empty and err has the reason. */
MUST_CHECK enum tutti_status reload_new(struct reload **out, struct event_base *base,
                                        const struct server_options *options,
                                        void (*done)(void *user, enum tutti_status st,
                                                     struct key_files *files, const struct tutti_error *err),
                                        void *user, struct tutti_error *err);
void reload_free(struct reload *reload); /* waits for a reload under way; NULL is allowed */

/* Starts to reload, on the loop's thread. If a reload is under way, another one follows it. */
void reload_start(struct reload *reload);

#endif
