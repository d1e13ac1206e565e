#include "support/mtp_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

void mtp_text_open(struct mtp_text *text, struct model *model, const int32_t *ids, int n)
{
    *text = (struct mtp_text){ .model = model };
    assert_int_equal(model_reserve(model, MTP_TEXT_TOKENS, 8, NULL), TUTTI_OK);
    assert_int_equal(model_kv_new(model, &text->kv, MTP_TEXT_PAGES, MTP_TEXT_PAGES, NULL), TUTTI_OK);
    memcpy(text->ids, ids, (size_t)n * sizeof *ids);
    for (int i = 0; i < MTP_TEXT_PAGES; i++)
        text->pages[i] = MTP_TEXT_PAGES - 1 - i;
    text->table = text->pages;
}

static struct step step_of(struct mtp_text *text, int begin, int n)
{
    for (int i = 0; i < n; i++) {
        text->positions[i] = begin + i;
        text->outputs[i] = n - 1;
    }
    return (struct step){ .n_rows = n,
                          .n_seqs = 1,
                          .n_outputs = 1,
                          .token_ids = text->ids + begin,
                          .positions = text->positions,
                          .seqs = text->seqs,
                          .page_tables = &text->table,
                          .output_rows = text->outputs };
}

void mtp_text_step(struct mtp_text *text, int begin, int n)
{
    struct step step = step_of(text, begin, n);
    (void)model_forward(text->model, text->kv, &step);
    for (int32_t r = 0; r < n; r++) {
        int page = (begin + r) / model_page_tokens(text->model);
        model_store_hidden(text->model, text->kv, &r, &text->pages[page], 1);
    }
}

void mtp_text_predict(struct mtp_text *text, int position, int32_t previous, float *logits)
{
    struct step step = step_of(text, position, 1);
    struct floats out = model_submit_mtp(text->model, text->kv, &step, &previous);
    model_wait(text->model);
    model_read_logits(text->model, out, 1, logits);
}
