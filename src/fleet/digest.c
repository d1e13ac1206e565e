#include "fleet/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18 };

struct digest {
    EVP_MD_CTX *context;
    bool ok;
};

struct digest *digest_new(void)
{
    struct digest *d = calloc(1, sizeof *d);
    if (d)
        d->context = EVP_MD_CTX_new();
    if (!d || !d->context) {
        free(d);
        return NULL;
    }
    digest_begin(d);
    return d;
}

void digest_free(struct digest *d)
{
    if (!d)
        return;
    EVP_MD_CTX_free(d->context);
    free(d);
}

void digest_begin(struct digest *d)
{
    d->ok = EVP_DigestInit_ex(d->context, EVP_sha256(), NULL) == 1;
}

void digest_add(struct digest *d, const void *bytes, size_t n_bytes)
{
    d->ok = d->ok && EVP_DigestUpdate(d->context, bytes, n_bytes) == 1;
}

bool digest_end(struct digest *d, char text[DIGEST_TEXT_BYTES])
{
    static const char DIGITS[] = "0123456789abcdef";
    uint8_t value[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    d->ok = d->ok && EVP_DigestFinal_ex(d->context, value, &n) == 1 && 2 * n == DIGEST_TEXT_BYTES - 1;
    for (unsigned i = 0; d->ok && i < n; i++) {
        text[2 * i] = DIGITS[value[i] >> 4];
        text[2 * i + 1] = DIGITS[value[i] & 15];
    }
    text[DIGEST_TEXT_BYTES - 1] = '\0';
    return d->ok;
}

enum tutti_status digest_file(const char *path, char text[DIGEST_TEXT_BYTES], int64_t *n_bytes,
                              struct tutti_error *err)
{
    struct digest *d = digest_new();
    char *bytes = malloc(READ_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    *n_bytes = 0;
    enum tutti_status st = TUTTI_OK;
    if (fd < 0)
        st = error_set(err, errno == ENOENT ? TUTTI_E_NOT_FOUND : TUTTI_E_IO, "%s: %s", path,
                       strerror(errno));
    else if (!d || !bytes)
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    while (st == TUTTI_OK && (n = read(fd, bytes, READ_BYTES)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno));
        } else {
            digest_add(d, bytes, (size_t)n);
            *n_bytes += n;
        }
    }
    if (st == TUTTI_OK && !digest_end(d, text))
        st = error_set(err, TUTTI_E_INTERNAL, "%s: no checksum could be made", path);
    if (fd >= 0)
        close(fd);
    free(bytes);
    digest_free(d);
    return st;
}
