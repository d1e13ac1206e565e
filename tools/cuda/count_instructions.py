#!/usr/bin/env python3
"""Counts the instructions of the kernels for cards, from the machine code that ptxas makes of a build's PTX.

  tools/cuda/count_instructions.py [--level 90] [--loops] [--blocks] BUILD [KERNEL...]

BUILD is a build folder, such as build. A KERNEL is the beginning of a name; without one, all kernels are counted. For each kernel it
prints registers, bytes that are spilled, static shared memory, and the instructions of its inner loop by kind. Of the loops that contain no
other loop, the inner loop is the one with most matrix instructions, else with most instructions; --loops prints all of them. Of linear
layers, a loop that ptxas has unrolled is divided by its number of steps (of 64 columns), which the matrix instructions tell, and what is done
only at the end of a split is not counted: blocks of additions without a matrix instruction. So these are the tables of docs/notes/cuda.md.
--blocks prints what a kernel has between its branches, blocks of at least 30 instructions and those with matrix instructions: attention's
work for a leaf of 64 positions is a sequence of them.

Needs ptxas and nvdisasm of a CUDA toolkit, in PATH or /usr/local/cuda/bin (pip install nvidia-cuda-nvdisasm has the latter).
"""
import argparse
import bisect
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The kind of an instruction, by the beginning of its name; the first that fits counts.
KINDS = (
    ("matrix", r"HMMA|IMMA|BMMA|DMMA|HGMMA|IGMMA|QGMMA"),
    ("global", r"LDG|STG|LD\b|ST\b|LDGSTS|RED|ATOM|UBLKCP|UTMA"),
    ("shared", r"LDS|STS|LDSM|STSM|ATOMS"),
    ("local", r"LDL|STL"),
    ("special", r"MUFU"),
    ("half", r"H(ADD|MUL|FMA|SET|SETP|MNMX)2|HADD|HMUL|HFMA"),
    ("float", r"F(ADD|MUL|FMA|SET|SETP|MNMX|SEL|CHK|RND)"),
    ("convert", r"F2|I2"),
    ("shuffle", r"SHFL|VOTE|MATCH|REDUX|BAR|WARPSYNC|NANOSLEEP|SYNCS|DEPBAR|LDGDEPBAR|WARPGROUP|ERRBAR|MEMBAR|FENCE"),
    ("branch", r"BRA|EXIT|CALL|RET|BSSY|BSYNC|BREAK|NOP|YIELD"),
    ("integer", r".*"),
)
# Matrix instructions of a step of linear layers, by kernel; the first that fits counts.
STEPS = ((r"linear_\w+_few$", 4), (r"linear_\w+_some$", 8), (r"linear_\w+_tile_32$", 32), (r"linear_\w+_tile_(64|128)$", 64))
WIDE_STEPS = ((r"linear_\w+_(few|some)$", 4), (r"linear_\w+_tile_\d+$", 8))  # with wgmma
SPENT = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers([^\n]*)", re.S)
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
LABEL = re.compile(r"^(\.L_x_\d+):")


