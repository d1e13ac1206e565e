/* The chat page and its files, embedded at build by web/embed.py. */
#include "server/page.h"

#include "server/app.h"

#include <string.h>

static const struct page_file *page_find(const char *path)
{
    for (size_t i = 0; i < PAGE_N_FILES; i++)
        if (!strcmp(PAGE_FILES[i].path, path))
            return &PAGE_FILES[i];
    return NULL;
}

bool page_has(const char *path)
{
    return page_find(path) != NULL;
}

void page_request(struct app *app, struct http_conn *conn)
{
    (void)app;
    const struct page_file *file = page_find(http_request(conn)->head.path);
    const char *known = http_head_find(&http_request(conn)->head, "If-None-Match");
    http_header(conn, "ETag", file->etag);
    http_header(conn, "Cache-Control", "no-cache");
    /* Only files of this server: model output can neither run a script nor contact another host. */
    http_header(conn, "Content-Security-Policy",
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
                "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'");
    http_header(conn, "Referrer-Policy", "no-referrer");
    if (known && !strcmp(known, file->etag))
        http_reply(conn, 304, NULL, NULL, 0);
    else
        http_reply(conn, 200, file->type, file->bytes, file->n_bytes);
}
