/* The streams that `tutti load` reads: any bytes, in each of the interfaces, however they are cut; and files of prompts,
 * whose bodies are JSON again. The first byte chooses. */
#include "load/answer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void feed(struct answer *a, const char *text, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i += step) {
        uint32_t before = a->n_pieces;
        answer_feed(a, text + i, n - i < step ? n - i : step);
        assert(a->n_pieces >= before && a->n_pieces <= a->n_tokens);
    }
    assert(answer_end(a) == (a->state == ANSWER_COMPLETE));
    assert((a->text[0] != '\0') == (a->state == ANSWER_BAD || a->state == ANSWER_ERROR) ||
           a->state == ANSWER_ERROR);
}

static void read_stream(enum load_api api, const char *text, size_t n)
{
    struct answer whole = { .api = api }, cut = { .api = api };
    feed(&whole, text, n, n + 1);
    feed(&cut, text, n, 1);
    assert(whole.state == cut.state && whole.n_pieces == cut.n_pieces && whole.n_tokens == cut.n_tokens);
    assert(whole.output_tokens == cut.output_tokens && whole.prompt_tokens == cut.prompt_tokens);
    answer_clear(&whole);
    answer_clear(&cut);
}

static void read_prompts(const char *text, size_t n)
{
    struct buf body = { 0 };
    struct work work = { .made = { 0 } };
    struct work_style style = { .api = LOAD_API_OPENAI, .max_tokens = 1, .temperature = NAN };
    if (!buf_add(&work.prompts.bytes, text, n))
        abort();
    if (prompt_file_read(&work.prompts, "file", PROMPTS_TO_SEND, NULL) == TUTTI_OK) {
        for (size_t i = 0; i < work.prompts.n && i < 100; i++) {
            if (work_body(&work, &style, i, &body, NULL) != TUTTI_OK)
                abort();
            json_t *value = json_loadb(body.bytes, body.n_bytes, JSON_ALLOW_NUL, NULL);
            assert(json_is_true(json_object_get(value, "stream")));
            json_decref(value);
        }
    }
    buf_clear(&body);
    prompt_file_clear(&work.prompts);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    const char *text = (const char *)bytes + 1;
    if (bytes[0] % 4 == 3)
        read_prompts(text, n_bytes - 1);
    else
        read_stream((enum load_api)(bytes[0] % 4), text, n_bytes - 1);
    return 0;
}
