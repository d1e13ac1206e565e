"""Settings of folders that few publishers write: each is honoured as transformers does, or refused with its name."""
import json
import os
import shutil

import pytest
from test_cli import FIXTURES, tutti

IDS = "5,17,3,40,41,42"


def change(folder, source, edit):
    shutil.copytree(os.path.join(FIXTURES, source), folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return config


def logits(folder, out):
    tutti("logits", folder, "--ids", IDS, "--kv-type", "f32", "--out", out)
    return out.read_bytes()


def rename(config, old, new):
    config["quantization_config"][new] = config["quantization_config"].pop(old)


def test_the_format_of_gptq_has_two_names(tmp_path):
    change(tmp_path / "new", "quantized/llama-gptq-v2", lambda config: rename(config, "checkpoint_format", "format"))
    want = logits(os.path.join(FIXTURES, "quantized", "llama-gptq-v2"), tmp_path / "old.out")
    assert logits(tmp_path / "new", tmp_path / "new.out") == want


def test_older_folders_of_autogptq_have_a_file_for_it(tmp_path):
    taken = {}
    change(tmp_path / "old", "quantized/llama-gptq", lambda config: taken.update(config.pop("quantization_config")))
    taken.pop("quant_method")
    (tmp_path / "old" / "quantize_config.json").write_text(json.dumps(taken), encoding="utf-8")
    want = logits(os.path.join(FIXTURES, "quantized", "llama-gptq"), tmp_path / "new.out")
    assert logits(tmp_path / "old", tmp_path / "old.out") == want


REFUSED = [
    ("llama-gptq-v2", {"checkpoint_format": "marlin"}, "checkpoint_format: \"marlin\", expected \"gptq\" or \"gptq_v2\""),
    ("llama-gptq-v2", {"checkpoint_format": None, "format": "bitblas"}, "format: \"bitblas\", expected \"gptq\" or \"gptq_v2\""),
    ("llama-awq", {"version": None, "format": "gemv"}, "format: \"gemv\", expected \"gemm\""),
    ("llama-w4a16", {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "transform_config: "),
    ("llama-w4a16", {"sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}}, "sparsity_config: "),
]


@pytest.mark.parametrize("source, settings, words", REFUSED)
def test_other_formats_of_weights_are_refused(source, settings, words, tmp_path):
    def edit(config):
        config["quantization_config"].update(settings)
        for key in [key for key, value in settings.items() if value is None]:
            config["quantization_config"].pop(key)

    change(tmp_path / "model", "quantized/" + source, edit)
    assert words in tutti("logits", tmp_path / "model", "--ids", IDS, "--out", tmp_path / "out", check=1).stderr


@pytest.mark.parametrize("settings", [{"transform_config": {}, "sparsity_config": {}}, {"sparsity_config": {"format": "dense"}}])
def test_empty_settings_of_weights_change_nothing(settings, tmp_path):
    change(tmp_path / "model", "quantized/llama-w4a16", lambda config: config["quantization_config"].update(settings))
    want = logits(os.path.join(FIXTURES, "quantized", "llama-w4a16"), tmp_path / "old.out")
    assert logits(tmp_path / "model", tmp_path / "new.out") == want


def test_the_first_context_of_phi3_is_4096_tokens(tmp_path):
    """The default of original_max_position_embeddings, and the first name of LongRoPE."""
    def edit(original, kind):
        def change_rope(config):
            config["max_position_embeddings"] = 16384
            config.pop("original_max_position_embeddings", None)
            if original:
                config["original_max_position_embeddings"] = original
            config["rope_scaling"]["type"] = kind
            config["rope_scaling"].pop("rope_type", None)
        return change_rope

    got = []
    for name, original, kind in ("absent", None, "longrope"), ("given", 4096, "su"), ("other", 16384, "longrope"):
        change(tmp_path / name, "phi4-mini-tiny", edit(original, kind))
        got.append(logits(tmp_path / name, tmp_path / (name + ".out")))
    assert got[0] == got[1] != got[2]
