/* Chooses which of a model's files to download. */
#ifndef TUTTI_HUB_SELECT_H
#define TUTTI_HUB_SELECT_H

#include "hub/listing.h"

/* Zero-initialise. */
struct hub_choice {
    const struct hub_file **files; /* of the listing, in its order */
    size_t n_files;
    bool *is_chosen; /* [files of the listing] */
    uint64_t n_bytes;
    const struct hub_file *open; /* what MODEL is: this file; NULL: the folder */
    /* The index that names the files of the weights, which are not chosen yet; NULL: none. */
    const struct hub_file *index;
};

/* selection "": of a folder, the weights in one format (safetensors before PyTorch's) with
 * configuration, tokenizer and chat templates; of GGUF files, the only one. A type such as "q4_k_m":
 * the GGUF file of this type. Else the file with this path. A GGUF file in parts is chosen with all of
 * them. TUTTI_E_NOT_FOUND: none fits; the text says what there is. Call hub_choice_clear() in any case. */
MUST_CHECK enum tutti_status hub_choose(struct hub_choice *out, const struct hub_listing *listing,
                                        const struct hub_name *name, struct tutti_error *err);

/* Adds the files that the index's content names, and sets index to NULL. TUTTI_E_FORMAT, TUTTI_E_NOT_FOUND:
 * the text names the index. */
MUST_CHECK enum tutti_status hub_choose_indexed(struct hub_choice *choice, const struct hub_listing *listing,
                                                const char *bytes, size_t n_bytes, struct tutti_error *err);

void hub_choice_clear(struct hub_choice *choice);

#endif
