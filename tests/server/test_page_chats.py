"""Conversations in the chat page: branches, settings, search, files, export and import, deleting and undoing."""
import json
import os

import pytest
from chat_page import Keys, Page, Script, chromium, mock, page, slow  # noqa: F401  # pylint: disable=unused-import
from conftest import DEMO, ROOT
from test_adapters import write_adapter

ENCODER = os.path.join(ROOT, "tests", "fixtures", "encoder", "bert-tiny")

WORDS = "#messages .user .words"


@pytest.fixture
def script(slow):
    return Script(slow)


def edit(one, text, nth=1):
    one.click(f"#messages > li:nth-child({nth}) .edit")
    area = one.wait(lambda: one.one("#messages .editing textarea"))
    area.clear()
    area.send_keys(text, Keys.ENTER)


# ---- branches ----

def test_editing_and_answering_again_keep_the_earlier_branches(slow):
    for text in ("a1", "a2"):
        slow.ask(text)
        slow.answer()
    edit(slow, "b1")
    slow.wait(lambda: slow.texts("#messages .body") == ["b1", "b1"])
    slow.answer()
    assert "2/2" in slow.text("#messages .user .versions")
    # An answer in the middle is given again: a third branch.
    slow.click("#messages .user .earlier")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "a2", "a2"])
    slow.click("#messages > li:nth-child(2) .again")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1"] and not slow.all("#messages .busy"))
    slow.ask("c2")
    slow.answer()
    slow.click("#messages > li:nth-child(2) .earlier")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "a2", "a2"])
    # The focus stays where it was, and the branch that is shown outlives a reload.
    assert slow.driver.switch_to.active_element.get_attribute("class").endswith("later")
    slow.driver.refresh()
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "a2", "a2"])
    slow.click("#messages > li:nth-child(2) .later")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "c2", "c2"])
    assert len(slow.kept()[1]) == 9


def test_conversations_of_the_first_database_become_trees(slow):
    """Version 1 kept the variants of an answer in one record."""
    slow.driver.get(slow.driver.current_url + "icon.svg")
    slow.driver.execute_async_script("""
        const done = arguments[0], gone = indexedDB.deleteDatabase("tutti");
        gone.onsuccess = () => {
            const request = indexedDB.open("tutti", 1);
            request.onupgradeneeded = () => {
                request.result.createObjectStore("chats", { keyPath: "id" });
                const messages = request.result.createObjectStore("messages", { keyPath: "id" });
                messages.createIndex("place", ["chat", "at"], { unique: true });
            };
            request.onsuccess = () => {
                const stores = request.result.transaction(["chats", "messages"], "readwrite"), messages = stores.objectStore("messages");
                stores.objectStore("chats").put({ id: "x", title: "Old", named: true, changed: 1 });
                messages.put({ id: "q", chat: "x", at: 0, role: "user", rev: 1, text: "Who?" });
                messages.put({ id: "a", chat: "x", at: 1, role: "assistant", rev: 1, shown: 0,
                               versions: [{ text: "Mia.", stats: { tokens: 3 } }, { text: "Max.", stopped: true }] });
                messages.put({ id: "r", chat: "x", at: 2, role: "user", rev: 1, text: "Why?" });
                messages.put({ id: "b", chat: "x", at: 3, role: "assistant", rev: 1, shown: 0, versions: [{ text: "Be" }],
                               busy: { page: "gone", version: 0 } });
                stores.oncomplete = () => { request.result.close(); done(); };
            };
        };""")
    slow.driver.get(slow.driver.current_url.replace("icon.svg", ""))
    slow.wait(lambda: slow.texts("#chat-list .open") == ["Old"])
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.texts("#messages .body") == ["Who?", "Mia.", "Why?", "Be"])
    assert "interrupted" in slow.texts("#messages .stats")[-1]
    slow.click("#messages > li:nth-child(2) .later")
    slow.wait(lambda: slow.texts("#messages .body") == ["Who?", "Max."])
    assert "stopped" in slow.texts("#messages .stats")[-1]


# ---- settings, models ----

