/* Two ranks with a card each, and two steps in flight, while a call of the driver or of NCCL fails once on one of them, or a rank is lost:
 * requests end with an error that says so, after a text that is right as far as it goes; no request waits for ever, and neither does a rank
 * whose card waits for the lost one. Each life is a process of its own, whose ranks are threads. */
#include "cuda/child.h"
#include "cuda/standin_find.h"
#include "support/collect.h"
#include "support/opened.h"
#include "support/questions.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_REQUESTS = 3, N_TOKENS = 6, TEXT_BYTES = 256, N_MOMENTS = 5, PATIENCE = 240 };

static const char *const FUNCTIONS[] = { "ncclBroadcast",  "ncclAllGather",        "ncclSend",
                                         "ncclRecv",       "ncclGroupStart",       "ncclGroupEnd",
                                         "cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                                         "cuEventRecord",  "cuEventQuery",         "cuStreamQuery" };
enum { N_FUNCTIONS = sizeof FUNCTIONS / sizeof *FUNCTIONS, FIRST_OF_DRIVER = 6 };

/* What a life ends with. RANK_0, RANK_1: which one failed. */
enum outcome { WENT_ON, RANK_0, RANK_1, WRONG, N_OUTCOMES };

/* What all processes know. */
static struct {
    char answers[N_REQUESTS][TEXT_BYTES];
    long n_calls[N_FUNCTIONS]; /* from the first request on */
    uint64_t n_ahead_steps;
} * shared;

struct life {
    const char *function; /* NULL: nothing fails, and the answers are noted */
    long call;
    bool goes_on; /* if rank 1 fails, it leaves, and rank 0 goes on without it; else the process ends */
};

static bool has_lost_rank; /* rank 0 has, and noticed */

static struct collect all[N_REQUESTS];
static atomic_bool has_begun; /* all is ready for answers */

static _Noreturn void end_life(enum outcome outcome, const char *why)
{
    if (outcome == WRONG)
        fprintf(stderr, "%s\n", why);
    _exit((int)outcome);
}

/* What has come of an answer is its begin. */
static void check_text(const struct collect *c, int i)
{
    const struct collected *got = &c->choices[0];
    if (got->text.n_bytes > strlen(shared->answers[i]) ||
        (got->text.n_bytes > 0 && memcmp(got->text.bytes, shared->answers[i], got->text.n_bytes) != 0))
        end_life(WRONG, "a wrong text");
}

static void check_answer(const struct life *life, const struct collect *c, int i, bool *has_failed)
{
    static const char LOSS[] = "rank 1 of 2 ";
    const struct collected *got = &c->choices[0];
    check_text(c, i);
    if (got->finish == TUTTI_FINISH_ERROR) {
        *has_failed = true;
        has_lost_rank = life->goes_on && strncmp(got->error.text, LOSS, sizeof LOSS - 1) == 0;
        if (has_lost_rank && strstr(got->error.text, "was lost: it gave up"))
            return;
        if (got->error.status != TUTTI_E_CLOSED || !strstr(got->error.text, "device cuda: "))
            end_life(WRONG, got->error.text);
    } else if (got->text.n_bytes != strlen(shared->answers[i])) {
        end_life(WRONG, "a text that ends early");
    }
}

static void note_answers(tutti_engine *engine)
{
    struct tutti_stats stats;
    for (int i = 0; i < N_REQUESTS; i++)
        snprintf(shared->answers[i], TEXT_BYTES, "%.*s", (int)all[i].choices[0].text.n_bytes,
                 (const char *)all[i].choices[0].text.bytes);
    for (int i = 0; i < N_FUNCTIONS; i++)
        shared->n_calls[i] = standin_functions()->calls(FUNCTIONS[i]);
    wait_until_idle(engine, &stats);
    shared->n_ahead_steps = stats.n_ahead_steps;
}

static void lead(const struct life *life, tutti_model *model)
{
    static struct question questions[N_REQUESTS];
    const struct tutti_engine_options options = {
        .kv_bytes = 4 << 20, .max_seqs = 4, .max_queue = 4, .max_batch_tokens = 32
    };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    bool has_failed = false;
    for (int i = 0; i < N_REQUESTS; i++) {
        question_make(&questions[i], i, N_TOKENS);
        collect_init(&all[i]);
        all[i].n_choices = 1;
    }
    atomic_store(&has_begun, true);
    standin_functions()->fail_call(life->function, life->call, 719);
    for (int i = 0; i < N_REQUESTS; i++) {
        struct tutti_error err = { 0 };
        enum tutti_status st = tutti_engine_submit(engine, &questions[i].request, collect_event, &all[i],
                                                   NULL, &err);
        if (st == TUTTI_E_CLOSED) /* the card failed in between */
            end_life(life->goes_on && strstr(err.text, "was lost") ? RANK_1 : RANK_0, NULL);
        if (st != TUTTI_OK)
            end_life(WRONG, err.text);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&all[i]);
    if (!life->function)
        note_answers(engine);
    for (int i = 0; i < N_REQUESTS; i++)
        check_answer(life, &all[i], i, &has_failed);
    if (has_failed && !has_lost_rank)
        end_life(RANK_0, NULL);
    tutti_engine_close(engine);
}

/* Its process would end, and the others notice: no client may have received a wrong text until then. */
static _Noreturn void fail_as_follower(const struct tutti_error *err)
{
    if (err->status == TUTTI_OK || !strstr(err->text, "device cuda: "))
        end_life(WRONG, err->text);
    for (int i = 0; atomic_load(&has_begun) && i < N_REQUESTS; i++) {
        pthread_mutex_lock(&all[i].lock);
        check_text(&all[i], i);
        pthread_mutex_unlock(&all[i].lock);
    }
    end_life(RANK_1, NULL);
}

static void live_as_rank(void *arg, struct cluster *cluster)
{
    const struct life *life = arg;
    tutti_model *model = opened_on_rank(TEST_SHORT_MODEL, cluster_handle(cluster));
    struct tutti_error err = { 0 };
    if (cluster_rank(cluster) == 0)
        lead(life, model);
    else if (tutti_model_follow(model, &err) != TUTTI_OK && !life->goes_on)
        fail_as_follower(&err);
    tutti_model_close(model);
    cluster_close(cluster);
}

static enum outcome outcome_of(struct life life)
{
    int status = 0;
    pid_t child = child_fork(PATIENCE);
    if (child == 0) {
        ranks_run(2, 1, life.goes_on, live_as_rank, &life);
        _exit(has_lost_rank ? RANK_1 : WENT_ON);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) >= WRONG)
        fail_msg("%s fails at call %ld: the process ended with %#x",
                 life.function ? life.function : "nothing", life.call, (unsigned)status);
    return (enum outcome)WEXITSTATUS(status);
}

