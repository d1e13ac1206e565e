#include "model/chat/calls/call_forms.h"

#include <string.h>

/* Where a step is the target of another one, a comment has its index. */

/* How the object of a call is published. */
#define OBJECT         .op = CALL_OBJECT, .text = "{\"name\": \"@\", \"arguments\": $}"
#define OBJECT_LLAMA   .op = CALL_OBJECT, .text = "{\"name\": \"@\", \"parameters\": $}"
#define OBJECT_COMMAND .op = CALL_OBJECT, .text = "{\"tool_name\": \"@\", \"parameters\": $}"
#define OBJECT_INKLING .op = CALL_OBJECT, .text = "{\"name\":\"@\",\"args\":$}"
#define OBJECT_R7B                                                                                           \
    .op = CALL_OBJECT, .text = "{\"tool_call_id\": \"#\", \"tool_name\": \"@\", \"parameters\": $}"

/* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
static const struct call_step HERMES[] = { { OBJECT },
                                           { CALL_CLOSE, "</tool_call>", 0 },
                                           { .op = CALL_DONE } };

/* <function=NAME>{...}</function> */
static const struct call_step FUNCTION_JSON[] = { { CALL_NAME, ">", 0 },
                                                  { CALL_MARK, ">", 0 },
                                                  { .op = CALL_JSON },
                                                  { CALL_CLOSE, "</function>", 0 },
                                                  { .op = CALL_DONE } };

/* <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>; some answers
 * lack the outer pair. */
static const struct call_step QWEN3_CODER[] = {
    { CALL_OPTION, "<function=", 0, WRITE_ALWAYS },
    { CALL_NAME, ">", 0 },
    { CALL_MARK, ">", 0 },
    { CALL_IF, "</function>", 11 },
    { CALL_MARK, "<parameter=", 0 },
    { .op = CALL_PAIRS },
    { CALL_KEY, ">", 0 }, /* 6 */
    { CALL_LINES, "</parameter>", 1, .next = { "<parameter=", "</function>" } },
    { CALL_IF, "<parameter=", 6 },
    { CALL_MARK, "</function>", 0 },
    { CALL_GOTO, NULL, 12 },
    { .op = CALL_PAIRS },      /* 11 */
    { .op = CALL_PAIRS_OVER }, /* 12 */
    { CALL_OPTION, "</tool_call>", 0, WRITE_ALWAYS },
    { .op = CALL_DONE },
};

/* <seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call> */
static const struct call_step SEED_OSS[] = {
    { CALL_MARK, "<function=", 0 },
    { CALL_NAME, ">", 0 }, /* 1 */
    { CALL_MARK, ">", 0 },
    { CALL_IF, "</function>", 11 },
    { CALL_MARK, "<parameter=", 0 },
    { .op = CALL_PAIRS },
    { CALL_KEY, ">", 0 }, /* 6 */
    { CALL_VALUE, "</parameter>", 0 },
    { CALL_IF, "<parameter=", 6 },
    { CALL_MARK, "</function>", 0 },
    { CALL_GOTO, NULL, 12 },
    { .op = CALL_PAIRS },      /* 11 */
    { .op = CALL_PAIRS_OVER }, /* 12 */
    { CALL_IF, "<function=", 1 },
    { CALL_CLOSE, "</seed:tool_call>", 0 },
    { .op = CALL_DONE },
};

/* <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, several one after the other */
static const struct call_step MINIMAX_M2[] = {
    { CALL_MARK, "<invoke name=\"", 0 },
    { CALL_NAME, "\"", 0 }, /* 1 */
    { CALL_MARK, "\">", 0 },
    { CALL_IF, "</invoke>", 11 },
    { CALL_MARK, "<parameter name=\"", 0 },
    { .op = CALL_PAIRS },
    { CALL_KEY, "\">", 0 }, /* 6 */
    { CALL_LINES, "</parameter>", 0 },
    { CALL_IF, "<parameter name=\"", 6 },
    { CALL_MARK, "</invoke>", 0 },
    { CALL_GOTO, NULL, 12 },
    { .op = CALL_PAIRS },      /* 11 */
    { .op = CALL_PAIRS_OVER }, /* 12 */
    { CALL_IF, "<invoke name=\"", 1 },
    { CALL_CLOSE, "</minimax:tool_call>", 0 },
    { .op = CALL_DONE },
};

/* The same with other marks: <｜DSML｜invoke name="NAME">
 * <｜DSML｜parameter name="KEY" string="true">TEXT</｜DSML｜parameter>. V4 names the block tool_calls. */
#define DSML_STEPS(V3_2, V4)                                                                                 \
    {                                                                                                        \
        { CALL_MARK, "<｜DSML｜invoke name=\"", 0 }, { CALL_NAME, "\"", 0 }, /* 1 */                         \
            { CALL_MARK, "\">", 0 }, { CALL_IF, "</｜DSML｜invoke>", 15 },                                   \
            { CALL_MARK, "<｜DSML｜parameter name=\"", 0 }, { .op = CALL_PAIRS },                            \
            { CALL_KEY, "\" string=\"", 0 }, /* 6 */                                                         \
            { CALL_IF, "true\">", 11 }, { CALL_MARK, "false\">", 0 },                                        \
            { CALL_VALUE, "</｜DSML｜parameter>", 0 }, { CALL_GOTO, NULL, 12 },                              \
            { CALL_TEXT, "</｜DSML｜parameter>", 0 },                                             /* 11 */   \
            { CALL_IF, "<｜DSML｜parameter name=\"", 6 },                                         /* 12 */   \
            { CALL_MARK, "</｜DSML｜invoke>", 0 }, { CALL_GOTO, NULL, 16 }, { .op = CALL_PAIRS }, /* 15 */   \
            { .op = CALL_PAIRS_OVER },                                                            /* 16 */   \
            { CALL_IF, "<｜DSML｜invoke name=\"", 1 },                                                       \
            { CALL_OPTION, "</｜DSML｜function_calls>", 0, V3_2 },                                           \
            { CALL_OPTION, "</｜DSML｜tool_calls>", 0, V4 }, { .op = CALL_DONE },                            \
    }