def find_tool(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if not path:
        raise SystemExit(f"{name} is not found; install a CUDA toolkit" +
                         (", or pip install nvidia-cuda-nvdisasm and add its folder to PATH" if name == "nvdisasm" else ""))
    return path


def kind_of(name):
    return next(kind for kind, pattern in KINDS if re.match(pattern, name))


class Kernel:
    """Instructions of a kernel in order, and its loops: each a list of the blocks that belong to it, which need not lie together."""

    def __init__(self, lines):
        self.names, labels, branches = [], {}, []
        cuts, ends = {0}, set()  # where a basic block begins, and after which instructions nothing follows
        for line in lines:
            label, found = LABEL.match(line), INSTRUCTION.match(line)
            if label:
                labels[label.group(1)] = len(self.names)
                cuts.add(len(self.names))
            elif found:
                name, operands = found.groups()
                target = re.search(r"\((\.L_x_\d+)\)", operands)
                is_always = "@" not in line
                if name.startswith("BRA") and target:
                    branches.append((len(self.names), target.group(1)))
                    is_always = is_always and name == "BRA" and operands.strip() == f"`{target.group(0)}"
                    cuts.add(len(self.names) + 1)
                if is_always and re.match(r"BRA$|EXIT|RET", name):
                    ends.add(len(self.names))
                    cuts.add(len(self.names) + 1)
                self.names.append(name)
        cuts = sorted(cut for cut in cuts | {len(self.names)} if cut <= len(self.names))
        self.all_blocks = list(zip(cuts, cuts[1:]))
        number = {begin: i for i, (begin, _) in enumerate(self.all_blocks)}
        self.next = [[] for _ in self.all_blocks]
        for i, (_, end) in enumerate(self.all_blocks):
            if end - 1 not in ends and i + 1 < len(self.all_blocks):
                self.next[i].append(i + 1)
        for at, target in branches:
            block = number.get(labels.get(target))
            if block is not None:
                self.next[bisect.bisect_right(cuts, at) - 1].append(block)
        self.loops = self.find_loops()

    def find_loops(self):
        """Loops are where a block leads back to one that all ways to it pass. Only those that contain no other; but a loop that waits,
        or copies, may be inside of the one with the matrix instructions."""
        before, order = collections.defaultdict(list), []
        stack, seen = [(0, iter(self.next[0]))], {0}
        while stack:
            block, rest = stack[-1]
            following = next((o for o in rest if o not in seen), None)
            if following is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.next[following])))
        order.reverse()
        rank = {block: i for i, block in enumerate(order)}
        for block in order:
            for o in self.next[block]:
                before[o].append(block)
        above, is_changed = {0: 0}, True  # the last block that all ways to a block pass
        while is_changed:
            is_changed = False
            for block in order[1:]:
                new = None
                for o in before[block]:
                    if o not in above:
                        continue
                    other = o
                    while new is not None and new != other:
                        if rank[new] > rank[other]:
                            new = above[new]
                        else:
                            other = above[other]
                    new = other
                if above.get(block) != new:
                    above[block], is_changed = new, True
        self.above = above
        bodies = collections.defaultdict(set)
        for block in order:
            for begin in self.next[block]:
                o = block
                while o != begin and o != 0:
                    o = above[o]
                if o != begin:
                    continue
                body, left = bodies[begin] | {begin}, [block]
                while left:
                    o = left.pop()
                    if o not in body:
                        body.add(o)
                        left += before[o]
                bodies[begin] = body
        found = [[self.all_blocks[i] for i in sorted(body)] for body in bodies.values()]
        within = {id(loop): [o for o in found if o is not loop and set(o) < set(loop)] for loop in found}
        return [loop for loop in found
                if not any(self.count(o)["matrix"] or not self.count(loop)["matrix"] for o in within[id(loop)])]

    def count(self, blocks):
        return collections.Counter(kind_of(name) for begin, end in blocks for name in self.names[begin:end])

    def rare(self, loop):
        """The blocks of a loop with additions that no matrix instruction accompanies."""
        found = collections.Counter()
        for block in loop:
            counts = self.count([block])
            if counts["float"] >= 16 and not counts["matrix"]:
                found += counts
        return found

    def copies(self, loop):
        """The blocks of a loop in which one warp begins bulk copies for all: those before the matrix instructions that other warps pass by."""
        blocks = [self.all_blocks.index(block) for block in loop]
        with_matrix = [i for i in blocks if self.count([self.all_blocks[i]])["matrix"]]
        if "UBLKCP" not in {name.split(".")[0] for begin, end in loop for name in self.names[begin:end]} or not with_matrix:
            return collections.Counter()
        passed, block = set(), with_matrix[0]
        while block not in passed:
            passed.add(block)
            block = self.above[block]
        begin = next(i for i in blocks if i in passed and self.above[i] not in blocks or i == 0)
        found, left = set(), [begin]
        while left:
            block = left.pop()
            for o in self.next[block]:
                if o in blocks and o not in with_matrix and o not in found and o != begin:
                    found.add(o)
                    left.append(o)
        return self.count([self.all_blocks[i] for i in found - passed])

    def inner(self):
        return max(self.loops, key=lambda loop: (self.count(loop)["matrix"], sum(self.count(loop).values())), default=None)


