/* Tests that run again with their models on a card (TUTTI_TEST_DEVICE), in emulation, which is a thousand times slower: there one
 * model of each kind goes through what all models go through on the processor. */
#ifndef TEST_ON_CARD_H
#define TEST_ON_CARD_H

#include "tutti.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool on_card(void)
{
    return getenv("TUTTI_TEST_DEVICE") != NULL;
}

/* With TUTTI_TEST_DIVISION the card and the CPU divide each model: the CPU computes the experts, or if there are none, all
 * layers but the last. Changes the options for the next try of loading. False: they are final. */
static inline bool next_division(struct tutti_model_options *options, const char *wrong_param)
{
    if (!getenv("TUTTI_TEST_DIVISION") || options->gpu_layers)
        return false;
    if (options->cpu_experts && strcmp(wrong_param, "cpu_experts") != 0)
        return false;
    options->gpu_layers = options->cpu_experts ? "1" : NULL;
    options->cpu_experts = options->cpu_experts ? NULL : "all";
    return true;
}

/* Whether a fixture is tried in full: always on the processor. */
static inline bool is_tried_in_full(const char *name)
{
    static const char *const KINDS[] = {
        "chatglm3-tiny",         /* grouped queries, part of a head rotates */
        "gemma3-tiny",           /* windows, norms after blocks */
        "bloom-tiny",            /* ALiBi, layer norms, no gate */
        "chatglm-6b-tiny",       /* two positions, bidirectional prefixes */
        "qwen3-moe-tiny",        /* experts, norms of heads */
        "gpt-oss-tiny-mxfp4",    /* sinks, biases of experts */
        "deepseek-v2-lite-tiny", /* latent attention, shared experts */
        "gemma4-moe-tiny",       /* heads that differ by layer, keys as values, parallel experts */
    };
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(name, KINDS[i]) == 0)
            return true;
    return !on_card();
}

#endif
