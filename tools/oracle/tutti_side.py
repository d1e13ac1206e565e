"""tutti's side of every comparison: logits through its command line."""
import os
import subprocess
import tempfile

from safetensors.numpy import load_file


def tutti_logits(tutti, model, ids, extra_args=()):
    """Logits after each of ids: float32 [n, n_vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.safetensors")
        command = [tutti, "logits", model, "--ids", ",".join(str(int(i)) for i in ids), "--out", out, *extra_args]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command[:3])}: exit status {done.returncode}\n{done.stdout}")
        logits = load_file(out)["logits"]
    if len(logits) != len(ids):
        raise SystemExit(f"{tutti}: {len(logits)} rows of logits for {len(ids)} ids")
    return logits
