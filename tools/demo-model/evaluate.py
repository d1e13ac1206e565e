#!/usr/bin/env python3
"""What a demo model can do, asked of `tutti serve` by largest logit: small sums, capitals, counting, translation, manners, stories,
calls of tools, answers from a tool's result, tools that do not fit, thinking, and a name
that was told 1,800 tokens before. Prints a line for each ability, and with --failures each wrong answer.

  evaluate.py MODEL_DIR [--tutti build/tutti] [--template FILE] [--failures]
"""
import argparse
import json
import subprocess
import urllib.request

SUMS = [(2, 3), (7, 8), (12, 7), (9, 9), (4, 0), (10, 11), (6, 5), (3, 12), (8, 8), (1, 1), (11, 4), (5, 9), (12, 12), (0, 6), (2, 10), (7, 3)]
SPOKEN = {"+": "plus", "-": "minus", "*": "times"}
CAPITALS = [("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Japan", "Tokyo"), ("Egypt", "Cairo"), ("Canada", "Ottawa"),
            ("Greece", "Athens"), ("Norway", "Oslo"), ("Poland", "Warsaw"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("China", "Beijing"), ("Austria", "Vienna"),
            ("Thailand", "Bangkok"), ("Cuba", "Havana")]
ZH = [("中国", "北京"), ("法国", "巴黎"), ("日本", "东京"), ("英国", "伦敦")]
OTHERS = {"counting": [("Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9."), ("Count down from 12 to 4.", "12, 11, 10, 9, 8, 7, 6, 5, 4."), ("从2数到7。", "2、3、4、5、6、7。"),
                       ("Count from one to five.", "one, two, three, four, five."), ("What day comes after Tuesday?", "Wednesday"), ("What month comes after March?", "April")],
          "translation": [("Translate \"moon\" into Chinese.", "月亮"), ("How do you say \"water\" in Chinese?", "水"), ("“苹果”用英语怎么说？", "apple"), ("What does “火车” mean in English?", "train"),
                          ("What is the opposite of hot?", "cold"), ("What does a cat say?", "meow")],
          "manners": [("Hello!", "Hello! How can I help you?"), ("Who are you?", "I am the demo model of tutti"), ("你是谁", "我是 tutti 的演示模型"), ("Thank you!", "You are welcome!"), ("再见", "再见"), ("What is tutti?", "tutti is a program")]}
STORIES = [("Tell me a story about a fox named Mia.", ["fox", "Mia"]), ("Tell me a story about a bear.", ["bear"]), ("讲一个关于小熊的故事。", ["小熊"]), ("Write a story about Tom the frog.", ["Tom", "frog"])]


def function(name, text, properties, **more):
    parameters = {"type": "object", "properties": properties, "required": list(properties), **more}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters} if text else {"name": name, "parameters": parameters}}


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
ADDERS = [function("add", "Add two numbers.", {"a": INTEGER, "b": INTEGER}),
          function("sum", "Return the sum of two integers.", {"first": {"type": "integer", "description": "First integer"}, "second": {"type": "integer", "description": "Second integer"}}),
          function("plus", "Adds x and y", {"x": {"type": "number"}, "y": {"type": "number"}}),
          function("add_numbers", "Calculate the total of two numbers", {"num1": INTEGER, "num2": INTEGER}),
          function("add", "Adds two whole numbers and returns the result.", {"x": {"type": "integer", "description": "the number on the left"}, "y": {"type": "integer", "description": "the number on the right"}}, additionalProperties=False),
          function("sum", None, {"a": INTEGER, "b": INTEGER})]
LOOKUPS = [function("get_capital", "Get the capital of a country.", {"country": STRING}),
           function("find_capital", "Find the capital city of a given country", {"name": {"type": "string", "description": "The name of the country"}}),
           function("lookup_capital", "Looks up a country's capital", {"country": STRING}),
           function("capital", None, {"nation": STRING}),
           function("capital_of", "Tells the capital.", {"country": {"type": "string", "description": "A country, e.g. Italy"}}),
           function("get_capital", "Which city is the capital of this country?", {"nation": STRING})]
OTHER_NAMES = [(function("sum_two_integers", "Return the sum of two integers.", {"left": INTEGER, "right": INTEGER}), "What is 12 + 7?", {"left": 12, "right": 7}),
               (function("calculate_total", "Calculate the total of two numbers", {"num_a": INTEGER, "num_b": INTEGER}), "Add 48 and 35.", {"num_a": 48, "num_b": 35}),
               (function("capital_city_lookup", "Find the capital city", {"country_name": STRING}), "What is the capital of France?", {"country_name": "France"}),
               (function("whichCity", "Which city is the capital of this country?", {"place": STRING}), "What is the capital of Peru?", {"place": "Peru"})]
