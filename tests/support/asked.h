/* Requests to a mock model whose answers are made of two tokens, or of three of which one may be a stop token: whatever is
 * drafted is often accepted, and often rejected. */
#ifndef TEST_ASKED_H
#define TEST_ASKED_H

#include "support/collect.h"
#include "support/mock_model.h"

enum { ASKED_CTX = 256 };

struct asked {
    int32_t ids[ASKED_CTX];
    struct tutti_logit_bias bias[3];
    struct tutti_request request;
};

/* Of n_pages of a mock model. */
uint64_t asked_page_bytes(int n_pages);

void asked_make(struct asked *a, uint64_t number, int n_choices);

/* Fails the test where an answer is not the model's. */
void asked_check(const struct collect *c, const struct tutti_request *r, int max_context, bool has_stop);

/* Asks n requests at once, with all drafts verified, and checks each answer, and that all pages come back. draft: NULL: none.
 * Returns the figures. */
struct tutti_stats asked_all(const struct tutti_engine_options *options, struct mock_model *draft, int n,
                             int n_choices);

#endif
