"""Where a chat's prompt comes from: each place in which checkpoints keep templates, the built-in formats, and the same prompts
from a converted model. Expected prompts are written out; a trusted text with special tokens makes ids of them."""
import json
import os
import shutil
import subprocess

import pytest
import requests
from test_byte_level import BYTES
from test_cli import BIN, FIXTURES, PATIENCE, tutti
from widened import widen

DEMO = os.path.join(os.path.dirname(FIXTURES), os.pardir, "models", "demo")
HI = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "a", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "call00000", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
HISTORY = HI + [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call00000", "content": "7"}]


class Served:
    def __init__(self, path, *args):
        self.process = subprocess.Popen([BIN, "serve", str(path), "--port", "0", "--type", "f32", "--threads", "1", *args],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def __enter__(self):
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()
        assert self.url, self.process.stderr.read()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)

    def ids(self, messages, **more):
        reply = requests.post(self.url + "/tokenize", json={"messages": messages, **more}, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        return reply.json()["tokens"]

    def error(self, messages, **more):
        reply = requests.post(self.url + "/tokenize", json={"messages": messages, **more}, timeout=PATIENCE)
        assert reply.status_code == 400, reply.text
        return reply.json()["error"]

    def ids_of_text(self, text):
        body = {"prompt": text, "add_special_tokens": False, "parse_special": True}
        return requests.post(self.url + "/tokenize", json=body, timeout=PATIENCE).json()["tokens"]


def folder_of(tmp_path, model="qwen2-tiny", files=("qwen2.json",)):
    folder = tmp_path / "model"
    folder.mkdir()
    widen(os.path.join(FIXTURES, model), folder)
    for name in files:
        own = os.path.basename(name) if "/" in name else "tokenizer.json"
        shutil.copyfile(os.path.join(BYTES, name), folder / own)
    return folder


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def template(word, tools=False):
    shown = "{% for t in tools %}{{ t.function.name }} {% endfor %}" if tools else ""
    return "<|im_start|>" + word + " " + shown + "{{ messages[0].content }}<|im_end|>"


def config(value, **more):
    return {"chat_template": value, **more}


PLAIN, WITH_TOOLS = "<|im_start|>right Hello<|im_end|>", "<|im_start|>tools get_weather Hello<|im_end|>"
RIGHT, TOOL_USE = template("right"), template("tools", True)
NAMED = [{"name": "default", "template": RIGHT}, {"name": "tool_use", "template": TOOL_USE}, {"name": "rag", "template": template("rag")}]

# files of the folder; the prompt with tools, None: they are refused
SOURCES = {
    "tokenizer_config": ({"tokenizer_config.json": config(RIGHT)}, None),
    "its list": ({"tokenizer_config.json": config(NAMED)}, WITH_TOOLS),
    "its object": ({"tokenizer_config.json": config({t["name"]: t["template"] for t in NAMED})}, WITH_TOOLS),
    "jinja": ({"chat_template.jinja": RIGHT, "tokenizer_config.json": config(template("wrong", True)),
               "chat_template.json": config(template("wrong"))}, None),
    "jinja and more": ({"chat_template.jinja": RIGHT, "additional_chat_templates/tool_use.jinja": TOOL_USE,
                        "additional_chat_templates/notes.txt": "{{", "tokenizer_config.json": config(template("wrong"))}, WITH_TOOLS),
    "chat_template.json": ({"chat_template.json": config(RIGHT)}, None),
    "config before json": ({"tokenizer_config.json": config(RIGHT), "chat_template.json": config(template("wrong", True))}, None),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_checkpoints_template_makes_the_prompt(name, tmp_path):
    files, with_tools = SOURCES[name]
    folder, out = folder_of(tmp_path), tmp_path / "model.gguf"
    for file, content in files.items():
        put(folder, file, content)
    tutti("convert", folder, out, "--type", "f32")
    for path in folder, out:
        with Served(path) as server:
            assert server.ids(HI) == server.ids_of_text(PLAIN)
            if with_tools:
                assert server.ids(HI, tools=TOOLS) == server.ids_of_text(with_tools)
            else:
                assert server.error(HI, tools=TOOLS)["param"] == "tools"


def test_a_named_template_can_be_chosen(tmp_path):
    folder, out = folder_of(tmp_path), tmp_path / "model.gguf"
    put(folder, "tokenizer_config.json", config(NAMED))
    tutti("convert", folder, out, "--type", "f32")
    for path in folder, out:
        with Served(path, "--chat-format", "template:rag") as server:
            assert server.ids(HI) == server.ids_of_text("<|im_start|>rag Hello<|im_end|>")
    wrong = tutti("serve", folder, "--port", "0", "--chat-format", "template:zork", check=2)
    assert 'no chat template is named "zork", only default, tool_use, rag' in wrong.stderr


def test_special_tokens_are_the_same_variables(tmp_path):
    """bos_token of the configuration is another than the tokenizer's, unk_token is null."""
    folder, out = folder_of(tmp_path), tmp_path / "model.gguf"
    put(folder, "tokenizer_config.json", config(
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}|{{ messages[0].content }}",
        bos_token={"content": "<|im_start|>"}, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None,
        added_tokens_decoder={}))
    tutti("convert", folder, out, "--type", "f32")
    other = tmp_path / "other.gguf"  # without tutti's own key, as other programs write it
    data = out.read_bytes()
    assert data.count(b"tutti.chat_tokens") == 1
    other.write_bytes(data.replace(b"tutti.chat_tokens", b"other.chat_tokens"))
    for path in folder, out, other:
        with Served(path) as server:
            assert server.ids(HI) == server.ids_of_text("<|im_start|>|<|im_end|>|<|endoftext|>|False|Hello"), path
            assert requests.get(server.url + "/tokenizer_info", timeout=PATIENCE).json()["pad_token"] == "<|endoftext|>"


def test_a_llama2_template_comes_before_the_built_in_format(tmp_path):
    folder, out = folder_of(tmp_path, "mistral-tiny", ["llama2.json"]), tmp_path / "model.gguf"
    put(folder, "tokenizer_config.json", config(
        "{{ bos_token }}{% if false %}<<SYS>>{% endif %}{% for m in messages %}[INST] {{ m.role }}: {{ m.content }} [/INST]{% endfor %}",
        bos_token="<s>", eos_token="</s>", added_tokens_decoder={}))
    tutti("convert", folder, out, "--type", "f32")
    for path in folder, out:
        with Served(path) as server:
            assert server.ids(HI + HI) == server.ids_of_text("<s>[INST] user: Hello [/INST][INST] user: Hello [/INST]")


def test_a_glm4_template_comes_before_the_built_in_format(tmp_path):
    folder, out = folder_of(tmp_path, "glm-4-9b-tiny", ["glm4/tokenizer.model", "glm4/tokenizer_config.json"]), tmp_path / "model.gguf"
    put(folder, "chat_template.jinja", "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\nown {{ m.content }}{% endfor %}")
    tutti("convert", folder, out, "--type", "f32")
    for path in folder, out:
        with Served(path) as server:
            assert server.ids(HI) == server.ids_of_text("[gMASK]<sop><|user|>\nown Hello")


def test_a_baichuan_chats_by_the_ids_of_its_generation_config(tmp_path):
    folder, out = tmp_path / "model", tmp_path / "model.gguf"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "baichuan2-tiny"), folder)
    shutil.copytree(os.path.join(FIXTURES, "text", "baichuan2"), folder, dirs_exist_ok=True)
    assert "has no chat format" in tutti("generate", folder, "--chat", "-p", "Hello", "-n", "1", check=1).stderr
    put(folder, "generation_config.json", {"user_token_id": 195, "assistant_token_id": 196, "eos_token_id": 2})
    tutti("convert", folder, out, "--type", "f32")
    for path in folder, out:
        with Served(path) as server:
            hello = server.ids_of_text("Hello")
            assert server.ids(HI) == [195, *hello, 196]
            assert server.ids([{"role": "system", "content": "Hello"}, *HI]) == [*hello, 195, *hello, 196]
            assert "tools" in server.error(HI, tools=TOOLS)["message"]


