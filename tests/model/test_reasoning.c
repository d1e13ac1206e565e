/* Answers whose reasoning is marked, in every published form, that come in pieces. */
#include "base/buf.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"
#include "model/marks.h"
#include "tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *form;
    bool is_open; /* the prompt opened the reasoning */
    const char *text, *reasoning, *answer;
} CASES[] = {
    { "think", false, "<think>\nI'm\nthinking\n</think>\n\nHello, world!", "I'm\nthinking", "Hello, world!" },
    { "think", true, "I'm\nthinking\n</think>\n\nHello, world!", "I'm\nthinking", "Hello, world!" },
    { "think", true, "\n  I'm thinking", "I'm thinking", "" }, /* cut off */
    { "think", false, "Hello <think>not first</think>", "", "Hello <think>not first</think>" },
    { "think", false, "<think>\n\n</think>\n\nHello", "", "Hello" },
    { "think", false, "<think>a </thin b </think></think> c", "a </thin b", "</think> c" },
    { "think", false, "<thi", "", "<thi" },
    { "think", false, "  ", "", "  " },
    { "think", false, "", "", "" },
    { "think", false, "<think>one</think>\n<tool_call>{}</tool_call>", "one", "<tool_call>{}</tool_call>" },
    { "mistral", false, "[THINK]I'm\nthinking[/THINK]Hello, world!", "I'm\nthinking", "Hello, world!" },
    { "mistral", false, "[THINK]about [TOOL_CALLS]f[ARGS]{}[/THINK][TOOL_CALLS]g[ARGS]{}",
      "about [TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]g[ARGS]{}" },
    { "granite-3.2", false, "Here is my thought process: I see.\n\nHere is my response: Hello", "I see.",
      "Hello" },
    { "granite-3.3", false, "<think>I see.</think>\n\n<response>Hello\nworld</response>", "I see.",
      "Hello\nworld" },
    { "granite-3.3", false, "Hello", "", "Hello" },
    { "cohere", false, "<|START_THINKING|>I see.<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>",
      "I see.", "Hello" },
    { "seed", false, "<seed:think>I see.</seed:think>Hello", "I see.", "Hello" },
    { "exaone-deep", true, "I see.\n</thought>\n\nHello", "I see.", "Hello" },
    { "kimi-vl", false, "◁think▷I see.◁/think▷Hello", "I see.", "Hello" },
    { "think", false, "</think>Hello", "", "Hello" }, /* as of a prompt that opened it */
    { "think", true, "</think>Hello", "", "Hello" },
    { "think", true, "abc\nABC</think>def\nDEF", "abc\nABC", "def\nDEF" },
    { "think", false, "Hello</think>", "", "Hello</think>" },
    { "granite-3.3", true, "abc\n</think>\n\n<response>\ndef\n</response>\n", "abc", "def" }, /* ERNIE 4.5 */
    { "granite-3.3", false, "<response>def</response> ", "", "def" },
    { "granite-3.3", false, "<think>a</think> b <res", "a", "b <res" },
    { "hunyuan", false, "<think>\na\n</think>\n<answer>\nb\nc\n</answer>", "a", "b\nc" },
    { "hunyuan", false, "<think>\n\n</think>\n<answer>\nb\n</answer>", "", "b" },
    { "hunyuan", false, "<think>\na\n</think>\n<answer>\n", "a", "" },
    { "hunyuan", false, "<think>\na\n</think>\n<answer>\nb\nc", "a", "b\nc" },
    { "hunyuan", false, "b\n", "", "b\n" },
    { "cohere", false, "<|START_RESPONSE|>Hello\nworld<|END_RESPONSE|>", "", "Hello\nworld" },
    { "cohere", false, "<|START_THINKING|>I see.<|END_THINKING|>", "I see.", "" },
    { "cohere-text", true, "I'm\nthinking<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>", "I'm\nthinking",
      "Hello" },
    { "cohere-text", true, "<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>", "", "Hello" },
    { "gemma-4", false, "<|channel>thought\nI'm\nthinking<channel|>Hello\nworld", "I'm\nthinking",
      "Hello\nworld" },
    { "gemma-4", false, "<|channel>thought<channel|>Hello", "", "Hello" },
    { "gemma-4", false, "<|channel>thought\n<channel|>Hello<channel|>", "", "Hello" },
    { "gemma-4", false, "<|channel>thought\n<channel|>Hello<|channel>thought\n<channel|><channel|>", "",
      "Hello" },
    { "gemma-4", false, "<|channel><|channel>thought\n<channel|>Hello", "", "Hello" },
    { "gemma-4", false, "<|channel>I see<channel|>Hello", "I see", "Hello" },
    { "gemma-4", false, "<|channel>thousand reasons<channel|>Done", "thousand reasons", "Done" },
    { "gemma-4", false, "<|channel>tho", "tho", "" },
    { "gemma-4", false, "Before\n<|channel>thought\nI see<channel|>\nHello", "I see", "BeforeHello" },
    { "gemma-4", false, "  Hello", "", "  Hello" },
    { "kimi-k3", false, "<|open|>response<|sep|>Hello<|close|>response<|sep|><|close|>message<|sep|>", "",
      "Hello" },
    { "kimi-k3", true,
      "I see<|close|>think<|sep|><|open|>response<|sep|>Hello<|close|>response<|sep|><|close|>message<|sep|>",
      "I see", "Hello" },
    { "kimi-k3", true, "I was still thinking", "I was still thinking", "" },
    { "kimi-k3", false, "Hello<|close|>response<|sep|>", "", "Hello" }, /* the prompt opened the response */
    { "minimax-m3", false, "</mm:think>Hello", "", "Hello" },
    { "minimax-m3", false, "<mm:think>I see</mm:think>Hello", "I see", "Hello" },
    { "minimax-m3", false, "X</mm:think>Y", "", "X</mm:think>Y" },
    { "minimax-m3", true, "I see</mm:think>Hello", "I see", "Hello" },
    { "minimax-m3", false, "<mm:think>still thinking", "still thinking", "" },
    { "solar-open-2", false, "<|think:start|>I see<|think:end|>Hello", "I see", "Hello" },
    { "hy-v3", false, "<think:opensource>I see</think:opensource>\nHello", "I see", "Hello" },
    { "pangu", false, "[unused16]I see[unused17]Hello", "I see", "Hello" },
    { "apriel-1.6", true, "I'm\nthinking\n[BEGIN FINAL RESPONSE]\nHello", "I'm\nthinking", "Hello" },
    { "longcat", true, "I see\n</longcat_think>\nHello", "I see", "Hello" },
    { "apertus", false, "<|inner_prefix|>I see<|inner_suffix|>Hello", "I see", "Hello" },
    { "harmony", false,
      "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
      "I see.", "Hello" },
    { "harmony", false, "<|channel|>commentary<|message|>Hello", "", "Hello" },
    { "harmony", false,
      "<|channel|>commentary to=assistant<|channel|>analysis<|message|>I "
      "see.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
      "I see.", "Hello" },
    { "harmony", false,
      "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>commentary "
      "to=assistant<|channel|>final<|message|>Hello",
      "I see.", "Hello" },
    { "harmony", false,
      "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final "
      "<|constrain|>json<|message|>{\"a\": 1}",
      "I see.", "{\"a\": 1}" },
    { "harmony", false, " to=functions.f<|channel|>analysis<|message|>{\"a\": 1}", "",
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}" },
    { "harmony", false, "<|channel|>analysis to=functions.f<|message|>{\"a\": 1}", "",
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}" },
    { "harmony", false, "<|channel|>final<|message|>Hello <|en", "", "Hello <|en" },
    { "harmony", false, "Hello", "", "Hello" },
    { "harmony", false, "<|channel|>ana", "", "" },
    { "harmony", false,
      "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
      "<|constrain|>json"
      "<|message|>{\"a\": 1}<|call|>",
      "I see.", "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}" },
    { "harmony", false, " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", "",
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}" },
    { "harmony", false,
      "<|channel|>commentary<|message|>I'll ask.<|end|><|start|>assistant "
      "to=functions.f<|channel|>commentary <|constrain|>json"
      "<|message|>{}",
      "", "I'll ask.<|channel|>commentary to=functions.f<|message|>{}" },
};

