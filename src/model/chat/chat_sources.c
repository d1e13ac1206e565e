/* tutti's own templates for well-known formats, for checkpoints without a template. They render
 * the same as the authors' templates; tests compare them. White space is explicit: every tag
 * strips the white space around it. */
#include "model/chat/chat.h"

#include <string.h>

/* ---- ChatML, with the tools of Qwen ---- */

static const char SYSTEM_QWEN2[] = "{%- set system = 'You are a helpful assistant.' -%}";
static const char SYSTEM_QWEN25[] =
    "{%- set system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}";
static const char THINKS[] = "{%- set thinks = true -%}";

/* system: the default system message; thinks: replies begin with reasoning. */
static const char CHATML_SYSTEM[] =
    "{%- if messages and messages[0].role == 'system' -%}{%- set system = messages[0].content -%}{%- endif "
    "-%}"
    "{%- if tools -%}"
    "{{- '<|im_start|>system\n' -}}"
    "{%- if system is defined -%}{{- system ~ '\n\n' -}}{%- endif -%}"
    "{{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
    "with function "
    "signatures within <tools></tools> XML tags:\n<tools>' -}}"
    "{%- for tool in tools -%}{{- '\n' ~ (tool | tojson) -}}{%- endfor -%}"
    "{{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call><|im_end|>\n' -}}"
    "{%- elif system is defined -%}"
    "{{- '<|im_start|>system\n' ~ system ~ '<|im_end|>\n' -}}"
    "{%- endif -%}";

/* Finds the last question: reasoning before it is dropped. A tool's answer in a user message does
 * not count. */
static const char CHATML_LAST_QUESTION[] =
    "{%- set ns = namespace(last=messages | length - 1) -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and "
    "m.content.endswith('</tool_response>')) -%}{%- set ns.last = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}";

/* Sets content: an answer without its reasoning, or with it after the last question. */
static const char CHATML_ANSWER[] =
    "{%- set content = m.content -%}"
    "{%- if thinks is defined -%}"
    "{%- set reasoning = m.reasoning_content if m.reasoning_content is string else '' -%}"
    "{%- if m.reasoning_content is not string and '</think>' in content -%}"
    "{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') -%}"
    "{%- endif -%}"
    "{%- if loop.index0 > ns.last and (loop.last or reasoning) -%}"
    "{%- set content = '<think>\n' ~ reasoning.strip('\n') ~ '\n</think>\n\n' ~ content.lstrip('\n') -%}"
    "{%- endif -%}{%- endif -%}";

static const char CHATML_MESSAGES[] =
    "{%- for call in (m.tool_calls or []) -%}"
    "{%- set f = call.function if call.function is defined else call -%}"
    "{{- ('\n' if thinks is not defined or content or not loop.first else '') ~ '<tool_call>\n{\"name\": \"' "
    "~ f.name ~ "
    "'\", \"arguments\": ' ~ (f.arguments if thinks is defined and f.arguments is string else f.arguments | "
    "tojson) ~ '}\n</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\n' -}}"
    "{%- elif m.role == 'tool' -%}"
    "{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' -}}"
    "{{- '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' -}}"
    "{{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}"
    "{%- else -%}{{- raise_exception('a role must be system, user, assistant or tool') -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if thinks is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
    "{%- endif -%}";

static const char CHATML_TURNS[] = "{%- for m in messages -%}"
                                   "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}"
                                   "{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' -}}"
                                   "{%- elif m.role == 'system' -%}"
                                   "{%- elif m.role == 'assistant' -%}";

/* Qwen2's header of an answer with calls has its newline only before content. */
static const char CHATML_HEADER[] =
    "{{- '<|im_start|>assistant' -}}"
    "{{- '\n' ~ content if thinks is defined or content or not m.tool_calls else '' -}}";

/* ---- LLaMA-3 ---- */

static const char LLAMA3[] =
    "{{- bos_token -}}"
    "{%- for m in messages -%}"
    "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ (m.content | trim) ~ '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif "
    "-%}";

static const char LLAMA31_SYSTEM[] =
    "{{- bos_token -}}"
    "{%- set date = date_string if date_string is defined else strftime_now('%d %b %Y') -%}"
    "{%- set system = '' -%}"
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set system = messages[0].content | trim -%}{%- set messages = messages[1:] -%}"
    "{%- endif -%}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\n' ~ ('Environment: ipython\n' if tools else '') ~ "
    "'Cutting Knowledge Date: December 2023\nToday Date: ' ~ date ~ '\n\n' ~ system ~ '<|eot_id|>' -}}";

