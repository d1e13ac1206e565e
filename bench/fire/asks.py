"""Requests with seeds, through every API, and what their answers say: what a lone run answered is what must come in the fire.

A whole answer is compared as JSON, log-probabilities and all, without what differs from run to run. Of a stream the text of each
choice and the last event are compared; of one that was cut off, the text as far as it came."""
import json
import random
from dataclasses import dataclass

# Times and ids; and what depends on who else was there: what the prefix cache held, how many drafts were verified.
CHANGING = {"id", "created", "created_at", "completed_at", "item_id", "prompt_tokens_details", "input_tokens_details",
            "completion_tokens_details", "system_fingerprint"}
ANIMALS = ["fox", "bear", "cat", "dog", "owl", "rabbit", "mouse", "frog"]
NAMES = ["Mia", "Lily", "Ava", "Zoe", "Ella", "Ruby", "Nora", "Ivy"]
COUNTRIES = ["France", "Germany", "Italy", "Spain", "Japan", "China", "Egypt", "Peru"]
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "born", "likes"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12}, "born": {"type": "string", "format": "date"},
    "likes": {"type": "array", "items": {"enum": ["tea", "茶", 3]}, "maxItems": 2}}}
GRAMMAR = 'root ::= "The answer is " [0-9]{2} (" or " [0-9]{2})? "."'
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def clean(value):
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in CHANGING}
    return [clean(v) for v in value] if isinstance(value, list) else value


# ---- streams: lists of events; of an event its pieces of text by choice, and what it says of the end -----------------

def data_lines(data):
    """The values behind "data:", and whether the last one was [DONE]. A line that is cut off does not count."""
    lines = data.decode(errors="replace").split("\n")[:-1]
    values = [line[5:].strip() for line in lines if line.startswith("data:")]
    return [json.loads(v) for v in values if v != "[DONE]"], values[-1:] == ["[DONE]"]


def chat_event(event):
    return ([(c["index"], c["delta"].get("content") or "") for c in event["choices"]],
            [(c["index"], c["finish_reason"], [t["function"] for t in c["delta"].get("tool_calls", [])])
             for c in event["choices"] if c["finish_reason"] or c["delta"].get("tool_calls")])


def completion_event(event):
    return ([(c["index"], c["text"]) for c in event["choices"]],
            [(c["index"], c["finish_reason"]) for c in event["choices"] if c["finish_reason"]])


def response_event(event):
    assert event["type"] != "error", event
    return ([(0, event["delta"])] if event["type"] == "response.output_text.delta" else [],
            [clean(event["response"])] if event["type"] in ("response.completed", "response.incomplete", "response.failed") else [])


def tgi_event(event):
    return [(0, event["token"]["text"])], [clean(event)] if event["details"] else []


def serving_event(event):
    entry = event["data"][0]
    is_last = "finish_reason" in entry
    return [] if is_last else [(0, entry["generated_text"])], [clean(entry)] if is_last else []


@dataclass(frozen=True)
class Api:
    event: object  # of a stream
    says_done: bool = False
    has_data: bool = True  # "data:" before each event


CHAT, COMPLETION = Api(chat_event, says_done=True), Api(completion_event, says_done=True)
RESPONSES, TGI, SERVING = Api(response_event), Api(tgi_event), Api(serving_event, has_data=False)
EMBEDDINGS = Api(None)  # has no streams


@dataclass(frozen=True)
class Answer:
    """What can be compared. whole: JSON; else a stream: texts by choice, and what its last events said."""
    whole: object = None
    texts: object = None
    ends: object = None

    def begins_like(self, other):
        """True: this one, which was cut off, is as far as it came what the other says."""
        return all(other.texts.get(i, "").startswith(text) for i, text in self.texts.items())


@dataclass(frozen=True, eq=False)
class Ask:
    name: str
    path: str
    body: object
    api: Api

    def read(self, data, is_complete=True):
        if not self.body["stream"]:
            return Answer(whole=clean(json.loads(data))) if is_complete else Answer(texts={})
        if self.api.has_data:
            events, is_done = data_lines(data)
            assert is_done or not (is_complete and self.api.says_done), "the stream ends without [DONE]"
        else:
            events = [json.loads(line) for line in data.decode(errors="replace").split("\n")[:-1] if line]
        texts, ends = {}, []
        for event in events:
            assert "error" not in event or event["error"] is None, event
            pieces, end = self.api.event(event)
            for i, text in pieces:
                texts[i] = texts.get(i, "") + text
            ends += end
        return Answer(texts=texts, ends=sorted(ends, key=repr))


