#include "server/reload.h"

#include "base/system/thread.h"
#include "server/app.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct reload {
    const struct server_options *options;
    void (*done)(void *user, enum tutti_status st, struct key_files *files, const struct tutti_error *err);
    void *user;
    struct mailbox inbox; /* of the thread's message that it has read the files */
    struct mail mail;
    pthread_t thread;
    bool is_reading, again; /* again: reload once more, because a reload was requested meanwhile */
    /* Owned by the thread until the loop has joined it. */
    struct key_files files;
    enum tutti_status status;
    struct tutti_error error;
};

enum tutti_status key_files_read(struct key_files *out, const struct server_options *options,
                                 struct tutti_error *err)
{
    const struct client_limits defaults = app_default_limits(options);
    enum tutti_status st = TUTTI_OK;
    *out = (struct key_files){ 0 };
    if (options->api_key_file)
        st = keys_open(&out->keys, options->api_key_file, &defaults, err);
    if (st == TUTTI_OK && options->metrics_key_file)
        st = keys_open(&out->metrics_keys, options->metrics_key_file, &defaults, err);
    if (st != TUTTI_OK)
        key_files_close(out);
    return st;
}

void key_files_close(struct key_files *files)
{
    keys_close(files->keys);
    keys_close(files->metrics_keys);
    *files = (struct key_files){ 0 };
}

static void *read_main(void *arg)
{
    struct reload *reload = arg;
    reload->status = key_files_read(&reload->files, reload->options, &reload->error);
    mailbox_send(&reload->inbox, &reload->mail);
    return NULL;
}

static void reload_on_mail(void *user, struct mail *mail)
{
    struct reload *reload = user;
    (void)mail;
    pthread_join(reload->thread, NULL);
    reload->is_reading = false;
    if (reload->again) {
        key_files_close(&reload->files);
        reload_start(reload);
        return;
    }
    struct key_files files = reload->files;
    reload->files = (struct key_files){ 0 };
    reload->done(reload->user, reload->status, &files, &reload->error);
}

void reload_start(struct reload *reload)
{
    reload->again = reload->is_reading;
    if (reload->is_reading)
        return;
    int failed = thread_start(&reload->thread, read_main, reload);
    reload->is_reading = !failed;
    if (!failed)
        return;
    error_set(&reload->error, TUTTI_E_MEMORY, "cannot start a thread: %s", strerror(failed));
    reload->done(reload->user, TUTTI_E_MEMORY, &reload->files, &reload->error);
}

enum tutti_status reload_new(struct reload **out, struct event_base *base,
                             const struct server_options *options,
                             void (*done)(void *user, enum tutti_status st, struct key_files *files,
                                          const struct tutti_error *err),
                             void *user, struct tutti_error *err)
{
    struct reload *reload = calloc(1, sizeof *reload);
    if (!reload)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    reload->options = options;
    reload->done = done;
    reload->user = user;
    enum tutti_status st = mailbox_open(&reload->inbox, base, reload_on_mail, reload, err);
    if (st != TUTTI_OK) {
        free(reload);
        return st;
    }
    *out = reload;
    return TUTTI_OK;
}

void reload_free(struct reload *reload)
{
    if (!reload)
        return;
    if (reload->is_reading)
        pthread_join(reload->thread, NULL);
    key_files_close(&reload->files);
    mailbox_close(&reload->inbox);
    free(reload);
}
