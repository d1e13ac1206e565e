/* The time in which the card works: between an event before what a step, or sampling, hands to the stream, and one after it.
 *
 * The card itself notes when it reaches an event, so the sum is exact also if the host waits late, and steps that follow each other
 * without a gap are not counted twice. Gaps between the launches of a step, in which the card waits for the host, are
 * counted; a step that is a graph has none. A step costs the host three calls of about a microsecond. */
#include "backend/cuda/cuda_state.h"

enum tutti_status cuda_busy_open(struct cuda_backend *cuda, struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < 2 * N_BUSY; i++)
        if (!cuda_is_ok(cuda, cuda->driver->event_new(&s->busy_events[i], 0), "creating an event")) {
            s->busy_events[i] = NULL;
            break;
        }
    return cuda_check(cuda, err);
}

void cuda_busy_close(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < 2 * N_BUSY; i++)
        if (s->busy_events[i])
            (void)cuda->driver->event_free(s->busy_events[i]);
    memset(s->busy_events, 0, sizeof s->busy_events);
}

/* Records the begin, or the end, of the interval after those that wait to be counted. */
static bool record(struct cuda_backend *cuda, int which)
{
    struct cuda_state *s = cuda->state;
    int at = 2 * ((s->first_busy + s->n_busy) % N_BUSY) + which;
    return cuda_is_ok(cuda, cuda->driver->event_record(s->busy_events[at], s->stream), "timing a step");
}

void cuda_busy_begin(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    if (s->is_busy || s->failure != TUTTI_OK)
        return;
    cuda_busy_count(cuda);
    s->is_busy = s->n_busy < N_BUSY && record(cuda, 0);
}

void cuda_busy_end(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    if (s->is_busy && s->failure == TUTTI_OK && record(cuda, 1))
        s->n_busy++;
    s->is_busy = false;
}

void cuda_busy_count(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    while (s->n_busy > 0 && s->failure == TUTTI_OK) {
        const cuda_event *pair = &s->busy_events[2 * s->first_busy];
        float ms = 0;
        cuda_result result = cuda->driver->event_elapsed(&ms, pair[0], pair[1]);
        if (result == CUDA_ERROR_NOT_READY || !cuda_is_ok(cuda, result, "timing a step"))
            return;
        s->busy_ns += (uint64_t)((double)ms * 1e6);
        s->first_busy = (s->first_busy + 1) % N_BUSY;
        s->n_busy--;
    }
}
