"""The official openai client, unmodified."""
import pytest

openai = pytest.importorskip("openai", reason="the openai client is not installed")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox named Mia."}]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_chat(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(client):
    stream = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens > 0


def test_closing_a_stream_early_is_no_harm(client, server):
    stream = client.chat.completions.create(model="demo", messages=STORY, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_idle()


def test_logprobs(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content).strip() == ANSWER
    assert all(len(t.top_logprobs) == 2 for t in content)


def test_three_choices(client):
    answer = client.chat.completions.create(model="demo", messages=STORY, temperature=1.2, seed=3, n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) > 1


def test_stop(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, stop=[" is"])
    assert answer.choices[0].message.content == "The capital of France" and answer.choices[0].finish_reason == "stop"


def test_completions(client):
    answer = client.completions.create(model="demo", prompt="Tell me", max_tokens=4, temperature=0, logprobs=1)
    assert answer.choices[0].text and answer.usage.completion_tokens == 4


def test_models(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="other", messages=QUESTION)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=QUESTION, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "word " * 2000}])
    assert too_long.value.code == "context_length_exceeded"


def test_a_wrong_key_is_an_authentication_error(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# comment\nright-key\n")
    server = start("--api-key-file", keys)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong-key", max_retries=0).models.list()
    assert openai.OpenAI(base_url=server.url + "/v1", api_key="right-key", max_retries=0).models.list()
