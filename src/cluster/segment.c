#include "cluster/segment.h"

#include "base/system/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "tutti-ranks"
enum { HEAD_BYTES = 64 }; /* the nonce, before the usable memory */

static bool map(struct segment *segment, int fd, size_t n_bytes, int protection)
{
    uint8_t *base = mmap(NULL, n_bytes + HEAD_BYTES, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return false;
    segment->memory = base + HEAD_BYTES;
    segment->n_bytes = n_bytes;
    return true;
}

static uint8_t *head_of(const struct segment *segment)
{
    return (uint8_t *)segment->memory - HEAD_BYTES;
}

bool segment_new(struct segment *segment, struct segment_card *card, size_t n_bytes)
{
    *segment = (struct segment){ .fd = -1 };
    *card = (struct segment_card){ .fd = -1 };
    if (n_bytes > INT64_MAX / 2 || getentropy(card->nonce, sizeof card->nonce) != 0)
        return false;
    segment->fd = os_memory_file(FILE_NAME);
    /* Allocates its pages now: later, a lack of memory could only kill the process. */
    if (segment->fd < 0 || !os_reserve(segment->fd, n_bytes + HEAD_BYTES) ||
        !map(segment, segment->fd, n_bytes, PROT_READ | PROT_WRITE)) {
        segment_free(segment);
        return false;
    }
    memcpy(head_of(segment), card->nonce, sizeof card->nonce);
    card->n_bytes = n_bytes;
    card->pid = getpid();
    card->fd = segment->fd;
    return true;
}

/* Opens nothing but a memory file: the pid or descriptor may belong to something else here, and
 * some files have side effects when opened. */
static int open_found(const char *path)
{
    char target[64] = "";
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0 || strncmp(target, "/memfd:" FILE_NAME, strlen("/memfd:" FILE_NAME)) != 0)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

bool segment_find(struct segment *segment, const struct segment_card *card)
{
    char path[64];
    struct stat info;
    *segment = (struct segment){ .fd = -1 };
    if (card->fd < 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)card->pid, (int)card->fd);
    int fd = open_found(path);
    if (fd < 0)
        return false;
    bool ok = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
              (uint64_t)info.st_size == card->n_bytes + HEAD_BYTES &&
              map(segment, fd, (size_t)card->n_bytes, PROT_READ);
    close(fd);
    if (ok && memcmp(head_of(segment), card->nonce, sizeof card->nonce) != 0)
        ok = false;
    if (!ok)
        segment_free(segment);
    return ok;
}

void segment_hide(struct segment *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

void segment_free(struct segment *segment)
{
    segment_hide(segment);
    if (segment->memory)
        munmap(head_of(segment), segment->n_bytes + HEAD_BYTES);
    *segment = (struct segment){ .fd = -1 };
}
