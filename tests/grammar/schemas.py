"""Random JSON schemas of every kind that is supported, the same ones for the same seed."""
import datetime
import ipaddress
import json
import random
import re
import uuid

import jsonschema

WORDS = ["name", "id", "größe", "a b", "x\"y", "tab\tkey", "n", "na", "nam", "tags", "value", "é", "items", "$ref2", "k/1", "k~2"]
PATTERNS = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "^(foo|ba[rz])+$", "[A-Z]{2}", "^a.c$", "^[^\"\\\\]{0,8}$", "\\w+\\s\\w+", "^x", "y$",
            "^(?:[01]?\\d|2[0-3]):[0-5]\\d$", "^\\u00e9+$", "^[\\w.-]{1,5}@[a-z]{2,4}\\.de$", "^$|^ab?$", "^\\$\\{[A-Z_]*\\}$",
            "^(a|b(c|d){2}){1,3}$", "[\\n\\t]", "^[\\u4e00-\\u9fff]{1,4}$", "^\\S\\D\\W$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "hostname", "ipv4", "ipv6", "uri", "duration"]
VALUES = [None, True, False, 0, 1, -7, 2.5, 1e3, "red", "grün", "a\"b\\c", "", "\u0007", [1, "x"], {"k": [True]}, []]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.defs = {}

    def schema(self):
        root = self.value(0)
        if isinstance(root, bool):
            root = {}
        if self.defs:
            root = {**root, "$defs": self.defs} if "$ref" not in root else {"$ref": root["$ref"], "$defs": self.defs}
        return root

    def value(self, depth):
        r = self.random
        simple = [self.string, self.integer, self.number, self.listed, self.constant, self.plain, self.types]
        deep = [self.object, self.object, self.object, self.array, self.any_of, self.one_of, self.all_of, self.reference, self.recursive]
        return r.choice(simple if depth >= 3 or r.random() < 0.25 + 0.15 * depth else deep)(depth)

    def plain(self, _):
        return {"type": self.random.choice(["null", "boolean", "integer", "number", "string"])}

    def types(self, _):
        r = self.random
        return {"type": r.sample(["null", "boolean", "integer", "number", "string"], r.randint(1, 3)), "description": "some of them"}

    def constant(self, _):
        return {"const": self.random.choice(VALUES)}

    def listed(self, _):
        return {"enum": self.random.sample(VALUES, self.random.randint(1, 5))}

    def string(self, _):
        r = self.random
        out = {"type": "string"}
        kind = r.random()
        if kind < 0.25:
            out["pattern"] = r.choice(PATTERNS)
        elif kind < 0.5:
            out["format"] = r.choice(FORMATS)
        else:
            if r.random() < 0.6:
                out["minLength"] = r.randint(0, 6)
            if r.random() < 0.8:
                out["maxLength"] = out.get("minLength", 0) + r.randint(0, 12)
        if r.random() < 0.2:
            del out["type"]
        return out if len(out) > 0 else {"type": "string"}

    def integer(self, _):
        r = self.random
        out = {"type": "integer"}
        low = r.choice([0, 1, -5, -1000, 17, 99, 1000000, -0.5, r.randint(-10**6, 10**6)])
        if r.random() < 0.7:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7:
            out[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([2, 3, 10, 99, 12345, 10**9])
        return out

    def number(self, _):
        r = self.random
        out = {"type": "number"}
        low = r.choice([0, 0.1, -0.25, 1.5, -1e3, 3.14159, 1e9, r.uniform(-100, 100)])
        if r.random() < 0.7:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7:
            out[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([0.001, 0.5, 1, 7.25, 1000])
        return out

    def object(self, depth):
        r = self.random
        names = r.sample(WORDS, r.randint(0, 5))
        out = {"type": "object", "properties": {name: self.value(depth + 1) for name in names}}
        required = [name for name in names if r.random() < 0.6]
        if r.random() < 0.1:
            required.append("undeclared")
        if required or r.random() < 0.5:
            out["required"] = required
        kind = r.random()
        if kind < 0.5 and "undeclared" not in required:
            out["additionalProperties"] = False
        elif kind < 0.7:
            out["additionalProperties"] = self.value(depth + 2)
        elif kind < 0.8:
            out["additionalProperties"] = True
        if r.random() < 0.1 and out.get("additionalProperties") is not False:
            del out["properties"]
        return out

    def array(self, depth):
        r = self.random
        out = {"type": "array"}
        if r.random() < 0.8:
            out["items"] = self.value(depth + 1)
        if r.random() < 0.3:
            out["prefixItems"] = [self.value(depth + 1) for _ in range(r.randint(1, 3))]
            if r.random() < 0.4:
                out["items"] = False
        low = r.randint(0, 2)
        if out.get("items") is not False:
            out["minItems"] = low
        out["maxItems"] = low + r.randint(0, 3)
        return out

    def any_of(self, depth):
        out = {"anyOf": [self.value(depth + 1) for _ in range(self.random.randint(1, 3))]}
        if self.random.random() < 0.3:
            out["title"] = "one or another"
        return out

    def one_of(self, depth):
        r = self.random
        if r.random() < 0.5:
            return {"oneOf": [{"type": "string", "maxLength": 5}, self.integer(0), {"type": "null"}][:r.randint(2, 3)]}
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "v": self.value(depth + 2)}, "required": ["kind"],
                           "additionalProperties": False} for kind in ("a", "b", "c")]}

    def all_of(self, depth):
        r = self.random
        if r.random() < 0.4:
            return {"allOf": [{"type": ["integer", "string"], "minimum": 3}, {"type": "integer", "maximum": 40}]}
        first, second = self.object(depth + 1), self.object(depth + 1)
        for side in (first, second):
            side.pop("additionalProperties", None)
        both = set(first.get("properties", {})) & set(second.get("properties", {}))
        for name in both:
            del second["properties"][name]
        return {"allOf": [first, second]} if r.random() < 0.5 else {**first, "allOf": [second]}

    def reference(self, depth):
        name = f"d{len(self.defs)}"
        self.defs[name] = {}
        self.defs[name] = self.value(depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def recursive(self, depth):
        name = f"d{len(self.defs)}"
        self.defs[name] = {"type": "object", "properties": {
            "v": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]},
            "more": {"type": "array", "items": {"$ref": f"#/$defs/{name}"}, "maxItems": 1}},
            "required": ["v"], "additionalProperties": False}
        return {"$ref": f"#/$defs/{name}"}


