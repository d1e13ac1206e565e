/* A mixture of experts: the router and the order of the rows by expert are computed on the card (route.c), so that launches
 * depend on the number of rows only. Products are made for as many lists of rows as there may be; blocks of lists that are
 * not used end at once. So no weights are read but those of chosen experts. */
#include "backend/cuda/experts/cuda_experts.h"
#include "backend/cuda/cuda_matrix.h"
#include "kernels/cuda/experts/experts_args.h"

#include <stdlib.h>

enum { LEAST_LIST_ROWS = 8, GROUP_THREADS = 256, SUM_THREADS = 256 };

/* The most that the experts of a backend's matrices need, and the scratch memory for it, all of it on the card. Entries:
 * experts_args.h. */
struct cuda_experts {
    int n_experts, n_chosen;
    enum linear_format format; /* F32 if a matrix has it, for which rows need most memory; else another one */
    int n_in, n_ff, n_wide;    /* of input rows, of rows between the two products, of output rows */

    int32_t *ids, *entries, *rows; /* [entries] */
    float *weights;                /* [entries] */
    uint32_t *n_rows_of;           /* [n_experts]: 0 between operations */
    struct linear_rows *lists;
    int32_t *n_lists;
    uint64_t *n_read;       /* bytes of weights */
    uint8_t *wide;          /* the entries' input rows, then [entries][n_wide] floats: products */
    float *hidden;          /* [entries][n_ff] */
    uint8_t *halves;        /* the rows of hidden as halves */
    float *scales;          /* [entries]: of either halves */
    uint64_t n_read_before; /* by operations before the last reserve() */
};

static void widen(int *most, int n)
{
    *most = n > *most ? n : *most;
}

bool cuda_experts_note(struct cuda_backend *cuda, const struct matrix *m, int n_chosen)
{
    if (!cuda->experts)
        cuda->experts = calloc(1, sizeof *cuda->experts);
    struct cuda_experts *e = cuda->experts;
    if (!e)
        return false;
    assert(n_chosen >= 1 && n_chosen <= m->n_experts);
    e->format = e->n_experts == 0 || m->format == LINEAR_F32 ? m->format : e->format;
    widen(&e->n_experts, m->n_experts);
    widen(&e->n_chosen, n_chosen);
    widen(m->is_gate_up ? &e->n_in : &e->n_ff, m->n_in);
    widen(m->is_gate_up ? &e->n_ff : &e->n_wide, m->is_gate_up ? m->n_out / 2 : m->n_out);
    return true;
}

uint64_t cuda_expert_bytes_read(const struct backend *be)
{
    struct cuda_backend *cuda = cuda_of((struct backend *)(uintptr_t)be);
    struct cuda_experts *e = cuda->experts;
    uint64_t n = 0;
    if (!e)
        return 0;
    if (e->n_read)
        cuda_copy_out(cuda, &n, e->n_read, sizeof n);
    return n + e->n_read_before;
}

/* ---- scratch memory ---- */

static void free_scratch(struct cuda_backend *cuda)
{
    struct cuda_experts *e = cuda->experts;
    void *const all[] = { e->ids,     e->entries, e->rows, e->weights, e->n_rows_of, e->lists,
                          e->n_lists, e->n_read,  e->wide, e->hidden,  e->halves,    e->scales };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cuda_memory_free(cuda, all[i]);
    *e = (struct cuda_experts){ .n_experts = e->n_experts,
                                .n_chosen = e->n_chosen,
                                .format = e->format,
                                .n_in = e->n_in,
                                .n_ff = e->n_ff,
                                .n_wide = e->n_wide,
                                .n_read_before = e->n_read_before };
}