def test_each_conversation_has_its_own_settings(script):
    one = script.page
    one.set(system="Be brief.", temperature=0.5, min_p=0.1)
    one.one("#open-settings").click()
    one.one("#settings-form [name=effort] option[value=low]").click()
    one.click("#settings-form .primary")
    script.tell("First.")
    sent = script.bodies()[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["min_p"], sent["reasoning_effort"], sent["model"]) == (0.5, 0.1, "low", "mock")
    one.click("#new-chat")
    one.wait(lambda: not one.all("#messages > li"))
    script.tell("Second.")
    assert script.bodies()[-1] == {"messages": [{"role": "user", "content": "?"}], "stream": True,
                                   "stream_options": {"include_usage": True}, "model": "mock"}
    # Those of the first are still there; taken for new conversations, they are the third's.
    one.click("#chat-list li:nth-child(2) button")
    one.wait(lambda: one.texts("#messages .assistant .body") == ["First."])
    one.click("#open-settings")
    assert one.one("#settings-form [name=system]").get_attribute("value") == "Be brief."
    one.click("#settings-form [name=all]")
    one.click("#settings-form .primary")
    one.click("#new-chat")
    one.wait(lambda: not one.all("#messages > li"))
    script.tell("Third.")
    assert script.bodies()[-1]["temperature"] == 0.5


def test_models_that_cannot_chat_are_no_choice(chromium, start):
    """Neither before they are loaded nor after."""
    server = start(f"a-encoder={ENCODER}", f"b-chat={DEMO}", f"c-chat={DEMO}", "--kv-memory", "32M")
    assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["a-encoder", "b-chat", "c-chat"]
    one = Page(chromium, server.url)
    assert one.texts("#model option") == ["b-chat", "c-chat"]
    assert server.post("/v1/embeddings", {"model": "a-encoder", "input": "x"}).status_code == 200
    one.driver.refresh()
    one.wait(lambda: one.texts("#model option") == ["b-chat", "c-chat"])
    script = Script(one)
    script.tell("Yes.")
    assert script.bodies()[-1]["model"] == "b-chat"


def test_the_context_of_a_model_is_known_once_it_is_loaded(chromium, start):
    server = start(f"a={DEMO}", f"b={DEMO}", "--kv-memory", "256K")
    told = server.get("/v1/models/a").json()["max_model_len"]
    one = Page(chromium, server.url)
    one.ask("What is the capital of France?")
    assert one.answer() == "The capital of France is Paris."
    one.wait(lambda: server.get("/v1/models/a").json()["max_model_len"] < told)
    real = server.get("/v1/models/a").json()["max_model_len"]
    one.wait(lambda: one.text("#context").endswith(f" of {real:,} tokens"))


def test_an_adapter_can_be_chosen(chromium, start, tmp_path):
    server = start("--name", "demo", "--lora", "tales=" + write_adapter(tmp_path / "tales", 1))
    one = Page(chromium, server.url)
    assert one.texts("#model option") == ["demo", "demo:tales"]
    script = Script(one)
    one.click("#model option:last-child")
    script.tell("Yes.")
    assert script.bodies()[-1]["model"] == "demo:tales"
    one.driver.refresh()
    one.wait(lambda: one.all("#chat-list li"))
    one.click("#chat-list li button")
    one.wait(lambda: one.one("#model").get_attribute("value") == "demo:tales")


# ---- deleting ----

def test_deletions_are_undone_the_last_one_first(slow):
    slow.ask("a1")
    slow.answer()
    slow.ask("a2")
    slow.answer()
    slow.click("#messages > li:nth-child(3) .remove")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1"])
    assert slow.text("#undo-label") == "Deleted 2 messages."
    slow.driver.execute_script("document.querySelector('#chat-list .remove').click()")
    slow.wait(lambda: slow.kept() == [[], []] and slow.text("#undo-label") == "Deleted “a1”.")
    assert slow.driver.switch_to.active_element.get_attribute("id") == "undo"
    slow.driver.switch_to.active_element.send_keys(Keys.ENTER)
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1"] and slow.texts("#chat-list .open") == ["a1"])
    slow.click("#undo")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "a2", "a2"])
    assert not slow.one("#undo-box").is_displayed()
    slow.wait(lambda: len(slow.kept()[1]) == 4)
    slow.driver.refresh()
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "a2", "a2"])


# ---- search ----

def test_search_finds_messages_of_every_branch(script):
    one = script.page
    script.tell("The answer is **Forty-two**.", question="first question")
    edit(one, "other question")
    one.wait(lambda: len(script.bodies()) == 2)
    script.say("No.", reasoning="hidden thought")
    script.end()
    one.click("#new-chat")
    one.wait(lambda: not one.all("#messages > li"))
    script.tell("Nothing here.", question="second chat")
    one.one("#search").send_keys("forty-TWO")
    one.wait(lambda: one.texts("#chat-list mark") == ["Forty-two"])
    one.one("#search").send_keys(Keys.ARROW_DOWN)
    one.driver.switch_to.active_element.send_keys(Keys.ENTER)
    one.wait(lambda: one.texts("#messages .body") == ["first question", "The answer is Forty-two."])
    one.wait(lambda: "assistant" in one.driver.switch_to.active_element.get_attribute("class"))
    for text, n in (("hidden thought", 1), ("question", 3), ("<b>", 0)):
        one.one("#search").clear()
        one.one("#search").send_keys(text)
        one.wait(lambda n=n: one.count("#chat-list mark") == n)
    one.wait(lambda: one.text("#found") == "Nothing found")
    one.one("#search").send_keys(Keys.ESCAPE)
    one.wait(lambda: len(one.texts("#chat-list .open")) == 2)