static const struct call_step DSML_V3_2[] = DSML_STEPS(WRITE_ALWAYS, WRITE_NEVER);
static const struct call_step DSML_V4[] = DSML_STEPS(WRITE_NEVER, WRITE_ALWAYS);

/* <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call> */
static const struct call_step GLM_4_5[] = {
    { CALL_NAME, "< \n", 0 },
    { CALL_IF, "</tool_call>", 10 },
    { CALL_MARK, "<arg_key>", 0 },
    { .op = CALL_PAIRS },
    { CALL_KEY, "</arg_key>", 0 }, /* 4 */
    { CALL_MARK, "<arg_value>", 0 },
    { CALL_VALUE, "</arg_value>", 0 },
    { CALL_IF, "<arg_key>", 4 },
    { CALL_MARK, "</tool_call>", 0 },
    { CALL_GOTO, NULL, 11 },
    { .op = CALL_PAIRS },      /* 10 */
    { .op = CALL_PAIRS_OVER }, /* 11 */
    { .op = CALL_DONE },
};

/* NAME, a line's end, {...} */
static const struct call_step NAME_LINE[] = { { CALL_NAME, "\n", 0 },
                                              { .op = CALL_JSON },
                                              { .op = CALL_LAST } };

/* NAME, a line's end, tool_call(KEY=VALUE, ...), mostly in a block of Python */
static const struct call_step NAME_LINE_PYTHON[] = {
    { CALL_NAME, "\n", 0 },        { CALL_OPTION, "```python", 0, WRITE_ALWAYS },
    { CALL_MARK, "tool_call", 0 }, { CALL_MARK, "(", 0 },
    { .op = CALL_PYTHON },         { CALL_OPTION, "```", 0, WRITE_ALWAYS },
    { .op = CALL_LAST },
};

/* {"name": ..., "parameters": {...}}, several with semicolons or blanks between them */
static const struct call_step OBJECTS[] = { { CALL_OPTION, "<|python_tag|>", 0, WRITE_TOKEN },
                                            { OBJECT_LLAMA }, /* 1 */
                                            { CALL_IF, ";", 1 },
                                            { CALL_PEEK, "{", 1 },
                                            { .op = CALL_DONE } };

/* The same within text */
static const struct call_step OBJECT_LATER[] = { { OBJECT_LLAMA },
                                                 { CALL_OPTION, ";", 0 },
                                                 { .op = CALL_DONE } };

/* [{"name": ..., "arguments": {...}}, ...] as the whole answer */
static const struct call_step LIST[] = { { CALL_MARK, "[", 0 },
                                         { OBJECT }, /* 1 */
                                         { CALL_IF, ",", 1 },
                                         { CALL_MARK, "]", 0 },
                                         { .op = CALL_LAST } };

/* [NAME(KEY=VALUE, ...), ...] as the whole answer */
static const struct call_step PYTHONIC[] = {
    { CALL_IF, "<|python_start|>", 9, WRITE_TOKEN },
    { CALL_MARK, "[", 0 },
    { CALL_NAME, "(", 0 }, /* 2 */
    { CALL_MARK, "(", 0 },
    { .op = CALL_PYTHON },
    { CALL_IF, ",", 2 },
    { CALL_MARK, "]", 0 },
    { CALL_OPTION, "<|python_end|>", 0, WRITE_NEVER },
    { .op = CALL_LAST },
    { CALL_MARK, "[", 0 }, /* 9 */
    { CALL_NAME, "(", 0 }, /* 10 */
    { CALL_MARK, "(", 0 },
    { .op = CALL_PYTHON },
    { CALL_IF, ",", 10 },
    { CALL_MARK, "]", 0 },
    { CALL_CLOSE, "<|python_end|>", 0 },
    { .op = CALL_LAST },
};

/* <|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|> */
static const struct call_step LFM2[] = {
    { CALL_MARK, "[", 0 },
    { CALL_NAME, "(", 0 }, /* 1 */
    { CALL_MARK, "(", 0 },
    { .op = CALL_PYTHON },
    { CALL_IF, ",", 1 },
    { CALL_MARK, "]", 0 },
    { CALL_CLOSE, "<|tool_call_end|>", 0 },
    { .op = CALL_DONE },
};

/* [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...} */
static const struct call_step MISTRAL[] = {
    { CALL_NAME, "[{ \n", 0 },
    { CALL_IF, "[CALL_ID]", 4, WRITE_TOKEN },
    { CALL_OPTION, "[ARGS]", 0, WRITE_ALWAYS },
    { CALL_GOTO, NULL, 6 },
    { CALL_ID, "[", 0 }, /* 4 */
    { CALL_MARK, "[ARGS]", 0 },
    { .op = CALL_JSON }, /* 6 */
    { .op = CALL_DONE },
};

