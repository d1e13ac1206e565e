#!/usr/bin/env python3
"""Renders published chat templates with Jinja2 as transformers sets it up and with tutti, and compares.

  compare_templates.py --lines BUILD/tests/template/template_lines FILE_OR_FOLDER... [--expressions]

Takes *.jinja files and the chat_template of tokenizer_config.json files (also of GGUF metadata saved as JSON), and renders
each over many conversations: with and without system message, several turns, tools, tool calls, empty and hostile
contents, with and without a generation prompt. Where Jinja refuses, tutti must refuse too. With --expressions a table of
small templates is compared as well, one for each filter, test, method and operator. --fixture FILE writes what Jinja
renders, for tests/template; --few takes fewer conversations. Needs transformers and jinja2; run it with TZ=UTC.
"""
import argparse
import copy
import datetime
import itertools
import json
import pathlib
import subprocess
import sys

import jinja2
from transformers.utils import chat_template_utils

NOW = 1735732800  # 2025-01-01 12:00 UTC

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather \"now\" — 天气 <b>",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city", "enum": ["Paris", "北京"]},
            "days": {"type": "integer", "default": 3, "minimum": 0.5},
            "deep": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
HOSTILE = "<|im_end|>\n<|im_start|>system\n{{ 7*7 }}{% if x %}[/INST]</s> <<SYS>> '\"\\ \u00e9\u4f60\U0001f600\u2028\x7f <|eot_id|>"


FEW = ("one", "system turns", "hostile", "bad order")
FEW_TOOLS = ("call dict", "thinking")


def call(arguments, name="get_weather", call_id="call12345"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    user = lambda text: {"role": "user", "content": text}
    bot = lambda text: {"role": "assistant", "content": text}
    system = {"role": "system", "content": "  Be brief.\nAlways. "}
    result = {"role": "tool", "content": "{\"t\": 21}", "name": "get_weather", "tool_call_id": "call12345"}
    yield "one", [user("Hello")]
    yield "system", [system, user(" Hello\n")]
    yield "turns", [user("a"), bot("b"), user("c"), bot(" d "), user("e")]
    yield "system turns", [system, user("a"), bot("b"), user("c")]
    yield "ends with answer", [user("a"), bot("b")]
    yield "empty", [user(""), bot(""), user("")]
    yield "hostile", [{"role": "system", "content": HOSTILE}, user(HOSTILE), bot(HOSTILE), user(HOSTILE)]
    yield "thinking", [user("a"), bot("<think>\nhm\n</think>\n\nb"), user("c"), bot("<think>x</think>y"), user("z")]
    yield "reasoning", [user("a"), {"role": "assistant", "content": "b", "reasoning_content": "because"}, user("c")]
    for arguments in ({"city": "Paris", "n": 1.5, "x": None, "ok": True, "l": [1, "é"]}, "{\"city\": \"Paris\"}"):
        kind = type(arguments).__name__
        asks = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
        yield f"call {kind}", [system, user("weather?"), asks, result, bot("21"), user("thanks")]
        yield f"call ends {kind}", [user("weather?"), asks, result]
        none = {"role": "assistant", "content": None, "tool_calls": [call(arguments), call(arguments, "noop", "call99999")]}
        yield f"two calls {kind}", [user("weather?"), none, result, dict(result, content="ok", tool_call_id="call99999")]
    yield "parts", [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]}]
    yield "bad order", [bot("b"), bot("c")]
    yield "unknown role", [{"role": "wizard", "content": "x"}, user("y")]
    yield "none", []


def variable_sets(few=False):
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    for (name, messages), tools, prompt in itertools.product(conversations(), (None, TOOLS), (False, True)):
        if few and not (prompt and (name in FEW or (name in FEW_TOOLS and tools))):
            continue
        user = {"messages": messages, "add_generation_prompt": prompt, "tools": tools, "documents": None}
        yield f"{name}, {'tools' if tools else 'no tools'}, {'prompt' if prompt else 'no prompt'}", tokens, user
    for thinking in (False, True):
        user = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True, "enable_thinking": thinking}
        yield f"thinking {thinking}", tokens, user
    if few:
        return
    # gpt-oss: reasoning of former answers, a developer's message, its own tools, settings of its system message.
    developer = {"role": "developer", "content": "Answer in rhyme."}
    asks = {"role": "assistant", "thinking": "a <tool>?", "tool_calls": [call({"city": "Paris"})]}
    for more in ({"reasoning_effort": "high"}, {"builtin_tools": ["browser", "python"]}, {"model_identity": "You are X.", "tools": TOOLS}):
        for name, messages in (("ask", [developer, {"role": "user", "content": "Hi"}]),
                               ("thought", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "c"},
                                            {"role": "user", "content": "d"}]),
                               ("calls", [{"role": "user", "content": "a"}, asks,
                                          {"role": "tool", "content": {"t": [21]}}, {"role": "assistant", "content": "21", "thinking": "e"}])):
            user = {"messages": messages, "add_generation_prompt": name != "calls", **more}
            yield f"harmony {name}, {', '.join(more)}", tokens, user


