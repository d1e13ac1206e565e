/* The guard against allocations inside a decode step: a normal run passes it, and it fires where it should. */
#include "support/collect.h"
#include "support/fault.h"
#include "support/mock_model.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void *volatile kept; /* so that the compiler cannot drop the allocation */

static void allocate(void *user, uint64_t id, int choice, int index, float *logits, int n_vocab)
{
    (void)id, (void)choice, (void)logits, (void)n_vocab;
    if (index == 3 && *(const int *)user == 1)
        kept = malloc(16);
    if (index == 3 && *(const int *)user == 2)
        free(kept);
}

/* Serves one request; what: 0 nothing wrong, 1 malloc, 2 free inside the fourth step. */
static void serve(int what)
{
    struct mock_model *mock = mock_model_new(64, false);
    struct engine_hooks hooks = { .logits = allocate, .user = &what };
    struct tutti_engine_options options = { .kv_bytes = 4096 };
    kept = malloc(16);
    tutti_engine *engine = mock_engine(mock, &options, &hooks);
    int32_t ids[] = { 1, 2 };
    struct tutti_request r = { .ids = ids, .n_ids = 2, .max_tokens = 8, .n_choices = 2 };
    r.sampling = (struct tutti_sampling){ .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1.1f };
    struct collect c;
    collect_init(&c);
    collect_submit(&c, engine, &r);
    collect_wait(&c);
    collect_clear(&c);
    tutti_engine_close(engine);
    mock_model_free(mock);
    free(kept);
    kept = NULL;
}

static void a_normal_run_allocates_nothing_in_a_step(void **state)
{
    (void)state;
    serve(0);
    assert_true(fault_n_calls() > 0); /* the guard was there, and saw the others */
}

static void check_fires(int what, const char *function)
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        serve(what);
        _exit(0);
    }
    close(ends[1]);
    char text[512];
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_non_null(strstr(text, "allocation inside a decode step"));
    assert_non_null(strstr(text, function));
    assert_non_null(strstr(text, "sampling")); /* the phase */
}

static void an_allocation_in_a_step_ends_the_program_and_names_the_phase(void **state)
{
    (void)state;
    check_fires(1, "malloc");
    check_fires(2, "free");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_normal_run_allocates_nothing_in_a_step),
        cmocka_unit_test(an_allocation_in_a_step_ends_the_program_and_names_the_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
