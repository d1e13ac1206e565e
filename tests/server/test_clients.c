/* Clients: names of addresses, the bucket of tokens, answers at the same time, and who is forgotten. */
#include "server/http/clients.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t SECOND_US = 1000 * 1000;

static struct clients *open_clients(void)
{
    struct clients *clients = NULL;
    assert_int_equal(clients_new(&clients, NULL), TUTTI_OK);
    return clients;
}

static void addresses_have_names(void **state)
{
    (void)state;
    static const struct {
        const char *peer, *name;
    } cases[] = {
        { "192.0.2.7:51234", "192.0.2.7" },
        { "[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2::/64" },
        { "[2001:db8:1:2::ffff]:1", "2001:db8:1:2::/64" }, /* the same owner */
        { "[::1]:8080", "::/64" },
        { "[::ffff:198.51.100.3]:80", "198.51.100.3" }, /* of a socket for both versions */
        { "unix", "unix" },
        { "", "" },
        { "[nonsense]:1", "nonsense" },
        { "[unclosed", "unclosed" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[80];
        client_name_address(name, sizeof name, cases[i].peer);
        assert_string_equal(name, cases[i].name);
    }
}

static void a_bucket_fills_evenly_and_no_higher(void **state)
{
    (void)state;
    struct clients *clients = open_clients();
    struct client_limits limits = { .weight = 1, .tokens_per_minute = 600 };
    uint64_t now_us = 5 * SECOND_US;
    struct client *c = clients_get(clients, "a", &limits, now_us);
    struct tutti_error err;
    assert_int_equal(client_enter(clients, c, 1, 600, now_us, &err), TUTTI_OK); /* a minute's worth at once */
    assert_int_equal(client_enter(clients, c, 1, 1, now_us, &err), TUTTI_E_BUSY);
    assert_in_range(err.retry_after_ms, 100, 101); /* ten tokens a second */
    now_us += SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 10, now_us, &err), TUTTI_OK);
    assert_int_equal(client_enter(clients, c, 1, 10, now_us, &err), TUTTI_E_BUSY);
    now_us += 3600 * SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 600, now_us, &err), TUTTI_OK);
    assert_int_equal(client_enter(clients, c, 1, 1, now_us, &err), TUTTI_E_BUSY);
    assert_int_equal(c->counts.n_refused[CLIENT_TOO_MANY_TOKENS], 3);
    client_leave(clients, c, 3);
    clients_free(clients);
}

static void a_debt_is_paid_first_and_more_than_a_bucket_takes_a_full_one(void **state)
{
    (void)state;
    struct clients *clients = open_clients();
    struct client_limits limits = { .weight = 1, .tokens_per_minute = 60 };
    uint64_t now_us = SECOND_US;
    struct client *c = clients_get(clients, "a", &limits, now_us);
    struct tutti_error err;
    assert_int_equal(client_enter(clients, c, 1, 10, now_us, &err), TUTTI_OK);
    client_charge(c, 100); /* its answer */
    client_leave(clients, c, 1);
    assert_int_equal(client_enter(clients, c, 1, 5, now_us, &err), TUTTI_E_BUSY);
    assert_in_range(err.retry_after_ms, 55 * 1000, 55 * 1000 + 1);
    assert_non_null(strstr(err.text, "60 tokens per minute"));
    now_us += 54 * SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 5, now_us, &err), TUTTI_E_BUSY);
    now_us += 2 * SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 5, now_us, &err), TUTTI_OK);
    client_leave(clients, c, 1);
    assert_int_equal(client_enter(clients, c, 1, 100000, now_us, &err), TUTTI_E_BUSY);
    now_us += 60 * SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 100000, now_us, &err), TUTTI_OK);
    client_charge(c, -100000); /* it was refused elsewhere */
    client_leave(clients, c, 1);
    assert_int_equal(client_enter(clients, c, 1, 60, now_us, &err), TUTTI_OK);
    client_leave(clients, c, 1);
    clients_free(clients);
}

