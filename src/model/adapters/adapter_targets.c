/* Which modules the configuration changes, by the rules of PEFT: target_modules, exclude_modules,
 * layers_to_transform and modules_to_save. PEFT passes over tensors of all other modules. */
#include "model/adapters/adapter_reader.h"

#include "checkpoint/text_part.h"
#include "model/weights/weights.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    PATTERN_STEPS = 100000, /* limit for matching one pattern with one path */
    PATTERN_DEPTH = 1000,
};

static pcre2_code *compile(const char *expression, uint32_t options)
{
    int code;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED | options,
                         &code, &at, NULL);
}

/* As Python's re.match(), or with PCRE2_ENDANCHORED re.fullmatch(). *number: receives that of the last
 * group; NULL: not wanted. */
static bool matches(const char *expression, const char *path, uint32_t options, long *number)
{
    pcre2_code *compiled = compile(expression, options);
    pcre2_match_data *data = compiled ? pcre2_match_data_create_from_pattern(compiled, NULL) : NULL;
    pcre2_match_context *limits = data ? pcre2_match_context_create(NULL) : NULL;
    int n_groups = -1;
    if (limits) {
        pcre2_set_match_limit(limits, PATTERN_STEPS);
        pcre2_set_depth_limit(limits, PATTERN_DEPTH);
        n_groups = pcre2_match(compiled, (PCRE2_SPTR)path, strlen(path), 0, 0, data, limits);
    }
    if (n_groups > 0 && number)
        *number = strtol(path + pcre2_get_ovector_pointer(data)[2 * (n_groups - 1)], NULL, 10);
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return n_groups >= 0;
}

bool adapter_pattern_matches(const char *pattern, const char *path)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "(.*\\.)?(%s)", pattern);
    return n > 0 && (size_t)n < sizeof text && matches(text, path, PCRE2_ENDANCHORED, NULL);
}

static bool ends_with(const char *path, size_t n_path, const char *name)
{
    size_t n = strlen(name);
    return n <= n_path && strncmp(path + n_path - n, name, n) == 0;
}

/* Whether path is name, or ends with it after a dot. */
static bool is_named(const char *path, const char *name)
{
    size_t n_path = strlen(path), n = strlen(name);
    return ends_with(path, n_path, name) && (n == n_path || path[n_path - n - 1] == '.');
}

/* is_whole: only as the whole path. */
static bool is_listed(const json_t *names, const char *path, bool is_whole)
{
    for (size_t i = 0; json_is_array(names) && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (is_whole ? strcmp(path, name) == 0 : is_named(path, name))
            return true;
    }
    return false;
}

/* Whether path is a module that modules_to_save calls name, or within one. PEFT wraps every module whose path
 * ends with the name, not only with whole parts of it. */
static bool is_within(const char *path, const char *name)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
        if (ends_with(path, (size_t)(dot - path), name))
            return true;
    return ends_with(path, strlen(path), name);
}

bool adapter_is_saved(const struct adapter_reader *r, const char *path)
{
    const json_t *names = json_object_get(r->config, "modules_to_save");
    for (size_t i = 0; json_is_array(names) && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (is_within(path, name))
            return true;
    }
    return false;
}

/* The number of path's layer, which follows a part that matches the pattern; NULL: any part but the first. -1: none. */
static long layer_of(const char *path, const char *pattern)
{
    char text[1024];
    long layer = -1;
    int n = snprintf(text, sizeof text, "%s%s\\.(\\d+)\\.", pattern ? "(?:^|.*?\\.)" : ".*?\\.",
                     pattern ? pattern : "[^.]*");
    if (n > 0 && (size_t)n < sizeof text)
        matches(text, path, 0, &layer);
    return layer;
}

