/* Any bytes as a GGUF file: an error, or tensors, arrays and scalars that can all be read. */
#include "checkpoint/gguf/gguf.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static unsigned read_array(const struct gguf_array *array)
{
    unsigned sum = 0;
    for (size_t i = 0; i < gguf_array_n(array); i++) {
        if (gguf_array_type(array) == GGUF_STRING) {
            const char *text;
            size_t n;
            gguf_array_string(array, i, &text, &n);
            for (size_t k = 0; k < n; k++)
                sum += (unsigned char)text[k];
        } else {
            sum += (unsigned)gguf_array_int(array, i) + (gguf_array_float(array, i) > 0);
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const KEYS[] = {
        "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "a", "strings", "ints"
    };
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    if (tensor_set_open_memory(&file, &GGUF_FORMAT, bytes, n_bytes, "fuzz", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !file);
        return 0;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < file->n; i++) {
        const struct tensor *t = &file->tensors[i];
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += ((const uint8_t *)t->data)[k];
    }
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const struct gguf_array *array = gguf_find_array(gguf_of(file), KEYS[i]);
        if (array)
            sum += read_array(array);
    }
    assert(json_is_object(gguf_scalars(gguf_of(file))));
    tensor_set_close(file);
    return sum == 1 ? 0 : 0;
}
