"""The chat page in headless Chromium, used as a person uses it."""
import json
import re

from chat_page import Keys, Mock, Page, chromium, mock, page, slow  # noqa: F401  # pylint: disable=unused-import

def test_a_question_is_answered_with_its_rate(page):
    assert page.text("#model") == "demo"
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    assert page.answer() == "The capital of France is Paris."
    stats = page.text("#messages .assistant .stats")
    assert re.search(r"^9 tokens · [1-9][\d.]* tokens/s · first after \d+\.\d\d s$", stats), stats
    page.ask("What is the capital of Japan?")
    assert "Tokyo" in page.answer()
    assert len(page.all("#messages .user")) == 2


SLOW = "slow=150 words=400"  # its answer takes a minute: nothing but its end is waited for


def test_stop_keeps_what_was_said(slow):
    slow.ask(SLOW)
    slow.wait(lambda: "w2" in slow.text("#messages .assistant .body"))
    slow.click("#stop")
    text = slow.answer()
    assert text.startswith("w0 w1 w2") and "w399" not in text
    assert "stopped" in slow.text("#messages .assistant .stats")
    assert slow.one("#send").is_displayed() and not slow.one("#stop").is_displayed()
    slow.ask("words=2")
    assert slow.answer() == "w0 w1"


def test_again_gives_another_answer_in_its_place(page):
    page.set(temperature=1.5)
    page.ask("Tell me a story about a fox named Mia.")
    first = page.answer()
    for _ in range(5):
        page.click("#messages .assistant .again")
        page.wait(lambda: page.all("#messages .assistant"))
        if page.answer() != first:
            break
    assert page.answer() != first and len(page.all("#messages .assistant")) == 1


def test_every_version_of_an_answer_can_be_seen_again(page):
    page.set(temperature=1.5)
    page.ask("Tell me a story about a fox named Mia.")
    first = page.answer()
    page.click("#messages .assistant .again")
    page.wait(lambda: "2/2" in page.text("#messages .assistant .versions"))
    second = page.answer()
    page.click("#messages .assistant .earlier")
    page.wait(lambda: "1/2" in page.text("#messages .assistant .versions"))
    assert page.answer() == first
    page.driver.refresh()
    page.wait(lambda: page.all("#chat-list li"))
    page.click("#chat-list li button")
    page.wait(lambda: "1/2" in page.text("#messages .assistant .versions"))
    assert page.answer() == first
    page.click("#messages .assistant .later")
    page.wait(lambda: "2/2" in page.text("#messages .assistant .versions"))
    assert page.answer() == second


def test_a_failed_answer_again_leaves_the_old_one(slow, mock):
    slow.ask("a b c")
    assert slow.answer() == "a b c"
    mock.stop()
    slow.click("#messages .assistant .again")
    slow.wait(lambda: slow.all("#messages .error"))
    assert slow.answer() == "a b c" and "connection" in slow.text("#messages .error")
    again = Mock(mock.port)
    try:
        slow.driver.refresh()  # the old one is kept, too
        slow.wait(lambda: slow.all("#chat-list li"))
        slow.click("#chat-list li button")
        slow.wait(lambda: slow.all("#messages .assistant"))
        assert slow.answer() == "a b c"
        slow.click("#messages .error button")
        slow.wait(lambda: not slow.all("#messages .error"))
        assert slow.answer() == "a b c" and "2/2" in slow.text("#messages .assistant .versions")
    finally:
        again.stop()


def test_an_answer_again_that_breaks_off_gives_the_old_one_back(slow, mock):
    slow.driver.execute_script(r"""
        const ask = window.fetch;
        let n = 0;
        window.fetch = async (path, options) => {
            if (!path.endsWith("completions"))
                return ask(path, options);
            const chunk = text => new TextEncoder().encode(`data: {"choices": [{"delta": {"content": "${text}"}}]}\n\n`);
            const isFirst = ++n === 1;
            return new Response(new ReadableStream({ start(stream) {
                stream.enqueue(chunk(isFirst ? "whole" : "part"));
                if (!isFirst)
                    return setTimeout(() => stream.error(new TypeError("broken")), 300);
                stream.enqueue(new TextEncoder().encode("data: [DONE]\n\n"));
                stream.close();
            } }), { headers: { "Content-Type": "text/event-stream" } });
        };""")
    slow.ask("anything")
    assert slow.answer() == "whole"
    slow.click("#messages .assistant .again")
    slow.wait(lambda: slow.text("#messages .assistant .body") == "part")  # it has begun
    slow.wait(lambda: slow.all("#messages .error"))
    assert slow.answer() == "whole" and "1/2" in slow.text("#messages .assistant .versions")
    slow.click("#messages .assistant .later")
    slow.wait(lambda: slow.text("#messages .assistant .body") == "part")
    assert "interrupted" in slow.text("#messages .assistant .stats")


