#include "cuda/standin_failures.h"

#include <execinfo.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    char name[64]; /* empty: any */
    long count, calls;
    int error;
    const char *failed;
    struct {
        const char *name;
        long n;
    } by_name[64];
} fault;
static bool has_environment;
static standin_seen_fn *seen_call;

EXPORT standin_fail_fn standin_fail;
EXPORT standin_trace_fn standin_trace;
EXPORT standin_calls_fn standin_calls;
EXPORT standin_failed_fn standin_failed;

void standin_fail(const char *name, long count, int error)
{
    has_environment = true; /* it no longer counts */
    memset(&fault, 0, sizeof fault);
    snprintf(fault.name, sizeof fault.name, "%s", name && strcmp(name, "any") != 0 ? name : "");
    fault.count = count;
    fault.error = error;
}

long standin_calls(const char *name)
{
    for (size_t i = 0; name && i < sizeof fault.by_name / sizeof *fault.by_name; i++)
        if (fault.by_name[i].name && strcmp(fault.by_name[i].name, name) == 0)
            return fault.by_name[i].n;
    return name ? 0 : fault.calls;
}

const char *standin_failed(void)
{
    return fault.failed;
}

void standin_trace(standin_seen_fn *seen)
{
    seen_call = seen;
}

/* Passes the functions on the stack on, from the caller of the driver's function on. */
static void trace(const char *name, const void *caller)
{
    void *stack[STANDIN_CALLERS + 8];
    int n = backtrace(stack, sizeof stack / sizeof *stack), begin = 0;
    while (begin < n && stack[begin] != caller)
        begin++;
    n = n - begin < STANDIN_CALLERS ? n - begin : STANDIN_CALLERS;
    seen_call(fault.calls, name, stack + begin, n);
}

long setting(const char *name, long value)
{
    const char *text = getenv(name);
    return text ? atol(text) : value;
}

static void read_environment(void)
{
    const char *text = getenv("TUTTI_STANDIN_FAIL");
    char name[64];
    long count;
    int error;
    if (has_environment || !text)
        return;
    has_environment = true;
    if (sscanf(text, "%63[^:]:%ld:%d", name, &count, &error) == 3)
        standin_fail(name, count, error);
}

int failure_next(const char *name, const void *caller)
{
    read_environment();
    fault.calls++;
    if (seen_call)
        trace(name, caller);
    for (size_t i = 0; i < sizeof fault.by_name / sizeof *fault.by_name; i++) {
        if (!fault.by_name[i].name)
            fault.by_name[i].name = name;
        if (strcmp(fault.by_name[i].name, name) == 0) {
            fault.by_name[i].n++;
            break;
        }
    }
    if (fault.count <= 0 || fault.failed || (fault.name[0] && strcmp(fault.name, name) != 0) ||
        standin_calls(fault.name[0] ? name : NULL) != fault.count)
        return 0;
    fault.failed = name;
    return fault.error;
}
