#!/usr/bin/env python3
"""Checks the includes of src/ against the order of the rooms and of their folders, and compiles every header by itself.

  check_layers.py [SOURCE_ROOT]

A room is a folder of src/. MAY_USE lists the rooms that each room may include; an include may only point downwards. A room that is
not in the table is an error, so that a new one is given its place. The includes between a room's folders and files have no
cycle. No folder has more than MAX_FILES files. Apart from src/base, the server includes only include/tutti.h;
examples include nothing else. Prints TAP.
"""
import os
import platform
import re
import shutil
import subprocess
import sys

MAX_FILES = 24  # of one folder

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
    "offline": {"model", "backend", "kernels", "cluster", "checkpoint", "tokenizer", "template", "base"},
    "fleet": {"offline", "model", "backend", "kernels", "checkpoint", "tokenizer", "base"},
    "server": {"base"},  # and include/tutti.h, as any other program
    "load": {"base"},
    "hub": {"base"},
    "cli": {"fleet", "hub", "load", "server", "engine", "offline", "model", "backend", "kernels", "cluster", "checkpoint", "grammar", "tokenizer",
            "template", "base"},
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


def part_of(path, root):
    """The folder of a room that a file is in, or the file itself where it is in none of them."""
    inside = os.path.relpath(os.path.join(root, path), os.path.join(root, "src")).split(os.sep)
    return os.path.join(*inside[:2])


def source_includes(root):
    """Yields (path, line number, text of the include, room, room that it points into or None, path of what it names or None) of
    all of src/."""
    source = os.path.join(root, "src")
    for folder, _, names in os.walk(source):
        for name in sorted(names):
            if not name.endswith((".c", ".h")):
                continue
            path = os.path.join(folder, name)
            for number, target in includes(path):
                # A compiler looks in the folder of the file first, then along the include path.
                relative = os.path.normpath(os.path.join(folder, target))
                found = relative if os.path.exists(relative) else os.path.join(source, target)
                other = room_of(found, source) if os.path.exists(found) else None
                yield os.path.relpath(path, root), number, target, room_of(path, source), other, found if other else None


def wrong_examples(root):
    """An example is a program that anyone could have written: of this project it includes <tutti.h> only."""
    for folder, _, names in os.walk(os.path.join(root, "examples")):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.endswith((".c", ".h")):
                continue
            for number, target in includes(path):
                yield f"{os.path.relpath(path, root)}:{number}: an example must not include \"{target}\""
            with open(path, encoding="utf-8") as file:
                if "#include <tutti.h>" not in file.read():
                    yield f"{os.path.relpath(path, root)}: does not include <tutti.h>"


def wrong_includes(root):
    for path, number, target, room, other, _ in source_includes(root):
        if room not in MAY_USE:
            yield f"{path}: room {room} has no place in the order"
        elif other is not None and other != room and other not in MAY_USE[room]:
            yield f"{path}:{number}: {room} must not include {target}"


def cycles(root):
    """Follows the includes that are really there, whatever the table allows: between rooms, then between the parts of each room."""
    between_rooms, within = {}, {}
    for path, _, _, room, other, found in source_includes(root):
        between_rooms.setdefault(room, set())
        if other == room:
            parts = within.setdefault(room, {})
            mine, theirs = (part_of(p, root) for p in (path, found))
            parts.setdefault(mine, set())
            parts.setdefault(theirs, set())
            if mine != theirs:
                parts[mine].add(theirs)
        elif other is not None:
            between_rooms[room].add(other)
    for uses in (between_rooms, *within.values()):
        yield from cycle_among(uses)


def cycle_among(uses):
    free = {room for room in uses if not uses[room]}
    while free != set(uses):
        more = {room for room in uses if uses[room] <= free} - free
        if not more:
            yield "a cycle among " + ", ".join(sorted(str(part) for part in set(uses) - free))
            return
        free |= more


def crowded_folders(root):
    for folder, _, names in os.walk(os.path.join(root, "src")):
        n = sum(name.endswith((".c", ".h")) for name in names)
        if n > MAX_FILES:
            yield f"{os.path.relpath(folder, root)}: {n} files, at most {MAX_FILES}"


def compiler_for(folder):
    """The command that compiles for the processor that a folder's code is for; None: it is not installed."""
    native = os.environ.get("CC", "gcc").split()
    if "x86" in folder.split(os.sep):
        flags = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"]
        return [*native, *flags] if platform.machine() == "x86_64" else None
    if "arm" in folder.split(os.sep) and platform.machine() != "aarch64":
        return ["aarch64-linux-gnu-gcc"] if shutil.which("aarch64-linux-gnu-gcc") else None
    return native


def headers_that_need_others(root):
    for top in ("include", "src"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            compiler = compiler_for(os.path.relpath(folder, root))
            for name in sorted(names):
                path = os.path.join(folder, name)
                # A body is a function's text, made into code once for each instruction set.
                if not name.endswith(".h") or name.endswith("_body.h") or not compiler:
                    continue
                done = subprocess.run(
                    [*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only", "-x", "c",
                     "-I", os.path.join(root, "include"), "-I", os.path.join(root, "src"), "-include", path, "/dev/null"],
                    capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    yield f"{os.path.relpath(path, root)}: {done.stderr.strip().splitlines()[0]}"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checks = (("every include points downwards", wrong_includes), ("no circle between rooms, or within one", cycles),
              ("examples use the public header only", wrong_examples),
              ("no folder is crowded", crowded_folders), ("every header compiles by itself", headers_that_need_others))
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