/* Feeds the answer in pieces whose length is drawn from seed; 0: whole; 1: byte by byte. */
static void split(size_t i, unsigned seed, struct buf *reasoning, struct buf *answer)
{
    tutti_reasoning_parser *parser = NULL;
    struct tutti_reasoning_part part;
    size_t n_all = strlen(CASES[i].text), n = 0;
    unsigned draws = seed;
    assert_int_equal(tutti_reasoning_parser_new(&parser, CASES[i].form, CASES[i].is_open, NULL), TUTTI_OK);
    assert_true(buf_add(reasoning, "", 1) && buf_add(answer, "", 1));
    buf_truncate(reasoning, 0);
    buf_truncate(answer, 0);
    while (n < n_all) {
        draws = draws * 1103515245 + 12345;
        n += seed == 0 ? n_all : seed == 1 ? 1 : 1 + (draws >> 16) % 9;
        n = n < n_all ? n : n_all;
        char *copy = strndup(CASES[i].text, n);
        while (tutti_reasoning_parser_next(parser, copy, n, n == n_all && seed % 2 == 0, &part)) {
            assert_true(part.n_bytes > 0);
            assert_true(buf_add(part.is_reasoning ? reasoning : answer, part.text, part.n_bytes));
        }
        free(copy);
    }
    while (tutti_reasoning_parser_next(parser, CASES[i].text, n_all, true, &part))
        assert_true(buf_add(part.is_reasoning ? reasoning : answer, part.text, part.n_bytes));
    tutti_reasoning_parser_free(parser);
    assert_true(buf_add(reasoning, "", 1) && buf_add(answer, "", 1));
}

