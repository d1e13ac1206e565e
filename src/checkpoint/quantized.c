#include "checkpoint/quantized.h"

#include "base/json/json_field.h"

#include <stdio.h>
#include <string.h>

/* Last words of tensors' names that replace "weight", with the method that uses them. */
static const struct {
    const char *end, *method;
} ENDS[] = {
    { "qweight", "GPTQ or AWQ" },
    { "B", "Marlin" },
    { "weight_packed", "compressed-tensors" },
    { "weight_scale_inv", "fp8" },
    { "SCB", "bitsandbytes" },
    { "weight.absmax", "bitsandbytes" },
    { "Wq", "HQQ" },
    { "codebooks", "AQLM" },
};

const char *quantized_find(const struct checkpoint *ck, const char *name)
{
    char other[LIMIT_TENSOR_NAME_BYTES + 32];
    const char *dot = strrchr(name, '.');
    if (!dot || strlen(name) > LIMIT_TENSOR_NAME_BYTES)
        return NULL;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        snprintf(other, sizeof other, "%.*s.%s", (int)(dot - name), name, ENDS[i].end);
        if (checkpoint_find(ck, other))
            return ENDS[i].method;
    }
    return NULL;
}

/* The method's name in the object; bitsandbytes did not always write it, and MLX does not. */
static const char *method_of(const json_t *object)
{
    const char *method = json_string_value(json_object_get(object, "quant_method"));
    if (!method)
        method = json_string_value(json_object_get(object, "quant_algo"));
    if (method)
        return method;
    if (json_is_on(object, "load_in_4bit") || json_is_on(object, "load_in_8bit") ||
        json_is_on(object, "_load_in_4bit") || json_is_on(object, "_load_in_8bit"))
        return "bitsandbytes";
    return "of a kind that is not named";
}

enum tutti_status quantized_check_config(const json_t *config, const char *path, struct tutti_error *err)
{
    /* The second: compressed-tensors' first versions. The third: MLX. */
    static const char *const KEYS[] = { "quantization_config", "compression_config", "quantization" };
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *value = json_object_get(config, KEYS[i]);
        if (json_object_size(value) == 0)
            continue;
        const char *method = i == 0 ? method_of(value) : i == 1 ? "compressed-tensors" : "MLX";
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: %s: the weights are quantized (quant_method %.64s), expected f32, f16 or bf16: %s", path,
            KEYS[i], method, QUANTIZED_ADVICE);
    }
    return TUTTI_OK;
}
