#!/usr/bin/env python3
"""Holds the recursion of the rooms that read strangers' templates and answers against the list of what is bounded.

  check_recursion.py SOURCE_ROOT BUILD_DIR

Every cycle of the call graph in src/template and src/model/chat, as the compiler writes it
(gcc -fcallgraph-info), must hold one of the functions below; src/template/template.h says what bounds each. A cycle that is not listed
is a fault, and so is a listed function that no longer recurses. Calls through pointers (filters, tests and statements of templates)
are counted as calls of all functions of these kinds. Prints TAP.
"""
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

BOUNDED = {
    "parse_block": "MAX_NESTED_BLOCKS",
    "parse_expression": "MAX_DEPTH",
    "parse_target": "MAX_DEPTH",
    "eval": "template_limits.depth",
    "value_from_json": "template_limits.depth",
    "value_equals": "template_limits.depth",
    "value_compare": "template_limits.depth",
    "write_value": "template_limits.depth",
    "assign": "MAX_DEPTH",
    "is_literal": "MAX_TREE_DEPTH",
    "text_bytes": "200 levels",
    "parse_element": "MAX_NESTED",
    "merge_sort": "log2 of the items",
}
INDIRECT = "__indirect_call"


def files(root):
    found = []
    for folder in "src/template", "src/model/chat":
        inside = glob.glob(os.path.join(root, folder, "**", "*.c"), recursive=True)
        if not inside:
            raise SystemExit(f"{folder} has no source files: it has moved")
        found += inside
    return sorted(os.path.realpath(path) for path in found)


def command_of(entry, out):
    """The compiler's command without its outputs, for gcc and without optimization, which would inline functions away."""
    words, kept = shlex.split(entry["command"]), []
    while words:
        word = words.pop(0)
        if word in ("-o", "-MF", "-MQ"):
            words.pop(0)
        elif word not in ("-MD", "-c", "ccache", entry["file"]) and not word.startswith(("-O", "-fsanitize", "-fdiagnostics", "-fno-sanitize")):
            kept.append(word)
    return ["gcc", *kept[1:], "-w", "-O0", "-fcallgraph-info", "-c", entry["file"], "-o", out]


def read_graph(path, edges, names):
    for line in open(path, encoding="utf-8", errors="replace"):
        edge = re.match(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"', line)
        node = re.match(r'node: \{ title: "([^"]+)"', line)
        if edge:
            edges.setdefault(edge[1], set()).add(edge[2])
        elif node:
            names.add(node[1])


def cycles(edges):
    """Strongly connected components with an edge inside (Tarjan), without recursion of its own."""
    index, low, stack, on, found = {}, {}, [], set(), []
    for root in list(edges):
        work = [(root, None)] if root not in index else []
        while work:
            node, children = work.pop()
            if children is None:
                index[node] = low[node] = len(index)
                stack.append(node)
                on.add(node)
                children = iter(sorted(edges.get(node, ())))
            for child in children:
                if child not in index:
                    work += [(node, children), (child, None)]
                    break
                if child in on:
                    low[node] = min(low[node], index[child])
            else:
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    part = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on.discard(part[-1])
                    if len(part) > 1 or node in edges.get(node, ()):
                        found.append({name.rsplit(":", 1)[-1] for name in part})
    return found


def main():
    root, build = sys.argv[1:3]
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = {os.path.realpath(os.path.join(e["directory"], e["file"])): e for e in json.load(file)}
    edges, names = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        for path in files(root):
            out = os.path.join(folder, os.path.basename(path) + ".o")
            subprocess.run(command_of(entries[path], out), cwd=entries[path]["directory"], check=True)
            read_graph(re.sub(r"\.o$", ".ci", out), edges, names)
    pointed = {n for n in names if re.search(r":(f_|m_|g_|t_|parse_(if|for|set|macro|call_block|filter_block|with|generation|break|continue)$)", n)}
    if len(pointed) < 50:
        raise SystemExit(f"only {len(pointed)} functions that are called through pointers: the names have changed")
    edges[INDIRECT] = pointed
    found = cycles(edges)
    faults = [f"not listed: {', '.join(sorted(part))}" for part in found if not part & BOUNDED.keys()]
    faults += [f"recurses no more: {name}" for name in BOUNDED if not any(name in part for part in found)]
    print("1..1")
    for fault in faults:
        print("# " + fault)
    print(("not ok" if faults else "ok") + f" 1 - {len(found)} cycles of calls are bounded")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
