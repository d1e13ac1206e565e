"""Reference libraries of byte-level tokenizers, with the methods of sentencepiece's processor as far as they are compared.

A specification is what tests/tokenizer/tokenizer_lines takes: json:FILE and vocab:PRE:FOLDER are read by the Hugging Face
libraries, tiktoken:PRE:FILE by tiktoken with the pattern and the special tokens of the models' own code.

Texts are bytes; what is no UTF-8 is replaced by U+FFFD first, as Python does.
"""
import base64
import json
import os

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
PATTERNS = {"llama-bpe": WORDS, "glm4": WORDS}


def special_tokens(folder):
    """{content: id} of tokenizer_config.json."""
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
        entries = json.load(file)["added_tokens_decoder"]
    return {entry["content"]: int(i) for i, entry in entries.items()}


def read_ranks(path):
    with open(path, "rb") as file:
        pairs = (line.split() for line in file.read().splitlines() if line)
        return {base64.b64decode(token): int(rank) for token, rank in pairs}


class Tiktoken:
    def __init__(self, pre, path):
        import tiktoken
        self.name = f"tiktoken {tiktoken.__version__}"
        self.special = special_tokens(os.path.dirname(path))
        self.ids_of_special = set(self.special.values())
        self.encoding = tiktoken.Encoding("", pat_str=PATTERNS[pre], mergeable_ranks=read_ranks(path),
                                          special_tokens=self.special)

    def EncodeAsIds(self, text):
        return self.encoding.encode_ordinary(text.decode("utf-8", "replace"))

    def EncodeTrusted(self, text):
        return self.encoding.encode(text.decode("utf-8", "replace"), allowed_special="all")

    def DecodeIds(self, ids, return_type=bytes):
        return self.encoding.decode([i for i in ids if i not in self.ids_of_special]).encode()

    def get_piece_size(self):
        return self.encoding.n_vocab

    def is_control(self, i):
        return i in self.ids_of_special


def characters(run):
    """Each character of a run of bytes, U+FFFD for each byte that is part of none."""
    text = ""
    while run:
        for n in range(1, 5):
            try:
                text += run[:n].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            text, n = text + "\ufffd", 1
        run = run[n:]
    return text


class HuggingFace:
    def __init__(self, tokenizer):
        import tokenizers
        self.name = f"tokenizers {tokenizers.__version__}"
        self.tokenizer = tokenizer
        data = json.loads(tokenizer.to_str())
        self.special = {entry["id"] for entry in data["added_tokens"] if entry["special"]}
        bytes_of = {f"<0x{b:02X}>": bytes([b]) for b in range(256)} if data["model"].get("byte_fallback") else {}
        vocab = data["model"]["vocab"]   # of a unigram model a list
        pairs = vocab.items() if isinstance(vocab, dict) else [(token, i) for i, (token, _) in enumerate(vocab)]
        self.values = {i: bytes_of[token] for token, i in pairs if token in bytes_of}
        self.strips = "Strip" in json.dumps(data["decoder"])
        # Text makes no special token in tutti; to models other than BPE its spelling is a piece like any. The token of a character is text.
        plain = json.dumps(data)
        for entry in data["added_tokens"]:
            if entry["special"] and len(entry["content"]) > 1:
                plain = plain.replace(json.dumps(entry["content"]), json.dumps("\ue000" * 5 + entry["content"]))
        self.plain = tokenizers.Tokenizer.from_str(plain)
        self.plain.encode_special_tokens = True

    def EncodeAsIds(self, text):
        return self.plain.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids

    def EncodeTrusted(self, text):
        return self.tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids

    def DecodeIds(self, ids, return_type=bytes):
        # It shows special tokens that are looked for in normalized text, by what these are normalized to.
        ids = [i for i in ids if i not in self.special]
        return (self.decode_bytes(ids) if self.values else self.tokenizer.decode(ids, skip_special_tokens=True)).encode()

    def decode_bytes(self, ids):
        """The library shows nothing of a run of bytes that is not UTF-8 as a whole; here its characters are, as by SentencePiece."""
        kept = []
        for i in ids:
            if i not in self.values:
                kept.append(i)
            elif kept and isinstance(kept[-1], bytes):
                kept[-1] += self.values[i]
            else:
                kept.append(self.values[i])
        text = "".join(characters(i) if isinstance(i, bytes) else self.tokenizer.id_to_token(i).replace("\u2581", " ") for i in kept)
        return text.removeprefix(" ") if self.strips else text

    def get_piece_size(self):
        return self.tokenizer.get_vocab_size()

    def is_control(self, i):
        added = self.tokenizer.get_added_tokens_decoder()
        return i in added and added[i].special


def load(spec):
    """The library behind a specification; None: it is no byte-level tokenizer's."""
    kind, _, rest = spec.partition(":")
    if kind == "tiktoken":
        return Tiktoken(*rest.split(":", 1))
    if kind == "json":
        import tokenizers
        return HuggingFace(tokenizers.Tokenizer.from_file(rest))
    if kind == "vocab":
        import transformers
        pre, folder = rest.split(":", 1)
        cls = {"gpt-2": transformers.GPT2Tokenizer, "qwen2": transformers.Qwen2Tokenizer}[pre]
        return HuggingFace(cls.from_pretrained(folder).backend_tokenizer)
    return None