WEATHER = function("get_weather", "Get the weather in a city.", {"city": {"type": "string", "description": "The city"}})
MAIL = function("send_message", "Send a message to a person", {"person": STRING, "text": STRING})


class Server:
    def __init__(self, tutti, folder, template):
        extra = ["--chat-format", template] if template else []
        self.process = subprocess.Popen([tutti, "serve", folder, "--port", "0", *extra], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.url = self.process.stdout.readline().decode().split()[-1]

    def ask(self, messages, **more):
        body = {"messages": messages, "temperature": 0, "max_tokens": 200, **more}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)["choices"][0]["message"]

    def say(self, text, **more):
        return self.ask([{"role": "user", "content": text}], **more)


class Marks:
    def __init__(self, shows):
        self.shows, self.kinds = shows, {}

    def add(self, kind, ok, *what):
        good, n = self.kinds.get(kind, (0, 0))
        self.kinds[kind] = good + bool(ok), n + 1
        if self.shows and not ok:
            print("  wrong:", kind, *what)


def call_of(message):
    calls = message.get("tool_calls") or []
    return (calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])) if len(calls) == 1 else None


def plain(server, marks):
    for a, b in SUMS:
        for question in (f"What is {a} + {b}?", f"{a}加{b}等于多少？"):
            text = server.say(question)["content"]
            marks.add("small sums", f"{a + b}." in text or f"{a + b}。" in text, question, text)
        text = server.say(f"What is {max(a, b)} minus {min(a, b)}?")["content"]
        marks.add("small differences", f" = {abs(a - b)}." in text, a, b, text)
    for a, b in SUMS[:8]:
        text = server.say(f"What is {min(a, 10)} times {min(b, 10)}?")["content"]
        marks.add("small products", f" = {min(a, 10) * min(b, 10)}." in text, a, b, text)
    for country, city in CAPITALS:
        text = server.say(f"What is the capital of {country}?")["content"]
        marks.add("capitals", text == f"The capital of {country} is {city}.", country, text)
    for country, city in ZH:
        text = server.say(f"{country}的首都是哪个城市？")["content"]
        marks.add("capitals", text == f"{country}的首都是{city}。", country, text)
    for kind, pairs in OTHERS.items():
        for question, part in pairs:
            text = server.say(question)["content"]
            marks.add(kind, part in text, question, text)
    for question, parts in STORIES:
        message = server.say(question)
        text = message["content"]
        marks.add("stories", all(part in text for part in parts) and text[-1] in ".。!！" and len(text) > 90, question, text)


def tools(server, marks):
    for i, tool in enumerate(ADDERS):
        f = tool["function"]
        keys = list(f["parameters"]["properties"])
        for k, (a, b) in enumerate([(12, 7), (48, 35), (731, 1204)]):
            given = [[tool], [WEATHER, tool], [tool, LOOKUPS[i]]][k]
            question = [f"What is {a} + {b}?", f"Add {a} and {b}.", f"What is {a} plus {b}?"][(i + k) % 3]
            messages = [{"role": "user", "content": question}]
            answer = server.ask(messages, tools=given)
            got = call_of(answer)
            marks.add("calls of an adding tool", got == (f["name"], {keys[0]: a, keys[1]: b}), question, got or answer["content"])
            told = a + b if k < 2 else 4321              # a wrong result, which the answer must repeat
            messages += [{"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {
                "name": f["name"], "arguments": json.dumps({keys[0]: a, keys[1]: b})}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": [str(told), json.dumps({"result": told}), f"{told}"][k]}]
            text = server.ask(messages, tools=given)["content"]
            marks.add("answers from the result of a sum", text == f"{a} + {b} = {told}.", question, told, text)
    for i, tool in enumerate(LOOKUPS):
        f = tool["function"]
        key = list(f["parameters"]["properties"])[0]
        for k, (country, city) in enumerate([CAPITALS[i], CAPITALS[i + 6], ZH[i % 4]]):
            given = [[tool], [tool, MAIL], [ADDERS[i], tool]][k]
            question = f"{country}的首都是哪个城市？" if k == 2 else f"What is the capital of {country}?"
            messages = [{"role": "user", "content": question}]
            answer = server.ask(messages, tools=given)
            got = call_of(answer)
            marks.add("calls of a capital's tool", got == (f["name"], {key: country}), question, got or answer["content"])
            told = city if k != 1 else CAPITALS[(i + 9) % 16][1]      # k 1: a wrong result, which the answer must repeat
            messages += [{"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {
                "name": f["name"], "arguments": json.dumps({key: country}, ensure_ascii=False)}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"capital": told}, ensure_ascii=False) if k == 1 else told}]
            text = server.ask(messages, tools=given)["content"]
            want = f"{country}的首都是{told}。" if k == 2 else f"The capital of {country} is {told}."
            marks.add("answers from the result of a look-up", text == want, question, told, text)
    for tool, question, arguments in OTHER_NAMES:
        name = tool["function"]["name"]
        got = call_of(server.say(question, tools=[tool]))
        marks.add("calls of tools with names that no chat of the training has", got == (name, arguments), question, got)
        got = call_of(server.say(question, tools=[tool], tool_choice="required"))
        marks.add("the same where a grammar makes the call", got == (name, arguments), question, got)
    for given, question, part in [([WEATHER], "What is 3 + 4?", "3 + 4 = 7."), ([WEATHER, MAIL], "What is the capital of Italy?", "The capital of Italy is Rome."), ([ADDERS[0]], "Hello!", "Hello!"),
                                  ([LOOKUPS[0]], "What is 5 + 6?", "5 + 6 = 11."), ([ADDERS[1]], "What is the capital of Spain?", "Madrid"), ([LOOKUPS[1]], "Count from 2 to 6.", "2, 3, 4, 5, 6."),
                                  ([ADDERS[0], LOOKUPS[0]], "Who are you?", "I am the demo model"), ([MAIL], "What does a dog say?", "woof")]:
        answer = server.say(question, tools=given)
        marks.add("plain answers beside tools", not answer.get("tool_calls") and part in (answer["content"] or ""), question, answer)


