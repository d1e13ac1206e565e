/* What the core of the CUDA backend keeps: the driver's objects, the list of a step's launches, and the graphs. Only cuda.c,
 * cuda_memory.c, cuda_step.c, cuda_graph.c, cuda_modules.c and cuda_kv_copies.c include it. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_STATE_H
#define TUTTI_BACKEND_CUDA_CUDA_STATE_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/driver.h"
#include "backend/page_tables.h"

#include <stdatomic.h>
#include <string.h>

enum {
    N_CUDA_FILES = 0
#define CUDA_FILE(file) +1 /* NOLINT(bugprone-macro-parentheses): a term of a sum */
#define CUDA_KERNEL(name)
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
};

enum {
    LIST_BYTES = 2 << 20,      /* of a step's launches; more are handed to the card in several pieces */
    N_GRAPHS = 256,            /* of different steps, or pieces of steps, that are remembered */
    STEP_DATA_BYTES = 4 << 20, /* of the operations, besides the arrays of struct step */
    MAX_CHANGES = 32 << 10,    /* entries of page tables that a step's copy carries */
    DOWNLOAD_BYTES = 4 << 20,  /* of one step; larger downloads wait for the card */
    MAX_DOWNLOADS = 64,
    N_BUSY = 8,               /* intervals of work whose end is not known yet */
    MAX_STEP_DATA = 64,       /* arrays that are recognized when they are given again */
    CROSSING_BYTES = 4 << 20, /* of pinned memory in each direction, for rows that cross within a step */
};

enum item_kind { ITEM_LAUNCH, ITEM_COPY, ITEM_ZERO, ITEM_UPLOAD, ITEM_DOWNLOAD, ITEM_CALL };

/* Adds work to the stream by calls of a library. False: it failed. */
typedef bool cuda_call_fn(struct cuda_backend *cuda, const void *args);

/* An item of the list; a launch's arguments follow it, padded to a multiple of 8 bytes. Items have no undefined bytes, since
 * lists are compared byte by byte. */
struct item {
    uint32_t kind, n_bytes; /* of the arguments */
    union {
        struct {
            uint32_t kernel, x, y, z, n_threads, shared_bytes;
        } launch;
        struct {
            const void *from;
            void *to;
            uint64_t n_bytes;
        } copy;
        cuda_call_fn *call; /* with the arguments that follow */
    };
};

struct list {
    uint8_t *bytes; /* [LIST_BYTES] */
    size_t n_bytes;
    size_t last; /* place of the last item, if there is one */
};

/* A list that was seen. */
struct graph {
    uint8_t *bytes; /* [LIST_BYTES] */
    size_t n_bytes; /* 0: none */
    uint64_t hash, last_use;
    cuda_graph_exec exec; /* NULL: seen once, or the driver made none */
    bool is_hopeless;     /* the driver could not make one */
};

struct download {
    float *host;
    size_t offset, n_bytes; /* in pinned memory */
};

/* Events of the stream that the host waits for. */
enum cuda_mark { MARK_STEP, MARK_SAMPLES, N_MARKS };

struct cuda_card {
    cuda_device device;
    struct tutti_device facts; /* free_bytes and the seconds: 0 */
    int shared_bytes;          /* of a block, at most */
};

struct cuda_state {
    struct cuda_card card;
    cuda_context context;
    cuda_stream stream;
    cuda_module modules[N_CUDA_FILES + 1],
        cut_modules[N_CUDA_KERNELS + 1];         /* files, and kernels by themselves */
    cuda_function functions[N_CUDA_KERNELS + 1]; /* NULL: not loaded */
    _Atomic uint64_t loading_ns;                 /* that the driver took for them so far */
    cuda_event marks[N_MARKS];
    bool has_context;
    cuda_event busy_events[2 * N_BUSY]; /* begin and end of intervals, a ring of pairs */
    int first_busy, n_busy;             /* intervals that are not counted yet */
    bool is_busy;                       /* an interval has begun */
    _Atomic uint64_t busy_ns;
    _Atomic(enum tutti_status) failure; /* the first; set after error */
    struct tutti_error error;

    bool in_step;
    struct list list;
    bool is_cut; /* the list is the rest of one that was too long: it is no graph */
    struct graph graphs[N_GRAPHS];
    uint64_t n_uses, n_replays; /* steps, and those that a graph carried out */

    /* The data of a step: its arrays, then what operations gave, then changes of page tables. Two steps may be in flight,
     * so the host writes to two buffers in turn, of which the card has read the one when the next step begins: the step
     * before the last one was waited for. The card has one: the copy to it follows the launches of the step before. */
    uint8_t *buffers[2];       /* pinned */
    int buffer;                /* of the running step */
    int n_in_flight;           /* steps that were submitted and not waited for; 2 at most */
    int n_marked;              /* of these, those before MARK_SAMPLES */
    uint8_t *data, *card_data; /* data of the buffer, and on the card */
    size_t data_room, n_data, n_sent;
    struct step_data {
        const void *host;
        size_t n_bytes, offset;
    } known_data[MAX_STEP_DATA];
    int n_known_data;