def read_kernels(code):
    """name -> Kernel"""
    found, name, lines = {}, None, []
    for line in code.splitlines():
        section = re.match(r"\s*\.section\s+(\S+?),", line)
        if section:
            if name:
                found[name] = Kernel(lines)
            name = section.group(1)[6:] if section.group(1).startswith(".text.") else None
            lines = []
        elif name:
            lines.append(line)
    if name:
        found[name] = Kernel(lines)
    return found


def assemble(ptxas, nvdisasm, path):
    """The kernels of a file, and what ptxas says about each: name -> (registers, stored, loaded, shared)."""
    with open(path, encoding="ascii") as file:
        card = re.search(r"^\.target (\w+)", file.read(), re.M).group(1)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.cubin")
        said = subprocess.run([ptxas, f"-arch={card}", "-v", path, "-o", out], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        code = subprocess.run([nvdisasm, "-c", out], check=True, stdout=subprocess.PIPE, text=True).stdout
    spent = {}
    for name, stored, loaded, registers, more in SPENT.findall(said.stdout):
        shared = re.search(r"(\d+) bytes smem", more)
        spent[name] = (int(registers), int(stored), int(loaded), int(shared.group(1)) if shared else 0)
    return read_kernels(code), spent


def print_blocks(kernel):
    for block in kernel.all_blocks:
        counts = kernel.count([block])
        if block[1] - block[0] >= 30 or counts["matrix"]:
            kinds = ", ".join(f"{counts[kind]} {kind}" for kind, _ in KINDS if counts[kind])
            print(f"    at {block[0]}{', a loop' if [block] in kernel.loops else ''}: {block[1] - block[0]} instructions: {kinds}")


def print_kernel(name, kernel, spent, all_loops):
    registers, stored, loaded, shared = spent
    loops = sorted(kernel.loops) if all_loops else [loop for loop in [kernel.inner()] if loop]
    n_step = next((n for pattern, n in (WIDE_STEPS if "HGMMA" in " ".join(kernel.names) else STEPS) if re.match(pattern, name)), 0)
    print(f"{name}: {registers} registers, {stored} and {loaded} bytes spilled (stored, loaded), {shared} bytes of shared memory, "
          f"{len(kernel.names)} instructions, {len(kernel.loops)} inner loop{'s' if len(kernel.loops) != 1 else ''}")
    for loop in loops:
        counts, steps = kernel.count(loop), 1
        if n_step and counts["matrix"]:
            counts, steps = counts - kernel.rare(loop) - kernel.copies(loop), counts["matrix"] / n_step
        kinds = ", ".join(f"{counts[kind] / steps:g} {kind}" for kind, _ in KINDS if counts[kind])
        print(f"    {sum(counts.values()) / steps:g} instructions{f' in each of {steps:g} steps' if steps != 1 else ''}: {kinds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=("75", "80", "90"), default="90", help="of the kernels (default 90)")
    parser.add_argument("--loops", action="store_true", help="print all loops that contain no other")
    parser.add_argument("--blocks", action="store_true", help="print what is between the branches")
    parser.add_argument("build", help="the build folder")
    parser.add_argument("kernels", nargs="*", help="beginnings of names of kernels")
    options = parser.parse_args()
    ptxas, nvdisasm = find_tool("ptxas"), find_tool("nvdisasm")
    paths = sorted(glob.glob(os.path.join(options.build, "src", "kernels", "cuda", f"*_{options.level}.ptx")))
    if not paths:
        raise SystemExit(f"{options.build}: no kernels of level {options.level}; build with clang 19 first")
    n = 0
    for path in paths:
        with open(path, encoding="ascii") as file:
            names = re.findall(r"^\.visible \.entry (\w+)\(", file.read(), re.M)
        wanted = [name for name in names if not options.kernels or any(name.startswith(begin) for begin in options.kernels)]
        if not wanted:
            continue
        kernels, spent = assemble(ptxas, nvdisasm, path)
        for name in wanted:
            print_kernel(name, kernels[name], spent[name], options.loops)
            if options.blocks:
                print_blocks(kernels[name])
            n += 1
    if n == 0:
        sys.exit(f"no kernel begins with {' or '.join(options.kernels)}")


main()