static void limits_may_change_at_any_time(void **state)
{
    (void)state;
    struct clients *clients = open_clients();
    struct client_limits none = { .weight = 1 }, small = { .weight = 1, .tokens_per_minute = 60 };
    struct client_limits large = { .weight = 1, .tokens_per_minute = 6000 };
    uint64_t now_us = SECOND_US;
    struct tutti_error err;
    struct client *c = clients_get(clients, "a", &none, now_us);
    assert_int_equal(client_enter(clients, c, 1, 1000000, now_us, &err), TUTTI_OK);
    assert_ptr_equal(clients_get(clients, "a", &small, now_us),
                     c); /* begins full: nothing was counted before */
    assert_int_equal(client_enter(clients, c, 1, 60, now_us, &err), TUTTI_OK);
    client_charge(c, 60);
    clients_get(clients, "a", &large, now_us); /* the debt stays */
    assert_int_equal(client_enter(clients, c, 1, 1, now_us, &err), TUTTI_E_BUSY);
    now_us += SECOND_US;
    assert_int_equal(client_enter(clients, c, 1, 40, now_us, &err), TUTTI_OK);
    now_us += 60 * SECOND_US;
    clients_get(clients, "a", &large, now_us);
    clients_get(clients, "a", &small, now_us); /* what is in the bucket beyond it is lost */
    assert_int_equal(client_enter(clients, c, 1, 60, now_us, &err), TUTTI_OK);
    assert_int_equal(client_enter(clients, c, 1, 1, now_us, &err), TUTTI_E_BUSY);
    client_leave(clients, c, 4);
    clients_free(clients);
}

static void answers_are_counted_until_they_end(void **state)
{
    (void)state;
    struct clients *clients = open_clients();
    struct client_limits limits = { .weight = 1, .concurrency = 3 };
    struct client *c = clients_get(clients, "a", &limits, SECOND_US);
    struct tutti_error err;
    assert_int_equal(client_enter(clients, c, 4, 1, SECOND_US, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.param, "n");
    assert_int_equal(client_enter(clients, c, 2, 1, SECOND_US, &err), TUTTI_OK);
    assert_int_equal(client_enter(clients, c, 2, 1, SECOND_US, &err), TUTTI_E_BUSY);
    assert_int_equal(client_enter(clients, c, 1, 1, SECOND_US, &err), TUTTI_OK);
    client_leave(clients, c, 2);
    assert_int_equal(client_enter(clients, c, 2, 1, SECOND_US, &err), TUTTI_OK);
    client_leave(clients, c, 1);
    client_leave(clients, c, 2);
    assert_int_equal(c->counts.n_refused[CLIENT_TOO_MANY_ANSWERS], 1);
    assert_int_equal(c->counts.n_requests, 5);
    clients_free(clients);
}

static void idle_ones_are_forgotten_after_many_others_and_their_counts_are_not(void **state)
{
    (void)state;
    struct clients *clients = open_clients();
    struct client_limits limits = { .weight = 1, .concurrency = 1 };
    struct client_counts counts;
    struct tutti_error err;
    struct client *busy = clients_get(clients, "busy", &limits, 1);
    assert_int_equal(client_enter(clients, busy, 1, 1, 1, &err), TUTTI_OK);
    assert_int_equal(client_enter(clients, busy, 1, 1, 1, &err), TUTTI_E_BUSY);
    struct client *idle = clients_get(clients, "idle", &limits, 1);
    idle->counts.n_generated_tokens = 5;
    for (int i = 0; i < 20000; i++) { /* as somebody does who has a network of addresses */
        char name[32];
        snprintf(name, sizeof name, "%d", i);
        assert_non_null(clients_get(clients, name, &limits, 1));
    }
    assert_ptr_equal(clients_find(clients, "busy"), busy);
    assert_null(clients_find(clients, "idle"));
    assert_null(clients_find(clients, "17"));
    assert_non_null(clients_find(clients, "19999"));
    clients_count(clients, &counts);
    assert_int_equal(counts.n_generated_tokens, 5);
    assert_int_equal(counts.n_refused[CLIENT_TOO_MANY_ANSWERS], 1);
    assert_true(clients_get(clients, "idle", &limits, 1)->id > 20000); /* a new owner to the engine */
    client_leave(clients, busy, 1);
    clients_free(clients);
    clients_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_have_names),
        cmocka_unit_test(a_bucket_fills_evenly_and_no_higher),
        cmocka_unit_test(a_debt_is_paid_first_and_more_than_a_bucket_takes_a_full_one),
        cmocka_unit_test(limits_may_change_at_any_time),
        cmocka_unit_test(answers_are_counted_until_they_end),
        cmocka_unit_test(idle_ones_are_forgotten_after_many_others_and_their_counts_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