/* [TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}, ...] */
static const struct call_step MISTRAL_LIST[] = { { CALL_MARK, "[", 0 },
                                                 { OBJECT }, /* 1 */
                                                 { CALL_IF, ",", 1 },
                                                 { CALL_MARK, "]", 0 },
                                                 { .op = CALL_DONE } };

/* A list, or objects with blanks between them, after an opening; CLOSING ends it. */
#define LIST_UNTIL(CLOSING, ...)                                                                             \
    {                                                                                                        \
        { CALL_IF, "[", 5, WRITE_ALWAYS }, { __VA_ARGS__ },                                          /* 1 */ \
            { CALL_PEEK, "{", 1 }, { CALL_CLOSE, CLOSING, 0 }, { .op = CALL_DONE }, { __VA_ARGS__ }, /* 5 */ \
            { CALL_IF, ",", 5 }, { CALL_MARK, "]", 0 }, { CALL_CLOSE, CLOSING, 0 },                          \
        {                                                                                                    \
            .op = CALL_DONE                                                                                  \
        }                                                                                                    \
    }
static const struct call_step PHI_4[] = LIST_UNTIL("<|/tool_call|>", OBJECT);
static const struct call_step NEMOTRON[] = LIST_UNTIL("</TOOLCALL>", OBJECT);
static const struct call_step APRIEL[] = LIST_UNTIL("</tool_calls>", OBJECT);
static const struct call_step HERMES_LIST[] = LIST_UNTIL("</tool_call>", OBJECT);
static const struct call_step PANGU[] = LIST_UNTIL("[unused12]", OBJECT);
static const struct call_step LFM2_JSON[] = LIST_UNTIL("<|tool_call_end|>", OBJECT);
static const struct call_step COMMAND_R7B[] = LIST_UNTIL("<|END_ACTION|>", OBJECT_R7B);

/* Action: and a block with a list */
static const struct call_step COMMAND_R[] = { { CALL_MARK, "```json", 0 }, { CALL_MARK, "[", 0 },
                                              { OBJECT_COMMAND }, /* 2 */
                                              { CALL_IF, ",", 2 },         { CALL_MARK, "]", 0 },
                                              { CALL_CLOSE, "```", 0 },    { .op = CALL_DONE } };

/* A block with a list within text, as xLAM writes it */
static const struct call_step LIST_BLOCK[] = {
    { CALL_MARK, "```json", 0 }, { CALL_MARK, "[", 0 }, { OBJECT }, /* 2 */
    { CALL_IF, ",", 2 },         { CALL_MARK, "]", 0 }, { CALL_CLOSE, "```", 0 },
    { .op = CALL_DONE }
};

static const struct call_step INTERNLM2[] = { { OBJECT_LLAMA },
                                              { CALL_CLOSE, "<|action_end|>", 0 },
                                              { .op = CALL_DONE } };
static const struct call_step LONGCAT[] = { { OBJECT },
                                            { CALL_CLOSE, "</longcat_tool_call>", 0 },
                                            { .op = CALL_DONE } };
/* <function_call> before each object, and nothing after it */
static const struct call_step GRANITE_20B[] = { { OBJECT }, { .op = CALL_DONE } };

/* <|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|> */
static const struct call_step APERTUS[] = {
    { CALL_MARK, "[", 0 },  { CALL_MARK, "{", 0 }, /* 1 */
    { CALL_MARK, "\"", 0 }, { CALL_NAME, "\"", 0 }, { CALL_MARK, "\"", 0 },
    { CALL_MARK, ":", 0 },  { .op = CALL_JSON },    { CALL_MARK, "}", 0 },
    { CALL_IF, ",", 1 },    { CALL_MARK, "]", 0 },  { CALL_CLOSE, "<|tools_suffix|>", 0 },
    { .op = CALL_DONE },
};

/* NAME(KEY=VALUE, ...), one a line, between marks */
static const struct call_step OLMO_3[] = {
    { CALL_NAME, "(", 0 }, /* 0 */
    { CALL_MARK, "(", 0 },  { .op = CALL_PYTHON }, { CALL_IF, "</function_calls>", 5 },
    { CALL_GOTO, NULL, 0 }, { .op = CALL_DONE }, /* 5 */
};

/* functools[{"name": ..., "arguments": {...}}, ...] */
static const struct call_step FIREFUNCTION[] = { { OBJECT }, /* 0 */
                                                 { CALL_IF, ",", 0 },
                                                 { CALL_MARK, "]", 0 },
                                                 { .op = CALL_DONE } };

/* Each call is between its own marks, and all of them between another pair. V3 and R1 write
 * function<｜tool▁sep｜>NAME and a block of JSON, V3.1 NAME<｜tool▁sep｜>{...}. */
#define DEEPSEEK_STEPS(V3)                                                                                   \
    {                                                                                                        \
        { CALL_OPTION, "<｜tool▁call▁begin｜>", 0, WRITE_ALWAYS },                                           \
            { CALL_IF, "function<｜tool▁sep｜>", 9, V3 }, /* 1 */                                            \
            { CALL_NAME, "<", 0 }, { CALL_MARK, "<｜tool▁sep｜>", 0 }, { .op = CALL_JSON },                  \
            { CALL_CLOSE, "<｜tool▁call▁end｜>", 0 }, /* 5 */                                                \
            { CALL_IF, "<｜tool▁call▁begin｜>", 1 }, { CALL_CLOSE, "<｜tool▁calls▁end｜>", 0 },              \
            { .op = CALL_DONE }, { CALL_NAME, "\n`", 0 }, /* 9 */                                            \
            { CALL_MARK, "```json", 0 }, { .op = CALL_JSON }, { CALL_MARK, "```", 0 },                       \
        {                                                                                                    \
            CALL_GOTO, NULL, 5                                                                               \
        }                                                                                                    \
    }
