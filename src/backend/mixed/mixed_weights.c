/* Weights of the mixed backend: each in the memory of its side. */
#include "backend/matrix_source.h"
#include "backend/mixed/mixed.h"

#include <stdlib.h>

/* ---- buffers ---- */

void mixed_dealloc(struct backend *be, struct floats floats)
{
    struct mixed_backend *m = mixed_of(be);
    if (!floats.buffer)
        return;
    assert(floats.offset == 0);
    for (int i = 0; i < N_SIDES; i++)
        m->sides[i]->ops->dealloc(m->sides[i], floats.buffer->on[i]);
    free(floats.buffer);
}

/* values NULL: zeros. side BOTH_SIDES: on each. */
static struct floats new_buffer(struct mixed_backend *m, const float *values, size_t n_floats, enum side side)
{
    struct buffer *buffer = calloc(1, sizeof *buffer);
    bool has_all = buffer;
    for (int i = 0; i < N_SIDES && has_all; i++) {
        struct backend *be = m->sides[i];
        if (side != BOTH_SIDES && (int)side != i)
            continue;
        buffer->on[i] = values ? be->ops->alloc_constant(be, values, n_floats) : be->ops->alloc(be, n_floats);
        has_all = buffer->on[i].buffer;
    }
    struct floats floats = { .buffer = buffer };
    if (has_all) {
        buffer->n_floats = n_floats;
        buffer->n_valid = values ? n_floats : 0;
        buffer->newest = side;
        return floats;
    }
    mixed_dealloc(&m->backend, floats);
    return NO_FLOATS;
}

struct floats mixed_alloc(struct backend *be, size_t n_floats)
{
    return new_buffer(mixed_of(be), NULL, n_floats, BOTH_SIDES);
}

struct floats mixed_alloc_constant(struct backend *be, const float *values, size_t n_floats)
{
    return new_buffer(mixed_of(be), values, n_floats, mixed_of(be)->weights_side);
}

uint64_t mixed_checksum(struct backend *be, struct floats floats, size_t n_floats)
{
    struct mixed_backend *m = mixed_of(be);
    const struct buffer *buffer = floats.buffer;
    enum side side = buffer->newest == BOTH_SIDES ? SIDE_CPU : buffer->newest;
    return m->sides[side]->ops->checksum(m->sides[side], floats_at(buffer->on[side], floats.offset),
                                         n_floats);
}

/* ---- matrices ---- */

void mixed_begin_weights(struct backend *be, enum weight_part part, int layer)
{
    struct mixed_backend *m = mixed_of(be);
    m->weights_side = part == PART_SHARED ? BOTH_SIDES : mixed_side_of(m, part, layer);
}

enum tutti_status mixed_matrix_new(struct backend *be, struct matrix **out,
                                   const struct matrix_source *source, struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = m->sides[m->weights_side];
    struct matrix *matrix = calloc(1, sizeof *matrix);
    if (!matrix)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", source->name);
    enum tutti_status st = side->ops->matrix_new(side, &matrix->inner, source, err);
    if (st != TUTTI_OK) {
        free(matrix);
        return st;
    }
    matrix->ops = side->ops;
    matrix->side = m->weights_side;
    matrix->n_in = source->n_in;
    matrix->n_experts = matrix_source_experts(source);
    for (int i = 0; i < source->n_parts / matrix->n_experts; i++)
        matrix->n_out += source->parts[i].n_rows;
    *out = matrix;
    return TUTTI_OK;
}

/* Frees the handle only, and returns the matrix of the side that has it. */
static struct matrix *take_inner(struct matrix *matrix)
{
    struct matrix *inner = matrix ? matrix->inner : NULL;
    free(matrix);
    return inner;
}

void mixed_matrix_free(struct backend *be, struct matrix *matrix)
{
    if (!matrix)
        return;
    struct backend *side = mixed_of(be)->sides[matrix->side];
    side->ops->matrix_free(side, take_inner(matrix));
}

size_t mixed_matrix_bytes(const struct matrix *matrix)
{
    return matrix->ops->matrix_bytes(matrix->inner);
}

enum dtype mixed_matrix_type(const struct matrix *matrix)
{
    return matrix->ops->matrix_type(matrix->inner);
}

