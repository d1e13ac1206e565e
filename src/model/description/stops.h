/* Finds the token ids that end an answer: those listed in a checkpoint's files and, in a chat,
 * those that end a turn. */
#ifndef TUTTI_MODEL_DESCRIPTION_STOPS_H
#define TUTTI_MODEL_DESCRIPTION_STOPS_H

#include "checkpoint/checkpoint.h"
#include "model/model.h"

/* GGUF key written by tutti with all listed ids, an array of numbers: GGUF's own keys have room
 * for only three. */
#define STOPS_GGUF_KEY "tokenizer.tutti.stop_token_ids"

/* Fills stop_ids, n_stop_ids and n_chat_stop_ids of desc, whose n_vocab is set. A folder: every
 * id of eos_token_id, a number or a list, in generation_config.json (generation; NULL: there is
 * none) and in config.json, and the tokenizer's eos. A GGUF file: the array above, else
 * eos_token_id, eot_token_id and eom_token_id. Chats add the control tokens that end a turn in
 * the known formats. tok: NULL: none. TUTTI_E_FORMAT: eos_token_id is neither a number nor a
 * list; TUTTI_E_LIMIT: more than MAX_STOP_IDS. Ids beyond the vocabulary are skipped, with a
 * warning if warns is set. */
MUST_CHECK enum tutti_status model_find_stops(struct model_desc *desc, const struct checkpoint *ck,
                                              const json_t *generation, const struct tokenizer *tok,
                                              bool warns, struct tutti_error *err);

#endif
