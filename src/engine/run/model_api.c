/* The functions of include/tutti.h for models and ranks, over struct model. */
#include "backend/kv_type.h"
#include "cluster/cluster.h"
#include "engine/requests/request.h"
#include "engine/run/engine.h"
#include "model/adapters/adapter.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"

#include <stdlib.h>
#include <string.h>

const char *tutti_version(void)
{
    return TUTTI_VERSION;
}

enum tutti_status tutti_model_open(tutti_model **out, const char *path,
                                   const struct tutti_model_options *options, struct tutti_error *err)
{
    struct model *model;
    if (!out || !path)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_model_open: out and path must not be NULL");
    enum tutti_status st = model_load(&model, path, options, err);
    if (st == TUTTI_OK)
        *out = model_handle(model);
    return st;
}

void tutti_model_close(tutti_model *model)
{
    model_free(model_of(model));
}

enum tutti_status tutti_ranks_open(tutti_ranks **out, int n_ranks, int n_groups, struct tutti_error *err)
{
    struct cluster *cluster;
    const struct cluster_options options = { .n_ranks = n_ranks, .n_groups = n_groups };
    if (!out)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_ranks_open: out must not be NULL");
    enum tutti_status st = cluster_open(&cluster, &options, err);
    if (st == TUTTI_OK)
        *out = cluster_handle(cluster);
    return st;
}

void tutti_ranks_close(tutti_ranks *ranks)
{
    cluster_close(cluster_of(ranks));
}

int tutti_ranks_rank(const tutti_ranks *ranks)
{
    return ranks ? cluster_rank(cluster_of(ranks)) : 0;
}

int tutti_ranks_group(const tutti_ranks *ranks)
{
    return ranks ? cluster_group(cluster_of(ranks)) : 0;
}

enum tutti_status tutti_ranks_collect(tutti_ranks *ranks, const void *bytes, size_t n_bytes,
                                      void (*take)(void *user, int group, const void *bytes, size_t n_bytes),
                                      void *user, struct tutti_error *err)
{
    if (!ranks || tutti_ranks_rank(ranks) > 0)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_ranks_collect: expected rank 0 of a group");
    return cluster_collect(cluster_of(ranks), bytes, n_bytes, take, user, err);
}

enum tutti_status tutti_model_follow(tutti_model *handle, struct tutti_error *err)
{
    struct model *model = model_of(handle);
    if (!model || model_rank(model) == 0)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_model_follow: expected a rank above 0 of several");
    return model_follow(model, err);
}

static int32_t end_token(const struct model *model)
{
    int32_t eos = model->tokenizer ? tokenizer_eos(model->tokenizer) : -1;
    return eos < 0 && model->desc.n_stop_ids > 0 ? model->desc.stop_ids[0] : eos;
}

void tutti_model_info(const tutti_model *handle, struct tutti_model_info *out)
{
    const struct model *model = model_of(handle);
    const struct model_desc *d = &model->desc;
    uint64_t kv_page = model->backend->ops->kv_page_bytes(model->backend, model->kv_type);
    *out = (struct tutti_model_info){
        .name = model->name,
        .family = d->family,
        .chat_format = d->chat_format,
        .tool_form = model->marks.tool_form,
        .written_form = model->marks.written ? model->marks.written->name : NULL,
        .reasoning_form = model->marks.reasoning ? model->marks.reasoning->name : NULL,
        .has_reasoning = model->marks.reasoning && model->marks.reasoning->close,
        .weight_type = dtype_name(model->weight_type),
        .kv_type = kv_type_name(model->kv_type),
        .device = model->backend->ops->name,
        .n_layers = d->n_layers,
        .d_model = d->d_model,
        .n_heads = d->kinds[0].attn.n_heads,
        .n_kv_heads = d->kinds[0].attn.n_kv_heads,
        .head_dim = d->kinds[0].attn.head_dim,
        .d_ff = d->kinds[0].ffn.d_ff > 0 ? d->kinds[0].ffn.d_ff : d->kinds[0].ffn.experts.d_ff,
        .n_vocab = d->n_vocab,
        .n_ctx = d->n_ctx,
        .n_params = model->n_params,
        .weight_bytes = model->weight_bytes,
        .kv_bytes_per_token = kv_page / (uint64_t)model_page_tokens(model),
        .uses_mtp = d->uses_mtp,
        .has_tokenizer = model->tokenizer != NULL,
        .has_chat = model->chat && model->tokenizer,
        .has_infill = model->infill.is_known,
        .has_bidirectional_prompt = d->has_prefix,
        .only_embeds = d->is_headless,
        .has_score = d->has_score,
        .has_raw_score = d->has_raw_score,
        .embedding = model->pooling.kind,
        .keeps_length = model->pooling.keeps_length,
        .n_usable_vocab = d->n_usable_vocab,
        .bos_id = model->tokenizer ? tokenizer_bos(model->tokenizer) : -1,
        .eos_id = end_token(model),
        .pad_id = d->pad_id
    };
}

