#include "cuda/standin_objects.h"

#include "cuda/standin_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct object *objects;

size_t args_bytes_of(const struct operation *op)
{
    return op->kind == LAUNCH                                    ? op->kernel->args_bytes
           : op->kind == CALL || (op->kind == COPY && !op->from) ? op->n_bytes
                                                                 : 0;
}

_Noreturn void misuse(const char *function, const char *what)
{
    fprintf(stderr, "stand-in for libcuda: %s: %s\n", function, what);
    abort();
}

struct object *object_new(enum object_kind kind)
{
    struct object *o = calloc(1, sizeof *o);
    if (!o)
        misuse("object", "out of memory");
    o->kind = kind;
    o->next = objects;
    objects = o;
    return o;
}

struct object *object_of(const void *handle, enum object_kind kind)
{
    for (struct object *o = objects; o; o = o->next)
        if (o == handle && o->kind == kind)
            return o;
    return NULL;
}

bool is_any_capturing(void)
{
    struct object *o = objects;
    while (o && !o->is_capturing)
        o = o->next;
    return o != NULL;
}

void operations_clear(struct operations *ops)
{
    for (size_t i = 0; i < ops->n; i++)
        free(ops->items[i].args);
    free(ops->items);
    *ops = (struct operations){ 0 };
}

void operations_drop_done(struct operations *ops)
{
    if (ops->n_done == 0)
        return;
    for (size_t i = 0; i < ops->n_done; i++)
        free(ops->items[i].args);
    ops->n -= ops->n_done;
    memmove(ops->items, ops->items + ops->n_done, ops->n * sizeof *ops->items);
    ops->n_done = 0;
}

bool operations_have_call(const struct operations *ops, const void *user)
{
    for (size_t i = ops->n_done; i < ops->n; i++)
        if (ops->items[i].kind == CALL && memcmp(ops->items[i].args, &user, sizeof user) == 0)
            return true;
    return false;
}

void object_free(struct object *o)
{
    for (struct object **at = &objects; *at; at = &(*at)->next)
        if (*at == o) {
            *at = o->next;
            break;
        }
    operations_clear(&o->operations);
    operations_clear(&o->queue);
    if (o->kind == STREAM)
        order_stream_free(o->fiber);
    free(o->text);
    free(o);
}

void operations_add(struct operations *ops, const struct operation *op, const void *args, size_t args_bytes)
{
    if (ops->n == ops->room) {
        ops->room = ops->room > 0 ? 2 * ops->room : 64;
        ops->items = realloc(ops->items, ops->room * sizeof *ops->items);
        if (!ops->items)
            misuse("operation", "out of memory");
    }
    struct operation *to = &ops->items[ops->n++];
    *to = *op;
    to->args = malloc(args_bytes + 1);
    if (!to->args)
        misuse("operation", "out of memory");
    memcpy(to->args, args_bytes > 0 ? args : "", args_bytes);
    order_before(to->args);
}
