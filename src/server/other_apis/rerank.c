/* POST /v1/rerank, in the shape of Jina's, Cohere's, vLLM's and llama-server's: documents by their relevance
 * for a query.
 *
 * A cross-encoder scores each pair of query and document; another model for embeddings is given the query and
 * each document as prompts of their own, and the score is the cosine of the two vectors. */
#include "base/json/json_field.h"
#include "server/openai/openai_reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rerank_take_event(struct job *job, size_t index, struct reply_choice *choice,
                              const struct tutti_event *event)
{
    (void)index;
    if (event->embedding && !buf_add(&choice->text, (const char *)event->embedding,
                                     event->n_embedding * sizeof *event->embedding))
        job_fail_memory(job);
}

/* ---- scores ---- */

struct ranked {
    size_t index; /* of the document */
    double score;
};

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double cosine(const struct buf *a, const struct buf *b)
{
    const float *x = (const float *)(const void *)a->bytes, *y = (const float *)(const void *)b->bytes;
    size_t n = a->n_bytes / sizeof *x;
    double lengths = n > 0 && n == b->n_bytes / sizeof *y ? sqrt(dot(x, x, n) * dot(y, y, n)) : 0;
    return lengths > 0 ? dot(x, y, n) / lengths : 0;
}

static double score_of(const struct job *job, size_t document)
{
    const struct tutti_model_info *info = &job->app->info;
    if (!info->has_score)
        return cosine(&job->choices[0].text, &job->choices[document + 1].text);
    float x = 0;
    if (job->choices[document].text.n_bytes >= sizeof x)
        memcpy(&x, job->choices[document].text.bytes, sizeof x);
    return info->has_raw_score ? (double)x : 1 / (1 + exp(-(double)x));
}

/* The most relevant first; equal ones in the order of the request. */
static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score > y->score || x->score < y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* ---- the reply ---- */

static json_t *result_value(const struct job *job, const struct ranked *r)
{
    const struct api_prompt *prompt = &job->req.prompts[r->index + !job->app->info.has_score];
    const char *text = prompt->pair ? prompt->pair : prompt->text;
    size_t n_bytes = prompt->pair ? prompt->n_pair_bytes : prompt->n_text_bytes;
    json_t *document = job->req.returns_documents ? json_pack("{s:s%}", "text", text, n_bytes) : NULL;
    return json_pack("{s:I, s:f, s:o*}", "index", (json_int_t)r->index, "relevance_score", r->score,
                     "document", document);
}

static json_t *reply_value(const struct job *job, const struct ranked *ranked, size_t n)
{
    json_int_t n_tokens = (json_int_t)job_n_prompt_tokens(job, NULL);
    json_t *results = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(results, result_value(job, &ranked[i])) != 0) {
            json_decref(results);
            return NULL;
        }
    return json_pack("{s:s, s:s, s:o, s:o, s:{s:I, s:I}}", "id", job->id, "object", "list", "model",
                     app_model_name(job->app, job->req.adapter), "results", results, "usage", "prompt_tokens",
                     n_tokens, "total_tokens", n_tokens);
}

static bool write_reply(struct job *job, struct buf *out)
{
    size_t n = job->req.n_prompts - !job->app->info.has_score;
    struct ranked *ranked = calloc(n + 1, sizeof *ranked);
    json_t *value = NULL;
    if (ranked) {
        for (size_t i = 0; i < n; i++)
            ranked[i] = (struct ranked){ i, score_of(job, i) };
        qsort(ranked, n, sizeof *ranked, compare_ranked);
        if (job->req.top_n > 0 && (size_t)job->req.top_n < n)
            n = (size_t)job->req.top_n;
        value = reply_value(job, ranked, n);
    }
    free(ranked);
    return job_write_json(out, value, "");
}

static void rerank_finish(struct job *job)
{
    job_reply(job, write_reply);
}

/* ---- requests ---- */

static enum tutti_status rerank_read_value(struct api_request *req, struct app *app, json_t *body,
                                           struct tutti_error *err)
{
    enum tutti_status st = api_request_read_client(req, API_RERANK, app->model, body, err);
    if (st != TUTTI_OK)
        return st;
    req->embedding = app->info.has_score ? TUTTI_EMBEDDING_FIRST : app_embedding(app);
    if (req->embedding == TUTTI_EMBEDDING_NONE)
        return error_set_param(err, TUTTI_E_ARGUMENT, "model",
                               "%s cannot rank documents: it is no cross-encoder, and its files name no "
                               "pooling for embeddings; serve a model that was made for one of the two",
                               app->model_id);
    return TUTTI_OK;
}

const struct job_api RERANK = { .id_prefix = "rerank-",
                                .read_value = rerank_read_value,
                                .event = rerank_take_event,
                                .finish = rerank_finish,
                                .fail = openai_fail };
