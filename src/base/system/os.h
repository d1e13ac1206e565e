/* Functions that differ between Linux (os_linux.c) and macOS (os_macos.c). No other file depends on the system, except
 * kernels/arm/detect.c, which detects the processor's instruction sets. */
#ifndef TUTTI_BASE_SYSTEM_OS_H
#define TUTTI_BASE_SYSTEM_OS_H

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* ---- threads ---- */
void os_name_thread(const char *name); /* at most 15 bytes */
/* Lowers the priority of the calling thread, by so many steps of the nice value. */
void os_lower_thread(int nice);
/* Whether the calling thread runs only on cores that are idle. Not while it is in a system call that takes a lock of
 * the kernel: on busy cores it would keep that lock for seconds. */
void os_idle_thread(bool idle);

int os_n_cores(void); /* that this process may run on; unknown: 1 */
/* macOS cannot bind threads to cores: a set has the single member 0, which means all cores. */
#if defined(__APPLE__)
typedef struct {
    unsigned char has[1];
} cpu_set_t;
enum { CPU_SETSIZE = 1 };
#define CPU_ZERO(set)        ((set)->has[0] = 0)
#define CPU_SET(core, set)   ((set)->has[core] = 1)
#define CPU_ISSET(core, set) ((set)->has[core] != 0)
#define CPU_COUNT(set)       ((int)(set)->has[0])
#define CPU_OR(out, a, b)    ((out)->has[0] = (a)->has[0] | (b)->has[0])
#define CPU_AND(out, a, b)   ((out)->has[0] = (a)->has[0] & (b)->has[0])
#endif
void os_thread_cores(cpu_set_t *cores); /* that the calling thread may run on; empty: unknown */
void os_bind_thread(const cpu_set_t *cores);

/* A semaphore for the threads of this process. macOS has no unnamed POSIX semaphores. */
union os_semaphore {
    sem_t posix;
    void *dispatch;
};
bool os_semaphore_init(union os_semaphore *semaphore); /* to 0. False: errno has the reason */
void os_semaphore_clear(union os_semaphore *semaphore);
void os_semaphore_post(union os_semaphore *semaphore);
void os_semaphore_wait(union os_semaphore *semaphore);

/* A condition variable with timeouts by the clock of clock_now_us(). Both return an error number as pthread_*(). */
int os_condition_init(pthread_cond_t *condition);
int os_condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t end_us);

/* ---- events: a descriptor that is readable while the event is set ---- */
struct os_event {
    int read_fd, write_fd; /* equal where the system has eventfd() */
};
#define OS_NO_EVENT                                                                                          \
    {                                                                                                        \
        -1, -1                                                                                               \
    }
bool os_event_open(struct os_event *event); /* false: errno has the reason, and *event is OS_NO_EVENT */
void os_event_close(struct os_event *event);
void os_event_set(const struct os_event *event);   /* async-signal-safe; never blocks */
void os_event_reset(const struct os_event *event); /* never blocks */

/* ---- sockets and processes ---- */

/* As socket() and accept(), with a descriptor that is non-blocking and closed by exec. */
int os_socket(int family, int type);
int os_accept(int listener);
/* The option of IPPROTO_TCP for the idle seconds before keep-alive probes. */
int os_tcp_idle_option(void);

/* Two connected sockets that preserve message boundaries. Reading fails or returns 0 after the other side is closed. */
bool os_message_pair(int fds[2]);
/* Waits until fd is readable, with the signal mask *blocked. -1: errno has the reason, EINTR after a signal. */
int os_wait_input(int fd, const sigset_t *blocked);
/* Sends the calling process the signal when its parent ends. macOS: does nothing. */
void os_end_with_parent(int signal);

/* ---- files ---- */
struct timespec os_modified(const struct stat *info);
/* Reserves a file's blocks. False: errno has the reason, ENOTSUP where the file system cannot. */
bool os_reserve(int fd, uint64_t n_bytes);
bool os_rename_new(const char *from, const char *to); /* fails with EEXIST if to exists */
bool os_exchange(const char *path, const char *other);
int os_memory_file(const char *name); /* without a path; -1: unsupported, or errno has the reason */

/* ---- memory ---- */
/* Places whole pages on the NUMA nodes of a mask of n_bits bits: preferred, or interleaved. False: not permitted or
 * unsupported. */
bool os_place_memory(void *pages, size_t n_bytes, const unsigned long *mask, int n_bits, bool in_turn);
enum { OS_HUGE_PAGE = 2 << 20 }; /* bytes */
/* Asks for huge pages in this memory, which starts at a multiple of OS_HUGE_PAGE: a hint. */
void os_prefer_huge(void *memory, size_t n_bytes);
/* Memory for free(), in huge pages where the system has them: for what is written once and read once, where the faults of
 * small pages would take longer. NULL: out of memory. */
void *os_alloc_huge(size_t n_bytes);
size_t os_page_bytes(void);                  /* of virtual memory: 4, 16 or 64 KiB */
uint64_t os_memory_free(void);               /* free bytes of the machine; 0: unknown */
void os_forget(void *bytes, size_t n_bytes); /* zeroes; the compiler cannot leave it out */

/* ---- sorting ---- */
void os_sort(void *items, size_t n, size_t item_bytes,
             int (*compare)(const void *a, const void *b, void *user), void *user);

#endif
