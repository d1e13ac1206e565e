/* Tests of base/system/queue.h: order, bounds, and two threads that hand over a million items. */
#include "base/system/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_queue_keeps_order_and_refuses_when_full(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(&q, 3, sizeof(int), NULL), TUTTI_OK); /* rounded up to 4 */
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++)
            assert_true(queue_push(q, &i));
        int more = 4;
        assert_false(queue_push(q, &more));
        assert_null(queue_front(q)); /* nothing was published */
        queue_publish(q);
        for (int i = 0; i < 4; i++) {
            const int *item = queue_front(q);
            assert_non_null(item);
            assert_int_equal(*item, i);
            queue_pop(q);
        }
        assert_null(queue_front(q));
    }
    queue_free(q);
}

static void a_queue_too_large_for_memory_is_an_error(void **state)
{
    (void)state;
    struct queue *q = NULL;
    struct tutti_error err = { 0 };
    assert_int_equal(queue_new(&q, SIZE_MAX / 2, 64, &err), TUTTI_E_MEMORY);
    assert_null(q);
    assert_true(err.text[0] != '\0');
}

enum { N_ITEMS = 300000 };

struct relay {
    struct queue *queue;
    struct bell to_consumer, to_producer;
};

static void *produce(void *arg)
{
    struct relay *relay = arg;
    for (int i = 0; i < N_ITEMS; i++) {
        for (;;) {
            unsigned ticket = bell_ticket(&relay->to_producer);
            if (queue_push(relay->queue, &i))
                break;
            queue_publish(relay->queue);
            bell_ring(&relay->to_consumer);
            bell_wait(&relay->to_producer, ticket);
        }
        if (i % 7 == 0 || i == N_ITEMS - 1) {
            queue_publish(relay->queue);
            bell_ring(&relay->to_consumer);
        }
    }
    return NULL;
}

static void two_threads_hand_over_every_item_once(void **state)
{
    (void)state;
    struct relay relay = { 0 };
    assert_int_equal(queue_new(&relay.queue, 64, sizeof(int), NULL), TUTTI_OK);
    assert_int_equal(bell_init(&relay.to_consumer, NULL), TUTTI_OK);
    assert_int_equal(bell_init(&relay.to_producer, NULL), TUTTI_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &relay), 0);
    for (int want = 0; want < N_ITEMS;) {
        unsigned ticket = bell_ticket(&relay.to_consumer);
        const int *item = queue_front(relay.queue);
        if (!item) {
            bell_wait(&relay.to_consumer, ticket);
            continue;
        }
        assert_int_equal(*item, want++);
        queue_pop(relay.queue);
        bell_ring(&relay.to_producer);
    }
    pthread_join(thread, NULL);
    assert_null(queue_front(relay.queue));
    bell_clear(&relay.to_consumer);
    bell_clear(&relay.to_producer);
    queue_free(relay.queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_queue_keeps_order_and_refuses_when_full),
        cmocka_unit_test(a_queue_too_large_for_memory_is_an_error),
        cmocka_unit_test(two_threads_hand_over_every_item_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
