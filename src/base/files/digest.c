#include "base/files/digest.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct digest {
    EVP_MD_CTX *context;
    enum digest_kind kind;
    bool ok;
};

struct digest *digest_new(enum digest_kind kind)
{
    struct digest *d = calloc(1, sizeof *d);
    if (d)
        d->context = EVP_MD_CTX_new();
    if (!d || !d->context) {
        free(d);
        return NULL;
    }
    d->kind = kind;
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
    d->ok = EVP_DigestInit_ex(d->context, d->kind == DIGEST_SHA1 ? EVP_sha1() : EVP_sha256(), NULL) == 1;
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
    d->ok = d->ok && EVP_DigestFinal_ex(d->context, value, &n) == 1 && 2 * n < DIGEST_TEXT_BYTES;
    for (unsigned i = 0; d->ok && i < n; i++) {
        text[2 * i] = DIGITS[value[i] >> 4];
        text[2 * i + 1] = DIGITS[value[i] & 15];
    }
    text[d->ok ? 2 * n : 0] = '\0';
    return d->ok;
}
