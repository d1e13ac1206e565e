#include "model/load/fit.h"

#include <inttypes.h>
#include <stdio.h>

static const struct weight_type *type_at(int i)
{
    return i < FIT_MAX_TYPES ? weight_type_at(i) : NULL;
}

void fit_add(struct fit_sizes *sizes, const struct weight *w, const struct weight_type *type, double share,
             const struct backend_caps *caps)
{
    const struct weight_type *as;
    sizes->current += (uint64_t)((double)weights_bytes(w, type, caps) * share);
    for (int i = 0; (as = type_at(i)); i++)
        sizes->as[i] += (uint64_t)((double)weights_bytes(w, as, caps) * share);
}

/* As in model_make(). */
uint64_t fit_shape_bytes(const struct slot_shape *shape, enum weight_slot slot, enum dtype type,
                         const struct backend_caps *caps)
{
    const struct slot_info *info = slot_info(slot);
    uint64_t n_floats = (uint64_t)shape->n_in * (uint64_t)shape->n_out * (shape->has_bias ? 2 : 1);
    if (info->kind != SLOT_MATRIX)
        return n_floats * sizeof(float);
    return weights_packed_bytes(shape, model_shape_weight_type(slot, type), caps) *
           (uint64_t)shape->n_experts;
}

void fit_add_shape(struct fit_sizes *sizes, const struct slot_shape *shape, enum weight_slot slot,
                   enum dtype type, const struct backend_caps *caps)
{
    const struct weight_type *as;
    sizes->current += fit_shape_bytes(shape, slot, type, caps);
    for (int i = 0; (as = type_at(i)); i++)
        sizes->as[i] += fit_shape_bytes(shape, slot, as->dtype, caps);
}

/* ---- what fits ---- */

uint64_t fit_kv_bytes(uint64_t bytes_left)
{
    uint64_t headroom = (UINT64_C(512) << 20) + bytes_left / 8;
    return bytes_left > headroom ? bytes_left - headroom : bytes_left / 2;
}

static uint64_t context_bytes(const struct fit_request *r, int n_ctx)
{
    return model_context_kv_bytes(r->desc, r->kv_type, r->page_tokens, n_ctx);
}

/* The longest context that n_bytes hold, in whole pages; 0: not one page. */
static int longest_context(const struct fit_request *r, uint64_t n_bytes)
{
    int low = 0, high = (int)kv_pages_of(r->n_ctx, r->page_tokens);
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (context_bytes(r, middle * r->page_tokens) <= n_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low * r->page_tokens < r->n_ctx ? low * r->page_tokens : r->n_ctx;
}

/* False: not even the least context fits with weights of n_bytes. */
static bool find_room(struct fit_room *out, const struct fit_request *r, const struct weight_type *type,
                      uint64_t n_bytes)
{
    enum { LEAST_CONTEXT = 512 };
    uint64_t left = r->memory_bytes > n_bytes ? r->memory_bytes - n_bytes : 0;
    uint64_t kv_bytes = r->has_headroom ? fit_kv_bytes(left) : left;
    *out = (struct fit_room){ type, n_bytes, longest_context(r, kv_bytes), 1 };
    if (out->n_ctx == r->n_ctx)
        out->n_users = (int64_t)(kv_bytes / context_bytes(r, r->n_ctx));
    return out->n_ctx >= (r->n_ctx < LEAST_CONTEXT ? r->n_ctx : LEAST_CONTEXT);
}

/* The largest type below a number of bytes; -1: none. */
static int next_type(const struct fit_sizes *sizes, uint64_t below)
{
    int next = -1;
    for (int i = 0; type_at(i); i++)
        if (sizes->as[i] < below && (next < 0 || sizes->as[i] > sizes->as[next]))
            next = i;
    return next;
}

int fit_find(struct fit_room rooms[FIT_MAX_ROOMS], const struct fit_sizes *sizes, const struct fit_request *r)
{
    struct fit_room room;
    const struct weight_type *type = NULL;
    uint64_t n_bytes = sizes->current;
    int n = 0;
    for (;;) {
        bool fits = find_room(&room, r, type, n_bytes);
        if (fits && (n == 0 || room.n_ctx == r->n_ctx))
            rooms[n++] = room;
        int next = next_type(sizes, n_bytes);
        if (next < 0 || (fits && room.n_ctx == r->n_ctx))
            return n;
        type = type_at(next);
        n_bytes = sizes->as[next];
    }
}

/* ---- texts ---- */

const char *fit_size_text(char text[FIT_SIZE_BYTES], uint64_t n_bytes)
{
    static const char UNITS[] = " KMGT";
    uint64_t n = n_bytes;
    int unit = 0;
    while (unit < 4 && (n % 1024 == 0 || n > 100 * 1024) && n >= 1024) {
        n = n / 1024 + (n % 1024 != 0);
        unit++;
    }
    snprintf(text, FIT_SIZE_BYTES, "%" PRIu64 "%.*s", n, unit > 0, &UNITS[unit]);
    return text;
}

static uint64_t smallest_type(const struct fit_sizes *sizes, const char **name)
{
    int smallest = 0;
    for (int i = 1; type_at(i); i++)
        if (sizes->as[i] < sizes->as[smallest])
            smallest = i;
    *name = type_at(smallest)->name;
    return sizes->as[smallest];
}

const char *fit_text(char text[FIT_TEXT_BYTES], const struct fit_room *rooms, int n,
                     const struct fit_sizes *sizes)
{
    char size[FIT_SIZE_BYTES];
    const char *name;
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < n && at < FIT_TEXT_BYTES; i++) {
        const struct fit_room *r = &rooms[i];
        at += (size_t)snprintf(text + at, FIT_TEXT_BYTES - at, i > 0 ? "; " : "");
        if (r->type && at < FIT_TEXT_BYTES)
            at += (size_t)snprintf(text + at, FIT_TEXT_BYTES - at, "--type %s needs %s, ", r->type->name,
                                   fit_size_text(size, r->weight_bytes));
        if (at < FIT_TEXT_BYTES)
            at += (size_t)snprintf(text + at, FIT_TEXT_BYTES - at,
                                   "%s %" PRId64 " user%s of %d tokens (--context %d)",
                                   r->type ? "and leaves memory for" : "there is memory for", r->n_users,
                                   r->n_users == 1 ? "" : "s", r->n_ctx, r->n_ctx);
    }
    if (n == 0) {
        uint64_t n_bytes = smallest_type(sizes, &name);
        snprintf(text, FIT_TEXT_BYTES, "even --type %s needs %s, without keys and values", name,
                 fit_size_text(size, n_bytes));
    }
    return text;
}

enum tutti_status fit_check(const char *model, const char *type, const struct fit_sizes *sizes,
                            const struct fit_request *request, bool is_given, struct tutti_error *err)
{
    struct fit_room rooms[FIT_MAX_ROOMS];
    char need[FIT_SIZE_BYTES], left[FIT_SIZE_BYTES], advice[FIT_TEXT_BYTES];
    if (sizes->current <= request->memory_bytes)
        return TUTTI_OK;
    int n = fit_find(rooms, sizes, request);
    return error_set_param(
        err, TUTTI_E_MEMORY, "memory_bytes", "%s: the weights need %s as %s, but %s of memory %s: %s%s%s%s",
        model, fit_size_text(need, sizes->current), type, fit_size_text(left, request->memory_bytes),
        is_given ? "are given" : "are available", request->divisions ? request->divisions : "",
        request->divisions && *request->divisions ? "; " : "", fit_text(advice, rooms, n, sizes),
        n > 0 ? "; tutti convert --type writes a file of that type" : "");
}
