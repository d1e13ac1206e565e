/* Tokenizers against cases that their reference library made: tests/fixtures/tokenizer/, by
 * tools/fixtures/make_tokenizer_fixture.py. What differs fails the test. */
#ifndef TUTTI_TESTS_TOKENIZER_CASES_H
#define TUTTI_TESTS_TOKENIZER_CASES_H

#include "tokenizer/tokenizer.h"

#define TOKENIZER_FIXTURES TEST_FIXTURES "/tokenizer/"

struct tokenizer *cases_load(const char *path); /* of a SentencePiece file */

/* Encodes and decodes, at once and id by id, the cases NAME.cases. model: a path. */
void cases_check(const char *model, const char *name);
void cases_check_tokenizer(const struct tokenizer *tok, const char *name);

/* The same with NAME.cases that hold their models. */
void cases_check_many(const char *name, int n_models);

/* A list that has room for exactly the text's n_ids gets them; one with less room gets none, and says that it is full. */
void cases_check_room(const struct tokenizer *tok, const char *text, size_t n_bytes, size_t n_ids);

/* Computing time of this thread: the machine may have other work. */
double cases_cpu_seconds(void);

/* Both give the same ids. */
void cases_encode_both(const struct tokenizer *a, const struct tokenizer *b, const char *text,
                       size_t n_bytes);

#endif
