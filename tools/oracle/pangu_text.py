"""PanGu-Alpha's tokenizer: what its authors put around the sentencepiece library, as published.

Words come from the package jieba (0.42.1), by its own dictionary or by that of another folder of the same layout.
"""
import logging
import os
import tempfile

import jieba
import jieba.finalseg
import sentencepiece

jieba.setLogLevel(logging.WARNING)


def read_table(folder, name):
    scope = {}
    with open(os.path.join(folder, "finalseg", name + ".py"), encoding="utf-8") as file:
        exec(file.read(), scope)
    return scope["P"]


class Pangu:
    """The same methods as sentencepiece.SentencePieceProcessor, as far as they are compared. Texts are bytes."""

    def __init__(self, path, jieba_folder):
        self.sp = sentencepiece.SentencePieceProcessor(model_file=path)
        self.jieba = jieba.Tokenizer(os.path.join(jieba_folder, "dict.txt"))
        self.cache = tempfile.TemporaryDirectory()  # never an older dictionary's
        self.jieba.tmp_dir = self.cache.name
        jieba.finalseg.start_P = read_table(jieba_folder, "prob_start")
        jieba.finalseg.trans_P = read_table(jieba_folder, "prob_trans")
        jieba.finalseg.emit_P = read_table(jieba_folder, "prob_emit")
        self.translator = str.maketrans(" \n", "\u2582\u2583")
        for name in "get_piece_size", "id_to_piece", "is_byte", "is_control", "is_unknown", "is_unused":
            setattr(self, name, getattr(self.sp, name))

    def EncodeAsIds(self, text):
        text = text if isinstance(text, str) else text.decode("utf-8")
        return self.sp.EncodeAsIds(" ".join(word.translate(self.translator) for word in self.jieba.cut(text)))

    def DecodeIds(self, ids, return_type=bytes):
        text = self.sp.DecodeIds(ids, return_type=bytes).decode("utf-8")
        return text.replace(" ", "").replace("\u2582", " ").replace("\u2583", "\n").encode()