def test_a_reload_keeps_as_much_of_an_answer_as_was_there(slow):
    slow.ask(SLOW)
    slow.wait(lambda: "w8" in slow.text("#messages .assistant .body"))
    slow.driver.refresh()
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.all("#messages .broke-off"))
    text = slow.answer()
    assert text.startswith("w0 w1 w2 w3 w4") and "interrupted" in slow.text("#messages .assistant .stats")
    assert slow.one("#send").is_displayed()
    slow.click("#messages .broke-off button")
    slow.wait(lambda: slow.text("#messages .assistant .body") == "w0 w1")
    slow.click("#stop")
    slow.wait(lambda: "2/2" in slow.text("#messages .assistant .versions"))
    slow.click("#messages .assistant .earlier")
    slow.wait(lambda: "1/2" in slow.text("#messages .assistant .versions"))
    assert slow.answer() == text


# ---- several tabs ----

def test_two_tabs_keep_the_conversations_of_both(slow, mock):
    first, second = slow.driver.current_window_handle, slow.new_tab(mock.url)
    for handle, text in ((second, "b1"), (first, "a1"), (second, "b2"), (first, "a2")):
        slow.driver.switch_to.window(handle)
        slow.click("#new-chat")
        slow.ask(text)
        assert slow.answer() == text
    for handle in (first, second):
        slow.driver.switch_to.window(handle)
        slow.wait(lambda: sorted(slow.texts("#chat-list .open")) == ["a1", "a2", "b1", "b2"])
    slow.driver.refresh()
    slow.wait(lambda: sorted(slow.texts("#chat-list .open")) == ["a1", "a2", "b1", "b2"])
    chats, messages = slow.kept()
    assert len(chats) == 4 and len(messages) == 8


def test_two_tabs_write_one_conversation(slow, mock):
    slow.ask("a1")
    slow.answer()
    first, second = slow.driver.current_window_handle, slow.new_tab(mock.url)
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1"])
    slow.ask("b1")
    slow.answer()
    slow.driver.switch_to.window(first)
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1", "b1", "b1"])
    slow.ask(SLOW)
    slow.wait(lambda: "w2" in slow.texts("#messages .body")[-1])
    # The other tab sees it come, waits for it, and can stop it.
    slow.driver.switch_to.window(second)
    slow.wait(lambda: "w2" in slow.texts("#messages .body")[-1])
    assert not slow.one("#send").is_displayed()
    slow.click("#stop")
    slow.wait(lambda: "stopped" in slow.texts("#messages .assistant .stats")[-1])
    assert slow.one("#send").is_displayed()
    slow.ask("b2")
    slow.answer()
    slow.driver.switch_to.window(first)
    slow.wait(lambda: len(slow.all("#messages > li")) == 8)
    slow.driver.refresh()
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.click("#chat-list li button")
    slow.wait(lambda: len(slow.all("#messages > li")) == 8)
    texts = slow.texts("#messages .body")
    assert texts[:5] == ["a1", "a1", "b1", "b1", SLOW] and texts[5].startswith("w0 w1 w2") and texts[6:] == ["b2", "b2"]


def test_a_conversation_that_another_tab_deletes_is_gone(slow, mock):
    slow.ask(SLOW)
    slow.wait(lambda: "w2" in slow.text("#messages .assistant .body"))
    first, second = slow.driver.current_window_handle, slow.new_tab(mock.url)
    assert first != second
    slow.wait(lambda: slow.all("#chat-list li"))
    slow.driver.execute_script("document.querySelector('#chat-list .remove').click()")
    slow.wait(lambda: slow.kept() == [[], []])
    slow.driver.switch_to.window(first)
    slow.wait(lambda: slow.one("#welcome").is_displayed() and not slow.all("#chat-list li"))
    slow.ask("c1")
    assert slow.answer() == "c1"
    assert [m["chat"] for m in slow.kept()[1]] == [slow.kept()[0][0]["id"]] * 2


