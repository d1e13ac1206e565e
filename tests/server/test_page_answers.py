"""Answers in the chat page: how they stream, what they may contain, and what is said when they fail."""
import pytest
from chat_page import Page, Script, chromium, mock, page, slow  # noqa: F401  # pylint: disable=unused-import

LAST = "#messages .assistant:last-child "


@pytest.fixture
def script(slow):
    return Script(slow)


def html(one, selector=LAST + ".body"):
    return one.driver.execute_script("return document.querySelector(arguments[0]).innerHTML", selector)


# ---- reasoning, figures ----

def test_reasoning_is_folded_and_can_be_read_while_it_streams(script):
    one = script.page
    script.ask("Why?")
    script.say(reasoning="The user asks ")
    one.wait(lambda: one.text(LAST + ".thinking summary") == "Thinking…")
    shown = one.one(LAST + ".thinking .plain-text")
    assert not shown.is_displayed()
    one.click(LAST + ".thinking summary")
    one.wait(shown.is_displayed)
    script.say(reasoning="for a reason.")
    one.wait(lambda: shown.text == "The user asks for a reason.")
    script.say("Because.")
    one.wait(lambda: one.text(LAST + ".thinking summary").startswith("Thoughts ("))
    script.end()
    assert one.answer() == "Because."
    # It stays unfolded, is kept, and the model gets it with the next question.
    assert one.one(LAST + ".thinking .plain-text").is_displayed()
    script.ask("And?")
    sent = script.bodies()[-1]["messages"]
    assert sent[1] == {"role": "assistant", "content": "Because.", "reasoning_content": "The user asks for a reason."}
    script.say("So.")
    script.end()
    assert [m.get("reasoning") for m in one.kept()[1]] == [None, "The user asks for a reason.", None, None]


def test_the_context_in_use_is_shown(script):
    script.tell("Hello.", prompt_tokens=10, completion_tokens=2, total_tokens=12)
    script.page.wait(lambda: script.page.text("#context") == "Context: 12 of 2,048 tokens")
    script.tell("Hello.", prompt_tokens=1900, completion_tokens=100, total_tokens=2000)
    script.page.wait(lambda: "2,000 of 2,048 tokens · nearly full" in script.page.text("#context"))


# ---- streaming ----

def test_text_stays_selected_while_the_answer_grows(script):
    one = script.page
    script.ask("A list")
    script.say("One **bold** word.\n\nA second paragraph with `code` that goes")
    one.wait(lambda: one.count(LAST + ".block") == 2)
    one.driver.execute_script("""
        const blocks = document.querySelectorAll("#messages .assistant .block");
        blocks[0].mark = "first";
        blocks[1].querySelector("code").mark = "code";
        const range = document.createRange();
        range.setStart(blocks[0].querySelector("strong").firstChild, 0);
        range.setEnd(blocks[1].querySelector("code").firstChild, 4);
        getSelection().removeAllRanges();
        getSelection().addRange(range);""")
    selected = one.driver.execute_script("return String(getSelection())")
    assert selected.startswith("bold word.") and selected.endswith("with code")
    script.say(" on and on\nin lines\n\n```py\nx = 1")
    one.wait(lambda: one.count(LAST + ".code") == 1)
    script.say("  # more\n```\n\n- a\n- b\n\n- c")
    one.wait(lambda: one.count(LAST + "li") == 3)
    script.end()
    assert one.driver.execute_script("""
        const blocks = document.querySelectorAll("#messages .assistant .block");
        return [String(getSelection()), blocks[0].mark, blocks[1].querySelector("code").mark];""") == [selected, "first", "code"]


def test_an_answer_that_came_in_pieces_looks_like_one_that_came_at_once(script):
    text = ("# Head\n\nText [one][1] and\nmore\n\n1. a\n\n   inner\n\n   ```js\n   let x;\n\n   let y;\n   ```\n2. b\n\n> quote\n> more\n\n"
            "| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nplain\n\ncode\n```\nafter\n\n$$\nx\n\n+ y\n$$\n\n<details>\n\n**in**\n\n</details>\n\n"
            "[1]: https://example.org/\n")
    one, same = script.page, one_by_one(script, text)
    assert same[0] == same[1]
    assert 'href="https://example.org/"' in same[0] and "<table>" in same[0] and one.count(".code") == 0


