/* Files of reference logits for comparing models by KL divergence: the ids of a text in windows,
 * and for each scored row the log-probability of every token in 16 bits (perplexity.h).
 *
 * All numbers little-endian:
 *   8 bytes "tuttikl2"; u32 n_vocab, n_windows, n_context, step, first, n_head;
 *   u64 fingerprint of the model's shape;
 *   char name[64], padded with zeros; u64 XXH3 of the ids after it, seeded with the XXH3 of
 *   everything before it;
 *   i32 ids[(n_windows - 1) * step + n_context], i32 head[n_head];
 *   rows, each f32 scale, f32 min, f32 negative log-probability of the next id,
 *   u16 codes[n_vocab, rounded up to an even number].
 * Files of llama-perplexity's --kl-divergence-base ("_logits_") are read too. They contain only
 * context, windows, ids and codes; their windows begin with the model's bos id, if it has one. */
#ifndef TUTTI_OFFLINE_LOGITS_BASE_H
#define TUTTI_OFFLINE_LOGITS_BASE_H

#include "offline/evaluate.h"
#include "offline/perplexity.h"

enum { LOGITS_BASE_NAME_BYTES = 64 };

/* ---- writing ---- */

struct logits_base_writer;

/* Creates a file through new_file.h. model, windows: borrowed during the call. */
MUST_CHECK enum tutti_status logits_base_create(struct logits_base_writer **out, const char *path,
                                                const struct model *model, const struct windows *windows,
                                                struct tutti_error *err);

/* The next scored row, in the order of windows_run(). */
MUST_CHECK enum tutti_status logits_base_add(struct logits_base_writer *w, const struct perplexity *p,
                                             const float *logits, int32_t target, struct tutti_error *err);

/* All rows must have been added. Renames the file to its path. */
MUST_CHECK enum tutti_status logits_base_finish(struct logits_base_writer *w, struct tutti_error *err);
void logits_base_writer_free(struct logits_base_writer *w); /* removes an unfinished file; NULL is allowed */

/* ---- reading ---- */

struct logits_base;

/* Checks everything except the rows. TUTTI_E_FORMAT: the text says what is wrong with the file. */
MUST_CHECK enum tutti_status logits_base_open(struct logits_base **out, const char *path,
                                              struct tutti_error *err);
void logits_base_close(struct logits_base *base); /* NULL is allowed */

/* Borrowed. A file of llama-perplexity has n_head 0 although its first ids may have been replaced. */
const struct windows *logits_base_windows(const struct logits_base *base);
bool logits_base_is_llama(const struct logits_base *base);
int logits_base_n_vocab(const struct logits_base *base);
const char *logits_base_name(const struct logits_base *base); /* of its model; "": unknown */

/* Whether the model has the shape of the base's model. True if the file does not contain it. */
bool logits_base_fits(const struct logits_base *base, const struct model *model);

/* The next row. TUTTI_E_FORMAT: its scale or minimum is invalid. */
MUST_CHECK enum tutti_status logits_base_next(struct logits_base *base, struct coded_row *out,
                                              struct tutti_error *err);

#endif
