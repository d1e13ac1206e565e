import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from probing import DEMO_TOKENIZER, Probe  # noqa: E402


@pytest.fixture(scope="module", params=["small", "demo"])
def probe(request):
    probe = Probe(*([DEMO_TOKENIZER] if request.param == "demo" else []))
    yield probe
    assert probe.close() == 0
