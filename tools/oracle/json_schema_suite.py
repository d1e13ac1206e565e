#!/usr/bin/env python3
"""Compares the grammars of JSON schemas with the public JSON-Schema-Test-Suite.

  json_schema_suite.py SUITE [--drafts draft2020-12 draft7] [--probe build/tests/grammar/grammar_probe] [--verbose]
  json_schema_suite.py SUITE --copy tests/fixtures/grammar/json_schema_suite.json   (the keywords of draft 2020-12 that are supported)

SUITE is a copy of https://github.com/json-schema-org/JSON-Schema-Test-Suite (its folder, with tests/, or a bare git repository). Each
schema is compiled. If it is accepted, each instance is written as JSON text, its properties in the order of the schema: the grammar
must not accept an invalid instance. Prints how many schemas are refused, by keyword or reason, and which valid instances cannot be
written. Exit status 1: an invalid instance is accepted."""
import argparse
import collections
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_suite(suite, draft):
    """Yields file names and their groups of tests."""
    folder = os.path.join(suite, "tests", draft)
    if os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    yield name, json.load(file)
        return
    names = subprocess.run(["git", "-C", suite, "ls-tree", "--name-only", "HEAD", f"tests/{draft}/"], check=True, capture_output=True, text=True)
    for path in names.stdout.split():
        if path.endswith(".json"):
            text = subprocess.run(["git", "-C", suite, "show", f"HEAD:{path}"], check=True, capture_output=True)
            yield os.path.basename(path), json.loads(text.stdout)


COPIED = ["additionalProperties", "allOf", "anyOf", "boolean_schema", "const", "contains", "dependentRequired", "dependentSchemas", "enum",
          "exclusiveMaximum", "exclusiveMinimum", "if-then-else", "infinite-loop-detection", "items", "maxContains", "maxItems", "maxLength",
          "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern",
          "patternProperties", "prefixItems", "properties", "propertyNames", "ref", "required", "type", "uniqueItems"]


def copy_suite(suite, path):
    """Writes a part of the suite, with its licence, as one file: a group of tests per line."""
    licence = subprocess.run(["git", "-C", suite, "show", "HEAD:LICENSE"], capture_output=True, text=True)
    if licence.returncode != 0:
        with open(os.path.join(suite, "LICENSE"), encoding="utf-8") as file:
            licence = file.read()
    else:
        licence = licence.stdout
    groups = [{"file": name, **group} for name, groups in read_suite(suite, "draft2020-12") if name[:-5] in COPIED for group in groups]
    for group in groups:
        group["schema"] = {key: value for key, value in group["schema"].items() if key != "$schema"} if isinstance(group["schema"], dict) else group["schema"]
    lines = ",\n".join(json.dumps(group, separators=(",", ":")) for group in groups)
    with open(path, "w", encoding="utf-8") as file:
        source = "https://github.com/json-schema-org/JSON-Schema-Test-Suite, tests/draft2020-12, each schema without its $schema"
        file.write(f'{{"source": {json.dumps(source)},\n"licence": {json.dumps(licence)},\n"groups": [\n{lines}\n]}}\n')


def names_in_order(schema, root, depth=0):
    """The properties that a schema lists, through the keywords that combine schemas, in their order."""
    if not isinstance(schema, dict) or depth > 8:
        return []
    names = list(schema.get("properties", {})) if isinstance(schema.get("properties"), dict) else []
    parts = [schema.get(key) for key in ("if", "then", "else")]
    for key in ("allOf", "anyOf", "oneOf"):
        parts += schema.get(key, []) if isinstance(schema.get(key), list) else []
    target = resolve(schema.get("$ref"), root)
    for part in [target] + parts:
        names += names_in_order(part, root, depth + 1)
    if isinstance(schema.get("required"), list):
        names += sorted(name for name in schema["required"] if isinstance(name, str))
    return names