float mixed_matrix_read(struct backend *be, float *host, const struct matrix *matrix, int row)
{
    return matrix->ops->matrix_read(mixed_of(be)->sides[matrix->side], host, matrix->inner, row);
}

bool mixed_matrix_lengths(struct backend *be, float *host, const struct matrix *matrix,
                          const struct lora_part *part)
{
    return matrix->ops->matrix_lengths(mixed_of(be)->sides[matrix->side], host, matrix->inner, part);
}

uint64_t mixed_matrix_checksum(struct backend *be, const struct matrix *matrix)
{
    return matrix->ops->matrix_checksum(mixed_of(be)->sides[matrix->side], matrix->inner);
}

/* ---- what adapters change ---- */

/* False: out of memory. */
static bool note_handle(struct mixed_backend *m, const void *inner, enum side side)
{
    if (m->n_handles == m->handles_room) {
        size_t room = 2 * m->handles_room + 64;
        struct handle *handles = realloc(m->handles, room * sizeof *handles);
        if (!handles)
            return false;
        m->handles = handles;
        m->handles_room = room;
    }
    m->handles[m->n_handles++] = (struct handle){ inner, side };
    return true;
}

static struct handle *find_handle(const struct mixed_backend *m, const void *inner)
{
    size_t i = 0;
    while (m->handles[i].inner != inner)
        assert(i + 1 < m->n_handles), i++;
    return &m->handles[i];
}

static struct backend *handle_side(const struct mixed_backend *m, const void *inner)
{
    return m->sides[find_handle(m, inner)->side];
}

/* Returns the side that had it. */
static struct backend *forget_handle(struct mixed_backend *m, const void *inner)
{
    struct handle *handle = find_handle(m, inner);
    struct backend *side = m->sides[handle->side];
    *handle = m->handles[--m->n_handles];
    return side;
}

enum tutti_status mixed_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                                 struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = m->sides[m->weights_side];
    struct lora_source own = *source;
    struct lora *lora = NULL;
    own.matrix = take_inner(source->matrix);
    enum tutti_status st = side->ops->lora_new(side, &lora, &own, err);
    if (st == TUTTI_OK && !note_handle(m, lora, m->weights_side)) {
        side->ops->lora_free(side, lora);
        st = error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    if (st == TUTTI_OK)
        *out = lora;
    return st;
}

void mixed_lora_free(struct backend *be, struct lora *lora)
{
    if (!lora)
        return;
    struct backend *side = forget_handle(mixed_of(be), lora);
    side->ops->lora_free(side, lora);
}

size_t mixed_lora_bytes(const struct backend *be, const struct lora *lora)
{
    const struct backend *side = handle_side(mixed_const(be), lora);
    return side->ops->lora_bytes(side, lora);
}

uint64_t mixed_lora_checksum(struct backend *be, const struct lora *lora)
{
    struct backend *side = handle_side(mixed_of(be), lora);
    return side->ops->lora_checksum(side, lora);
}

enum tutti_status mixed_embedding_new(struct backend *be, struct embedding_update **out,
                                      const struct embedding_source *source, struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = m->sides[m->weights_side];
    struct embedding_source own = *source;
    struct embedding_update *update = NULL;
    own.table = take_inner(source->table);
    enum tutti_status st = side->ops->embedding_new(side, &update, &own, err);
    if (st == TUTTI_OK && !note_handle(m, update, m->weights_side)) {
        side->ops->embedding_free(side, update);
        st = error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    if (st == TUTTI_OK)
        *out = update;
    return st;
}

void mixed_embedding_free(struct backend *be, struct embedding_update *update)
{
    if (!update)
        return;
    struct backend *side = forget_handle(mixed_of(be), update);
    side->ops->embedding_free(side, update);
}

size_t mixed_embedding_bytes(const struct backend *be, const struct embedding_update *update)
{
    const struct backend *side = handle_side(mixed_const(be), update);
    return side->ops->embedding_bytes(side, update);
}

uint64_t mixed_embedding_checksum(struct backend *be, const struct embedding_update *update)
{
    struct backend *side = handle_side(mixed_of(be), update);
    return side->ops->embedding_checksum(side, update);
}
