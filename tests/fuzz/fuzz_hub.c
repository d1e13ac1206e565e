/* Any bytes as a hub's answer: the first byte chooses the layout and what is selected, an empty line separates the
 * listing from the index of the weights. An error, or files whose names stay below the model's folder. */
#include "hub/select.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_choice(const struct hub_choice *choice, const struct hub_listing *listing)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < choice->n_files; i++) {
        const char *path = choice->files[i]->path;
        assert(path[0] != '/' && !strstr(path, "/../") && strncmp(path, "../", 3) != 0);
        assert(hub_listing_find(listing, path) == choice->files[i]);
        assert(i == 0 || strcmp(choice->files[i - 1]->path, path) < 0);
        n_bytes += choice->files[i]->n_bytes;
    }
    assert(choice->n_files > 0 && n_bytes == choice->n_bytes);
}

/* Names that are accepted are read again as themselves. */
static void check_name(const char *text)
{
    struct hub_name name, again;
    struct buf written = { 0 };
    struct tutti_error err = { 0 };
    if (hub_name_parse(&name, text, "https://hub.example", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0');
        return;
    }
    assert(hub_name_write(&name, &written));
    assert(hub_name_parse(&again, written.bytes, NULL, &err) == TUTTI_OK);
    assert(again.layout == name.layout && strcmp(again.hub, name.hub) == 0 &&
           strcmp(again.model, name.model) == 0 && strcmp(again.revision, name.revision) == 0 &&
           strcmp(again.selection, name.selection) == 0);
    buf_clear(&written);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const SELECTIONS[] = { "", "q4_k_m", "a/model.gguf", "config.json" };
    struct tutti_error err = { 0 };
    struct hub_listing listing;
    struct hub_choice choice = { 0 };
    struct hub_name name = { .model = "org/name" };
    if (n_bytes == 0)
        return 0;
    name.layout = bytes[0] & 1 ? HUB_MODELSCOPE : HUB_HUGGING_FACE;
    snprintf(name.selection, sizeof name.selection, "%s", SELECTIONS[bytes[0] >> 1 & 3]);
    const char *text = (const char *)bytes + 1, *gap = memmem(text, n_bytes - 1, "\n\n", 2);
    size_t n = gap ? (size_t)(gap - text) : n_bytes - 1;
    char line[600];
    snprintf(line, sizeof line, "%.*s", (int)(n < 500 ? n : 500), text);
    check_name(line);
    enum tutti_status st = hub_listing_read(&listing, name.layout, text, n, "https://hub.example/listing",
                                            &err);
    if (st == TUTTI_OK)
        st = hub_choose(&choice, &listing, &name, &err);
    if (st == TUTTI_OK && choice.index && gap)
        st = hub_choose_indexed(&choice, &listing, gap + 2, n_bytes - 1 - n - 2, &err);
    if (st == TUTTI_OK)
        check_choice(&choice, &listing);
    else
        assert(err.text[0] != '\0');
    hub_choice_clear(&choice);
    hub_listing_clear(&listing);
    return 0;
}
