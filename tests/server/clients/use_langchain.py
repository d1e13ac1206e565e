import json
import sys
import typing

import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

URL, QUESTION = sys.argv[1:]


class Answer(pydantic.BaseModel):
    """An answer."""
    city: typing.Literal["Paris"]


@tool
def weather(city: typing.Literal["Paris"]) -> str:
    """The weather of a city."""
    return city


def joined(chunks):
    first, *others = chunks
    return sum(others, first)


answers = []
shared = {"api_key": "none", "model": "demo", "temperature": 0, "max_retries": 0, "max_tokens": 100}
for model in (ChatOpenAI(base_url=URL + "/v1", **shared), ChatOpenAI(base_url=URL + "/v1", use_responses_api=True, **shared),
              ChatAnthropic(base_url=URL, **shared)):
    answers += [model.invoke(QUESTION).text, "".join(chunk.text for chunk in model.stream(QUESTION))]
    for method in ("json_schema", "function_calling"):
        parser = model.with_structured_output(Answer, method=method)
        assert parser.invoke(QUESTION) == [*parser.stream(QUESTION)][-1] == Answer(city="Paris"), method
    caller = model.bind_tools([weather], tool_choice="weather")
    for reply in (caller.invoke(QUESTION), joined(caller.stream(QUESTION))):
        call, = reply.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Paris"}), reply
text = OpenAI(base_url=URL + "/v1", **{**shared, "max_tokens": 8})
assert text.invoke("Mia is") == "".join(text.stream("Mia is")) != ""
vectors = OpenAIEmbeddings(base_url=URL + "/v1", api_key="none", model="vectors", check_embedding_ctx_length=False)
assert [len(vector) > 1 for vector in vectors.embed_documents(["one text", "another"])] == [True, True]
print(json.dumps(answers))
