"""GBNF means what it means to llama.cpp: grammars and texts with the answers of its own engine
(tools/fixtures/grammar_fixtures.py)."""
import json
import os

import pytest

from probing import ROOT

with open(os.path.join(ROOT, "tests", "fixtures", "grammar", "gbnf.jsonl"), encoding="utf-8") as file:
    CASES = [json.loads(line) for line in file]

# What is refused here and taken there: two definitions of one rule, an unused rule that is not defined, and grammars that can never end.
STRICTER = ("no finite text",)


def test_texts_fit_as_with_llama_cpp(probe):
    n_texts = 0
    for case in CASES:
        reply = probe.ask(kind="gbnf", text=case["grammar"], texts=list(case.get("texts", {})))
        if case.get("error"):
            assert "error" in reply, case
        elif any(words in reply.get("error", "") for words in STRICTER):
            assert "all" not in case["texts"].values(), case
        else:
            assert dict(zip(case["texts"], reply.get("accepts", []))) == case["texts"], (case, reply)
            n_texts += len(case["texts"])
    assert n_texts > 5000


WRONG = [
    ("root ::= a", "line 1, column 10: there is no rule \"a\""),
    ("a ::= \"x\"", "there is no rule \"root\""),
    ("root = \"a\"", "line 1, column 6: expected ::="),
    ("root ::= \"a\n\n", "line 1, column 10: this string has no closing"),
    ("root ::= (\n  \"a\"\n", "line 1, column 10: this ( has no closing )"),
    ("root ::= \"a\")", "line 1, column 13: this does not belong here"),
    ("root ::= [a", "this class has no closing ]"),
    ("root ::= [b-a]", "line 1, column 11: the range ends before it begins"),
    ("root ::= \"\\q\"", "line 1, column 11: unknown escape"),
    ("root ::= \"\\x4\"", "2 hexadecimal digits"),
    ("root ::= \"\\ud800\"", "no Unicode character"),
    ("root ::= \"\\U00110000\"", "no Unicode character"),
    ("root ::= \"a\"{3,2}", "below the smallest"),
    ("root ::= \"a\"{99999}", "at most 65536"),
    ("root ::= \"a\"{}", "expected a number"),
    ("root ::= *", "nothing in front of this"),
    ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule was defined before"),
    ("root ::= <[12]>", "tokens"),
    ("root ::= " + "(" * 70 + "\"a\"" + ")" * 70, "nest deeper than 64"),
    ("root ::= \"a\" root", "no finite text"),
    ("root ::= root \"a\" | \"b\"", "line 1, column 1: rule \"root\" can begin with itself"),
    ("root ::= \"x\"\n | y\ny ::= \"\" y \"a\" | \"b\"", "line 2, column 2: expected the name of a rule"),
    ("root ::= (\"x\"{65536}){65536}", "too large"),
    ("", "there is no rule \"root\""),
    ("root ::= \"a\" $", "this does not belong here"),
]


@pytest.mark.parametrize("grammar,words", WRONG, ids=lambda x: str(x)[:30])
def test_what_is_wrong_with_a_grammar_is_told(probe, grammar, words):
    reply = probe.ask(kind="gbnf", text=grammar)
    assert words in reply.get("error", ""), reply
    assert reply["param"] == "grammar"


def test_every_sampled_text_fits(probe):
    for number, case in enumerate(CASES):
        reply = probe.ask(kind="gbnf", text=case["grammar"], seeds=[number], max_tokens=80)
        done = [output["text"] for output in reply.get("outputs", []) if output["finished"]]
        if done:
            assert probe.ask(kind="gbnf", text=case["grammar"], texts=done)["accepts"] == ["all"] * len(done), case


def test_a_hyphen_may_be_escaped(probe):
    """As llama.cpp's own conversion of schemas writes it."""
    reply = probe.ask(kind="gbnf", text=r'root ::= [a\-c]+ "\-" [\--/]', texts=["a-c--", "b-.", "a-/", "a-0", "a--"])
    assert reply["accepts"] == ["all", "no", "all", "no", "all"], reply


def test_ways_that_begin_alike_are_one(probe):
    grammar = 'root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s "d" | "a"'
    reply = probe.ask(kind="gbnf", text=grammar, texts=["a" * 5 + "bcdb", "a" * 200 + "d" * 199, "a" * 200, "aaabcd"])
    assert reply["accepts"] == ["all", "all", "begin", "no"]


def test_too_many_ways_are_an_end_and_no_hang(probe):
    # 2 ^ n stacks after n letters.
    grammar = 'root ::= s\ns ::= a s "b" | b s "c" | "x"\na ::= [aq]\nb ::= [ar]'
    reply = probe.ask(kind="gbnf", text=grammar, texts=["a" * 5 + "xbcbcb", "q" * 200, "a" * 200])
    assert reply["accepts"] == ["all", "begin", "limit"]


DEEP = [
    ('root ::= "(" root ")" | "x"', ["(" * n for n in (1, 200, 250, 253, 254, 255, 256)], "x", 256),
    ('root ::= "(" root ")" | "(x)"', ["(" * n for n in (253, 254, 255, 256, 257)], "x", 256),
    ('root ::= "[" (root ("," root)*)? "]"', ["[" * n for n in (254, 255, 256, 257)] + ["[" * 250 + "[],"], "", 256),
    # What ends a rule needs frames of its own: they must be left.
    ('root ::= "(" root ")" | a "."\na ::= b "x"\nb ::= c "x"\nc ::= "c"', ["(" * n for n in (250, 251, 252, 253, 254)], "cxx.", 253),
]


@pytest.mark.parametrize("grammar,prefixes,middle,n_deep", DEEP, ids=[case[0] for case in DEEP])
def test_masks_and_matchers_agree_where_rules_nest_too_deep(probe, grammar, prefixes, middle, n_deep):
    opening, closing = ("[", "]") if grammar.startswith('root ::= "["') else ("(", ")")
    n = n_deep + (middle == "" or "(x)" in grammar)
    fits, deeper = opening * n + middle + closing * n, opening * (n + 1) + middle + closing * (n + 1)
    reply = probe.ask(kind="gbnf", text=grammar, after=prefixes, texts=[fits, deeper, opening * n, opening * (n + 1)])
    for prefix, mask in zip(prefixes, reply["masks"]):
        assert mask is None and len(prefix) > n or mask[0] > 0 and mask[1] == 0, (len(prefix), mask)
    assert reply["accepts"] == ["all", "no", "begin", "no"], reply["accepts"]
