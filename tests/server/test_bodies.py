"""Bodies that were damaged at random: every API answers each of them with a status of its own, and goes on."""
import copy
import json
import random

import pytest
import requests

from conftest import PATIENCE

N_BODIES = 150
INPUTS = {"inputs": "Tell me", "stream": False, "parameters": {
    "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "typical_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 2,
    "return_full_text": False, "details": True, "decoder_input_details": False, "seed": 3, "stop": ["x"], "top_n_tokens": 2, "truncate": 4,
    "watermark": False, "best_of": None}}
BODIES = {
    "/generate": INPUTS, "/generate_stream": INPUTS, "/": INPUTS, "/models/x": INPUTS, "/models/x/generate": INPUTS,
    "/models/x/generate_stream": INPUTS,
    "/llm/generate": {"cache_id": "a", "query": "hi", "history": [["a", "b"], {"role": "user", "content": "c"}], "temperature": 0.5,
                      "top_p": 0.9, "max_length": 40, "do_sample": True, "model_name": "demo"},
    "/v1/responses": {"model": "demo", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "stream": False,
                      "instructions": "be brief", "max_output_tokens": 2, "temperature": 1, "metadata": {"a": "b"},
                      "text": {"format": {"type": "text"}}},
    "/v1/messages": {"model": "demo", "max_tokens": 2, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "temperature": 1, "top_k": 5,
                     "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
                         {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}]}]}],
                     "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}, "metadata": {"user_id": "u"}},
    "/v1/messages/count_tokens": {"model": "demo", "messages": [{"role": "user", "content": [{"type": "document", "title": "t", "source": {
        "type": "text", "media_type": "text/plain", "data": "d"}}]}], "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}},
    "/v1/completions": {"model": "demo", "prompt": ["a", "b"], "n": 2, "best_of": 3, "max_tokens": 2, "logprobs": 1, "echo": True, "stop": ["x"]},
    "/v1/embeddings": {"model": "demo", "input": ["a", [5, 6]], "encoding_format": "float", "dimensions": 8, "pooling": "last", "user": "u"},
    "/tokenize": {"prompt": "a", "add_special_tokens": True, "return_token_strs": True, "with_pieces": True},
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 2,
                             "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "$defs": {"a": {"$ref": "#"}}}}}],
                             "tool_choice": {"type": "function", "function": {"name": "f"}}, "modalities": ["text"], "parallel_tool_calls": False},
}
ODD = [None, True, False, 0, -1, 1.5, 1e308, -1e308, 2**63 - 1, -2**63, "", "x", "\u0000", "😀", "9" * 400, [], {}, [[]], [None], {"a": {}},
       "True", "nan", "1e999", ["a", 5], [["a"]], [{"role": "user"}], list(range(40))]


def damage(rng, value):
    """One place of the value becomes something odd."""
    value = copy.deepcopy(value)
    at, steps = value, rng.randrange(4)
    while isinstance(at, (dict, list)) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if steps <= 0 or not isinstance(at[key], (dict, list)) or not at[key]:
            if rng.random() < 0.1 and isinstance(at, dict):
                del at[key]
            else:
                at[key] = rng.choice(ODD)
            return value
        at, steps = at[key], steps - 1
    return value


def spoil(rng, text):
    """Bytes are lost, doubled or changed."""
    text = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        rng.choice([lambda: text.__delitem__(slice(at, at + rng.randrange(1, 9))), lambda: text.insert(at, rng.randrange(256)),
                    lambda: text.__setitem__(at % len(text), rng.randrange(256))])()
        if not text:
            break
    return bytes(text)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_damaged_bodies_are_answered(compat, path):
    rng = random.Random(path)
    seen = set()
    with requests.Session() as session:
        for i in range(N_BODIES):
            body = json.dumps(damage(rng, BODIES[path])).encode()
            if i % 3 == 0:
                body = spoil(rng, body)
            response = session.post(compat.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
            seen.add(response.status_code)
            assert response.status_code in (200, 400, 404, 409, 422, 429), (body, response.status_code, response.text)
            if response.status_code != 200:
                assert "error" in response.json(), body
    assert 200 in seen and len(seen) > 1
    assert compat.get("/health").status_code == 200
