/* Splits Chinese text into words as the Python package jieba 0.42 does by default (accurate mode,
 * with a hidden Markov model for words that the dictionary lacks), using that package's files. It
 * finds the most probable path over the dictionary. Between dictionary words the Markov model
 * tags each character as begin, middle or end of a word, or as a single-character word. */
#ifndef TUTTI_TOKENIZER_LEGACY_JIEBA_H
#define TUTTI_TOKENIZER_LEGACY_JIEBA_H

#include "tokenizer/tokenizer.h"

struct jieba;

/* From the package's folder: dict.txt, finalseg/prob_start.py, prob_trans.py and prob_emit.py.
 * Nothing is executed. TUTTI_E_FORMAT: a line or a number is not as expected. */
MUST_CHECK enum tutti_status jieba_open(struct jieba **out, const char *folder, struct tutti_error *err);
/* The same from the files' contents, which may be freed afterwards. name: of the folder, for
 * messages. */
MUST_CHECK enum tutti_status jieba_read(struct jieba **out, const struct word_files *files, const char *name,
                                        struct tutti_error *err);
void jieba_free(struct jieba *jieba); /* NULL is allowed */

/* Calls word with each word of text, in order; joined they are the text. With a NULL jieba, runs
 * of Chinese characters stay whole and the rest is split as usual. A byte of invalid UTF-8 is a
 * word. False: out of memory, or word returned false. */
typedef bool jieba_word_fn(void *arg, const char *word, size_t n_bytes);
MUST_CHECK bool jieba_cut(const struct jieba *jieba, const char *text, size_t n_bytes, jieba_word_fn *word,
                          void *arg);

#endif
