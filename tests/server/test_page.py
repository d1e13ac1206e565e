"""The chat page in headless Chromium, used as a person uses it."""
import os
import time

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import (  # noqa: E402
    ElementNotInteractableException, NoSuchElementException, StaleElementReferenceException)
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

TRANSIENT = (NoSuchElementException, StaleElementReferenceException, ElementNotInteractableException)
PATIENCE = 30 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


@pytest.fixture(scope="module")
def chromium():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en-US",
                 "--window-size=1200,850", "--no-first-run", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    except Exception as fault:  # pylint: disable=broad-except
        pytest.skip(f"no Chromium here: {fault}")
    yield driver
    driver.quit()


class Page:
    def __init__(self, driver, url, shown="#model"):
        self.driver = driver
        driver.set_window_size(1200, 850)
        driver.get(url)
        driver.execute_script("localStorage.clear()")
        driver.get_log("browser")
        driver.get(url)
        self.wait(lambda: self.one(shown).is_displayed())

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition):
        """Waits for something true. The page replaces elements while it draws: one that went between finding it and
        reading it is looked for again."""
        return WebDriverWait(self.driver, PATIENCE, 0.02, TRANSIENT).until(lambda _: condition())

    def texts(self, selector):
        """What is written in every element of this kind, read in one step inside the browser."""
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def text(self, selector):
        return self.wait(lambda: self.texts(selector))[0]

    def click(self, selector):
        def clicked():
            self.one(selector).click()
            return True
        self.wait(clicked)

    def ask(self, text):
        n = len(self.all("#messages .assistant"))
        self.one("#question").send_keys(text, Keys.ENTER)
        self.wait(lambda: len(self.all("#messages .assistant")) == n + 1)

    def answer(self):
        """The text of the last answer, once it is complete."""
        self.wait(lambda: not self.all("#messages .assistant.busy"))
        return self.texts("#messages .assistant .body")[-1]

    def set(self, **values):
        self.click("#open-settings")
        for name, value in values.items():
            field = self.one(f"#settings-form [name={name}]")
            field.clear()
            field.send_keys(str(value))
        self.click("#settings-form .primary")

    def complaints(self):
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]


@pytest.fixture
def page(chromium, server):
    one = Page(chromium, server.url)
    yield one
    assert one.complaints() == []


def test_a_question_is_answered_with_its_rate(page):
    assert page.text("#model") == "demo"
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    assert page.answer() == "The capital of France is Paris."
    assert "tokens/s" in page.text("#messages .assistant .stats")
    page.ask("What is the capital of Japan?")
    assert "Tokyo" in page.answer()
    assert len(page.all("#messages .user")) == 2


def test_stop_keeps_what_was_said(page):
    page.driver.execute_script("""
        new MutationObserver((_, observer) => {
            const body = document.querySelector("#messages .assistant .body");
            if (body && body.textContent.trim().length > 3) {
                observer.disconnect();
                document.getElementById("stop").click();
            }
        }).observe(document.getElementById("messages"), {childList: true, subtree: true, characterData: true});""")
    page.ask("Tell me a story about a fox named Mia.")
    text = page.answer()
    assert len(text) > 3
    note = page.text("#messages .assistant .stats")
    assert "stopped" in note or text.rstrip().endswith((".", "!", "”", '"'))
    page.ask("What is the capital of France?")
    assert page.answer()


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
    assert page.all("#messages li") == []
    page.ask("What is the capital of Japan?")
    page.answer()
    assert len(page.all("#chat-list li")) == 2
    page.driver.refresh()
    page.wait(lambda: len(page.all("#chat-list li")) == 2)
    texts = set()
    for i in range(2):
        page.click(f"#chat-list li:nth-child({i + 1}) button")
        texts.add(page.text("#messages .assistant .body"))
    assert len(texts) == 2


def test_settings_are_used(page):
    page.set(temperature=0, max_tokens=3, system="You are a helpful assistant.")
    page.ask("Tell me a story about a fox named Mia.")
    assert len(page.answer().split()) <= 3
    assert "cut" in page.text("#messages .assistant .stats")


def test_markup_from_a_person_or_a_model_does_nothing(page):
    page.ask('<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>')
    page.answer()
    assert page.all("#messages img") == [] and page.all("#messages script") == []
    shown = page.driver.execute_async_script("""
        const done = arguments[0];
        import("/view.js").then(view => {
            const box = document.createElement("div");
            box.id = "probe";
            box.append(view.markdown('**bold** <img src=x onerror="window.hacked=1"> <svg onload="window.hacked=1"></svg>' +
                '<iframe srcdoc="<script>parent.hacked=1</script>"></iframe> [link](javascript:window.hacked=1) ' +
                '<a href="https://x.example" onclick="window.hacked=1">ok</a> <form action=/x><input name=a></form>\\n\\n' +
                '```\\ncode <b>\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |'));
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
    chromium.get(server.url)
    chromium.execute_script("localStorage.clear()")
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
    time.sleep(0.1)
    chromium.get_log("browser")
