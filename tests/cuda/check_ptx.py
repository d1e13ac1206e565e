#!/usr/bin/env python3
"""Assembles the kernels for every level of cards, as the driver does when a card is opened.

  check_ptx.py FILE.ptx...

Prints registers and spilled bytes of each kernel, and fails where a kernel in HOT spills more than is allowed there: its loops would
wait for memory of their own making. Registers are bounded by the threads of a block, which each text states (.maxntid). Needs ptxas of a CUDA toolkit; nothing else
of tutti does. Prints TAP.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

# The beginnings of names of kernels in which a step spends its time, and the bytes that they may spill: those of attention over the
# rows of prompts do outside of their loops over keys (docs/notes/cuda.md). The first that fits counts.
HOT = (("attention_wide", 512), ("attention_f16_", 0), ("attention_i8_", 0), ("attention_bf16_64", 0), ("attention_latent_f16", 0),
       ("attention_latent_bf16", 0), ("attention", 128), ("linear", 0),
       ("experts", 0), ("sample", 0), ("norm", 0), ("scale", 0), ("activate", 0))
INFO = re.compile(r"Compiling entry function '(\w+)'.*?\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
                  r".*?Used (\d+) registers", re.S)


def find_ptxas():
    return shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


def allowed_bytes(name):
    return next((n for begin, n in HOT if name.startswith(begin)), None)


def assemble(ptxas, path):
    """Returns what is wrong, and what ptxas says."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    card = re.search(r"^\.target (\w+)", text, re.M).group(1)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([ptxas, f"-arch={card}", "-v", path, "-o", os.path.join(folder, "out")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        return [f"ptxas ended with {done.returncode}"], done.stdout
    found = INFO.findall(done.stdout)
    names = re.findall(r"^\.visible \.entry (\w+)\(", text, re.M)
    wrong = [f"{name} may not wait for the launch before it" for name, body in re.findall(r"^\.visible \.entry (\w+)\((.*?)^}$", text, re.M | re.S)
             if card == "sm_90a" and "griddepcontrol.wait;" not in body]
    wrong += [f"no figures of {name}" for name in names if name not in [kernel[0] for kernel in found]]
    wrong += [f"{name} spills {stores} bytes, at most {allowed_bytes(name)}" for name, _, stores, _, _ in found
              if allowed_bytes(name) is not None and int(stores) > allowed_bytes(name)]
    lines = [f"{name}: {registers} registers, {stack} bytes of stack, {stores} bytes spilled" for name, stack, stores, _, registers in found]
    return wrong, "\n".join(lines)


def main():
    ptxas = find_ptxas()
    print(f"1..{len(sys.argv) - 1}")
    if not ptxas:
        for i, path in enumerate(sys.argv[1:], 1):
            print(f"ok {i} - {os.path.basename(path)} # SKIP ptxas is not installed")
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for i, (path, (wrong, said)) in enumerate(zip(sys.argv[1:], pool.map(lambda path: assemble(ptxas, path), sys.argv[1:])), 1):
            print(f"{'not ok' if wrong else 'ok'} {i} - {os.path.basename(path)}")
            for line in wrong + said.splitlines():
                print("#", line)


main()
