/* What the stand-in for NVIDIA's driver gives handles for, and lists of operations, for libcuda_standin.c, which calls these
 * functions under its lock. */
#ifndef TUTTI_TESTS_CUDA_STANDIN_OBJECTS_H
#define TUTTI_TESTS_CUDA_STANDIN_OBJECTS_H

#include "cuda/emulator.h"
#include "cuda/standin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum object_kind { MODULE = 1, FUNCTION, STREAM, GRAPH, EXEC, EVENT };

struct operation {
    enum { LAUNCH, COPY, FILL, RECORD, WAIT, CALL } kind;
    standin_call_fn *call;
    const struct emulated_kernel *kernel;
    struct emulated_grid grid;
    void *args;
    void *to;
    const void *from; /* NULL: args */
    size_t n_bytes;
    int byte;
    struct object *event, *stream; /* of RECORD and WAIT: the stream of the record, and its number */
    long n_record;
    const struct object *exec; /* the graph that it belongs to */
    const void *caller;        /* of the driver's function that enqueued it, or that captured it */
};

struct operations {
    struct operation *items;
    size_t n, room;
    size_t n_done; /* of a stream: carried out */
};

struct object {
    struct object *next;
    enum object_kind kind;
    char *text;                           /* of a module */
    int level;                            /* that its text is for */
    const struct emulated_kernel *kernel; /* of a function */
    int shared_bytes;
    bool is_capturing;            /* a stream */
    struct operations operations; /* of a stream: captured; of a graph */
    struct operations queue;      /* of a stream */
    const void *context;          /* of a stream */
    void *fiber;                  /* of a stream: standin_order.h */
    struct object *module;
    struct object *stream; /* of an event's last record */
    long n_records, n_done, n_queries;
    bool has_time;
    uint64_t done_ns; /* of an event with time: when its last record was carried out */
};

extern struct object *objects; /* all of them */

/* Ends the program. function: of the driver. */
_Noreturn void misuse(const char *function, const char *what);

struct object *object_new(enum object_kind kind);
/* NULL: the handle is none of such an object. */
struct object *object_of(const void *handle, enum object_kind kind);
void object_free(struct object *o);
bool is_any_capturing(void); /* of the streams */

size_t args_bytes_of(const struct operation *op);
/* args are copied. */
void operations_add(struct operations *ops, const struct operation *op, const void *args, size_t args_bytes);
void operations_clear(struct operations *ops);
/* Whether one that is not carried out is a call whose args begin with this pointer. */
bool operations_have_call(const struct operations *ops, const void *user);
/* Forgets what was carried out. */
void operations_drop_done(struct operations *ops);

#endif
