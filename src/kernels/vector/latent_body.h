/* Scores of latent pages, [16][head_dim] rows of positions: a part of attention_body.h. Elements of a
 * row are contiguous, so that a vector holds 16 dimensions of one position, and a score is the sum over
 * the vector's lanes. */

/* Scores of n queries with n_keys positions of a page, from key on; both are compile-time constants. */
INLINE void latent_tile(const struct score_block *b, int query, const int n, int page, int key,
                        const int n_keys, const enum kv_kind kind)
{
    int head_dim = b->work->head_dim, d = 0;
    const float *q = b->work->q + query * head_dim;
    const uint8_t *rows = b->pages[page] + bytes_of(kind, key * head_dim);
    const uint8_t *next = b->next[page % PAGE_GROUP] + bytes_of(kind, key * head_dim);
    float *p = b->p + query * ATTENTION_BLOCK + page * ATTENTION_KEYS + key;
    float scores[16];
    vec16 sum[16];
    UNROLL
    for (int i = 0; i < n * n_keys; i++)
        sum[i] = v_set(0);
    for (; d + 16 <= head_dim; d += 16) {
        vec16 k[4];
        UNROLL
        for (int j = 0; j < n_keys; j++) {
            k[j] = load_16(rows, kind, j * head_dim + d);
            if (query == 0)
                prefetch_into_l2(next + bytes_of(kind, j * head_dim + d));
        }
        UNROLL
        for (int i = 0; i < n; i++) {
            vec16 x = v_load(q + i * head_dim + d);
            UNROLL
            for (int j = 0; j < n_keys; j++)
                sum[i * n_keys + j] = v_fma(x, k[j], sum[i * n_keys + j]);
        }
    }
    if (d < head_dim) {
        UNROLL
        for (int j = 0; j < n_keys; j++) {
            vec16 k = load_8(rows, kind, j * head_dim + d);
            UNROLL
            for (int i = 0; i < n; i++)
                sum[i * n_keys + j] = v_fma(v_load_n(q + i * head_dim + d, 8), k, sum[i * n_keys + j]);
        }
    }
    UNROLL
    for (int i = 0; i < n * n_keys; i += 4)
        v_fold_four(scores + i, sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    UNROLL
    for (int i = 0; i < n; i++)
        memcpy(p + i * ATTENTION_BLOCK, scores + i * n_keys, (size_t)n_keys * sizeof *p);
}

/* One part of the rows, the latent or the rotary part: n_dims dimensions, in steps of 32. After
 * them q is zero, and the row goes on with other elements or with the scales. scores: [n][stride]. */
INLINE void latent_part_int8(const struct score_block *b, const int16_t *q, const int n, const int8_t *rows,
                             const uint8_t *next, const int n_keys, int n_dims, float *scores, int stride)
{
    int head_dim = b->work->head_dim;
    ivec16 sum[16];
    UNROLL
    for (int i = 0; i < n * n_keys; i++)
        sum[i] = iv_zero();
    for (int d = 0; d < n_dims; d += 32) {
        ivec16 k[4];
        UNROLL
        for (int j = 0; j < n_keys; j++) {
            k[j] = iv_load_bytes(rows + j * head_dim + d);
            if (next)
                prefetch_into_l2(next + j * head_dim + d);
        }
        UNROLL
        for (int i = 0; i < n; i++) {
            ivec16 x = iv_load_words(q + i * Q_STRIDE + d);
            UNROLL
            for (int j = 0; j < n_keys; j++)
                sum[i * n_keys + j] = iv_dot(x, k[j], sum[i * n_keys + j]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int j = 0; j < n_keys; j++)
        scores[i * stride + j] = (float)iv_fold(sum[i * n_keys + j]);
}

/* Where the rotary part of a query begins in q_int, so that the latent part is padded with zeros. */
INLINE int rotary_at(const struct attention_work *work)
{
    return (work->n_latent + 31) / 32 * 32;
}

/* The sums of the latent parts go into p, those of the rotary parts into rotary [n][ATTENTION_KEYS]. */
INLINE void latent_tile_int8(const struct score_block *b, int query, const int n, int page, int key,
                             const int n_keys, float *rotary)
{
    const struct attention_work *work = b->work;
    const int16_t *q = b->q_int + query * Q_STRIDE;
    const int8_t *rows = (const int8_t *)b->pages[page] + key * work->head_dim;
    const uint8_t *next = query == 0 ? b->next[page % PAGE_GROUP] + key * work->head_dim : NULL;
    latent_part_int8(b, q, n, rows, next, n_keys, work->n_latent,
                     b->p + query * ATTENTION_BLOCK + page * ATTENTION_KEYS + key, ATTENTION_BLOCK);
    latent_part_int8(b, q + rotary_at(work), n, rows + work->n_latent, NULL, n_keys,
                     work->head_dim - work->n_latent, rotary + key, ATTENTION_KEYS);
}

/* Multiplies the integer sums of a page by their scales. */
INLINE void scale_latent_scores(const struct score_block *b, int query, const int n, int page,
                                const float *rotary)
{
    const float *scales = (const float *)(b->pages[page] + b->work->head_dim * ATTENTION_KEYS);
    vec16 latent_scale = v_load(scales), rotary_scale = v_load(scales + ATTENTION_KEYS);
    UNROLL
    for (int i = 0; i < n; i++) {
        float *p = b->p + (query + i) * ATTENTION_BLOCK + page * ATTENTION_KEYS;
        vec16 latent = v_mul(v_load(p), v_mul(latent_scale, v_set(b->q_scale[query + i])));
        v_store(p, v_fma(v_load(rotary + i * ATTENTION_KEYS),
                         v_mul(rotary_scale, v_set(b->q_rotary_scale[query + i])), latent));
    }
}

/* n queries, one page. */
INLINE void latent_page(const struct score_block *b, int query, const int n, int page,
                        const enum kv_kind kind)
{
    const int n_keys = vectors_of_each(n, 4);
    float rotary[4 * ATTENTION_KEYS];
    for (int key = 0; key < ATTENTION_KEYS; key += n_keys) {
        if (kind == KV_INT8)
            latent_tile_int8(b, query, n, page, key, n_keys, rotary);
        else
            latent_tile(b, query, n, page, key, n_keys, kind);
    }
    if (kind == KV_INT8)
        scale_latent_scores(b, query, n, page, rotary);
}

INLINE void score_latent_block(struct score_block *b, const enum kv_kind kind)
{
    int n_queries = b->work->n_queries;
    for (int page = b->begin_page; page < b->end_page; page++) {
        int i = 0;
        if (page == b->begin_page || page % PAGE_GROUP == 0)
            set_next_group(b, page / PAGE_GROUP * PAGE_GROUP, false);
        for (; i + 4 <= n_queries; i += 4)
            latent_page(b, i, 4, page, kind);
        for (; i + 2 <= n_queries; i += 2)
            latent_page(b, i, 2, page, kind);
        for (; i < n_queries; i++)
            latent_page(b, i, 1, page, kind);
    }
}