static bool alloc_scratch(struct cuda_backend *cuda, struct cuda_experts *e, int n)
{
    size_t count = (size_t)n, wide = count * (size_t)e->n_wide * sizeof(float);
    size_t input = cuda_converted_bytes(e->format, n, e->n_in), word = sizeof(int32_t);
    size_t n_lists = (size_t)expert_lists(n, e->n_experts, LEAST_LIST_ROWS);
    e->ids = cuda_memory_new(cuda, count * word);
    e->entries = cuda_memory_new(cuda, count * word);
    e->rows = cuda_memory_new(cuda, count * word);
    e->weights = cuda_memory_new(cuda, count * sizeof(float));
    e->n_rows_of = cuda_memory_new(cuda, (size_t)e->n_experts * word);
    e->lists = cuda_memory_new(cuda, n_lists * sizeof *e->lists);
    e->n_lists = cuda_memory_new(cuda, word);
    e->n_read = cuda_memory_new(cuda, sizeof *e->n_read);
    e->wide = cuda_memory_new(cuda, wide > input ? wide : input);
    e->hidden = cuda_memory_new(cuda, count * (size_t)e->n_ff * sizeof(float));
    e->halves = cuda_memory_new(cuda, cuda_converted_bytes(e->format, n, e->n_ff));
    e->scales = cuda_memory_new(cuda, count * sizeof(float));
    return e->ids && e->entries && e->rows && e->weights && e->n_rows_of && e->lists && e->n_lists &&
           e->n_read && e->wide && e->hidden && e->halves && e->scales;
}

bool cuda_experts_reserve(struct cuda_backend *cuda, int max_rows)
{
    struct cuda_experts *e = cuda->experts;
    int n_entries;
    if (!e)
        return true;
    e->n_read_before = cuda_expert_bytes_read(&cuda->backend);
    free_scratch(cuda);
    return !__builtin_mul_overflow(max_rows, e->n_chosen, &n_entries) && alloc_scratch(cuda, e, n_entries);
}

void cuda_experts_release(struct cuda_backend *cuda)
{
    if (!cuda->experts)
        return;
    free_scratch(cuda);
    free(cuda->experts);
    cuda->experts = NULL;
}

/* ---- a step ---- */

static struct route_args route_args(struct cuda_backend *cuda, const struct expert_layer *layer,
                                    const float *scores, int n_scores)
{
    const struct cuda_experts *e = cuda->experts;
    const struct routing *r = layer->routing;
    struct route_args args = { 0 };
    args.counts = cuda->rows.counts;
    args.scores = scores;
    args.bias = cuda_floats(layer->bias, (size_t)r->n_experts);
    args.factors = cuda_floats(layer->factors, (size_t)r->n_experts);
    args.ids = e->ids;
    args.weights = e->weights;
    args.n_rows_of = e->n_rows_of;
    args.n_scores = n_scores;
    args.n_experts = r->n_experts;
    args.n_chosen = r->n_chosen;
    args.is_sigmoid = r->kind == ROUTE_SIGMOID;
    args.is_normed = r->is_normed;
    args.n_groups = r->n_groups;
    args.n_chosen_groups = r->n_chosen_groups;
    args.group_best = r->group_best;
    args.scale = r->scale;
    return args;
}

static struct group_args group_args(struct cuda_backend *cuda, const struct expert_layer *layer, int n_rows)
{
    const struct cuda_experts *e = cuda->experts;
    struct group_args args = { 0 };
    args.ids = e->ids;
    args.n_rows_of = e->n_rows_of;
    args.rows = e->rows;
    args.entries = e->entries;
    args.lists = e->lists;
    args.n_lists = e->n_lists;
    args.n_read = e->n_read;
    args.expert_bytes = cuda_expert_bytes(layer->gate_up) + cuda_expert_bytes(layer->down);
    args.n_experts = layer->routing->n_experts;
    args.n_chosen = layer->routing->n_chosen;
    args.n_choices = n_rows * args.n_chosen;
    args.list_rows = cuda_list_rows(args.n_choices / args.n_experts);
    return args;
}

