import asyncio
import json
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, QUESTION = sys.argv[1:]


async def ask():
    answers = []
    for model in (OpenAIChatModel("demo", provider=OpenAIProvider(base_url=URL + "/v1", api_key="none")),
                  AnthropicModel("demo", provider=AnthropicProvider(base_url=URL, api_key="none"))):
        agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 100})
        answers.append((await agent.run(QUESTION)).output)
        async with agent.run_stream(QUESTION) as result:
            answers.append("".join([text async for text in result.stream_text(delta=True)]))
    return answers


print(json.dumps(asyncio.run(ask())))