# ---- files ----

def test_text_files_are_attached(script, tmp_path):
    one = script.page
    (tmp_path / "notes.md").write_text("# Notes\n```\ncode\n```\n")
    (tmp_path / "umlaut.txt").write_text("äöü\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x00\x00")
    (tmp_path / "large.txt").write_bytes(b"a" * (1 << 20) + b"b")
    for name in ("notes.md", "umlaut.txt", "image.png", "large.txt"):
        one.one("#file").send_keys(str(tmp_path / name))
        one.wait(lambda name=name: name in "".join(one.texts("#attached li") + one.texts("#file-error")))
    assert one.texts("#file-error") == ["large.txt has 1.0 MB, at most 1.0 MB can be attached."]
    assert [text.split(" ")[0] for text in one.texts("#attached li")] == ["notes.md", "umlaut.txt"]
    one.click("#attached li:nth-child(2) button")
    script.tell("Read.", question="What is in it?")
    content = script.bodies()[-1]["messages"][0]["content"]
    assert content == "notes.md:\n````\n# Notes\n```\ncode\n```\n````\n\nWhat is in it?"
    assert not one.texts("#attached li") and one.texts("#messages .file summary")[0].startswith("notes.md")
    one.click("#messages .file summary")
    one.wait(lambda: one.text("#messages .file pre").startswith("# Notes"))
    # An edited question keeps its files.
    edit(one, "And now?")
    one.wait(lambda: len(script.bodies()) == 2)
    assert script.bodies()[-1]["messages"][0]["content"].endswith("````\n\nAnd now?")
    script.end()


# ---- unsent text ----

def test_an_unsent_question_outlives_a_reload(slow):
    slow.ask("a1")
    slow.answer()
    slow.one("#question").send_keys("half a quest")
    slow.click("#new-chat")
    slow.wait(lambda: slow.one("#question").get_attribute("value") == "")
    slow.one("#question").send_keys("new")
    slow.driver.refresh()
    slow.wait(lambda: slow.all("#chat-list li"))
    assert slow.one("#question").get_attribute("value") == "new"
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.one("#question").get_attribute("value") == "half a quest")


# ---- export and import ----

@pytest.fixture
def downloads(chromium, tmp_path):
    folder = tmp_path / "downloads"
    folder.mkdir()
    chromium.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    return folder


def saved(one, folder, button, name):
    one.click("#open-exchange")
    one.click(button)
    one.wait(lambda: (folder / name).exists() and (folder / name).stat().st_size > 0)
    one.click("#close-exchange")
    return (folder / name).read_text(encoding="utf-8")


def put(one, path):
    one.click("#open-exchange")
    one.one("#import-file").send_keys(str(path))


