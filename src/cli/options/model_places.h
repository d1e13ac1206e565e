/* The models of `serve`: one, or several with their names. */
#ifndef TUTTI_CLI_OPTIONS_MODEL_PLACES_H
#define TUTTI_CLI_OPTIONS_MODEL_PLACES_H

#include "base/error.h"

enum { MODEL_PLACES_MOST = 64 };

struct model_places {
    struct model_place {
        char *name, *path;
    } list[MODEL_PLACES_MOST];
    int n; /* 0: one model, the only operand */
};

/* Several: more than one operand, each PATH or NAME=PATH; or one NAME=PATH; or a folder that is no model but
 * holds some, in the order of their names. A PATH without a name is called as its last part without ".gguf".
 * Call model_places_clear() in any case. TUTTI_E_ARGUMENT: names the operand. */
MUST_CHECK enum tutti_status model_places_read(struct model_places *out, const char *const *operands,
                                               struct tutti_error *err);
void model_places_clear(struct model_places *places);

#endif
