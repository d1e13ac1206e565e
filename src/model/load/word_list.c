#include "model/load/word_list.h"

#include "base/log.h"

#include <stdio.h>
#include <unistd.h>

static const char INSTALLED[] = "/usr/lib/python3/dist-packages/jieba";

enum tutti_status word_list_open(struct word_list *out, const char *folder, struct tutti_error *err)
{
    char in_folder[4000], path[4200];
    snprintf(in_folder, sizeof in_folder, "%s/jieba", folder);
    const char *const folders[] = { in_folder, INSTALLED };
    *out = (struct word_list){ 0 };
    for (int i = 0; i < 2 && !out->is_there; i++) {
        snprintf(path, sizeof path, "%s/%s", folders[i], WORD_FILES[0]);
        out->is_there = access(path, F_OK) == 0;
        snprintf(out->name, sizeof out->name, "%s", folders[i]);
    }
    if (!out->is_there)
        log_warn("%s: no word list: neither %s nor %s is a folder of the Python package jieba (Debian: "
                 "python3-jieba); Chinese text gets other tokens than the model was trained on",
                 folder, in_folder, INSTALLED);
    for (int i = 0; out->is_there && i < N_WORD_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", out->name, WORD_FILES[i]);
        enum tutti_status st = mapping_open(&out->maps[i], path, err);
        if (st != TUTTI_OK)
            return st;
        out->files.file[i] = (struct word_file){ .bytes = out->maps[i].bytes,
                                                 .n_bytes = out->maps[i].n_bytes };
    }
    return TUTTI_OK;
}

enum tutti_status word_list_read(struct word_list *out, const struct gguf *gguf, const char *path,
                                 struct tutti_error *err)
{
    const struct gguf_array *files = gguf_find_array(gguf, WORD_LIST_KEY);
    *out = (struct word_list){ 0 };
    snprintf(out->name, sizeof out->name, "%.4000s: " WORD_LIST_KEY, path);
    if (!files) {
        log_warn("%s: no word list (" WORD_LIST_KEY "): Chinese text gets other tokens than the model was "
                 "trained on",
                 path);
        return TUTTI_OK;
    }
    if (gguf_array_type(files) != GGUF_STRING || gguf_array_n(files) != N_WORD_FILES)
        return error_set(err, TUTTI_E_FORMAT, "%s: expected %d strings", out->name, N_WORD_FILES);
    for (size_t i = 0; i < N_WORD_FILES; i++) {
        const char *bytes;
        gguf_array_string(files, i, &bytes, &out->files.file[i].n_bytes);
        out->files.file[i].bytes = bytes;
    }
    out->is_there = true;
    return TUTTI_OK;
}

void word_list_close(struct word_list *list)
{
    for (int i = 0; i < N_WORD_FILES; i++)
        mapping_close(&list->maps[i]);
}
