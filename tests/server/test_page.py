"""The chat page in headless Chromium, used as a person uses it."""
import os
import time

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

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
    def __init__(self, driver, url):
        self.driver = driver
        driver.set_window_size(1200, 850)
        driver.get(url)
        driver.execute_script("localStorage.clear()")
        driver.get_log("browser")
        driver.get(url)
        self.wait(lambda: self.one("#model").is_displayed())

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition):
        return WebDriverWait(self.driver, PATIENCE, 0.02).until(lambda _: condition())

    def ask(self, text):
        n = len(self.all("#messages .assistant"))
        self.one("#question").send_keys(text, Keys.ENTER)
        self.wait(lambda: len(self.all("#messages .assistant")) == n + 1)

    def answer(self):
        """The text of the last answer, once it is complete."""
        self.wait(lambda: not self.all("#messages .assistant.busy"))
        return self.all("#messages .assistant .body")[-1].text

    def set(self, **values):
        self.one("#open-settings").click()
        for name, value in values.items():
            field = self.one(f"#settings-form [name={name}]")
            field.clear()
            field.send_keys(str(value))
        self.one("#settings-form .primary").click()

    def complaints(self):
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]


@pytest.fixture
def page(chromium, server):
    one = Page(chromium, server.url)
    yield one
    assert one.complaints() == []


def test_a_question_is_answered_with_its_rate(page):
    assert page.one("#model").text == "demo"
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    assert page.answer() == "The capital of France is Paris."
    assert "tokens/s" in page.one("#messages .assistant .stats").text
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
    note = page.one("#messages .assistant .stats").text
    assert "stopped" in note or text.rstrip().endswith((".", "!", "”", '"'))
    page.ask("What is the capital of France?")
    assert page.answer()


def test_again_gives_another_answer_in_its_place(page):
    page.set(temperature=1.5)
    page.ask("Tell me a story about a fox named Mia.")
    first = page.answer()
    for _ in range(5):
        page.one("#messages .assistant .again").click()
        page.wait(lambda: page.all("#messages .assistant"))
        if page.answer() != first:
            break
    assert page.answer() != first and len(page.all("#messages .assistant")) == 1


def test_a_question_can_be_edited(page):
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    page.answer()
    page.one("#messages .user .edit").click()
    area = page.one("#messages .editing textarea")
    area.clear()
    area.send_keys("What is the capital of Italy?", Keys.ENTER)
    page.wait(lambda: page.all("#messages .user .body") and "Italy" in page.one("#messages .user .body").text)
    assert "Rome" in page.answer() and len(page.all("#messages .user")) == 1


def test_conversations_are_kept_apart_and_survive_a_reload(page):
    page.set(temperature=0)
    page.ask("What is the capital of France?")
    page.answer()
    page.one("#new-chat").click()
    assert page.all("#messages li") == []
    page.ask("What is the capital of Japan?")
    page.answer()
    assert len(page.all("#chat-list li")) == 2
    page.driver.refresh()
    page.wait(lambda: len(page.all("#chat-list li")) == 2)
    texts = set()
    for i in range(2):
        page.all("#chat-list li button")[0 if i == 0 else len(page.all("#chat-list li:first-child button"))].click()
        page.wait(lambda: page.all("#messages .assistant"))
        texts.add(page.one("#messages .assistant .body").text)
    assert len(texts) == 2


def test_settings_are_used(page):
    page.set(temperature=0, max_tokens=3, system="You are a helpful assistant.")
    page.ask("Tell me a story about a fox named Mia.")
    assert len(page.answer().split()) <= 3
    assert "cut" in page.one("#messages .assistant .stats").text


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
    page.one("#open-side").click()
    page.wait(lambda: page.one("#new-chat").is_displayed() and page.one("#side").rect["x"] >= 0)


def test_the_page_asks_for_a_key_where_the_server_wants_one(chromium, start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    server = start("--api-key-file", keys)
    chromium.get(server.url)
    chromium.execute_script("localStorage.clear()")
    chromium.get(server.url)
    dialog = chromium.find_element(By.ID, "settings")
    WebDriverWait(chromium, PATIENCE).until(lambda _: dialog.is_displayed())
    assert chromium.find_element(By.ID, "settings-error").text
    chromium.find_element(By.CSS_SELECTOR, "#settings-form [name=key]").send_keys("sesame")
    chromium.find_element(By.CSS_SELECTOR, "#settings-form .primary").click()
    WebDriverWait(chromium, PATIENCE).until(lambda _: chromium.find_element(By.ID, "model").is_displayed())
    chromium.find_element(By.ID, "question").send_keys("What is the capital of France?", Keys.ENTER)
    WebDriverWait(chromium, PATIENCE).until(
        lambda d: "Paris" in "".join(e.text for e in d.find_elements(By.CSS_SELECTOR, "#messages .assistant .body")))


def test_a_server_that_went_away_is_told(chromium, start):
    server = start()
    page = Page(chromium, server.url)
    server.stop()
    page.ask("Hello")
    page.wait(lambda: page.all("#messages .error"))
    assert "connection" in page.one("#messages .error").text
    time.sleep(0.1)
    chromium.get_log("browser")
