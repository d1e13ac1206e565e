"""The kernels for AArch64: cross-compiled, and run by qemu-aarch64 on processors with and without each instruction set, where
checkkernels compares them bit for bit with plain C."""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = "/usr/aarch64-linux-gnu"  # of Debian's cross compiler
# Processors of qemu, and the levels that kernels must be chosen for: Cortex-A72 has neither, Neoverse N1 has no SMMLA.
LEVELS = {"cortex-a72": ["neon"], "neoverse-n1": ["neon", "dotprod"], "max": ["neon", "dotprod", "i8mm"]}

pytestmark = [
    pytest.mark.skipif(platform.machine() == "aarch64", reason="the kernels of this processor run without an emulator"),
    pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-gcc") or not shutil.which("qemu-aarch64"),
                       reason="needs gcc-aarch64-linux-gnu and qemu-user"),
]


@pytest.fixture(scope="module")
def checkkernels():
    folder = Path(os.environ.get("TUTTI_BUILD", ROOT / "build-test")) / "arm64"
    if not (folder / "build.ninja").exists():
        subprocess.run(["meson", "setup", folder, ROOT, "--cross-file", ROOT / "tools/cross/arm64.ini", "-Donly_kernels=true"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder], check=True, stdout=subprocess.DEVNULL)
    return folder / "tests/kernels/checkkernels"


def run(program, cpu, *arguments):
    """The lines of TAP that are no SKIP: (result, group, level, variants that passed)."""
    done = subprocess.run(["qemu-aarch64", "-L", LIBRARIES, "-cpu", cpu, program, *arguments], capture_output=True, text=True,
                          check=False)
    found = re.findall(r"^(ok|not ok) \d+ (\S+) (\S+): (\d+) variants passed", done.stdout, re.M)
    assert done.returncode == 0, done.stdout + done.stderr
    return found


def test_every_kernel_has_the_bits_of_plain_c(checkkernels):
    found = run(checkkernels, "max", "--brief")
    passed = {(group, level): int(n) for _, group, level, n in found}
    assert all(result == "ok" for result, *_ in found)
    for group in ("linear", "rows", "attention", "lora", "sampling"):
        assert passed[group, "neon"] > 50
    # The others are linear layers of quantized weights.
    assert passed["linear", "dotprod"] > 200 and passed["linear", "i8mm"] > 200


@pytest.mark.parametrize("cpu", ["cortex-a72", "neoverse-n1"])
def test_a_processor_without_an_instruction_set_uses_the_others(checkkernels, cpu):
    found = run(checkkernels, cpu, "linear", "--brief")
    assert [level for _, _, level, _ in found] == ["ref", *LEVELS[cpu]]
    assert all(result == "ok" for result, *_ in found) and all(int(n) > 200 for *_, n in found[1:])
