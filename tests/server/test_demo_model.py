"""Abilities of the demo model: it calls tools for sums and capitals and answers from their results, reasons if the request enables
thinking, and uses a context of 2,048 tokens. Greedy, through the published clients of the three APIs, whole and streamed."""
import json

import anthropic
import openai
import pytest

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
TOOLS = {  # name: description, properties
    "add": ("Add two numbers.", {"a": NUMBER, "b": NUMBER}),
    "get_capital": ("Get the capital of a country.", {"country": TEXT}),
    "get_weather": ("Get the weather in a city.", {"city": TEXT}),
}
CASES = [  # question, tools, the call, its result, the answer
    ("What is 12 + 7?", ["add"], ("add", {"a": 12, "b": 7}), "19", "12 + 7 = 19."),
    ("What is 48 + 35?", ["get_capital", "add"], ("add", {"a": 48, "b": 35}), "83", "48 + 35 = 83."),
    ("What is the capital of France?", ["get_capital"], ("get_capital", {"country": "France"}), "Paris", "The capital of France is Paris."),
    ("What is the capital of Japan?", ["get_weather", "get_capital"], ("get_capital", {"country": "Japan"}), '{"capital": "Tokyo"}',
     "The capital of Japan is Tokyo."),
    ("What is the capital of Italy?", ["get_capital"], ("get_capital", {"country": "Italy"}), "Oslo", "The capital of Italy is Oslo."),  # the model believes a wrong result
]
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def schema(name):
    return {"type": "object", "properties": TOOLS[name][1], "required": list(TOOLS[name][1])}


class Chat:
    """Chat Completions: a conversation, whose answers are {"text", "thoughts", "calls": [(name, arguments)]}."""

    def __init__(self, url, tools=(), **more):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        self.messages, self.more = [], more
        self.tools = [{"type": "function", "function": {"name": n, "description": TOOLS[n][0], "parameters": schema(n)}} for n in tools]

    def request(self, is_streamed):
        settings = {"model": "demo", "messages": self.messages, "temperature": 0, "max_tokens": 200, "extra_body": self.more}
        if self.tools:
            settings["tools"] = self.tools
        if not is_streamed:
            return self.client.chat.completions.create(**settings).choices[0].message
        with self.client.chat.completions.stream(**settings) as stream:
            return stream.get_final_completion().choices[0].message

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        return self.answer()

    def answer(self):
        whole, streamed = (self.parts(self.request(is_streamed)) for is_streamed in (False, True))
        assert whole == streamed
        return whole

    def parts(self, message):
        self.last = message
        return {"text": message.content or "", "thoughts": getattr(message, "reasoning_content", None) or "",
                "calls": [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]}

    def give(self, result):
        self.messages.append(self.last.to_dict())
        self.messages.append({"role": "tool", "tool_call_id": self.last.tool_calls[0].id, "content": result})
        return self.answer()


class Responses(Chat):
    def __init__(self, url, tools=(), **more):
        super().__init__(url, (), **more)
        self.tools = [{"type": "function", "name": n, "description": TOOLS[n][0], "parameters": schema(n)} for n in tools]

    def request(self, is_streamed):
        settings = {"model": "demo", "input": self.messages, "temperature": 0, "max_output_tokens": 200, "store": False, "extra_body": self.more}
        if self.tools:
            settings["tools"] = self.tools
        if not is_streamed:
            return self.client.responses.create(**settings)
        with self.client.responses.stream(**settings) as stream:
            return stream.get_final_response()

    def parts(self, response):
        self.last = response
        of = {kind: [item for item in response.output if item.type == kind] for kind in ("reasoning", "function_call")}
        return {"text": response.output_text, "thoughts": "".join(part.text for item in of["reasoning"] for part in item.content or item.summary),
                "calls": [(item.name, json.loads(item.arguments)) for item in of["function_call"]]}

    def give(self, result):
        self.messages += [item.to_dict() for item in self.last.output]
        self.messages.append({"type": "function_call_output", "call_id": self.last.output[-1].call_id, "output": result})
        return self.answer()


class Messages(Chat):
    def __init__(self, url, tools=(), **more):
        super().__init__(url, (), **more)
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.tools = [{"name": n, "description": TOOLS[n][0], "input_schema": schema(n)} for n in tools]

    def request(self, is_streamed):
        settings = {"model": "demo", "messages": self.messages, "max_tokens": 200, "extra_body": {"temperature": 0, **self.more}}
        if self.tools:
            settings["tools"] = self.tools
        if not is_streamed:
            return self.client.messages.create(**settings)
        with self.client.messages.stream(**settings) as stream:
            return stream.get_final_message()

    def parts(self, message):
        self.last = message
        return {"text": "".join(b.text for b in message.content if b.type == "text"),
                "thoughts": "".join(b.thinking for b in message.content if b.type == "thinking"),
                "calls": [(b.name, b.input) for b in message.content if b.type == "tool_use"]}

    def give(self, result):
        self.messages.append({"role": "assistant", "content": [block.to_dict() for block in self.last.content]})
        self.messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": self.last.content[-1].id, "content": result}]})
        return self.answer()


APIS = pytest.mark.parametrize("api", [Chat, Responses, Messages])


@APIS
@pytest.mark.parametrize("question, tools, call, result, answer", CASES, ids=[f"{c[0]} {'+'.join(c[1])}" for c in CASES])
def test_it_calls_a_tool_and_answers_from_its_result(server, api, question, tools, call, result, answer):
    chat = api(server.url, tools)
    assert chat.ask(question) == {"text": "", "thoughts": "", "calls": [call]}
    assert chat.give(result) == {"text": answer, "thoughts": "", "calls": []}


@APIS
def test_tools_that_do_not_fit_are_left_alone(server, api):
    chat = api(server.url, ["get_weather"])
    assert chat.ask("What is 3 + 4?") == {"text": "3 + 4 = 7.", "thoughts": "", "calls": []}


@APIS
def test_it_thinks_where_it_is_asked_to(server, api):
    for question, thought, answer in (("What is 12 + 7?", "12 + 7 = 19", "12 + 7 = 19."),
                                      ("What is the capital of France?", "Paris", "The capital of France is Paris.")):
        assert api(server.url).ask(question) == {"text": answer, "thoughts": "", "calls": []}
        said = api(server.url, **THINKING).ask(question)
        assert said["text"] == answer and thought in said["thoughts"]


def test_it_reads_2048_tokens(server):
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 2048
    story = ("Once upon a time there was a small fox named Mia. She lived in a green forest. Mia was very kind. One morning Mia could not find "
             "her ball. She looked under the bed, but it was not there. Then Mia met an old bear named Tom. \"Why are you sad?\" asked Tom. "
             "\"I lost my ball,\" said Mia. Together they looked in the tall grass, and there was the ball! From that day on they were best friends.")
    turn = [{"role": "user", "content": "Tell me a story about a fox named Mia."}, {"role": "assistant", "content": story}]
    messages, question = turn * 16, [{"role": "user", "content": "What is the capital of France?"}]
    n_tokens = server.post("/tokenize", {"messages": messages + question}).json()["count"]
    assert 1700 < n_tokens < 2000, n_tokens
    chat = Chat(server.url)
    chat.messages += messages
    assert chat.ask(question[0]["content"])["text"] == "The capital of France is Paris."
