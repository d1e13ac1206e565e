#include "engine/schedule/share.h"

#include "base/rng.h"

#include <assert.h>
#include <stdlib.h>

static size_t bucket_of(uint64_t owner)
{
    return mix64(owner) % SHARE_BUCKETS;
}

static void leave_idle(struct shares *shares, struct share *share)
{
    *(share->older ? &share->older->newer : &shares->oldest) = share->newer;
    *(share->newer ? &share->newer->older : &shares->newest) = share->older;
    share->older = share->newer = NULL;
    shares->n_idle--;
}

static void forget_oldest(struct shares *shares)
{
    struct share *share = shares->oldest, **at = &shares->buckets[bucket_of(share->owner)];
    leave_idle(shares, share);
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    free(share);
}

static struct share *find(const struct shares *shares, uint64_t owner)
{
    struct share *share = shares->buckets[bucket_of(owner)];
    while (share && share->owner != owner)
        share = share->next;
    return share;
}

struct share *share_find(const struct shares *shares, uint64_t owner)
{
    return find(shares, owner);
}

struct share *share_take(struct shares *shares, uint64_t owner)
{
    struct share **bucket = &shares->buckets[bucket_of(owner)], *share = find(shares, owner);
    if (!share) {
        share = calloc(1, sizeof *share);
        if (!share)
            return NULL;
        share->owner = owner;
        share->weight = 1;
        share->next = *bucket;
        *bucket = share;
    } else if (share->n_requests == 0) {
        leave_idle(shares, share);
    }
    share->n_requests++;
    return share;
}

void share_drop(struct shares *shares, struct share *share)
{
    assert(share->n_requests > 0);
    if (--share->n_requests > 0)
        return;
    share->older = shares->newest;
    share->newer = NULL;
    *(shares->newest ? &shares->newest->newer : &shares->oldest) = share;
    shares->newest = share;
    if (++shares->n_idle > SHARES_REMEMBERED)
        forget_oldest(shares);
}

void shares_clear(struct shares *shares)
{
    while (shares->oldest)
        forget_oldest(shares);
}
