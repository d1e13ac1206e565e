"""The demo model as one that thinks: two rare pieces of its vocabulary become <think> and </think>, and its chat template opens
the thinking, which ends by a budget, since the model does not know the marks."""
import os
import shutil

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "models", "demo")
MARKS = [b"<think>", b"</think>"]
CONTROL = 3  # the type of a piece in sentencepiece_model.proto
TEMPLATE = ("{% for m in messages %}{{ m.content or '' }}{% endfor %}"
            "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}")


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def fields(data):
    """(key, the field with its key and length, the bytes of a text) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        text = b""
        if key & 7 == 2:
            n, at = varint(data, at)
            text, at = data[at:at + n], at + n
        else:
            at = varint(data, at)[1] if key & 7 == 0 else at + {1: 8, 5: 4}[key & 7]
        yield key, data[begin:at], text


def with_marks(model):
    parts = list(fields(model))
    pieces = [index for index, (key, _, _) in enumerate(parts) if key == 1 << 3 | 2]
    for mark, index in zip(MARKS, reversed(pieces)):
        score = next(whole for key, whole, _ in fields(parts[index][2]) if key == 2 << 3 | 5)
        piece = b"\x0a" + number(len(mark)) + mark + score + b"\x18" + bytes([CONTROL])
        parts[index] = (None, b"\x0a" + number(len(piece)) + piece, b"")
    return b"".join(whole for _, whole, _ in parts)


def thinking_model(folder):
    """Returns the arguments with which a command runs it."""
    path = folder / "thinker"
    shutil.copytree(DEMO, path)
    tokenizer = path / "tokenizer.model"
    tokenizer.chmod(0o644)
    tokenizer.write_bytes(with_marks(tokenizer.read_bytes()))
    (folder / "thinker.jinja").write_text(TEMPLATE)
    return [str(path), "--chat-format", str(folder / "thinker.jinja")]