static void reasoning_is_apart_from_the_answer(void **state)
{
    enum { N_SEEDS = 40 };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (unsigned seed = 0; seed < N_SEEDS; seed++) {
            struct buf reasoning = { 0 }, answer = { 0 };
            split(i, seed, &reasoning, &answer);
            if (strcmp(reasoning.bytes, CASES[i].reasoning) != 0 ||
                strcmp(answer.bytes, CASES[i].answer) != 0)
                fail_msg("%s, seed %u: %s: found reasoning \"%s\" and answer \"%s\"", CASES[i].form, seed,
                         CASES[i].text, reasoning.bytes, answer.bytes);
            buf_clear(&reasoning);
            buf_clear(&answer);
        }
    }
}

static void long_reasoning_is_read_once(void **state)
{
    static const char *const PARTS[] = { "</thin", "     ", "\n" };
    (void)state;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        tutti_reasoning_parser *parser = NULL;
        struct tutti_reasoning_part part;
        struct buf text = { 0 };
        assert_int_equal(tutti_reasoning_parser_new(&parser, "think", true, NULL), TUTTI_OK);
        for (int k = 0; k < 20000; k++)
            assert_true(buf_add_string(&text, PARTS[i]));
        assert_true(buf_add_string(&text, "a</think>b"));
        size_t n_reasoning = 0, n_answer = 0;
        for (size_t n = 1; n <= text.n_bytes; n++)
            while (tutti_reasoning_parser_next(parser, text.bytes, n, n == text.n_bytes, &part))
                *(part.is_reasoning ? &n_reasoning : &n_answer) += part.n_bytes;
        assert_int_equal(n_answer, 1);
        assert_true(n_reasoning >= 1);
        tutti_reasoning_parser_free(parser);
        buf_clear(&text);
    }
}