enum tutti_status tutti_model_add_adapter(tutti_model *handle, const char *name, const char *path,
                                          struct tutti_error *err)
{
    struct model *model = model_of(handle);
    if (!model || !name || !path)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "tutti_model_add_adapter: model, name and path must not be NULL");
    if (__atomic_load_n(&model->in_use, __ATOMIC_ACQUIRE))
        return error_set(err, TUTTI_E_ARGUMENT, "adapter %s: an engine is open on this model", name);
    return model_add_adapter(model, name, path, err);
}

int tutti_model_n_adapters(const tutti_model *model)
{
    return model_n_adapters(model_of(model));
}

const char *tutti_model_adapter_name(const tutti_model *handle, int index)
{
    const struct model *model = model_of(handle);
    return index >= 0 && index < model_n_adapters(model) ? model_adapter_name(model, index) : NULL;
}

/* ---- text and tokens ---- */

/* Copies as many ids as there is room for; returns the number of all. */
static size_t copy_ids(const struct ids *list, int32_t *ids, size_t max_ids)
{
    if (list->n > 0 && max_ids > 0)
        memcpy(ids, list->ids, (list->n < max_ids ? list->n : max_ids) * sizeof *ids);
    return list->n;
}

static size_t copy_bytes(const struct buf *buf, char *bytes, size_t max_bytes)
{
    if (buf->n_bytes > 0 && max_bytes > 0)
        memcpy(bytes, buf->bytes, buf->n_bytes < max_bytes ? buf->n_bytes : max_bytes);
    return buf->n_bytes;
}

static int64_t tokenize(const struct model *model, const struct model_text *text, int32_t *ids,
                        size_t max_ids)
{
    struct ids list = { 0 };
    int64_t n = -1;
    if (model->tokenizer && model_encode_text(model, text, &list, NULL) == TUTTI_OK)
        n = (int64_t)copy_ids(&list, ids, max_ids);
    ids_clear(&list);
    return n;
}

int64_t tutti_tokenize(const tutti_model *handle, const char *text, size_t n_bytes, bool add_special,
                       int32_t *ids, size_t max_ids)
{
    struct model_text plain = { .bytes = text, .n_bytes = n_bytes, .add_special = add_special };
    return tokenize(model_of(handle), &plain, ids, max_ids);
}

int64_t tutti_tokenize_trusted(const tutti_model *handle, const char *text, size_t n_bytes, bool add_special,
                               int32_t *ids, size_t max_ids)
{
    struct model_text trusted = {
        .bytes = text, .n_bytes = n_bytes, .add_special = add_special, .parse_special = true
    };
    return tokenize(model_of(handle), &trusted, ids, max_ids);
}

/* Copies the ids that the tokenizer knows; rows that only pad the vocabulary have no text. False:
 * an id is outside the vocabulary, or out of memory. */
static bool keep_known(const struct model *model, const int32_t *ids, size_t n_ids, struct ids *out)
{
    int n_pieces = tokenizer_n_pieces(model->tokenizer);
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || (ids[i] >= n_pieces && ids[i] >= model->desc.n_vocab) ||
            (ids[i] < n_pieces && !ids_add(out, ids[i])))
            return false;
    return true;
}

int64_t tutti_detokenize(const tutti_model *handle, const int32_t *ids, size_t n_ids, char *text,
                         size_t max_bytes)
{
    const struct model *model = model_of(handle);
    struct buf buf = { 0 };
    struct ids known = { 0 };
    int64_t n = -1;
    if (model->tokenizer && keep_known(model, ids, n_ids, &known) &&
        tokenizer_decode(model->tokenizer, known.ids, known.n, &buf))
        n = (int64_t)copy_bytes(&buf, text, max_bytes);
    ids_clear(&known);
    buf_clear(&buf);
    return n;
}

