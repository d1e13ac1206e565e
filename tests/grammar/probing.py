"""The probe, for tests: asks grammars what they accept and lets nobody in particular write by them."""
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROBE = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "grammar", "grammar_probe")
DEMO_TOKENIZER = os.path.join(ROOT, "models", "demo", "tokenizer.model")


class Probe:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROBE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **question):
        self.process.stdin.write((json.dumps(question) + "\n").encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the probe ended with {self.process.wait()} at {question}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        return self.process.wait()
