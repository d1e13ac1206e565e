"""What is made to cost as much as it can is compiled or refused within a budget of steps and bytes, which are counted."""
import json

import pytest

import attacks


@pytest.mark.parametrize("name,field,text,ending", attacks.ATTACKS, ids=[name for name, *_ in attacks.ATTACKS])
def test_an_attack_ends_within_its_budget(probe, name, field, text, ending):
    reply = probe.ask(kind="gbnf" if field == "grammar" else field, text=text, seeds=[1], max_tokens=20)
    if ending == "fits":
        assert "error" not in reply and reply["outputs"], reply
    else:
        assert ending in reply.get("error", ""), reply
    assert reply["steps"] <= attacks.MAX_STEPS and reply["peak_bytes"] <= attacks.MAX_BYTES, reply


def test_a_budget_is_not_what_published_schemas_meet(probe):
    """A schema like those that people generate from their types: 300 objects, half a megabyte with its remarks."""
    schema = {"type": "object", "required": ["p0"], "additionalProperties": False, "properties": {
        f"p{i}": {"$ref": f"#/$defs/t{i}"} for i in range(300)}, "$defs": {f"t{i}": {
            "type": "object", "description": "remarks " * 150, "additionalProperties": False, "required": ["id"], "properties": {
                "id": {"type": "string", "format": "uuid"}, "kind": {"enum": ["a", "b", f"c{i}"]}, "n": {"type": "integer", "minimum": 0},
                "next": {"anyOf": [{"$ref": f"#/$defs/t{(i + 1) % 300}"}, {"type": "null"}]}}} for i in range(300)}}
    text = json.dumps(schema)
    assert len(text) > 450_000
    reply = probe.ask(kind="schema", text=text, seeds=[1], max_tokens=50)
    assert "error" not in reply, reply
    assert reply["steps"] < attacks.MAX_STEPS / 8 and reply["peak_bytes"] < attacks.MAX_BYTES / 3, reply


@pytest.mark.parametrize("string", [{"maxLength": 255}, {"format": "uri", "minLength": 1, "maxLength": 2083}])
def test_strings_of_the_same_form_cost_once(probe, string):
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", **string} for i in range(300)}}
    reply = probe.ask(kind="schema", text=json.dumps(schema), texts=['{"p1":"https://a.de/b","p299":"https://a.de"}'], seeds=[1], max_tokens=50)
    assert "error" not in reply, reply
    assert reply["steps"] < attacks.MAX_STEPS / 4 and reply["peak_bytes"] < attacks.MAX_BYTES / 4, reply
    assert reply["accepts"] == ["all"]


@pytest.mark.parametrize("kind,text", [("gbnf", "root ::= ([a-z] | [0-9] | \"x\"){2000}"), ("pattern", "([a-z]|[0-9]|x){2000}")])
def test_no_stage_of_compiling_runs_past_the_budget(probe, kind, text):
    """Whatever the budget is, compiling stops close to it, and a stage that is refused is not counted."""
    needed = probe.ask(kind=kind, text=text, seeds=[], max_tokens=1)["steps"]
    assert needed > 20_000
    for part in range(1, 64):
        limit = needed * part // 64
        reply = probe.ask(kind=kind, text=text, seeds=[], max_tokens=1, budget_steps=limit)
        assert "too complex" in reply["error"] and reply["steps"] <= limit + 2_100, (limit, reply["steps"])
