#include "engine/speculate/draft.h"

#include "backend/sample.h"
#include "base/system/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* State of the draft model for the sequence in a slot. */
struct follower {
    bool is_used;
    uint64_t number; /* sequence_number() */
    int32_t *page_table;
    int n_pages, n_published;
    int n_computed; /* tokens of the sequence whose KV is in the pages */
    /* Draft tokens computed after those, from position tail_at on; they count once they are
     * accepted. */
    int32_t tail[MAX_DRAFT_TOKENS];
    int tail_at, n_tail;
    float acceptance; /* acceptance rate */
};

/* A sequence that gets draft tokens in this step. */
struct runner {
    struct sequence *seq;
    struct follower *follower;
    struct draft_proposal *proposal;
    int n_done; /* draft tokens so far */
    int output; /* its output in the pass; -1: none. Of the MTP layer also its row */
    bool is_over;
};

struct draft {
    struct draft_options options;
    bool is_mtp;
    int page_tokens; /* positions of a page of the draft model */
    int max_rows, max_outputs;
    struct kv_memory *kv;
    struct kv_pool *pool;
    struct follower *followers; /* [max_seqs] */
    int32_t *page_table_memory;
    struct floats logits;        /* of the last pass, in the backend's memory */
    struct sample_input *inputs; /* [max_outputs] */
    struct sample *samples;      /* [max_outputs] */
    struct runner *runners;      /* [max_outputs], of this step */
    int n_runners;
    uint64_t n_passes, n_rows;
    int32_t *n_holders; /* [n_pages] scratch of the audit */

    /* The pass */
    struct step step;
    int32_t *token_ids, *positions, *row_seqs, *output_rows; /* [max_rows] */
    int32_t *previous;                                       /* [max_rows]: of model_submit_mtp() */
    const int32_t **page_tables;                             /* [max_seqs] */
};

/* ---- compatibility of two models ---- */

static enum tutti_status check_tokens(const struct model *draft, const struct model *target,
                                      struct tutti_error *err)
{
    const struct tokenizer *a = draft->tokenizer, *b = target->tokenizer;
    int n = target->desc.n_usable_vocab;
    if (!a || !b)
        return TUTTI_OK;
    if (tokenizer_n_pieces(a) != tokenizer_n_pieces(b))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "draft",
            "draft model %s has a tokenizer of %d tokens, model %s one of %d, expected the same", draft->name,
            tokenizer_n_pieces(a), target->name, tokenizer_n_pieces(b));
    for (int32_t id = 0; id < n && id < tokenizer_n_pieces(a); id++) {
        struct piece p = tokenizer_piece(a, id), q = tokenizer_piece(b, id);
        if (p.type == q.type && p.n_bytes == q.n_bytes && memcmp(p.bytes, q.bytes, p.n_bytes) == 0)
            continue;
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "draft",
            "token %d of draft model %s is \"%.*s\", that of model %s is \"%.*s\", expected the same", id,
            draft->name, p.n_bytes < 64 ? (int)p.n_bytes : 64, p.bytes, target->name,
            q.n_bytes < 64 ? (int)q.n_bytes : 64, q.bytes);
    }
    return TUTTI_OK;
}

enum tutti_status draft_check(const struct model *draft, const struct model *target, struct tutti_error *err)
{
    if (draft == target)
        return error_set_param(err, TUTTI_E_ARGUMENT, "draft", "model %s cannot be its own draft model",
                               draft->name);
    if (draft->desc.n_usable_vocab != target->desc.n_usable_vocab)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "draft",
            "draft model %s has a vocabulary of %d tokens, model %s one of %d, expected the same",
            draft->name, draft->desc.n_usable_vocab, target->name, target->desc.n_usable_vocab);
    if (draft->desc.has_prefix)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "draft",
            "draft model %s has bidirectional attention over the prompt, which a draft model cannot have",
            draft->name);
    if (draft->group)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "draft",
                               "draft model %s runs on several ranks, expected only this one", draft->name);
    return check_tokens(draft, target, err);
}

/* ---- memory ---- */

int draft_max_outputs(int max_seqs)
{
    return max_seqs < MAX_DRAFT_ROWS ? max_seqs : MAX_DRAFT_ROWS;
}

int draft_max_rows(int max_seqs)
{
    return SPECULATION_ROWS + NEAR_ROWS * draft_max_outputs(max_seqs);
}

