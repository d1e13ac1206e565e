/* checkkernels [NAME] [--brief]     each kernel variant (of that group) against plain C, as TAP; fewer shapes
 * checkkernels --bench [NAME] [-t N] the speed of each variant compared with the machine's limits
 * checkkernels --error              the error of each weight type's arithmetic */
#include "check.h"

#include <stdlib.h>
#include <string.h>

static const unsigned LEVELS[] = {
    CPU_REF,
#if defined(__x86_64__)
    CPU_AVX2,
    CPU_AVX2 | CPU_AVXVNNI,
    CPU_AVX2 | CPU_AVXVNNI | CPU_VEX,
    CPU_AVX2 | CPU_AVX512,
    CPU_AVX2 | CPU_AVX512 | CPU_SPLIT,
    CPU_AVX2 | CPU_AVX512 | CPU_PAIRED,
    CPU_AVX2 | CPU_AVX512 | CPU_BF16,
    CPU_AVX2 | CPU_AVX512 | CPU_AMX,
#elif defined(__aarch64__)
    CPU_NEON,
    CPU_NEON | CPU_DOTPROD,
    CPU_NEON | CPU_DOTPROD | CPU_I8MM,
#endif
};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

static const struct {
    const char *name;
    void (*check)(struct check *c);
} CHECKS[] = {
    { "linear", check_linear }, { "rows", check_rows },         { "attention", check_attention },
    { "lora", check_lora },     { "sampling", check_sampling },
};
enum { N_CHECKS = sizeof CHECKS / sizeof *CHECKS };

static const char *level_name(unsigned level)
{
    return level & CPU_BF16     ? "avx512+bf16"
           : level & CPU_SPLIT  ? "avx512+split"
           : level & CPU_PAIRED ? "avx512+paired"
           : level & CPU_VEX    ? "avxvnni+vex"
                                : cpu_name(level);
}

/* The lowest level runs too: it marks the plain C variants as seen. */
static int run_checks(struct check *c)
{
    unsigned all = cpu_runnable();
    printf("TAP version 13\n1..%d\n", N_CHECKS * N_LEVELS);
    int n_failed = 0;
    for (int i = 0; i < N_CHECKS; i++) {
        c->n_seen = 0;
        for (int level = 0; level < N_LEVELS; level++) {
            int number = i * N_LEVELS + level + 1;
            if (c->only && strcmp(c->only, CHECKS[i].name) != 0) {
                printf("ok %d %s %s # SKIP not asked for\n", number, CHECKS[i].name,
                       level_name(LEVELS[level]));
                continue;
            }
            if ((LEVELS[level] & ~all) != 0) {
                printf("ok %d %s %s # SKIP this processor lacks it\n", number, CHECKS[i].name,
                       level_name(LEVELS[level]));
                continue;
            }
            struct kernels k;
            kernels_init(&k, LEVELS[level]);
            c->k = &k;
            c->level = LEVELS[level];
            c->random = 88172645463325252u;
            c->n_passed = c->n_failed = 0;
            CHECKS[i].check(c);
            printf("%s %d %s %s: %d variants passed, %d failed\n", c->n_failed ? "not ok" : "ok", number,
                   CHECKS[i].name, level_name(c->level), c->n_passed, c->n_failed);
            n_failed += c->n_failed;
        }
    }
    return n_failed > 0;
}

#if HAS_BENCH
static int run_bench(struct check *c, int n_threads)
{
    struct tutti_error err;
    if (team_new(&c->team, &(struct team_options){ .n_threads = n_threads, .pin = true }, &err) != TUTTI_OK) {
        fprintf(stderr, "checkkernels: %s\n", err.text);
        return 1;
    }
    bench_all(c);
    team_free(c->team);
    return 0;
}
#else
static int run_bench(struct check *c, int n_threads)
{
    (void)c, (void)n_threads;
    fprintf(stderr, "checkkernels: --bench needs the backend, which this build of the kernels only lacks\n");
    return 2;
}
#endif

int main(int argc, char **argv)
{
    struct check *c = calloc(1, sizeof *c);
    int n_threads = 0, rc = 0;
    bool is_error = false;
    if (!c)
        return 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            c->is_bench = true;
        else if (strcmp(argv[i], "--brief") == 0)
            c->is_brief = true;
        else if (strcmp(argv[i], "--error") == 0)
            is_error = true;
        else if (strcmp(argv[i], "-t") == 0 && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (argv[i][0] != '-')
            c->only = argv[i];
        else {
            fprintf(stderr, "usage: checkkernels [NAME] [--brief] | checkkernels [--bench [NAME] [-t "
                            "THREADS] | --error]\n");
            free(c);
            return 2;
        }
    }
    if (is_error) {
        report_errors(c);
    } else if (c->is_bench) {
        rc = run_bench(c, n_threads);
    } else {
        rc = run_checks(c);
    }
    free(c);
    return rc;
}
