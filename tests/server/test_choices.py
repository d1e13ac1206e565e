"""logit_bias, n, best_of and echo as OpenAI documents them, through OpenAI's own client."""
import openai
import pytest

PROMPT = "Tell me a story about a fox named Mia."
MESSAGES = [{"role": "user", "content": PROMPT}]
N_VOCAB = 4160  # rows of the demo model
MOST_BIASES = 1024


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


def complete(client, **body):
    return client.completions.create(**{"model": "demo", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **body})


def chat(client, **body):
    return client.chat.completions.create(**{"model": "demo", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, **body})


def refused(call, client, body, param):
    with pytest.raises(openai.BadRequestError) as error:
        call(client, **body)
    assert error.value.param == param, error.value
    return error.value.message


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]


# ---- logit_bias ----------------------------------------------------------------------------------------------------------

def answer(call, reply):
    return reply.choices[0].text if call is complete else reply.choices[0].message.content


@pytest.mark.parametrize("call", [complete, chat])
def test_100_makes_a_token_certain_and_minus_100_bans_it(server, client, call):
    token = ids_of(server, " fox")[0]
    word = server.post("/detokenize", {"tokens": [token] * 6}).json()["prompt"].split()
    assert answer(call, call(client, logit_bias={str(token): 100}, extra_body={"ignore_eos": True})).split() == word
    plain = answer(call, call(client))
    banned = {str(i): -100 for i in ids_of(server, " " + plain.split()[0]) + ids_of(server, plain.split()[0])}
    assert answer(call, call(client, logit_bias=banned)).split()[0] != plain.split()[0]
    assert answer(call, call(client, logit_bias={})) == plain


def test_a_bias_is_added_to_the_logit(client, server):
    """A greedy answer changes where the bias exceeds the distance to the best token, and not before. Log-probabilities are without."""
    told = complete(client, max_tokens=1, logprobs=5).choices[0].logprobs
    top = sorted(told.top_logprobs[0].items(), key=lambda item: -item[1])
    second, distance = top[1][0], top[0][1] - top[1][1]
    token = next(i for i in ids_of(server, second) if server.post("/detokenize", {"tokens": [i]}).json()["prompt"].strip() == second.strip())
    for bias, want in ((distance - 0.01, top[0][0]), (distance + 0.01, second)):
        if bias <= 100:
            biased = complete(client, max_tokens=1, logprobs=5, logit_bias={str(token): bias}).choices[0].logprobs
            assert biased.tokens[0] == want and biased.top_logprobs == told.top_logprobs


@pytest.mark.parametrize("call", [complete, chat])
@pytest.mark.parametrize("bias, words", [
    ({"x": 1}, "token id"), ({"": 1}, "token id"), ({"-1": 1}, "token id"), ({"+5": 1}, "token id"), ({" 5": 1}, "token id"),
    ({"5 ": 1}, "token id"), ({"0x5": 1}, "token id"), ({"05": 1}, "token id"), ({"1.5": 1}, "token id"), ({"1e3": 1}, "token id"),
    ({str(N_VOCAB): 1}, "token id"), ({str(2 ** 32 + 5): 1}, "token id"), ({str(2 ** 64 + 5): 1}, "token id"),
    ({"5": 100.5}, "-100 and 100"), ({"5": -101}, "-100 and 100"), ({"5": "1"}, "-100 and 100"), ({"5": None}, "-100 and 100"),
    ({"5": True}, "-100 and 100"), ([[5, 1]], "object"), ({str(i): 1 for i in range(MOST_BIASES + 1)}, str(MOST_BIASES)),
])
def test_other_biases_are_refused(client, call, bias, words):
    assert words in refused(call, client, {"extra_body": {"logit_bias": bias}}, "logit_bias")


@pytest.mark.parametrize("call", [complete, chat])
def test_more_biases_than_openai_takes(client, call):
    assert call(client, logit_bias={str(i): -1 for i in range(300)}).choices
    assert call(client, logit_bias={str(i): -100 + i / 10 for i in range(MOST_BIASES)}).choices


