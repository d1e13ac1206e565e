#include "base/system/queue.h"

#include "base/system/os.h"

#include <stdlib.h>
#include <string.h>

enum tutti_status bell_init(struct bell *bell, struct tutti_error *err)
{
    *bell = (struct bell){ .is_open = false };
    int rc = pthread_mutex_init(&bell->lock, NULL);
    if (rc != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot make a lock: %s", strerror(rc));
    rc = os_condition_init(&bell->wake);
    if (rc != 0) {
        pthread_mutex_destroy(&bell->lock);
        return error_set(err, TUTTI_E_MEMORY, "cannot make a condition: %s", strerror(rc));
    }
    bell->is_open = true;
    return TUTTI_OK;
}

void bell_clear(struct bell *bell)
{
    if (!bell->is_open)
        return;
    pthread_cond_destroy(&bell->wake);
    pthread_mutex_destroy(&bell->lock);
    bell->is_open = false;
}

unsigned bell_ticket(struct bell *bell)
{
    return atomic_load(&bell->n_rings);
}

/* Sequentially consistent: the sleeper sets is_asleep before it reads n_rings; the ringer
 * increments n_rings before it reads is_asleep. So at least one of them sees the other. */
void bell_wait(struct bell *bell, unsigned ticket)
{
    pthread_mutex_lock(&bell->lock);
    atomic_store(&bell->is_asleep, true);
    while (atomic_load(&bell->n_rings) == ticket)
        pthread_cond_wait(&bell->wake, &bell->lock);
    atomic_store(&bell->is_asleep, false);
    pthread_mutex_unlock(&bell->lock);
}

bool bell_wait_until(struct bell *bell, unsigned ticket, uint64_t end_us)
{
    int rc = 0;
    pthread_mutex_lock(&bell->lock);
    atomic_store(&bell->is_asleep, true);
    while (atomic_load(&bell->n_rings) == ticket && rc == 0)
        rc = os_condition_wait_until(&bell->wake, &bell->lock, end_us);
    atomic_store(&bell->is_asleep, false);
    bool is_rung = atomic_load(&bell->n_rings) != ticket;
    pthread_mutex_unlock(&bell->lock);
    return is_rung;
}

void bell_ring(struct bell *bell)
{
    atomic_fetch_add(&bell->n_rings, 1);
    if (atomic_load(&bell->is_asleep)) {
        pthread_mutex_lock(&bell->lock);
        pthread_cond_signal(&bell->wake);
        pthread_mutex_unlock(&bell->lock);
    }
}

/* head and tail only increase; an item's slot is its position modulo the capacity. Each side
 * caches the other's position, to read the other's cache line only when necessary. */
struct queue {
    _Alignas(64) atomic_size_t head; /* items below are published; written by the producer */
    size_t next_push, seen_tail;
    size_t mask, item_bytes;
    uint8_t *items;
    _Alignas(64) atomic_size_t tail; /* items below are consumed; written by the consumer */
    size_t seen_head;
};

enum tutti_status queue_new(struct queue **out, size_t n_items, size_t item_bytes, struct tutti_error *err)
{
    size_t capacity = 1, n_bytes;
    while (capacity < n_items && capacity <= SIZE_MAX / 4)
        capacity *= 2;
    struct queue *queue = NULL;
    if (capacity >= n_items && !__builtin_mul_overflow(capacity, item_bytes, &n_bytes))
        queue = aligned_alloc(64, (sizeof *queue + 63) / 64 * 64);
    if (queue) {
        memset(queue, 0, sizeof *queue);
        queue->items = calloc(capacity, item_bytes);
    }
    if (!queue || !queue->items) {
        queue_free(queue);
        return error_set(err, TUTTI_E_MEMORY, "queue of %zu items of %zu bytes: out of memory", n_items,
                         item_bytes);
    }
    queue->mask = capacity - 1;
    queue->item_bytes = item_bytes;
    *out = queue;
    return TUTTI_OK;
}

void queue_free(struct queue *queue)
{
    if (!queue)
        return;
    free(queue->items);
    free(queue);
}

bool queue_push(struct queue *queue, const void *item)
{
    if (queue->next_push - queue->seen_tail > queue->mask) {
        queue->seen_tail = atomic_load_explicit(&queue->tail, memory_order_acquire);
        if (queue->next_push - queue->seen_tail > queue->mask)
            return false;
    }
    memcpy(queue->items + (queue->next_push & queue->mask) * queue->item_bytes, item, queue->item_bytes);
    queue->next_push++;
    return true;
}

void queue_publish(struct queue *queue)
{
    atomic_store_explicit(&queue->head, queue->next_push, memory_order_release);
}

const void *queue_front(struct queue *queue)
{
    size_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    if (tail == queue->seen_head) {
        queue->seen_head = atomic_load_explicit(&queue->head, memory_order_acquire);
        if (tail == queue->seen_head)
            return NULL;
    }
    return queue->items + (tail & queue->mask) * queue->item_bytes;
}

void queue_pop(struct queue *queue)
{
    size_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    atomic_store_explicit(&queue->tail, tail + 1, memory_order_release);
}
