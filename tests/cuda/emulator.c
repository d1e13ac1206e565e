/* Each thread of a block is a fiber with a stack of its own. A warp's step runs its lanes one after another up to the next
 * operation where they meet; then a warp is drawn for the next steps, so that one warp can get far ahead of the others. */
#include "cuda/emulator_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ADDRESS_SANITIZER 1
#endif
#endif

enum {
    MAX_THREADS = EMULATED_THREADS,
    MAX_WARPS = EMULATED_WARPS,
    STACK_BYTES = 64 << 10,
    MAX_SHARED = EMULATED_SHARED,
    MAX_STATIC = 48 << 10,
    MAX_KEYS = 32,
    GUARD_BYTES = 64,
    BURST = 8, /* steps of a warp in a row, on average */
};

enum state { AT_START, AT_EXCHANGE, AT_BARRIER, AT_WAIT, AT_END };

/* A line of the cache: most of a fiber's time is the switch to it. */
struct fiber {
    void *sp;
    const char *at;                          /* the operation */
    bool (*is_over)(const void *, uint32_t); /* of AT_WAIT */
    const void *waits_for;
    uint32_t number;
    enum state state;
    unsigned n_exchanges;
    int n_copies, n_groups; /* copies that are not carried out; groups that are closed */
} __attribute__((aligned(64)));

struct copy {
    void *to;
    u32x4 value;
};

/* The copies of one thread that are not carried out. */
struct copies {
    struct copy items[64];
    int group[64]; /* its number */
};

struct slots {
    uint8_t bytes[2][WARP * EMULATED_EXCHANGE];
};

static struct block {
    const struct emulated_kernel *kernel;
    const struct emulated_grid *grid;
    const void *args;
    int x, y, z, n_threads;
    struct fiber fibers[MAX_THREADS];
    struct slots slots[MAX_WARPS];
    struct copies *copies;
    uint8_t *stacks; /* [MAX_THREADS][STACK_BYTES] */
    uint8_t *shared;
    size_t shared_used;
    struct {
        const void *key;
        size_t at, n_bytes;
    } keys[MAX_KEYS];
    int n_keys;
    size_t dynamic_at;
    size_t static_used; /* the most of any block: the rest of the static memory is full of NaNs */
} block;
int emulated_thread;
static void *scheduler_sp;
static uint64_t random_state = 1;

static void (*tell_before)(bool is_before);
static bool is_before; /* the running block has not waited yet */

void emulated_before_wait(void (*tell)(bool is_before))
{
    tell_before = tell;
}

static void set_before(bool value)
{
    if (tell_before && value != is_before)
        tell_before(value);
    is_before = value;
}

void grid_wait(void)
{
    set_before(false);
}

bool emulated_is_early(void)
{
    return tell_before && is_before;
}

void emulated_seed(uint64_t seed)
{
    random_state = seed * 2654435761 + 1;
}

unsigned emulated_draw(unsigned n)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (unsigned)((random_state >> 33) % n);
}

_Noreturn void emulated_fail(const char *what)
{
    const struct fiber *f = &block.fibers[emulated_thread];
    fprintf(stderr, "kernel %s, block %d %d %d, thread %d, at %s: %s\n", block.kernel->name, block.x, block.y,
            block.z, emulated_thread, f->at ? f->at : "its start", what);
    abort();
}

/* ---- fibers ---- */

static uint8_t *stack_of(int thread)
{
    return block.stacks + (size_t)thread * STACK_BYTES;
}

/* Stores the callee's registers and the stack pointer, and goes on with another stack. */
void emulated_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl emulated_switch\n"
        ".hidden emulated_switch\n"
        "emulated_switch:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n");
enum { SAVED_WORDS = 6 };
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".globl emulated_switch\n"
    ".hidden emulated_switch\n"
    "emulated_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n");
#else
#error "no fibers for this processor"
#endif

#if HAS_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;
static void *scheduler_fake;
#endif

/* A pass runs each lane of a warp once: a lane that stops running passes control to the next, the last with the scheduler. */
static struct {
    int first, begin, next, n_left; /* thread of lane 0, first lane, lane, lanes after the running one */
    bool is_first;                  /* the running lane was entered from the scheduler */
} pass;