static bool has_token(const struct model *model, int32_t id)
{
    return model && model->tokenizer && id >= 0 && id < tokenizer_n_pieces(model->tokenizer);
}

bool tutti_token_info(const tutti_model *handle, int32_t id, struct tutti_token_info *out)
{
    const struct model *model = model_of(handle);
    *out = (struct tutti_token_info){ .spelling = "" };
    if (!has_token(model, id))
        return false;
    struct piece piece = tokenizer_piece(model->tokenizer, id);
    *out = (struct tutti_token_info){ .spelling = piece.bytes,
                                      .n_bytes = piece.n_bytes,
                                      .is_special = piece.type == PIECE_CONTROL };
    return true;
}

int64_t tutti_token_bytes(const tutti_model *handle, int32_t id, char *bytes, size_t max_bytes)
{
    const struct model *model = model_of(handle);
    struct buf buf = { 0 };
    int64_t n = -1;
    if (has_token(model, id) && tokenizer_token_bytes(model->tokenizer, id, &buf))
        n = (int64_t)copy_bytes(&buf, bytes, max_bytes);
    else if (model && model->tokenizer && !has_token(model, id) && id >= 0 && id < model->desc.n_vocab)
        n = 0;
    buf_clear(&buf);
    return n;
}

enum tutti_status tutti_apply_chat_template(const tutti_model *handle, const struct tutti_request *request,
                                            int32_t *ids, size_t max_ids, size_t *n_ids,
                                            struct tutti_error *err)
{
    const struct model *model = model_of(handle);
    struct ids list = { 0 };
    if (!model || !request || !n_ids)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "tutti_apply_chat_template: model, request and n_ids must not be NULL");
    enum tutti_status st = request_check_messages(request, model, err);
    if (st == TUTTI_OK)
        st = chat_render(model, request, &list, err);
    if (st == TUTTI_OK)
        *n_ids = copy_ids(&list, ids, max_ids);
    ids_clear(&list);
    return st;
}

enum tutti_status tutti_apply_infill(const tutti_model *handle, const struct tutti_infill *infill,
                                     int32_t *ids, size_t max_ids, size_t *n_ids, size_t *n_left_out,
                                     struct tutti_error *err)
{
    const struct model *model = model_of(handle);
    struct ids list = { .max = max_ids };
    if (!model || !infill || !ids || !n_ids || !n_left_out || max_ids == 0)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "tutti_apply_infill: model, infill, ids, n_ids and n_left_out must not be NULL, "
                         "max_ids not 0");
    if (!model->infill.is_known)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "model %s cannot fill a gap: its vocabulary has no tokens for fill-in-the-middle "
                         "(FIM), such as <|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>",
                         model->name);
    enum tutti_status st = infill_render(model, infill, &list, n_left_out, err);
    if (st == TUTTI_OK)
        *n_ids = copy_ids(&list, ids, max_ids);
    ids_clear(&list);
    return st;
}

size_t tutti_infill_stops(const tutti_model *handle, int32_t *ids, size_t max_ids)
{
    const struct infill_tokens *tokens = &model_of(handle)->infill;
    size_t n = (size_t)tokens->n_stops;
    if (n > 0 && max_ids > 0)
        memcpy(ids, tokens->stops, (n < max_ids ? n : max_ids) * sizeof *ids);
    return n;
}