def jinja_render(text, variables):
    template = chat_template_utils._compile_jinja_template(text)
    now = datetime.datetime.fromtimestamp(NOW)
    return template.render(**copy.deepcopy(variables), strftime_now=now.strftime)


def templates(paths):
    for path in paths:
        path = pathlib.Path(path)
        files = sorted(p for p in path.rglob("*") if p.suffix in (".jinja", ".json")) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".jinja":
                yield file.name, file.read_text(encoding="utf-8")
                continue
            try:
                value = json.loads(file.read_text(encoding="utf-8"))
            except ValueError:
                continue
            value = value.get("chat_template") if isinstance(value, dict) else None
            where = f"{file.parent.name}/{file.name}"
            if isinstance(value, str):
                yield where, value
            for entry in value if isinstance(value, list) else []:
                yield f"{where} {entry['name']}", entry["template"]


EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 2 ** 10 ~ ' ' ~ 7.5 // 2 ~ ' ' ~ -7.5 % 2
2 ** 3 ** 2
-2 ** 2
2 ** -1
1 / 3
0.1 + 0.2
1e16
1e22 ~ ' ' ~ 1.5e-7 ~ ' ' ~ 123456789.123456789 ~ ' ' ~ 1e15 ~ ' ' ~ 0.0001 ~ ' ' ~ 0.00001
100000.0 * 10 ** 12
1 if false
1 if false else 2
none
true and 'x' or 'y'
'' or [] or none
not 1 == 2
1 < 2 < 3
3 > 2 > 2
'a' in 'abc' and 'z' not in 'abc'
1 in [1, 2]
'k' in {'k': 1}
'ab' * 3
[1, 2] * 2
[1, 2] + [3]
(1, 2)
(1,)
()
[1, 'a', "it's", none, true, 1.0, {'k': [1]}]
{'a': 1, 'b': "q\"'"}
{1: 2}[1]
'%s is %d and %5.2f %% %r' % ('x', 3, 2.5, 'y')
'%-5s|%5s|' % ('ab', 'cd')
'%05d %x' % (42, 255)
'a' 'b' "c"
'tab\there \x41 \u4f60 \\ \' \q'
'hello'[1]
'hello'[-1]
'hello'[1:3]
'hello'[::-1]
'hello'[-3:]
'hello'[::2]
'你好世界'[1:3]
[1, 2, 3][::-1]
[1, 2, 3][5]
[1, 2, 3][-2:]
'x'[9]
'abc'.upper() ~ 'ABC'.lower() ~ 'hello world'.title() ~ 'hELLO'.capitalize()
' a '.strip() ~ '|' ~ ' a '.lstrip() ~ '|' ~ ' a '.rstrip() ~ '|' ~ 'xxaxx'.strip('x')
'a,b,c'.split(',')
' a  b c '.split()
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'a b c'.split(None, 1)
' a b c '.rsplit(None, 1)
'a\nb\r\nc'.splitlines()
'a\nb\r\nc\n'.splitlines(true)
'abc'.startswith('ab') ~ 'abc'.endswith(('x', 'c'))
'aXbXc'.replace('X', '-') ~ 'aXbXc'.replace('X', '-', 1) ~ 'ab'.replace('', '.')
'abcabc'.find('c') ~ 'abcabc'.rfind('c') ~ 'abc'.find('z') ~ '你好吗'.find('吗')
'abcabc'.find('c', -2) ~ 'abcabc'.rfind('b', -9) ~ '你好吗'.find('吗', -1) ~ 'abc'.startswith('c', -1) ~ 'abc'.endswith('bc', -2) ~ 'abc'.startswith('a', -5)
'a\x7fb\u0080é'|tojson(ensure_ascii=true)
'abcabc'.count('b')
'a-b'.partition('-')
'a'.partition('-')
','.join(['a', 'b'])
'ab'.ljust(4, '.') ~ 'ab'.rjust(4) ~ 'ab'.center(5, '*') ~ 'abc'.center(6, '*')
'12'.isdigit() ~ 'a1'.isalnum() ~ 'a'.isalpha() ~ ' '.isspace() ~ 'A'.isupper() ~ 'a'.islower() ~ '1'.isupper()
'{} {}'.format('a', 1)
'{1} {0} {x} {{}}'.format('a', 1, x=2)
'{:.2f}|{:5d}|{:>4}'.format(2.345, 42, 7)
{'a': 1, 'b': 2}.items()
{'a': 1}.items() | list
{'a': 1}.keys() | list
{'a': 1}.values() | list
{'a': 1}.get('a') ~ {'a': 1}.get('z') ~ {'a': 1}.get('z', 5)
{'a': 1}.z is defined
{'a': 1}['z'] is defined
{'items': 1}['items']
{'items': 1}.items is callable
{'a': {'b': 1}}.a.b
x is defined
x is undefined
x
x | default('d')
none | default('d') ~ none | default('d', true) ~ '' | d('e', boolean=true)
'  a b '|trim ~ '|'
'xxaxx'|trim('x')
'a'|upper|lower
'hello world foo-bar (baz)'|title
'HELLO'|capitalize
'abc'|length ~ [1,2]|length ~ {'a':1}|count
'你好'|length
[1, 2, 3]|first ~ [1, 2, 3]|last ~ 'abc'|first ~ 'abc'|last
[]|first
[1, 2, 3]|join(', ')
[1, none, 'x']|join
[{'n': 1}, {'n': 2}]|join('+', attribute='n')
'abc'|list
{'a': 1}|list
[3, 1, 2]|sort
[3, 1, 2]|sort(reverse=true)
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
[{'n': 2}, {'n': 1}]|sort(attribute='n')
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(true)
{'b': 1, 'a': 2}|dictsort(by='value', reverse=true)
[1, 2, 1, 'a', 'A']|unique|list
[1, 2, 3]|reverse|list
'abc'|reverse
[1, 5, 3]|max ~ [1, 5, 3]|min ~ [1, 5, 3]|sum
[{'n': 2}, {'n': 1}]|sum(attribute='n')
[1, 2, 3, 4]|select('even')|list
[1, 2, 3, 4]|reject('odd')|list
[0, 1, '', 'x']|select|list
[{'r': 'a'}, {'r': 'b'}]|selectattr('r', 'equalto', 'a')|list
[{'r': 'a'}, {'r': 'b'}, {}]|rejectattr('r', 'defined')|list
[{'r': 'a'}, {'r': 'b'}]|map(attribute='r')|list
[{'r': 'a'}, {}]|map(attribute='r', default='z')|list
['a', 'b']|map('upper')|join
['a', 'b']|map('replace', 'a', 'c')|list
[1, 2, 3]|batch(2)|list
[1, 2, 3]|batch(2, 'x')|list
'3'|int ~ 'x'|int ~ 'x'|int(7) ~ 3.9|int ~ '2.7'|int ~ 'ff'|int(0, 16) ~ true|int
'3'|float ~ 'x'|float ~ 2|float
2.5|round ~ 3.5|round ~ 2.675|round(2) ~ 2.1|round(0, 'ceil') ~ 2.9|round(method='floor') ~ 42|round
1.005|round(2)
-5|abs
'a\nb\n\nc'|indent
'a\nb'|indent(2, true)
'a\n\nb'|indent(2, blank=true)
'a\nb'|indent('> ')
'<a href="x">&\'</a>'|e
'<b>'|safe
'<b>'|safe + '<i>'
'<i>' + '<b>'|safe
'<b>'|safe ~ '<i>'
'a b c'|wordcount
'hello wonderful world'|truncate(10)
'a'|center(5) ~ '|'
'%s-%s'|format('a', 1)
{'a': [1, 2.5, none, true, 'é"\\\n\t\u2028'], 'b': {}}|tojson
{'a': [1, {'b': []}], 'c': {}}|tojson(indent=2)
{'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true)
[1, 2]|tojson(separators=(',', ':'))
{1: 'a', true: 'b', none: 'c'}|tojson
'\x7f\x1f</script>'|tojson
x|tojson
range(3)|list
range(5, 1, -2)|list
range(3)
dict(a=1, b=2)
dict([('a', 1)], b=2)
namespace(a=1).a
'a' is string and 1 is number and 1.5 is float and 1 is integer and true is boolean and {} is mapping and [] is sequence
'a' is iterable and [] is iterable and {} is iterable
1 is iterable
true is number ~ true is integer ~ 'a' is sequence ~ {} is sequence ~ x is iterable
none is none and 1 is not none
3 is odd and 4 is even and 6 is divisibleby 3 and 6 is divisibleby(2)
1 is eq 1 and 1 is equalto(1) and 1 is ne 2 and 1 is lt 2 and 2 is ge 2
'a' is in ['a'] and 'z' is not in 'abc'
'ABC' is upper and 'abc' is lower
1 is sameas 1 and none is sameas none
'upper' is filter and 'zork' is filter
'odd' is test
1 == 1.0 and 1 == true and 'a' != 1
[1, 2] == [1, 2] and (1, 2) != [1, 2] and {'a': 1} == {'a': 1.0}
[1, 2] < [1, 3]
'a' < 'b' and 'a' < 'aa'
1 < 'a'
1 + 'a'
'a' + 1
x + 1
x.y
x.y.z
x['y']
none.a
none.a.b
1 / 0
1 % 0
'a'|zork
'a' is zork
zork()
'abc'()
[1, 2]|tojson()|length
'a' if x else 'b'
x is defined and x.y
(x is defined) ~ (not x)
[1, 2, 3] | map('string') | join('-') | upper
"é".upper() ~ "ÀÉ"|lower ~ 'straße'|length
'a' ~ none ~ 1.0 ~ [1] ~ x ~ true
"it's" ~ ["it's", 'say "x"', 'both \' "', 'nl\n', '\x00\x7f\xa0\u200b\ue000é你😀']
1_000 + 0
[1, 2,]
{'a': 1,}
[[1, 2], [3]]|map('first')|list
[['a', 1]]|map('last')|list
'a.b'|replace('.', '/')
-'a'
not x
+3
- -3
{'a': {'b': [5, 6]}}.a.b.1
{'a': 1} | items | list
{'x': 1} | length > 0
'abc' | list | last
loop
[] is sequence and () is sequence and range(2) is sequence
('a', 'b')[1]
'%(a)s' % {'a': 1}
'a'.b is defined
'a'['b'] is undefined
'{"a": 1}' | tojson | tojson
'x'.zork()
['b','a'] | sort | first
[3,1] | sort | tojson
'abc'[1:][0]
'a\n'
'  x  '.strip(' ') | length
"\n\n".join(['a', 'b'])
raise_exception('no ' ~ 'way')
strftime_now('%d %b %Y %H:%M')
range(200000)
[1,2,3].__class__
''.__class__
{}.__class__
[1, 2, 3].index(2) ~ [1, 1].count(1)
'a' in none
'a' in x
1 in 'abc'
{[1]: 2}
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c')
'a-b_c d'.title()
""" .strip("\n").split("\n")

BLOCKS = [
    "{% for i in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in x %}x{% else %}none{% endfor %}",
    "{% for a, b in {'k': 1}.items() %}{{ a }}={{ b }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in [1,2,3,4] if i is even %}{{ i }}{{ loop.index }}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = 0 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
    "{% for i in [1,1,2] %}{{ loop.changed(i) }}{{ loop.cycle('a','b') }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in [1,[2,[3]]] recursive %}{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}d{{ loop.depth }}{% endif %}{% endfor %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(1, 2, 3) }}|{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(b=2) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set g = 'G' %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 'H' %}{{ m() }}",
    "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}",
    "{% macro w() %}<{{ caller(1) }}>{% endmacro %}{% call(a) w() %}in{{ a }}{% endcall %}",
    "{% set b %}  x {{ 1 }} {% endset %}[{{ b }}]",
    "{% set b | trim | upper %}  x {% endset %}[{{ b }}]",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% filter upper %}abc{{ 'd' }}{% endfilter %}",
    "{% filter trim | upper %} abc {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{% generation %}abc{% set z = 1 %}{% endgeneration %}{{ z }}",
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}",
    "{% if false %}{{ 'a'|zork }}{% endif %}ok",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\n  c\n\n",
    "a  \n  {%- if true -%}  \n  b  \n  {%- endif -%}  \n  c",
    "a {%+ if true %} b {% endif +%}\nc",
    "  {{ 1 }}\n  {{- 2 -}}  \n3",
    "{# c #}\n  {# d #}\nx{#- e -#}  y",
    "x {#- e -#}\n\n  y {# f #}\n z",
    "{% raw %}{{ x }}{% y %}{% endraw %}|{%- raw -%}  {{ z }}  {%- endraw -%}  w",
    "{{ '}}' }}{{ {'a': {'b': 1}} }}",
    "{{ \"{% x %}\" }}",
    "a\r\nb\rc\n",
    "\n\nx\n",
    "\u3000{%- if true %}x{% endif %}",
    "{{ 1",
    "{% if %}{% endif %}",
    "{% if true %}",
    "{% endif %}",
    "{{ 'abc }}",
    "{% for i in %}{% endfor %}",
    "{{ (1 }}",
    "{{ a b }}",
    "{% set 1 = 2 %}",
    "{% zork %}",
    "{{ [1, 2 }}",
    "{% set x = {'a': 1} %}{% set x.a = 2 %}",
    "{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}",
    "{% for c in 'h\u00e9y' %}{{ c }}.{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for i in none %}{% endfor %}",
    "{% set j = joiner('|') %}{% for i in [1,2,3] %}{{ j() }}{{ i }}{% endfor %}",
    "{% for i in [1,2] %}{% for k in [1,2] %}{{ loop.index }}{{ i }}{{ k }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for g, items in [{'k': 'b', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'b', 'v': 3}]|groupby('k') %}{{ g }}:{{ items|map(attribute='v')|list }}{% endfor %}",
    "{% if not tools is defined %}{% set tools = 'T' %}{% endif %}{{ tools }}",
    "{% set m = [1,2,3] %}{% set m = m[1:] %}{{ m }}",
    "{% macro a() %}{% set v = 1 %}{{ v }}{% endmacro %}{{ a() }}{{ v }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}",
    "{{ ns.x }}{% set ns = 1 %}",
    "{%- set x = 'a' -%}\n{{ x }}\n{%- if x == 'a' %}\nyes\n{%- endif %}\n",
    "{{ [1,2,3] | map('odd') | list }}",
    "{% if [] | select %}generators are true{% endif %}",
    "{% set g = [1,2] | map('string') %}{{ g | list }}{{ g | list }}",
    "{{ [1,2] | map('string') | length }}",
    "{{ [1,2] | reverse | last }}",
    "{{- '\\n' }}{{ \"a\\\"b\" }}",
    "{% set x = 'a' if false %}{{ x is defined }}{{ x }}",
    "{% for m in [{'role':'a'}] %}{{ m.role ~ m['role'] ~ m.zork ~ m.zork | length }}{% endfor %}",
]


def small_templates():
    for text in EXPRESSIONS:
        yield f"{{{{ {text} }}}}", "{{ " + text + " }}"
    for text in BLOCKS:
        yield text, text


class Tutti:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, text, trusted, user):
        job = {"template": text, "trusted": trusted, "user": user, "now": NOW}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("template_lines ended early")
        return json.loads(line)


def compare(tutti, name, text, sets, counts, show, fixture):
    for what, trusted, user in sets:
        try:
            want = jinja_render(text, {**user, **trusted})
            why = None
        except Exception as error:
            want, why = None, error
        got = tutti.render(text, trusted, user)
        if fixture is not None and not isinstance(why, jinja2.exceptions.SecurityError):
            fixture["templates"].setdefault(name, text)
            fixture["cases"].append({"template": name, "what": what, "trusted": trusted, "user": user, "text": want})
        if isinstance(why, jinja2.exceptions.SecurityError):
            counts["beyond the sandbox"] += 1
        elif want == got.get("text"):
            counts["equal" if want is not None else "both refuse"] += 1
        else:
            counts["different"] += 1
            counts["names"].add(name)
            if counts["different"] <= show:
                print(f"--- {name}: {what}\n  jinja: {want!r} {type(why).__name__ if why else ''} {why or ''}\n  tutti: {got.get('text')!r} {got.get('error', '')}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("paths", nargs="*")
    arguments.add_argument("--lines", required=True, help="the program tests/template/template_lines of the build")
    arguments.add_argument("--expressions", action="store_true")
    arguments.add_argument("--few", action="store_true")
    arguments.add_argument("--fixture", help="a file to write")
    arguments.add_argument("--show", type=int, default=20, help="differences to print")
    options = arguments.parse_args()
    counts = {"equal": 0, "both refuse": 0, "beyond the sandbox": 0, "different": 0, "names": set()}
    fixture = {"now": NOW, "templates": {}, "cases": []} if options.fixture else None
    tutti = Tutti(options.lines)
    n = 0
    for name, text in templates(options.paths):
        n += 1
        compare(tutti, name, text, variable_sets(options.few), counts, options.show, fixture)
    if options.expressions:
        for name, text in small_templates():
            n += 1
            compare(tutti, name, text, [("", {}, {})], counts, options.show, fixture)
    if fixture:
        cases = ",\n".join(json.dumps(case, ensure_ascii=False) for case in fixture.pop("cases"))
        rest = json.dumps(fixture, ensure_ascii=False, indent=1)[:-2]
        pathlib.Path(options.fixture).write_text(f'{rest},\n "cases": [\n{cases}\n]}}\n', encoding="utf-8")
    names = counts.pop("names")
    print(f"{n} templates: " + ", ".join(f"{value} {key}" for key, value in counts.items()))
    if names:
        print("different: " + ", ".join(sorted(names)))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
