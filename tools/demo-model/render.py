"""The ids of a chat, as src/model/chat renders models/demo: ChatGLM3's format, whose parts are tokenized one by one, and a mark
that opens the thinking.

A chat is {"messages": [...]} with OpenAI's messages, and may have "tools" (OpenAI's list) and "thinks": the answers that have
"reasoning_content" are written with it.
"""
import json

SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
TOOLS = "Answer the following questions as best as you can. You have access to the following tools:"
OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "observation"}


class Renderer:
    def __init__(self, sp):
        self.sp = sp
        self.sid = {t: sp.vocab_size() + i for i, t in enumerate(SPECIAL)}

    def mark(self, role):
        return self.sid[f"<|{ROLES[role]}|>"]

    def call(self, call):
        arguments = json.loads(call["function"]["arguments"])
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return f"```python\ntool_call({text})\n```"

    def opening(self, chat):
        """The prefix, and the system message with the tools. Returns ids and the messages that are left."""
        ids, messages = [self.sid["[gMASK]"], self.sid["sop"]], chat["messages"]
        if chat.get("tools"):
            has_system = messages[0]["role"] == "system"
            functions = [tool["function"] for tool in chat["tools"]]
            text = (messages[0]["content"] if has_system else TOOLS) + "\n" + json.dumps(functions, indent=4, ensure_ascii=False)
            ids += [self.mark("system")] + self.sp.encode("\n") + self.sp.encode(text)
            messages = messages[has_system:]
        return ids, messages

    def turns(self, message):
        """The turns of one message: lists of ids after the role's mark, and how many of them the prompt gives."""
        calls, reasoning = message.get("tool_calls") or [], message.get("reasoning_content")
        if reasoning is not None:
            given = self.sp.encode("\n") + self.sp.encode(OPEN)
            if message.get("is_cut"):                # the server closes thinking that has used its budget
                given = self.sp.encode("\n") + self.sp.encode(OPEN + reasoning) + self.sp.encode(CLOSE)
                return [(given + self.inner(message["content"]), len(given))]
            text = OPEN + reasoning + CLOSE + message["content"]
            if calls:
                text += calls[0]["function"]["name"] + "\n" + self.call(calls[0])
            ids = self.sp.encode("\n") + self.sp.encode(text)
            assert ids[:len(given)] == given
            return [(ids, len(given))]
        out = []
        if message["content"] or not calls:
            out.append((self.sp.encode("\n") + self.sp.encode(message["content"]), 0))
        for call in calls:
            out.append((self.sp.encode(call["function"]["name"] + "\n") + self.sp.encode(self.call(call)), 0))
        return out

    def inner(self, text):
        """Text that goes on, without the blank that SentencePiece puts before a text."""
        return self.sp.encode("\n" + text)[2:]

    def training(self, chat):
        """The ids of a whole chat, and which of them the model is to write. An answer's line break is its own first token, and
        the mark of the next role its last one."""
        ids, messages = self.opening(chat)
        wanted = [False] * len(ids)
        for i, message in enumerate(messages):
            is_answer = message["role"] == "assistant"
            for body, n_given in self.turns(message):
                follows = i > 0 and messages[i - 1]["role"] == "assistant" and message["role"] != "assistant"
                ids += [self.mark(message["role"])] + body
                wanted += [follows] + [is_answer and k >= n_given for k in range(len(body))]
        return ids + [self.sp.eos_id()], wanted + [True]

    def prompt(self, chat):
        """The ids before the answer to the last message."""
        ids, messages = self.opening(chat)
        for message in messages:
            for body, _ in self.turns(dict(message, reasoning_content=None)):
                ids += [self.mark(message["role"])] + body
        ids.append(self.mark("assistant"))
        return ids + self.sp.encode("\n") + self.sp.encode(OPEN) if chat.get("thinks") else ids
