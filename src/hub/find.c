/* What of a model is in the cache. */
#include "hub/pull.h"

enum tutti_status hub_find(const struct hub_name *name, struct buf *path, bool *is_there,
                           struct tutti_error *err)
{
    struct hub_places places;
    struct hub_record record = { 0 };
    *is_there = false;
    enum tutti_status st = hub_places_of(&places, name, err);
    if (st == TUTTI_OK)
        st = hub_record_read(&record, places.complete, is_there, err);
    if (st == TUTTI_OK && *is_there && !hub_add_model_path(path, &places, &record))
        st = error_out_of_memory(places.complete, err);
    hub_record_clear(&record);
    hub_places_clear(&places);
    return st;
}