/* Chooses the experts of n_rows rows, and orders the rows by expert. */
static struct cuda_entries route(struct cuda_backend *cuda, const struct expert_layer *layer,
                                 const float *scores, int n_scores, int n_rows)
{
    struct route_few_args both = { 0 };
    both.route = route_args(cuda, layer, scores, n_scores);
    both.group = group_args(cuda, layer, n_rows);
    const struct group_args *group = &both.group;
    size_t few_bytes = route_few_bytes(n_rows, group->n_experts, group->n_chosen);
    assert(group->list_rows >= LEAST_LIST_ROWS);
    if (n_rows <= ROUTE_FEW_ROWS && few_bytes <= ROUTE_FEW_BYTES) {
        both.route.n_rows_of = NULL;
        cuda_launch(cuda, CUDA_KERNEL_route_few,
                    (struct cuda_grid){
                        .x = 1, .y = 1, .z = 1, .n_threads = ROUTE_FEW_THREADS, .shared_bytes = few_bytes },
                    &both, sizeof both);
    } else {
        cuda_launch(cuda, CUDA_KERNEL_route_rows,
                    (struct cuda_grid){ .x = n_rows,
                                        .y = 1,
                                        .z = 1,
                                        .n_threads = 32,
                                        .shared_bytes = route_shared_bytes(group->n_experts) },
                    &both.route, sizeof both.route);
        cuda_launch(cuda, CUDA_KERNEL_group_rows,
                    (struct cuda_grid){ .x = group->n_experts, .y = 1, .z = 1, .n_threads = GROUP_THREADS },
                    group, sizeof *group);
    }
    return (struct cuda_entries){ .rows = group->rows,
                                  .lists = group->lists,
                                  .n_lists = group->n_lists,
                                  .most_lists = expert_lists(group->n_choices, group->n_experts,
                                                             group->list_rows),
                                  .list_rows = group->list_rows,
                                  .n_entries = group->n_choices };
}

static void multiply(struct cuda_backend *cuda, const struct expert_layer *layer, const float *x,
                     const struct cuda_entries *entries, int n_rows)
{
    const struct cuda_experts *e = cuda->experts;
    const struct matrix *up = layer->gate_up, *down = layer->down;
    struct cuda_entries hidden = *entries; /* an entry's row is its own from here on */
    struct cuda_input input = cuda_convert(cuda, e->wide, e->scales, up, x, up->n_in, n_rows, entries);
    cuda_product(cuda, e->hidden, down->n_in, up, &input, n_rows, (int)layer->activation, entries);
    hidden.rows = NULL;
    input = cuda_convert(cuda, e->halves, e->scales, down, e->hidden, down->n_in, n_rows, &hidden);
    cuda_product(cuda, (float *)(void *)e->wide, down->n_out, down, &input, n_rows, -1, &hidden);
}

static void sum(struct cuda_backend *cuda, const struct expert_layer *layer, float *y, const float *scores,
                int n_scores, int n_rows)
{
    const struct cuda_experts *e = cuda->experts;
    struct sum_args args = { 0 };
    args.counts = cuda->rows.counts;
    args.products = (const float *)(const void *)e->wide;
    args.entries = e->entries;
    args.weights = e->weights;
    args.scores = layer->gates_base ? scores : NULL;
    args.y = y;
    args.n_rows_of = e->n_rows_of;
    args.n = layer->down->n_out;
    args.n_chosen = layer->routing->n_chosen;
    args.n_experts = layer->routing->n_experts;
    args.n_scores = n_scores;
    args.has_base = layer->has_base;
    cuda_launch(
        cuda, CUDA_KERNEL_sum_experts,
        (struct cuda_grid){
            .x = n_rows, .y = (args.n + SUM_THREADS - 1) / SUM_THREADS, .z = 1, .n_threads = SUM_THREADS },
        &args, sizeof args);
}

void cuda_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                  struct floats scores, int n_rows)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_experts *e = cuda->experts;
    const struct matrix *up = layer->gate_up, *down = layer->down;
    const struct routing *r = layer->routing;
    int n_scores = r->n_experts + (layer->gates_base ? 1 : 0), n = cuda_padded_rows(cuda, n_rows);
    if (n_rows == 0)
        return;
    assert(e && up->is_gate_up && up->n_experts == r->n_experts && down->n_experts == up->n_experts &&
           down->n_in == up->n_out / 2 && r->n_chosen <= e->n_chosen && e->ids);
    size_t count = (size_t)n;
    const float *from = cuda_floats(scores, count * (size_t)n_scores);
    struct cuda_entries entries = route(cuda, layer, from, n_scores, n);
    multiply(cuda, layer, cuda_floats(x, count * (size_t)up->n_in), &entries, n);
    sum(cuda, layer, cuda_floats(y, count * (size_t)down->n_out), from, n_scores, n);
}