def test_conversations_are_exported_and_imported(script, downloads, tmp_path):
    one = script.page
    one.set(system="Be brief.", temperature=0)
    script.tell("Answer <!-- tutti: user -->\n<!-- tutti: user -->\n```\ncode\n```", "A thought.", "First *question*",
                completion_tokens=4, total_tokens=9)
    edit(one, "Other question")
    one.wait(lambda: len(script.bodies()) == 2)
    script.say("No.")
    script.end()
    one.click("#messages .user .earlier")
    one.wait(lambda: one.texts(WORDS) == ["First *question*"])
    before = one.texts("#messages > li")
    everything = saved(one, downloads, "#save-all", "tutti-conversations.json")
    assert len(json.loads(everything)["conversations"][0]["messages"]) == 4
    as_json = saved(one, downloads, "#save-json", "Other question.json")
    markdown = saved(one, downloads, "#save-markdown", "Other question.md")
    assert markdown.startswith("# Other question\n") and "Be brief." in markdown and markdown.count("Other") == 1
    one.driver.execute_script("document.querySelector('#chat-list .remove').click()")
    one.wait(lambda: one.kept() == [[], []])
    # Both come back as they were.
    for name in ("Other question.json", "Other question.md"):
        one.click("#new-chat")
        one.wait(lambda: not one.all("#messages > li"))
        put(one, downloads / name)
        one.wait(lambda: one.texts("#messages > li .body") and one.texts(WORDS) == ["First *question*"])
        one.wait(lambda: not one.one("#exchange").is_displayed())
        assert [t.split("\n")[:4] for t in one.texts("#messages > li")] == [t.split("\n")[:4] for t in before] or name.endswith(".md")
        script.ask("More")
        sent = script.bodies()[-1]["messages"]
        assert sent[0] == {"role": "system", "content": "Be brief."} and sent[2]["reasoning_content"] == "A thought."
        assert sent[2]["content"] == "Answer <!-- tutti: user -->\n<!-- tutti: user -->\n```\ncode\n```"
        script.end()
    assert "temperature" not in script.bodies()[-1] and json.loads(as_json)["version"] == 1
    assert len(one.kept()[0]) == 2
    # The list of messages of an API request is read, too.
    (tmp_path / "api.json").write_text(json.dumps({"model": "x", "messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"}], "temperature": 0.5, "reasoning_effort": "low"}))
    put(one, tmp_path / "api.json")
    one.wait(lambda: one.texts(WORDS) == ["Hi"])
    script.ask("More")
    sent = script.bodies()[-1]
    assert sent["messages"][2] == {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"}
    assert sent["temperature"] == 0.5 and sent["reasoning_effort"] == "low"
    script.end()


def conversation(**fields):
    return {"format": "tutti-conversations", "version": 1, "conversations": [{"title": "T", **fields}]}


HOSTILE = {
    "broken.json": ('{"a": ', "the JSON is broken"),
    "deep.json": ("[" * 500000, "the JSON is broken"),
    "list.json": ("[1]", "the file is a list, expected an object"),
    "other.json": ('{"format": "x"}', 'no "messages"'),
    "newer.json": (json.dumps({"format": "tutti-conversations", "version": 2}), '"version" is 2, expected 1'),
    "role.json": (json.dumps(conversation(messages=[{"id": "a", "role": "tool", "text": ""}])),
                  'conversations[0].messages[0].role is "tool", expected "user" or "assistant"'),
    "text.json": (json.dumps(conversation(messages=[{"id": "a", "role": "user", "text": {"toString": 1}}])),
                  "messages[0].text is an object, expected a string"),
    "cycle.json": (json.dumps(conversation(messages=[{"id": "a", "role": "user", "text": "", "parent": "b"},
                                                     {"id": "b", "role": "user", "text": "", "parent": "a"}])),
                   "messages[0].parent is not the id of an earlier message"),
    "stats.json": (json.dumps(conversation(messages=[{"id": "a", "role": "assistant", "text": "", "stats": {"rate": "<b>"}}])),
                   "messages[0].stats.rate is a string, expected a number"),
    "many.json": (json.dumps(conversation(messages=[0] * 20001)), "has 20001 entries, at most 20000 are read"),
    "empty.json": (json.dumps(conversation(messages=[])), "messages is empty"),
    "plain.md": ("# Some text\n", "there are no marks of messages"),
    "file.md": ("<!-- tutti: file \"a\" -->\ntext\n", "no message before"),
    "name.md": ("<!-- tutti: user -->\nq\n<!-- tutti: file {a -->\ntext\n", "the name of a file"),
}


def test_a_broken_import_says_what_is_wrong_and_changes_nothing(slow, tmp_path):
    for name, (text, told) in HOSTILE.items():
        (tmp_path / name).write_text(text)
        slow.driver.execute_script("document.getElementById('exchange').close()")
        put(slow, tmp_path / name)
        slow.wait(lambda name=name: name in slow.text("#exchange-error"))
        assert told in slow.text("#exchange-error"), slow.text("#exchange-error")
    assert slow.kept() == [[], []]


def test_a_hostile_import_runs_nothing(slow, tmp_path):
    bad = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    chain = [{"id": f"m{n}", "role": ("user", "assistant")[n % 2], "text": bad, "parent": f"m{n - 1}" if n else None,
              "error": bad, "reasoning": bad, "__proto__": {"x": 1}, "busy": {"page": "x"}} for n in range(300)]
    (tmp_path / "hostile.json").write_text(json.dumps(conversation(
        title=bad * 20, picks={"__proto__": "m0", "m0": "m1"}, options={"model": bad, "temperature": 1e308}, messages=chain)))
    put(slow, tmp_path / "hostile.json")
    slow.wait(lambda: slow.count("#messages > li") == 300)
    assert slow.driver.execute_script("return [window.hacked, ({}).x]") == [None, None]
    assert slow.count("main img:not([src='/icon.svg']), main script") == 0
    assert len(slow.one("#chat-list .open").get_attribute("textContent")) <= 200 and slow.one("#send").is_displayed()
    slow.driver.get_log("browser")