static const struct call_step DEEPSEEK_V3[] = DEEPSEEK_STEPS(WRITE_ALWAYS);
static const struct call_step DEEPSEEK_V3_1[] = DEEPSEEK_STEPS(WRITE_NEVER);

static const struct call_step KIMI_K2[] = {
    { CALL_OPTION, "<|tool_call_begin|>", 0, WRITE_ALWAYS },
    { CALL_NAME_ID, "<", 0 }, /* 1 */
    { CALL_MARK, "<|tool_call_argument_begin|>", 0 },
    { .op = CALL_JSON },
    { CALL_IF, "<|tool_call_begin|>", 1, WRITE_NEVER }, /* some answers lack the end */
    { CALL_CLOSE, "<|tool_call_end|>", 0 },
    { CALL_IF, "<|tool_call_begin|>", 1 },
    { CALL_CLOSE, "<|tool_calls_section_end|>", 0 },
    { .op = CALL_DONE },
};

/* <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> */
#define HARMONY_CALL "<|channel|>commentary to=functions."
static const struct call_step HARMONY[] = {
    { CALL_NAME, " <", 0 },
    { CALL_OPTION, "<|constrain|>json", 0, WRITE_ALWAYS },
    { CALL_SKIP, "<|message|>", 0, WRITE_NEVER },
    { .op = CALL_JSON },
    { CALL_PEEK, "<|channel|>", 6, WRITE_NEVER }, /* of the next call */
    { CALL_CLOSE, "<|call|>", 0 },
    { .op = CALL_DONE }, /* 6 */
};

/* NAME, a line's end, {...}; several with >>> between them. The prompt ends with >>>. Text has the
 * recipient "all". */
static const struct call_step FUNCTIONARY[] = { { CALL_NAME, "\n", 0 }, /* 0 */
                                                { .op = CALL_JSON },
                                                { CALL_IF, ">>>all\n", 4, WRITE_NEVER },
                                                { CALL_IF, ">>>", 0 },
                                                { .op = CALL_DONE } }; /* 4 */

/* The same after text: >>>all, a line's end, text, then >>>NAME and so on. */
static const struct call_step FUNCTIONARY_LATER[] = { { CALL_NAME, "\n", 0 },
                                                      { .op = CALL_JSON },
                                                      { .op = CALL_DONE } };

/* NAME<|content|>{...}; several with <|from|>assistant<|recipient|> between them. The prompt ends with
 * <|recipient|>. */
static const struct call_step FUNCTIONARY_2[] = { { CALL_NAME, "\n<", 0 }, /* 0 */
                                                  { CALL_MARK, "<|content|>", 0 },
                                                  { .op = CALL_JSON },
                                                  { CALL_IF, "<|from|>assistant", 7, WRITE_TOKEN },
                                                  { CALL_IF, "<|recipient|>all\n", 6, WRITE_NEVER },
                                                  { CALL_IF, "<|recipient|>", 0, WRITE_NEVER },
                                                  { .op = CALL_DONE },                               /* 6 */
                                                  { CALL_IF, "<|recipient|>all\n", 6, WRITE_NEVER }, /* 7 */
                                                  { CALL_IF, "<|recipient|>", 0, WRITE_ALWAYS },
                                                  { .op = CALL_DONE } };

/* The same after text */
static const struct call_step FUNCTIONARY_2_LATER[] = { { CALL_MARK, "<|recipient|>", 0 },
                                                        { CALL_NAME, "\n<", 0 },
                                                        { CALL_MARK, "<|content|>", 0 },
                                                        { .op = CALL_JSON },
                                                        { .op = CALL_DONE } };

/* A block of Python with calls, one a line, in a list, or in print() */
static const struct call_step GEMMA[] = {
    { CALL_OPTION, "[", 0, WRITE_NEVER },
    { CALL_OPTION, "print(", 0, WRITE_NEVER }, /* 1 */
    { CALL_NAME, "(", 0 },
    { CALL_MARK, "(", 0 },
    { .op = CALL_PYTHON },
    { CALL_OPTION, ")", 0, WRITE_NEVER },
    { CALL_OPTION, ",", 0, WRITE_NEVER },
    { CALL_OPTION, "]", 0, WRITE_NEVER },
    { CALL_IF, "```", 10 },
    { CALL_GOTO, NULL, 1 },
    { .op = CALL_DONE }, /* 10 */
};

/* A block with JSON */
static const struct call_step GEMMA_JSON[] = { { CALL_OPTION, "[", 0 },  { OBJECT }, /* 1 */
                                               { CALL_IF, ",", 1 },      { CALL_OPTION, "]", 0 },
                                               { CALL_CLOSE, "```", 0 }, { .op = CALL_DONE } };

