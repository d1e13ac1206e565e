#include "support/questions.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = { "Mia", "Leo", "Nora", "Otto", "Ruby", "Finn", "Luna", "Max" };
static const char *const animals[] = { "fox", "cat", "bear", "mouse", "rabbit", "owl", "frog", "dog" };
static const char *const countries[] = { "France", "Japan", "Italy", "Egypt",
                                         "Spain",  "China", "Peru",  "Norway" };
static const char system_text[] =
    "You are a small model that tells stories, counts, does sums and knows the capitals of many countries. "
    "Answer briefly, kindly and in the language of the question.";

void question_make(struct question *q, int i, int max_tokens)
{
    int k = i / 4;
    memset(q, 0, sizeof *q);
    switch (i % 4) {
    case 0:
        snprintf(q->text, sizeof q->text, "Tell me a story about a %s named %s.", animals[k % 8],
                 names[(k + k / 8) % 8]);
        break;
    case 1:
        snprintf(q->text, sizeof q->text, "Tell me a story about a %s named %s.", animals[(k + 3) % 8],
                 names[k % 8]);
        break;
    case 2:
        snprintf(q->text, sizeof q->text, "What is the capital of %s?", countries[k % 8]);
        break;
    default:
        snprintf(q->text, sizeof q->text, "Count from %d to %d.", k + 1, k + 9);
    }
    int n = 0;
    if (i % 3 == 0)
        q->messages[n++] = (struct tutti_message){ "system", system_text, sizeof system_text - 1, NULL };
    q->messages[n++] = (struct tutti_message){ "user", q->text, strlen(q->text), NULL };
    q->request = (struct tutti_request){ .messages = q->messages,
                                         .n_messages = (size_t)n,
                                         .max_tokens = max_tokens };
    q->request.sampling = (struct tutti_sampling){ .temperature = i % 2 ? 0.9f : 0,
                                                   .top_p = i % 4 == 1 ? 0.9f : 1,
                                                   .top_k = i % 8 == 3 ? 20 : 0,
                                                   .repetition_penalty = i % 8 == 4 ? 1.1f : 1,
                                                   .has_seed = true,
                                                   .seed = (uint64_t)i };
}
