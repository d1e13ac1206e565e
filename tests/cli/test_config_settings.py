"""Settings of config.json that one class of transformers reads from several places: the place that counts there counts here, and what
would be ignored is refused with its name."""
import json
import os
import shutil

import pytest
from test_cli import DEMO, FIXTURES, tutti

IDS = "5,9,2,11,7,3,8,14,6,10,4,12,13,15,16,17,18,19,20,21"
LINEAR = {"rope_type": "linear", "factor": 4.0}
FULL = {"rope_type": "default", "rope_theta": 5e4}
SLIDING = {"rope_type": "default", "rope_theta": 1e3}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


def changed(folder, name, settings, without=()):
    """The fixture in folder with these settings, and without those keys."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(FIXTURES, name), folder)
    with open(folder / "config.json", encoding="utf-8") as file:
        config = json.load(file)
    config = {key: value for key, value in config.items() if key not in without} | settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(name="logits")
def logits_of(tmp_path):
    def run(name, settings, without=()):
        out = tmp_path / "logits.safetensors"
        tutti("logits", changed(tmp_path / "model", name, settings, without), "--ids", IDS, "--out", out, "--type", "f32", "-t", "1")
        return out.read_bytes()

    return run


@pytest.mark.parametrize("key, older, value", [("rope_theta", "rotary_emb_base", 500.0), ("partial_rotary_factor", "rotary_pct", 0.5)])
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_gpt_neox_reads_its_older_keys_where_the_object_lacks_them(logits, key, older, value, place):
    settings = {place: {"rope_type": "default", key: value}}
    assert logits("gpt-neox-tiny", settings) == logits("gpt-neox-tiny", {older: value}) != logits("gpt-neox-tiny", {})


def test_gemma_3_reads_the_base_of_rope_scaling(logits):
    keys = ["rope_theta", "rope_local_base_freq", "rope_parameters", "rope_scaling"]
    inside = logits("gemma3-tiny", {"rope_scaling": {**LINEAR, "rope_theta": 777.0}}, keys)
    assert inside == logits("gemma3-tiny", {"rope_scaling": LINEAR, "rope_theta": 777.0}, keys)
    assert inside != logits("gemma3-tiny", {"rope_scaling": LINEAR}, keys)
    assert logits("gemma3-tiny", {"rope_scaling": LINEAR, "rope_theta": 1e6}, keys) == logits("gemma3-tiny", {"rope_scaling": LINEAR}, keys)


def test_olmo_3_scales_the_layers_without_a_window(logits):
    keys = ["rope_theta", "rope_scaling"]
    plain = logits("olmo3-tiny", {})
    # transformers 4, 5 before 5.24, and since; factor of attention and ramp are the usual ones
    assert plain == logits("olmo3-tiny", {"rope_scaling": YARN, "rope_theta": 5e5})
    assert plain == logits("olmo3-tiny", {"rope_parameters": {**YARN, "rope_theta": 5e5}}, keys)
    full, sliding = {**YARN, "rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}
    assert plain == logits("olmo3-tiny", {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}, keys)
    assert plain == logits("olmo3-tiny", {"rope_parameters": {"full_attention": YARN}}, keys)
    unscaled = logits("olmo3-tiny", {}, ["rope_scaling"])
    others = [logits("olmo3-tiny", {"rope_parameters": {"full_attention": full, "sliding_attention": SLIDING}}, keys),
              logits("olmo3-tiny", {"rope_theta": 1e3}), unscaled]
    assert len({plain, *others}) == 4
    assert unscaled == logits("olmo3-tiny", {"layer_types": ["sliding_attention"] * 5})  # the ids fit into the window


def test_olmo_3_has_windows_in_three_of_four_layers(logits):
    plain = logits("olmo3-tiny", {"sliding_window": 7})
    assert plain == logits("olmo3-tiny", {"sliding_window": 7}, ["layer_types"])
    assert plain != logits("olmo3-tiny", {"sliding_window": 4096}) == logits("olmo3-tiny", {}, ["sliding_window"])


@pytest.mark.parametrize("settings, said", [
    ({"layer_types": ["full_attention"] + ["sliding_attention"] * 4}, "layer_types: windows in other layers"),
    ({"rope_parameters": {"full_attention": YARN, "sliding_attention": SLIDING}}, "rope_parameters: another rope_theta"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}, "rope_type: llama3"),
    ({"head_dim": 24}, "head_dim: another number"),
    ({"attention_bias": True}, "attention_bias: true"),
])
def test_gguf_cannot_have_every_olmo_3(tmp_path, settings, said):
    folder = changed(tmp_path / "model", "olmo3-tiny", settings, ["rope_scaling"])
    refused = tutti("convert", folder, tmp_path / "out.gguf", "--type", "f32", check=1).stderr
    assert said in refused and "which GGUF's architecture olmo2 cannot express" in refused


def test_gguf_cannot_have_a_tied_olmo_3(tmp_path):
    folder = changed(tmp_path / "model", "olmo3-tiny", {"tie_word_embeddings": True})
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b'"lm_head.weight"', b'"classifier.one"'))
    tutti("logits", folder, "--ids", IDS, "--out", tmp_path / "out")
    assert "tie_word_embeddings: true, which GGUF" in tutti("convert", folder, tmp_path / "out.gguf", check=1).stderr


def test_minimax_m2_rotates_a_part_of_each_head(logits):
    plain, keys = logits("minimax-m2-tiny", {}), ["rotary_dim", "rope_theta"]
    # transformers writes the part as well, or instead
    new = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
    assert plain == logits("minimax-m2-tiny", {"rope_parameters": new}, ["rope_theta"])
    assert plain == logits("minimax-m2-tiny", {"rope_parameters": new}, keys)
    assert plain == logits("minimax-m2-tiny", {"partial_rotary_factor": 0.5}, keys)  # the base is the class's
    whole = logits("minimax-m2-tiny", {}, ["rotary_dim"])
    assert plain != whole == logits("minimax-m2-tiny", {"rotary_dim": 24})


def text_config(name, rope):
    with open(os.path.join(FIXTURES, name, "config.json"), encoding="utf-8") as file:
        text = json.load(file)["text_config"]
    return {"text_config": {**text, "rope_parameters": {**text["rope_parameters"], **rope}}}


def test_ministral_3_ends_at_its_original_context(tmp_path):
    def run(growth, n_ids, check):
        folder = changed(tmp_path / "model", "ministral3-tiny", text_config("ministral3-tiny", {"llama_4_scaling_beta": growth}))
        return tutti("logits", folder, "--ids", ",".join(["7"] * n_ids), "--out", tmp_path / "out", check=check).stderr
    run(0.1, 384, 0)
    assert "385 token ids, but the model has a context of 384" in run(0.1, 385, 2)
    run(0, 385, 0)


@pytest.mark.parametrize("rope, said", [
    ({"rope_type": "default", "type": "default"}, "rope_parameters.rope_type: another scaling"),
    ({"llama_4_scaling_beta": None}, "rope_parameters.llama_4_scaling_beta"),
])
def test_ministral_3_needs_its_scaling(tmp_path, rope, said):
    folder = changed(tmp_path / "model", "ministral3-tiny", text_config("ministral3-tiny", rope))
    assert said in tutti("inspect", folder, check=1).stderr


def test_the_first_gemma_has_one_activation_with_several_names(logits):
    plain, tanh = logits("gemma-tiny", {}), "gelu_pytorch_tanh"
    assert plain == logits("gemma-tiny", {}, ["hidden_act"]) == logits("gemma-tiny", {"hidden_act": tanh})
    assert plain == logits("gemma-tiny", {"hidden_act": tanh, "hidden_activation": tanh}) == logits("gemma-tiny", {"hidden_activation": None})


def test_cohere2_has_windows_in_three_of_four_layers(logits):
    plain = logits("cohere2-tiny", {"sliding_window": 7})
    types = ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"]
    assert plain == logits("cohere2-tiny", {"sliding_window": 7}, ["sliding_window_pattern"])
    assert plain == logits("cohere2-tiny", {"sliding_window": 7, "layer_types": types}, ["sliding_window_pattern"])
    others = [logits("cohere2-tiny", {"sliding_window": 7, "sliding_window_pattern": 5}), logits("cohere2-tiny", {})]
    assert len({plain, *others}) == 3
    assert others[1] == logits("cohere2-tiny", {}, ["sliding_window"])  # the ids fit into both


@pytest.mark.parametrize("name, settings, said", [
    ("olmoe-tiny", {"clip_qkv": 8.0}, "clip_qkv"),
    ("cohere-tiny", {"use_qk_norm": True}, "use_qk_norm"),
    ("cohere2-tiny", {"sliding_window": None}, "sliding_window"),
    ("cohere2-tiny", {"rotary_pct": 0.5}, "rotary_pct"),
    ("cohere2-tiny", {"use_parallel_block": False}, "use_parallel_block"),
    ("gemma-tiny", {"hidden_act": "silu"}, "hidden_act: silu"),
    ("gemma-tiny", {"hidden_activation": "gelu"}, "hidden_activation: gelu"),
    ("gemma-tiny", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("minimax-m2-tiny", {"attn_type_list": [1, 0]}, "attn_type_list: another kind"),
    ("minimax-m2-tiny", {"partial_rotary_factor": 0.25}, "rotary_dim: another part"),
    ("minimax-m2-tiny", {"scoring_func": "softmax"}, "scoring_func"),
    ("minimax-m2-tiny", {"use_routing_bias": False}, "use_routing_bias"),
    ("minimax-m2-tiny", {"qk_norm_type": "per_head"}, "qk_norm_type"),
    ("minimax-m2-tiny", {"shared_intermediate_size": 64}, "shared_intermediate_size"),
    ("minimax-m2-tiny", {"sliding_window": 16}, "sliding_window"),
    ("olmo3-tiny", {"rope_parameters": {"full_attention": FULL, "sliding_attention": YARN}}, "sliding_attention.rope_type: yarn"),
    ("olmo3-tiny", {"sliding_window": None}, "sliding_window"),
    ("gemma3-tiny", {"rope_parameters": {"full_attention": FULL, "sliding_attention": SLIDING}, "rope_scaling": LINEAR}, "rope_scaling: an object"),
    ("gemma3-tiny", {"rope_parameters": {"full_attention": {**FULL, "alpha": 7}, "sliding_attention": SLIDING}}, "full_attention.alpha"),
    ("gemma4-tiny", {"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input: an embedding for each layer"),
    ("gemma4-tiny", {"num_kv_shared_layers": 1}, "num_kv_shared_layers: keys and values that layers share"),
    ("gemma4-tiny", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ("gemma4-tiny", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types: a window of the last layer"),
    ("gemma4-tiny", {"rope_theta": 1e4}, "rope_theta: a setting of the rotation outside of rope_parameters"),
    ("gemma4-tiny", {"rope_parameters": FULL}, "rope_parameters: what has no object for each kind of layers"),
    ("gemma4-tiny", {"rope_parameters": {"full_attention": YARN, "sliding_attention": SLIDING}}, "full_attention.rope_type: yarn"),
    ("gemma4-tiny", {"rope_parameters": {"full_attention": {**FULL, "alpha": 7}, "sliding_attention": SLIDING}}, "full_attention.alpha"),
    ("gemma4-tiny", {"per_layer_config": {"1": {"head_dim": 40}, "3": {"head_dim": 32}}}, "per_layer_config: other heads"),
    ("gemma4-tiny", {"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config: another setting"),
    ("gemma4-tiny", {"per_layer_config": {"9": {"head_dim": 40}}}, "per_layer_config: what is no object"),
    ("gemma4-tiny", {"per_layer_config": {"1": 40}}, "per_layer_config: what is no object of a layer"),
    ("gemma4-moe-tiny", {"hidden_activation": "silu"}, "hidden_activation: silu"),
    ("deepseek-v2-tiny", {"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
    ("glm4-moe-tiny", {"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
])
def test_what_would_be_ignored_is_refused_by_name(tmp_path, name, settings, said):
    folder = changed(tmp_path / "model", name, settings, ["rope_scaling"])
    assert said in tutti("logits", folder, "--ids", IDS, "--out", tmp_path / "out", check=1).stderr


def test_older_folders_have_their_sampling_in_the_configuration(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    os.remove(folder / "generation_config.json")

    def answer(settings):
        with open(os.path.join(DEMO, "config.json"), encoding="utf-8") as file:
            (folder / "config.json").write_text(json.dumps(json.load(file) | settings), encoding="utf-8")
        return tutti("generate", folder, "-p", "Once upon a time", "-n", "24", "--temperature", "0")

    plain = answer({"repetition_penalty": 1.0, "top_k": 50, "no_repeat_ngram_size": 0, "num_beams": 1, "bad_words_ids": None})
    assert "left out" not in plain.stderr
    assert answer({"repetition_penalty": 50.0}).stdout != plain.stdout == answer({}).stdout
    assert "config.json: left out, since no setting of an answer has them as its default: no_repeat_ngram_size, num_beams" in answer(
        {"no_repeat_ngram_size": 3, "num_beams": 4}).stderr


@pytest.mark.parametrize("strings", [["\n\n"], "\n\n"])
def test_defaults_that_no_answer_can_have_are_named(tmp_path, strings):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)

    def said(settings):
        (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return tutti("generate", folder, "-p", "Once", "-n", "1").stderr

    assert "left out" not in said({"guidance_scale": 1, "stop_strings": []})
    assert "generation_config.json: left out, since no setting of an answer has them as its default: guidance_scale, stop_strings" in said(
        {"guidance_scale": 1.5, "stop_strings": strings})


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_suppressed_tokens_are_refused_by_name(tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    if name == "config.json":
        os.remove(folder / "generation_config.json")
    with open(folder / name, encoding="utf-8") as file:
        settings = json.load(file)
    (folder / name).write_text(json.dumps(settings | {"suppress_tokens": [5]}), encoding="utf-8")
    assert f"{name}: suppress_tokens: tokens that may never be sampled" in tutti("generate", folder, "-p", "Hi", "-n", "1", check=1).stderr


def test_gguf_cannot_have_deepseeks_factor_of_scores_without_yarn(tmp_path):
    folder = changed(tmp_path / "model", "deepseek-v3-tiny", {"rope_scaling": {"type": "linear", "factor": 4.0, "mscale_all_dim": 0.8}})
    refused = tutti("convert", folder, tmp_path / "out.gguf", "--type", "f32", check=1).stderr
    assert "rope_scaling: mscale_all_dim without YaRN, which GGUF's architecture deepseek2 cannot express" in refused
    changed(folder, "deepseek-v3-tiny", {"rope_scaling": {"type": "linear", "factor": 4.0}})
    tutti("convert", folder, tmp_path / "out.gguf", "--type", "f32")
