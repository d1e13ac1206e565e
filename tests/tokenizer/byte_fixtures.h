/* The byte-level tokenizers of tests/fixtures/tokenizer/bytes/. Every function fails the test that calls it. */
#ifndef TUTTI_TESTS_BYTE_FIXTURES_H
#define TUTTI_TESTS_BYTE_FIXTURES_H

#include "base/files/mapping.h"
#include "tokenizer/json/byte_files.h"

#define BYTE_FIXTURES TEST_FIXTURES "/tokenizer/bytes/"

extern const char *const BYTE_FIXTURE_NAMES[]; /* NULL after the last */

struct mapping byte_fixture_open(const char *file); /* below the folder */
struct tokenizer *byte_fixture_load(const char *name);

/* The same tokenizer by way of GGUF's arrays. */
struct tokenizer *byte_fixture_through_arrays(const struct tokenizer *tok);

#endif
