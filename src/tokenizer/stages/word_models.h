/* Word models other than BPE: WordPiece, Unigram and WordLevel of the Hugging Face tokenizers
 * library. Tokens are text. */
#ifndef TUTTI_TOKENIZER_STAGES_WORD_MODELS_H
#define TUTTI_TOKENIZER_STAGES_WORD_MODELS_H

#include "tokenizer/vocab/vocab.h"

enum word_model_kind { WORDS_BY_MERGES, WORDS_WORDPIECE, WORDS_UNIGRAM, WORDS_WHOLE };

/* Zero-initialised: WORDS_BY_MERGES. */
struct word_model {
    enum word_model_kind kind;
    struct trie starts; /* tokens that may begin a word; of unigram: all */
    struct trie inner;  /* WORDS_WORDPIECE: tokens that continue a word, without their mark */
    struct buf mark;    /* the mark of inner tokens: "##" */
    size_t max_chars;   /* WORDS_WORDPIECE: of a word; longer ones are unknown */
    size_t n_words; /* WORDS_WORDPIECE, WORDS_UNIGRAM: ids of the model; later ones are only added tokens */
    double *scores; /* WORDS_UNIGRAM: [n_words] by id */
    double unknown_score;
};

/* Builds the tries; the vocabulary and the added tokens must be complete. name: the file, for
 * messages. */
MUST_CHECK enum tutti_status word_model_finish(struct word_model *model, const struct tokenizer *tok,
                                               const char *name, struct tutti_error *err);

/* Adds the ids of a word, in time linear in its length (times the longest token). False: out of
 * memory. */
MUST_CHECK bool word_model_encode(const struct word_model *model, const struct tokenizer *tok,
                                  const char *word, size_t n_bytes, struct ids *out);

void word_model_clear(struct word_model *model);

#endif