static const char LLAMA31_TOOLS[] =
    "{%- if tools -%}"
    "{%- if not messages -%}{{- raise_exception('tools need a message of the user') -}}{%- endif -%}"
    "{{- '<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, please respond with a "
    "JSON for a "
    "function call with its proper arguments that best answers the given prompt.\n\nRespond in the format "
    "{\"name\": "
    "function name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n' -}}"
    "{%- for tool in tools -%}{{- (tool | tojson(indent=4)) ~ '\n\n' -}}{%- endfor -%}"
    "{{- (messages[0].content | trim) ~ '<|eot_id|>' -}}"
    "{%- set messages = messages[1:] -%}"
    "{%- endif -%}";

static const char LLAMA31_MESSAGES[] =
    "{%- for m in messages -%}"
    "{%- if m.tool_calls -%}"
    "{%- if m.tool_calls | length != 1 -%}{{- raise_exception('an answer may call one tool at a time') "
    "-}}{%- endif -%}"
    "{%- set f = m.tool_calls[0].function -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"' ~ f.name ~ '\", \"parameters\": ' "
    "~ "
    "(f.arguments | tojson) ~ '}<|eot_id|>' -}}"
    "{%- elif m.role == 'tool' or m.role == 'ipython' -%}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' ~ (m.content | tojson) ~ '<|eot_id|>' -}}"
    "{%- else -%}"
    "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ (m.content | trim) ~ '<|eot_id|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif "
    "-%}";

/* ---- Mistral ---- */

static const char MISTRAL_V1[] = "{%- set before, after, at_first = ' [INST] ', ' [/INST]', true -%}";
static const char MISTRAL_V3[] = "{%- set before, after, at_first = '[INST] ', '[/INST]', false -%}";

/* Questions and answers alternate; the system text is prepended to the first question. The third
 * version prepends it to the last one, and trims answers. */
static const char MISTRAL[] =
    "{{- bos_token -}}"
    "{%- set system = '' -%}"
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set system = messages[0].content ~ '\n\n' -%}{%- set messages = messages[1:] -%}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role != ('user' if loop.index0 is even else 'assistant') -%}"
    "{{- raise_exception('roles must alternate between user and assistant, after an optional system "
    "message') -}}{%- endif "
    "-%}"
    "{%- if m.role == 'user' -%}"
    "{{- before ~ (system if (loop.first if at_first else loop.last) else '') ~ m.content ~ after -}}"
    "{%- else -%}"
    "{{- ' ' ~ (m.content if at_first else m.content | trim) ~ eos_token -}}"
    "{%- endif -%}{%- endfor -%}";

/* ---- all ---- */

const char *chat_source(const char *name, size_t i)
{
    static const struct {
        const char *name, *parts[8];
    } SOURCES[] = {
        { "chatml",
          { CHATML_SYSTEM, CHATML_LAST_QUESTION, CHATML_TURNS, CHATML_ANSWER, CHATML_HEADER,
            CHATML_MESSAGES } },
        { "qwen2",
          { SYSTEM_QWEN2, CHATML_SYSTEM, CHATML_LAST_QUESTION, CHATML_TURNS, CHATML_ANSWER, CHATML_HEADER,
            CHATML_MESSAGES } },
        { "qwen2.5",
          { SYSTEM_QWEN25, CHATML_SYSTEM, CHATML_LAST_QUESTION, CHATML_TURNS, CHATML_ANSWER, CHATML_HEADER,
            CHATML_MESSAGES } },
        { "qwen3",
          { THINKS, CHATML_SYSTEM, CHATML_LAST_QUESTION, CHATML_TURNS, CHATML_ANSWER, CHATML_HEADER,
            CHATML_MESSAGES } },
        { "llama3", { LLAMA3 } },
        { "llama3.1", { LLAMA31_SYSTEM, LLAMA31_TOOLS, LLAMA31_MESSAGES } },
        { "mistral-v1", { MISTRAL_V1, MISTRAL } },
        { "mistral-v3", { MISTRAL_V3, MISTRAL } },
    };
    for (size_t s = 0; s < sizeof SOURCES / sizeof *SOURCES; s++) {
        if (strcmp(SOURCES[s].name, name) == 0)
            return i < 8 ? SOURCES[s].parts[i] : NULL;
    }
    return NULL;
}