static bool reserve_memory(struct draft *d)
{
    size_t n_seqs = (size_t)d->options.max_seqs, n_rows = (size_t)d->max_rows;
    size_t n_outputs = (size_t)d->max_outputs;
    size_t n_pages = d->is_mtp ? 1 : (size_t)kv_pages_of(d->options.max_context, d->page_tokens);
    d->followers = calloc(n_seqs, sizeof *d->followers);
    d->page_table_memory = calloc(n_seqs, n_pages * sizeof *d->page_table_memory);
    d->inputs = calloc(n_outputs, sizeof *d->inputs);
    d->samples = calloc(n_outputs, sizeof *d->samples);
    d->runners = calloc(n_outputs, sizeof *d->runners);
    d->n_holders = calloc((size_t)d->options.n_pages + 1, sizeof *d->n_holders);
    d->token_ids = calloc(n_rows, sizeof *d->token_ids);
    d->positions = calloc(n_rows, sizeof *d->positions);
    d->row_seqs = calloc(n_rows, sizeof *d->row_seqs);
    d->output_rows = calloc(n_rows, sizeof *d->output_rows);
    d->previous = calloc(n_rows, sizeof *d->previous);
    d->page_tables = calloc(n_seqs, sizeof *d->page_tables);
    if (!d->followers || !d->page_table_memory || !d->inputs || !d->samples || !d->runners || !d->n_holders ||
        !d->token_ids || !d->positions || !d->row_seqs || !d->output_rows || !d->previous || !d->page_tables)
        return false;
    for (size_t i = 0; i < n_seqs; i++)
        d->followers[i].page_table = d->page_table_memory + i * n_pages;
    return true;
}

enum tutti_status draft_new(struct draft **out, const struct draft_options *options, struct tutti_error *err)
{
    struct draft *d = calloc(1, sizeof *d);
    if (d) {
        d->options = *options;
        d->is_mtp = options->target_pool != NULL;
        d->page_tokens = model_page_tokens(options->model);
        d->max_outputs = draft_max_outputs(options->max_seqs);
        d->max_rows = d->is_mtp ? d->max_outputs : draft_max_rows(options->max_seqs);
    }
    enum tutti_status st = TUTTI_OK;
    if (!d || !reserve_memory(d))
        st = error_set(err, TUTTI_E_MEMORY, "draft model for %d sequences of %d tokens: out of memory",
                       options->max_seqs, options->max_context);
    if (st == TUTTI_OK)
        st = options->model->backend->ops->reserve_sampling(options->model->backend, options->target->n_vocab,
                                                            err);
    if (st == TUTTI_OK && !d->is_mtp)
        st = kv_pool_new(&d->pool,
                         &(struct kv_pool_options){ .n_pages = options->n_pages,
                                                    .page_tokens = d->page_tokens,
                                                    .n_slots = options->n_pages,
                                                    .hash_seed = options->hash_seed },
                         err);
    if (st == TUTTI_OK && !d->is_mtp)
        st = model_kv_new(options->model, &d->kv, options->n_pages, options->n_pages, err);
    if (st != TUTTI_OK) {
        draft_free(d);
        return st;
    }
    *out = d;
    return TUTTI_OK;
}

void draft_free(struct draft *d)
{
    if (!d)
        return;
    if (d->kv)
        model_kv_free(d->options.model, d->kv);
    kv_pool_free(d->pool);
    free(d->page_tables);
    free(d->previous);
    free(d->output_rows);
    free(d->row_seqs);
    free(d->positions);
    free(d->token_ids);
    free(d->n_holders);
    free(d->runners);
    free(d->samples);
    free(d->inputs);
    free(d->page_table_memory);
    free(d->followers);
    free(d);
}

/* ---- following the sequences ---- */

static void release_follower(struct draft *d, struct follower *f)
{
    if (!d->is_mtp)
        kv_pool_drop(d->pool, f->page_table, f->n_pages, 0);
    f->is_used = false;
    f->n_pages = 0;
}

void draft_follow(struct draft *d, const struct sequence *seqs)
{
    for (int i = 0; i < d->options.max_seqs; i++) {
        struct follower *f = &d->followers[i];
        if (f->is_used && (!sequence_is_running(&seqs[i]) || sequence_number(&seqs[i]) != f->number))
            release_follower(d, f);
    }
}

