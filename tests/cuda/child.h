/* A process of its own for a part of a test that ends it, or whose failure must not end the others. */
#ifndef TUTTI_TESTS_CUDA_CHILD_H
#define TUTTI_TESTS_CUDA_CHILD_H

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* As fork(), which may not fail. The child ends after so many seconds, and by a crash as a program without cmocka does: cmocka
 * would go on with the next test. */
static inline pid_t child_fork(unsigned seconds)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        abort();
    }
    if (child == 0) {
        alarm(seconds);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
    }
    return child;
}

#endif
