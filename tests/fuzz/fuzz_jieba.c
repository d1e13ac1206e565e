/* Any bytes as the files of jieba: an error that says what is wrong, or words that are the text.
 * Input: dict.txt, prob_start.py, prob_trans.py, prob_emit.py and the text, with a byte 0xFF between each two. */
#include "base/error.h"
#include "tokenizer/legacy/jieba.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const FILES[] = { "dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py",
                                     "finalseg/prob_emit.py" };
enum { N_FILES = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static char path[64]; /* of this process' folder */

static void remove_folder(void)
{
    char inner[128];
    for (int i = 0; i < N_FILES; i++) {
        snprintf(inner, sizeof inner, "%s/%s", path, FILES[i]);
        unlink(inner);
    }
    snprintf(inner, sizeof inner, "%s/finalseg", path);
    rmdir(inner);
    rmdir(path);
}

/* In memory where the machine has such a place. */
static const char *folder(void)
{
    char inner[80];
    if (path[0])
        return path;
    snprintf(path, sizeof path, "%s/tutti-fuzz-jieba-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(path))
        abort();
    snprintf(inner, sizeof inner, "%s/finalseg", path);
    if (mkdir(inner, 0700) != 0)
        abort();
    atexit(remove_folder);
    return path;
}

/* The bytes up to the next 0xFF; advances past it. */
static size_t take_part(const uint8_t **at, size_t *left)
{
    const uint8_t *end = *left > 0 ? memchr(*at, 0xFF, *left) : NULL;
    size_t n = end ? (size_t)(end - *at) : *left;
    *left -= n + (end != NULL);
    *at += n + (end != NULL);
    return n;
}

struct words {
    const char *next;
};

static bool follow(void *arg, const char *word, size_t n_bytes)
{
    struct words *words = arg;
    assert(n_bytes > 0 && word == words->next);
    words->next += n_bytes;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    for (int i = 0; i < N_FILES; i++) {
        char name[128];
        const uint8_t *part = bytes;
        size_t n = take_part(&bytes, &n_bytes);
        snprintf(name, sizeof name, "%s/%s", folder(), FILES[i]);
        FILE *file = fopen(name, "wb");
        assert(file);
        assert(n == 0 || fwrite(part, 1, n, file) == n);
        assert(fclose(file) == 0);
    }
    struct jieba *jieba = NULL;
    struct tutti_error err = { 0 };
    struct words words = { .next = (const char *)bytes };
    if (jieba_open(&jieba, folder(), &err) == TUTTI_OK) {
        assert(jieba_cut(jieba, (const char *)bytes, n_bytes, follow, &words));
        assert(words.next == (const char *)bytes + n_bytes);
    } else {
        assert(!jieba && err.text[0] != '\0');
    }
    jieba_free(jieba);
    return 0;
}