/* The draft model has no adapters: its pages are the same for each adapter of the target. */
static struct kv_chain chain_of(const struct sequence *seq)
{
    return (struct kv_chain){ .tenant = seq->request->spec.tenant, .adapter = -1 };
}

/* Takes the cached pages of the sequence's prefix. At least one token remains to be computed, because
 * its logits are needed. */
static void follower_begin(struct draft *d, struct follower *f, const struct sequence *seq, float acceptance)
{
    int n = 0, n_passed; /* every page has a slot */
    if (!d->options.no_prefix_cache && !d->is_mtp)
        n = kv_pool_match(d->pool, chain_of(seq), seq->ids, seq->n_ids - 1, f->page_table, &n_passed);
    f->is_used = true;
    f->number = sequence_number(seq);
    f->n_pages = f->n_published = n;
    f->n_computed = n * d->page_tokens;
    f->n_tail = 0;
    f->acceptance = acceptance;
}

/* Counts draft tokens as computed that were accepted since. */
static void settle_tail(struct follower *f, const struct sequence *seq)
{
    for (int i = 0; i < f->n_tail && f->n_computed == f->tail_at + i; i++)
        if (f->n_computed < seq->n_ids - 1 && seq->ids[f->n_computed] == f->tail[i])
            f->n_computed++;
    f->n_tail = 0;
}

/* Whether the target's page of the sequence's last token is the sequence's own: the MTP layer writes keys
 * and values of draft tokens from there on. */
static bool owns_last_page(const struct draft *d, const struct sequence *seq)
{
    int page = (seq->n_ids - 1) / d->page_tokens;
    return page >= seq->n_pages || !kv_pool_is_shared(d->options.target_pool, seq->page_table[page]);
}

/* Rows to compute before the sequence's first draft token. */
static int count_lag(struct follower *f, const struct sequence *seq)
{
    settle_tail(f, seq);
    if (f->n_computed == seq->n_ids) /* no token was added: compute the last one again for its logits */
        f->n_computed--;
    return seq->n_ids - f->n_computed;
}

bool draft_propose(struct draft *d, const struct speculation *sp, const struct sequence *seq,
                   struct draft_proposal *proposal)
{
    struct follower *f = &d->followers[proposal->seq];
    int room = d->options.model->desc.n_ctx - seq->n_ids;
    if (room <= 0 || proposal->most <= 0 || (d->is_mtp && !owns_last_page(d, seq)))
        return false;
    if (!f->is_used)
        follower_begin(d, f, seq, sp->model_acceptance);
    proposal->is_draft = true;
    proposal->acceptance = f->acceptance;
    proposal->most = proposal->most < room ? proposal->most : room;
    proposal->n_lag = d->is_mtp ? 1 : count_lag(f, seq);
    return true;
}

void draft_note_acceptance(struct draft *d, struct speculation *sp, int slot, int n_drafted, int n_accepted)
{
    speculation_note_acceptance(sp, &d->followers[slot].acceptance, n_drafted, n_accepted);
}

/* ---- pages ---- */

/* Grows a page table to n_tokens. False: too few free pages; none was taken. */
static bool take_pages(struct draft *d, struct kv_pool *pool, int32_t *page_table, int *n_pages, int n_tokens)
{
    int n = (int)kv_pages_of(n_tokens, d->page_tokens) - *n_pages;
    if (n <= 0)
        return true;
    if (!kv_pool_take(pool, n, page_table + *n_pages))
        return false;
    *n_pages += n;
    return true;
}

/* Takes pages for the first n_tokens of a sequence. After the step the scheduler drops those of the target that
 * are left. */
static bool take_pages_for(struct draft *d, struct follower *f, struct sequence *seq, int n_tokens)
{
    return d->is_mtp ? take_pages(d, d->options.target_pool, seq->page_table, &seq->n_pages, n_tokens)
                     : take_pages(d, d->pool, f->page_table, &f->n_pages, n_tokens);
}

static void publish_pages(struct draft *d, struct follower *f, const struct sequence *seq)
{
    /* The last token may be recomputed. */
    int n_known = f->n_computed < seq->n_ids ? f->n_computed : seq->n_ids - 1;
    int n_full = d->options.no_prefix_cache ? 0 : n_known / d->page_tokens;
    for (int page = f->n_published; page < n_full; page++) {
        int32_t parent = page > 0 ? f->page_table[page - 1] : KV_NO_PAGE;
        f->page_table[page] = kv_pool_publish(d->pool, f->page_table[page], chain_of(seq), parent,
                                              seq->ids + page * d->page_tokens);
        f->n_published = page + 1;
    }
}