def test_conversations_of_older_pages_are_taken_over(slow):
    old = [{"id": "x1", "title": "Foxes", "named": True, "changed": 5, "messages": [
        {"role": "user", "text": "Who?"}, {"role": "assistant", "text": "Mia.", "stats": {"tokens": 3, "first": 1, "rate": 2}}]},
           {"id": "x2", "title": "Broken", "changed": 6, "messages": [
               {"role": "user", "text": "Why?"}, {"role": "assistant", "text": "Be", "busy": True}]}]
    slow.driver.execute_script("localStorage.setItem('tutti.chats', arguments[0])", json.dumps(old))
    slow.driver.refresh()
    slow.wait(lambda: slow.texts("#chat-list .open") == ["Broken", "Foxes"])
    slow.click("#chat-list li:nth-child(2) button")
    slow.wait(lambda: slow.texts("#messages .body") == ["Who?", "Mia."])
    slow.click("#chat-list li:nth-child(1) button")
    slow.wait(lambda: slow.texts("#messages .body") == ["Why?", "Be"])
    assert "interrupted" in slow.text("#messages .assistant .stats")
    assert slow.driver.execute_script("return localStorage.getItem('tutti.chats')") is None


def test_without_storage_it_answers_and_says_that_nothing_is_kept(slow, mock):
    script = slow.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
        indexedDB.open = () => { throw new DOMException("forbidden", "SecurityError"); };"""})
    try:
        slow.driver.get(mock.url)
        slow.wait(lambda: slow.one("#model").is_displayed())
        slow.ask("a b")
        assert slow.answer() == "a b" and "not saved" in slow.text("#messages .error")
        slow.click("#new-chat")
        slow.ask("c d")
        assert slow.answer() == "c d"
        slow.click("#chat-list li:nth-child(2) button")
        slow.wait(lambda: slow.texts("#messages .body") == ["a b", "a b"])
    finally:
        slow.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


# ---- long conversations ----

LONG = r"""
    const done = arguments[0], request = indexedDB.open("tutti");
    request.onsuccess = () => {
        const stores = request.result.transaction(["chats", "messages"], "readwrite");
        stores.objectStore("chats").put({ id: "long", title: "Long", named: true, changed: 1 });
        for (let at = 0; at < 600; at++) {
            const text = `**${at}** and *some* words, \`code\` and a list:\n\n- one\n- two`, isUser = at % 2 === 0;
            stores.objectStore("messages").put({ id: "m" + at, chat: "long", at, rev: at, text, parent: at ? "m" + (at - 1) : null,
                role: isUser ? "user" : "assistant" });
        }
        stores.oncomplete = () => { request.result.close(); done(); };
    };"""


def test_a_long_conversation_is_drawn_once_and_from_its_end(slow):
    slow.driver.execute_async_script(LONG)
    slow.driver.refresh()
    slow.wait(lambda: slow.texts("#chat-list .open") == ["Long"])
    # Messages that were drawn when the first of them could be seen, and answers that were parsed then.
    slow.driver.execute_script("""
        const parse = marked.parse;
        window.parsed = 0;
        marked.parse = (...values) => { window.parsed++; return parse(...values); };
        new MutationObserver((_, observer) => {
            window.atFirst ??= [document.querySelectorAll("#messages > li").length, window.parsed];
            observer.disconnect();
        }).observe(document.getElementById("messages"), { childList: true });""")
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.count("#messages > li") == 600)
    at_first = slow.driver.execute_script("return window.atFirst")
    assert 0 < at_first[0] <= 40 and at_first[1] <= 40, at_first
    assert slow.driver.execute_script("return window.parsed") == 600  # two blocks in each of 300 answers
    assert slow.texts("#messages > li:last-child .body")[0].startswith("599 and some")
    assert slow.driver.execute_script("const s = document.getElementById('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight") < 5
    # A further answer draws itself, and nothing else again.
    slow.driver.execute_script("""
        window.parsed = 0;
        document.querySelectorAll("#messages > li").forEach((item, index) => { item.number = index; });""")
    slow.ask("words=5")
    slow.answer()
    same, all_messages, parsed = slow.driver.execute_script("""
        const items = [...document.querySelectorAll("#messages > li")];
        return [items.filter((item, index) => item.number === index).length, items.length, window.parsed];""")
    assert all_messages == 602 and same == 600, (same, all_messages)
    assert parsed <= 10, parsed
    # Chosen again, it is as it was.
    slow.click("#new-chat")
    slow.wait(lambda: not slow.all("#messages > li"))
    slow.driver.execute_script("window.parsed = 0")
    slow.click("#chat-list li button")
    slow.wait(lambda: slow.count("#messages > li") == 602)
    assert slow.driver.execute_script("return window.parsed") == 0


def test_a_question_can_be_edited(page):
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    page.answer()
    page.click("#messages .user .edit")
    area = page.wait(lambda: page.one("#messages .editing textarea"))
    area.clear()
    area.send_keys("What is the capital of Italy?", Keys.ENTER)
    page.wait(lambda: "Italy" in "".join(page.texts("#messages .user .body")))
    assert "Rome" in page.answer() and len(page.all("#messages .user")) == 1


def test_conversations_are_kept_apart_and_survive_a_reload(page):
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    page.answer()
    page.click("#new-chat")
    assert page.all("#messages > li") == []
    page.ask("What is the capital of Japan?")
    page.answer()
    assert len(page.all("#chat-list li")) == 2
    page.driver.refresh()
    page.wait(lambda: len(page.all("#chat-list li")) == 2)
    texts = {}
    for i in range(2):
        page.click(f"#chat-list li:nth-child({i + 1}) button")
        page.wait(lambda: page.one("#messages").get_attribute("data-chat") not in texts and page.all("#messages .assistant .body"))
        texts[page.one("#messages").get_attribute("data-chat")] = page.text("#messages .assistant .body")
    assert len(set(texts.values())) == 2


def test_settings_are_used(page):
    page.set(temperature=0, max_tokens=3, system="You are a helpful assistant.")
    page.ask("Tell me a story about a fox named Mia.")
    assert len(page.answer().split()) <= 3
    assert "token limit" in page.text("#messages .assistant .stats")


def test_markup_from_a_person_or_a_model_does_nothing(page):
    page.ask('<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>')
    page.answer()
    assert page.all("#messages img") == [] and page.all("#messages script") == []
    shown = page.driver.execute_async_script("""
        const done = arguments[0];
        import("/markdown.js").then(({ fillMarkdown }) => {
            const box = document.createElement("div");
            box.id = "probe";
            fillMarkdown(box, '**bold** <img src=x onerror="window.hacked=1"> <svg onload="window.hacked=1"></svg>' +
                '<iframe srcdoc="<script>parent.hacked=1</script>"></iframe> [link](javascript:window.hacked=1) ' +
                '<a href="https://x.example" onclick="window.hacked=1">ok</a> <form action=/x><input name=a></form>\\n\\n' +
                '```\\ncode <b>\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |');
            document.body.append(box);
            setTimeout(() => done(box.innerHTML), 300);
        });""")
    assert page.driver.execute_script("return window.hacked") is None
    for word in ("onerror", "onload", "onclick", "javascript:", "<iframe", "<form", "<img"):
        assert word not in shown, shown
    for word in ("<strong>bold</strong>", "<table>", "code &lt;b&gt;", 'rel="noopener'):
        assert word in shown, shown
    page.driver.get_log("browser")


def test_nothing_comes_from_elsewhere(page, server):
    page.ask("What is the capital of France?")
    page.answer()
    names = page.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert names and all(name.startswith(server.url) for name in names)
    policy = server.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy or "default-src 'self'" in policy
    assert "unsafe-inline" not in policy and "unsafe-eval" not in policy


def test_a_phone_can_use_it(page):
    page.driver.set_window_size(390, 844)
    page.driver.refresh()
    page.wait(lambda: page.one("#question").is_displayed())
    assert not page.one("#new-chat").is_displayed() or page.one("#side").rect["x"] < 0
    page.ask("What is the capital of France?")
    assert page.answer()
    width = page.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
    page.click("#open-side")
    page.wait(lambda: page.one("#new-chat").is_displayed() and page.one("#side").rect["x"] >= 0)


def test_the_page_asks_for_a_key_where_the_server_wants_one(chromium, start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    server = start("--api-key-file", keys)
    page = Page(chromium, server.url, "#settings")
    assert page.text("#settings-error")
    page.wait(lambda: page.one("#settings-form [name=key]")).send_keys("sesame")
    page.click("#settings-form .primary")
    page.wait(lambda: page.one("#model").is_displayed())
    page.ask("What is the capital of France?")
    assert "Paris" in page.answer()


def test_a_server_that_went_away_is_told(chromium, start):
    server = start()
    page = Page(chromium, server.url)
    server.stop()
    page.ask("Hello")
    page.wait(lambda: page.all("#messages .error"))
    assert "connection" in page.text("#messages .error")
    chromium.get_log("browser")
