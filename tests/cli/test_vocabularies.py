"""ChatGLM-6B came with two vocabularies: the first has 20,000 tokens of images in front, and a configuration that does not name its
mask tokens. The ids of the tiny checkpoint, put where each vocabulary has its text and its special tokens, give the golden logits."""
import json
import os

import pytest

from test_cli import FIXTURES, read_safetensors, tutti
from test_every_format import read_tensors, write_safetensors

TINY = os.path.join(FIXTURES, "chatglm-6b-tiny")
SPECIAL = 100   # of the tiny vocabulary: [MASK], [gMASK], two more, <sop>, <eop>
EMBEDDINGS = ("transformer.word_embeddings.weight", "lm_head.weight")
FIRST = {"vocab_size": 150528, "bos_token_id": 150004, "eos_token_id": 150005, "pad_token_id": 20003}
SECOND = {"vocab_size": 130528, "bos_token_id": 130004, "eos_token_id": 130005, "pad_token_id": 3, "mask_token_id": 130000,
          "gmask_token_id": 130001}


def write_model(folder, changes, places):
    with open(os.path.join(TINY, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    for key in ("mask_token_id", "gmask_token_id"):
        del config[key]
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    tensors = read_tensors("chatglm-6b-tiny")
    for name in EMBEDDINGS:
        dtype, (_, width), data = tensors[name]
        n = width * 2
        table = bytearray(changes["vocab_size"] * n)
        for row, place in enumerate(places):
            table[place * n:place * n + n] = data[row * n:row * n + n]
        tensors[name] = (dtype, [changes["vocab_size"], width], table)
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.mark.parametrize("changes,text,special", [(FIRST, 20000, 150000), (SECOND, 0, 130000)], ids=["first", "second"])
def test_both_vocabularies_of_chatglm_6b_give_the_golden_logits(changes, text, special, tmp_path):
    golden = read_safetensors(os.path.join(TINY, "golden.safetensors"))
    n_vocab = golden["0.logits"][1][1]
    places = [text + i if i < SPECIAL else special + i - SPECIAL for i in range(n_vocab)]
    write_model(tmp_path, changes, places)
    for k, length in enumerate((3, 17, 200)):
        ids, want = golden[f"{k}.ids"][2], golden[f"{k}.logits"][2]
        assert len(ids) == length
        tutti("logits", tmp_path, "--ids", ",".join(str(places[i]) for i in ids), "--out", tmp_path / "logits",
              "--type", "f32", "--kv-type", "f32")
        _, shape, got = read_safetensors(tmp_path / "logits")["logits"]
        assert shape == [length, changes["vocab_size"]]
        for p in range(length):
            row = want[p * n_vocab:(p + 1) * n_vocab]
            error = max(abs(got[p * shape[1] + place] - x) for place, x in zip(places, row, strict=True))
            assert error <= 1e-4 * max(map(abs, row))
