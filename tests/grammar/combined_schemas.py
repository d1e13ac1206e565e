"""Random combinations of the JSON-Schema-Test-Suite's schemas by the keywords that combine schemas, the same ones for the same seed."""
import json
import os
import random

SUITE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures", "grammar", "json_schema_suite.json")
# References need their own document; validators round decimals, and dialects of patterns differ.
LEFT_OUT = ('"$ref"', "\\\\p{", "0.0001", "\\u0000", '"format"', "unevaluated")


def read_pool():
    with open(SUITE, encoding="utf-8") as file:
        groups = json.load(file)["groups"]
    texts = [(group["file"], json.dumps(group["schema"])) for group in groups]
    return [json.loads(text) for name, text in texts if name != "pattern.json" and not any(word in text for word in LEFT_OUT)]


def combine(rng, pool, depth=0):
    first = rng.choice(pool)
    if depth > 1 or rng.random() < 0.25:
        return first
    base = dict(first) if isinstance(first, dict) else {}
    a, b = combine(rng, pool, depth + 1), combine(rng, pool, depth + 1)
    properties = base.get("properties", {})
    return rng.choice([
        {**base, "allOf": [a, b]}, {**base, "anyOf": [a, b]}, {**base, "oneOf": [a, b]}, {**base, "not": a},
        {**base, "if": a, "then": b, "else": rng.choice(pool)}, {**base, "items": a, "contains": b},
        {**base, "properties": {**properties, "foo": a, "q": b}, "required": ["q"]}, {**base, "patternProperties": {"^f": a, "o$": b}},
        {**base, "dependentSchemas": {"foo": a}, "type": "object"}])


def schemas(n, seed=0):
    pool = read_pool()
    return [combine(random.Random(seed + i), pool) for i in range(n)]