/* ---- passes ---- */

static void pass_begin(struct draft *d)
{
    d->step = (struct step){ .token_ids = d->token_ids,
                             .positions = d->positions,
                             .seqs = d->row_seqs,
                             .page_tables = d->page_tables,
                             .output_rows = d->output_rows };
}

/* A prompt may contain ids beyond those that have text, up to the target's rows: the draft model may have fewer. */
static void add_rows(struct draft *d, const struct follower *f, const struct sequence *seq, int begin, int n,
                     bool has_output)
{
    struct step *step = &d->step;
    int n_vocab = d->options.model->desc.n_vocab;
    for (int pos = begin; pos < begin + n; pos++) {
        d->previous[step->n_rows] = -1;
        d->token_ids[step->n_rows] = seq->ids[pos] < n_vocab ? seq->ids[pos] : 0;
        d->positions[step->n_rows] = pos;
        d->row_seqs[step->n_rows++] = step->n_seqs;
    }
    if (has_output)
        d->output_rows[step->n_outputs++] = step->n_rows - 1;
    d->page_tables[step->n_seqs++] = d->is_mtp ? seq->page_table : f->page_table;
}

static uint64_t pass_run(struct draft *d, struct speculation *sp)
{
    uint64_t start_us = clock_now_us();
    if (d->is_mtp)
        d->logits = model_submit_mtp(d->options.model, d->options.target_kv, &d->step, d->previous);
    else
        d->logits = d->options.submit(d->options.model, d->kv, &d->step);
    d->options.wait(d->options.model);
    uint64_t us = clock_now_us() - start_us;
    speculation_note_pass(sp, d->step.n_rows, us);
    d->n_passes++;
    d->n_rows += (uint64_t)d->step.n_rows;
    return us;
}

/* The sampling input for a runner's row, as for the target: same settings, same random numbers. */
static struct sample_input draft_input_of(const struct draft *d, const struct runner *runner,
                                          struct sample *out)
{
    const struct sequence *seq = runner->seq;
    const struct request *r = seq->request;
    return (struct sample_input){ .kind = SAMPLE_DRAW,
                                  .row = runner->output,
                                  .n_usable = d->options.target->n_usable_vocab,
                                  .sampling = &r->spec.sampling,
                                  .ids = seq->ids + r->virtual.n,
                                  .n_prompt = request_n_own(r),
                                  .n_ids = seq->n_ids + runner->n_done - r->virtual.n,
                                  .seed = r->seed,
                                  .choice = seq->choice,
                                  .out = out };
}

/* Draws a token for each runner with an output. A stop token is not worth a row. */
static void draw_tokens(struct draft *d)
{
    struct backend *be = d->options.model->backend;
    int n = 0;
    for (int i = 0; i < d->n_runners; i++)
        if (d->runners[i].output >= 0) {
            d->inputs[n] = draft_input_of(d, &d->runners[i], &d->samples[n]);
            n++;
        }
    if (n > 0)
        be->ops->sample(be, d->logits, d->options.model->desc.n_vocab, d->inputs, n);
    n = 0;
    for (int i = 0; i < d->n_runners; i++) {
        struct runner *runner = &d->runners[i];
        if (runner->output < 0)
            continue;
        const struct sample_input *in = &d->inputs[n++];
        struct sequence *seq = runner->seq;
        runner->is_over = !in->is_finite ||
                          request_is_stop_id(seq->request, d->options.target, in->out->token);
        if (!runner->is_over)
            seq->ids[seq->n_ids + runner->n_done++] = in->out->token;
        runner->is_over = runner->is_over || runner->n_done == runner->proposal->n;
    }
}

/* Runs one pass and draws a draft token for each runner with an output. */
static uint64_t pass_and_draw(struct draft *d, struct speculation *sp)
{
    uint64_t us = pass_run(d, sp), start_us = clock_now_us();
    draw_tokens(d);
    return us + clock_now_us() - start_us;
}

