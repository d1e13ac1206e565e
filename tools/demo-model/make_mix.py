#!/usr/bin/env python3
"""Writes the chats that the demo model is trained on further: those of make_corpus.py, short and up to the whole context, with
tools (make_tools.py) and with thinking. JSON lines as render.py describes them, in the order of training. The same seed gives the same file.

  make_mix.py OUT.jsonl [--chats 60000] [--seed 9] [--tokenizer models/demo/tokenizer.model]
"""
import argparse
import json
import os
import random

import sentencepiece as spm

import make_corpus
import make_tools
from render import Renderer

CONTEXT = 2048
# The kinds of chats, and how many of a thousand are of each. Chats with tools are much longer than others.
KINDS = {"short": 240, "sums": 190, "names": 30, "long": 8, "tools": 372, "thinking": 160}
NAMES = make_corpus.NAMES + ["Tina", "Omar", "Bruno", "Kate", "Peter", "Maria", "Lena", "Ivan", "David", "Laura", "Nina", "Karl"]


def spoken_sum(r):
    """The questions that are usual where there are tools, for a model without them."""
    op = r.choice("+++-*")
    a, b = r.randint(0, 12), r.randint(0, 12)
    if op == "-":
        a, b = max(a, b), min(a, b)
    question, before, after = make_tools.op_question(r, op, a, b)
    return question.replace(" Use the tool.", "").replace("Use the tool to add", "Add"), f"{before}{make_tools.APPLY[op](a, b)}{after}"


def plain_turn(r, kinds, ops):
    """A turn of make_corpus.py that the tools at hand do not answer."""
    while True:
        x = r.random()
        if x < .12:
            question, answer = make_corpus.story_chat(r)
        elif x < .40:
            question, answer = make_corpus.facts(r)
        elif x < .62:
            question, answer = make_corpus.sums(r)
        elif x < .68:
            question, answer = spoken_sum(r)
        elif x < .84:
            question, answer = make_corpus.counting(r)
        else:
            questions, answer = make_corpus.manners(r)
            question = r.choice(questions)
        if "capital" in kinds and ("capital of" in question or "as its capital" in question or "首都" in question):
            continue
        if any(f" {op} " in answer or make_tools.OPS[op][2] in answer for op in ops):
            continue
        return question, answer


def any_turn(r):
    return spoken_sum(r) if r.random() < .04 else make_corpus.turn(r)


def name_turns(r, name, told):
    if told:
        return r.choice([f"My name is {name}.", f"I am {name}.", f"Hello, my name is {name}."]), f"Nice to meet you, {name}!"
    return r.choice(["What is my name?", "Do you know my name?", "Who am I?"]), f"Your name is {name}." if name else "I do not know your name yet."


def short_chat(r):
    messages = [{"role": "system", "content": r.choice(make_corpus.SYSTEMS)}] if r.random() < .1 else []
    n = r.choices([1, 2, 3, 4], [60, 22, 12, 6])[0]
    name, asks = None, r.random() < .03
    for i in range(n):
        if asks and (i == 0 and n > 1 or i == n - 1):
            told = i == 0 and n > 1
            name = r.choice(NAMES) if told else name
            question, answer = name_turns(r, name, told)
        elif len(messages) > 1 and r.random() < .12:
            question, answer = r.choice(["Another one, please.", "Tell me another story.", "One more story."]), make_corpus.story_en(r)[0]
        else:
            question, answer = any_turn(r)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def sum_chat(r):
    messages = []
    for _ in range(r.choice([1, 2])):
        question, answer = make_corpus.sums(r) if r.random() < .75 else spoken_sum(r)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def name_chat(r):
    name, messages = r.choice(NAMES), []
    turns = [name_turns(r, name, True), *(plain_turn(r, set(), "") for _ in range(r.choice([0, 0, 1, 2]))), name_turns(r, name, False)]
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def long_chat(r, length_of):
    """Many turns, up to the whole context. A name that was told is asked for much later."""
    limit = r.randint(500, CONTEXT)
    chat = {"messages": [{"role": "system", "content": r.choice(make_corpus.SYSTEMS)}] if r.random() < .2 else []}
    name = None
    while True:
        x = r.random()
        if x < .07 and not name:
            name = r.choice(NAMES)
            question, answer = name_turns(r, name, True)
        elif x < .07:
            question, answer = name_turns(r, name, False)
        else:
            question, answer = any_turn(r)
        chat["messages"] += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if length_of(chat) > limit:
            del chat["messages"][-2:]
            return chat if chat["messages"] and chat["messages"][-1]["role"] == "assistant" else None


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("out")
    ap.add_argument("--chats", type=int, default=60000)
    ap.add_argument("--seed", type=int, default=9)
    ap.add_argument("--tokenizer", default=os.path.join(os.path.dirname(__file__), "..", "..", "models", "demo", "tokenizer.model"))
    a = ap.parse_args()
    r = random.Random(a.seed)
    renderer = Renderer(spm.SentencePieceProcessor(model_file=a.tokenizer))

    def length_of(chat):
        return len(renderer.training(chat)[0])

    counts = dict.fromkeys(KINDS, 0)
    with open(a.out, "w", encoding="utf-8") as f:
        while sum(counts.values()) < a.chats:
            progress = sum(counts.values()) / a.chats
            kind = r.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == "short":
                chat = short_chat(r)
            elif kind == "sums":
                chat = sum_chat(r)
            elif kind == "names":
                chat = name_chat(r)
            elif kind == "long":
                chat = long_chat(r, length_of)
            elif kind == "tools":
                chat = make_tools.tool_chat(r, plain_turn, length_of, CONTEXT, r.random() < .5 - progress)
            else:
                chat = make_tools.think_chat(r, plain_turn, r.choice(make_corpus.SYSTEMS) if r.random() < .15 else None)
            if not chat or length_of(chat) > CONTEXT:
                continue
            counts[kind] += 1
            f.write(json.dumps(chat, ensure_ascii=False) + "\n")
    print(counts)


if __name__ == "__main__":
    main()
