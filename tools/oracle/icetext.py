"""ChatGLM-6B's tokenizer: what its authors put around the sentencepiece library, as published (icetk's text model).

Line feeds, tabs and runs of blanks become pieces of their own before the library sees a text, and text again behind it.
The first release's file holds 130000 pieces; the rest is appended to it.
"""
import re

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

SPECIALS = ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"]
MAX_BLANKS = 80


def complete(data):
    """The bytes of a file with all 130344 pieces."""
    model = pb.ModelProto()
    model.ParseFromString(data)
    if any(piece.piece == "[gMASK]" for piece in model.pieces):
        return data
    control, user_defined, byte = 3, 4, 6
    more = [(text, control) for text in SPECIALS] + [("<|tab|>", user_defined)]
    more += [(f"<|blank_{n}|>", user_defined) for n in range(2, MAX_BLANKS + 1)]
    more += [(f"<0x{value:02X}>", byte) for value in range(256)]
    for text, kind in more:
        model.pieces.add(piece=text, score=0.0, type=kind)
    model.trainer_spec.byte_fallback = True
    return model.SerializeToString()


class Icetext:
    """The same methods as sentencepiece.SentencePieceProcessor, as far as they are compared. Texts are bytes."""

    def __init__(self, path, n_images):
        self.n_images = n_images
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=complete(open(path, "rb").read()))

    def EncodeAsIds(self, text):
        text = text.replace(b"\n", b"<n>").replace(b"\t", b"<|tab|>")
        for n in range(MAX_BLANKS, 1, -1):
            text = text.replace(b" " * n, b"<|blank_%d|>" % n)
        return [i + self.n_images for i in self.sp.EncodeAsIds(text)]

    def DecodeIds(self, ids, return_type=bytes):
        text = self.sp.DecodeIds([i - self.n_images for i in ids if i >= self.n_images], return_type=return_type)
        text = text.replace(b"<n>", b"\n").replace(b"<|tab|>", b"\t")
        return re.sub(rb"<\|blank_(\d+)\|>", lambda m: b" " * int(m[1]), text)

    def get_piece_size(self):
        return self.n_images + self.sp.get_piece_size()

    def id_to_piece(self, i):
        return self.sp.id_to_piece(i - self.n_images) if i >= self.n_images else f"<image_{i}>"

    def is_byte(self, i):
        return i >= self.n_images and self.sp.is_byte(i - self.n_images)

    def is_control(self, i):
        return i < self.n_images or self.sp.is_control(i - self.n_images)

    def is_unknown(self, i):
        return i >= self.n_images and self.sp.is_unknown(i - self.n_images)

    def is_unused(self, i):
        return i >= self.n_images and self.sp.is_unused(i - self.n_images)
