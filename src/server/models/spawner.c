#include "server/models/spawner.h"

#include "base/log.h"
#include "base/system/os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct spawner {
    int fd;
    pid_t pid;
};

struct running {
    LIST_ENTRY(running) link;
    pid_t pid;
    int model;
    uint32_t generation;
};

/* The spawner's process. */
struct nursery {
    LIST_HEAD(, running) children;
    int fd;
    spawner_run *run;
    void *user;
    sigset_t usual; /* the signal mask outside of the spawner */
};

static void tell(int fd, const struct spawner_event *event)
{
    while (send(fd, event, sizeof *event, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void spawner_child_ready(const struct spawner_child *child, uint64_t memory_bytes,
                         const struct server_traits *traits)
{
    tell(child->fd, &(struct spawner_event){ .news = CHILD_READY,
                                             .model = child->order.model,
                                             .generation = child->order.generation,
                                             .memory_bytes = memory_bytes,
                                             .traits = *traits });
}

/* ---- the spawner's process ---- */

static void on_child(int number)
{
    (void)number; /* only interrupts os_wait_input() */
}

/* Standard input and output: the server's are not for children. */
static void leave_standard_streams(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(null, STDOUT_FILENO);
        close(null);
    }
}

static _Noreturn void be_child(const struct nursery *nursery, const struct spawner_order *order)
{
    const struct spawner_child child = { nursery->fd, *order };
    struct tutti_error err = { 0 };
    os_end_with_parent(SIGTERM);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &nursery->usual, NULL);
    leave_standard_streams();
    enum tutti_status st = nursery->run(nursery->user, &child, &err);
    if (st != TUTTI_OK) {
        struct spawner_event event = { .news = CHILD_FAILED,
                                       .model = order->model,
                                       .generation = order->generation };
        snprintf(event.text, sizeof event.text, "%s", err.text);
        tell(nursery->fd, &event);
    }
    fflush(NULL);
    _exit(st == TUTTI_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

static void spawn(struct nursery *nursery, const struct spawner_order *order)
{
    struct running *running = calloc(1, sizeof *running);
    pid_t pid = running ? fork() : -1;
    if (pid == 0)
        be_child(nursery, order);
    if (pid < 0) {
        struct spawner_event event = { .news = CHILD_FAILED,
                                       .model = order->model,
                                       .generation = order->generation };
        snprintf(event.text, sizeof event.text, "cannot start a process: %s", strerror(errno));
        tell(nursery->fd, &event);
        event.news = CHILD_ENDED;
        tell(nursery->fd, &event);
        free(running);
        return;
    }
    *running = (struct running){ .pid = pid, .model = order->model, .generation = order->generation };
    LIST_INSERT_HEAD(&nursery->children, running, link);
}

/* A process that was not waited for keeps its number, so a signal reaches no stranger. */
static void take_order(struct nursery *nursery, const struct spawner_order *order)
{
    struct running *running;
    if (order->signal == 0) {
        spawn(nursery, order);
        return;
    }
    LIST_FOREACH (running, &nursery->children, link)
        if (running->model == order->model && running->generation == order->generation)
            (void)kill(running->pid, order->signal);
}

static void reap(struct nursery *nursery)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct running *running = LIST_FIRST(&nursery->children);
        while (running && running->pid != pid)
            running = LIST_NEXT(running, link);
        if (!running)
            continue;
        tell(nursery->fd, &(struct spawner_event){ .news = CHILD_ENDED,
                                                   .model = running->model,
                                                   .generation = running->generation,
                                                   .status = status });
        LIST_REMOVE(running, link);
        free(running);
    }
}

static _Noreturn void be_spawner(struct nursery *nursery)
{
    static const int IGNORED[] = { SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2 };
    struct sigaction action = { .sa_handler = on_child };
    struct spawner_order order;
    struct running *running;
    sigset_t child;
    (void)setpgid(0, 0);
    for (size_t i = 0; i < sizeof IGNORED / sizeof *IGNORED; i++)
        signal(IGNORED[i], SIG_IGN);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &nursery->usual);
    sigaction(SIGCHLD, &action, NULL);
    for (;;) {
        reap(nursery);
        if (os_wait_input(nursery->fd, &nursery->usual) < 0)
            continue; /* EINTR: a child has ended */
        ssize_t n = recv(nursery->fd, &order, sizeof order, 0);
        if (n == (ssize_t)sizeof order)
            take_order(nursery, &order);
        else if (n == 0 || (n < 0 && errno != EINTR))
            break; /* the server has ended */
    }
    LIST_FOREACH (running, &nursery->children, link)
        (void)kill(running->pid, SIGTERM);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    _exit(EXIT_SUCCESS);
}

/* ---- the server's process ---- */

enum tutti_status spawner_open(struct spawner **out, spawner_run *run, void *user, struct tutti_error *err)
{
    int fds[2] = { -1, -1 };
    struct spawner *spawner = calloc(1, sizeof *spawner);
    if (!spawner || !os_message_pair(fds)) {
        free(spawner);
        return error_set(err, TUTTI_E_IO, "cannot open a socket to the models' processes: %s",
                         strerror(errno));
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct nursery nursery = { .fd = fds[1], .run = run, .user = user };
        close(fds[0]);
        be_spawner(&nursery);
    }
    close(fds[1]);
    *spawner = (struct spawner){ fds[0], pid };
    if (pid < 0 || fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) {
        error_set(err, TUTTI_E_IO, "cannot start the process that starts models: %s", strerror(errno));
        close(fds[0]);
        free(spawner);
        return TUTTI_E_IO;
    }
    *out = spawner;
    return TUTTI_OK;
}

void spawner_close(struct spawner *spawner)
{
    if (!spawner)
        return;
    close(spawner->fd);
    while (waitpid(spawner->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(spawner);
}

int spawner_fd(const struct spawner *spawner)
{
    return spawner->fd;
}

bool spawner_send(const struct spawner *spawner, const struct spawner_order *order)
{
    ssize_t n;
    do
        n = send(spawner->fd, order, sizeof *order, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *order;
}

int spawner_read(const struct spawner *spawner, struct spawner_event *event)
{
    ssize_t n;
    do
        n = recv(spawner->fd, event, sizeof *event, 0);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof *event)
        return 1;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
}