/* Texts that occur in published templates. */
static void templates_tell_their_forms(void **state)
{
    static const struct {
        const char *text, *tools, *reasoning;
    } TEMPLATES[] = {
        { "{{ '<tool_call>\\n{\"name\": \"' }} </tool_call> {% if '</think>' in content %}", "hermes",
          "think" },
        { "'\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' '<parameter='", "qwen3-coder", NULL },
        { "'<tool_call>' + tc.name <arg_key>{{ k }}</arg_key> <think></think>", "glm-4.5", "think" },
        { "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' '<｜tool▁sep｜>' split('</think>')", "deepseek",
          "think" },
        { "<|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|>", "kimi-k2", NULL },
        { "<|start|>assistant<|channel|>analysis<|message|>", "harmony", "harmony" },
        { "[TOOL_CALLS] [ARGS]", "mistral", NULL },
        { "'[THINK]' + block['thinking'] + '[/THINK]' '[TOOL_CALLS]'", "mistral", "mistral" },
        { "<|tool|>{{ tools }}<|/tool|> <|tool_call|>", "phi-4-mini", NULL },
        { "'<function=' + tool_call['function']['name'] + '>' '</function>'", "functionary-v3.1", NULL },
        { "'>>>all\\n' + message['content']", "functionary-v3.2", "functionary-v3.2" },
        { "'\\n<|from|>assistant\\n<|recipient|>all\\n<|content|>'", "functionary-v2", "functionary-v2" },
        { "'<|reserved_special_token_249|>' + tool_call['function']['name']", "functionary-v2.5", NULL },
        { "<｜DSML｜function_calls> <｜DSML｜invoke name=", "deepseek-v3.2", NULL },
        { "'<minimax:tool_call>' <invoke name= <parameter name= </think>", "minimax-m2", "think" },
        { "<seed:tool_call>\n<function= <parameter= <seed:think>", "seed-oss", "seed" },
        { "<|START_THINKING|> <|START_ACTION|> \"tool_name\"", "command-r", "cohere" },
        { "Write 'Action:' followed by a json-formatted list with \"tool_name\"", "command-r", NULL },
        { "<tool_calls> {{ tool_call | tojson }}", "apriel", NULL },
        { "<|tools_prefix|>", "apertus", NULL },
        { "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name",
          "llama-3", NULL },
        { "'<|tool_call>call:' + function['name'] + '{' <|\"|> '<|channel>thought\\n<channel|>'", "gemma-4",
          "gemma-4" },
        { "'<start_function_call>call:' + function['name'] <escape>", "functiongemma", NULL },
        { "'<|open|>' + tag '<|sep|>' '<|close|>' open_tag('think')", "kimi-k3", "kimi-k3" },
        { "set ns_token = ']<]minimax[>[' '<tool_call>' '<mm:think>' '</mm:think>'", "minimax-m3",
          "minimax-m3" },
        { "'<｜tool_calls_begin｜>' '<steptml:invoke name=\"' + name </think>", "step-3", "think" },
        { "set HYTK = ':opensource' '<tool_sep{}>'.format(HYTK) '<think{}>'.format(HYTK)", "hy-v3", "hy-v3" },
        { "'<function name=\"' + tool_call.name '<param name=\"' </think>", "minicpm-5", "think" },
        { "'<|tool_call:start|>' + name '<|tool_arg:start|>' '<|think:end|>'", "solar-open-2",
          "solar-open-2" },
        { "role_sep=\"<|role_sep|>\\n\" 'role': 'function call'", "gigachat-3", NULL },
        { "'[unused11]' + calls + '[unused12]' if '[unused17]' in content", "pangu", "pangu" },
        { "'<|function_call|>' + call | tojson", "gigachat-3", NULL },
        { "make calls in a single JSON array: [{\"name\": \"tool_call_name\"", "list", NULL },
        { "<tool_calls>[{ '<answer>' in content and '</answer>' </think>", "apriel", "hunyuan" },
        { "the marker [BEGIN FINAL RESPONSE] <tool_calls>", "apriel", "apriel-1.6" },
        { "<|START_THINKING|> <|START_TEXT|> <|START_ACTION|>", "command-r", "cohere-text" },
        { "'<function_calls>' + calls '<|im_start|>assistant\n<think>'", "olmo-3", "think" },
        { "{{ message.content }}", NULL, NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof TEMPLATES / sizeof *TEMPLATES; i++) {
        const char *text = TEMPLATES[i].text;
        const struct call_form *form = call_form_of_template(text, strlen(text));
        const char *tools = form ? form->name : NULL;
        const struct reasoning_form *reasoning = reasoning_form_of_template(text, strlen(text));
        const char *name = reasoning ? reasoning->name : NULL;
        if (strcmp(tools ? tools : "", TEMPLATES[i].tools ? TEMPLATES[i].tools : "") != 0 ||
            strcmp(name ? name : "", TEMPLATES[i].reasoning ? TEMPLATES[i].reasoning : "") != 0)
            fail_msg("%s: found %s and %s", text, tools, name);
    }
}

static void unknown_forms_of_reasoning_are_refused(void **state)
{
    struct tutti_error err = { 0 };
    tutti_reasoning_parser *parser = NULL;
    (void)state;
    assert_int_equal(tutti_reasoning_parser_new(&parser, "zork", false, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "zork"));
    assert_null(parser);
}

static enum reasoning_start start_of(const struct chat_marks *marks, const struct tokenizer *tok,
                                     const int32_t *prompt, size_t n_prompt)
{
    enum reasoning_start start;
    assert_true(chat_marks_start(marks, tok, prompt, n_prompt, &start));
    return start;
}

/* A prompt may have other tokens for a mark than the mark by itself has: joined with a line's end, and without
 * the blank that some tokenizers add in front of a text. */
static void marks_of_several_tokens_are_compared_as_text(void **state)
{
    static const char TEXT[] =
        "{{ messages[0].content }}{% if enable_thinking %}<seed:think>{% endif %}</seed:think>";
    static const char *const NORMAL[] = {
        "<seed:", "think>", "</seed:", "think>\n", "\n", "a", "\xE2\x96\x81"
    };
    enum { N_NORMAL = sizeof NORMAL / sizeof *NORMAL };
    struct piece pieces[N_NORMAL + 1] = { { "<unk>", 5, 0, PIECE_UNKNOWN } };
    struct tokenizer *tok = NULL;
    struct chat_template *tpl = NULL;
    struct chat_marks marks;
    (void)state;
    for (size_t i = 0; i < N_NORMAL; i++)
        pieces[i + 1] = (struct piece){ NORMAL[i], strlen(NORMAL[i]), -1 - (float)i, PIECE_NORMAL };
    struct piece_vocab vocab = {
        .pieces = pieces, .n_pieces = N_NORMAL + 1, .bos_id = -1, .eos_id = -1, .is_unigram = true
    };
    assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "test", NULL), TUTTI_OK);
    struct chat_template_source source = { .name = "test", .text = TEXT, .n_bytes = sizeof TEXT - 1 };
    assert_int_equal(chat_template_new(&tpl, &source, tok, NULL), TUTTI_OK);
    assert_int_equal(chat_marks_init(&marks, chat_template_format(tpl), tpl, tok, NULL), TUTTI_OK);
    assert_string_equal(marks.reasoning->name, "seed");
    assert_true(marks.open.n > 1);
    enum reasoning_start unmarked = marks.is_opened_by_prompt ? REASONING_NEVER : REASONING_AT_ONE;
    const struct {
        int32_t prompt[6];
        size_t n;
        enum reasoning_start start;
    } STARTS[] = {
        { { 6, 1, 2 }, 3, REASONING_OPEN },
        { { 6, 1, 4 }, 3, REASONING_OPEN }, /* the mark and the line's end share a token */
        { { 6, 1, 4, 5, 5 }, 5, REASONING_OPEN },
        { { 6, 1, 2, 3, 4, 5 }, 6, REASONING_NEVER }, /* closed at once */
        { { 6, 1, 2, 6 }, 4, unmarked },              /* text after it */
        { { 6, 6 }, 2, unmarked },
    };
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS; i++)
        assert_int_equal(start_of(&marks, tok, STARTS[i].prompt, STARTS[i].n), STARTS[i].start);
    chat_marks_clear(&marks);
    chat_template_free(tpl);
    tokenizer_free(tok);
}

