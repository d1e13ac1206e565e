/* POST /v1/embeddings: https://platform.openai.com/docs/api-reference/embeddings
 *
 * Each input is a prompt of its own. Vectors are normalized to length 1, even if dimensions
 * truncates them, unless the request or the model's files say no. */
#include "base/json/json_field.h"
#include "server/openai/openai_reply.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

/* Divides x by its length, which must not be 0. */
static void normalize(float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double length = sqrt(sum);
    for (size_t i = 0; i < n && length > 0; i++)
        x[i] = (float)((double)x[i] / length);
}

/* Appends x as little-endian float32 in base64 (RFC 4648, section 4). */
static bool add_base64(struct buf *out, const float *x, size_t n)
{
    size_t n_bytes = n * sizeof *x;
    if (!buf_add_string(out, "\"") || !buf_reserve(out, (n_bytes + 2) / 3 * 4 + 1))
        return false;
    out->n_bytes += (size_t)EVP_EncodeBlock((unsigned char *)out->bytes + out->n_bytes,
                                            (const unsigned char *)(const void *)x, (int)n_bytes);
    return buf_add_string(out, "\"");
}

/* Nine digits represent a float32 exactly. */
static bool add_numbers(struct buf *out, const float *x, size_t n)
{
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        ok = buf_printf(out, "%c%.9g", i == 0 ? '[' : ',', (double)x[i]);
    return ok && buf_add_string(out, "]");
}

static bool add_vector(struct buf *out, const struct api_request *req, const struct tutti_event *event)
{
    size_t n = event->n_embedding;
    if (req->dimensions > 0 && (size_t)req->dimensions < n)
        n = (size_t)req->dimensions;
    float *x = malloc((n + 1) * sizeof *x);
    if (!x)
        return false;
    memcpy(x, event->embedding, n * sizeof *x);
    if (req->normalizes)
        normalize(x, n);
    bool ok = req->is_base64 ? add_base64(out, x, n) : add_numbers(out, x, n);
    free(x);
    return ok;
}

/* ---- the reply ---- */

static void embeddings_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                  const struct tutti_event *event)
{
    (void)index;
    if (event->embedding && !add_vector(&choice->text, &job->req, event))
        job_fail_memory(job);
}

/* Written as text: a tree of that many numbers would take ten times the memory. */
static bool write_reply(struct job *job, struct buf *out)
{
    json_int_t n_tokens = (json_int_t)job_n_prompt_tokens(job, NULL);
    json_t *model = app_model_name(job->app, job->req.adapter);
    bool ok = buf_add_string(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < job->n_choices && ok; i++)
        ok = buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i > 0 ? "," : "",
                        i) &&
             buf_add(out, job->choices[i].text.bytes, job->choices[i].text.n_bytes) &&
             buf_add_string(out, "}");
    ok = ok && buf_add_string(out, "],\"model\":") && json_write(out, model) &&
         buf_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)n_tokens,
                    (long long)n_tokens);
    json_decref(model);
    return ok;
}

static void embeddings_finish(struct job *job)
{
    job_reply(job, write_reply);
}

/* ---- requests ---- */

static enum tutti_status read_words(struct api_request *req, enum tutti_embedding usual,
                                    struct tutti_error *err)
{
    const json_t *format = json_field(req->root, "encoding_format");
    const json_t *pooling = json_field(req->root, "pooling");
    const char *word = json_string_value(format);
    if (format && !(word && (!strcmp(word, "float") || !strcmp(word, "base64"))))
        return error_set_param(err, TUTTI_E_ARGUMENT, "encoding_format",
                               "encoding_format must be \"float\" or \"base64\"");
    req->is_base64 = word && !strcmp(word, "base64");
    word = json_string_value(pooling);
    if (pooling && !(word && (!strcmp(word, "mean") || !strcmp(word, "last") || !strcmp(word, "cls"))))
        return error_set_param(err, TUTTI_E_ARGUMENT, "pooling",
                               "pooling must be \"mean\", \"last\" or \"cls\"");
    req->embedding = !word          ? usual
                     : *word == 'm' ? TUTTI_EMBEDDING_MEAN
                     : *word == 'l' ? TUTTI_EMBEDDING_LAST
                                    : TUTTI_EMBEDDING_FIRST;
    return TUTTI_OK;
}

static enum tutti_status check_inputs(const struct api_request *req, struct tutti_error *err)
{
    for (size_t i = 0; i < req->n_prompts; i++)
        if (req->prompts[i].text && req->prompts[i].n_text_bytes == 0)
            return error_set_param(err, TUTTI_E_ARGUMENT, "input", "input must not have an empty string");
    return TUTTI_OK;
}

static enum tutti_status embeddings_read_value(struct api_request *req, struct app *app, json_t *body,
                                               struct tutti_error *err)
{
    enum tutti_status st = api_request_read_client(req, API_EMBEDDING, app->model, body, err);
    if (st == TUTTI_OK)
        st = check_inputs(req, err);
    if (st == TUTTI_OK)
        st = read_words(req, app_embedding(app) ? app_embedding(app) : TUTTI_EMBEDDING_MEAN, err);
    if (st == TUTTI_OK && req->dimensions > app->info.d_model)
        st = error_set_param(err, TUTTI_E_ARGUMENT, "dimensions",
                             "dimensions is %d, but the vectors of this model have %d", req->dimensions,
                             app->info.d_model);
    return st;
}

const struct job_api OPENAI_EMBEDDINGS = { .id_prefix = "embd-",
                                           .read_value = embeddings_read_value,
                                           .event = embeddings_take_event,
                                           .finish = embeddings_finish,
                                           .fail = openai_fail };