static int take_lane(void)
{
    int thread = pass.first + pass.next;
    pass.next = (pass.next + 1) % WARP;
    pass.n_left--;
    return thread;
}

bool emulated_is_first_lane(void)
{
    return pass.n_left == WARP - 1;
}

/* The running lane's stack is another one's now. */
static void arrive(void *fake)
{
    (void)fake;
#if HAS_ADDRESS_SANITIZER
    if (pass.is_first)
        __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
    else
        __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

/* The lanes of a warp meet at one operation. f: of the running lane, which has just come to it; other: of another one. */
static void check_together(const struct fiber *f, const struct fiber *other)
{
    if (f->state != other->state || ((f->state == AT_EXCHANGE || f->state == AT_WAIT) && f->at != other->at &&
                                     strcmp(f->at, other->at) != 0))
        emulated_fail("the lanes of the warp are at different operations");
    if (f->n_exchanges != other->n_exchanges)
        emulated_fail("the lanes of the warp have met a different number of times");
    if (f->state == AT_WAIT && (f->waits_for != other->waits_for || f->number != other->number))
        emulated_fail("the lanes of the warp wait for different phases");
}

static void leave_lane(bool is_last)
{
    struct fiber *f = &block.fibers[emulated_thread], *next = NULL;
    void *fake = NULL;
    check_together(f, &block.fibers[pass.first + pass.begin]);
    if (pass.n_left > 0) {
        emulated_thread = take_lane();
        next = &block.fibers[emulated_thread];
        /* The stack of the lane after it: most of the time was spent waiting for its first line. */
        __builtin_prefetch(block.fibers[pass.first + pass.next].sp);
        __builtin_prefetch((char *)block.fibers[pass.first + pass.next].sp + 64);
        __builtin_prefetch((char *)block.fibers[pass.first + pass.next].sp + 128);
    }
    pass.is_first = false;
#if HAS_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(is_last ? NULL : &fake, next ? stack_of(emulated_thread) : scheduler_stack,
                                   next ? STACK_BYTES : scheduler_stack_bytes);
#endif
    (void)is_last;
    emulated_switch(&f->sp, next ? next->sp : scheduler_sp);
    arrive(fake);
}

static void fiber_main(void)
{
    arrive(NULL);
    block.kernel->run(block.args);
    emulated_asynchronous_thread_end();
    block.fibers[emulated_thread].state = AT_END;
    block.fibers[emulated_thread].at = "its end";
    leave_lane(true);
    abort();
}

/* Runs the lanes of a warp, beginning with lane begin. */
static void run_pass(int first, int begin)
{
    pass.first = first;
    pass.begin = pass.next = begin;
    pass.n_left = WARP;
    pass.is_first = true;
    emulated_thread = take_lane();
    struct fiber *f = &block.fibers[emulated_thread];
#if HAS_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&scheduler_fake, stack_of(emulated_thread), STACK_BYTES);
#endif
    emulated_switch(&scheduler_sp, f->sp);
#if HAS_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
}

static void prepare_fiber(struct fiber *f, int thread)
{
#if HAS_ADDRESS_SANITIZER
    /* The frames of its last thread were never left. */
    __asan_unpoison_memory_region(stack_of(thread), STACK_BYTES);
#endif
    /* Where the used part of a stack begins differs, so that stacks do not share lines of the cache. */
    uintptr_t top = (uintptr_t)stack_of(thread) + STACK_BYTES - (uintptr_t)(thread * 320 % (STACK_BYTES / 2));
#if defined(__x86_64__)
    void **sp =
        (void **)(top - 16); /* the return address is at 8 below a multiple of 16 when the function begins */
    *sp = (void *)(uintptr_t)fiber_main;
    sp -= SAVED_WORDS;
    memset(sp, 0, SAVED_WORDS * sizeof *sp);
    f->sp = sp;
#else
    uint8_t *sp = (uint8_t *)(top - 160);
    memset(sp, 0, 160);
    *(void **)(sp + 88) = (void *)(uintptr_t)fiber_main;
    f->sp = sp;
#endif
    f->state = AT_START;
    f->at = NULL;
    f->n_exchanges = 0;
    f->n_copies = f->n_groups = 0;
}

/* ---- what kernels call ---- */

