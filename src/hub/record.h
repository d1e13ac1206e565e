/* The record in a downloaded model's folder: its files, and their checksums. In an incomplete folder it is a
 * plan, which nobody reads. */
#ifndef TUTTI_HUB_RECORD_H
#define TUTTI_HUB_RECORD_H

#include "hub/select.h"

#define HUB_RECORD_FILE ".tutti.json"

struct hub_record {
    struct hub_listing listing; /* of the downloaded files */
    char *open;                 /* what MODEL is, below the folder; "": the folder */
    int64_t pulled_at;          /* seconds since 1970: the start of the download */
};

/* *is_there: the folder has a record. Call hub_record_clear() in any case. */
MUST_CHECK enum tutti_status hub_record_read(struct hub_record *out, const char *folder, bool *is_there,
                                             struct tutti_error *err);
void hub_record_clear(struct hub_record *record);

MUST_CHECK enum tutti_status hub_record_write(const char *folder, const struct hub_listing *listing,
                                              const struct hub_choice *choice, struct tutti_error *err);

#endif