def one_by_one(script, text):
    """The HTML of the text shown at once, and shown character by character."""
    return script.driver.execute_async_script("""
        const [text, done] = arguments;
        Promise.all([import("/markdown.js"), import("/math.js")]).then(async ([{ fillMarkdown }, math]) => {
            await math.loadMath();
            const whole = document.createElement("div"), grown = document.createElement("div");
            fillMarkdown(whole, text);
            for (let n = 1; n <= text.length; n++)
                fillMarkdown(grown, text.slice(0, n));
            done([whole.innerHTML, grown.innerHTML]);
        });""", text)


# ---- code, formulas ----

def test_code_is_highlighted_and_copied(script):
    one = script.page
    code = 'def f(x):\n    # <b>comment</b>\n    return "text" + 12\n'
    script.tell(f"Here:\n```python\n{code}```\nDone.\n\n```diff\n-a\n+b\n```\n\n```unknown\nif 1\n```")
    assert one.texts(LAST + ".hl-keyword") == ["def", "return"]
    assert one.texts(LAST + ".hl-comment") == ["# <b>comment</b>"]
    assert one.texts(LAST + ".hl-string") == ['"text"'] and one.texts(LAST + ".hl-number") == ["12"]
    assert one.texts(LAST + ".language") == ["python", "diff", "unknown"]
    assert one.texts(LAST + ".hl-removed") == ["-a\n"] or one.texts(LAST + ".hl-removed") == ["-a"]
    one.driver.execute_script("""
        window.copied = null;
        Object.defineProperty(navigator, "clipboard", { value: { writeText: text => { window.copied = text; } } });""")
    one.click(LAST + ".code .copy")
    one.wait(lambda: one.driver.execute_script("return window.copied") == code.rstrip("\n"))
    one.wait(lambda: one.driver.execute_script("return document.getElementById('status').textContent") == "Copied")


def test_formulas_are_drawn(script):
    one = script.page
    script.tell(r"Euler: $e^{i\pi} + 1 = 0$, and \(a_1\). It costs $5 or $6 and `$x$`." "\n\n$$\n\\int_0^1 x\\,dx = \\frac12\n$$\n\n"
                r"Wrong: $\frac{$ and $\undefinedmacro$")
    one.wait(lambda: one.count(LAST + ".katex-html") == 3)
    assert one.driver.execute_script(
        "return [...document.querySelectorAll('#messages annotation')].map(e => e.textContent)")[:2] == [r"e^{i\pi} + 1 = 0", "a_1"]
    assert one.count(LAST + ".katex-display") == 1
    text = one.texts(LAST + ".body")[0]
    assert "It costs $5 or $6 and $x$." in text and r"$\undefinedmacro$" in text
    # The style sheet and the fonts are the server's, and are used.
    assert one.driver.execute_async_script("""
        const done = arguments[0];
        document.fonts.load("16px KaTeX_Main").then(fonts => done(fonts.length));""") == 1
    assert one.complaints() == []


# ---- untrusted answers ----

BOMBS = {
    "stars": "*a **a " * 4000, "quotes": ">" * 20000 + "a", "brackets": "[" * 20000, "links": "[a](" * 5000, "ticks": "`" * 9999 + " a",
    "backticks": "`a ``b ```c " * 3000, "lists": "".join("  " * n + "- a\n" for n in range(300)), "underscores": "_" * 15000 + "a",
    "table": "|a" * 5000 + "\n" + "|-" * 5000 + "\n" + "|b" * 5000, "html": "<div>" * 5000, "entities": "&" * 15000,
    "dollars": "$a" * 7000, "parens": r"\(" * 7000, "tags": "<a" * 7000, "autolinks": "http://" * 2000, "emails": "a@" * 7000,
    "heads": "# " * 7000, "rows": "a\n" * 8000, "comment": "<!--" * 4000, "spaces": "a" + " " * 15000 + "b",
    "macros": r"$\def\a{xxxxxxxxxx}\def\b{\a\a\a\a}\b$" + r"$$\rule{9999em}{9999em}$$" + r"${" + "{" * 900 + "$",
    "nested": "$" + r"\frac{" * 80 + "1" + "}{2}" * 80 + "$", "code": "```c\n" + "/* \"" * 30000, "strings": "```py\n" + "'''\"" * 20000,
    "definitions": "".join(f"[{n}]: http://x/{n}\n" for n in range(3000)) + "[1] " * 3000,
}


