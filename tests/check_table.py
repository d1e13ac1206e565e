#!/usr/bin/env python3
"""README's table of families and features: every cell that says yes has a test below that exists, runs, and names that
family; every other cell has none. summary.py checks that those tests ran, passed and checked the family. Prints TAP.

  check_table.py [ROOT]
"""
import os
import re
import sys

# The fixture of each family, by the first words of its row.
FAMILIES = {
    "ChatGLM-6B": "chatglm-6b-tiny", "ChatGLM2-6B, ChatGLM3-6B": "chatglm3-tiny", "GLM-4-9B": "glm-4-9b-tiny",
    "GLM-4 of transformers": "glm4-tiny", "LLaMA": "llama-tiny-tied", "Mistral": "mistral-tiny", "Qwen2, Qwen2.5": "qwen2-tiny",
    "Qwen3": "qwen3-tiny", "GPT-2": "gpt2-tiny", "BLOOM": "bloom-tiny", "PanGu-Alpha": "pangu-tiny",
    "Granite 3": "granite-tiny", "Phi-3, Phi-4": "phi3-tiny", "Command R, Aya": "cohere-tiny", "Command R7B, A": "cohere2-tiny", "Gemma": "gemma-tiny", "Seed-OSS": "seed-oss-tiny", "Gemma 2": "gemma2-tiny", "Gemma 3": "gemma3-tiny", "Gemma 4": "gemma4-tiny", "Gemma 4 with experts": "gemma4-moe-tiny",
    "SmolLM3": "smollm3-tiny", "StarCoder2": "starcoder2-tiny", "OLMo 2": "olmo2-tiny", "OLMo 3": "olmo3-tiny",
    "EXAONE 4": "exaone4-tiny",
    "EXAONE 3, 3.5": "exaone-tiny", "Qwen": "qwen1-tiny", "MiniCPM3": "minicpm3-tiny", "StableLM": "stablelm-tiny", "ERNIE 4.5": "ernie-tiny", "ERNIE 4.5 MoE": "ernie-moe-tiny", "Granite 4 without Mamba": "granite4-tiny", "Granite 3 MoE": "granite-moe-tiny", "Phi-2": "phi2-tiny", "GPT-NeoX": "gpt-neox-tiny", "GPTBigCode (StarCoder)": "gpt-bigcode-tiny", "GPT-J": "gptj-tiny", "Falcon 7B": "falcon-tiny",
    "OPT": "opt-tiny", "Falcon 40B": "falcon-40b-tiny", "InternLM2": "internlm2-tiny", "Baichuan2": "baichuan2-tiny",
    "openPangu-Embedded": "pangu-embedded-tiny", "Mistral Small 3.1": "mistral3-tiny", "Ministral 3": "ministral3-tiny", "Qwen2-VL, Qwen2.5-VL": "qwen2-vl-tiny",
    "Qwen3-VL": "qwen3-vl-tiny", "Qwen3-VL with experts": "qwen3-vl-moe-tiny", "GLM-4.1V": "glm4v-tiny", "GLM-4.5V": "glm4v-moe-tiny",
    "Mixtral": "mixtral-tiny", "Qwen2-MoE": "qwen2-moe-tiny", "Qwen3-MoE": "qwen3-moe-tiny", "GLM-4.5, 4.6, 4.7": "glm4-moe-tiny",
    "MiniMax-M2": "minimax-m2-tiny", "OLMoE": "olmoe-tiny",
    "gpt-oss": "gpt-oss-tiny", "DeepSeek-V2": "deepseek-v2-lite-tiny", "DeepSeek-V3, R1": "deepseek-v3-tiny", "GLM-4.7-Flash": "glm4-moe-lite-tiny",
}