    struct page_tables tables[2]; /* as the card has them: [0] of pages, [1] of window slots */
    int32_t *card_tables[2]; /* [n_slots + 1][max_pages]; the last row is that of padding. NULL: none yet */
    struct table_change *changes; /* host, [MAX_CHANGES] */
    int n_changes;
    size_t changes_room; /* bytes of data and card_data after data_room */
    int32_t *lengths;    /* [max_rows]: pages of the sequences of a step */

    /* Of a card that computes only a part of a step: pinned, [2][CROSSING_BYTES], to the card and from it; NULL: it
     * computes all. */
    uint8_t *crossing;
    size_t n_crossed; /* bytes to the card that it may still have to read */

    uint8_t *downloads_memory; /* pinned, [DOWNLOAD_BYTES] */
    size_t n_downloaded;
    struct download downloads[MAX_DOWNLOADS];
    int n_downloads;
};

/* The rows that are computed for n rows. */
int cuda_bucket(int n);

/* Keeps the first failure. Returns whether result is CUDA_OK. */
bool cuda_is_ok(struct cuda_backend *cuda, cuda_result result, const char *doing);
void cuda_fail(struct cuda_backend *cuda, enum tutti_status status, const char *text);
void cuda_keep_error(struct cuda_backend *cuda, const struct tutti_error *err);
/* The calling thread's calls of the driver are for this card from now on. */
void cuda_enter(struct cuda_backend *cuda);

/* ---- cuda_device.c ---- */
/* The card of this number, or with CUDA_ANY_CARD the one with most memory among those that the kernels run on. */
MUST_CHECK enum tutti_status cuda_card_choose(const struct cuda_driver *driver, int ordinal,
                                              struct cuda_card *out, struct tutti_error *err);
void cuda_describe(const struct backend *be, struct tutti_device *out);

/* ---- cuda_busy.c: the time in which the card works ---- */
MUST_CHECK enum tutti_status cuda_busy_open(struct cuda_backend *cuda, struct tutti_error *err);
void cuda_busy_close(struct cuda_backend *cuda);
/* Adds the time of what is done by now. */
void cuda_busy_count(struct cuda_backend *cuda);

/* ---- cuda_modules.c ---- */
void cuda_modules_unload(struct cuda_backend *cuda);

/* ---- cuda_graph.c ---- */
/* Adds an item with arguments; hands the list to the card first, if it is full. */
void cuda_list_add(struct cuda_backend *cuda, const struct item *item, const void *args);
/* Adds a call to the running step; between steps: calls at once. */
void cuda_list_call(struct cuda_backend *cuda, cuda_call_fn *call, const void *args, size_t n_bytes);
/* Carries out an item at once. */
void cuda_item_run(struct cuda_backend *cuda, const struct item *item, const void *args);
/* Hands the list to the card, and empties it. is_whole: it is all of a step, or of a piece between two crossings, which
 * may be a graph; else there was no room for more. */
void cuda_list_run(struct cuda_backend *cuda, bool is_whole);
void cuda_graphs_clear(struct cuda_backend *cuda);

/* ---- cuda_step.c ---- */
bool cuda_step_open(struct cuda_backend *cuda); /* false: out of memory */
void cuda_step_close(struct cuda_backend *cuda);
MUST_CHECK enum tutti_status cuda_step_reserve(struct cuda_backend *cuda, int max_rows,
                                               struct tutti_error *err);
/* Sends what the step has given so far. */
void cuda_step_send(struct cuda_backend *cuda);
enum tutti_status cuda_reserve_tables(struct backend *be, int n_slots, int max_pages,
                                      struct tutti_error *err);
void cuda_step_begin(struct backend *be, const struct step *step);
void cuda_step_submit(struct backend *be);
void cuda_step_wait(struct backend *be);
bool cuda_step_is_done(struct backend *be);
void cuda_download(struct backend *be, float *host, struct floats src, size_t n_floats);

/* ---- cuda_memory.c ---- */
struct floats cuda_alloc(struct backend *be, size_t n_floats);
struct floats cuda_alloc_constant(struct backend *be, const float *values, size_t n_floats);
void cuda_dealloc(struct backend *be, struct floats floats);
void cuda_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats);
void cuda_fetch(struct backend *be, float *host, struct floats src, size_t n_floats);
bool cuda_crossing_open(struct cuda_backend *cuda); /* false: out of memory */

/* ---- cuda.c ---- */
void cuda_free(struct backend *be);
enum tutti_status cuda_reserve(struct backend *be, int max_rows, struct tutti_error *err);
void cuda_bind_caller(struct backend *be);
void cuda_run(struct backend *be, team_fn *fn, void *arg);
bool cuda_share_threads(struct backend *be, struct backend *other);
uint64_t cuda_memory_left(const struct backend *be);
enum tutti_status cuda_check_operation(const struct backend *be, struct tutti_error *err);

#endif