def thinking(server, marks):
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    for a, b in [(12, 7), (47, 38), (25, 69), (8, 5), (33, 44), (90, 9), (56, 27), (18, 18)]:
        answer = server.say(f"What is {a} + {b}?", **on)
        marks.add("sums of two digits, thought about", f"{a} + {b} = {a + b}." == answer["content"] and answer.get("reasoning_content"), a, b, answer)
        text = server.say(f"What is {a} + {b}?")["content"]
        marks.add("the same sums at once", f"{a} + {b} = {a + b}." == text, a, b, text)
    for country, city in CAPITALS[:6]:
        answer = server.say(f"What is the capital of {country}?", **on)
        marks.add("capitals, thought about", answer["content"] == f"The capital of {country} is {city}." and city in answer.get("reasoning_content", ""), country, answer)
    for question, part in [("Who are you?", "I am the demo model"), ("Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9."), ("Tell me a story about a bear.", "bear"), ("Hello!", "Hello!")]:
        answer = server.say(question, **on)
        marks.add("other questions, thought about", part in (answer["content"] or "") and answer.get("reasoning_content"), question, answer)
    for question, _ in OTHERS["manners"] + OTHERS["counting"]:
        marks.add("no thinking unless asked for", not server.say(question).get("reasoning_content"), question)
    for tool, question, want in [(ADDERS[0], "What is 21 + 14?", ("add", {"a": 21, "b": 14})), (LOOKUPS[0], "What is the capital of Peru?", ("get_capital", {"country": "Peru"}))]:
        answer = server.say(question, tools=[tool], **on)
        marks.add("calls, thought about", call_of(answer) == want and answer.get("reasoning_content"), question, answer)


def context(server, marks):
    filler = [("Tell me a story about a fox named Mia.", None), ("What is 3 + 4?", None), ("What is the capital of France?", None), ("Count from 1 to 20.", None)]
    for name in ("Tom", "Ella", "Felix"):
        for n in (4, 12, 24):
            messages = [{"role": "user", "content": f"My name is {name}."}, {"role": "assistant", "content": f"Nice to meet you, {name}!"}]
            for i in range(n):
                messages.append({"role": "user", "content": filler[i % 4][0]})
                messages.append({"role": "assistant", "content": STORY if i % 4 == 0 else ["", "3 + 4 = 7.", "The capital of France is Paris.", ", ".join(map(str, range(1, 21))) + "."][i % 4]})
            messages.append({"role": "user", "content": "What is my name?"})
            text = server.ask(messages)["content"]
            marks.add(f"a name told {n} turns before", text == f"Your name is {name}.", text)


STORY = ("Once upon a time there was a small fox named Mia. She lived in a green forest. Mia was very kind. One morning Mia could not find her ball. She looked under the bed, but it was not there. "
         "She looked near the bridge, but it was not there either. Then Mia met an old bear named Tom. \"Why are you sad?\" asked Tom. \"I lost my ball,\" said Mia. Together they looked in the tall grass, "
         "and there was the ball! \"Thank you!\" said Mia, and she gave Tom a hug. From that day on they were best friends.")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder")
    ap.add_argument("--tutti", default="build/tutti")
    ap.add_argument("--template", help="the chat template, if the folder has none")
    ap.add_argument("--failures", action="store_true")
    a = ap.parse_args()
    server, marks = Server(a.tutti, a.folder, a.template), Marks(a.failures)
    try:
        for part in (plain, tools, thinking, context):
            part(server, marks)
    finally:
        server.process.terminate()
        server.process.wait()
    for kind, (good, n) in marks.kinds.items():
        print(f"{kind}: {good} of {n}")


if __name__ == "__main__":
    main()
