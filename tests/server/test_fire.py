"""The short form of bench/fire: clients that vanish, malformed and slow HTTP, connections that rest, one kill -9 and one drain."""
import json
import os
import subprocess
import sys

from conftest import BIN, ROOT

MULTIPLIER = int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
SANITIZED = "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ


def test_a_short_fire(tmp_path):
    report = tmp_path / "fire.json"
    command = [sys.executable, os.path.join(ROOT, "bench", "fire", "fire.py"), "--minutes", "0.3", "--period", "9", "--idle", "300",
               "--requests", "15", "--clients", "8", "--patience", str(30 * MULTIPLIER), "--json", str(report), "--work", str(tmp_path)]
    done = subprocess.run(command + (["--sanitized"] if SANITIZED else []), env={**os.environ, "TUTTI_BIN": BIN}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    result = json.loads(report.read_text(encoding="utf-8"))
    assert result["lives"]["killed"] >= 1 and result["wrong"] == 0
