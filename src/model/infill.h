/* Filling a gap in a text ("fill in the middle", FIM): which tokens of a vocabulary mark the parts of such a
 * prompt, and the prompt itself. The order and the tokens are those of the models' authors:
 *
 *   Qwen2.5-Coder        arXiv 2409.12186, section 4.2, and its README (files of a repository)
 *   StarCoder, Granite   arXiv 2305.06161, appendix; arXiv 2405.04324
 *   StarCoder2           arXiv 2402.19173, section 5.2 (files of a repository)
 *   DeepSeek-Coder       arXiv 2401.14196, section 3.1.2
 *   Code Llama           arXiv 2308.12950, section 2.3: prefix, suffix, middle
 *   CodeGemma            arXiv 2406.11409
 *   Codestral            mistral-common, encode_fim(): suffix, prefix, and no token before the middle */
#ifndef TUTTI_MODEL_INFILL_H
#define TUTTI_MODEL_INFILL_H

#include "base/ids.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/tokenizer.h"
#include "tutti.h"

enum { INFILL_MAX_STOPS = 16 };

/* The tokens of one vocabulary; -1: it has none. */
struct infill_tokens {
    int32_t prefix, suffix, middle, project, file;
    bool is_known;        /* a prompt can be rendered */
    bool suffix_first;    /* suffix, then prefix */
    bool project_is_line; /* a line feed ends the project's name */
    bool name_is_inside;  /* the own file's name is the first line of the prefix */
    bool has_blank;       /* the tokenizer puts a blank before a text, which a suffix must not have */
    int32_t stops[INFILL_MAX_STOPS];
    int n_stops;
};

/* By the names of the tokens, and by the ids of a GGUF file's metadata, which take precedence. config:
 * checkpoint_config() of a GGUF file; NULL: of no GGUF file. n_rows: of the embedding. False: out of memory. */
MUST_CHECK bool infill_find(struct infill_tokens *out, const struct tokenizer *tok, const json_t *config,
                            int32_t n_rows);

/* Adds the ids of the prompt to out, whose max is the context, after the ids that the model expects before a
 * text. As tutti_apply_infill(). */
struct model;
MUST_CHECK enum tutti_status infill_render(const struct model *model, const struct tutti_infill *infill,
                                           struct ids *out, size_t *n_left_out, struct tutti_error *err);

#endif
