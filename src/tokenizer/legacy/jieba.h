/* Cuts Chinese text into words as the Python package jieba 0.42 does by default (accurate mode, with its hidden Markov
 * model for words that its dictionary lacks), from that package's own files.
 * The most probable path over a dictionary; between its words the model tags each character as the begin, middle or end of
 * a word or as a word of its own. */
#ifndef TUTTI_TOKENIZER_LEGACY_JIEBA_H
#define TUTTI_TOKENIZER_LEGACY_JIEBA_H

#include "tokenizer/tokenizer.h"

struct jieba;

/* From the package's folder: dict.txt, finalseg/prob_start.py, prob_trans.py and prob_emit.py. Nothing is executed.
 * TUTTI_E_FORMAT: a line or a number is not as expected. */
MUST_CHECK enum tutti_status jieba_open(struct jieba **out, const char *folder, struct tutti_error *err);
/* The same of the files' contents, which may go away afterwards. name: a folder's, for messages. */
MUST_CHECK enum tutti_status jieba_read(struct jieba **out, const struct word_files *files, const char *name,
                                        struct tutti_error *err);
void jieba_free(struct jieba *jieba); /* NULL is allowed */

/* Gives each word of text to `word`, in order; together they are the text. A NULL jieba knows no words: Chinese runs stay
 * whole, the rest is cut as ever. A byte that is no UTF-8 is a word. False: out of memory, or `word` said so. */
typedef bool jieba_word_fn(void *arg, const char *word, size_t n_bytes);
MUST_CHECK bool jieba_cut(const struct jieba *jieba, const char *text, size_t n_bytes, jieba_word_fn *word,
                          void *arg);

#endif