/* call:NAME{KEY:<|"|>TEXT<|"|>,KEY:VALUE}; commas may be missing */
static const struct call_step GEMMA_4[] = {
    { CALL_NAME, "{", 0 },
    { CALL_MARK, "{", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, "}", 11 }, /* 3 */
    { CALL_OPTION, ",", 0 },
    { CALL_KEY, ":", 0 },
    { CALL_IF, "<|\"|>", 9 },
    { CALL_DICT, "<|\"|>", 0 },
    { CALL_GOTO, NULL, 3 },
    { CALL_QUOTED, "<|\"|>", 0 }, /* 9 */
    { CALL_GOTO, NULL, 3 },
    { .op = CALL_PAIRS_OVER }, /* 11 */
    { CALL_CLOSE, "<tool_call|>", 0 },
    { .op = CALL_DONE },
};

/* The same with other marks */
static const struct call_step FUNCTION_GEMMA[] = {
    { CALL_NAME, "{", 0 },
    { CALL_MARK, "{", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, "}", 11 }, /* 3 */
    { CALL_OPTION, ",", 0 },
    { CALL_KEY, ":", 0 },
    { CALL_IF, "<escape>", 9 },
    { CALL_DICT, "<escape>", 0 },
    { CALL_GOTO, NULL, 3 },
    { CALL_QUOTED, "<escape>", 0 }, /* 9 */
    { CALL_GOTO, NULL, 3 },
    { .op = CALL_PAIRS_OVER }, /* 11 */
    { CALL_CLOSE, "<end_function_call>", 0 },
    { .op = CALL_DONE },
};

/* call tool="NAME" index="1", then argument key="KEY" type="string" or a block of JSON, each tag between
 * <|open|> or <|close|> and <|sep|> */
static const struct call_step KIMI_K3[] = {
    { CALL_MARK, "<|open|>call tool=\"", 0 },
    { CALL_NAME, "\"", 0 }, /* 1 */
    { CALL_SKIP, "<|sep|>", 0 },
    { CALL_IF, "<|open|>json type=\"object\"<|sep|>", 16 },
    { .op = CALL_PAIRS },
    { CALL_IF, "<|close|>call<|sep|>", 14 }, /* 5 */
    { CALL_MARK, "<|open|>argument key=\"", 0 },
    { CALL_ATTRIBUTE, "\" type=\"", 0 },
    { CALL_IF, "string\"<|sep|>", 12 },
    { CALL_SKIP, "<|sep|>", 0 },
    { CALL_VALUE, "<|close|>argument<|sep|>", 0 },
    { CALL_GOTO, NULL, 5 },
    { CALL_TEXT, "<|close|>argument<|sep|>", 0 }, /* 12 */
    { CALL_GOTO, NULL, 5 },
    { .op = CALL_PAIRS_OVER }, /* 14 */
    { CALL_GOTO, NULL, 19 },
    { .op = CALL_JSON }, /* 16 */
    { CALL_MARK, "<|close|>json<|sep|>", 0 },
    { CALL_MARK, "<|close|>call<|sep|>", 0 },
    { CALL_IF, "<|open|>call tool=\"", 1 }, /* 19 */
    { CALL_CLOSE, "<|close|>tools<|sep|>", 0 },
    { CALL_OPTION, "<|close|>message<|sep|>", 0 },
    { .op = CALL_DONE },
};

/* <invoke name="NAME"><KEY>VALUE</KEY></invoke>, with a mark before each tag; values may be nested */
#define MINIMAX_NS "]<]minimax[>["
static const struct call_step MINIMAX_M3[] = {
    { CALL_MARK, MINIMAX_NS "<invoke name=\"", 0 },
    { CALL_NAME, "\"", 0 }, /* 1 */
    { CALL_MARK, "\">", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, MINIMAX_NS "</invoke>", 9 }, /* 4 */
    { CALL_MARK, MINIMAX_NS "<", 0 },
    { CALL_KEY, ">", 0 },
    { CALL_ELEMENT, MINIMAX_NS, 0 },
    { CALL_GOTO, NULL, 4 },
    { .op = CALL_PAIRS_OVER }, /* 9 */
    { CALL_IF, MINIMAX_NS "<invoke name=\"", 1 },
    { CALL_CLOSE, MINIMAX_NS "</tool_call>", 0 },
    { .op = CALL_DONE },
};

/* function<｜tool_sep｜>NAME, a line's end, <steptml:invoke name="NAME">
 * <steptml:parameter name="KEY">VALUE</steptml:parameter></steptml:invoke>, each call between its own marks */
static const struct call_step STEP_3[] = {
    { CALL_MARK, "<｜tool_call_begin｜>", 0 },
    { CALL_SKIP, "<steptml:invoke name=\"", 0 }, /* 1 */
    { CALL_NAME, "\"", 0 },
    { CALL_MARK, "\">", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, "</steptml:invoke>", 10 }, /* 5 */
    { CALL_MARK, "<steptml:parameter name=\"", 0 },
    { CALL_KEY, "\">", 0 },
    { CALL_VALUE, "</steptml:parameter>", 0 },
    { CALL_GOTO, NULL, 5 },
    { .op = CALL_PAIRS_OVER }, /* 10 */
    { CALL_CLOSE, "<｜tool_call_end｜>", 0 },
    { CALL_OPTION, "<｜tool_sep｜>", 0 },
    { CALL_IF, "<｜tool_call_begin｜>", 1 },
    { CALL_CLOSE, "<｜tool_calls_end｜>", 0 },
    { .op = CALL_DONE },
};