/* A model whose vocabulary has the marks as special tokens. */
static void marks_are_tokens_of_the_vocabulary(void **state)
{
    static const char TEXT[] = "{{ messages[0].content }}</think><tool_call><arg_key>";
    static const char *const CONTROLS[] = { "<|user|>", "<think>", "</think>", "<tool_call>" };
    static const struct piece PIECES[] = { { "<unk>", 5, 0, PIECE_UNKNOWN },
                                           { "a", 1, -1, PIECE_NORMAL },
                                           { "\xE2\x96\x81", 3, -1, PIECE_NORMAL },
                                           { "\n", 1, -1, PIECE_NORMAL } };
    struct piece_vocab vocab = {
        .pieces = PIECES, .n_pieces = 4, .bos_id = -1, .eos_id = -1, .is_unigram = true
    };
    struct tokenizer *tok = NULL;
    struct chat_template *tpl = NULL;
    struct chat_marks marks;
    int32_t ids[4];
    (void)state;
    assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "test", NULL), TUTTI_OK);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(tokenizer_add_control(tok, CONTROLS[i], &ids[i], NULL), TUTTI_OK);
    struct chat_template_source source = { .name = "test", .text = TEXT, .n_bytes = sizeof TEXT - 1 };
    assert_int_equal(chat_template_new(&tpl, &source, tok, NULL), TUTTI_OK);
    assert_int_equal(chat_marks_init(&marks, chat_template_format(tpl), tpl, tok, NULL), TUTTI_OK);
    assert_string_equal(marks.tool_form, "glm-4.5");
    assert_string_equal(marks.reasoning->name, "think");
    assert_int_equal(marks.open.n, 1);
    assert_int_equal(marks.open.ids[0], ids[1]);
    assert_true(chat_marks_end(&marks.close, &ids[2], 1));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(chat_marks_show(&marks, ids[i]), i > 0);
    assert_false(chat_marks_show(&marks, 1));
    const struct {
        int32_t prompt[12];
        size_t n;
        enum reasoning_start start;
    } STARTS[] = {
        { { 1, ids[1], 3 }, 3, REASONING_OPEN },                /* <think> and a line's end */
        { { 1, ids[1], 3, 3, ids[2], 3 }, 6, REASONING_NEVER }, /* closed at once */
        { { ids[1], 3, ids[2], 1, ids[0], 1, 1, 1, 1, 1, 1, 1 },
          12,
          REASONING_AT_ONE }, /* of an earlier answer */
        { { 1 }, 1, REASONING_AT_ONE },
        { { 0 }, 0, REASONING_AT_ONE },
    };
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS; i++)
        assert_int_equal(start_of(&marks, tok, STARTS[i].prompt, STARTS[i].n), STARTS[i].start);
    chat_marks_clear(&marks);
    chat_template_free(tpl);

    /* A template whose prompt opens the reasoning: where it does not, there is none. */
    static const char OPENS[] = "{{ messages[0].content }}{% if enable_thinking %}\n<think>\n{% endif %}"
                                "{% if false %}</think>{% endif %}";
    source = (struct chat_template_source){ .name = "test", .text = OPENS, .n_bytes = sizeof OPENS - 1 };
    assert_int_equal(chat_template_new(&tpl, &source, tok, NULL), TUTTI_OK);
    assert_int_equal(chat_marks_init(&marks, chat_template_format(tpl), tpl, tok, NULL), TUTTI_OK);
    assert_int_equal(start_of(&marks, tok, STARTS[0].prompt, STARTS[0].n), REASONING_OPEN);
    for (size_t i = 1; i < sizeof STARTS / sizeof *STARTS; i++)
        assert_int_equal(start_of(&marks, tok, STARTS[i].prompt, STARTS[i].n), REASONING_NEVER);
    chat_marks_clear(&marks);
    chat_template_free(tpl);
    tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_is_apart_from_the_answer),
        cmocka_unit_test(long_reasoning_is_read_once),
        cmocka_unit_test(templates_tell_their_forms),
        cmocka_unit_test(unknown_forms_of_reasoning_are_refused),
        cmocka_unit_test(marks_are_tokens_of_the_vocabulary),
        cmocka_unit_test(marks_of_several_tokens_are_compared_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
