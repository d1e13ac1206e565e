#!/usr/bin/env python3
"""Renders random small templates with Jinja2 as transformers sets it up and with tutti, and compares.

  fuzz_templates.py --lines BUILD/tests/template/template_lines [--count N] [--seed N]

Expressions nest values, operators, filters, tests and methods without regard for types, so that errors are compared as
well; statements nest with random white space and white-space marks. Run it with TZ=UTC.
"""
import argparse
import random
import re
import sys
import warnings

import jinja2

from compare_templates import Tutti, jinja_render

VARIABLES = {"s": "Hello, <b>Wörld</b> 你好\n second  line\t!", "n": 7, "f": 2.5, "t": True, "z": None, "e": "",
             "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, {"k": "v"}], "items": "it"},
             "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "", "n": 1, "x": None}]}
ATOMS = ["s", "n", "f", "t", "z", "e", "l", "w", "d", "m", "u", "1", "0", "-3", "2.0", "'a'", "''", "'b,c'", "\"it's\"", "none",
         "true", "false", "[]", "{}", "()", "[1, 'x']", "{'k': 1}", "(1, 2)", "m[0]", "m[-1]", "d.a", "s.u", "'é'", "10", "'3'", "' x '"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "list", "join", "join(',')", "sort",
           "reverse", "unique", "string", "int", "float", "abs", "round", "default('D')", "d('D', true)", "tojson",
           "tojson(indent=2)", "items", "dictsort", "replace('l', 'L')", "map('upper')", "map(attribute='role')",
           "selectattr('n')", "selectattr('role', 'equalto', 'user')", "rejectattr('x', 'defined')", "select('string')",
           "reject('none')", "select", "min", "max", "sum", "indent", "indent(2, true)", "safe", "e", "wordcount",
           "truncate(9)", "center(9)", "batch(2)", "round(1)", "int(5)", "sort(attribute='n')", "map('int')",
           "sort(reverse=true)", "map('string')", "list", "list", "count", "center(3)", "dictsort(reverse=true)", "round(0, 'floor')"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "number", "sequence", "boolean", "integer", "float", "true",
         "false", "odd", "even", "undefined", "upper", "lower", "eq(1)", "in([1, 'a'])", "divisibleby(2)", "callable", "sameas(none)"]
METHODS = [".strip()", ".lstrip()", ".rstrip('!')", ".split()", ".split(',')", ".split('l', 1)", ".rsplit(None, 1)", ".upper()", ".lower()",
           ".title()", ".capitalize()", ".startswith('H')", ".endswith('!')", ".replace('l', '')", ".items()", ".keys()", ".values()",
           ".get('a')", ".get('q', 5)", ".splitlines()", ".find('l')", ".count('l')", ".isdigit()", ".isalpha()", ".isspace()",
           ".role", ".content", "['role']", "['k']", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[::2]", "[-2:]", ".b", ".items",
           ".partition(',')", ".swapcase()", ".islower()", ".isupper()", ".index('l')", ".rfind('l')", "['items']", ".zork", "[5]"]


def expression(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.12:
        return rng.choice(ATOMS)
    inner = expression(rng, depth - 1)
    if kind < 0.40:
        return f"({inner}) | {rng.choice(FILTERS)}" if rng.random() < 0.7 else f"{inner} | {rng.choice(FILTERS)}"
    if kind < 0.60:
        return f"({inner}){rng.choice(METHODS)}"
    if kind < 0.68:
        return f"({inner}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind < 0.90:
        pair = f"{inner} {rng.choice(BINARY)} {expression(rng, depth - 1)}"
        return f"({pair})" if rng.random() < 0.6 else pair
    if kind < 0.94:
        return f"({inner} if {expression(rng, depth - 1)} else {expression(rng, depth - 1)})"
    if kind < 0.97:
        return f"[{inner}, {expression(rng, depth - 1)}]"
    return f"not ({inner})"


def blank(rng):
    return rng.choice(["", "", "", " ", "\n", "  \n", "\n  ", "\t", "\n\n", "x", " y ", "\n z\n", "{# c #}", "{#- c -#}", "\r\n"])


def tag(rng, text):
    return "{%" + rng.choice(["", "", "-", "+"]) + f" {text} " + rng.choice(["", "", "-", "+"]) + "%}"


def statements(rng, depth):
    out = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        out.append(blank(rng))
        body = lambda: statements(rng, depth - 1)
        if depth == 0 or kind < 0.45:
            out.append("{{" + rng.choice(["", "-"]) + f" {expression(rng, rng.randint(0, 3))} " + rng.choice(["", "-"]) + "}}")
        elif kind < 0.60:
            middle = tag(rng, "else") + body() if rng.random() < 0.5 else ""
            out.append(tag(rng, f"if {expression(rng, 2)}") + body() + middle + tag(rng, "endif"))
        elif kind < 0.78:
            over = rng.choice(["l", "w", "m", "d", "d.items()", "[]", "range(3)", "s.split()", "l[::-1]", "u", "n", "m if m else l"])
            target = "a, b" if over == "d.items()" else "a"
            middle = tag(rng, "else") + body() if rng.random() < 0.3 else ""
            stop = tag(rng, f"if loop.index == 2") + tag(rng, rng.choice(["break", "continue"])) + tag(rng, "endif")
            out.append(tag(rng, f"for {target} in {over}") + rng.choice(["", "", stop]) + "{{ loop.index0 }}{{ loop.last }}{{ a }}" +
                       body() + middle + tag(rng, "endfor"))
        elif kind < 0.90:
            out.append(tag(rng, f"set {rng.choice('nsvx')} = {expression(rng, 2)}"))
        elif kind < 0.95:
            out.append(tag(rng, f"set {rng.choice('vx')}") + body() + tag(rng, "endset"))
        else:
            out.append(tag(rng, "macro g(a, b=1)") + body() + tag(rng, "endmacro") + "{{ g(1) }}{{ g('x', b=2) }}")
        out.append(blank(rng))
    return "".join(out)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lines", required=True)
    arguments.add_argument("--count", type=int, default=5000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--show", type=int, default=20)
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    warnings.simplefilter("ignore", SyntaxWarning)
    tutti = Tutti(options.lines)
    counts = {"equal": 0, "both refuse": 0, "beyond the sandbox": 0, "printed objects": 0, "refused earlier": 0, "different": 0}
    for _ in range(options.count):
        text = "{{ " + expression(rng, 4) + " }}" if rng.random() < 0.6 else statements(rng, 3)
        try:
            want, why = jinja_render(text, VARIABLES), None
        except Exception as error:
            want, why = None, error
        got = tutti.render(text, {}, VARIABLES)
        if isinstance(why, (jinja2.exceptions.SecurityError, OverflowError, MemoryError)):
            counts["beyond the sandbox"] += 1
        elif want == got.get("text"):
            counts["equal" if want is not None else "both refuse"] += 1
        elif re.search(r"0x[0-9a-f]{6,}|<generator|built-in|&lt;generator|Undefined", str(want), re.I):
            counts["printed objects"] += 1  # addresses and names of Python's own objects
        elif want is not None and re.search("not iterable|item pairs|not subscriptable|unhashable", got.get("error", "")):
            counts["refused earlier"] += 1  # than a generator or a folded constant of Jinja's does
        else:
            counts["different"] += 1
            if counts["different"] <= options.show:
                print(f"--- {text!r}\n  jinja: {want!r} {type(why).__name__ if why else ''} {why or ''}\n"
                      f"  tutti: {got.get('text')!r} {got.get('error', '')}")
    print(", ".join(f"{value} {key}" for key, value in counts.items()))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
