import asyncio
import json
import sys
import typing

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, QUESTION = sys.argv[1:]
SETTINGS = {"temperature": 0, "max_tokens": 100}


class Answer(pydantic.BaseModel):
    city: typing.Literal["Paris"]


async def ask():
    answers = []
    provider = OpenAIProvider(base_url=URL + "/v1", api_key="none")
    for model in (OpenAIChatModel("demo", provider=provider), OpenAIResponsesModel("demo", provider=provider),
                  AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(base_url=URL, api_key="none"))):
        agent = Agent(model, model_settings=SETTINGS)
        answers.append((await agent.run(QUESTION)).output)
        async with agent.run_stream(QUESTION) as result:
            answers.append("".join([text async for text in result.stream_text(delta=True)]))
        typed = Agent(model, output_type=NativeOutput(Answer), model_settings=SETTINGS, retries=0)
        assert (await typed.run(QUESTION)).output == Answer(city="Paris")
        async with typed.run_stream(QUESTION) as result:
            assert [value async for value in result.stream_output(debounce_by=None)][-1] == Answer(city="Paris")
    return answers


print(json.dumps(asyncio.run(ask())))