def test_a_built_in_format_is_the_same_from_a_converted_model(tmp_path):
    out = tmp_path / "model.gguf"
    tutti("convert", DEMO, out, "--type", "f32")
    chats = [HI, HISTORY, [{"role": "system", "content": " a\n"}] + HI + [{"role": "assistant", "content": "\nb "}] + HI]
    found = []
    for path in DEMO, out:
        with Served(path) as server:
            found.append([server.ids(chat) for chat in chats] + [server.ids(HI, tools=TOOLS)])
    assert found[0] == found[1]
    again = tmp_path / "again.gguf"
    tutti("convert", out, again, "--type", "f32")
    with Served(again) as server:
        assert [server.ids(chat) for chat in chats] == found[0][:3]


def test_a_chatglm3_template_without_tools_leaves_them_to_the_built_in_format(tmp_path):
    """GGUF spells all tokens differently: "sop" is respelled there, which the template does not know."""
    folder, out = tmp_path / "model", tmp_path / "model.gguf"
    shutil.copytree(DEMO, folder)
    put(folder, "chat_template.jinja", "[gMASK]sop{% for m in messages %}<|{{ m.role }}|>\n own {{ m.content }}{% endfor %}<|assistant|>")
    tutti("convert", folder, out, "--type", "f32")
    found = []
    for path, *flags in (DEMO, "--chat-format", "chatglm3"), (folder,), (out,):
        with Served(path, *flags) as server:
            found.append((server.ids(HI), server.ids(HI, tools=TOOLS), server.ids(HISTORY)))
    assert found[1] == found[2] and found[0][1:] == found[1][1:] and found[0][0] != found[1][0]


