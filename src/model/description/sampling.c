#include "model/description/sampling.h"

const struct sampling_names SAMPLING_NAMES[N_SAMPLING_KEYS] = {
    [SAMPLING_TEMPERATURE] = { "temperature", "general.sampling.temp" },
    [SAMPLING_TOP_P] = { "top_p", "general.sampling.top_p" },
    [SAMPLING_TOP_K] = { "top_k", "general.sampling.top_k" },
    [SAMPLING_MIN_P] = { "min_p", "general.sampling.min_p" },
    [SAMPLING_REPETITION] = { "repetition_penalty", "general.sampling.penalty_repeat" },
};

const json_t *sampling_default(const struct checkpoint *ck, const json_t *generation, enum sampling_key key)
{
    enum { OF_TRANSFORMERS = 50 }; /* top_k in configurations that list all settings */
    if (checkpoint_gguf(ck))
        return json_object_get(checkpoint_config(ck), SAMPLING_NAMES[key].of_gguf);
    const json_t *value = json_object_get(generation ? generation : checkpoint_config(ck),
                                          SAMPLING_NAMES[key].of_folder);
    bool is_usual = !generation && key == SAMPLING_TOP_K && json_number_value(value) == OF_TRANSFORMERS;
    return is_usual ? NULL : value;
}
