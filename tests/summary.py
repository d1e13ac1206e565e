#!/usr/bin/env python3
"""Adds up what the test runners of one or more build folders wrote, and closes with "N passed, N failed".

  summary.py BUILD_DIR...
  summary.py --record BUILD_DIR     writes tests/counts.json: how many tests each file has

Reads meson-logs/testlog.json (a TAP program counts each of its points), pytest.xml and fuzz.json where they are.
Names what failed. Besides a failed test these are failures, too:
  - a skipped test that the list below does not expect on this machine and in this build;
  - a file with fewer tests than tests/counts.json records (after a test was removed on purpose: --record);
  - a cell of README's table of families whose test did not run and pass for that family (check_table.py).
Exits with 1 where something failed or nothing ran.
"""
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections import Counter, namedtuple

import check_table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COUNTS = os.path.join(ROOT, "tests", "counts.json")
IS_ARM64 = platform.machine() == "aarch64"
AT_HWCAP, AT_HWCAP2 = 16, 26  # of getauxval()

# file: a test program of meson, or the path of a pytest file; said: why it was skipped, or what a program printed for this test
Result = namedtuple("Result", "file test outcome said")


def is_root(_folder):
    return os.geteuid() == 0


def is_sanitized(folder):
    return "san" in os.path.basename(folder)


# What may be skipped: words of the test or of its reason, and whether they are accepted here. Everything that a test needs is
# installed by ./run test, so a missing package is on no line.
EXPECTED_SKIPS = [
    ("thread sanitizer does not see", is_sanitized),
    ("a sanitizer's kernels compute so slowly", is_sanitized),
    ("only root may", lambda folder: not is_root(folder)),
    ("mount is not allowed here", lambda folder: not can_mount()),
    ("no file system may be mounted here", lambda folder: not can_mount()),
    ("this machine has the word list of python3-jieba", lambda folder: os.path.exists("/usr/lib/python3/dist-packages/jieba")),
    ("this build is not set up with --prefix=/usr", is_sanitized),
    ("network namespaces are not permitted", lambda folder: not is_root(folder) or not can_unshare()),
    ("process namespaces are not permitted", lambda folder: not succeeds("unshare", "--map-root-user", "--pid", "--fork", "true")),
    ("this build has no kernels for cards", lambda folder: not any(shutil.which(f"clang-{version}") for version in (19, 20, 21))),
    ("ptxas is not installed", lambda folder: not shutil.which("ptxas", path=os.environ["PATH"] + ":/usr/local/cuda/bin")),
    ("needs an x86-64 processor", lambda folder: platform.machine() != "x86_64"),
    ("one core", lambda folder: (os.cpu_count() or 1) < 2),
    *((f"{level} # SKIP this processor lacks it", lambda folder, flag=flag: not has_flag(flag))
      for level, flag in (("avx2", "avx2"), ("avxvnni", "avx512_vnni|avx_vnni"), ("vex", "avx_vnni"), ("avx512", "avx512_vnni"),
                          ("split", "gfni .*avx512_vnni"), ("paired", "gfni .*avx512_vnni"), ("bf16", "avx512_bf16"), ("amx", "amx_int8"))),
    *((f"{level} # SKIP this processor lacks it", lambda folder, bit=bit: not has_capability(*bit))
      for level, bit in (("dotprod", (AT_HWCAP, 20)), ("i8mm", (AT_HWCAP2, 13)))),
    ("the kernels of this processor run without an emulator", lambda folder: IS_ARM64),
]


def has_flag(flag):
    if platform.machine() != "x86_64":
        return False
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        return re.search(rf"^flags\s.*\b({flag})\b", file.read(), re.M) is not None


def has_capability(entry, bit):
    """Of an arm64 processor, as Linux reports it to programs. Its /proc/cpuinfo is the other machine's in an emulator."""
    if not IS_ARM64:
        return False
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_ulong
    return getauxval(ctypes.c_ulong(entry)) >> bit & 1 == 1


