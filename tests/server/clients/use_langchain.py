import json
import sys

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

URL, QUESTION = sys.argv[1:]
answers = []
for model in (ChatOpenAI(base_url=URL + "/v1", api_key="none", model="demo", temperature=0, max_retries=0),
              ChatAnthropic(base_url=URL, api_key="none", model="demo", temperature=0, max_tokens=100, max_retries=0)):
    answers += [model.invoke(QUESTION).text, "".join(chunk.text for chunk in model.stream(QUESTION))]
print(json.dumps(answers))
