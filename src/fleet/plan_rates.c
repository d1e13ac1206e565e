#include "fleet/plan_rates.h"

#include "backend/kv_type.h"
#include "base/json/json_type.h"
#include "checkpoint/json_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 256 };

struct reader {
    const char *path;
    char place[64]; /* "results[1]." */
    struct tutti_error *err;
};

/* A number above 0, or of 0 too. */
static enum tutti_status get_number(const struct reader *r, const json_t *object, const char *key,
                                    bool can_be_zero, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: %s%s: %s, expected a number, as tutti bench --json prints it", r->path,
                         r->place, key, json_type_name(value));
    *out = json_number_value(value);
    if (isfinite(*out) && (*out > 0 || (can_be_zero && *out == 0)))
        return TUTTI_OK;
    return error_set(r->err, TUTTI_E_FORMAT, "%s: %s%s: %g, expected a positive number", r->path, r->place,
                     key, *out);
}

static enum tutti_status read_sample(struct reader *r, const json_t *object, struct plan_sample *s)
{
    double rows = 0, tok_s = 1;
    enum tutti_status st = get_number(r, object, "tokens", false, &rows);
    if (st == TUTTI_OK)
        st = get_number(r, object, "tok_s", false, &tok_s);
    if (st == TUTTI_OK)
        st = get_number(r, object, "matrix_bytes", false, &s->matrix_bytes);
    if (st == TUTTI_OK)
        st = get_number(r, object, "kv_bytes", true, &s->kv_bytes);
    if (st == TUTTI_OK)
        st = get_number(r, object, "linear_ops", false, &s->linear_ops);
    if (st == TUTTI_OK)
        st = get_number(r, object, "attention_ops", true, &s->attention_ops);
    s->n_rows = rows < 1e6 ? (int)rows : 1000000;
    s->seconds = rows / tok_s;
    return st;
}

static enum tutti_status read_samples(struct reader *r, const json_t *root, struct plan_sample *samples,
                                      int *n)
{
    const json_t *list = json_object_get(root, "results");
    if (!json_is_array(list) || json_array_size(list) > MAX_SAMPLES)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: results: %s, expected a list of at most %d steps",
                         r->path, json_type_name(list), MAX_SAMPLES);
    *n = (int)json_array_size(list);
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < *n && st == TUTTI_OK; i++) {
        snprintf(r->place, sizeof r->place, "results[%d].", i);
        st = read_sample(r, json_array_get(list, (size_t)i), &samples[i]);
    }
    r->place[0] = '\0';
    return st;
}

/* Reads the decode result with kv_type and the longest context. out->seconds stays 0 if there is
 * none. */
static enum tutti_status read_attention(struct reader *r, const json_t *root, enum dtype kv_type,
                                        struct plan_attention_sample *out)
{
    const json_t *list = json_object_get(root, "attention");
    double longest = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *object = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(object, "kv_type"));
        double rows = 0, context = 0, row_ms = 0, gflops = 0, of_f32 = 0;
        snprintf(r->place, sizeof r->place, "attention[%zu].", i);
        enum tutti_status st = get_number(r, object, "rows", false, &rows);
        if (st == TUTTI_OK)
            st = get_number(r, object, "context", false, &context);
        if (st != TUTTI_OK)
            return st;
        if (!type || strcmp(type, kv_type_name(kv_type)) != 0 || rows != 1 || context <= longest)
            continue;
        longest = context;
        st = get_number(r, object, "row_ms", false, &row_ms);
        if (st == TUTTI_OK)
            st = get_number(r, object, "read_bytes", false, &out->kv_bytes);
        if (st == TUTTI_OK)
            st = get_number(r, object, "read_gbps", false, &out->read_gbps);
        if (st == TUTTI_OK)
            st = get_number(r, object, "gflops", false, &gflops);
        if (st == TUTTI_OK)
            st = get_number(r, object, "of_f32", false, &of_f32);
        if (st != TUTTI_OK)
            return st;
        out->seconds = row_ms / 1e3;
        out->ops = gflops * 1e9 * out->seconds;
        out->f32_gflops = gflops / of_f32;
    }
    r->place[0] = '\0';
    return TUTTI_OK;
}

static enum tutti_status read_rates(struct reader *r, const json_t *root, struct plan_rates *rates,
                                    enum dtype kv_type)
{
    struct plan_sample samples[MAX_SAMPLES];
    struct plan_attention_sample attention = { 0 };
    double threads = 0, read_gbps = 0, f32_gflops = 0;
    int n = 0;
    const char *type = json_string_value(json_object_get(root, "type"));
    if (!type || strcmp(type, dtype_name(rates->type)) != 0)
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: type: %s weights were measured, but the model runs as %s", r->path,
                         type ? type : "no", dtype_name(rates->type));
    enum tutti_status st = get_number(r, root, "threads", false, &threads);
    if (st == TUTTI_OK)
        st = get_number(r, root, "read_gbps", false, &read_gbps);
    if (st == TUTTI_OK)
        st = get_number(r, root, "peak_f32_gflops", true, &f32_gflops);
    if (st == TUTTI_OK)
        st = read_samples(r, root, samples, &n);
    if (st == TUTTI_OK)
        st = read_attention(r, root, kv_type, &attention);
    if (st != TUTTI_OK)
        return st;
    rates->n_cores = threads < 1 ? 1 : threads < 1e6 ? (int)threads : 1000000;
    st = plan_rates_fit(rates, samples, n, &attention, read_gbps, f32_gflops, r->err);
    if (st != TUTTI_OK)
        error_prefix(r->err, "%s", r->path);
    return st;
}

enum tutti_status plan_rates_read(struct plan_rates *out, const char *path, enum dtype type,
                                  enum dtype kv_type, struct tutti_error *err)
{
    struct reader r = { .path = path, .err = err };
    struct plan_rates rates = { .type = type };
    json_t *root = NULL;
    enum tutti_status st = json_file_load(path, &root, err);
    if (st == TUTTI_OK && !root)
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s: No such file or directory", path);
    if (st == TUTTI_OK)
        st = read_rates(&r, root, &rates, kv_type);
    if (st == TUTTI_OK)
        *out = rates;
    json_decref(root);
    return st;
}
