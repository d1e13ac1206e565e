/* Blocks of content: checks their fields, and collects their texts. */
#ifndef TUTTI_SERVER_ANTHROPIC_ANTHROPIC_BLOCKS_H
#define TUTTI_SERVER_ANTHROPIC_ANTHROPIC_BLOCKS_H

#include "base/buf.h"
#include "base/json/json_field.h"

enum { BLOCK_PARAM_BYTES = 96 };

/* Where a block is, combined with |. */
enum block_place {
    IN_USER = 1,
    IN_ASSISTANT = 2,
    IN_SYSTEM = 4,
    IN_RESULT = 8, /* the result of a tool */
    IN_DOCUMENT = 16,
};

enum block_type {
    BLOCK_TEXT,
    BLOCK_DOCUMENT,
    BLOCK_SEARCH_RESULT,
    BLOCK_TOOL_RESULT,
    BLOCK_TOOL_USE,
    BLOCK_THINKING,
    BLOCK_REDACTED_THINKING,
};

/* A field of an object. */
struct object_field {
    const char *name;
    enum json_kind kind;
    bool is_required, is_any; /* is_any: kind does not matter; the reader checks it */
};

/* Checks that an object has only these n fields, null or of these kinds, and the required ones. param: the
 * object's place, such as "tools[3]". */
MUST_CHECK enum tutti_status object_check(const json_t *object, const char *param,
                                          const struct object_field *fields, size_t n,
                                          struct tutti_error *err);

/* Checks a block and its fields. TUTTI_E_ARGUMENT: also a type that does not belong there. */
MUST_CHECK enum tutti_status block_check(const json_t *block, enum block_place place, const char *param,
                                         enum block_type *type, struct tutti_error *err);

/* Appends the texts of content, a string or a list of blocks, each after separator if something precedes
 * it. *has_cache_control becomes true if a block has that field. */
MUST_CHECK enum tutti_status blocks_add_text(struct buf *out, const json_t *content, enum block_place place,
                                             const char *param, bool *has_cache_control,
                                             struct tutti_error *err);

/* Appends the text of one block of type text, document or search_result. */
MUST_CHECK enum tutti_status block_add_text(struct buf *out, const json_t *block, enum block_type type,
                                            const char *param, struct tutti_error *err);

/* Appends separator, unless out is empty, and text. */
MUST_CHECK enum tutti_status text_join(struct buf *out, const char *separator, const json_t *text,
                                       struct tutti_error *err);

#endif