def resolve(ref, root):
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    at = root
    for part in ref[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        at = at.get(part) if isinstance(at, dict) else at[int(part)] if isinstance(at, list) and part.isdigit() else None
    return at


def in_order(value, schema, root, depth=0):
    """The value with its properties in the order of the schema."""
    if depth > 12:
        return value
    if isinstance(value, dict):
        names = {name: i for i, name in reversed(list(enumerate(names_in_order(schema, root))))}
        keys = sorted(value, key=lambda key: (names.get(key, len(names)), list(value).index(key)))
        return {key: in_order(value[key], property_of(schema, key, root), root, depth + 1) for key in keys}
    if isinstance(value, list):
        return [in_order(item, item_of(schema, i, root), root, depth + 1) for i, item in enumerate(value)]
    return value


def property_of(schema, key, root, depth=0):
    if not isinstance(schema, dict) or depth > 8:
        return None
    own = schema.get("properties", {})
    if isinstance(own, dict) and key in own:
        return own[key]
    parts = [resolve(schema.get("$ref"), root)]
    for name in ("allOf", "anyOf", "oneOf"):
        parts += schema.get(name, []) if isinstance(schema.get(name), list) else []
    for part in parts:
        found = property_of(part, key, root, depth + 1)
        if found is not None:
            return found
    return schema.get("additionalProperties")


def item_of(schema, i, root):
    if not isinstance(schema, dict):
        return None
    target = resolve(schema.get("$ref"), root)
    if target is not None:
        return item_of(target, i, root)
    items = schema.get("prefixItems", schema.get("items") if isinstance(schema.get("items"), list) else [])
    return items[i] if i < len(items) else schema.get("items")


class Probe:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, schema, texts):
        question = {"kind": "schema", "text": json.dumps(schema), "texts": texts}
        self.process.stdin.write((json.dumps(question) + "\n").encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the probe ended at {schema}"
        return json.loads(line)


def check_groups(probe, groups, counts, reasons, note):
    """Counts what becomes of each group's schema and instances. note(kind, group, test or reason): called for what is not enforced exactly."""
    for group in groups:
        texts = [json.dumps(in_order(test["data"], group["schema"], group["schema"]), ensure_ascii=False, separators=(",", ":"))
                 for test in group["tests"]]
        counts["schemas"] += 1
        reply = probe.ask(group["schema"], texts)
        if "error" in reply:
            counts["schemas refused"] += 1
            reasons[reply["error"].split(": ", 1)[-1][:90]] += 1
            note("refused", group, reply["error"])
            continue
        counts["schemas accepted"] += 1
        is_exact = True
        for test, word in zip(group["tests"], reply["accepts"]):
            is_accepted = word == "all"
            kind = ("valid" if test["valid"] else "invalid") + (" accepted" if is_accepted else " not accepted")
            counts["instances " + kind] += 1
            is_exact = is_exact and is_accepted == test["valid"]
            if is_accepted != test["valid"]:
                note("WRONG" if is_accepted else "not written", group, test)
        counts["schemas accepted exactly"] += is_exact


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--drafts", nargs="+", default=["draft2020-12", "draft7"])
    parser.add_argument("--probe", default=os.path.join(ROOT, "build", "tests", "grammar", "grammar_probe"))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--copy", metavar="FILE")
    args = parser.parse_args()
    if args.copy:
        copy_suite(args.suite, args.copy)
        return
    probe = Probe(args.probe)
    n_wrong = 0
    for draft in args.drafts:
        counts, reasons = collections.Counter(), collections.Counter()
        for name, groups in read_suite(args.suite, draft):

            def note(kind, group, what):
                if kind == "WRONG" or args.verbose:
                    what = what if isinstance(what, str) else f"{what['description']}: {json.dumps(what['data'])[:100]}"
                    print(f"{kind}: {draft}/{name}: {group['description']}: {what}\n    {json.dumps(group['schema'])[:300]}")

            check_groups(probe, groups, counts, reasons, note)
        print(f"{draft}:")
        for name in sorted(counts):
            print(f"{counts[name]:7} {name}")
        for text, n in reasons.most_common(40):
            print(f"{n:7} refused: {text}")
        n_wrong += counts["instances invalid accepted"]
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