/* <tool_call>NAME<tool_sep><arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>, several between
 * another pair; published checkpoints have a suffix in each mark. */
#define HY_V3(SUFFIX)                                                                                        \
    {                                                                                                        \
        { CALL_MARK, "<tool_call" SUFFIX ">", 0 }, { CALL_NAME, "<\n", 0 }, /* 1 */                          \
            { CALL_MARK, "<tool_sep" SUFFIX ">", 0 }, { .op = CALL_PAIRS },                                  \
            { CALL_IF, "</tool_call" SUFFIX ">", 10 }, /* 4 */                                               \
            { CALL_MARK, "<arg_key" SUFFIX ">", 0 }, { CALL_KEY, "</arg_key" SUFFIX ">", 0 },                \
            { CALL_MARK, "<arg_value" SUFFIX ">", 0 }, { CALL_VALUE, "</arg_value" SUFFIX ">", 0 },          \
            { CALL_GOTO, NULL, 4 }, { .op = CALL_PAIRS_OVER }, /* 10 */                                      \
            { CALL_IF, "<tool_call" SUFFIX ">", 1 }, { CALL_CLOSE, "</tool_calls" SUFFIX ">", 0 },           \
        {                                                                                                    \
            .op = CALL_DONE                                                                                  \
        }                                                                                                    \
    }
static const struct call_step HY_V3_SUFFIX[] = HY_V3(":opensource");
static const struct call_step HY_V3_PLAIN[] = HY_V3("");

/* <function name="NAME"><param name="KEY">VALUE</param></function>; a value may be within CDATA. */
static const struct call_step MINICPM_5[] = {
    { CALL_NAME, "\"", 0 },
    { CALL_MARK, "\">", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, "</function>", 12 }, /* 3 */
    { CALL_MARK, "<param name=\"", 0 },
    { CALL_KEY, "\">", 0 },
    { CALL_IF, "<![CDATA[", 9, WRITE_NEVER },
    { CALL_VALUE, "</param>", 0 },
    { CALL_GOTO, NULL, 3 },
    { CALL_VALUE, "]]>", 0 }, /* 9 */
    { CALL_MARK, "</param>", 0 },
    { CALL_GOTO, NULL, 3 },
    { .op = CALL_PAIRS_OVER }, /* 12 */
    { .op = CALL_DONE },
};

/* NAME, a line's end, <|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|>, between marks */
static const struct call_step SOLAR_OPEN_2[] = {
    { CALL_NAME, "<\n", 0 },
    { .op = CALL_PAIRS },
    { CALL_IF, "<|tool_call:end|>", 7 }, /* 2 */
    { CALL_MARK, "<|tool_arg:start|>", 0 },
    { CALL_KEY, "<|tool_arg:value|>", 0 },
    { CALL_VALUE, "<|tool_arg:end|>", 0 },
    { CALL_GOTO, NULL, 2 },
    { .op = CALL_PAIRS_OVER }, /* 7 */
    { .op = CALL_DONE },
};

/* to=NAME<|message|><atem:function_calls><atem:invoke name="NAME"><atem:parameter name="KEY">VALUE</atem:parameter>
 * </atem:invoke></atem:function_calls>; the next call is a message of its own. */
static const struct call_step MUSE[] = {
    { CALL_NAME, "<", 0 }, /* 0 */
    { CALL_MARK, "<|message|>", 0 },
    { CALL_MARK, "<atem:function_calls>", 0 },
    { CALL_MARK, "<atem:invoke name=\"", 0 },
    { CALL_NAME, "\"", 0 }, /* 4 */
    { CALL_MARK, "\">", 0 },
    { CALL_IF, "</atem:invoke>", 14 },
    { CALL_MARK, "<atem:parameter name=\"", 0 },
    { .op = CALL_PAIRS },
    { CALL_KEY, "\">", 0 }, /* 9 */
    { CALL_VALUE, "</atem:parameter>", 0 },
    { CALL_IF, "<atem:parameter name=\"", 9 },
    { CALL_MARK, "</atem:invoke>", 0 },
    { CALL_GOTO, NULL, 15 },
    { .op = CALL_PAIRS },                                /* 14 */
    { .op = CALL_PAIRS_OVER },                           /* 15 */
    { CALL_IF, "<atem:invoke name=\"", 4, WRITE_NEVER }, /* some answers have several calls in a message */
    { CALL_CLOSE, "</atem:function_calls>", 0 },
    { CALL_IF, "<|eom|>", 20 },
    { .op = CALL_DONE },
    { CALL_MARK, "<|start|>assistant", 0 }, /* 20 */
    { CALL_MARK, "to=", 0 },
    { CALL_GOTO, NULL, 0 },
};

/* NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>, several with <|message_model|> between
 * them. The prompt ends with <|message_model|>. */
static const struct call_step INKLING[] = {
    { CALL_IF, "<|content_invoke_tool_json|>", 3, WRITE_NEVER }, /* some answers lack the first name */
    { CALL_NAME, "<", 0 },
    { CALL_MARK, "<|content_invoke_tool_json|>", 0 },
    { OBJECT_INKLING }, /* 3 */
    { CALL_OPTION, "<|end_message|>", 0, WRITE_ALWAYS },
    { CALL_IF, "<|message_model|>", 0 },
    { .op = CALL_DONE },
};

/* The first row whose traits are in a template is its form, so those with rarer marks come first. Rows
 * with the same opening are tried in this order. */
