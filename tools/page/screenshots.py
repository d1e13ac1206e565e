#!/usr/bin/env python3
"""Writes docs/chat-page*.png: the chat page in headless Chromium, served with the demo model.

  tools/page/screenshots.py [build/tutti]

Needs selenium, chromium and chromedriver. The answers are the demo model's, except for the ones that need a larger model: their
text is in SCRIPTED, and the page gets them as a server would send them.
"""
import base64
import os
import re
import struct
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("TUTTI_BIN", sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "tutti"))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
from chat_page import Page, Script, webdriver, Service  # noqa: E402
from conftest import Server  # noqa: E402

SCRIPTED = """The roots of $ax^2 + bx + c$ are

$$x_{1,2} = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}$$

In Python:

```python
from cmath import sqrt

def roots(a, b, c):
    d = sqrt(b * b - 4 * a * c)  # complex if negative
    return (-b + d) / (2 * a), (-b - d) / (2 * a)
```
"""
THOUGHTS = "The user wants the formula and a program. Complex roots should work, so cmath."
TABLE = """room,area,windows
kitchen,14.5,2
study,9.0,1
"""
FIRST = "The kitchen has 14.5 m² and two windows, the study 9 m² and one."
SECOND = """| room | area | windows | area per window |
|---|---|---|---|
| kitchen | 14.5 m² | 2 | 7.25 m² |
| study | 9.0 m² | 1 | 9.00 m² |

The study has **less light**: one window for 9 m².
"""
COMPARING = "Both rooms by the area for each window: 14.5 / 2 = 7.25 and 9 / 1 = 9. So the study is the darker one."
TOKEN_S = 0.02  # between two pieces of an answer


def few_colours(png):
    """The PNG with at most 256 colours: the commonest ones of 15 bits, each other pixel by the nearest of them."""
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        chunks[kind] = chunks.get(kind, b"") + png[at + 8:at + 8 + size]
        at += size + 12
    width, height, depth, form = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    n = {2: 3, 6: 4}[form]
    assert depth == 8
    raw, stride = zlib.decompress(chunks[b"IDAT"]), width * n
    rows, above = [], bytearray(stride)
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride):
            left, up, corner = (row[x - n] if x >= n else 0), above[x], (above[x - n] if x >= n else 0)
            guess = left + up - corner
            paeth = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            row[x] = (row[x] + (0, left, up, (left + up) // 2, paeth)[kind]) & 255
        rows.append(row)
        above = row
    pixels = [tuple(row[x:x + 3]) for row in rows for x in range(0, stride, n)]
    counts = {}
    for pixel in pixels:
        counts[pixel] = counts.get(pixel, 0) + 1
    palette = sorted(counts, key=lambda pixel: (-counts[pixel], pixel))[:256]
    index = {pixel: i for i, pixel in enumerate(palette)}
    for pixel in counts:
        if pixel not in index:
            index[pixel] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], pixel)))
    data = b"".join(b"\0" + bytes(index[pixel] for pixel in pixels[y * width:(y + 1) * width]) for y in range(height))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return (png[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) +
            chunk(b"PLTE", b"".join(map(bytes, palette))) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def save(page, name):
    page.driver.execute_script("document.activeElement.blur()")
    png = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    path = os.path.join(ROOT, "docs", name)
    with open(path, "wb") as file:
        file.write(few_colours(base64.b64decode(png)))
    print(path, os.path.getsize(path), "bytes")


def show(page, theme):
    while page.driver.execute_script("return document.documentElement.dataset.theme") != theme:
        page.driver.execute_script("document.getElementById('theme').click()")


def speak(script, content, reasoning):
    """The answer to what was asked, piece by piece, as a server sends it."""
    pieces = [("", piece) for piece in re.findall(r"\S+\s*", reasoning)] + [(piece, "") for piece in re.findall(r"\S+\s*", content)]
    for said in pieces:
        script.say(*said)
        time.sleep(TOKEN_S)
    script.end(completion_tokens=len(pieces), total_tokens=len(pieces) + 40)


def to_top(page):
    page.driver.execute_script("document.getElementById('scroll').scrollTop = 0")


def take(page, folder):
    """All pictures, from one visit."""
    page.set(temperature=0)
    for question in ("What is the capital of Japan?", "Count from three to twelve."):
        page.ask(question)
        page.answer()
        page.click("#new-chat")
    show(page, "light")
    script = Script(page)
    script.ask("How do I solve a quadratic equation?")
    speak(script, SCRIPTED, THOUGHTS)
    page.wait(lambda: page.count("#messages .katex") == 2)
    page.click("#messages .thinking summary")
    to_top(page)
    page.driver.set_window_size(1100, 800)
    save(page, "chat-page.png")
    take_branches(page, script, folder)
    page.click("#chat-list li:nth-child(2) button")
    page.wait(lambda: page.count("#messages .katex") == 2)
    show(page, "dark")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]})
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 760, "deviceScaleFactor": 1, "mobile": True})
    to_top(page)
    save(page, "chat-page-phone.png")


def take_branches(page, script, folder):
    """A file, an answer's second variant, folded reasoning, a deletion that can be undone."""
    page.click("#new-chat")
    path = os.path.join(folder, "rooms.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write(TABLE)
    page.one("#file").send_keys(path)
    page.wait(lambda: page.all("#attached li"))
    script.ask("Which room has less light?")
    speak(script, FIRST, "")
    page.click("#messages .assistant .again")
    page.wait(lambda: len(script.bodies()) == 3)
    speak(script, SECOND, COMPARING)
    page.driver.execute_script("[...document.querySelectorAll('#chat-list .remove')].at(-1).click()")
    page.wait(lambda: page.one("#undo-box").is_displayed())
    to_top(page)
    save(page, "chat-page-branches.png")
    page.click("#dismiss")


def main():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en-US", "--no-first-run"):
        options.add_argument(flag)
    server = Server(log=os.devnull)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            take(Page(driver, server.url), folder)
    finally:
        driver.quit()
        server.stop()


if __name__ == "__main__":
    main()
