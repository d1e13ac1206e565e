"""Tests of the server that run again with their models on a card: on the stand-in for NVIDIA's driver (tests/cuda), in emulation.

All files of this folder can run so (docs/gpu.md); these tests use most of the backend. Seeds, stop strings, biases, choices and beams
on a card are tests/cuda/test_ahead.c's.
"""
import os
import re
import subprocess
import sys

import pytest

from conftest import BIN, ON_CARD, PATIENCE

HERE = os.path.dirname(os.path.abspath(__file__))

# file: its tests that are repeated, with all of their parameters
REPEATED = {
    "test_adapters.py": ["test_each_adapter_answers_alone_as_among_the_others"],
    "test_api.py": ["test_a_stream_is_the_same_answer_in_pieces", "test_several_prompts_and_choices_have_their_own_index",
                    "test_logprobs_of_a_chat", "test_models_are_listed"],
    "test_choices.py": ["test_prompt_log_probabilities_do_not_depend_on_the_choices"],
    "test_conversation.py": ["test_five_turns_read_only_their_new_tokens"],
    "test_embeddings.py": ["test_no_bit_depends_on_company", "test_as_many_inputs_as_the_api_allows"],
    "test_encoder.py": ["test_an_encoder_is_served_beside_a_chat_model"],
    "test_grammar.py": ["test_a_stream_holds_it_too"],
    "test_infill.py": ["test_a_stream_says_the_same"],
    "test_several_models.py": ["test_a_process_that_dies_is_started_again", "test_a_client_that_leaves_ends_its_answer"],
    "test_slots.py": ["test_running_and_waiting_requests_are_listed_in_order", "test_cached_tokens_and_several_prompts_are_counted"],
    "test_speculation.py": ["test_accepted_tokens_are_counted", "test_a_request_can_do_without"],
}


@pytest.mark.skipif(ON_CARD, reason="all tests of this run are on a card")
@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize("file", REPEATED)
def test_on_a_card(file):
    tests = [f"{os.path.join(HERE, file)}::{name}" for name in REPEATED[file]]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *tests],
                          env={**os.environ, "TUTTI_BIN": BIN, "TUTTI_TEST_DEVICE": "cuda"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=10 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-10000:]
    assert re.search(r"^\d+ passed in", done.stdout, re.M), done.stdout[-10000:]  # and none was skipped