int block_id(void)
{
    return block.x;
}

int block_id_y(void)
{
    return block.y;
}

int block_id_z(void)
{
    return block.z;
}

int n_blocks(void)
{
    return block.grid->x;
}

void block_sync(void)
{
    block.fibers[emulated_thread].state = AT_BARRIER;
    block.fibers[emulated_thread].at = "block_sync";
    leave_lane(false);
}

const void *emulated_exchange(const char *name, const void *mine, size_t n_bytes)
{
    struct fiber *f = &block.fibers[emulated_thread];
    uint8_t *slots = block.slots[emulated_thread / WARP].bytes[f->n_exchanges++ % 2];
    assert(n_bytes <= EMULATED_EXCHANGE);
    uint8_t *slot = slots + (size_t)(emulated_thread % WARP) * n_bytes;
    if (n_bytes == sizeof(uint32_t)) /* by far most: without a call */
        memcpy(slot, mine, sizeof(uint32_t));
    else
        memcpy(slot, mine, n_bytes);
    f->state = AT_EXCHANGE;
    f->at = name;
    leave_lane(false);
    return slots;
}

void emulated_wait(const char *name, bool (*is_over)(const void *what, uint32_t number), const void *what,
                   uint32_t number)
{
    struct fiber *f = &block.fibers[emulated_thread];
    f->state = AT_WAIT;
    f->at = name;
    f->is_over = is_over;
    f->waits_for = what;
    f->number = number;
    leave_lane(false);
}

void *emulated_shared(const void *key, size_t n_bytes)
{
    for (int i = 0; i < block.n_keys; i++)
        if (block.keys[i].key == key)
            return block.shared + block.keys[i].at;
    size_t size = (n_bytes + 15) / 16 * 16;
    if (block.n_keys == MAX_KEYS ||
        block.shared_used + size - (size_t)block.n_keys * GUARD_BYTES > MAX_STATIC)
        emulated_fail("more than 48 KiB of static shared memory");
    block.keys[block.n_keys].key = key;
    block.keys[block.n_keys].at = block.shared_used;
    block.keys[block.n_keys++].n_bytes = size;
    void *memory = block.shared + block.shared_used;
    block.shared_used += size + GUARD_BYTES;
    return memory;
}

void *emulated_dynamic_shared(void)
{
    return block.shared + block.dynamic_at;
}

size_t emulated_dynamic_bytes(void)
{
    return block.grid->shared_bytes;
}

void copy_16(void *shared, const void *from, bool is_there)
{
    struct fiber *f = &block.fibers[emulated_thread];
    struct copies *c = &block.copies[emulated_thread];
    if (((uintptr_t)shared | (is_there ? (uintptr_t)from : 0)) % 16 != 0)
        emulated_fail("copy_16 of an address that is no multiple of 16");
    if (f->n_copies == (int)(sizeof c->items / sizeof *c->items))
        emulated_fail("more than 64 copies before copy_wait");
    struct copy item = { .to = shared };
    if (is_there)
        memcpy(&item.value, from, sizeof item.value);
    c->items[f->n_copies] = item;
    c->group[f->n_copies++] = f->n_groups;
}

void copy_commit(void)
{
    block.fibers[emulated_thread].n_groups++;
}

void copy_wait(int n)
{
    struct fiber *f = &block.fibers[emulated_thread];
    struct copies *c = &block.copies[emulated_thread];
    int n_left = 0;
    for (int i = 0; i < f->n_copies; i++) {
        if (c->group[i] < f->n_groups - n) {
            memcpy(c->items[i].to, &c->items[i].value, sizeof c->items[i].value);
        } else {
            c->items[n_left] = c->items[i];
            c->group[n_left++] = c->group[i];
        }
    }
    f->n_copies = n_left;
}

/* ---- blocks ---- */

static void check_guards(void)
{
    static const uint8_t full[GUARD_BYTES] = { [0 ... GUARD_BYTES - 1] = 0xff };
    for (int i = 0; i < block.n_keys; i++)
        if (memcmp(block.shared + block.keys[i].at + block.keys[i].n_bytes, full, GUARD_BYTES) != 0)
            emulated_fail("shared memory was written past the end of an array");
    if (memcmp(block.shared + block.dynamic_at + block.grid->shared_bytes, full, GUARD_BYTES) != 0)
        emulated_fail("dynamic shared memory was written past its end");
}

