/* Finds the Chinese word list of PanGu-Alpha's tokenizer: files of the Python package jieba. */
#ifndef TUTTI_MODEL_LOAD_WORD_LIST_H
#define TUTTI_MODEL_LOAD_WORD_LIST_H

#include "base/files/mapping.h"
#include "checkpoint/gguf/gguf.h"
#include "tokenizer/tokenizer.h"

/* GGUF key of these files: an array of strings in the order of WORD_FILES. */
#define WORD_LIST_KEY "tokenizer.jieba.files"

struct word_list {
    struct mapping maps[N_WORD_FILES];
    struct word_files files;
    bool is_there;
    char name[4096]; /* path, for messages */
};

/* Opens the word list of a model's folder: in its subfolder jieba, or where Debian's
 * python3-jieba installs it. Not found: TUTTI_OK, a warning, and is_there is false. *out is for
 * word_list_close() in any case. */
MUST_CHECK enum tutti_status word_list_open(struct word_list *out, const char *folder,
                                            struct tutti_error *err);
/* Reads it from a GGUF file, whose bytes are borrowed. */
MUST_CHECK enum tutti_status word_list_read(struct word_list *out, const struct gguf *gguf, const char *path,
                                            struct tutti_error *err);
void word_list_close(struct word_list *list);

#endif