# ---- n -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call", [complete, chat])
def test_n_choices_of_one_seed_differ_and_stream_the_same(client, call):
    settings = {"n": 4, "temperature": 1.2, "seed": 7, "max_tokens": 12}
    whole = call(client, **settings)
    texts = [c.text if call is complete else c.message.content for c in whole.choices]
    assert [c.index for c in whole.choices] == [0, 1, 2, 3] and len(set(texts)) > 1
    assert all(c.finish_reason in ("stop", "length") for c in whole.choices)
    assert whole.usage.completion_tokens <= 48 and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens == call(client, n=1).usage.prompt_tokens  # the prompt counts once
    streamed, ends, usage = [""] * 4, {}, None
    for chunk in call(client, **settings, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for c in chunk.choices:
            streamed[c.index] += (c.text if call is complete else c.delta.content) or ""
            if c.finish_reason:
                ends[c.index] = c.finish_reason
    assert streamed == texts and ends == {c.index: c.finish_reason for c in whole.choices}
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_n_of_each_prompt_in_order(client):
    told = complete(client, prompt=["One fox", "Two bears", "Three cats"], n=2)
    assert [c.index for c in told.choices] == list(range(6))
    alone = [complete(client, prompt=prompt).choices[0].text for prompt in ("One fox", "Two bears", "Three cats")]
    assert [c.text for c in told.choices] == [text for text in alone for _ in range(2)]


@pytest.mark.parametrize("call", [complete, chat])
@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2", True])
def test_n_is_1_to_128(client, call, n):
    refused(call, client, {"extra_body": {"n": n}}, "n")


def test_128_choices(client):
    assert len(complete(client, n=128, max_tokens=1).choices) == 128


# ---- best_of -------------------------------------------------------------------------------------------------------------

def mean(choice):
    """The mean log-probability of its tokens, among them the one that ended it."""
    values = choice.logprobs.token_logprobs
    return sum(values) / len(values)


def test_the_best_have_the_highest_mean_log_probability(client):
    settings = {"temperature": 1.3, "seed": 11, "max_tokens": 10, "logprobs": 0, "extra_body": {"ignore_eos": True}}
    everything = complete(client, n=8, **settings)
    ranked = sorted(everything.choices, key=mean, reverse=True)
    for n in (1, 3, 8):
        best = complete(client, n=n, best_of=8, **settings)
        assert [c.index for c in best.choices] == list(range(n))
        assert {c.text for c in best.choices} == {c.text for c in ranked[:n]}
        assert best.usage.completion_tokens == everything.usage.completion_tokens == 80  # what was generated, not what was returned
    without = complete(client, best_of=8, **{**settings, "logprobs": None}).choices[0]
    assert without.text == ranked[0].text and without.logprobs is None


def test_the_best_of_each_prompt(client):
    settings = {"temperature": 1.3, "seed": 5, "max_tokens": 8, "logprobs": 0, "prompt": ["One fox", "Two bears"], "extra_body": {"ignore_eos": True}}
    everything, best = complete(client, n=4, **settings).choices, complete(client, best_of=4, **settings).choices
    assert [c.text for c in best] == [max(everything[:4], key=mean).text, max(everything[4:], key=mean).text]
    assert [c.index for c in best] == [0, 1]


def test_best_of_with_echo_compares_answers_only(client):
    settings = {"temperature": 1.3, "seed": 11, "max_tokens": 10, "extra_body": {"ignore_eos": True}}
    plain, echoed = complete(client, best_of=4, **settings).choices[0], complete(client, best_of=4, echo=True, **settings).choices[0]
    assert echoed.text == PROMPT + plain.text


@pytest.mark.parametrize("body, param", [
    ({"best_of": 2, "n": 3}, "best_of"), ({"best_of": 3, "stream": True}, "best_of"), ({"best_of": 0}, "best_of"), ({"best_of": 129}, "best_of"),
    ({"best_of": 1.5}, "best_of"), ({"best_of": 3, "num_beams": 2}, "best_of"),
])
def test_other_numbers_are_refused(client, body, param):
    refused(complete, client, {"extra_body": body}, param)


def test_best_of_that_is_n_streams(client):
    for body in ({"best_of": 1}, {"best_of": 2, "n": 2}):
        chunks = list(complete(client, stream=True, **body))
        assert {c.index for chunk in chunks for c in chunk.choices} == set(range(body.get("n", 1)))


def test_chats_have_no_best_of(client):
    assert chat(client, extra_body={"best_of": 1}).choices
    refused(chat, client, {"extra_body": {"best_of": 2}}, "best_of")


# ---- echo ----------------------------------------------------------------------------------------------------------------

ECHOES = [{}, {"max_tokens": 0}, {"n": 3}, {"n": 2, "max_tokens": 0}, {"logprobs": 2}, {"logprobs": 0, "max_tokens": 0}, {"logprobs": 1, "n": 2},
          {"logprobs": 3, "n": 2, "max_tokens": 0}, {"stop": ["a"]}, {"prompt": ["One fox", "Two"], "logprobs": 1}, {"prompt": ["One fox", "Two"], "n": 2},
          {"temperature": 1, "seed": 3, "n": 2, "logprobs": 1}]


@pytest.mark.parametrize("body", ECHOES, ids=str)
def test_echo_puts_the_prompt_in_front_whole_and_streamed(client, body):
    prompts = body.get("prompt", [PROMPT])
    prompts = [p for p in prompts for _ in range(body.get("n", 1))]
    whole = complete(client, echo=True, **body)
    assert [c.index for c in whole.choices] == list(range(len(prompts)))
    assert all(c.text.startswith(prompt) for c, prompt in zip(whole.choices, prompts))
    if body.get("max_tokens") == 0:
        assert [c.text for c in whole.choices] == prompts and whole.usage.completion_tokens == 0
        assert {c.finish_reason for c in whole.choices} == {"length"}
    else:
        plain = complete(client, **body)
        assert [c.text for c in whole.choices] == [prompt + c.text for c, prompt in zip(plain.choices, prompts)]
    for c, prompt in zip(whole.choices, prompts):
        if "logprobs" not in body:
            assert c.logprobs is None
            continue
        told = c.logprobs
        assert told.token_logprobs[0] is None and told.top_logprobs[0] is None and all(x <= 0 for x in told.token_logprobs[1:])
        assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset)
        assert all(1 <= len(top) <= body["logprobs"] + 1 for top in told.top_logprobs[1:])
        assert "".join(told.tokens[:sum(1 for at in told.text_offset if at < len(prompt))]).strip().startswith(prompt.strip()[:20])
    texts, logprobs = [""] * len(prompts), [[] for _ in prompts]
    for chunk in complete(client, echo=True, stream=True, **body):
        for c in chunk.choices:
            texts[c.index] += c.text
            logprobs[c.index] += c.logprobs.token_logprobs if c.logprobs else []
    assert texts == [c.text for c in whole.choices]
    assert logprobs == [c.logprobs.token_logprobs if c.logprobs else [] for c in whole.choices]