def succeeds(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def can_mount():
    return is_root(None) and succeeds("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt")


def can_unshare():
    return succeeds("unshare", "-n", "ip", "link", "set", "lo", "up")


def meson_results(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            test = json.loads(line)
            name, said, n_points, any_point_failed = test["name"], [], 0, False
            for text in (test.get("stdout") or "").splitlines():
                point = re.match(r"(ok|not ok) \d+ ?-? ?(.*)$", text)
                if not point:
                    said.append(text)
                    continue
                outcome = "failed" if point[1] != "ok" else "skipped" if "# SKIP" in point[2].upper() else "passed"
                any_point_failed |= outcome == "failed"
                n_points += 1
                yield Result(name, point[2], outcome, "\n".join(said))
                said = []
            if n_points == 0:
                outcome = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(test["result"], "failed")
                yield Result(name, "", outcome, "\n".join(said))
            elif test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL") and not any_point_failed:
                # a crash, a time-out or a sanitizer's finding after the points
                yield Result(name, test["result"].lower(), "failed", "\n".join(said))


def pytest_results(path):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        said = " ".join([child.get("message") or "" for child in case] + [p.get("value") or "" for p in case.iter("property")])
        yield Result(case.get("classname").replace(".", "/") + ".py", case.get("name"), outcome, said)


def fuzz_results(path):
    with open(path, encoding="utf-8") as file:
        for target in json.load(file):
            yield Result(f"fuzz {target['name']}", f"{target['runs']} runs", "passed" if target["clean"] else "failed", "")


def read_folder(folder):
    """All results of a build folder; None where a runner left no file."""
    for name, reader in (("meson-logs/testlog.json", meson_results), ("pytest.xml", pytest_results), ("fuzz.json", fuzz_results)):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            yield from reader(path)
        elif folder.rstrip("/").endswith("fuzz") == (name == "fuzz.json"):
            yield Result(path, "", "failed", "missing")


def is_expected_skip(folder, result):
    return any(words in f"{result.test} {result.said}" and holds(folder) for words, holds in EXPECTED_SKIPS)


def counts_of(results):
    return Counter(result.file for result in results if not result.file.startswith("fuzz "))


def missing_tests(results):
    """Files with fewer tests than recorded. A failed test counts: it is there."""
    with open(COUNTS, encoding="utf-8") as file:
        recorded = json.load(file)
    counts = counts_of(results)
    if IS_ARM64:
        recorded["checkkernels"] = 20  # the recorded number is that of x86-64, which has more levels
    for name, n in recorded.items():
        if counts[name] < n:
            yield f"{name}: {counts[name]} tests ran, tests/counts.json records {n}"


def unproved_cells(results):
    """Cells of the table whose test is not among the passed ones, or said nothing of that family."""
    passed = [result for result in results if result.outcome == "passed"]
    for cell, path, test, word in check_table.proofs():
        program = f"{os.path.basename(os.path.dirname(path))}-{os.path.basename(path).removeprefix('test_').removesuffix('.c')}"
        name = path if path.endswith(".py") else program
        found = [r for r in passed if r.file in (name, program.split("-", 1)[1]) and re.match(re.escape(test) + r"(\[|$)", r.test)]
        if not found:
            yield f"README.md: {cell}: {path}: {test} did not run and pass"
        elif not any(word in r.test + "\n" + r.said for r in found):
            yield f"README.md: {cell}: {path}: {test} did not check {word}"


def main(arguments):
    folders = [a for a in arguments if not a.startswith("--")]
    results = {folder: list(read_folder(folder)) for folder in folders}
    if "--record" in arguments:
        with open(COUNTS, "w", encoding="utf-8") as file:
            json.dump(dict(sorted(counts_of(results[folders[0]]).items())), file, indent=1)
            file.write("\n")
        return 0
    count = Counter()
    for folder in folders:
        for result in results[folder]:
            outcome, label = result.outcome, f"{folder}: {result.file}: {result.test} {result.said if result.outcome == 'skipped' else ''}".rstrip(" :")
            if outcome == "skipped" and not is_expected_skip(folder, result):
                outcome, label = "failed", f"{label} (a skip that is not expected here)"
            count[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {label}")
        # Parts of a run were asked for (TEST_ARGS), or another kind of build: then what is not there says nothing.
        if os.path.basename(folder.rstrip("/")) == "build-test" and not os.environ.get("TEST_ARGS"):
            for fault in [*missing_tests(results[folder]), *unproved_cells(results[folder])]:
                count["failed"] += 1
                print(f"failed: {fault}")
    if count["passed"] == 0:
        count["failed"] += 1
        print("failed: no test ran")
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"{count['passed']} passed, {count['failed']} failed{skipped}")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
