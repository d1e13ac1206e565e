#!/usr/bin/env python3
"""Holds the includes of src/ against the order of the rooms, and compiles every header alone.

  check_layers.py [SOURCE_ROOT]

An include may only point downwards: cli, server, engine, model, backend, kernels, base; checkpoint and tokenizer stand
beside model on base, and so does template; cluster stands beside kernels; grammar stands on tokenizer, load on base
alone, fleet beside engine on model. A room that is not in the table is a fault, so that a new one must be given its place. Prints TAP.
"""
import os
import re
import subprocess
import sys

MAY_USE = {
    "base": set(),
    "checkpoint": {"base"},
    "tokenizer": {"base"},
    "template": {"base"},
    "grammar": {"tokenizer", "base"},
    "kernels": {"base"},
    "cluster": {"base"},
    "backend": {"kernels", "cluster", "base"},
    "model": {"backend", "kernels", "cluster", "checkpoint", "tokenizer", "template", "base"},
    "engine": {"model", "backend", "kernels", "cluster", "checkpoint", "grammar", "tokenizer", "template", "base"},
    "fleet": {"model", "backend", "kernels", "checkpoint", "tokenizer", "base"},
    "server": {"engine", "model", "base"},
    "load": {"base"},
    "cli": {"fleet", "load", "server", "engine", "model", "backend", "kernels", "cluster", "checkpoint", "grammar", "tokenizer", "template",
            "base"},
}


def includes(path):
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if found:
                yield number, found.group(1)


def room_of(path, source):
    """The folder of src/ in which a path lies; None: it lies elsewhere."""
    inside = os.path.relpath(path, source).split(os.sep)
    return inside[0] if len(inside) > 1 and inside[0] != os.pardir else None


def source_includes(root):
    """Yields (path, line number, text of the include, room, room that it points into or None) of all of src/."""
    source = os.path.join(root, "src")
    for folder, _, names in os.walk(source):
        for name in sorted(names):
            if not name.endswith((".c", ".h")):
                continue
            path = os.path.join(folder, name)
            for number, target in includes(path):
                # A compiler looks beside the file first, then along the include path.
                beside = os.path.normpath(os.path.join(folder, target))
                found = beside if os.path.exists(beside) else os.path.join(source, target)
                other = room_of(found, source) if os.path.exists(found) else None
                yield os.path.relpath(path, root), number, target, room_of(path, source), other


def wrong_includes(root):
    for path, number, target, room, other in source_includes(root):
        if room not in MAY_USE:
            yield f"{path}: room {room} has no place in the order"
        elif other is not None and other != room and other not in MAY_USE[room]:
            yield f"{path}:{number}: {room} must not include {target}"


def cycles(root):
    """Follows the includes that are really there, whatever the table allows."""
    uses = {}
    for _, _, _, room, other in source_includes(root):
        uses.setdefault(room, set())
        if other not in (None, room):
            uses[room].add(other)
    free = {room for room in uses if not uses[room]}
    while free != set(uses):
        more = {room for room in uses if uses[room] <= free} - free
        if not more:
            yield "a cycle among " + ", ".join(sorted(str(room) for room in set(uses) - free))
            return
        free |= more


def headers_that_need_others(root):
    compiler = os.environ.get("CC", "gcc").split()
    for top in ("include", "src"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                # A body is a function's text, made into code once for each instruction set.
                if not name.endswith(".h") or name.endswith("_body.h"):
                    continue
                flags = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"]
                done = subprocess.run(
                    [*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only", *(flags if "x86" in folder else []), "-x", "c",
                     "-I", os.path.join(root, "include"), "-I", os.path.join(root, "src"), "-include", path, "/dev/null"],
                    capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    yield f"{os.path.relpath(path, root)}: {done.stderr.strip().splitlines()[0]}"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checks = (("every include points downwards", wrong_includes), ("no cycle leads through the rooms", cycles),
              ("every header compiles alone", headers_that_need_others))
    print(f"1..{len(checks)}")
    failed = False
    for number, (name, check) in enumerate(checks, 1):
        faults = list(check(root))
        failed |= bool(faults)
        print(f"{'not ok' if faults else 'ok'} {number} - {name}")
        for fault in faults:
            print(f"# {fault}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