/* Whether layers_to_transform has the layer of path. */
static bool is_of_layers(const struct adapter_reader *r, const char *path)
{
    const json_t *layers = json_object_get(r->config, "layers_to_transform"),
                 *patterns = json_object_get(r->config, "layers_pattern");
    const char *pattern = json_string_length(patterns) > 0 ? json_string_value(patterns) : NULL;
    if (!json_is_integer(layers) && json_array_size(layers) == 0)
        return true;
    long layer = json_array_size(patterns) == 0 ? layer_of(path, pattern) : -1;
    for (size_t i = 0; layer < 0 && i < json_array_size(patterns); i++)
        if ((pattern = json_string_value(json_array_get(patterns, i))))
            layer = layer_of(path, pattern);
    for (size_t i = 0; layer >= 0 && i < json_array_size(layers); i++)
        if (json_integer_value(json_array_get(layers, i)) == layer)
            return true;
    return layer >= 0 && json_is_integer(layers) && json_integer_value(layers) == layer;
}

/* Whether an expression matches the module under a name that a release of transformers has given it: those of a language
 * part next to a vision part differ, and PEFT renames the tensors of older files. */
static bool matches_module(const char *expression, const char *path)
{
    static const char *const HEADS[] = { "", "language_model.", "model.language_model." };
    char text[LIMIT_TENSOR_NAME_BYTES], other[LIMIT_TENSOR_NAME_BYTES];
    const char *name = text_part_name(path, text, sizeof text);
    bool is_match = matches(expression, path, PCRE2_ENDANCHORED, NULL);
    for (int i = 0; i < 3 && name && !is_match; i++) {
        const char *rest = i == 2 && strncmp(name, "model.", 6) == 0 ? name + 6 : name;
        int n = snprintf(other, sizeof other, "%s%s", HEADS[i], rest);
        is_match = n > 0 && (size_t)n < sizeof other && matches(expression, other, PCRE2_ENDANCHORED, NULL);
    }
    return is_match;
}

/* "all-linear": PEFT leaves out the output. Of what cannot be adapted here the reader says so. */
static bool is_linear(const struct adapter_reader *r, const char *path)
{
    struct adapter_place place;
    return !adapter_find_place(&place, path, PLACE_MODULE, r->desc, r->family, r->is_gguf) ||
           (place.slot != SLOT_OUTPUT && place.slot != SLOT_EMBEDDING);
}

bool adapter_is_target(const struct adapter_reader *r, const char *path)
{
    const json_t *targets = json_object_get(r->config, "target_modules"),
                 *excluded = json_object_get(r->config, "exclude_modules");
    const char *expression = json_string_value(targets);
    if (is_listed(excluded, path, false) || adapter_is_saved(r, path) ||
        (json_string_length(excluded) > 0 &&
         matches(json_string_value(excluded), path, PCRE2_ENDANCHORED, NULL)))
        return false;
    if (expression)
        return strcasecmp(expression, "all-linear") == 0 ? is_linear(r, path)
                                                         : matches_module(expression, path);
    return !json_is_array(targets) || is_listed(targets, path, true) || /* whatever its layer */
           (is_listed(targets, path, false) && is_of_layers(r, path));
}

/* With ensure_weight_tying PEFT adapts or saves a tied output and the embedding together. */
static bool is_tied(const struct adapter_reader *r, const char *path)
{
    struct adapter_place place;
    return r->desc->tied_output && json_is_true(json_object_get(r->config, "ensure_weight_tying")) &&
           adapter_find_place(&place, path, PLACE_MODULE, r->desc, r->family, r->is_gguf) &&
           (place.slot == SLOT_OUTPUT || place.slot == SLOT_EMBEDDING);
}

bool adapter_is_applied(const struct adapter_reader *r, const char *name, const char *path,
                        enum factor factor)
{
    static const char WRAPPER[] = "base_model.model.";
    const json_t *targets = json_object_get(r->config, "target_modules");
    bool is_weight = factor == FACTOR_WEIGHT || factor == FACTOR_BIAS;
    if (r->kind != ADAPTER_LORA || !(json_is_array(targets) || json_is_string(targets)) ||
        strncmp(name, WRAPPER, sizeof WRAPPER - 1) != 0 || factor == FACTOR_TOKENS ||
        strstr(name, ".token_adapter.") || is_tied(r, path))
        return true;
    if (strstr(name, ".modules_to_save."))
        return adapter_is_saved(r, path);
    return adapter_is_target(r, path) == (!is_weight || strstr(name, ".base_layer."));
}