void tutti_sampling_init(struct tutti_sampling *out, const tutti_model *model)
{
    if (model)
        *out = model_of(model)->sampling;
    else
        *out = (struct tutti_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
}

/* ---- logits of one sequence, to compare a model with a reference ---- */

enum { LOGITS_ROWS = 64 }; /* rows of a step; a prefix is one step, so each of its rows may need logits */

static enum tutti_status check_ids(const struct model *model, const int32_t *ids, size_t n_ids,
                                   struct tutti_error *err)
{
    if (n_ids < 1 || n_ids > LIMIT_CONTEXT)
        return error_set_param(err, TUTTI_E_ARGUMENT, "ids", "%zu token ids, expected 1 to %d", n_ids,
                               LIMIT_CONTEXT);
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= model->desc.n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, "ids", "token id %d at %zu, expected 0 to %d",
                                   ids[i], i, model->desc.n_vocab - 1);
    }
    if (model_desc_ends_at_context(&model->desc) && n_ids > (size_t)model->desc.n_ctx)
        return error_set_param(err, TUTTI_E_ARGUMENT, "ids",
                               "%zu token ids, but the model has a context of %d tokens", n_ids,
                               model->desc.n_ctx);
    if (model->in_use)
        return error_set(err, TUTTI_E_ARGUMENT, "an engine is open on this model; close it first");
    return TUTTI_OK;
}

/* The arrays of a step of one sequence, for up to max_rows rows. */
struct logits_step {
    int32_t *numbers; /* memory of all arrays: [5][max_rows] */
    int32_t *positions, *seqs, *outputs, *ropes, *blocks;
};

static bool logits_step_init(struct logits_step *s, int max_rows)
{
    size_t n = (size_t)max_rows;
    *s = (struct logits_step){ .numbers = calloc(5 * n, sizeof *s->numbers) };
    if (!s->numbers)
        return false;
    s->positions = s->numbers;
    s->seqs = s->numbers + n;
    s->outputs = s->numbers + 2 * n;
    s->ropes = s->numbers + 3 * n;
    s->blocks = s->numbers + 4 * n;
    return true;
}

static void run_logits(struct model *model, struct kv_memory *kv, const struct logits_step *s,
                       const struct prefix *prefix, const int32_t *pages, const int32_t *ids, int begin,
                       int n, float *logits)
{
    bool has_prefix = model->desc.has_prefix;
    const int32_t *tables[1] = { pages };
    for (int i = 0; i < n; i++) {
        s->positions[i] = begin + i;
        s->outputs[i] = i;
        model_prefix_positions(prefix, begin + i, &s->ropes[i], &s->blocks[i]);
    }
    struct step step = { .n_rows = n,
                         .n_seqs = 1,
                         .n_outputs = n,
                         .token_ids = ids + begin,
                         .positions = s->positions,
                         .seqs = s->seqs,
                         .page_tables = tables,
                         .output_rows = s->outputs,
                         .prefix_lens = has_prefix ? &prefix->n : NULL,
                         .rope_positions = has_prefix ? s->ropes : NULL,
                         .block_positions = has_prefix ? s->blocks : NULL };
    model_read_logits(model, model_forward(model, kv, &step), n,
                      logits + (size_t)begin * (size_t)model->desc.n_vocab);
}

enum tutti_status tutti_model_logits(tutti_model *handle, const int32_t *ids, size_t n_ids, float *logits,
                                     struct tutti_error *err)
{
    struct model *model = model_of(handle);
    enum tutti_status st = check_ids(model, ids, n_ids, err);
    if (st == TUTTI_OK)
        st = model_check_generates(model, err);
    if (st != TUTTI_OK)
        return st;
    int n = (int)n_ids, n_pages = model_pages_of(model, n);
    struct prefix prefix = model_find_prefix(&model->desc, ids, n);
    int max_rows = prefix.n > LOGITS_ROWS ? prefix.n : LOGITS_ROWS;
    struct kv_memory *kv = NULL;
    struct logits_step step = { 0 };
    int32_t *pages = calloc((size_t)n_pages + 1, sizeof *pages);
    if (!pages || !logits_step_init(&step, max_rows)) {
        st = error_set(err, TUTTI_E_MEMORY, "logits: out of memory");
        goto done;
    }
    st = model_reserve(model, max_rows, max_rows, err);
    if (st == TUTTI_OK)
        st = model_kv_new(model, &kv, n_pages, n_pages, err);
    if (st != TUTTI_OK)
        goto done;
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    for (int at = 0, rows; at < n; at += rows) {
        rows = at < prefix.n ? max_rows : LOGITS_ROWS;
        rows = n - at < rows ? n - at : rows;
        run_logits(model, kv, &step, &prefix, pages, ids, at, rows, logits);
    }
    st = model_check(model, err);
done:
    model_kv_free(model, kv);
    free(step.numbers);
    free(pages);
    return st;
}
