/* Answers with reasoning: its budget, and a grammar that waits for its end. The marks of a model whose vocabulary has them
 * are set by hand, and a bias on the logits makes the demo model write them. */
#include "support/collect.h"
#include "support/opened.h"

#include "engine/run/engine_state.h"
#include "model/chat/reasoning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char GBNF[] = "root ::= (\"yes\" | \"no\") \", \" [a-c]{3,5} [.!]";

static tutti_model *model;
static int32_t opening, closing, other; /* special tokens that end no answer */

static int open_demo(void **state)
{
    (void)state;
    model = opened_model(TEST_DEMO_MODEL, NULL, NULL, 2);
    struct model *own = model_of(model);
    const struct tokenizer *tok = own->tokenizer;
    int32_t found[3];
    int n = 0;
    for (int32_t id = 0; id < own->desc.n_usable_vocab && n < 3; id++) {
        bool is_stop = false;
        for (int i = 0; i < model_desc_n_stops(&own->desc, true); i++)
            is_stop |= own->desc.stop_ids[i] == id;
        if (!is_stop && tokenizer_piece(tok, id).type == PIECE_CONTROL &&
            tokenizer_piece(tok, id).n_bytes > 1)
            found[n++] = id;
    }
    assert_int_equal(n, 3);
    opening = found[0];
    closing = found[1];
    other = found[2];
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    tutti_model_close(model);
    return 0;
}

/* form: "think", or "harmony", whose reasoning begins with the answer. */
static void set_marks(const char *form)
{
    struct chat_marks *marks = &model_of(model)->marks;
    chat_marks_clear(marks);
    *marks = (struct chat_marks){ .reasoning = reasoning_form_find(form) };
    if (marks->reasoning->open)
        assert_true(ids_add(&marks->open, opening));
    assert_true(ids_add(&marks->close, closing) && ids_add(&marks->forced, other) &&
                ids_add(&marks->forced, closing));
    for (int32_t id = 0; id < model_of(model)->desc.n_usable_vocab; id++) /* ascending */
        if (id == opening || id == closing || id == other)
            assert_true(ids_add(&marks->shown, id));
}

struct bias {
    struct tutti_logit_bias bias;
    struct tutti_message message;
};

static struct tutti_request request_for(struct bias *b, int32_t token, int max_reasoning_tokens,
                                        bool has_grammar)
{
    *b = (struct bias){ { token, 100 }, { .role = "user", .content = "Tell me", .n_bytes = 7 } };
    struct tutti_request r = { .messages = &b->message,
                               .n_messages = 1,
                               .max_tokens = 60,
                               .shows_marks = true,
                               .max_reasoning_tokens = max_reasoning_tokens };
    tutti_sampling_init(&r.sampling, NULL);
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    r.sampling.seed = 5;
    r.sampling.logit_bias = &b->bias;
    r.sampling.n_logit_bias = token >= 0;
    if (has_grammar) {
        r.grammar_kind = TUTTI_GRAMMAR_GBNF;
        r.grammar = GBNF;
        r.n_grammar_bytes = sizeof GBNF - 1;
    }
    return r;
}

/* Text of the marks, and of the answer by the grammar. */
static char *spelled(const int32_t *ids, size_t n)
{
    struct buf out = { 0 };
    assert_true(buf_add_string(&out, ""));
    for (size_t i = 0; i < n; i++) {
        struct piece piece = tokenizer_piece(model_of(model)->tokenizer, ids[i]);
        assert_true(buf_add(&out, piece.bytes, piece.n_bytes) && buf_add(&out, "", 0));
    }
    char *text = strndup(out.bytes, out.n_bytes);
    buf_clear(&out);
    return text;
}

static bool follows_grammar(const char *text)
{
    size_t n = strncmp(text, "yes, ", 5) == 0  ? 5
               : strncmp(text, "no, ", 4) == 0 ? 4
                                               : 0,
           k = strspn(text + n, "abc");
    return n > 0 && k >= 3 && k <= 5 && strchr(".!", text[n + k]) && text[n + k + 1] == '\0';
}