/* ---- complete files ---- */

/* Whether the model has a module of this name that PEFT changes. PEFT passes over other names of a list, which people copy
 * from model to model. */
static bool is_of_model(const struct adapter_reader *r, const char *name, bool is_saved)
{
    const char *excluded = json_string_value(json_object_get(r->config, "exclude_modules"));
    for (int i = 0; i < r->family->n_layouts * SLOT_COUNT * MAX_PARTS; i++) {
        const struct tensor_names *names = &r->family->layouts[i / (SLOT_COUNT * MAX_PARTS)];
        enum weight_slot slot = (enum weight_slot)(i / MAX_PARTS % SLOT_COUNT);
        const char *pattern = names->is_gguf ? NULL : names->of[slot][i % MAX_PARTS];
        if (!pattern || (!is_saved && !slot_info(slot)->can_adapt && slot != SLOT_EMBEDDING))
            continue;
        for (int layer = 0; layer < (slot_info(slot)->is_of_layer ? r->desc->n_layers : 1); layer++) {
            char path[LIMIT_TENSOR_NAME_BYTES];
            if (slot_info(slot)->is_of_layer && !slot_is_in(r->desc, slot, layer))
                continue;
            weights_layer_name(path, sizeof path, pattern, layer);
            char *end = strrchr(path, '.'); /* of "weight" */
            if (end)
                *end = '\0';
            if (is_saved ? is_within(path, name)
                         : is_named(path, name) && adapter_is_target(r, path) &&
                               !(excluded && matches_module(excluded, path)))
                return true;
        }
    }
    return false;
}

enum tutti_status adapter_check_names(const struct adapter_reader *r, const char *key,
                                      const struct adapter_entry *entries, size_t n, struct tutti_error *err)
{
    const json_t *names = json_object_get(r->config, key);
    bool is_saved = strcmp(key, "modules_to_save") == 0;
    for (size_t i = 0; json_is_array(names) && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        size_t k = 0;
        while (k < n && !(is_saved ? is_within(entries[k].path, name) : is_named(entries[k].path, name)))
            k++;
        if (k == n && is_of_model(r, name, is_saved))
            return error_set(err, TUTTI_E_FORMAT, "%s: %s names %s, but %s has no tensor for it",
                             r->config_path, key, name, r->tensors_path);
    }
    return TUTTI_OK;
}

static enum tutti_status check_list(const struct adapter_reader *r, const char *key, struct tutti_error *err)
{
    const json_t *names = json_object_get(r->config, key);
    for (size_t i = 0; json_is_array(names) && i < json_array_size(names); i++)
        if (!json_is_string(json_array_get(names, i)))
            return error_set(err, TUTTI_E_FORMAT, "%s: %s[%zu]: expected a string", r->config_path, key, i);
    const char *expression = json_string_value(names);
    pcre2_code *compiled = expression ? compile(expression, PCRE2_ENDANCHORED) : NULL;
    bool is_bad = expression && !compiled;
    pcre2_code_free(compiled);
    if (is_bad)
        return error_set(
            err, TUTTI_E_FORMAT,
            "%s: %s: \"%.200s\" is not a regular expression; expected one, or a list of names of "
            "modules",
            r->config_path, key, expression);
    return TUTTI_OK;
}

enum tutti_status adapter_check_lists(const struct adapter_reader *r, struct tutti_error *err)
{
    static const char *const KEYS[] = { "target_modules", "exclude_modules", "modules_to_save" };
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof KEYS / sizeof *KEYS; i++)
        st = check_list(r, KEYS[i], err);
    return st;
}
