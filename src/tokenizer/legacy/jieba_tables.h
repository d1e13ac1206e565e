/* The dictionary and the probabilities of jieba; private to the jieba files. */
#ifndef TUTTI_TOKENIZER_LEGACY_JIEBA_TABLES_H
#define TUTTI_TOKENIZER_LEGACY_JIEBA_TABLES_H

#include "tokenizer/legacy/jieba.h"
#include "tokenizer/vocab/trie.h"

enum { HAN_FIRST = 0x4E00, HAN_LAST = 0x9FD5 };

/* Begin, end, middle, single: in alphabetical order, as the package breaks ties by letter. */
enum { TAG_B, TAG_E, TAG_M, TAG_S, N_TAGS };

struct jieba {
    struct trie words;  /* the id of a word is its index in log_counts */
    double *log_counts; /* natural logarithms; below 0: only a prefix of other words */
    double log_total;
    double start[N_TAGS], next[N_TAGS][N_TAGS]; /* logarithms: next[from][to] */
    double (*emit)[N_TAGS];                     /* [HAN_LAST - HAN_FIRST + 1] */
};

#endif
