/* Downloads files over several connections at once, segment by segment. */
#ifndef TUTTI_HUB_DOWNLOAD_H
#define TUTTI_HUB_DOWNLOAD_H

#include "hub/hub_http.h"

/* Completes the files of the choice in the folder, with the right checksums. commit: "": none. Failures
 * of the network are tried again as the session's options say. */
MUST_CHECK enum tutti_status download_files(struct hub_session *session, const struct hub_choice *choice,
                                            const char *commit, const char *folder, struct tutti_error *err);

#endif
