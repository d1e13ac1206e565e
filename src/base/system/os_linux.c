#include "base/system/os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- threads ---- */

void os_name_thread(const char *name)
{
    pthread_setname_np(pthread_self(), name);
}

void os_lower_thread(int nice)
{
    /* Of a process that was started with a nice value, the engine's threads have it, too. If not permitted, priorities stay equal. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + nice);
}

void os_idle_thread(bool idle)
{
    struct sched_param none = { 0 };
    pthread_setschedparam(pthread_self(), idle ? SCHED_IDLE : SCHED_OTHER, &none);
}

int os_n_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

void os_thread_cores(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    if (sched_getaffinity(0, sizeof *cores, cores) != 0)
        CPU_ZERO(cores);
}

void os_bind_thread(const cpu_set_t *cores)
{
    pthread_setaffinity_np(pthread_self(), sizeof *cores, cores);
}

bool os_semaphore_init(union os_semaphore *semaphore)
{
    return sem_init(&semaphore->posix, 0, 0) == 0;
}

void os_semaphore_clear(union os_semaphore *semaphore)
{
    sem_destroy(&semaphore->posix);
}

void os_semaphore_post(union os_semaphore *semaphore)
{
    sem_post(&semaphore->posix);
}

void os_semaphore_wait(union os_semaphore *semaphore)
{
    while (sem_wait(&semaphore->posix) != 0 && errno == EINTR)
        ;
}

int os_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* that of clock_now_us() */
    if (rc == 0)
        rc = pthread_cond_init(condition, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
}

int os_condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t end_us)
{
    struct timespec end = { .tv_sec = (time_t)(end_us / 1000000),
                            .tv_nsec = (long)(end_us % 1000000) * 1000 };
    return pthread_cond_timedwait(condition, lock, &end);
}

/* ---- events ---- */

bool os_event_open(struct os_event *event)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *event = (struct os_event){ fd, fd };
    return fd >= 0;
}

void os_event_close(struct os_event *event)
{
    if (event->read_fd >= 0)
        close(event->read_fd);
    *event = (struct os_event)OS_NO_EVENT;
}

void os_event_set(const struct os_event *event)
{
    uint64_t one = 1;
    ssize_t n = write(event->write_fd, &one, sizeof one);
    (void)n; /* fails only if the counter is full: the event is set then */
}

void os_event_reset(const struct os_event *event)
{
    uint64_t count;
    ssize_t n = read(event->read_fd, &count, sizeof count);
    (void)n; /* fails only if the event is not set */
}

/* ---- sockets and processes ---- */

int os_socket(int family, int type)
{
    return socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int os_accept(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

int os_tcp_idle_option(void)
{
    return TCP_KEEPIDLE;
}

bool os_message_pair(int fds[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0;
}

int os_wait_input(int fd, const sigset_t *blocked)
{
    struct pollfd poll = { .fd = fd, .events = POLLIN };
    return ppoll(&poll, 1, NULL, blocked);
}

void os_end_with_parent(int signal)
{
    (void)prctl(PR_SET_PDEATHSIG, signal);
}

/* ---- files ---- */

struct timespec os_modified(const struct stat *info)
{
    return info->st_mtim;
}

bool os_reserve(int fd, uint64_t n_bytes)
{
    int result;
    while ((result = fallocate(fd, 0, 0, (off_t)n_bytes)) != 0 && errno == EINTR)
        ;
    if (result != 0 && errno == ENOSYS)
        errno = ENOTSUP;
    return result == 0;
}

bool os_rename_new(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0;
}

bool os_exchange(const char *path, const char *other)
{
    return renameat2(AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE) == 0;
}

int os_memory_file(const char *name)
{
    return memfd_create(name, MFD_CLOEXEC);
}

/* ---- memory ---- */

/* mbind(2), which glibc does not offer; the mask has one bit more than the kernel's count, as its manual page
 * explains. */
bool os_place_memory(void *pages, size_t n_bytes, const unsigned long *mask, int n_bits, bool in_turn)
{
    return syscall(SYS_mbind, pages, n_bytes, in_turn ? MPOL_INTERLEAVE : MPOL_PREFERRED, mask,
                   (unsigned long)n_bits + 1, MPOL_MF_MOVE) == 0;
}

void os_prefer_huge(void *memory, size_t n_bytes)
{
    (void)madvise(memory, n_bytes, MADV_HUGEPAGE); /* fails where the kernel has none: small pages work too */
}

void *os_alloc_huge(size_t n_bytes)
{
    const size_t page = OS_HUGE_PAGE;
    if (n_bytes < page || n_bytes > SIZE_MAX - page)
        return malloc(n_bytes ? n_bytes : 1);
    size_t size = (n_bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, size);
    if (memory)
        os_prefer_huge(memory, size);
    return memory;
}

size_t os_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

uint64_t os_memory_free(void)
{
    long n_pages = sysconf(_SC_AVPHYS_PAGES);
    return n_pages > 0 ? (uint64_t)n_pages * os_page_bytes() : 0;
}

void os_forget(void *bytes, size_t n_bytes)
{
    explicit_bzero(bytes, n_bytes);
}

/* ---- sorting ---- */

void os_sort(void *items, size_t n, size_t item_bytes,
             int (*compare)(const void *a, const void *b, void *user), void *user)
{
    qsort_r(items, n, item_bytes, compare, user);
}
