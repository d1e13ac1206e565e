"""What Zod emits is accepted where it describes a value at all, and what the grammars write is valid."""
import json
import os

import pytest

jsonschema = pytest.importorskip("jsonschema")
from probing import ROOT  # noqa: E402

# Two objects that each forbid the other's properties; an address of two versions at once (of zod-to-json-schema 3.25); \b.
NO_VALUE, NO_BORDER = "admits no finite text", r"\b is not supported"
REFUSED = {"intersection": NO_VALUE, "and": NO_VALUE, "string_cidr": NO_VALUE, "regex_word_border": NO_BORDER}


def entries():
    with open(os.path.join(ROOT, "tests", "fixtures", "grammar", "zod.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def expected_refusal(entry):
    emitter, name = entry["id"].split("/")
    return None if emitter.startswith("3") and name in ("intersection", "and") or emitter == "4-input" else REFUSED.get(name)


def has_property_class(schema):
    """Python's regular expressions know no \\p{...}: Zod itself has checked answers by such patterns."""
    return r"\\p{" in json.dumps(schema)


def test_what_zod_emits_is_accepted_and_enforced(probe):
    n_finished = n_refused = 0
    for number, entry in enumerate(entries()):
        schema = entry["schema"]
        invalid = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in entry["invalid"]]
        reply = probe.ask(kind="schema", text=json.dumps(schema), seeds=[number, number + 1000], max_tokens=400, texts=invalid)
        refusal = expected_refusal(entry)
        if refusal:
            n_refused += 1
            assert refusal in reply["error"], (entry["id"], reply)
            continue
        assert "error" not in reply, (entry["id"], reply)
        assert "all" not in reply["accepts"], (entry["id"], list(zip(invalid, reply["accepts"])))
        validator = jsonschema.validators.validator_for(schema)(schema)
        for output in reply["outputs"]:
            if output["finished"]:
                n_finished += 1
                value = json.loads(output["text"])
                if not has_property_class(schema):
                    validator.validate(value)
    assert n_finished > 900 and n_refused == 10, (n_finished, n_refused)


def test_characters_are_named_by_their_unicode_property(probe):
    for pattern, accepted, refused in (
            (r"^\p{L}+$", ["aéß漢"], ["a1", "_", ""]), (r"^\P{L}$", ["1", "€"], ["a", "漢"]), (r"^[\p{Lu}\p{Nd}_]+$", ["Ä9_"], ["ä"]),
            (r"^[^\p{P}\s]$", ["a"], ["!", " "]), (r"^\p{General_Category=Sc}$", ["€"], ["a"]), (r"^\p{gc=Letter}$", ["b"], ["1"]),
            (r"^\p{Extended_Pictographic}$", ["😀"], ["a", "★"]), (r"^\p{ASCII}{2}$", ["ab"], ["aé"]),
            (r"^[^\P{Ll}]$", ["a"], ["A"])):
        texts = [json.dumps(text, ensure_ascii=False) for text in accepted + refused]
        reply = probe.ask(kind="schema", text=json.dumps({"type": "string", "pattern": pattern}), texts=texts)
        assert [x == "all" for x in reply["accepts"]] == [True] * len(accepted) + [False] * len(refused), (pattern, reply["accepts"])
    for pattern, words in ((r"^\p{Script=Greek}$", r"\p{Script=Greek} is not supported"), (r"\pL", "no property in braces"), (r"\p{L", "no property in braces"),
                           (r"[\P{gc=ASCII}]", r"\P{gc=ASCII} is not supported"), (r"\p", "no property in braces"), (r"[\p", "no property in braces")):
        assert words in probe.ask(kind="schema", text=json.dumps({"type": "string", "pattern": pattern}))["error"], pattern


def test_a_format_of_a_user_is_that_of_its_pattern(probe):
    reply = probe.ask(kind="schema", text='{"type": "string", "format": "card", "pattern": "^\\\\d{4}$"}', texts=['"1234"', '"a"'])
    assert reply["accepts"][0] == "all" and reply["accepts"][1] != "all"
    assert '"card" is not supported' in probe.ask(kind="schema", text='{"type": "string", "format": "card"}')["error"]


def test_encoded_content_is_enforced(probe):
    schema = {"type": "string", "contentEncoding": "base64", "minLength": 1}
    reply = probe.ask(kind="schema", text=json.dumps(schema), texts=['"YWI="', '"a"', '"a b="'])
    assert [x == "all" for x in reply["accepts"]] == [True, False, False]
    assert "must be a string" in probe.ask(kind="schema", text='{"type": "string", "contentEncoding": 5}')["error"]
    assert probe.ask(kind="schema", text='{"contentEncoding": "quoted-printable"}', texts=['"a b"'])["accepts"] == ["all"]
