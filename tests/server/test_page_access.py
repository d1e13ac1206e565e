"""The chat page for everybody: axe-core finds nothing, the keyboard reaches everything, a phone shows everything."""
import os

import pytest
from chat_page import Keys, Page, Script, chromium, mock, page, slow  # noqa: F401  # pylint: disable=unused-import
from conftest import ROOT

# axe-core 4.12.1, as in PyPI's axe-playwright-python 0.1.8; "./run test" installs it.
AXE = os.path.join(ROOT, "build-clients", "axe", "axe_playwright_python", "axe.min.js")

RICH = ("# Head\n\nText with a [link](https://example.org), `code` and $x^2$.\n\n> quoted\n\n```python\n# comment\ndef f(): return \"text\" + 1\n```\n\n"
        "```diff\n-old\n+new\n```\n\n| a | b |\n|---|---|\n" + "| long cell " * 40 + "|\n\n$$" + "x + " * 60 + "y$$\n\n" + "word" * 60)


def violations(one):
    """What axe-core finds, and where. Contrast and all other rules of WCAG 2.2 A and AA, and good practice."""
    if not os.path.exists(AXE):
        pytest.skip("needs PyPI's axe-playwright-python in build-clients/axe, where ./run test installs it")
    with open(AXE, encoding="utf-8") as file:
        one.driver.execute_script(file.read())
    found = one.driver.execute_async_script("""
        const done = arguments[0];
        axe.run(document, { resultTypes: ["violations"] })
           .then(result => done(result.violations.map(v => [v.id, v.nodes.map(n => n.target.join(" ") + ": " + n.failureSummary)])),
                 error => done([["failed", String(error)]]));""")
    return [v for v in found if v]


@pytest.fixture
def rich(slow, tmp_path):
    """The page with everything that it can show."""
    script = Script(slow)
    script.tell(RICH, "Some thoughts.", "A question", total_tokens=2000, completion_tokens=9)
    script.ask("Another")
    script.say("Part", "Thoughts")
    slow.wait(lambda: "Part" in slow.texts("#messages .body")[-1])
    slow.driver.execute_script("window.stream.fail('the model produced a NaN')")
    slow.wait(lambda: slow.all("#messages .error"))
    slow.click("#messages > li:nth-child(2) .thinking summary")
    slow.click("#messages > li:nth-child(4) .again")
    slow.wait(lambda: len(script.bodies()) == 3)
    script.say("More")
    script.end()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.bin").write_bytes(b"\xff")
    for name in ("a.txt", "b.bin"):
        slow.one("#file").send_keys(str(tmp_path / name))
    slow.wait(lambda: slow.one("#file-error").is_displayed())
    slow.click("#messages > li:nth-child(4) .remove")
    slow.wait(lambda: slow.one("#undo-box").is_displayed())
    slow.wait(lambda: slow.count("#messages .katex") == 2)
    return slow


def theme(one, name):
    while one.driver.execute_script("return document.documentElement.dataset.theme") != name:
        one.driver.execute_script("document.getElementById('theme').click()")


@pytest.mark.parametrize("name", ["light", "dark"])
def test_axe_finds_nothing(rich, name):
    theme(rich, name)
    assert violations(rich) == []
    rich.click("#open-settings")
    assert violations(rich) == []
    rich.click("#close-settings")
    rich.click("#open-exchange")
    assert violations(rich) == []
    rich.click("#close-exchange")
    rich.one("#search").send_keys("question")
    rich.wait(lambda: rich.count("#chat-list mark"))
    assert violations(rich) == []
    rich.one("#search").send_keys(Keys.ESCAPE)
    rich.driver.set_window_size(390, 844)
    assert violations(rich) == []
    rich.click("#open-side")
    rich.wait(lambda: rich.one("#side").rect["x"] >= 0)
    assert violations(rich) == []
    rich.click("#close-side")
    rich.driver.execute_script("document.getElementById('new-chat').click()")  # which is in the list, off the screen
    rich.wait(lambda: rich.one("#welcome").is_displayed())
    assert violations(rich) == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(rich):
    driver = rich.driver
    driver.execute_script("document.activeElement.blur(); document.querySelector('.skip').focus()")
    wanted = driver.execute_script("""
        return [...document.querySelectorAll("button, a[href], select, input, textarea, summary, pre[tabindex], .table")]
            .filter(e => !e.disabled && !e.closest("dialog") && e.checkVisibility({ visibilityProperty: true }))
            .map((e, n) => e.dataset.number = String(n));""")
    reached, hidden = set(), []
    for step in range(len(wanted) + 8):
        number, what, outlined = driver.execute_script("""
            const e = document.activeElement, style = getComputedStyle(e), box = e.closest(".box");
            const framed = box && getComputedStyle(box).borderColor !== getComputedStyle(document.querySelector("header select")).borderColor;
            return [e.dataset.number ?? null, e.outerHTML.slice(0, 80), style.outlineStyle !== "none" || Boolean(framed)];""")
        if number is not None:
            reached.add(number)
            if not outlined and step > 0:  # the first was not reached by a key
                hidden.append(what)
        driver.switch_to.active_element.send_keys(Keys.TAB)
    missing = set(wanted) - reached
    assert not missing, driver.execute_script("return arguments[0].map(n => document.querySelector(`[data-number='${n}']`).outerHTML.slice(0, 90))",
                                              sorted(missing))
    assert not hidden