static bool can_run(int warp)
{
    const struct fiber *f = &block.fibers[warp * WARP];
    emulated_thread = warp * WARP;
    return f->state == AT_START || f->state == AT_EXCHANGE ||
           (f->state == AT_WAIT && f->is_over(f->waits_for, f->number));
}

static void run_block(void)
{
    int n_warps = block.n_threads / WARP, warp = (int)emulated_draw((unsigned)n_warps);
    /* The arrays keep their places: the keys were met in the first block, in any order of its warps. */
    block.n_keys = 0;
    block.shared_used = 0;
    block.dynamic_at = MAX_STATIC + MAX_KEYS * GUARD_BYTES;
    memset(block.shared, 0xff, block.static_used);
    memset(block.shared + block.dynamic_at, 0xff, block.grid->shared_bytes + GUARD_BYTES);
    for (int t = 0; t < block.n_threads; t++) {
        emulated_thread = t;
        prepare_fiber(&block.fibers[t], t);
    }
    emulated_asynchronous_begin(block.n_threads);
    set_before(true);
    for (;;) {
        int runnable[MAX_WARPS], n = 0, n_ended = 0, n_waiting = 0;
        if (can_run(warp) && emulated_draw(BURST) != 0) {
            run_pass(warp * WARP, (int)emulated_draw(WARP));
            continue;
        }
        for (int w = 0; w < n_warps; w++) {
            const struct fiber *f = &block.fibers[w * WARP];
            if (can_run(w))
                runnable[n++] = w;
            n_ended += f->state == AT_END;
            n_waiting += f->state == AT_WAIT;
        }
        if (n > 0) {
            warp = runnable[emulated_draw((unsigned)n)];
            run_pass(warp * WARP, (int)emulated_draw(WARP));
            continue;
        }
        if (n_waiting > 0 && emulated_asynchronous_go_on())
            continue;
        if (n_waiting > 0)
            emulated_fail("a warp waits for a phase that never ends");
        if (n_ended == n_warps)
            break;
        if (n_ended > 0)
            emulated_fail("some threads ended while others wait at block_sync");
        for (int t = 0; t < block.n_threads; t++)
            block.fibers[t].state = AT_EXCHANGE;
    }
    emulated_asynchronous_end();
    set_before(false);
    check_guards();
    block.static_used = block.shared_used > block.static_used ? block.shared_used : block.static_used;
}

void emulate(const struct emulated_kernel *kernel, const struct emulated_grid *grid, const void *args)
{
    block.kernel = kernel;
    block.grid = grid;
    block.args = args;
    block.n_threads = grid->n_threads;
    if (!block.shared) {
        block.shared = aligned_alloc(64, 3 * MAX_SHARED);
        block.copies = calloc(MAX_THREADS, sizeof *block.copies);
        block.stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(block.shared && block.copies && block.stacks != MAP_FAILED);
        memset(block.shared, 0xff, 3 * MAX_SHARED);
    }
    if (grid->n_threads != kernel->n_threads || grid->n_threads > MAX_THREADS || grid->n_threads % WARP != 0)
        emulated_fail("the launch has another number of threads than the kernel");
    if (grid->shared_bytes > MAX_SHARED)
        emulated_fail("more than 227 KiB of shared memory");
    int64_t n = (int64_t)grid->x * grid->y * grid->z;
    /* Blocks in random order: i -> (i * step + offset) % n, with a step that has no factor of n. */
    int64_t step = n > 1 ? 1 + emulated_draw((unsigned)(n < 1 << 30 ? n - 1 : 1 << 30)) : 1,
            offset = n > 0 ? emulated_draw((unsigned)n) : 0;
    for (int64_t a = step, b = n; n > 1;) { /* greatest common divisor */
        int64_t rest = a % b;
        a = b;
        b = rest;
        if (b != 0)
            continue;
        if (a == 1)
            break;
        a = ++step;
        b = n;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (i * step + offset) % n;
        block.x = (int)(at % grid->x);
        block.y = (int)(at / grid->x % grid->y);
        block.z = (int)(at / grid->x / grid->y);
        run_block();
    }
}