def schema(seed):
    return Generator(seed).schema()


FORMAT_CHECKER = jsonschema.FormatChecker(formats=())


@FORMAT_CHECKER.checks("date", ValueError)
def _date(text):
    return not isinstance(text, str) or bool(datetime.date.fromisoformat(text))


@FORMAT_CHECKER.checks("time", ValueError)
def _time(text):
    return not isinstance(text, str) or bool(re.search("(Z|[+-]..:..)$", text)) and bool(_parse("2024-02-02T" + text))


@FORMAT_CHECKER.checks("date-time", ValueError)
def _date_time(text):
    return not isinstance(text, str) or bool(_parse(text))


def _parse(text):
    match = re.fullmatch(r"([^.Z+]*?)(\.\d+)?(?:Z|[+-]\d\d:\d\d)", text)
    if not match:
        raise ValueError(text)
    whole, fraction = match.groups()
    return datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S") and (fraction is None or float("0" + fraction) < 1)


@FORMAT_CHECKER.checks("uuid", ValueError)
def _uuid(text):
    return not isinstance(text, str) or str(uuid.UUID(text)) == text.lower()  # RFC 9562 reads both cases


@FORMAT_CHECKER.checks("email")
def _email(text):
    return not isinstance(text, str) or bool(re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", text)) and ".." not in text


@FORMAT_CHECKER.checks("hostname")
def _hostname(text):
    return not isinstance(text, str) or all(re.fullmatch("(?!-)[a-zA-Z0-9-]{1,63}(?<!-)", part) for part in text.split("."))


@FORMAT_CHECKER.checks("ipv4", ValueError)
def _ipv4(text):
    return not isinstance(text, str) or bool(ipaddress.IPv4Address(text))


@FORMAT_CHECKER.checks("ipv6", ValueError)
def _ipv6(text):
    return not isinstance(text, str) or ipaddress.IPv6Address(text) is not None


def check(schema_, text):
    """Raises where the text is not strict JSON that is valid by the schema."""
    def refuse(name):
        raise ValueError(f"{name} is no JSON")

    value = json.loads(text, parse_constant=refuse)
    text.encode("utf-8")
    jsonschema.Draft202012Validator(schema_, format_checker=FORMAT_CHECKER).validate(value)
    return value
