"""A chat in steps: POST /llm/generate."""
import threading
import uuid

import pytest
import requests

from conftest import PATIENCE

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def call(server, cache_id, query=QUESTION, **more):
    return server.post("/llm/generate", {"cache_id": cache_id, "query": query, "do_sample": False, **more})


def run(server, query=QUESTION, **more):
    """All steps; the flags and the text."""
    cache_id, flags, text = str(uuid.uuid4()), [], ""
    while not flags or flags[-1] != "end":
        body = call(server, cache_id, query, **more).json()
        flags.append(body["flag"])
        if body["flag"] == "hang":
            assert body["delta_text"] == "" and 1 <= len(body["held_bytes"]) <= 3
        text += body["delta_text"]
        assert len(flags) < 600
    assert set(flags) <= {"sending", "hang", "end"}
    return flags, text


def test_steps_are_the_whole_answer(compat, golden):
    for case in golden:
        if case["messages"][0]["role"] == "user" and len(case["messages"]) == 1:
            assert run(compat, case["messages"][0]["content"])[1] == case["answer"].strip()


def test_history_as_pairs_and_as_messages(compat):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    expected = compat.post("/v1/chat/completions", {"temperature": 0, "messages": messages + [{"role": "user", "content": QUESTION}]})
    expected = expected.json()["choices"][0]["message"]["content"]
    assert run(compat, history=[["hi", "Hello."]])[1] == expected == run(compat, history=messages)[1]
    assert run(compat, history=[])[1] == ANSWER == run(compat, history=None)[1]


def test_after_its_end_an_id_begins_anew(compat):
    for _ in range(2):
        text = ""
        while True:
            body = call(compat, "again").json()
            text += body["delta_text"]
            if body["flag"] == "end":
                break
        assert text == ANSWER


def test_later_calls_need_the_id_alone(compat):
    first = call(compat, "short").json()
    text = first["delta_text"]
    while first["flag"] != "end":
        first = compat.post("/llm/generate", {"cache_id": "short"}).json()
        text += first["delta_text"]
    assert text == ANSWER


def test_another_query_for_an_open_chat_is_a_conflict(compat):
    text = call(compat, "taken").json()["delta_text"]
    for query in ("What is the capital of Italy?", QUESTION + " ", "", 5):
        refused = call(compat, "taken", query)
        assert refused.status_code == 409 and refused.json()["error"]["param"] == "query" and "taken" in refused.json()["error"]["message"]
    flag = ""
    while flag != "end":
        step = call(compat, "taken").json()
        flag, text = step["flag"], text + step["delta_text"]
    assert text == ANSWER


def test_many_chats_do_not_mix(compat):
    cities = ["France", "Italy", "Spain", "Germany", "Japan", "China"]
    expected = {c: compat.chat(f"What is the capital of {c}?", temperature=0).json()["choices"][0]["message"]["content"] for c in cities}
    got = {}
    threads = [threading.Thread(target=lambda c=c: got.update({c: run(compat, f"What is the capital of {c}?")[1]})) for c in cities]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_max_length_counts_the_prompt(compat):
    n = compat.post("/tokenize", {"messages": [{"role": "user", "content": QUESTION}]}).json()["count"]
    whole = run(compat)[1]
    part = run(compat, max_length=n + 4)[1]
    assert part and whole.startswith(part) and len(part) < len(whole)
    refused = call(compat, "too-long", max_length=n)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_length"


def test_who_is_not_asked_for_is_cancelled(compat):
    cache_id = str(uuid.uuid4())
    story = {"query": "Tell me a story about a fox named Mia.", "temperature": 5, "do_sample": True}
    assert compat.post("/llm/generate", {"cache_id": cache_id, **story}).json()["flag"] in ("sending", "hang", "end")
    compat.wait_for_log(f"no call for {cache_id}")
    compat.wait_idle()
    text = compat.post("/llm/generate", {"cache_id": cache_id, "query": QUESTION, "do_sample": False}).json()["delta_text"]
    assert ANSWER.startswith(text)


def test_two_calls_at_once_are_a_conflict(start):
    import os
    import subprocess

    from conftest import ROOT
    mock = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")
    with subprocess.Popen([mock, "--apis", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            check_conflict(process)
        finally:
            process.terminate()


def check_conflict(process):
    url = process.stdout.readline().decode()[len("listening on "):].strip() + "/llm/generate"
    answers = []
    body = {"cache_id": "x", "query": "slow=600 a b"}
    both = [threading.Thread(target=lambda: answers.append(requests.post(url, json=body, timeout=PATIENCE))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    first, conflict = sorted(answers, key=lambda answer: answer.status_code)
    assert conflict.status_code == 409 and conflict.json()["error"]["param"] == "cache_id"
    assert first.json() == {"flag": "sending", "delta_text": "slow=600"}
    # A client that gives up does not lose what comes meanwhile.
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(url, json=body, timeout=0.1)
    rest, flag = "", "sending"
    while flag != "end":
        step = requests.post(url, json=body, timeout=PATIENCE).json()
        if "error" in step:  # the server has not noticed yet that the client gave up
            assert step["error"]["param"] == "cache_id"
            continue
        flag, rest = step["flag"], rest + step["delta_text"]
    assert rest == " a b"


def test_errors_of_the_engine_come_with_the_next_call(compat):
    response = call(compat, "beyond", "word " * 8000)
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
    assert run(compat)[1] == ANSWER


def test_the_number_of_chats_is_bounded(start):
    server = start("--api", "step", "--step-timeout", 1, "--max-seqs", 1, "--max-queue", 1)
    codes = set()
    threads = [threading.Thread(target=lambda i=i: codes.add(call(server, f"b{i}", "Tell me a story.").status_code)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes <= {200, 429} and 200 in codes


@pytest.mark.parametrize("body, param", [
    ({"cache_id": ""}, "cache_id"), ({"cache_id": []}, "cache_id"), ({}, "cache_id"), ({"cache_id": "x" * 257}, "cache_id"),
    ({"cache_id": "w"}, "cache_id"), ({"cache_id": "w", "query": 5}, "query"), ({"cache_id": "w", "query": "a", "history": 5}, "history"),
    ({"cache_id": "w", "query": "a", "history": [["x"]]}, "history"), ({"cache_id": "w", "query": "a", "history": [["x", 5]]}, "history"),
    ({"cache_id": "w", "query": "a", "history": [{"role": "wizard", "content": "x"}]}, "messages"),
    ({"cache_id": "w", "query": "a", "temperature": "hot"}, "temperature"), ({"cache_id": "w", "query": "a", "top_p": 3}, "top_p"),
    ({"cache_id": "w", "query": "a", "max_length": 0}, "max_length"), ({"cache_id": "w", "query": "a", "max_length": 1.5}, "max_length"),
    ({"cache_id": "w", "query": "a", "do_sample": "x"}, "do_sample"), ({"cache_id": "w", "query": "a", "model_name": 5}, "model_name"),
    ({"cache_id": "w", "query": "a", "model_name": "demo:none"}, "model"),
])
def test_what_is_wrong_is_named(compat, body, param):
    response = compat.post("/llm/generate", body)
    assert response.status_code in (400, 404) and response.json()["error"]["param"] == param, response.text


def test_it_is_off_unless_asked_for(server):
    assert call(server, "x").status_code == 404