def test_bombs_do_not_hang_the_page(script):
    """Each is drawn, half of it and then all of it, and nothing that was said is lost without a trace."""
    for kind, bomb in BOMBS.items():
        shown = script.driver.execute_async_script("""
            const [text, done] = arguments;
            Promise.all([import("/markdown.js"), import("/math.js")]).then(async ([{ fillMarkdown }, math]) => {
                await math.loadMath();
                const box = document.createElement("div");
                fillMarkdown(box, text.slice(0, text.length / 2));
                fillMarkdown(box, text);
                done(box.querySelectorAll(".block").length);
            }).catch(error => done(String(error)));""", bomb)
        assert isinstance(shown, int) and shown > 0, (kind, shown)
    script.driver.get_log("browser")


def test_hostile_markup_runs_nothing(script):
    one = script.page
    script.tell('<img src=x onerror="window.hacked=1"><a href="javascript:window.hacked=1" id=question>x</a>\n\n'
                r"$\href{javascript:window.hacked=1}{x}$ $\includegraphics{https://x.example/a.png}$ $\htmlId{ask}{x}$" "\n\n"
                '```"><script>window.hacked=1</script>\n</code></pre><script>window.hacked=1</script>\n```\n\n'
                '<span data-math="inline"><img src=x onerror="window.hacked=1"></span> <div popover id=ask style="position:fixed">y</div>',
                reasoning="<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>")
    one.wait(lambda: one.count(LAST + ".code") == 1)
    shown = html(one)
    for word in ("onerror", "javascript:\"", "<script", "<img", "popover", "style=\"position:fixed"):
        assert word not in shown, shown
    assert one.count("#question") == 1 and one.count("#ask") == 1 and one.count("#messages script, #messages img") == 0
    assert one.driver.execute_script("return window.hacked") is None
    assert all("Content Security Policy" in told for told in one.complaints())  # what the sanitizer's parser did not run


# ---- errors ----

def test_a_limit_of_the_key_is_not_a_full_queue(chromium, start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sesame ann tokens-per-minute=20\n")
    server = start("--api-key-file", keys)
    one = Page(chromium, server.url, "#settings")
    one.one("#settings-form [name=key]").send_keys("sesame")
    one.click("#settings-form .primary")
    one.wait(lambda: one.one("#model").is_displayed())
    question = "What is the capital of France? " * 6
    one.ask("Hello")
    one.answer()
    one.ask(question)
    one.wait(lambda: one.all("#messages .error"))
    told = one.text("#messages .error")
    assert "tokens per minute" in told and "Try again in" in told and "queue" not in told
    # What was asked is there still, and after a reload.
    assert one.texts("#messages .user .words") == ["Hello", question.strip()]
    one.driver.refresh()
    one.wait(lambda: one.all("#chat-list li"))
    one.click("#chat-list li button")
    one.wait(lambda: one.texts("#messages .user .words") == ["Hello", question.strip()])
    chromium.get_log("browser")


def test_an_error_keeps_what_was_written(script):
    one = script.page
    script.ask("Tell")
    script.say("Some words")
    one.wait(lambda: "Some words" in one.text(LAST + ".body"))
    script.driver.execute_script("window.stream.fail('the model produced a NaN')")
    one.wait(lambda: one.all("#messages .error"))
    assert one.text("#messages .error").startswith("The server could not answer: the model produced a NaN.")
    assert one.answer() == "Some words" and one.kept()[1][1]["text"] == "Some words"
    script.ask("Again")
    script.say("Half")
    one.wait(lambda: "Half" in one.text(LAST + ".body"))
    script.driver.execute_script("window.stream.cut()")
    one.wait(lambda: "ended early" in one.texts("#messages .error")[-1])
    assert one.answer() == "Half"


def test_a_conversation_beyond_the_context_is_told(slow):
    slow.ask("long")
    slow.wait(lambda: slow.all("#messages .error"))
    assert "longer than the model's context" in slow.text("#messages .error") or "context" in slow.text("#messages .error")
    slow.driver.get_log("browser")
