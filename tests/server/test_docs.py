"""The pages: each example of a request gives the reply that follows it, and links lead somewhere."""
import glob
import os
import re
import subprocess

import pytest

from conftest import ON_CARD, PATIENCE, ROOT, Server

EXAMPLES = [os.path.join(ROOT, "docs", name) for name in ("http-api.md", "grammars.md")]
PAGES = sorted(glob.glob(os.path.join(ROOT, "*.md")) + glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def examples():
    """(command, reply) for each block that begins with curl and is followed by a reply at once."""
    for page in EXAMPLES:
        blocks = re.findall(r"^```(?:json)?\n(.*?)^```\n(?=(.*?)(?:^```|\Z))", read(page), re.M | re.S)
        for (block, between), (reply, _) in zip(blocks, blocks[1:]):
            if block.startswith("curl ") and not between.strip() and not reply.startswith("curl "):
                yield block, reply


def normalized(text):
    """Without blanks, and with a fixed value for what differs from run to run."""
    text = re.sub(r"\s", "", text)
    text = re.sub(r"(chatcmpl|cmpl|resp|msg|req)([-_])[0-9a-f]+…?", r"\1\2ID", text)
    text = re.sub(r'"(created|created_at)":\d+', r'"\1":0', text)
    return re.sub(r"fp_[0-9a-f]+", "fp_ID", text)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server("--api", "tgi,llm-serving,step", log=str(tmp_path_factory.mktemp("docs") / "log"))
    yield running
    running.process.kill()
    running.process.wait()


@pytest.mark.skipif(ON_CARD, reason="examples print the log-probabilities that the CPU computes, and its name")
@pytest.mark.parametrize("command, reply", [pytest.param(*e, id=str(i)) for i, e in enumerate(examples())])
def test_an_example_gives_the_reply_that_follows_it(server, command, reply):
    script = "J='Content-Type: application/json'\n" + command.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    done = subprocess.run(["bash", "-c", script.replace("curl ", "curl -sS ")], capture_output=True, text=True, timeout=PATIENCE,
                          check=True)
    pattern = ".*".join(re.escape(part) for part in normalized(reply).split("…"))
    if "/llm/generate" in command:  # how much a step returns depends on when it is called: here up to all of the answer
        pattern = pattern.replace("sending", "(sending|end)").partition(r"\}\{")[0] + ".*"
    assert re.fullmatch(pattern, normalized(done.stdout), re.S), f"{command}\n{reply}\n{done.stdout}"


def test_the_page_has_an_example_of_each_endpoint():
    shown = " ".join(command for command, _ in examples())
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages ", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models", "/tokenize",
                 "/detokenize", "/tokenizer_info", "/health", "/ready", "/metrics", "/generate ", "/generate_stream", "/info",
                 "/models/demo/generate ", "/models/demo/generate_stream", "/serving/get_bs", "/llm/generate"):
        assert path in shown, path


def anchors(path):
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_links_between_pages_lead_somewhere():
    faults = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(path):
                faults.append(f"{os.path.relpath(page, ROOT)}: {target}: no such file")
            elif anchor and anchor not in anchors(path):
                faults.append(f"{os.path.relpath(page, ROOT)}: {target}: no such heading")
    assert not faults, "\n".join(faults)


def rows(text, heading):
    """The cells of the first table after a line that begins with heading."""
    table = text[text.index("\n" + heading):]
    lines = re.search(r"^\|.*\n\|[-| ]+\n((?:\|.*\n)+)", table, re.M).group(1).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_architecture_names_folders_and_files_that_exist():
    text, faults = read(os.path.join(ROOT, "docs", "architecture.md")), []
    src = os.path.join(ROOT, "src")
    rooms = set()
    for room, _, files in rows(text, "## The rooms"):
        room = room.strip("`")
        rooms.add(room)
        faults += [room + name for name in re.findall(r"`([^`]+)`", files) if not os.path.exists(os.path.join(ROOT, room, name))]
    faults += [f"{name}: not in the table" for name in os.listdir(src) if os.path.isdir(os.path.join(src, name)) and f"src/{name}/" not in rooms]
    for room, parts in rows(text, "A room includes only headers"):
        folder = os.path.join(src, room.strip("`"))
        named = {name.rstrip("/") for name in re.findall(r"`([\w/]+/)`", parts)}
        found = {name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))}
        faults += [f"{room}: {name}" for name in named ^ found]
    for what, files in rows(text, "## Adding something"):
        for name in re.findall(r"`([\w./]+/[\w./]*)`", files):
            if not any(os.path.exists(os.path.join(top, name)) for top in (src, ROOT)):
                faults.append(f"{what}: {name}")
    assert not faults, "\n".join(faults)