def test_the_keyboard_alone_is_enough(slow):
    def press(*keys):
        slow.driver.switch_to.active_element.send_keys(*keys)

    press("/")
    press("a1", Keys.ENTER)
    slow.wait(lambda: slow.texts("#messages .body") == ["a1", "a1"] and not slow.all("#messages .busy"))
    press("b", Keys.SHIFT, Keys.ENTER, Keys.NULL, "c", Keys.ENTER)
    slow.wait(lambda: slow.texts("#messages .words") == ["a1", "b\nc"] and not slow.all("#messages .busy"))
    press("slow=150 words=400", Keys.ENTER)
    slow.wait(lambda: "w1" in slow.texts("#messages .body")[-1])
    press(Keys.ESCAPE)
    slow.wait(lambda: "stopped" in slow.texts("#messages .stats")[-1])
    slow.driver.execute_script("document.querySelector('#messages .edit').focus()")
    press(Keys.ENTER)
    slow.wait(lambda: slow.driver.switch_to.active_element.tag_name == "textarea")
    press(Keys.ESCAPE)
    slow.wait(lambda: "edit" in slow.driver.switch_to.active_element.get_attribute("class"))
    press("/")
    slow.wait(lambda: slow.driver.switch_to.active_element.get_attribute("id") == "question")
    press(Keys.CONTROL, "k", Keys.NULL)
    slow.wait(lambda: slow.driver.switch_to.active_element.get_attribute("id") == "search")
    press(Keys.ARROW_DOWN)
    press(Keys.TAB)
    press(Keys.ENTER)  # rename
    slow.wait(lambda: slow.driver.switch_to.active_element == slow.one("#chat-list input"))
    press(Keys.CONTROL, "a", Keys.NULL, "Named", Keys.ENTER)
    slow.wait(lambda: slow.texts("#chat-list .open") == ["Named"])
    slow.wait(lambda: "edit" in slow.driver.switch_to.active_element.get_attribute("class"))
    press(Keys.TAB)
    press(Keys.ENTER)  # delete
    slow.wait(lambda: slow.driver.switch_to.active_element.get_attribute("id") == "undo")
    press(Keys.ENTER)
    slow.wait(lambda: slow.texts("#chat-list .open") == ["Named"] and slow.count("#messages > li") == 6)


def test_a_screen_reader_is_told(slow):
    script, status = Script(slow), lambda: slow.driver.execute_script("return document.getElementById('status').textContent")
    script.ask("Hello")
    slow.wait(lambda: status() == "Answering")
    assert slow.one("#messages .assistant").get_attribute("aria-busy") == "true"
    script.say("Hi")
    script.end()
    slow.wait(lambda: status() == "The answer is complete")
    assert slow.one("#messages .assistant").get_attribute("aria-busy") == "false"
    script.ask("And")
    slow.driver.execute_script("window.stream.fail('a reason')")
    slow.wait(lambda: slow.all("#messages [role=alert]"))
    slow.wait(lambda: "a reason" in status())


def test_a_phone_shows_everything(rich):
    rich.driver.set_window_size(390, 844)
    wide = rich.driver.execute_script("""
        return [document.documentElement.scrollWidth <= innerWidth, document.getElementById("scroll").scrollWidth <= innerWidth,
                [...document.querySelectorAll("main button, main select, main textarea")]
                    .filter(e => e.checkVisibility() && !e.closest(".block"))
                    .filter(e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth + 1; })
                    .map(e => e.outerHTML.slice(0, 80))];""")
    assert wide == [True, True, []]
    # The button to the end of the messages covers nothing that is below them.
    rich.driver.execute_script("document.getElementById('scroll').scrollTop = 0")
    rich.wait(lambda: rich.one("#to-end").is_displayed())
    end = rich.one("#to-end").rect
    assert rich.one("#undo-box").is_displayed() and rich.one("#attached").is_displayed()
    assert end["y"] + end["height"] <= min(rich.one(name).rect["y"] for name in ("#undo-box", "#ask"))
    assert end["width"] >= 40 <= end["height"]
    rich.click("#to-end")
    rich.wait(lambda: not rich.one("#to-end").is_displayed())
    for opens, dialog, closes in (("#open-settings", "#settings", "#close-settings"), ("#open-exchange", "#exchange", "#close-exchange")):
        rich.click("#open-side")
        rich.wait(lambda: rich.one("#side").rect["x"] >= 0)
        rich.click(opens)
        box = rich.wait(lambda dialog=dialog: rich.one(dialog)).rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= rich.driver.execute_script("return innerWidth")
        rich.click(closes)
        rich.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        rich.wait(lambda: rich.one("#side").rect["x"] < 0)
