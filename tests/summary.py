#!/usr/bin/env python3
"""Adds up what the test runners of one or more build folders wrote, and closes with "N passed, N failed".

  summary.py BUILD_DIR...

Reads meson-logs/testlog.json (a TAP program counts each of its points), pytest.xml and fuzz.json where they are.
Names what failed. Exits with 1 where something failed or nothing ran.
"""
import json
import os
import re
import sys
import xml.etree.ElementTree


def meson_results(path):
    """Yields (name, result) of every test program, or of every TAP point inside it."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            test = json.loads(line)
            points = re.findall(r"^(ok|not ok) \d+ ?-? ?(.*)$", test.get("stdout") or "", re.M)
            failed = test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
            any_point_failed = False
            for verdict, text in points:
                skipped = "# SKIP" in text.upper()
                any_point_failed |= verdict != "ok"
                yield f"{test['name']}: {text}", "skipped" if skipped else "passed" if verdict == "ok" else "failed"
            if not points:
                yield test["name"], {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(
                    test["result"], "failed")
            elif failed and not any_point_failed:  # a crash, a time-out or a sanitizer's finding behind the points
                yield f"{test['name']}: {test['result'].lower()}", "failed"


def pytest_results(path):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield f"{case.get('classname')}.{case.get('name')}", result


def fuzz_results(path):
    with open(path, encoding="utf-8") as file:
        for target in json.load(file):
            yield f"fuzz {target['name']}: {target['runs']} runs", "passed" if target["clean"] else "failed"


def main(folders):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for folder in folders:
        for name, reader in (("meson-logs/testlog.json", meson_results), ("pytest.xml", pytest_results),
                             ("fuzz.json", fuzz_results)):
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                if not (folder.endswith("fuzz") ^ (name == "fuzz.json")):
                    print(f"missing: {path}")
                    count["failed"] += 1
                continue
            for test, result in reader(path):
                count[result] += 1
                if result == "failed":
                    print(f"failed: {folder}: {test}")
                elif result == "skipped":
                    print(f"skipped: {folder}: {test}")
    if count["passed"] == 0:
        count["failed"] += 1
        print("failed: no test ran")
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"{count['passed']} passed, {count['failed']} failed{skipped}")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
