/* Prepares prompts on separate threads: renders messages and tokenizes texts while other requests
 * run. Owners share the threads fairly (workers.h), by the bytes of their prompts. */
#include "base/system/clock.h"
#include "engine/run/engine_state.h"

enum {
    PROMPT_THREADS = 2,
    BYTES_PER_TOKEN = 256, /* bytes of a refused prompt that are charged as one computed token */
};

/* Passes it to the text thread, which admits or refuses it. */
static void hand_over(struct tutti_engine *e, struct request *r)
{
    r->next = NULL;
    pthread_mutex_lock(&e->lock);
    if (e->prepared_tail)
        e->prepared_tail->next = r;
    else
        e->prepared_head = r;
    e->prepared_tail = r;
    pthread_mutex_unlock(&e->lock);
    bell_ring(&e->text_bell);
}

static bool is_wanted(const struct request *r)
{
    bool is_late = r->deadline_us > 0 && clock_now_us() >= r->deadline_us;
    return !atomic_load(&r->is_cancelled) && !is_late;
}

static void prepare(void *user, struct work_item *item)
{
    struct tutti_engine *e = user;
    struct request *r = (struct request *)(void *)((char *)item - offsetof(struct request, item));
    if (is_wanted(r)) {
        if (r->grammar_error.status != TUTTI_OK)
            r->refusal = r->grammar_error;
        else
            r->refusal.status = request_prepare(r, e->model, &e->limits, &r->refusal);
        if (r->refusal.status != TUTTI_OK)
            atomic_fetch_add(&r->share->debt, request_prompt_bytes(r) / BYTES_PER_TOKEN);
    }
    hand_over(e, r);
}

void prompts_add(void *engine, struct request *r)
{
    struct tutti_engine *e = engine;
    r->item.cost = (uint64_t)request_prompt_bytes(r);
    if (workers_add(e->prompts, r->spec.owner, &r->item))
        return;
    error_set(&r->refusal, TUTTI_E_MEMORY, "preparing a prompt: out of memory");
    hand_over(e, r);
}

enum tutti_status prompts_start(struct tutti_engine *e, struct tutti_error *err)
{
    const struct workers_options options = {
        .name = "tutti-prompt", .n_threads = PROMPT_THREADS, .work = prepare, .user = e
    };
    return workers_new(&e->prompts, &options, err);
}
