import asyncio
import json
import os
import sys

import pydantic

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS="True")  # asks no other host
import litellm

URL, QUESTION = sys.argv[1:]
MESSAGES = [{"role": "user", "content": QUESTION}]
OPENAI = {"model": "openai/demo", "api_base": URL + "/v1", "api_key": "none", "max_retries": 0}
ANTHROPIC = {"model": "anthropic/claude-sonnet-4-5", "api_base": URL, "api_key": "none", "max_retries": 0}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {
    "type": "object", "properties": {"c": {"type": "string", "enum": ["P"]}}, "required": ["c"], "additionalProperties": False}}}


class Answer(pydantic.BaseModel):
    city: str = pydantic.Field(pattern="^P[a-z]{1,9}$")
    sure: bool


def text(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


async def text_later(**asked):
    return "".join([chunk.choices[0].delta.content or "" async for chunk in await litellm.acompletion(stream=True, **asked)])


def calls(answer):
    return [(call.function.name, json.loads(call.function.arguments)) for call in answer.choices[0].message.tool_calls]


answers = []
for route in (OPENAI, ANTHROPIC):
    asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": 100, **route}
    whole = litellm.completion(**asked)
    assert whole.usage.completion_tokens > 0 and whole.choices[0].finish_reason == "stop", whole
    answers += [whole.choices[0].message.content, text(litellm.completion(stream=True, **asked))]
    assert asyncio.run(text_later(**asked)) == answers[-1]
    forced = {**asked, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "w"}}}
    streamed = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **forced)))
    assert calls(litellm.completion(**forced)) == calls(streamed) == [("w", {"c": "P"})], streamed
    parsed = Answer.model_validate_json(litellm.completion(response_format=Answer, **asked).choices[0].message.content)
    assert Answer.model_validate_json(text(litellm.completion(response_format=Answer, stream=True, **asked))) == parsed
    try:
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": "word " * 20000}]})
        raise AssertionError("a prompt that is too long was answered")
    except litellm.ContextWindowExceededError:
        pass
assert litellm.responses(input=QUESTION, temperature=0, **OPENAI).output_text == answers[0]
events = litellm.responses(input=QUESTION, temperature=0, stream=True, **OPENAI)
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answers[0]
vectors = litellm.embedding(input=["one text", "another"], **{**OPENAI, "model": "openai/vectors"})
assert [(entry["index"], len(entry["embedding"]) > 1) for entry in vectors.data] == [(0, True), (1, True)], vectors
for provider in ("hosted_vllm", "jina_ai", "cohere"):
    ranked = litellm.rerank(model=f"{provider}/ranker", query="a fox", documents=["a fox", "the capital of France"], top_n=2,
                            api_base=URL + ("/v1/rerank" if provider != "cohere" else "/v2/rerank"), api_key="none")
    assert sorted(entry["index"] for entry in ranked.results) == [0, 1], ranked
    assert ranked.results[0]["relevance_score"] >= ranked.results[1]["relevance_score"], ranked
print(json.dumps(answers))
