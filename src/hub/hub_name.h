/* Names of models on a hub: [hf:|ms:][URL/]ORG/NAME[@REVISION][:SELECTION], and the URLs of their listing and files. */
#ifndef TUTTI_HUB_HUB_NAME_H
#define TUTTI_HUB_HUB_NAME_H

#include "base/buf.h"

enum hub_layout { HUB_HUGGING_FACE, HUB_MODELSCOPE };

struct hub_name {
    enum hub_layout layout;
    char hub[256];       /* URL without a slash at its end */
    char model[200];     /* "ORG/NAME" */
    char revision[128];  /* branch, tag or commit; "": the hub's default */
    char selection[256]; /* a GGUF type or a file; "": tutti chooses */
};

/* Whether text begins with hf: or ms:, so that it names a model on a hub and no path. */
bool hub_name_is(const char *text);

/* hub: the hub's URL if text has none; NULL: from the environment (HF_ENDPOINT, MODELSCOPE_DOMAIN), else
 * the public one. Without hf: or ms:, the layout is Hugging Face's. TUTTI_E_ARGUMENT. */
MUST_CHECK enum tutti_status hub_name_parse(struct hub_name *out, const char *text, const char *hub,
                                            struct tutti_error *err);

/* Appends the name as hub_name_parse() reads it, with hf: or ms:; without the URL of the public hub.
 * False: out of memory, here and below. */
MUST_CHECK bool hub_name_write(const struct hub_name *name, struct buf *out);

/* The environment variable that holds the hub's token. */
const char *hub_name_token_variable(const struct hub_name *name);

/* Whether path is relative and names a file below its folder: no part is empty, "." or "..", there are
 * no backslashes and control characters, and no part is too long for a file name. */
bool hub_path_is_safe(const char *path);

/* Appends text with everything but letters, digits and -._~ as %XX; characters in keep stay, too. */
MUST_CHECK bool hub_add_escaped(struct buf *out, const char *text, const char *keep);

/* The URL of the listing of all files, and of a file of the commit (NULL: of the name's revision). */
MUST_CHECK bool hub_add_listing_url(struct buf *out, const struct hub_name *name);
MUST_CHECK bool hub_add_file_url(struct buf *out, const struct hub_name *name, const char *commit,
                                 const char *file);

#endif