static void requests_end_clearly_when_a_rank_fails(void **state)
{
    (void)state;
    int sums[N_OUTCOMES] = { 0 };
    assert_int_equal(outcome_of((struct life){ 0 }), WENT_ON);
    assert_true(shared->n_ahead_steps > 0);
    for (int i = 0; i < N_FUNCTIONS; i++) {
        int counts[N_OUTCOMES] = { 0 };
        long n_calls = shared->n_calls[i];
        assert_true(n_calls > 0);
        /* The last calls are those of closing. */
        for (long moment = 0, call = 1; moment < N_MOMENTS && call <= n_calls;
             call = 1 + ++moment * (n_calls - 1) / N_MOMENTS)
            counts[outcome_of((struct life){ FUNCTIONS[i], call })]++;
        print_message("# %s: %ld calls; rank 0 ends %d times, rank 1 %d times, neither %d times\n",
                      FUNCTIONS[i], n_calls, counts[RANK_0], counts[RANK_1], counts[WENT_ON]);
        for (int k = 0; k < N_OUTCOMES; k++)
            sums[k] += counts[k];
    }
    assert_true(sums[RANK_0] > 0 && sums[RANK_1] > 0 && sums[WENT_ON] < sums[RANK_0] + sums[RANK_1]);
}

/* Rank 0 has steps on its card that rank 1 never comes to. */
static void a_card_does_not_wait_for_a_lost_rank(void **state)
{
    (void)state;
    enum { N_LIVES = 12 };
    int counts[N_OUTCOMES] = { 0 };
    long n_calls = shared->n_calls[FIRST_OF_DRIVER];
    for (long i = 0; i < N_LIVES; i++)
        counts[outcome_of(
            (struct life){ FUNCTIONS[FIRST_OF_DRIVER], 1 + i * n_calls / (2 * N_LIVES), true })]++;
    print_message("# rank 1 lost %d times, rank 0 failed %d times, neither %d times\n", counts[RANK_1],
                  counts[RANK_0], counts[WENT_ON]);
    assert_true(counts[RANK_1] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(requests_end_clearly_when_a_rank_fails),
                                        cmocka_unit_test(a_card_does_not_wait_for_a_lost_rank) };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
