#include "base/system/os.h"

#include <dispatch/dispatch.h>
#include <errno.h>
#include <fcntl.h>
#include <mach/mach.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread/qos.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- threads ---- */

void os_name_thread(const char *name)
{
    pthread_setname_np(name);
}

/* macOS has no nice values of threads, but quality-of-service classes. */
void os_lower_thread(int nice)
{
    (void)nice;
    pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
}

void os_idle_thread(bool idle)
{
    pthread_set_qos_class_self_np(idle ? QOS_CLASS_BACKGROUND : QOS_CLASS_DEFAULT, 0);
}

int os_n_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < 4096 ? (int)n : 1;
}

void os_thread_cores(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    CPU_SET(0, cores);
}

void os_bind_thread(const cpu_set_t *cores)
{
    (void)cores;
}

bool os_semaphore_init(union os_semaphore *semaphore)
{
    semaphore->dispatch = dispatch_semaphore_create(0);
    if (!semaphore->dispatch)
        errno = ENOMEM;
    return semaphore->dispatch != NULL;
}

void os_semaphore_clear(union os_semaphore *semaphore)
{
    dispatch_release((dispatch_semaphore_t)semaphore->dispatch);
}

void os_semaphore_post(union os_semaphore *semaphore)
{
    dispatch_semaphore_signal((dispatch_semaphore_t)semaphore->dispatch);
}

void os_semaphore_wait(union os_semaphore *semaphore)
{
    dispatch_semaphore_wait((dispatch_semaphore_t)semaphore->dispatch, DISPATCH_TIME_FOREVER);
}

int os_condition_init(pthread_cond_t *condition)
{
    return pthread_cond_init(condition, NULL);
}

/* Condition variables have no monotonic clock, but relative timeouts. */
int os_condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t end_us)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    uint64_t left_us = end_us > now_us ? end_us - now_us : 0;
    struct timespec left = { .tv_sec = (time_t)(left_us / 1000000),
                             .tv_nsec = (long)(left_us % 1000000) * 1000 };
    return left_us == 0 ? ETIMEDOUT : pthread_cond_timedwait_relative_np(condition, lock, &left);
}

/* ---- events: a pipe, which has unread bytes while the event is set ---- */

static bool set_flags(int fd)
{
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on); /* fails unless fd is a socket */
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

static int close_failed(int fd)
{
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

bool os_event_open(struct os_event *event)
{
    int fds[2];
    *event = (struct os_event)OS_NO_EVENT;
    if (pipe(fds) != 0)
        return false;
    if (!set_flags(fds[0]) || !set_flags(fds[1])) {
        (void)close_failed(fds[0]);
        (void)close_failed(fds[1]);
        return false;
    }
    *event = (struct os_event){ fds[0], fds[1] };
    return true;
}

void os_event_close(struct os_event *event)
{
    if (event->read_fd >= 0) {
        close(event->read_fd);
        close(event->write_fd);
    }
    *event = (struct os_event)OS_NO_EVENT;
}

void os_event_set(const struct os_event *event)
{
    ssize_t n = write(event->write_fd, "", 1);
    (void)n; /* fails only if the pipe is full: then it is set */
}

void os_event_reset(const struct os_event *event)
{
    char bytes[256];
    while (read(event->read_fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
}

/* ---- sockets and processes ---- */

int os_socket(int family, int type)
{
    int fd = socket(family, type, 0);
    return fd < 0 || set_flags(fd) ? fd : close_failed(fd);
}

int os_accept(int listener)
{
    int fd = accept(listener, NULL, NULL);
    return fd < 0 || set_flags(fd) ? fd : close_failed(fd);
}

int os_tcp_idle_option(void)
{
    return TCP_KEEPALIVE;
}

/* Local sockets have no SOCK_SEQPACKET. With datagrams, reading after the other side is closed fails (ECONNRESET). */
bool os_message_pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) != 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (fcntl(fds[i], F_SETFD, FD_CLOEXEC) != 0) {
            (void)close_failed(fds[0]);
            (void)close_failed(fds[1]);
            return false;
        }
    return true;
}

int os_wait_input(int fd, const sigset_t *blocked)
{
    fd_set set;
    if (fd < 0 || fd >= FD_SETSIZE) {
        errno = EBADF;
        return -1;
    }
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return pselect(fd + 1, &set, NULL, NULL, NULL, blocked);
}

void os_end_with_parent(int signal)
{
    (void)signal;
}

/* ---- files ---- */

struct timespec os_modified(const struct stat *info)
{
    return info->st_mtimespec;
}

bool os_reserve(int fd, uint64_t n_bytes)
{
    fstore_t wanted = { .fst_flags = F_ALLOCATEALL,
                        .fst_posmode = F_PEOFPOSMODE,
                        .fst_length = (off_t)n_bytes };
    return fcntl(fd, F_PREALLOCATE, &wanted) == 0;
}

bool os_rename_new(const char *from, const char *to)
{
    return renamex_np(from, to, RENAME_EXCL) == 0;
}

bool os_exchange(const char *path, const char *other)
{
    return renamex_np(path, other, RENAME_SWAP) == 0;
}

int os_memory_file(const char *name)
{
    (void)name;
    errno = ENOTSUP;
    return -1;
}

/* ---- memory ---- */

bool os_place_memory(void *pages, size_t n_bytes, const unsigned long *mask, int n_bits, bool in_turn)
{
    (void)pages;
    (void)n_bytes;
    (void)mask;
    (void)n_bits;
    (void)in_turn;
    return false;
}

void os_prefer_huge(void *memory, size_t n_bytes)
{
    (void)memory;
    (void)n_bytes;
}

void *os_alloc_huge(size_t n_bytes)
{
    return malloc(n_bytes ? n_bytes : 1);
}

size_t os_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Free pages, and inactive ones that can be reclaimed. */
uint64_t os_memory_free(void)
{
    vm_statistics64_data_t counts;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    bool ok = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&counts, &n) == KERN_SUCCESS;
    mach_port_deallocate(mach_task_self(), host);
    return ok ? ((uint64_t)counts.free_count + counts.inactive_count) * os_page_bytes() : 0;
}

void os_forget(void *bytes, size_t n_bytes)
{
    memset_s(bytes, n_bytes, 0, n_bytes);
}

/* ---- sorting ---- */

struct order {
    int (*compare)(const void *a, const void *b, void *user);
    void *user;
};

static int compare_by(void *arg, const void *a, const void *b)
{
    const struct order *order = arg;
    return order->compare(a, b, order->user);
}

void os_sort(void *items, size_t n, size_t item_bytes,
             int (*compare)(const void *a, const void *b, void *user), void *user)
{
    struct order order = { compare, user };
    qsort_r(items, n, item_bytes, &order, compare_by);
}
