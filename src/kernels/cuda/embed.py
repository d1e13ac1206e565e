#!/usr/bin/env python3
"""Compiles a file of kernels to PTX, and writes the text as a C array too.

  embed.py CLANG LEVEL SOURCE OUT_C OUT_PTX DEPFILE [FLAGS...]

LEVEL is 75, 80 or 90. OUT_C gets `const char cuda_NAME_LEVEL[]`. Each kernel's number of threads, which KERNEL()
gives as a constant named NAME_threads, becomes the directive .maxntid of its entry, and NAME_blocks, if there is one,
.minnctapersm. From these the driver knows how many registers a thread may have.

On level 90 each kernel lets the next launch begin as soon as all of its own blocks have begun, and waits for the end of the launch
before at its start, unless it calls grid_wait() (device.h) itself.
"""
import os
import re
import subprocess
import sys

# The card, and the oldest PTX that has the instructions: 7.4 has ld.global.nc.L1::no_allocate, 8.0 has sm_90a.
LEVELS = {"75": ("sm_75", "7.4"), "80": ("sm_80", "7.4"), "90": ("sm_90a", "8.0")}
BOUNDS = {"threads": ".maxntid {}, 1, 1", "blocks": ".minnctapersm {}"}
CONSTANT = re.compile(r"^\.visible \.global \.align 4 \.(?:u32|b32) (\w+)_(threads|blocks) = (\d+);\n", re.M)


def compile_to_ptx(clang, level, source, depfile, out, flags):
    card, version = LEVELS[level]
    command = [clang, "--target=nvptx64-nvidia-cuda", f"-march={card}", "-Xclang", "-target-feature", "-Xclang",
               f"+ptx{version.replace('.', '')}", f"-DTUTTI_CUDA_LEVEL={level}", "-O3", "-S", "-nogpulib", "-ffreestanding",
               "-std=gnu11", "-ffp-contract=off", "-mllvm", "-pragma-unroll-threshold=100000", "-Wall", "-Wextra",
               "-MD", "-MF", depfile, "-MT", out, *flags, source, "-o", "-"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # clang writes the newest version that it knows; a driver refuses what is newer than itself.
    return re.sub(r"^\.version .*", f".version {version}", text, flags=re.M)


def bound_registers(text):
    """Moves the numbers of threads and blocks from constants to the entries."""
    bounds = {}
    for name, bound, number in CONSTANT.findall(text):
        bounds.setdefault(name, {})[bound] = BOUNDS[bound].format(number)
    text = CONSTANT.sub("", text)
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.M)

    def entry(match):
        of_entry = bounds.pop(match.group(1))
        return "\n".join([match.group(0), *(of_entry[bound] for bound in BOUNDS if bound in of_entry)])

    # The parameters of an entry end with the first closing parenthesis.
    text = re.sub(r"^\.visible \.entry (\w+)\([^)]*\)", entry, text, flags=re.M)
    if bounds:
        raise SystemExit(f"no entry for {', '.join(bounds)}")
    called = re.findall(r"^\.extern \.func.*?(\w+)$", text, flags=re.M)
    if called:
        raise SystemExit(f"calls functions that a card does not have: {', '.join(called)}")
    return text


def overlap_launches(text):
    """Adds the first instructions of each kernel."""
    entries = re.split(r"(?=^\.visible \.entry )", text, flags=re.M)
    for i, entry in enumerate(entries[1:], 1):
        first = ["griddepcontrol.launch_dependents;"]
        if "griddepcontrol.wait;" not in entry:
            first.append("griddepcontrol.wait;")
        entries[i], n = re.subn(r"^{$", "{\n\t" + "\n\t".join(first), entry, count=1, flags=re.M)
        if n != 1:
            raise SystemExit("an entry without a body")
    return "".join(entries)


def as_array(name, text):
    lines = text.replace("\\", "\\\\").replace('"', '\\"').split("\n")
    body = "\n".join(f'    "{line}\\n"' for line in lines if line)
    return f"extern const char {name}[];\nconst char {name}[] =\n{body};\n"


def main():
    clang, level, source, out, out_ptx, depfile, *flags = sys.argv[1:]
    text = bound_registers(compile_to_ptx(clang, level, source, depfile, out, flags))
    if level == "90":
        text = overlap_launches(text)
    name = os.path.splitext(os.path.basename(source))[0]
    for path, content in ((out, as_array(f"cuda_{name}_{level}", text)), (out_ptx, text)):
        with open(path, "w", encoding="ascii") as file:
            file.write(content)


main()