#define STEPS(LIST) LIST, sizeof(LIST) / sizeof *(LIST)
static const struct call_form FORMS[] = {
    { "deepseek-v3.2",
      { "<｜DSML｜tool_calls>", "<｜DSML｜function_calls>" },
      { "<｜DSML｜tool_calls>" },
      STEPS(DSML_V4) },
    { "deepseek-v3.2",
      { "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>" },
      { "｜DSML｜" },
      STEPS(DSML_V3_2) },
    { "gemma-4", { "<|tool_call>call:" }, { "<|tool_call>" }, STEPS(GEMMA_4) },
    { "functiongemma", { "<start_function_call>call:" }, { "<start_function_call>" }, STEPS(FUNCTION_GEMMA) },
    { "kimi-k3", { "<|open|>tools<|sep|>" }, { "<|open|>", "<|sep|>" }, STEPS(KIMI_K3) },
    { "minimax-m3", { MINIMAX_NS "<tool_call>" }, { MINIMAX_NS }, STEPS(MINIMAX_M3) },
    { "step-3", { "<｜tool_calls_begin｜>" }, { "<steptml:invoke name=" }, STEPS(STEP_3) },
    { "hy-v3", { "<tool_calls:opensource>" }, { "<tool_sep", ":opensource" }, STEPS(HY_V3_SUFFIX) },
    { "hy-v3", { "<tool_calls>" }, { "<tool_sep>" }, STEPS(HY_V3_PLAIN) },
    { "minicpm-5", { "<function name=\"" }, { "<function name=", "<param name=" }, STEPS(MINICPM_5) },
    { "solar-open-2", { "<|tool_call:start|>" }, { "<|tool_call:start|>" }, STEPS(SOLAR_OPEN_2) },
    { "muse", { "to=" }, { "<atem:function_calls>" }, STEPS(MUSE), .is_named_only = true },
    { "inkling", { NULL }, { "<|content_invoke_tool_json|>" }, STEPS(INKLING), .is_named_only = true },
    { "inkling", { "<|message_model|>" }, { NULL }, STEPS(INKLING), .is_named_only = true },
    { "gigachat-3",
      { "<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n" },
      { "function call", "<|role_sep|>" },
      STEPS(GRANITE_20B) },
    { "gigachat-3", { "<|function_call|>" }, { "<|function_call|>" }, STEPS(GRANITE_20B) },
    { "minimax-m2", { "<minimax:tool_call>" }, { "<minimax:tool_call>" }, STEPS(MINIMAX_M2) },
    { "seed-oss", { "<seed:tool_call>" }, { "<seed:tool_call>" }, STEPS(SEED_OSS) },
    { "qwen3-coder", { "<tool_call>", "<function=" }, { "<function=", "<parameter=" }, STEPS(QWEN3_CODER) },
    { "functionary-v3.1", { "<function=" }, { "<function=" }, STEPS(FUNCTION_JSON) },
    { "glm-4.5", { "<tool_call>" }, { "<tool_call>", "<arg_key>" }, STEPS(GLM_4_5) },
    { "deepseek",
      { "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>" },
      { "<｜tool▁sep｜>", "```json" },
      STEPS(DEEPSEEK_V3) },
    { "deepseek",
      { "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>" },
      { "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>" },
      STEPS(DEEPSEEK_V3_1) },
    { "kimi-k2",
      { "<|tool_calls_section_begin|>", "<|tool_call_begin|>" },
      { "<|tool_call_begin|>", "<|tool_call_argument_begin|>" },
      STEPS(KIMI_K2) },
    { "harmony", { HARMONY_CALL }, { "<|channel|>", "<|message|>" }, STEPS(HARMONY) },
    { "mistral", { "[TOOL_CALLS]" }, { "[TOOL_CALLS]", "[ARGS]" }, STEPS(MISTRAL) },
    { "mistral", { "[TOOL_CALLS]" }, { "[TOOL_CALLS]" }, STEPS(MISTRAL_LIST) },
    { "phi-4-mini", { "<|tool_call|>" }, { "<|tool_call|>" }, STEPS(PHI_4) },
    { "lfm2", { "<|tool_call_start|>" }, { "<|tool_call_start|>" }, STEPS(LFM2) },
    { "lfm2", { "<|tool_call_start|>" }, { NULL }, STEPS(LFM2_JSON) }, /* if JSON is requested */
    { "pangu", { "[unused11]" }, { "[unused11]" }, STEPS(PANGU) },
    { "pangu", { "<|tool_call_start|>" }, { NULL }, STEPS(LFM2_JSON) },
    { "nemotron", { "<TOOLCALL>" }, { "<TOOLCALL>" }, STEPS(NEMOTRON) },
    { "apriel", { "<tool_calls>" }, { "<tool_calls>" }, STEPS(APRIEL) },
    { "internlm2",
      { "<|action_start|><|plugin|>", "<|action_start|> <|plugin|>" },
      { "<|action_start|>" },
      STEPS(INTERNLM2) },
    { "longcat", { "<longcat_tool_call>" }, { "<longcat_tool_call>" }, STEPS(LONGCAT) },
    { "apertus", { "<|tools_prefix|>" }, { "<|tools_prefix|>" }, STEPS(APERTUS) },
    { "olmo-3", { "<function_calls>" }, { "<function_calls>" }, STEPS(OLMO_3) },
    { "granite-20b", { "<function_call>" }, { "<function_call>" }, STEPS(GRANITE_20B) },
    { "command-r", { "<|START_ACTION|>" }, { "<|START_ACTION|>" }, STEPS(COMMAND_R7B) },
    { "command-r", { "Action:" }, { "Action:", "\"tool_name\"" }, STEPS(COMMAND_R) },
    { "hermes", { "<tool_call>" }, { "<tool_call>" }, STEPS(HERMES) },
    { "hermes", { "<tool_call>" }, { NULL }, STEPS(HERMES_LIST) },
    { "phi-4-mini", { "<tool_call>" }, { NULL }, STEPS(HERMES_LIST) },
    { "phi-4-mini", { "functools[" }, { NULL }, STEPS(FIREFUNCTION) },
    { "firefunction", { "functools[" }, { " functools[" }, STEPS(FIREFUNCTION) },
    { "functionary-v2.5",
      { "<|reserved_special_token_249|>" },
      { "<|reserved_special_token_249|>" },
      STEPS(FUNCTIONARY_LATER) },
    { "functionary-v2", { NULL }, { "<|recipient|>", "<|content|>" }, STEPS(FUNCTIONARY_2) },
    { "functionary-v2", { "<|from|>assistant" }, { NULL }, STEPS(FUNCTIONARY_2_LATER) },
    { "functionary-v3.2", { NULL }, { ">>>all" }, STEPS(FUNCTIONARY) },
    { "functionary-v3.2", { ">>>" }, { NULL }, STEPS(FUNCTIONARY_LATER) },
    { "gemma", { "```tool_code" }, { "```tool_code" }, STEPS(GEMMA) },
    { "gemma", { "```tool_code" }, { NULL }, STEPS(GEMMA_JSON) },
    { "pythonic", { NULL }, { "[func_name1(" }, STEPS(PYTHONIC) },
    { "llama-3", { NULL }, { "{\"name\": function name, \"parameters\":" }, STEPS(OBJECTS) },
    { "llama-3", { NULL }, { NULL }, STEPS(PYTHONIC) },
    { "llama-3",
      { "{\"name\"", "{ \"name\"", "{\"type\"" },
      { NULL },
      STEPS(OBJECT_LATER),
      .is_part = true,
      .is_named_only = true },
    { "list", { NULL }, { "calls in a single JSON array" }, STEPS(LIST) },
    { "list",
      { "```json\n[{\"name\"" },
      { NULL },
      STEPS(LIST_BLOCK),
      .is_part = true,
      .is_named_only = true },
    { "list", { "<tool_call>" }, { NULL }, STEPS(HERMES_LIST) },
    { "list", { "[TOOL_CALLS]" }, { NULL }, STEPS(MISTRAL) },
    { "list", { "[TOOL_CALLS]" }, { NULL }, STEPS(MISTRAL_LIST) },
    { "glm-4", { NULL }, { NULL }, STEPS(NAME_LINE) },
    { "chatglm3", { NULL }, { NULL }, STEPS(NAME_LINE_PYTHON) },
};

