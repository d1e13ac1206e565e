#!/usr/bin/env python3
"""Every function that can call itself, directly or through others, is on the list in recursion.txt, which says what bounds it.

  check_recursion.py PROGRAM [ROOT]

Reads the calls out of the program's machine code (objdump), so that what the compiler made a loop is no recursion. Calls through
pointers are not seen. Prints TAP.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict

CLONE = re.compile(r"\.(part|constprop|isra|cold|lto_priv)(\.\d+)?|\.\d+$")


def functions_of(program):
    """{address: "file.c:function"}; a function that other files may call has no file. Parts of a function have its name."""
    found, file, clones = {}, "", set()
    for line in subprocess.run(["readelf", "-sW", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) < 8:
            continue
        kind, bind, section, name = words[3], words[4], words[6], words[7]
        if kind == "FILE":
            file = name
        elif kind == "FUNC" and section != "UND":
            address = int(words[1], 16)
            if CLONE.search(name):
                name = CLONE.sub("", CLONE.sub("", name))
                clones.add(address)
            # what other files of the program may call is local, too, and comes last, below no file of ours
            found[address] = f"{file}:{name}" if bind == "LOCAL" and file != "crtstuff.c" else name
    shared = {name for name in found.values() if ":" not in name}
    for address in clones:  # always local
        name = found[address].rpartition(":")[2]
        if name in shared:
            found[address] = name
    return found


def calls_of(program, functions):
    """{address of a function: addresses of those that it calls}"""
    calls, caller = defaultdict(set), None
    with subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", program], stdout=subprocess.PIPE, text=True) as objdump:
        for line in objdump.stdout:
            if start := re.match(r"([0-9a-f]+) <.+>:$", line):
                caller = int(start[1], 16)
            elif call := re.search(r"\t(call|jmp|bl|b)q?\s+([0-9a-f]+) <[^>+]+>", line):
                callee = int(call[2], 16)
                if callee in functions and not (call[1] in ("jmp", "b") and callee == caller):
                    calls[caller].add(callee)
    return calls


def circles(calls):
    """The sets of functions that reach one another (Tarjan, 1972), with a stack of its own."""
    index, low, stack, on_stack = {}, {}, [], set()
    for root in list(calls):
        if root in index:
            continue
        work = [(root, iter(calls[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for callee in rest:
                if callee not in index:
                    index[callee] = low[callee] = len(index)
                    stack.append(callee)
                    on_stack.add(callee)
                    work.append((callee, iter(calls.get(callee, ()))))
                    break
                if callee in on_stack:
                    low[node] = min(low[node], index[callee])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = stack[stack.index(node):]
                    del stack[len(stack) - len(members):]
                    on_stack -= set(members)
                    if len(members) > 1 or node in calls.get(node, ()):
                        yield members


def read_list(path):
    """{function: bound}"""
    bounds, names = {}, []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(" "):
                assert names, f"{path}:{number}: a bound without functions"
                bounds.update({name: line.strip() for name in names})
                names = []
            else:
                names += line.split()
    assert not names, f"{path}: no bound for {names}"
    return bounds


def is_in_sources(name, root):
    file, _, function = name.rpartition(":")
    for folder, _, files in os.walk(os.path.join(root, "src")):
        for other in files:
            if other.endswith(".c") and file in ("", other):
                with open(os.path.join(folder, other), encoding="utf-8") as text:
                    if re.search(rf"\b{function}\(", text.read()):
                        return True
    return False


def main():
    program = sys.argv[1]
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[2] if len(sys.argv) > 2 else os.path.dirname(here)
    bounds = read_list(os.path.join(here, "recursion.txt"))
    functions = functions_of(program)
    calls = calls_of(program, functions)
    found = {functions.get(address, hex(address)) for circle in circles(calls) for address in circle}
    checks = (("every recursive function is listed with its bound", sorted(found - set(bounds))),
              ("every listed function is in the sources", sorted(name for name in bounds if not is_in_sources(name, root))),
              ("the program's calls were read", [] if len(calls) > 1000 and found else ["no calls, or no recursion, was found"]))
    print(f"1..{len(checks)}")
    for number, (name, faults) in enumerate(checks, 1):
        print(f"{'not ok' if faults else 'ok'} {number} - {name}")
        for fault in faults:
            print(f"# {fault}")
    sys.exit(1 if any(faults for _, faults in checks) else 0)


if __name__ == "__main__":
    main()
