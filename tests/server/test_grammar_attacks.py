"""Grammars that are made to cost as much as they can, sent to a server: each is refused or obeyed, others get their answers meanwhile, and
the server ends when it is told to. Steps are counted in tests/grammar/test_hostile_grammars.py, turns in tests/engine/test_compile.c."""
import json
import os
import sys
import threading

import pytest
import requests

from conftest import PATIENCE, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "grammar"))
import attacks  # noqa: E402

KEYS = ["sk-hostile", "sk-honest"]


@pytest.fixture
def guarded(start, tmp_path):
    """A server with keys that does not wait for long when it is told to end. --max-body: one client's memory for requests follows from
    it, and has room for all of them here."""
    path = tmp_path / "keys"
    path.write_text("".join(f"{key} {key}\n" for key in KEYS), encoding="ascii")
    return start("--api-key-file", path, "--drain-timeout", 1, "--max-body", "64M")


def ask(server, key, patience=4 * PATIENCE, **fields):
    return requests.post(server.url + "/v1/chat/completions", headers={"Authorization": f"Bearer {key}"}, timeout=patience,
                         json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 30, **fields})


def ask_by_schema(server, key, schema, **more):
    return ask(server, key, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **more)


def endless(number, n=1500):
    """Takes the whole budget of compiling."""
    return {"title": str(number), "allOf": [{"properties": {f"p{i}": {"minimum": i}}, "additionalProperties": {"maximum": i}} for i in range(n)]}


SMALL = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
# Those whose text is no value of JSON cannot be part of a body.
SENT = [attack for attack in attacks.ATTACKS if attack not in attacks.TEXT_ATTACKS]


def test_each_attack_is_refused_or_obeyed(guarded):
    for name, field, text, ending in SENT:
        fields = {"grammar": text} if field == "grammar" else {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": json.loads(text)}}}
        reply = ask(guarded, "sk-hostile", **fields)
        if ending == "fits":
            assert reply.status_code in (200, 400), (name, reply.text[:300])
        else:
            assert reply.status_code == 400 and reply.json()["error"]["param"] in ("grammar", "response_format"), (name, reply.text[:300])
    assert ask_by_schema(guarded, "sk-honest", SMALL).status_code == 200


def test_another_client_is_answered_and_the_server_ends(guarded):
    """Ten endless grammars are under way when a small one is asked for; eight of them still are when the server is told to end: the
    fixture expects status 0."""
    replies = []
    threads = [threading.Thread(target=lambda i=i: replies.append(ask_by_schema(guarded, "sk-hostile", endless(i)).status_code)) for i in range(10)]
    for thread in threads:
        thread.start()
    reply = ask_by_schema(guarded, "sk-honest", SMALL, temperature=0, max_tokens=100)
    assert reply.status_code == 200 and json.loads(reply.json()["choices"][0]["message"]["content"])["n"] in (1, 2), reply.text
    assert guarded.stop() == 0
    for thread in threads:
        thread.join()
    assert set(replies) <= {200, 400, 503}, replies


def test_masks_and_automaton_agree_where_rules_nest_too_deep(server):
    """logit_bias presses for as many "(" as the mask allows; the ends of all of them need more than the context of the model has."""
    bias = {str(i): 80 for i in server.post("/tokenize", {"prompt": "("}).json()["tokens"]}
    for grammar, deepest in (('root ::= "(" root ")" | "(x)"', 257), ('root ::= "(" a ")" | x\na ::= root ""\nx ::= y "x"\ny ::= "y"', 127)):
        reply = server.chat("x", grammar=grammar, logit_bias=bias, max_tokens=500, temperature=0)
        assert reply.status_code == 200, reply.text
        choice = reply.json()["choices"][0]
        text = choice["message"]["content"]
        depth = len(text) - len(text.lstrip("("))
        assert depth == deepest and choice["finish_reason"] in ("stop", "length"), choice
        end = text[depth:].lstrip("y")
        assert end[0] == "x" and end[1:] == ")" * (len(end) - 1) and len(end) > 100, text