enum { N_FORMS = sizeof FORMS / sizeof *FORMS };
_Static_assert(N_FORMS <= 64, "rows are bits of a uint64_t");

size_t call_forms_count(void)
{
    return N_FORMS;
}

const struct call_form *call_form_at(size_t i)
{
    return &FORMS[i];
}

uint64_t call_forms_find(const char *name)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < N_FORMS; i++)
        if (name ? strcmp(FORMS[i].name, name) == 0 : !FORMS[i].is_named_only)
            rows |= UINT64_C(1) << i;
    return rows;
}

const struct call_form *call_form_of_template(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        bool has_all = FORMS[i].traits[0];
        for (size_t k = 0; k < CALL_MAX_TRAITS && FORMS[i].traits[k]; k++)
            has_all = has_all && memmem(text, n_bytes, FORMS[i].traits[k], strlen(FORMS[i].traits[k]));
        if (has_all)
            return &FORMS[i];
    }
    return NULL;
}

const struct call_form *call_form_find(const char *name)
{
    for (size_t i = 0; i < N_FORMS; i++)
        if (strcmp(FORMS[i].name, name) == 0)
            return &FORMS[i];
    return NULL;
}

bool call_form_can_be_written(const struct call_form *form)
{
    for (size_t i = 0; i < form->n_steps; i++) {
        const struct call_step *step = &form->steps[i];
        bool is_read_only = step->op == CALL_ATTRIBUTE || step->op == CALL_QUOTED || step->op == CALL_DICT ||
                            step->op == CALL_ELEMENT ||
                            (step->op == CALL_SKIP && step->writing != WRITE_NEVER);
        if (is_read_only)
            return false;
    }
    return true;
}

const struct call_form *call_form_written(const struct call_form *form)
{
    return form && call_form_can_be_written(form) ? form : call_form_find("list");
}

static bool mentions(const char *whole, const char *text, size_t n_bytes)
{
    return whole && memmem(whole, strlen(whole), text, n_bytes);
}

bool call_form_mentions(uint64_t rows, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        if (!(rows >> i & 1))
            continue;
        for (size_t k = 0; k < CALL_MAX_OPENINGS; k++)
            if (mentions(FORMS[i].openings[k], text, n_bytes))
                return true;
        for (size_t k = 0; k < FORMS[i].n_steps; k++)
            if (mentions(FORMS[i].steps[k].text, text, n_bytes))
                return true;
    }
    return false;
}