# ---- requests -------------------------------------------------------------------------------------------------------

def chat(text, **more):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more}, CHAT


def shapes(i, text, draw, rng):
    """Request number i in every shape that there is. draw: how its tokens are chosen."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    inputs = {"inputs": text, "parameters": {"do_sample": draw["temperature"] > 0, "seed": i, "max_new_tokens": 40, "details": True,
                                             "return_full_text": True, "top_k": 20}}
    copied = "one two three four five six seven eight nine ten. " * 3
    return [
        ("chat", *chat(text, **draw)),
        ("chat, two choices", *chat(text, **draw, n=2, logprobs=True, top_logprobs=3, max_tokens=30)),
        ("chat, schema", *chat("Describe a person.", response_format=schema, max_tokens=200, seed=i, temperature=1.5)),
        ("chat, grammar", *chat(text, grammar=GRAMMAR, max_tokens=40, **draw)),
        ("chat, penalties", *chat(text, **draw, repetition_penalty=1.1, frequency_penalty=0.3, stop=["!", "。"], max_tokens=60)),
        ("chat, tools", *chat(text, **draw, tools=TOOLS, max_tokens=40)),
        ("chat, turns", "/v1/chat/completions", {**draw, "messages": [
            {"role": "user", "content": text}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And then?"}]},
         CHAT),
        ("chat, beams", *chat(text, num_beams=3, n=2, max_tokens=12)),
        ("completion", "/v1/completions", {"prompt": text, **draw, "max_tokens": 50, "logprobs": 2}, COMPLETION),
        ("completion, many", "/v1/completions", {"prompt": [text, "Once upon"], "n": 2, **draw, "max_tokens": 24, "echo": True,
                                                "logprobs": 1}, COMPLETION),
        ("completion, copied", "/v1/completions", {"prompt": copied + rng.choice(["one", "two"]), **draw, "max_tokens": 60,
                                                   "ignore_eos": True}, COMPLETION),
        ("response", "/v1/responses", {"input": text, **{k: v for k, v in draw.items() if k != "seed"}, "temperature": 0,
                                       "max_output_tokens": 50}, RESPONSES),
        ("tgi", "/generate", inputs, TGI),
        ("llm-serving", "/models/any/generate", inputs, SERVING),
        ("embeddings", "/v1/embeddings", {"input": [text, "Once upon a time."], "encoding_format": rng.choice(["float", "base64"])},
         EMBEDDINGS),
    ]


def questions(n):
    rng = random.Random(4)
    for i in range(n):
        k, kind = i // 4, i % 4
        if kind == 0:
            text = f"Tell me a story about a {ANIMALS[k % 8]} named {NAMES[(k + k // 8) % 8]}."
        elif kind == 1:
            text = f"What is the capital of {COUNTRIES[k % 8]}?"
        elif kind == 2:
            text = f"What is {rng.randrange(40)} + {rng.randrange(40)}?"
        else:
            text = "讲一个关于小熊的故事。" if i % 8 == 3 else f"Count from {k} to {k + 6}."
        yield i, text, {"temperature": 0} if i % 3 else {"temperature": 1.1, "seed": i, "top_p": 0.95}


def all_asks(n):
    """n requests, each shape in turn, each whole and as a stream."""
    rng, asks = random.Random(1), []
    for i, text, draw in questions(n):
        choices = shapes(i, text, draw, rng)
        name, path, body, api = choices[i % len(choices)]
        for stream in (False, True) if api is not EMBEDDINGS else (False,):
            at = {"/generate": "/generate_stream", "/models/any/generate": "/models/any/generate_stream"}.get(path, path) if stream else path
            asks.append(Ask(name + (" (stream)" if stream else ""), at, {**body, "stream": stream}, api))
    return asks


STEP_QUESTIONS = [f"What is the capital of {country}?" for country in COUNTRIES] + ["讲一个关于小熊的故事。"]