def test_prompt_log_probabilities_do_not_depend_on_the_choices(client):
    one = complete(client, echo=True, max_tokens=0, logprobs=2).choices[0].logprobs
    for c in complete(client, echo=True, logprobs=2, n=3, temperature=1, seed=1).choices:
        n = len(one.tokens)
        assert (c.logprobs.tokens[:n], c.logprobs.token_logprobs[:n], c.logprobs.text_offset[:n]) == (one.tokens, one.token_logprobs, one.text_offset)
    for c in complete(client, echo=True, logprobs=2, best_of=3, n=2, temperature=1, seed=1).choices:
        assert c.logprobs.token_logprobs[:n] == one.token_logprobs


@pytest.mark.parametrize("call, body, param", [
    (complete, {"echo": True, "suffix": "x"}, "suffix"), (complete, {"max_tokens": 0}, "max_tokens"), (complete, {"echo": "true"}, "echo"),
    (complete, {"echo": 1}, "echo"), (complete, {"echo": True, "logprobs": 21}, "logprobs"), (complete, {"echo": True, "logprobs": -1}, "logprobs"),
    (complete, {"echo": True, "logprobs": True}, "logprobs"), (chat, {"echo": True}, "echo"), (chat, {"max_tokens": 0}, "max_tokens"),
])
def test_what_does_not_go_together_is_refused(client, call, body, param):
    refused(call, client, {"extra_body": body}, param)


def test_each_answer_of_a_beam_search_comes_at_once(client):
    """They are known at the end of the search only: an event for each of their tokens would delay other streams."""
    chunks = list(complete(client, n=3, max_tokens=30, stream=True, extra_body={"num_beams": 4, "ignore_eos": True}))
    texts = [[chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == i and chunk.choices[0].text] for i in range(3)]
    assert [len(parts) for parts in texts] == [1, 1, 1], texts
