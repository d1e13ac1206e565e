/* The files of the chat page, in the program. */
#ifndef TUTTI_SERVER_PAGE_H
#define TUTTI_SERVER_PAGE_H

#include <stddef.h>

struct page_file {
    const char *path, *type, *etag;
    const unsigned char *bytes;
    size_t n_bytes;
};

/* Written by web/embed.py. */
extern const struct page_file PAGE_FILES[];
extern const size_t PAGE_N_FILES;

#endif