# Encoders, whose vectors stand for logits; they generate nothing.
ENCODERS = {"BERT": "bert-tiny", "XLM-RoBERTa": "xlm-roberta-tiny"}
ENCODER_TESTS = "tests/server/test_encoder.py"
OF_ENCODERS = {
    "logits": (ENCODER_TESTS, "test_vectors_are_those_of_transformers_for_every_pooling"),
    "safetensors": (ENCODER_TESTS, "test_vectors_are_those_of_transformers_for_every_pooling"),
    "GGUF": (ENCODER_TESTS, "test_a_gguf_file_gives_the_vectors_of_the_folder"),
    "text": (ENCODER_TESTS, "test_ids_of_hard_texts_are_those_of_transformers"),
}

# Their tokenizers have tests of their own; ERNIE 4.5's have none, as no copy was available.
WITH_OTHER_TEXT = ("ChatGLM-6B", "ChatGLM2-6B, ChatGLM3-6B", "GLM-4-9B", "GLM-4 of transformers", "LLaMA", "Mistral", "Qwen2, Qwen2.5",
                   "Qwen3", "GPT-2", "BLOOM", "PanGu-Alpha", "ERNIE 4.5", "ERNIE 4.5 MoE")

# The published template of a family; and one that lists tools, whose calls are parsed.
TEMPLATES = {
    "Granite 3": "granite-3.3", "Phi-3, Phi-4": "phi-3.5", "Gemma": "gemma-2", "Gemma 2": "gemma-2", "Gemma 3": "gemma-3", "Gemma 4": "gemma-4", "Gemma 4 with experts": "gemma-4", "SmolLM3": "smollm3",
    "Falcon 7B": "falcon", "Falcon 40B": "falcon", "GLM-4.5V": "glm-4.5v",
    "InternLM2": "internlm2", "Mistral Small 3.1": "mistral-small-3.2", "Ministral 3": "ministral-3", "Qwen2-VL, Qwen2.5-VL": "qwen2-vl",
    "Qwen3-VL": "qwen3-vl", "Qwen3-VL with experts": "qwen3-vl", "Mixtral": "mistral-v1", "Qwen2-MoE": "qwen2",
    "Qwen3-MoE": "qwen3", "GLM-4.5, 4.6, 4.7": "glm-4.6", "MiniMax-M2": "minimax-m2", "Seed-OSS": "seed-oss", "DeepSeek-V2": "deepseek-v2",
    "DeepSeek-V3, R1": "deepseek-v3", "GLM-4.7-Flash": "glm-4.7-flash", "gpt-oss": "gpt-oss",
}
TEMPLATES_WITH_TOOLS = {
    "Mistral": "mistral-nemo", "Granite 3": "granite-3.3", "Mistral Small 3.1": "mistral-small-3.2",
    "Ministral 3": "ministral-3", "Qwen3-VL": "qwen3-vl", "Qwen3-VL with experts": "qwen3-vl", "Qwen3-MoE": "qwen3-coder",
    "GLM-4.5, 4.6, 4.7": "glm-4.6", "MiniMax-M2": "minimax-m2", "Seed-OSS": "seed-oss", "GLM-4.7-Flash": "glm-4.7-flash", "gpt-oss": "gpt-oss",
    "Phi-3, Phi-4": "phi-4-mini", "Gemma 3": "gemma-3-pythonic", "Gemma 4": "gemma-4", "Gemma 4 with experts": "gemma-4", "InternLM2": "internlm2-tools", "GLM-4.5V": "glm-4.5v",
    "Mixtral": "mixtral-8x22b", "DeepSeek-V3, R1": "deepseek-v3-tools",
}

