/* Different questions that the demo model can answer, some after a long system message. */
#ifndef TEST_QUESTIONS_H
#define TEST_QUESTIONS_H

#include "tutti.h"

enum { N_QUESTIONS = 64 };

struct question {
    char text[96];
    struct tutti_message messages[2];
    struct tutti_request request;
};

/* Request number i of N_QUESTIONS: greedy where i is even, seeded where it is odd. */
void question_make(struct question *q, int i, int max_tokens);

#endif
