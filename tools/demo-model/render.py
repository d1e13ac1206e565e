"""The ids of a chat, as src/model/chat renders models/demo: ChatGLM3's format, whose parts are tokenized one by one, and a mark
that opens the thinking.

A chat is {"messages": [...]} with OpenAI's messages, and may have "tools" (OpenAI's list) and "thinks" (a prompt opens the thoughts). In training, answers that have "reasoning_content" are written with it.
"""
import json

# After the pieces of tokenizer.model: ChatGLM3's own, then those of added_tokens_decoder.
SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"]
TOOLS = "Answer the following questions as best as you can. You have access to the following tools:"
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
            text = (messages[0]["content"] if has_system else TOOLS) + "\n" + json.dumps(functions, ensure_ascii=False)
            ids += [self.mark("system")] + self.sp.encode("\n") + self.sp.encode(text)
            messages = messages[has_system:]
        return ids, messages

    def opened(self):
        """What the prompt gives of an answer that is thought about."""
        return self.sp.encode("\n") + [self.sid["<think>"]] + self.sp.encode("\n")

    def closed(self):
        return self.sp.encode("\n") + [self.sid["</think>"]] + self.sp.encode("\n\n")

    def turns(self, message):
        """The turns of one message: lists of ids after the role's mark, and how many of them the model does not write."""
        calls, reasoning, out = message.get("tool_calls") or [], message.get("reasoning_content"), []
        before, n_given = [], 0
        if reasoning is not None:
            before = self.opened() + self.sp.encode(reasoning) + self.closed()
            n_given = len(before) if message.get("is_cut") else len(self.opened())   # the server closes what has used its budget
        if message["content"] or not calls:
            out.append(((before or self.sp.encode("\n")) + self.sp.encode(message["content"]), n_given))
            before, n_given = [], 0
        for call in calls:
            out.append((before + self.sp.encode(call["function"]["name"] + "\n") + self.sp.encode(self.call(call)), n_given))
            before, n_given = [], 0
        return out

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
        return ids + self.opened() if chat.get("thinks") else ids