FORMATS = "tests/cli/test_every_format.py"
SAME_BITS = "test_the_same_tensors_in_another_format_give_the_same_bits"
TEXT = "tests/cli/test_byte_level.py", "test_text_becomes_ids_and_text_again"
FAMILY_TEXT = "tests/cli/test_family_text.py", "test_ids_and_greedy_text_are_those_of_transformers"
OWN_TEXT = "tests/cli/test_text.py", "test_tokenize_gives_the_ids_of_a_prompt"
CHAT, CHAT_IDS = "tests/model/test_chat.c", ("tests/model/test_chat_tokens.c", "own_formats_give_the_same_ids")
TEMPLATE_PROMPTS = "tests/model/test_family_chats.c", "prompts_are_those_of_jinja"
TEMPLATE_CALLS = "tests/model/test_family_chats.c", "calls_that_a_template_writes_are_parsed"
BEAMS = "tests/engine/test_beams.c", "answers_are_those_of_transformers"
AUTHORS = CHAT, "own_templates_say_what_the_authors_say"
DEMO = "tests/model/test_golden.c", "the_demo_model_renders_and_answers_as_the_golden_chats"
INTS = "tests/model/test_formats.c", "files_of_every_format_give_the_golden_logits"

# column: for every family the same test; it must hold the fixture's name.
ALL = {
    "logits": ("tests/model/test_families.c", "logits_agree_with_the_reference"),
    "safetensors": ("tests/model/test_families.c", "logits_agree_with_the_reference"),
    "PyTorch": (FORMATS, SAME_BITS),
    "MindSpore": (FORMATS, SAME_BITS),
    "GGUF": (FORMATS, "test_the_model_as_gguf_gives_the_same_bits"),
    "types": ("tests/model/test_families.c", "other_types_cost_no_more_than_they_must"),
    "LoRA": ("tests/model/test_adapters.c", "logits_and_greedy_answers_are_those_of_peft"),
    "merged": ("tests/model/test_adapters.c", "merged_weights_give_what_the_adapter_gives"),
}

# column: family: file, test, a word that the file must hold.
SOME = {
    "int4, int8": {
        "ChatGLM-6B": (*INTS, "chatglm-6b-tiny-int4"), "ChatGLM2-6B, ChatGLM3-6B": (*INTS, "chatglm3-tiny-int4"), "GLM-4-9B": (*INTS, "glm-4-9b-tiny-int8"),
    },
    "text": {
        "ChatGLM-6B": (*OWN_TEXT, "chatglm-6b-text"), "ChatGLM2-6B, ChatGLM3-6B": (*DEMO, "chatglm3"),
        "GLM-4-9B": (*TEXT, "glm-4-9b-tiny"), "GLM-4 of transformers": (*TEXT, "glm4-tiny"), "LLaMA": (*TEXT, "llama-tiny-tied"),
        "Mistral": (*TEXT, "mistral-tiny"), "Qwen2, Qwen2.5": (*TEXT, "qwen2-tiny"), "Qwen3": (*TEXT, "qwen3-tiny"),
        "GPT-2": (*TEXT, "gpt2-tiny"), "BLOOM": (*TEXT, "bloom-tiny"), "PanGu-Alpha": (*OWN_TEXT, "pangu-text"),
        **{family: (*FAMILY_TEXT, fixture) for family, fixture in FAMILIES.items() if family not in WITH_OTHER_TEXT},
    },
    "chat": {
        "ChatGLM-6B": ("tests/cli/test_text.py", "test_chat_talks_to_a_chatglm_6b", "chatglm-6b-text"),
        "ChatGLM2-6B, ChatGLM3-6B": (*DEMO, "chatglm3"), "GLM-4-9B": (*CHAT_IDS, "glm-4-9b"),
        "GLM-4 of transformers": (*CHAT_IDS, "glm4"), "LLaMA": (*CHAT_IDS, "llama3.1"), "Mistral": (*AUTHORS, "mistral-v3"),
        "Qwen2, Qwen2.5": (*CHAT_IDS, "qwen2.5"), "Qwen3": (*CHAT_IDS, "qwen3"),
        "Baichuan2": (CHAT, "baichuan_marks_messages_by_two_ids", "baichuan"),
        **{family: (*TEMPLATE_PROMPTS, name) for family, name in TEMPLATES.items()},
    },
    "tools": {
        "ChatGLM2-6B, ChatGLM3-6B": (CHAT, "chatglm3_lists_tools_and_writes_calls_as_python", "chatglm3"),
        "GLM-4-9B": (CHAT, "glm4_lists_tools_and_writes_calls_as_json", "glm4"),
        "GLM-4 of transformers": (CHAT, "glm4_lists_tools_and_writes_calls_as_json", "glm4"),
        "LLaMA": (*AUTHORS, "llama3.1"), "Qwen2, Qwen2.5": (*AUTHORS, "qwen2.5"), "Qwen3": (*AUTHORS, "qwen3"),
        **{family: (*TEMPLATE_CALLS, name) for family, name in TEMPLATES_WITH_TOOLS.items()},
    },
    "beams": {family: (*BEAMS, fixture.removesuffix("-tied")) for family, fixture in FAMILIES.items()},
}


