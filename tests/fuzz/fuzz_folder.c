/* Any bytes in the place of one of the JSON files of a checkpoint's folder: an error, or tensors within their files and a description
 * within its ranges. The first byte chooses the file; the weights are those of a tiny model. */
#include "model/description/family.h"
#include "read_tensors.h"
#include "scratch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { N_FILES = 4 };
static const char *const FILES[N_FILES] = { "config.json", "model.safetensors.index.json", "shard.json",
                                            "tokenizer_config.json" };
static const char *const LINKS[] = { "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors" };

static void link_fixture(const char *name)
{
    char from[512], to[512];
    snprintf(from, sizeof from, FUZZ_FIXTURES "/llama-tiny/%s", name);
    snprintf(to, sizeof to, "%s/%s", scratch_folder(), name);
    if (symlink(from, to) != 0)
        abort();
}

static void check(const struct checkpoint *ck, struct tutti_error *err)
{
    struct model_desc desc = { 0 };
    const struct family *family = NULL;
    json_t *other = NULL;
    read_tensors(ck);
    if (model_desc_read(&desc, &family, ck, err) != TUTTI_OK)
        assert(err->text[0] != '\0');
    if (checkpoint_json(ck, FILES[3], &other, err) != TUTTI_OK)
        assert(err->text[0] != '\0');
    json_decref(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static bool is_ready;
    struct checkpoint *ck = NULL;
    struct tutti_error err = { 0 };
    if (n_bytes == 0)
        return 0;
    if (!is_ready) {
        link_fixture(LINKS[0]);
        link_fixture(LINKS[1]);
        link_fixture(FILES[0]);
        link_fixture(FILES[1]);
        is_ready = true;
    }
    const char *name = FILES[bytes[0] % N_FILES];
    scratch_remove(name);
    scratch_write(name, bytes + 1, n_bytes - 1);
    if (checkpoint_open(&ck, scratch_folder(), &err) != TUTTI_OK)
        assert(err.text[0] != '\0' && !ck);
    else
        check(ck, &err);
    checkpoint_close(ck);
    scratch_remove(name);
    if (bytes[0] % N_FILES < 2)
        link_fixture(name);
    return 0;
}
