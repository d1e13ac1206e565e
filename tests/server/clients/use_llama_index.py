import asyncio
import json
import sys
import typing

import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai_like import OpenAILike

URL, QUESTION = sys.argv[1:]
MESSAGES = [ChatMessage(role="user", content=QUESTION)]
SHARED = {"model": "demo", "api_key": "none", "temperature": 0, "max_retries": 0, "max_tokens": 200}
OPENAI = OpenAILike(api_base=URL + "/v1", is_chat_model=True, is_function_calling_model=True, should_use_structured_outputs=True,
                    context_window=2048, **SHARED)


class Answer(pydantic.BaseModel):
    city: typing.Literal["Paris"]


def w(c: typing.Literal["P"]) -> str:
    """The weather."""
    return c


def joined(stream):
    return "".join(piece.delta or "" for piece in stream)


async def in_async(model):
    return "".join([piece.delta or "" async for piece in await model.astream_chat(MESSAGES)])


answers = []
for model in (OPENAI, Anthropic(base_url=URL, **{**SHARED, "model": "claude-sonnet-4-5"})):  # it takes known names only
    answers += [model.chat(MESSAGES).message.content, joined(model.stream_chat(MESSAGES))]
    assert asyncio.run(in_async(model)) == answers[-1]
tool = FunctionTool.from_defaults(w)
called = OPENAI.chat_with_tools([tool], user_msg=QUESTION, tool_choice="w")
*_, last = OPENAI.stream_chat_with_tools([tool], user_msg=QUESTION, tool_choice="w")
for reply in (called, last):
    call, = OPENAI.get_tool_calls_from_response(reply)
    assert call.tool_name == "w" and call.tool_kwargs == {"c": "P"}, call
prompt = PromptTemplate("{question}")
assert OPENAI.structured_predict(Answer, prompt, question=QUESTION) == Answer(city="Paris")
*_, last = OPENAI.stream_structured_predict(Answer, prompt, question=QUESTION)
assert last.city == "Paris"
text = OpenAILike(api_base=URL + "/v1", is_chat_model=False, **{**SHARED, "max_tokens": 8})
assert text.complete("Mia is a").text == "".join(piece.delta or "" for piece in text.stream_complete("Mia is a")) != ""
embedding = OpenAILikeEmbedding(model_name="vectors", api_base=URL + "/v1", api_key="none", max_retries=0)
vectors = embedding.get_text_embedding_batch(["one text", "another"])
assert len(vectors) == 2 and len(vectors[0]) == len(embedding.get_query_embedding("a third")) > 1
print(json.dumps(answers))
