/* A spill file with any bytes of it changed, and cut anywhere: what is believed is what was written.
 * Input: where it is cut (two bytes, in parts of the file; 65535: nowhere), then changes of four bytes each: place, exclusive or. */
#include "engine/kv/spill_file.h"
#include "scratch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { PAGE_BYTES = 256, PAGE_TOKENS = 16, N_RECORDS = 40, FILE_BYTES = 1024 * 1024 };

static const struct spill_identity IDENTITY = { 1, 2, 3, 4, PAGE_BYTES, PAGE_TOKENS };

/* With ids [PAGE_TOKENS]. */
static struct spill_record record_of(int slot, int32_t *ids)
{
    for (int i = 0; i < PAGE_TOKENS; i++)
        ids[i] = slot * 100 + i;
    return (struct spill_record){ .id = (uint64_t)slot + 1,
                                  .parent = slot ? (uint64_t)slot : SPILL_ROOT,
                                  .ids = ids };
}

static void fill_page(uint8_t *page, int slot)
{
    for (int i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t)(slot * 7 + i);
}

static struct spill_file *open_file(struct tutti_error *err)
{
    struct spill_file *file = NULL;
    char anew[256] = "";
    enum tutti_status st = spill_file_open(&file, scratch_folder(), FILE_BYTES, &IDENTITY, anew, sizeof anew,
                                           err);
    assert((st == TUTTI_OK) == (file != NULL) && (file || err->text[0] != '\0'));
    return file;
}

/* The whole file as it is written. */
static uint8_t *make(size_t *n)
{
    struct tutti_error err = { 0 };
    struct spill_file *file = open_file(&err);
    for (int slot = 0; slot < N_RECORDS; slot++) {
        int32_t ids[PAGE_TOKENS];
        struct spill_record r = record_of(slot, ids);
        uint8_t page[PAGE_BYTES];
        fill_page(page, slot);
        assert(file && spill_file_write(file, slot, &r, page, &err) == TUTTI_OK);
    }
    spill_file_close(file);
    char path[SCRATCH_MAX_PATH];
    snprintf(path, sizeof path, "%s/kv-pages", scratch_folder());
    FILE *in = fopen(path, "rb");
    uint8_t *bytes = malloc(FILE_BYTES);
    assert(in && bytes);
    *n = fread(bytes, 1, FILE_BYTES, in);
    fclose(in);
    assert(*n > N_RECORDS * PAGE_BYTES);
    return bytes;
}

static void check(struct spill_file *file, struct tutti_error *err)
{
    bool is_end = false;
    for (int32_t first = 0; first < spill_file_n_slots(file) && !is_end; first += SPILL_SEGMENT_SLOTS) {
        struct spill_record records[SPILL_SEGMENT_SLOTS];
        int32_t ids[SPILL_SEGMENT_SLOTS * PAGE_TOKENS], want_ids[PAGE_TOKENS];
        int n = spill_file_n_slots(file) - first;
        n = n < SPILL_SEGMENT_SLOTS ? n : SPILL_SEGMENT_SLOTS;
        if (spill_file_load(file, first, n, records, ids, &is_end, err) != TUTTI_OK) {
            assert(err->text[0] != '\0');
            return;
        }
        for (int i = 0; i < n && !is_end; i++) {
            struct spill_record want = record_of(first + i, want_ids);
            uint8_t page[PAGE_BYTES], want_page[PAGE_BYTES];
            if (records[i].id == 0)
                continue;
            assert(records[i].id == want.id && records[i].parent == want.parent);
            assert(memcmp(records[i].ids, want_ids, sizeof want_ids) == 0);
            fill_page(want_page, first + i);
            if (spill_file_read(file, first + i, &want, page, err) == TUTTI_OK)
                assert(memcmp(page, want_page, sizeof page) == 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static uint8_t *whole;
    static size_t n_whole;
    struct tutti_error err = { 0 };
    if (n_bytes < 2)
        return 0;
    if (!whole)
        whole = make(&n_whole);
    uint8_t *changed = malloc(n_whole);
    assert(changed);
    memcpy(changed, whole, n_whole);
    size_t cut = (size_t)bytes[0] << 8 | bytes[1], n = cut == 65535 ? n_whole : n_whole * cut / 65535;
    for (size_t i = 2; i + 4 <= n_bytes; i += 4)
        changed[((size_t)bytes[i] << 16 | (size_t)bytes[i + 1] << 8 | bytes[i + 2]) % n_whole] ^=
            bytes[i + 3];
    scratch_write("kv-pages", changed, n);
    free(changed);
    struct spill_file *file = open_file(&err);
    if (file)
        check(file, &err);
    spill_file_close(file);
    return 0;
}
