import json
import sys
import typing

import instructor
import openai
import pydantic

URL, QUESTION = sys.argv[1:]


class Answer(pydantic.BaseModel):
    city: typing.Literal["Paris"]
    sentence: typing.Literal["The capital of France is Paris."]


client = instructor.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
asked = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "response_model": Answer, "temperature": 0, "max_tokens": 200}
*_, last = client.chat.completions.create_partial(**asked)
print(json.dumps([client.chat.completions.create(**asked).sentence, last.sentence]))