# template, content: null with calls, absent with calls, null without, absent without
EMPTY = {
    "tells none": ("{% for m in messages %}{% if m.content is none %}[none]{% elif m.content is not defined %}[absent]{% else %}"
                   "[{{ m.content }}]{% endif %}{% endfor %}", "[none]", "[absent]", "[none]", "[absent]"),
    "prints None": ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[]", "[]", "[]", "[]"),
    "adds to it": ("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", "[]", "[]", "[]", "[]"),
    "needs none": ("{% for m in messages %}{% if m.content is none %}[call]{% else %}{{ '[' + m.content + ']' }}{% endif %}{% endfor %}",
                   "[call]", "[call]", "[call]", "[call]"),
    "adds arguments where none": ("{% for m in messages %}{% if m.tool_calls and m.content is none %}{{ '[' + m.tool_calls[0].function.arguments + "
                                  "']' }}{% else %}{{ '[' + m.content + ']' }}{% endif %}{% endfor %}", "[{}]", "[{}]", "[]", "[]"),
    "needs none with calls": ("{% for m in messages %}{% if m.tool_calls and m.content is none %}[call]{% else %}"
                              "{{ '[' + m.content + ']' }}{% endif %}{% endfor %}", "[call]", "[call]", "[]", "[]"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_null_and_absent_content(name, tmp_path):
    text, *wanted = EMPTY[name]
    folder = folder_of(tmp_path)
    put(folder, "chat_template.jinja", text)
    with Served(folder) as server:
        for i, want in enumerate(wanted):
            message = {"role": "assistant", "content": None}
            if i % 2:
                del message["content"]
            if i < 2:
                message["tool_calls"] = [CALL]
            assert server.ids(HI + [message] + HI) == server.ids_of_text("[Hello]" + want + "[Hello]"), i


CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim if m.role == 'system' else m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% if documents is defined and documents %}{{ documents[0].text }}{% endif %}")


def test_the_last_message_is_continued_as_transformers_does(tmp_path):
    folder = folder_of(tmp_path)
    put(folder, "chat_template.jinja", CHATML)
    begun = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    with Served(folder) as server:
        for text, kept in ("Yes, ", "Yes, "), (" a aa ", " a aa "), ("\n x", "\n x"):
            chat = HI + [{"role": "assistant", "content": text}]
            assert server.ids(chat, continue_final_message=True) == server.ids_of_text(begun + kept)
        chat = HI + [{"role": "system", "content": " Be "}]
        assert server.ids(chat, continue_final_message=True) == server.ids_of_text(begun.replace("assistant", "system") + "Be")
        assert server.ids(HI, chat_template_kwargs={"add_generation_prompt": False}) == server.ids_of_text("<|im_start|>user\nHello<|im_end|>\n")
        assert server.ids(HI, documents=[{"text": "Doc"}]) == server.ids_of_text(begun + "Doc")
        for more, param in (({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
                            ({"continue_final_message": True, "messages": HI + [{"role": "assistant", "content": " "}]}, "continue_final_message")):
            assert server.error(more.pop("messages", HI), **more)["param"] == param
    put(folder, "chat_template.jinja", "{{ messages[-1].content | replace('o', '0') }}")
    with Served(folder) as server:
        assert "as it is" in server.error(HI, continue_final_message=True)["message"]
        assert server.error(HI, documents=[{"text": "a"}])["param"] == "documents"
