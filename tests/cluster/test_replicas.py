"""Replicas of the demo model with HAProxy in front: they die and are restarted while requests run."""
import json
import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
MULTIPLIER = int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
PATIENCE = 60 * MULTIPLIER
pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")


def test_nobody_notices_what_happens_to_other_replicas(tmp_path):
    """bench/replicas in small: one is killed, then all are restarted in turn. The long form has 200 clients and 15 kills."""
    result = tmp_path / "result.json"
    seconds = 4 * MULTIPLIER  # a replica that was killed serves again, and HAProxy has seen that, before the next one is
    done = subprocess.run([sys.executable, f"{ROOT}/bench/replicas", "--tutti", BIN, "--clients", "20", "--seconds", str(seconds),
                           "--kill-every", str(seconds / 2), "--conversations", "6", "--json", result, "--keep", tmp_path / "logs"],
                          capture_output=True, text=True, timeout=5 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(result.read_text())
    assert figures["kills"] >= 1 and figures["completed"] > 20 and figures["rolling_restart_requests"] > 0
    assert figures["problems"] == [] and figures["wrong_texts"] == 0
    assert figures["completed"] + figures["cut"] == figures["requests"]
