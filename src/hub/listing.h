/* The files of a model on a hub, read from the hub's answer. */
#ifndef TUTTI_HUB_LISTING_H
#define TUTTI_HUB_LISTING_H

#include "base/files/digest.h"
#include "hub/hub_name.h"

enum {
    HUB_MAX_LISTING_BYTES = 64 << 20,
    HUB_MAX_FILES = 100000,
};
#define HUB_MAX_FILE_BYTES (INT64_C(1) << 48)

/* Of a file's content. */
struct hub_checksum {
    enum digest_kind kind; /* DIGEST_SHA1: of a Git blob, whose content follows "blob SIZE\0" */
    char text[DIGEST_TEXT_BYTES];
};

struct hub_file {
    char *path; /* safe: hub_path_is_safe() */
    uint64_t n_bytes;
    struct hub_checksum checksum;
};

/* Zero-initialised is empty. */
struct hub_listing {
    struct hub_file *files; /* sorted by path, no path twice */
    size_t n_files;
    char commit[65]; /* "": the hub does not say */
};

/* Reads the answer of either layout. url: for messages. Call hub_listing_clear() in any case.
 * TUTTI_E_FORMAT: the text names url and the field; TUTTI_E_NOT_FOUND: the hub says that there is no
 * such model. */
MUST_CHECK enum tutti_status hub_listing_read(struct hub_listing *out, enum hub_layout layout,
                                              const char *bytes, size_t n_bytes, const char *url,
                                              struct tutti_error *err);
void hub_listing_clear(struct hub_listing *listing);

/* The file with this path; NULL: none. */
const struct hub_file *hub_listing_find(const struct hub_listing *listing, const char *path);

/* Reads a checksum in hexadecimal: 64 digits are SHA-256, 40 are a Git blob's SHA-1. */
MUST_CHECK bool hub_checksum_read(struct hub_checksum *out, const char *text);
bool hub_checksum_equal(const struct hub_checksum *a, const struct hub_checksum *b);

#endif
