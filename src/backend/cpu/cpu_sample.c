/* Sampling of the CPU backend: the logits are read where the step left them, each row by one thread. */
#include "backend/cpu/cpu.h"
#include "backend/sampler.h"

#include <stdlib.h>

void cpu_sampling_release(struct cpu_backend *cpu)
{
    for (int t = 0; cpu->samplers && t < team_n_threads(cpu->own_team); t++)
        sampler_free(cpu->samplers[t]);
    free(cpu->samplers);
    cpu->samplers = NULL;
    cpu->n_sampled_vocab = 0;
}

enum tutti_status cpu_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    int n_threads = team_n_threads(cpu->own_team);
    if (cpu->samplers && cpu->n_sampled_vocab == n_vocab)
        return TUTTI_OK;
    cpu_sampling_release(cpu);
    cpu->samplers = calloc((size_t)n_threads, sizeof(struct sampler *));
    if (!cpu->samplers)
        return error_set(err, TUTTI_E_MEMORY, "samplers: out of memory");
    for (int t = 0; t < n_threads; t++) {
        enum tutti_status st = sampler_new(&cpu->samplers[t], &cpu->kernels, n_vocab, err);
        if (st != TUTTI_OK) {
            cpu_sampling_release(cpu);
            return st;
        }
    }
    cpu->n_sampled_vocab = n_vocab;
    return TUTTI_OK;
}

struct sampling_job {
    const struct cpu_backend *cpu;
    float *logits;
    struct sample_input *inputs;
    int n_vocab, n;
};

static void sample_some(void *arg, int thread, int n_threads)
{
    const struct sampling_job *job = arg;
    for (int i = thread; i < job->n; i += n_threads)
        sampler_run(job->cpu->samplers[thread], job->logits, job->n_vocab, &job->inputs[i]);
}

void cpu_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n)
{
    struct cpu_backend *cpu = cpu_of(be);
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        assert(inputs[i].n_usable <= cpu->n_sampled_vocab); /* else reserve_sampling() is missing */
        int end = inputs[i].row + inputs[i].n_drafts + 1;
        n_rows = end > n_rows ? end : n_rows;
    }
    struct sampling_job job = { cpu, cpu_rows(logits, n_rows, n_vocab), inputs, n_vocab, n };
    if (n <= 1)
        sample_some(&job, 0, 1);
    else
        team_run(cpu->team, sample_some, &job);
}