static char *ask(tutti_engine *engine, const struct tutti_request *r)
{
    struct collect c;
    collect_init(&c);
    collect_submit(&c, engine, r);
    collect_wait(&c);
    assert_int_not_equal(c.choices[0].finish, TUTTI_FINISH_ERROR);
    char *text = strndup(c.choices[0].text.bytes ? c.choices[0].text.bytes : "", c.choices[0].text.n_bytes);
    collect_clear(&c);
    return text;
}

static void a_grammar_waits_for_the_end_of_reasoning(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct bias b;
    set_marks("think");
    /* The first token opens the reasoning, which never closes by itself. */
    const int32_t THOUGHT[] = { opening, opening, opening, opening, other, closing };
    char *head = spelled(THOUGHT, sizeof THOUGHT / sizeof *THOUGHT);
    struct tutti_request r = request_for(&b, opening, 3, true);
    char *text = ask(engine, &r);
    assert_int_equal(strncmp(text, head, strlen(head)), 0);
    assert_true(follows_grammar(text + strlen(head)));
    free(text);
    free(head);
    /* It does not open: the answer follows the grammar from its first token. */
    r = request_for(&b, -1, 3, true);
    text = ask(engine, &r);
    assert_true(follows_grammar(text));
    free(text);
    /* It begins with the answer, and the first token closes it. */
    set_marks("harmony");
    head = spelled(&closing, 1);
    r = request_for(&b, closing, 0, true);
    text = ask(engine, &r);
    assert_int_equal(strncmp(text, head, strlen(head)), 0);
    assert_true(follows_grammar(text + strlen(head)));
    free(text);
    free(head);
    tutti_engine_close(engine);
}

static void a_budget_ends_reasoning_only(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct bias b;
    static const int BUDGETS[] = { TUTTI_NO_REASONING, 1, 4 };
    set_marks("think");
    for (size_t i = 0; i < sizeof BUDGETS / sizeof *BUDGETS; i++) {
        int32_t ids[60];
        size_t n = 0, n_thought = BUDGETS[i] < 0 ? 0 : (size_t)BUDGETS[i];
        struct tutti_request r = request_for(&b, opening, BUDGETS[i], false);
        r.max_tokens = 10;
        for (size_t k = 0; k < 1 + n_thought; k++)
            ids[n++] = opening;
        ids[n++] = other;
        ids[n++] = closing;
        while (n < 10) /* the bias goes on after the reasoning */
            ids[n++] = opening;
        char *text = ask(engine, &r), *want = spelled(ids, n);
        assert_string_equal(text, want);
        free(text);
        free(want);
    }
    /* Without reasoning a budget changes nothing. */
    struct tutti_request free_one = request_for(&b, -1, 0, false), limited = request_for(&b, -1, 2, false);
    char *a = ask(engine, &free_one), *c = ask(engine, &limited);
    assert_string_equal(a, c);
    free(a);
    free(c);
    tutti_engine_close(engine);
}

static void budgets_that_cannot_be_are_refused(void **state)
{
    (void)state;
    tutti_engine *engine = opened_engine(model, NULL, NULL);
    struct bias b;
    struct tutti_error err = { 0 };
    set_marks("think");
    struct tutti_request r = request_for(&b, -1, -2, false);
    struct collect c;
    collect_init(&c);
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, &c, NULL, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.param, "max_reasoning_tokens");
    r = request_for(&b, -1, 4, false);
    r.n_beams = 2;
    r.length_penalty = 1;
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, &c, NULL, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.param, "max_reasoning_tokens");
    /* A mark of two tokens: it is not certain which ones the model writes. */
    assert_true(ids_add(&model_of(model)->marks.open, opening));
    r = request_for(&b, -1, 4, false);
    collect_submit(&c, engine, &r);
    collect_wait(&c);
    assert_int_equal(c.choices[0].finish, TUTTI_FINISH_ERROR);
    assert_non_null(strstr(c.choices[0].error.text, "<think>"));
    collect_clear(&c);
    tutti_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_waits_for_the_end_of_reasoning),
        cmocka_unit_test(a_budget_ends_reasoning_only),
        cmocka_unit_test(budgets_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