EVERY = {**FAMILIES, **ENCODERS}


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def read_table(root):
    """{(family, column): cell} of the table that begins with "family | logits"."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in read(root, "README.md").splitlines()
            if line.startswith("|")]
    start = next(i for i, row in enumerate(rows) if row[:2] == ["family", "logits"])
    columns, cells = rows[start][1:], {}
    for row in rows[start + 2:]:
        if len(row) != len(columns) + 1 or row[0] not in EVERY:
            break
        cells.update({(row[0], column): cell for column, cell in zip(columns, row[1:], strict=True)})
    return columns, cells


def is_run(root, path, test):
    """A pytest function, or a cmocka test of a program that meson knows."""
    text = read(root, path)
    if path.endswith(".py"):
        return re.search(rf"^def {test}\(", text, re.M) is not None
    name = os.path.basename(path).removeprefix("test_").removesuffix(".c")
    meson = read(root, os.path.join(os.path.dirname(path), "meson.build"))
    return f"cmocka_unit_test({test})" in text and f"'{name}'" in meson


def proof_of(family, column):
    if family in ENCODERS:
        is_tested = column in OF_ENCODERS and (column != "GGUF" or family == "BERT")
        return (*OF_ENCODERS[column], ENCODERS[family]) if is_tested else None
    if column in ALL:
        return (*ALL[column], FAMILIES[family])
    return SOME.get(column, {}).get(family)


def faults_of_cells(root):
    columns, cells = read_table(root)
    if {family for family, _ in cells} != set(EVERY):
        yield f"README.md: families {sorted({family for family, _ in cells})}"
    if set(columns) != set(ALL) | set(SOME):
        yield f"README.md: columns {columns}"
    for (family, column), cell in cells.items():
        proof = proof_of(family, column)
        if (cell == "yes") != bool(proof) or cell not in ("yes", "–"):
            yield f"README.md: {family}, {column}: \"{cell}\", the list of proofs has {proof}"


def faults_of_proofs(root):
    for family in EVERY:
        for column in [*ALL, *SOME]:
            proof = proof_of(family, column)
            if not proof:
                continue
            path, test, word = proof
            if not os.path.exists(os.path.join(root, path)) or not is_run(root, path, test):
                yield f"{family}, {column}: {path} has no test {test} that is run"
            elif f'"{word}"' not in read(root, path) and f'/{word}"' not in read(root, path):
                yield f"{family}, {column}: {path} does not speak of {word}"


def proofs():
    """(cell, file, test, word that the test must have said): for those who know what ran and passed."""
    for family in EVERY:
        for column in [*ALL, *SOME]:
            proof = proof_of(family, column)
            if proof:
                yield (f"{family}, {column}", *proof)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checks = (("the table says what the list of proofs says", faults_of_cells),
              ("every proof is a test that is run", faults_of_proofs))
    print(f"1..{len(checks)}")
    failed = False
    for number, (name, check) in enumerate(checks, 1):
        faults = list(check(root))
        failed |= bool(faults)
        print(f"{'not ok' if faults else 'ok'} {number} - {name}")
        for fault in faults:
            print(f"# {fault}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