/* The first pass: catches up, and computes the rows before each sequence's first draft token. */
static uint64_t run_first(struct draft *d, struct speculation *sp, struct sequence *seqs,
                          struct draft_proposal *proposals, int n_proposals)
{
    d->n_runners = 0;
    pass_begin(d);
    for (int i = 0; i < n_proposals; i++) {
        struct draft_proposal *proposal = &proposals[i];
        if (!proposal->is_draft || proposal->n + proposal->n_catch_up == 0)
            continue;
        struct follower *f = &d->followers[proposal->seq];
        struct sequence *seq = &seqs[proposal->seq];
        bool drafts = proposal->n > 0 && d->n_runners < d->max_outputs;
        int n_rows = drafts ? proposal->n_lag : proposal->n_catch_up;
        int first = d->is_mtp ? seq->n_ids - 1 : f->n_computed;
        if (n_rows == 0 || d->step.n_rows + n_rows > d->max_rows ||
            !take_pages_for(d, f, seq, first + n_rows + proposal->n)) {
            proposal->n = proposal->n_catch_up = 0;
            continue;
        }
        if (drafts)
            d->runners[d->n_runners++] = (struct runner){
                .seq = seq, .follower = f, .proposal = proposal, .output = d->step.n_outputs
            };
        add_rows(d, f, seq, first, n_rows, drafts);
        f->n_computed = d->is_mtp ? 0 : first + n_rows;
        f->n_tail = 0;
    }
    return d->step.n_rows > 0 ? pass_and_draw(d, sp) : 0;
}

/* Prepares a pass over the latest draft token of each unfinished runner. False: there is none. */
static bool add_drafts(struct draft *d)
{
    pass_begin(d);
    for (int i = 0; i < d->n_runners; i++) {
        struct runner *runner = &d->runners[i];
        int before = runner->output;
        runner->output = -1;
        if (runner->is_over)
            continue;
        struct follower *f = runner->follower;
        int pos = runner->seq->n_ids + runner->n_done - 1;
        runner->output = d->step.n_outputs;
        f->tail[f->n_tail++] = runner->seq->ids[pos];
        add_rows(d, f, runner->seq, pos, 1, true);
        d->previous[runner->output] = d->is_mtp ? before : -1;
    }
    return d->step.n_rows > 0;
}

uint64_t draft_run(struct draft *d, struct speculation *sp, struct sequence *seqs,
                   struct draft_proposal *proposals, int n_proposals)
{
    uint64_t us = run_first(d, sp, seqs, proposals, n_proposals);
    while (add_drafts(d))
        us += pass_and_draw(d, sp);
    for (int i = 0; i < n_proposals; i++) {
        struct follower *f = &d->followers[proposals[i].seq];
        if (!d->is_mtp && proposals[i].is_draft && proposals[i].n + proposals[i].n_catch_up > 0)
            publish_pages(d, f, &seqs[proposals[i].seq]);
    }
    for (int i = 0; i < d->n_runners; i++) {
        struct runner *runner = &d->runners[i];
        runner->follower->tail_at = runner->seq->n_ids;
        runner->proposal->n = runner->n_done;
    }
    return us;
}

/* ---- statistics ---- */

struct draft_counts draft_counts(const struct draft *d)
{
    struct draft_counts counts = { .n_passes = d->n_passes, .n_rows = d->n_rows };
    if (!d->is_mtp)
        counts.pages = kv_pool_counts(d->pool);
    return counts;
}

const char *draft_audit(struct draft *d, const struct sequence *seqs)
{
    static _Thread_local char text[120];
    memset(d->n_holders, 0, (size_t)d->options.n_pages * sizeof *d->n_holders);
    for (int i = 0; i < d->options.max_seqs; i++) {
        const struct follower *f = &d->followers[i];
        if (f->is_used && f->number == sequence_number(&seqs[i]) && sequence_is_running(&seqs[i]) &&
            (f->n_computed > seqs[i].n_ids || f->n_computed > f->n_pages * d->page_tokens)) {
            snprintf(text, sizeof text, "draft model, sequence %d: %d pages, %d of %d tokens computed", i,
                     f->n_pages, f->n_computed, seqs[i].n_ids);
            return text;
        }
        for (int k = 0; k < f->n_pages; k++)
            d->n_holders[f->page_table[k]]++;
    }
    return d->is_mtp ? NULL : kv_pool_audit(d->pool, d->n_holders, NULL);
}
