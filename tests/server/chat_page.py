"""The chat page in headless Chromium, driven as a person drives it: what the tests of the page share."""
import atexit
import functools
import os
import subprocess

import pytest
from conftest import ROOT

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import (  # noqa: E402
    ElementNotInteractableException, NoSuchElementException, StaleElementReferenceException)
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

TRANSIENT = (NoSuchElementException, StaleElementReferenceException, ElementNotInteractableException)
PATIENCE = 120 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


@functools.lru_cache(maxsize=None)
def started():
    """The browser of all tests of the page."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en-US",
                 "--window-size=1200,850", "--no-first-run", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    except Exception as fault:  # pylint: disable=broad-except
        pytest.skip(f"no Chromium here: {fault}")
    atexit.register(driver.quit)
    return driver


@pytest.fixture
def chromium():
    return started()


def forget(driver):
    """Deletes what the page has kept."""
    driver.execute_async_script("""
        const done = arguments[0];
        localStorage.clear();
        sessionStorage.clear();
        const request = indexedDB.deleteDatabase("tutti");
        request.onsuccess = request.onerror = () => done();""")


# Runs in the browser: what is kept, [conversations, messages in their order].
READ_STORE = """
    const done = arguments[0], request = indexedDB.open("tutti");
    request.onsuccess = () => {
        const stores = request.result.transaction(["chats", "messages"]);
        const chats = stores.objectStore("chats").getAll(), messages = stores.objectStore("messages").index("place").getAll();
        messages.onsuccess = () => { request.result.close(); done([chats.result, messages.result]); };
    };"""


class Page:
    def __init__(self, driver, url, shown="#model"):
        self.driver = driver
        driver.set_window_size(1200, 850)
        driver.get(url)
        forget(driver)
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

    def count(self, selector):
        return self.driver.execute_script("return document.querySelectorAll(arguments[0]).length", selector)

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

    def kept(self):
        """What is in the browser's storage: conversations, and messages in their order."""
        return self.driver.execute_async_script(READ_STORE)

    def new_tab(self, url):
        self.driver.switch_to.new_window("tab")
        self.driver.get(url)
        self.wait(lambda: self.one("#model").is_displayed())
        return self.driver.current_window_handle

    def complaints(self):
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]


@pytest.fixture
def page(chromium, server):
    one = Page(chromium, server.url)
    yield one
    assert one.complaints() == []


class Mock:
    """The server in front of an engine that does what words of the question say: "slow=MS words=N"."""

    def __init__(self, port=0):
        path = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")
        self.process = subprocess.Popen([path, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.url = self.process.stdout.readline().decode()[len("listening on "):].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def mock():
    one = Mock()
    yield one
    one.stop()


@pytest.fixture
def slow(chromium, mock):
    """The page of such a server."""
    one = Page(chromium, mock.url)
    first = chromium.current_window_handle
    yield one
    for handle in chromium.window_handles:
        if handle != first:
            chromium.switch_to.window(handle)
            chromium.close()
    chromium.switch_to.window(first)
    chromium.get_log("browser")


# Runs in the browser: window.stream.say({content, reasoning_content}), .end(usage), .cut() and .fail(text) are the answer to the
# next question, and window.bodies has what was sent.
SCRIPTED = r"""
    const ask = window.fetch, encoder = new TextEncoder();
    window.bodies = [];
    window.fetch = (path, options) => {
        if (!path.endsWith("completions"))
            return ask(path, options);
        window.bodies.push(JSON.parse(options.body));
        const send = (stream, value) => stream.enqueue(encoder.encode(`data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`));
        return Promise.resolve(new Response(new ReadableStream({ start(stream) {
            window.stream = {
                say: delta => send(stream, { choices: [{ delta }] }),
                end: usage => { send(stream, { choices: [{ delta: {}, finish_reason: "stop" }], usage }); send(stream, "[DONE]"); stream.close(); },
                cut: () => stream.close(),
                fail: message => { send(stream, { error: { message } }); send(stream, "[DONE]"); stream.close(); },
            };
            options.signal.addEventListener("abort", () => stream.error(options.signal.reason));
        } }), { headers: { "Content-Type": "text/event-stream" } }));
    };"""


class Script:
    """The page with answers that the test writes itself."""

    def __init__(self, page):
        self.page, self.driver = page, page.driver
        self.driver.execute_script(SCRIPTED)

    def ask(self, text):
        n = len(self.bodies())
        self.page.ask(text)
        self.page.wait(lambda: len(self.bodies()) == n + 1)

    def bodies(self):
        return self.driver.execute_script("return window.bodies")

    def say(self, content="", reasoning=""):
        self.driver.execute_script("window.stream.say({content: arguments[0], reasoning_content: arguments[1]})", content, reasoning)

    def end(self, **usage):
        self.driver.execute_script("window.stream.end(arguments[0])", usage or None)
        self.page.wait(lambda: not self.page.all("#messages .busy"))

    def tell(self, content, reasoning="", question="?", **usage):
        """A whole answer."""
        self.ask(question)
        self.say(content, reasoning)
        self.end(**usage)
